"""``python -m tokpack`` is the ``tokpack`` command."""

import sys

from tokpack.cli import main

if __name__ == "__main__":
    sys.exit(main())

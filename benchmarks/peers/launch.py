"""Run an older script with today's Python and numpy: launch.py SCRIPT ARGUMENT...

Gives it the names that it misses and nothing else: ``typing.override`` (Python 3.12) and
``numpy.float`` (gone in numpy 1.24).
"""

from __future__ import annotations

import runpy
import sys
import typing


def main() -> None:
    """Add the names, then run the script as it would run by itself."""
    if not hasattr(typing, "override"):
        setattr(typing, "override", lambda function: function)  # noqa: B010
    import numpy

    if not hasattr(numpy, "float"):
        setattr(numpy, "float", float)  # noqa: B010
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()

"""The command line. Nothing imports it but ``python -m tokpack`` and the ``tokpack`` script."""

from tokpack.cli.main import main

__all__ = ["main"]

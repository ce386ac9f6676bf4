"""The command line. Nothing but ``python -m tokpack`` and the trainer's commands imports it."""

from tokpack.cli.main import main

__all__ = ["main"]

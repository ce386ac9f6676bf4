"""The command line. No room imports it; the trainer's commands take their flags and words from it."""

from tokpack.cli.main import main

__all__ = ["main"]

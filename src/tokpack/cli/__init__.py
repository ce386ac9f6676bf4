"""The command line. Only ``python -m tokpack`` and the trainer's commands import it."""

from tokpack.cli.main import main as main

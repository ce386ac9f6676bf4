"""What export and generate share: flags for a checkpoint's parts, and how it is opened."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tokpack.cli.parser import Group
from tokpack.cli.tokenizer_flags import RARE, tokenizer_flag, tokenizer_given
from tokpack.errors import needs_extra

if TYPE_CHECKING:
    import argparse

PARTS = (
    Group("where the checkpoint does not say it", (tokenizer_flag("that of its training data"),)),
    RARE,
)
CHECKPOINTS = """\
CHECKPOINT is a folder that `tokpack train` saved to or `tokpack model import` made (its latest
checkpoint counts), or one of the step_... folders in it.
"""


def load(module: str) -> Any:
    """A module that imports torch, by name: only few commands need it.

    UsageError where what it needs is not installed.
    """
    with needs_extra("train"):
        return importlib.import_module(f"tokpack.{module}")


def open_checkpoint(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """The weights that the flags name, and their tokenizer, or the reason why there is none."""
    opened: tuple[Any, Any] = load("checkpoints.export").open_checkpoint(
        arguments.inputs[0], getattr(arguments, "average", 1), **tokenizer_given(arguments)
    )
    return opened

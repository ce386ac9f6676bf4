"""The files that flags name, for the rule that no run replaces what it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

_TOKENIZER = ("tokenizer", "vocab_file", "merge_file", "tokenizer_model")


def tokenizer_files(arguments: argparse.Namespace) -> list[str]:
    """What the flags of a tokenizer name: files, a folder, or a name, which is no file."""
    given = [getattr(arguments, name, None) for name in _TOKENIZER]
    return [path for path in given if path]

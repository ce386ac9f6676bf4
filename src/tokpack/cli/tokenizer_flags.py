"""The flags that name a tokenizer: the same in every command that needs one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.cli.option_flags import flag_of
from tokpack.cli.parser import Flag, Group

if TYPE_CHECKING:
    import argparse

    from tokpack.tokenizers import TokenizerFiles

FILES = tuple(
    map(flag_of, ("vocab_file", "merge_file", "tokenizer_model", "tokenizer_type", "pattern"))
)
SPECIAL_TOKENS_COUNT = flag_of("special_tokens_count")


def tokenizer_flag(otherwise: str) -> Flag:
    """``--tokenizer``; ``otherwise`` says which one is taken where it is not given."""
    return flag_of("tokenizer", otherwise=otherwise)


RARE = Group("other ways to name a tokenizer", FILES, rare=True)


def of_dataset(title: str = "tokenizer") -> tuple[Group, Group]:
    """``--tokenizer`` with that of the manifest as its default, and the rare flags of one."""
    return Group(title, (tokenizer_flag("as the manifest says"),)), RARE


def tokenizer_given(arguments: argparse.Namespace) -> TokenizerFiles:
    """What the flags say of a tokenizer, as load_tokenizer takes it."""
    return {
        "tokenizer": arguments.tokenizer,
        "vocab_file": arguments.vocab_file,
        "merge_file": arguments.merge_file,
        "tokenizer_type": arguments.tokenizer_type,
        "tokenizer_model": arguments.tokenizer_model,
        "pattern": arguments.pattern,
    }


def tokenizer_paths(arguments: argparse.Namespace) -> list[str]:
    """The files, folders or names of a tokenizer that the flags name."""
    from tokpack.tokenizers import TOKENIZER_PATHS

    return [path for name in TOKENIZER_PATHS if (path := getattr(arguments, name))]

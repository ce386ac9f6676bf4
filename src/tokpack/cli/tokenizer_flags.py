"""The flags that name a tokenizer: the same in every command that needs one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.cli.parser import Flag, Group, flag, number

if TYPE_CHECKING:
    import argparse

    from tokpack.tokenizers import TokenizerFiles

FILES = (
    flag("--vocab-file", "--vocab", metavar="FILE", help="vocab.json or tokenizer.json"),
    flag("--merge-file", metavar="FILE", help="merges.txt that belongs to --vocab-file"),
    flag("--tokenizer-model", metavar="PATH", help="a sentencepiece model, or as --tokenizer"),
    flag(
        "--tokenizer-type",
        metavar="TYPE",
        help="as in preprocess_data.py: GPT2BPETokenizer, HFTokenizer, Whitespace, ...",
    ),
    flag(
        "--pattern",
        "--tiktoken-pattern",
        metavar="NAME|REGEX",
        help="how a .tiktoken file cuts text into words: cl100k, o200k, qwen2, llama3, ...",
    ),
)
SPECIAL_TOKENS_COUNT = flag(
    "--special-tokens-count",
    "--tiktoken-num-special-tokens",
    type=number(0),
    metavar="N",
    help="special tokens of a TikTokenizer",
)


def tokenizer_flag(otherwise: str) -> Flag:
    """``--tokenizer``; ``otherwise`` says which one is taken where it is not given."""
    names = "gpt2, neox, cl100k_base, a Hugging Face name, a file or its folder"
    return flag("--tokenizer", metavar="NAME|PATH", help=f"{names} ({otherwise})")


OF_DATASET = Group("tokenizer", (tokenizer_flag("as the manifest says"), *FILES))


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

"""The flags of the preprocess_data.py scripts, with the meaning that they have there.

Of Megatron-LM, GPT-NeoX and both Megatron-DeepSpeed forks.
"""

from __future__ import annotations

import argparse
from typing import Any

from tokpack.cli.parser import Group, flag, keep_one, number
from tokpack.cli.tokenizer_flags import SPECIAL_TOKENS_COUNT
from tokpack.errors import UsageError

_TRAINER = "padding the vocabulary is the trainer's work"
_CORES = "one run keeps all --workers busy on any number of files"
_TOKENIZER = "the tokenizer's files say it"
_NO_NEED = "nothing to do here"
_VOCAB_SIZE = "--vocab-size"  # which a TikTokenizer needs
_NONE_ADDED = "--tokenizer-hf-no-include-special-tokens"

# Flags that ask for nothing that would change the files: name, number of values, why.
IGNORED: dict[str, tuple[int | str | None, str]] = {
    "--partitions": (None, _CORES),
    "--keep-sequential-samples": (0, "documents always keep the order of the inputs"),
    "--find-optimal-num-workers": (0, _CORES),
    "--workers-to-check": ("+", _CORES),
    "--max-documents": (None, "it belongs to --find-optimal-num-workers"),
    "--performance-dir": (None, "it belongs to --find-optimal-num-workers"),
    "--num-docs": (None, "progress is measured in bytes; --limit N ends after N records"),
    _VOCAB_SIZE: (None, _TOKENIZER),
    "--vocab-extra-ids": (None, _TOKENIZER),
    "--padded-vocab-size": (None, _TRAINER),
    "--pad-vocab-size-to": (None, _TRAINER),
    "--make-vocab-size-divisible-by": (None, _TRAINER),
    "--tensor-model-parallel-size": (None, _TRAINER),
    "--model-parallel-size": (None, _TRAINER),
    "--rank": (None, _NO_NEED),
    "--seq-length": (None, "documents are written whole, the trainer cuts samples"),
    "--use-gigatoken": (0, "tokpack has an engine of its own"),
    "--legacy-tokenizer": (0, _NO_NEED),
    "--tokenizer-hf-use-fast": (0, _NO_NEED),
    "--tokenizer-hf-no-use-fast": (0, _NO_NEED),
    _NONE_ADDED: (0, "none are added where --add-special-tokens is not given"),
    "--tokenizer-sentencepiece-ignore-extra-whitespaces": (0, "the model says it"),
    "--trust-remote-code": (0, "no code of a tokenizer's repository is run"),
}

# Flags of NeoX's preprocess_data_with_chat_template.py: name, number of values, what is given here.
_OF_CONVERSATIONS: dict[str, tuple[int | None, str]] = {
    "--tokenizer-path": (None, "give --tokenizer DIR"),
    "--generation-role": (None, "give --role-map ROLE=assistant"),
    "--only-last": (0, "give --loss last"),
    "--no-mask": (0, "give --loss all"),
    "--reward-key": (None, "give --keep KEY, for a column"),
    "--for-rm": (0, "give --pairs chosen rejected, for pairs"),
}


class _Refuse(argparse.Action):
    def __call__(self, *others: Any) -> None:
        name = others[-1]
        raise UsageError(
            f"{name} is a flag of NeoX's script for conversations; with --chat "
            f"{_OF_CONVERSATIONS[name][1]}"
        )


class _Ignore(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        namespace.ignored = [*namespace.ignored, option_string]
        if self.dest != "ignored":
            setattr(namespace, self.dest, values)


GROUP = Group(
    "Flags of preprocess_data.py",
    (
        flag("--input", nargs="+", action="extend", default=[]),
        flag("--output-prefix"),
        flag("--dataset-impl", choices=("mmap", "lazy", "cached"), default="mmap"),
        flag("--tokenizer-name-or-path"),
        flag(_VOCAB_SIZE, type=number(1), action=_Ignore),
        SPECIAL_TOKENS_COUNT,
        flag("--tokenizer-special-tokens", "--tiktoken-special-tokens", nargs="+"),
        *(
            flag(name, action=_Ignore, nargs=values, dest="ignored", default=[])
            for name, (values, _) in IGNORED.items()
            if name != _VOCAB_SIZE
        ),
        *(
            flag(name, action=_Refuse, nargs=values)
            for name, (values, _) in _OF_CONVERSATIONS.items()
        ),
    ),
    hidden=True,
)


def check(arguments: argparse.Namespace) -> None:
    """Refuse what those scripts can do and tokpack does not, and what contradicts itself."""
    if arguments.dataset_impl != "mmap":
        raise UsageError(
            f"--dataset-impl {arguments.dataset_impl} is an old format that tokpack does not "
            "write; use --dataset-impl mmap, which every trainer reads"
        )
    if arguments.output and arguments.output_prefix:
        raise UsageError(
            "-o and --output-prefix are both given; -o PREFIX writes PREFIX.bin, "
            "--output-prefix PREFIX writes PREFIX_KEY_document.bin: keep one of them"
        )
    keep_one(arguments, "--tokenizer", "--tokenizer-name-or-path")
    if arguments.add_special_tokens and _NONE_ADDED in arguments.ignored:
        raise UsageError(f"--add-special-tokens and {_NONE_ADDED} contradict each other: keep one")
    if arguments.tokenizer_special_tokens:
        raise UsageError(
            "--tokenizer-special-tokens: special tokens are those of the tokenizer's files, and of "
            "a TikTokenizer the seven that Megatron-LM gives it: leave the flag out, or give a "
            "tokenizer.json that has them with --tokenizer"
        )


def notes(arguments: argparse.Namespace) -> list[str]:
    """One line for each flag given that needs no action."""
    used = (_VOCAB_SIZE,) if _is_type(arguments, "tiktokenizer") else ()
    return [
        f"{name} is not needed: {IGNORED[name][1]}"
        for name in arguments.ignored
        if name not in used
    ]


def bos_notes(arguments: argparse.Namespace) -> list[str]:
    """One line where the script that has the tokenizer type begins each document with BOS."""
    if (arguments.tokenizer_type or "").lower() != "llama2tokenizer":
        return []
    before = "no BOS before documents, as Megatron-LM before 2026 puts it with Llama2Tokenizer"
    return [f"{before}; --bos adds it"]


def is_whitespace(arguments: argparse.Namespace) -> bool:
    """True for the vocabulary of whole words, which has a script and conventions of its own."""
    return _is_type(arguments, "whitespace", "whitespacetokenizer")


def _is_type(arguments: argparse.Namespace, *types: str) -> bool:
    return (arguments.tokenizer_type or "").lower() in types

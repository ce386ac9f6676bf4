"""The flags with which text becomes ids, as ``encode`` and ``plan`` take them."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from typing import TYPE_CHECKING

from tokpack.cli import legacy
from tokpack.cli.inputs import INPUT_FORMAT
from tokpack.cli.parser import Group, flag, number, output_prefix, size
from tokpack.cli.tokenizer_flags import FILES, tokenizer_flag
from tokpack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.encoding import EncodeOptions


def _error_policy(text: str) -> tuple[str, int | None]:
    policy, colon, limit = text.partition(":")
    if policy == "fail" and not colon:
        return "fail", None
    if policy == "skip" and (not colon or limit.isdigit()):
        return "skip", int(limit) if colon else None
    raise argparse.ArgumentTypeError(f"{text!r} is not fail, skip or skip:N")


GROUPS = (
    Group(
        "input",
        (
            flag(
                "--json-keys",
                "--jsonl-keys",
                "--key",
                dest="keys",
                metavar="KEY",
                nargs="+",
                help="JSON keys (a.b: b inside of a) or columns, a dataset for each (text)",
            ),
            INPUT_FORMAT,
            flag(
                "--hf-split",
                metavar="SPLIT",
                help="the split of Hugging Face datasets that name none, such as train",
            ),
            flag(
                "--limit", type=number(1), metavar="N", help="only the first N records, for a trial"
            ),
            flag(
                "--on-error",
                type=_error_policy,
                default=("fail", None),
                metavar="fail|skip[:N]",
                help="a bad record ends the run, or goes to PREFIX.rejects.jsonl, N at most (fail)",
            ),
            flag(
                "--empty",
                choices=("skip", "document"),
                default="skip",
                help="leave documents without tokens out, or keep their place in the .idx (skip)",
            ),
            flag(
                "--max-document-bytes",
                type=size,
                default=1 << 30,
                metavar="SIZE",
                help="a longer document is a bad record (1GB)",
            ),
        ),
    ),
    Group(
        "tokenizer",
        (
            tokenizer_flag("gpt2"),
            *FILES,
            flag(
                "--append-eod",
                action=argparse.BooleanOptionalAction,
                default=None,
                help="end each document with the EOD token (yes; with --output-prefix no)",
            ),
            flag("--eod-token", metavar="TOKEN|ID", help="the EOD, where it is not the usual one"),
            flag(
                "--prepend-bos",
                "--bos",
                action="store_true",
                help="begin each document with the BOS token",
            ),
            flag(
                "--bos-token",
                metavar="TOKEN|ID",
                help="begin each document with this one, where BOS is not the usual one",
            ),
            flag(
                "--add-special-tokens",
                "--tokenizer-hf-include-special-tokens",
                action="store_true",
                help="put around each document what the tokenizer's own post-processor does",
            ),
            flag(
                "--special-tokens",
                choices=("auto", "text", "encode", "error"),
                default="auto",
                help="what <|endoftext|> and the like inside a document become (auto)",
            ),
        ),
    ),
    Group(
        "text",
        (
            flag("--split-sentences", action="store_true", help="a sequence for each sentence"),
            flag("--keep-newlines", action="store_true", help="keep newlines between sentences"),
            flag(
                "--lang",
                default="english",
                metavar="LANGUAGE",
                help="language of the sentences (english)",
            ),
            flag("--ftfy", action="store_true", help="repair broken Unicode with ftfy first"),
        ),
    ),
)


OUTPUT = (
    flag(
        "-o",
        "--output",
        type=output_prefix,
        metavar="PREFIX",
        help="write PREFIX.bin, .idx and .json (./ and the input's name)",
    ),
    flag(
        "--dtype",
        choices=("auto", "uint16", "int32"),
        default="auto",
        help="type of a token id (auto: uint16 if the vocabulary is smaller than 65500)",
    ),
    flag(
        "--trace",
        action="store_true",
        help="write PREFIX.trace: the input and line of each document, for tokpack trace",
    ),
    flag("--overwrite", action="store_true", help="replace a finished dataset"),
)


def resolve(arguments: argparse.Namespace) -> tuple[EncodeOptions, list[str]]:
    """Turn flags into the library's options, and into what the user should be told about them."""
    from tokpack.encoding import EncodeOptions, megatron_names

    legacy.check(arguments)
    notes = legacy.notes(arguments)
    inputs = (*arguments.inputs, *arguments.input)
    keys = _keys(arguments.keys or ["text"])
    if not inputs:
        raise UsageError(_no_input(keys))
    whitespace = legacy.is_whitespace(arguments)
    names = {}
    if arguments.output_prefix:
        sentences = arguments.split_sentences or whitespace
        names = megatron_names(arguments.output_prefix, keys, sentences=sentences)
    append_eod = arguments.append_eod
    if append_eod is None:
        append_eod = whitespace or not arguments.output_prefix
        if not append_eod:
            notes.append("no EOD after documents, as in preprocess_data.py; --append-eod adds it")
    if arguments.output_prefix and not (arguments.prepend_bos or arguments.bos_token):
        notes += legacy.bos_notes(arguments)
    on_error, max_rejects = arguments.on_error
    known = {one.name for one in fields(EncodeOptions)}
    options = {name: value for name, value in vars(arguments).items() if name in known}
    options |= {
        "inputs": inputs,
        "output": arguments.output or arguments.output_prefix or "",
        "output_names": names,
        "tokenizer": arguments.tokenizer or arguments.tokenizer_name_or_path,
        "keys": keys,
        "append_eod": append_eod,
        "on_error": on_error,
        "max_rejects": max_rejects,
        "input_format": arguments.input_format or ("text" if whitespace else "auto"),
    }
    return EncodeOptions(**options), notes


def _keys(given: Sequence[str]) -> tuple[str, ...]:
    """The keys, also those of comma lists."""
    return tuple(key for text in given for key in map(str.strip, text.split(",")) if key)


def _no_input(keys: tuple[str, ...]) -> str:
    taken = next((key for key in keys if os.path.exists(key)), None)
    if taken:
        return f"no INPUT: --json-keys took {taken!r} for a key; put the inputs before it"
    return "no INPUT: name a file, a folder, a glob, @list.txt, or - for stdin"

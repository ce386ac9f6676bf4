"""The flags with which text becomes ids, as ``encode`` and ``plan`` take them."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from tokpack.cli import legacy
from tokpack.cli.inputs import INPUT_FORMAT
from tokpack.cli.option_flags import flag_of, flags_of
from tokpack.cli.parser import Group, output_prefix
from tokpack.encoding.names import megatron_names
from tokpack.encoding.options import EncodeOptions
from tokpack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


def _error_policy(text: str) -> tuple[str, int | None]:
    policy, colon, limit = text.partition(":")
    if policy == "fail" and not colon:
        return "fail", None
    if policy == "skip" and (not colon or limit.isdigit()):
        return "skip", int(limit) if colon else None
    raise argparse.ArgumentTypeError(f"{text!r} is not fail, skip or skip:N")


def _variable(text: str) -> tuple[str, Any]:
    """NAME=VALUE, of which the value is JSON, or a text as it is."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _roles(text: str) -> tuple[str, str]:
    one, _, other = text.partition("=")
    if not (one and other):
        raise argparse.ArgumentTypeError(f"{text!r} is not ROLE=ROLE, such as human=user")
    return one, other


CHAT = Group(
    "conversations",
    flags_of(
        "chat",
        flag_of("template_var", type=_variable, action="append"),
        flag_of("role_map", type=_roles, action="append"),
        flag_of("pairs", nargs=2, metavar="KEY KEY"),
    ),
)
GROUPS = (
    Group(
        "input",
        flags_of(
            "input",
            flag_of("keys", nargs="+", default=None),
            INPUT_FORMAT,
            flag_of(
                "on_error",
                type=_error_policy,
                default=("fail", None),
                metavar="fail|skip[:N]",
                help="a bad record ends the run, or goes to PREFIX.rejects.jsonl, N at most (fail)",
            ),
        ),
    ),
    Group(
        "tokenizer",
        flags_of(
            "tokenizer",
            flag_of(
                "append_eod",
                otherwise="yes; with --output-prefix or --chat no",
                action=argparse.BooleanOptionalAction,
                default=None,
            ),
        ),
    ),
    Group("text", flags_of("text")),
    CHAT,
)
OUTPUT = flags_of(
    "output",
    flag_of("output", type=output_prefix),
    flag_of("keep", nargs="+", default=()),
    without=("scratch", "files"),
)


def resolve(arguments: argparse.Namespace) -> tuple[EncodeOptions, list[str]]:
    """Turn flags into the library's options, and into what the user should be told about them."""
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
    if append_eod is None and not arguments.chat:
        append_eod = whitespace or not arguments.output_prefix
        if not append_eod:
            notes.append("no EOD after documents, as in preprocess_data.py; --append-eod adds it")
    if arguments.output_prefix and not (arguments.prepend_bos or arguments.bos_token):
        notes += legacy.bos_notes(arguments)
    on_error, max_rejects = arguments.on_error
    option_names = {one.name for one in fields(EncodeOptions)}
    options = {name: value for name, value in vars(arguments).items() if name in option_names}
    options |= {
        "inputs": inputs,
        "output": arguments.output or arguments.output_prefix or "",
        "output_names": names,
        "tokenizer": arguments.tokenizer or arguments.tokenizer_name_or_path,
        "keys": keys,
        # Who uses preprocess_data.py's name for the output looks for one .bin of this name.
        "files": options.get("files") or (1 if arguments.output_prefix else None),
        "keep": _keys(arguments.keep),
        "append_eod": append_eod,
        "template_var": dict(arguments.template_var) if arguments.template_var else None,
        "role_map": dict(arguments.role_map) if arguments.role_map else None,
        "on_error": on_error,
        "max_rejects": max_rejects,
        "input_format": arguments.input_format or ("text" if whitespace else "auto"),
    }
    return EncodeOptions(**options), notes


def _keys(texts: Sequence[str]) -> tuple[str, ...]:
    """The keys, also those of comma lists."""
    return tuple(key for text in texts for key in map(str.strip, text.split(",")) if key)


def _no_input(keys: tuple[str, ...]) -> str:
    taken = next((key for key in keys if os.path.exists(key)), None)
    if taken:
        return f"no INPUT: --json-keys took {taken!r} for a key; put the inputs before it"
    return "no INPUT: name a file, a folder, a glob, @list.txt, or - for stdin"

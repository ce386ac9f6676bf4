"""The flags with which text becomes ids, for ``encode`` and ``plan``."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any

from tokpack.cli.inputs import ENCODE, SPECIAL_TOKENS_COUNT, encode_flags
from tokpack.cli.parser import Flag, Group, flag, flags, keep_one, number, output_prefix
from tokpack.encoding import EncodeOptions, megatron_names
from tokpack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


# The flags of the preprocess_data.py scripts of Megatron-LM, GPT-NeoX and both Megatron-DeepSpeed
# forks, with the same meaning.

_VOCAB_SIZE = "--vocab-size"  # needed by a TikTokenizer
_NONE_ADDED = "--tokenizer-hf-no-include-special-tokens"

# Flags that do not change the files, and why.
IGNORED = flags(f"""
    --partitions N                    one run keeps all --workers busy on any number of files
    --keep-sequential-samples         documents always keep the order of the inputs
    --find-optimal-num-workers        one run keeps all --workers busy on any number of files
    --workers-to-check N...           one run keeps all --workers busy on any number of files
    --max-documents N                 it belongs to --find-optimal-num-workers
    --performance-dir DIR             it belongs to --find-optimal-num-workers
    --num-docs N                      progress is measured in bytes; --limit N ends after N records
    --vocab-extra-ids N               the tokenizer's files say it
    --padded-vocab-size N             padding the vocabulary is the trainer's work
    --pad-vocab-size-to N             padding the vocabulary is the trainer's work
    --make-vocab-size-divisible-by N  padding the vocabulary is the trainer's work
    --tensor-model-parallel-size N    padding the vocabulary is the trainer's work
    --model-parallel-size N           padding the vocabulary is the trainer's work
    --rank N                          nothing to do here
    --seq-length N                    documents are written whole, the trainer cuts samples
    --use-gigatoken                   tokpack has an engine of its own
    --legacy-tokenizer                nothing to do here
    --tokenizer-hf-use-fast           nothing to do here
    --tokenizer-hf-no-use-fast        nothing to do here
    {_NONE_ADDED}  none are added where --add-special-tokens is not given
    --tokenizer-sentencepiece-ignore-extra-whitespaces  the model says it
    --trust-remote-code               no code of a tokenizer's repository is run
""")

# Flags of NeoX's preprocess_data_with_chat_template.py, and what to give here.
_OF_CONVERSATIONS = flags("""
    --tokenizer-path DIR    give --tokenizer DIR
    --generation-role ROLE  give --role-map ROLE=assistant
    --only-last             give --loss last
    --no-mask               give --loss all
    --reward-key KEY        give --keep KEY, for a column
    --for-rm                give --pairs chosen rejected, for pairs
""")
_REASONS = {one.names[0]: one.settings["help"] for one in (*IGNORED, *_OF_CONVERSATIONS)}
_REASONS[_VOCAB_SIZE] = "the tokenizer's files say it"


class _Refuse(argparse.Action):
    def __call__(self, *others: Any) -> None:
        name = others[-1]
        raise UsageError(
            f"{name} is a flag of NeoX's script for conversations; with --chat {_REASONS[name]}"
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


def _taken(rows: Sequence[Flag], action: type[argparse.Action], **more: Any) -> Iterator[Flag]:
    """The flags of a table, with values of any kind, for an action of their own."""
    for names, settings in rows:
        nargs = 0 if "action" in settings else settings.get("nargs")
        yield flag(*names, action=action, nargs=nargs, **more)


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
        *_taken(IGNORED, _Ignore, dest="ignored", default=[]),
        *_taken(_OF_CONVERSATIONS, _Refuse),
    ),
    hidden=True,
)


def check_legacy(arguments: argparse.Namespace) -> None:
    """Refuse requests of those scripts that tokpack cannot fulfil, and contradictory ones."""
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


def _error_policy(text: str) -> tuple[str, int | None]:
    policy, colon, limit = text.partition(":")
    if policy == "fail" and not colon:
        return "fail", None
    if policy == "skip" and (not colon or limit.isdigit()):
        return "skip", int(limit) if colon else None
    raise argparse.ArgumentTypeError(f"{text!r} is not fail, skip or skip:N")


def _variable(text: str) -> tuple[str, Any]:
    """The name and value of NAME=VALUE; the value is JSON, or else a text."""
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
    encode_flags(
        "chat",
        template_var={"type": _variable, "action": "append"},
        role_map={"type": _roles, "action": "append"},
        pairs={"nargs": 2, "metavar": "KEY KEY"},
    ),
)
GROUPS = (
    Group(
        "input",
        encode_flags(
            "input",
            keys={"nargs": "+"},
            on_error={
                "type": _error_policy,
                "default": ("fail", None),
                "choices": None,
                "metavar": "fail|skip[:N]",
                "help": "a bad record ends the run, or goes to PREFIX.rejects.jsonl, N at most "
                "(fail)",
            },
        ),
    ),
    Group(
        "tokenizer",
        encode_flags(
            "tokenizer",
            append_eod={"otherwise": "yes; with --output-prefix or --chat no"},
        ),
    ),
    Group("text", encode_flags("text")),
    CHAT,
)
OUTPUT = encode_flags(
    "output",
    without=("scratch", "files"),
    output={"type": output_prefix},
    keep={"nargs": "+", "default": []},
)


def resolve(arguments: argparse.Namespace) -> tuple[EncodeOptions, list[str]]:
    """The library's options from flags, and notes for the user about them."""
    check_legacy(arguments)
    kind = (arguments.tokenizer_type or "").lower()
    used = (_VOCAB_SIZE,) if kind == "tiktokenizer" else ()
    ignored = [name for name in arguments.ignored if name not in used]
    notes = [f"{name} is not needed: {_REASONS[name]}" for name in ignored]
    inputs = (*arguments.inputs, *arguments.input)
    keys = _keys(arguments.keys or ["text"])
    if not inputs:
        raise UsageError(_no_input(keys))
    # The vocabulary of whole words has its own script and conventions.
    whitespace = kind in ("whitespace", "whitespacetokenizer")
    names = {}
    if arguments.output_prefix:
        sentences = arguments.split_sentences or whitespace
        names = megatron_names(arguments.output_prefix, keys, sentences=sentences)
    append_eod = arguments.append_eod
    if append_eod is None and not arguments.chat:
        append_eod = whitespace or not arguments.output_prefix
        if not append_eod:
            notes.append("no EOD after documents, as in preprocess_data.py; --append-eod adds it")
    bos = arguments.prepend_bos or arguments.bos_token
    if arguments.output_prefix and not bos and kind == "llama2tokenizer":
        notes.append(
            "no BOS before documents, though Megatron-LM before 2026 adds one with "
            "Llama2Tokenizer; --bos adds it"
        )
    on_error, max_rejects = arguments.on_error
    options = {
        name: value
        for name, value in vars(arguments).items()
        if name in ENCODE and value is not None
    }
    options |= {
        "inputs": inputs,
        "output": arguments.output or arguments.output_prefix or "",
        "output_names": names,
        "tokenizer": arguments.tokenizer or arguments.tokenizer_name_or_path,
        "keys": keys,
        # Users of preprocess_data.py's name for the output expect one .bin with this name.
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
    """The keys, with comma lists split."""
    return tuple(key for text in texts for key in map(str.strip, text.split(",")) if key)


def _no_input(keys: tuple[str, ...]) -> str:
    taken = next((key for key in keys if os.path.exists(key)), None)
    if taken:
        return f"no INPUT: --json-keys took {taken!r} for a key; put the inputs before it"
    return "no INPUT: name a file, a folder, a glob, @list.txt, or - for stdin"

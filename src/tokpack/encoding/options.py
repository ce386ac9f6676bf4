"""The request for a run: flags, signatures and docs are generated from this one record."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from inspect import getdoc
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from tokpack.chat import NO_VARIABLES, PAIRS, ChatOptions, Rewriting, ToolArguments, Truncate
from tokpack.display import brief
from tokpack.errors import UsageError, option
from tokpack.input_formats import FORMATS
from tokpack.machine import usable_cores
from tokpack.option import check_options, in_group, list_of, options_of
from tokpack.storage import is_url, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokpack.storage import PathLike
    from tokpack.tokenizers import TokenizerLike


_REPORT_TO = re.compile(r"https?://[^/\s]\S*|wandb:([^/\s]+/)?[^/\s]+")
_chat = in_group("chat")
_REWRITING, _TRUNCATE, _ARGUMENTS = map(get_args, (Rewriting, Truncate, ToolArguments))
# Options for plain documents only, with their defaults.
_OF_TEXT = {"split_sentences": False, "ftfy": False, "map": None, "empty": "skip"}


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """The options for conversations, which are a part of EncodeOptions."""

    chat: bool = _chat(
        False,
        "records are conversations: rendered by a chat template, with PREFIX.mask beside the .bin, "
        "a byte for each token: 1 where it is trained",
    )
    chat_template: str | None = _chat(
        None,
        "a file with the template, or the name of one of the tokenizer's",
        "FILE|NAME",
        otherwise="the tokenizer's own",
    )
    template_var: Mapping[str, Any] | None = _chat(
        None, "set a variable of the template: enable_thinking=false", "NAME=VALUE"
    )
    messages_key: str | None = _chat(
        None,
        "the key of a record's messages",
        "KEY",
        otherwise="found by content: messages, conversations, prompt and completion, ...",
    )
    prompt_key: str | None = _chat(
        None,
        "the key of the prompt before both answers of a pair, or before a completion; '' for none",
        "KEY",
        otherwise="found by content: prompt, messages, question, instruction and input, ...",
    )
    role_map: Mapping[str, str] | None = _chat(
        None, "treat one role as another: human=user", "ROLE=ROLE"
    )
    tool_arguments: ToolArguments = _chat(
        "auto",
        "pass the arguments of tool calls to the template as a mapping, as JSON text, or as they "
        "are in the record (as-is); auto: whichever the template expects",
        choices=_ARGUMENTS,
    )
    loss: str = _chat(
        "assistant",
        "what to train on: assistant, all, last (the assistant's last turn), or ROLE,ROLE",
        "WHAT",
    )
    loss_on_eot: bool = _chat(True, "train on the token that ends a turn", otherwise="yes")
    loss_on_tool_calls: bool = _chat(True, "train on tool calls", otherwise="yes")
    loss_on_thinking: bool = _chat(True, "train on thinking", otherwise="yes")
    loss_on_empty_thinking: bool = _chat(False, "train on an empty <think></think> too")
    append_eot: bool = _chat(
        False,
        "append the token that ends the last turn, and train on it, if the template writes it only "
        "with the next message, such as GLM's <|user|>",
    )
    rewriting: Rewriting = _chat(
        "refuse",
        "if the template rewrites earlier turns: refuse the conversation, make a document for each "
        "assistant turn (split), or one document of the final text (as-is)",
        choices=_REWRITING,
    )
    max_length: int | None = _chat(None, "the maximum length of a conversation, in tokens", "N")
    truncate: Truncate = _chat(
        "drop",
        "leave out a longer one (drop), or cut off its first (left) or last (right) tokens",
        choices=_TRUNCATE,
    )
    pairs: Sequence[str] | None = _chat(
        None,
        "keys of the preferred and the rejected answer: each record becomes two documents",
        "KEY",
    )
    weight_key: str | None = _chat(
        None, "the key of a record's weight, for PREFIX.weights: float16 for each token", "KEY"
    )

    @property
    def conversations(self) -> ChatOptions:
        """The same options in the form that the room ``chat`` takes."""
        names = {one.name for one in fields(ChatOptions)}
        same = {name: getattr(self, name) for name in names if hasattr(self, name)}
        same |= {"role_map": self.role_map or {}, "variables": self.template_var or {}}
        return ChatOptions(template=self.chat_template, **same)

    @property
    def token_tracks(self) -> tuple[str, ...]:
        """The tracks that each dataset has beside its tokens, in the order of TRACK_DTYPES."""
        if not self.chat:
            return ()
        return ("mask", *(("weights",) if self.weight_key is not None else ()), "roles")

    def check_chat(self) -> None:
        """Raise UsageError for options that do not go together."""
        if not self.chat:
            for one in fields(ChatRequest):
                if getattr(self, one.name) != one.default and one.name != "chat":
                    raise UsageError(f"{option(one.name)} needs {option('chat', True)}")
            return
        everything = vars(self)
        for name, default in _OF_TEXT.items():
            if everything[name] != default:
                raise UsageError(f"{option(name)} is for documents, not for {option('chat', True)}")
        if tuple(everything["keys"]) != ("text",):
            raise UsageError(
                f"{option('keys')} is for texts; name the key of a conversation's messages with "
                f"{option('messages_key')}"
            )
        if everything["special_tokens"] not in ("auto", "encode"):
            raise UsageError(
                f"{option('special_tokens')} is {everything['special_tokens']!r}: special tokens "
                "in rendered conversations are encoded as their ids"
            )
        object.__setattr__(self, "special_tokens", "encode")
        if self.truncate != "drop" and self.max_length is None:
            raise UsageError(
                f"{option('truncate', self.truncate)} shortens conversations of more than "
                f"{option('max_length')} tokens: add {option('max_length')}"
            )
        pairs = self.pairs
        if pairs is not None:
            if isinstance(pairs, str) or len(pairs) != 2 or len({*pairs}) != len(pairs):
                raise UsageError(f"{option('pairs')} is {pairs!r}; it takes two different keys")
            object.__setattr__(self, "pairs", tuple(pairs))
        for name in ("template_var", "role_map"):
            value = getattr(self, name)
            if not (value is None or isinstance(value, Mapping)):
                raise UsageError(f"{option(name)} is {value!r}; it takes a mapping of names")
        if named := sorted(NO_VARIABLES.intersection(self.template_var or ())):
            raise UsageError(
                f"{option('template_var', named[0])}: each conversation sets {named[0]} itself: "
                "leave it out"
            )
        try:
            json.dumps(dict(self.template_var or {}))
        except (TypeError, ValueError) as error:
            raise UsageError(f"{option('template_var')}: {error}") from None


def megatron_names(prefix: str, keys: Sequence[str], *, sentences: bool) -> dict[str, str]:
    """The prefixes of datasets as Megatron's preprocess_data names them: PREFIX_text_document."""
    level = "sentence" if sentences else "document"
    return {key: f"{prefix}_{key}_{level}" for key in keys}


def default_output(inputs: Sequence[str]) -> str:
    """The default prefix: the name of the only input, or of the folder that has all inputs.

    It lies in the current folder. Raises UsageError if the inputs give no name.
    """
    names = [name for text in inputs for name in _listed(text)]
    names = [shown(name) if is_url(name) else name for name in names]  # without secrets
    if "-" in names:
        raise UsageError(f"standard input has no name: say where to write with {option('output')}")
    if len(names) == 1 and not _is_pattern(names[0]):
        name = os.path.basename(os.path.abspath(names[0]))
        if not os.path.isdir(names[0]):
            name = _stem(name)
    else:
        folders = {os.path.dirname(os.path.abspath(_before_pattern(name))) for name in names}
        name = os.path.basename(os.path.commonpath(folders))
    if not name:
        raise UsageError(f"the inputs give no name for the dataset: set {option('output')}")
    if os.path.abspath(name + ".json") in map(os.path.abspath, names):
        name += "_tokens"  # else the manifest would have the name of an input
    return name


def _listed(text: str) -> list[str]:
    if os.path.exists(text) or "," not in text:
        return [text.removeprefix("@") if text.startswith("@") else text.strip()]
    return [name.strip() for name in text.split(",") if name.strip()]


def _is_pattern(text: str) -> bool:
    return any(mark in text for mark in "*?[") and not os.path.exists(text)


def _before_pattern(text: str) -> str:
    while _is_pattern(os.path.dirname(text)):
        text = os.path.dirname(text)
    return text


def _stem(name: str) -> str:
    from tokpack.sources import (
        DOCUMENT_SUFFIXES,
        SUFFIXES,  # imported late: flags need only the record
    )

    stem, suffix = os.path.splitext(name)
    while stem and suffix.lower() in (*DOCUMENT_SUFFIXES, *SUFFIXES):
        name = stem
        stem, suffix = os.path.splitext(name)
    return name


DType = Literal["auto", "uint16", "int32"]
SpecialTokens = Literal["auto", "text", "encode", "error"]
OnError = Literal["fail", "skip"]
Empty = Literal["skip", "document"]


_input, _text, _output, _run = map(in_group, ("input", "text", "output", "run"))
_tokenizer = in_group("tokenizer")
_loads = in_group("tokenizer", taken_by="load_tokenizer")
_frames = in_group("tokenizer", taken_by="frame_of")
_tik = in_group(taken_by="load_tokenizer")
_other = in_group()


@dataclass(frozen=True)
class EncodeOptions(ChatRequest):
    """A request to turn ``inputs`` into one dataset for each key.

    ``output`` is the exact PREFIX of PREFIX.bin, .idx and .json, by default made from the inputs'
    names; with several keys it is ``PREFIX_<key>``. ``output_names`` overrides these with a prefix
    for each key, all in the folder of ``output``, where the work folder lies too. A dataset for a
    store is made in a folder in ``scratch``, then sent. Raises UsageError for a value out of range.
    """

    inputs: tuple[str, ...]
    output: str = _output(
        "",
        "write PREFIX.bin, .idx and .json",
        "PREFIX",
        flags="-o --output",
        otherwise="./ and the input's name",
    )
    output_names: Mapping[str, str] = field(
        default_factory=dict,
        metadata={"help": "the PREFIX of each key, in one folder", "otherwise": "PREFIX_<key>"},
    )
    keys: tuple[str, ...] = _input(
        ("text",),
        "JSON keys (a.b: b inside a) or columns; each becomes a dataset",
        "KEY",
        flags="--json-keys --jsonl-keys --key",
        otherwise="text",
    )
    input_format: str = _input(
        "auto",
        "auto, jsonl, json, text, csv, tsv, parquet, arrow, archive, wet; file: each file is a "
        "document",
        "FORMAT",
        choices=("auto", *FORMATS),
    )
    json_path: str | None = _input(
        None, "the key (a.b: b inside a) of the list of records in a JSON file", "KEY"
    )
    hf_split: str | None = _input(
        None, "the split of Hugging Face datasets named without one, such as train", "SPLIT"
    )
    limit: int | None = _input(None, "only the first N records, for a trial", "N")
    on_error: OnError = _input(
        "fail",
        "a bad record ends the run, or goes to PREFIX.rejects.jsonl",
        choices=get_args(OnError),
    )
    max_rejects: int | None = _other(
        None,
        f"bad records allowed with {option('on_error', 'skip')}",
        otherwise="any number",
        least=0,
    )
    where: str | None = _input(
        None,
        "only records for which this is true: SQL on columns, \"length(text) > 200 and lang='en'\"",
        "EXPR",
    )
    map: str | Callable[[Any], Any] | None = _input(
        None,
        "apply a function to those records: module:function or FILE.py:function",
        "FUNCTION",
    )
    map_version: str | None = _input(
        None,
        f"a version of {option('map')}: without one a stopped run cannot resume, and a finished "
        "one is not recognized",
        "VERSION",
    )
    empty: Empty = _input(
        "skip",
        "skip documents without tokens, or keep them as empty entries of the .idx",
        choices=get_args(Empty),
    )
    max_document_bytes: int = _input(
        1 << 30, "a longer document is a bad record", "SIZE", otherwise="1GB"
    )
    tokenizer: TokenizerLike | None = _loads(
        None,
        "gpt2, neox, cl100k_base, a Hugging Face name, a file or its folder",
        "NAME|PATH",
        otherwise="gpt2",
    )
    vocab_file: PathLike | None = _loads(
        None, "vocab.json or tokenizer.json", "FILE", flags="--vocab-file --vocab"
    )
    merge_file: PathLike | None = _loads(None, f"the merges.txt for {option('vocab_file')}", "FILE")
    tokenizer_model: PathLike | None = _loads(
        None, f"a sentencepiece model, or anything that {option('tokenizer')} takes", "PATH"
    )
    tokenizer_type: str | None = _loads(
        None, "as in preprocess_data.py: GPT2BPETokenizer, HFTokenizer, Whitespace, ...", "TYPE"
    )
    pattern: str | None = _loads(
        None,
        "how to split text into words for a .tiktoken file: cl100k, o200k, qwen2, llama3, ...",
        "NAME|REGEX",
        flags="--pattern --tiktoken-pattern",
    )
    vocab_size: int | None = _tik(None, "ids of a TikTokenizer", "N")
    special_tokens_count: int | None = _tik(
        None,
        "special tokens of a TikTokenizer",
        "N",
        flags="--special-tokens-count --tiktoken-num-special-tokens",
        least=0,
    )
    append_eod: bool | None = _frames(
        None,
        "end each document with the EOD token",
        otherwise=f"yes; with {option('chat', True)} no",
    )
    eod_token: str | int | None = _loads(None, "the EOD token, if not the usual one", "TOKEN|ID")
    prepend_bos: bool = _frames(
        False, "begin each document with the BOS token", flags="--prepend-bos --bos"
    )
    bos_token: str | int | None = _frames(
        None, "the BOS token to begin each document with, if not the usual one", "TOKEN|ID"
    )
    add_special_tokens: bool = _frames(
        False,
        "add the special tokens that the tokenizer's own post-processor puts around a document",
        flags="--add-special-tokens --tokenizer-hf-include-special-tokens",
    )
    special_tokens: SpecialTokens = _tokenizer(
        "auto",
        "how to encode <|endoftext|> and the like inside a document",
        choices=get_args(SpecialTokens),
    )
    split_sentences: bool = _text(False, "make each sentence a sequence")
    keep_newlines: bool = _text(False, "keep newlines between sentences")
    lang: str = _text("english", "language of the sentences", "LANGUAGE")
    ftfy: bool = _text(False, "repair broken Unicode with ftfy first")
    dtype: DType = _output(
        "auto",
        "type of a token id",
        otherwise="auto: uint16 if the vocabulary is smaller than 65500",
        choices=get_args(DType),
    )
    keep: Sequence[str] = _output(
        (),
        "write PREFIX.docs.parquet, a row for each document, with the values of these keys or "
        "columns (NAME=KEY renames one, KEY? may be absent at first), or of all small ones: all",
        "KEY",
    )
    trace: bool = _output(
        False, "write PREFIX.docs.parquet without values of the input, for tokpack inspect --trace"
    )
    files: int | None = _output(
        None,
        "write N .bin files under one manifest",
        "N",
        otherwise="1; with more than 20 workers one for every 20, each of at least 16 GB of text",
    )
    overwrite: bool = _output(False, "replace a finished dataset")
    scratch: str | None = _output(
        None,
        "where a dataset for a store is made first",
        "DIR",
        otherwise="$TMPDIR, else the current folder",
    )
    workers: int = _run(0, "processes", "N", otherwise="all cores", least=0)
    report_to: str | None = _run(
        None,
        "send how far it is, every 10 seconds at most: POST of JSON to an https URL, or "
        "wandb:PROJECT of Weights & Biases",
        "URL",
    )

    def __post_init__(self) -> None:
        for name in ("inputs", "keys"):
            value = getattr(self, name)
            several = (value,) if isinstance(value, str | os.PathLike) else value or ()
            try:
                object.__setattr__(self, name, tuple(map(os.fspath, several)))
            except TypeError:
                raise UsageError(
                    f"{option(name)} is {brief(value)}; it is a list of names"
                ) from None
        object.__setattr__(self, "keep", texts_of("keep", self.keep or ()))
        if not (self.map is None or callable(self.map) or isinstance(self.map, str)):
            raise UsageError(
                f"{option('map')} is {self.map!r}; it is a function, or the name of one"
            )
        if (version := self.map_version) is not None:
            if self.map is None:
                raise UsageError(f"{option('map_version', version)} needs {option('map')}")
            if not isinstance(version, str) or not version.strip():
                raise UsageError(
                    f"{option('map_version')} is {brief(version)}: give a name, such as '2'"
                )
        for name in ("tokenizer", "vocab_file", "merge_file", "tokenizer_model"):
            value = getattr(self, name)
            if value is None:
                continue
            if name != "tokenizer" and not isinstance(value, str | os.PathLike):
                raise UsageError(
                    f"{option(name)} has the type {type(value).__name__}: give a name or a path"
                )
            from tokpack.tokenizers import path_of  # help pages load without it

            object.__setattr__(self, name, path_of(name, value))
        if not self.inputs:
            raise UsageError("no input given")
        if self.append_eod is None:
            object.__setattr__(self, "append_eod", not self.chat)
        if not self.keys or len(set(self.keys)) != len(self.keys) or "" in self.keys:
            raise UsageError(
                f"{option('keys')} is {list(self.keys)}; it needs one or more different names"
            )
        check_options(self)
        if self.report_to is not None and not _REPORT_TO.fullmatch(self.report_to):
            raise UsageError(
                f"{option('report_to')} is neither an https URL nor wandb:PROJECT, such as "
                f"{option('report_to', 'wandb:tokens')}"
            )
        if self.max_rejects is not None and self.on_error == "fail":
            raise UsageError(f"{option('max_rejects')} needs {option('on_error', 'skip')}")
        if self.keep_newlines and not self.split_sentences:
            raise UsageError(f"{option('keep_newlines')} needs {option('split_sentences')}")
        _ = self.kept  # raises for a wrong one
        self.check_chat()
        self._name_outputs()

    def _name_outputs(self) -> None:
        output = self.output or default_output(self.inputs)
        if os.path.basename(output) in ("", ".", ".."):
            raise UsageError(f"output {output!r} is a folder: add a name for the dataset")
        names = dict(self.output_names)
        if not names and len(self.keys) == 1:
            names = {self.keys[0]: output}
        elif not names:
            names = {key: f"{output}_{key}" for key in self.keys}
        home = os.path.dirname(os.path.abspath(output))
        if set(names) != set(self.keys) or len(set(names.values())) != len(names):
            raise UsageError(f"output_names is {names}; it needs a name of its own for each key")
        for name in names.values():
            if os.path.dirname(os.path.abspath(name)) != home:
                raise UsageError(f"the output {name!r} is not in the folder of {output!r}")
        object.__setattr__(self, "output", output)
        object.__setattr__(self, "output_names", {key: names[key] for key in self.keys})

    @property
    def has_table(self) -> bool:
        """Whether a dataset gets a table of its documents."""
        return self.trace or bool(self.keep)

    @cached_property
    def kept(self) -> dict[str, str]:
        """The kept columns of the table: their names, and the keys of their values. UsageError."""
        from tokpack.encoding.kept import parse_keep  # the command line loads without it

        return parse_keep(self.keep) if self.keep else {}

    @property
    def with_nulls(self) -> frozenset[str] | None:
        """The columns of tables in which null fields of structs stay; None: all columns.

        For conversations only the kept columns: a null field of a message means that the record
        has no such key, since Arrow gives every struct in a column all fields.
        """
        if not self.chat:
            return None
        answers = self.pairs or {key for keys in PAIRS for key in keys}
        kept = (key.replace("{}", one) for key in self.kept.values() for one in answers)
        return frozenset(key.partition(".")[0] for key in kept)

    @property
    def tokenizer_files(self) -> list[str]:
        """The name of the tokenizer, or the paths of its files, as the options give them."""
        files = (self.tokenizer, self.vocab_file, self.merge_file, self.tokenizer_model)
        return [os.fspath(cast("str", path)) for path in files if path]

    @property
    def for_inputs(self) -> dict[str, Any]:
        """The options that discover takes."""
        return {name: getattr(self, name) for name in ("input_format", "hf_split", "json_path")}

    def taken_by(self, function: str) -> dict[str, Any]:
        """The options that ``load_tokenizer`` or ``frame_of`` takes."""
        options = options_of(EncodeOptions).values()
        return {one.name: getattr(self, one.name) for one in options if one.taken_by == function}


EncodeOptions.__doc__ = (
    f"{getdoc(EncodeOptions)}\n\n{list_of(options_of(EncodeOptions).values())}\n"
)


def texts_of(name: str, value: object) -> tuple[str, ...]:
    """The texts of an option, which is a list or one text with commas. UsageError for others."""
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, Iterable) or not all(isinstance(one, str) for one in texts):
        raise UsageError(f"{option(name)} is {value!r}; it is a list of names, such as ['id']")
    return tuple(text for one in texts if (text := one.strip()))


def worker_count(options: EncodeOptions) -> int:
    """The number of workers: as requested, else one for each core that this process may use."""
    return options.workers or usable_cores()

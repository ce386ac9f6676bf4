"""What a run is asked to do."""

from __future__ import annotations

import operator
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, SupportsIndex, get_args

from tokpack.errors import UsageError
from tokpack.machine import usable_cores
from tokpack.sources.compression import SUFFIXES
from tokpack.sources.detect import DOCUMENT_SUFFIXES
from tokpack.stores import is_url, shown
from tokpack.tokenizers import TOKENIZER_PATHS, TokenizerFiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokpack.progress import Show
    from tokpack.stores.anywhere import PathLike

DType = Literal["auto", "uint16", "int32"]
SpecialTokens = Literal["auto", "text", "encode", "error"]
OnError = Literal["fail", "skip"]
Empty = Literal["skip", "document"]
_CHOICES = {"dtype": DType, "special_tokens": SpecialTokens, "on_error": OnError, "empty": Empty}
_LEAST = {"workers": 0, "limit": 1, "max_rejects": 0, "max_document_bytes": 1}


@dataclass(frozen=True)
class EncodeOptions:
    """A request to turn ``inputs`` into one dataset for each key.

    ``output`` is the exact PREFIX of PREFIX.bin, .idx and .json, by default made from the inputs'
    names; with several keys it is ``PREFIX_<key>``. ``output_names`` are the prefixes of all keys,
    and overrides that: in the folder of ``output``, beside which the work folder lies. An
    ``output`` on a store is made in a folder in ``scratch``, and sent. Raises UsageError for a
    value out of range.
    """

    inputs: tuple[str, ...]
    output: str = ""
    output_names: Mapping[str, str] = field(default_factory=dict)
    tokenizer: PathLike | None = None
    vocab_file: PathLike | None = None
    merge_file: PathLike | None = None
    tokenizer_type: str | None = None
    tokenizer_model: PathLike | None = None
    pattern: str | None = None  # how a .tiktoken file cuts text into words: a name, an expression
    vocab_size: int | None = None  # ids, and how many of them special tokens are, of a TikTokenizer
    special_tokens_count: int | None = None
    keys: tuple[str, ...] = ("text",)
    append_eod: bool = True
    eod_token: str | int | None = None  # a token or its id; None: the tokenizer's usual one
    prepend_bos: bool = False
    bos_token: str | int | None = None  # where it is not the tokenizer's usual one; prepends it
    add_special_tokens: bool = False  # what the tokenizer's own post-processor adds
    workers: int = 0  # 0: one for each core that this process may use
    dtype: DType = "auto"
    special_tokens: SpecialTokens = "auto"
    on_error: OnError = "fail"
    max_rejects: int | None = None  # with on_error="skip": bad records allowed; None: any number
    empty: Empty = "skip"  # "document": an entry in the index, as in Megatron-LM
    ftfy: bool = False
    split_sentences: bool = False
    keep_newlines: bool = False
    lang: str = "english"
    limit: int | None = None  # only the first so many records of the inputs
    input_format: str = "auto"
    hf_split: str | None = None  # of Hugging Face datasets that name none
    overwrite: bool = False
    scratch: str | None = None  # where a run to a store works: by default $TMPDIR, or here
    trace: bool = False  # write PREFIX.trace: the input and line of each document
    max_document_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for name in ("inputs", "keys"):
            value = getattr(self, name)
            several = (value,) if isinstance(value, str | os.PathLike) else value
            object.__setattr__(self, name, tuple(map(os.fspath, several)))
        for name in TOKENIZER_PATHS:
            object.__setattr__(self, name, _path(name, getattr(self, name)))
        if not self.inputs:
            raise UsageError("no input given")
        if not self.keys or len(set(self.keys)) != len(self.keys) or "" in self.keys:
            raise UsageError(f"keys is {list(self.keys)}; it needs one or more different names")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                allowed = ", ".join(get_args(choices))
                raise UsageError(f"{name} is {getattr(self, name)!r}; it can be {allowed}")
        for name, least in _LEAST.items():
            number = getattr(self, name)
            if number is None and name in ("limit", "max_rejects"):
                continue
            if not isinstance(number, SupportsIndex):
                raise UsageError(f"{name} is {number!r}, which is no whole number")
            if operator.index(number) < least:
                raise UsageError(f"{name} is {number}; the least is {least}")
        if self.max_rejects is not None and self.on_error == "fail":
            raise UsageError("max_rejects needs on_error='skip' (--on-error skip:N)")
        if self.keep_newlines and not self.split_sentences:
            raise UsageError("keep_newlines needs split_sentences")
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
    def tokenizer_files(self) -> list[str]:
        """What the options name of a tokenizer: its name, or paths of its files."""
        return [path for name in TOKENIZER_PATHS if (path := getattr(self, name))]

    @property
    def reject_budget(self) -> int | None:
        """Bad records allowed in the run; None: any number."""
        return 0 if self.on_error == "fail" else self.max_rejects


def _path(name: str, value: object) -> str | None:
    """A name or path of a tokenizer or its file, as a string; UsageError for anything else."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    raise UsageError(
        f"{name} is a {type(value).__name__}: give a name or a path; what save_pretrained(FOLDER) "
        "of a transformers tokenizer writes is read as FOLDER"
    )


def worker_count(options: EncodeOptions) -> int:
    """Worker processes to use: as asked, else one for each core that this process may use."""
    return options.workers or usable_cores()


def megatron_names(prefix: str, keys: Sequence[str], *, sentences: bool) -> dict[str, str]:
    """Dataset prefixes as Megatron's preprocess_data names them: PREFIX_text_document."""
    level = "sentence" if sentences else "document"
    return {key: f"{prefix}_{key}_{level}" for key in keys}


def default_output(inputs: Sequence[str]) -> str:
    """A name in the current folder: of the one input, or of the folder that all inputs are in.

    Raises UsageError where the inputs give none.
    """
    names = [name for text in inputs for name in _listed(text)]
    names = [shown(name) if is_url(name) else name for name in names]  # no name has a secret
    if "-" in names:
        raise UsageError("standard input has no name: say where to write with output (-o PREFIX)")
    if len(names) == 1 and not _is_pattern(names[0]):
        name = os.path.basename(os.path.abspath(names[0]))
        if not os.path.isdir(names[0]):
            name = _stem(name)
    else:
        folders = {os.path.dirname(os.path.abspath(_before_pattern(name))) for name in names}
        name = os.path.basename(os.path.commonpath(folders))
    if not name:
        raise UsageError("the inputs give no name for the dataset: set output (-o PREFIX)")
    if os.path.abspath(name + ".json") in map(os.path.abspath, names):
        name += "_tokens"  # the manifest must not take an input's place
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
    stem, suffix = os.path.splitext(name)
    while stem and suffix.lower() in (*DOCUMENT_SUFFIXES, *SUFFIXES):
        name = stem
        stem, suffix = os.path.splitext(name)
    return name


class PlanRequest(TokenizerFiles, total=False):
    """The options of ``tokpack.plan`` but ``keys``, for type checkers."""

    output_names: Mapping[str, str] | None
    vocab_size: int | None
    special_tokens_count: int | None
    append_eod: bool
    eod_token: str | int | None
    prepend_bos: bool
    bos_token: str | int | None
    add_special_tokens: bool
    dtype: DType
    special_tokens: SpecialTokens
    on_error: OnError
    max_rejects: int | None
    empty: Empty
    ftfy: bool
    split_sentences: bool
    keep_newlines: bool
    lang: str
    limit: int | None
    input_format: str
    hf_split: str | None
    overwrite: bool
    trace: bool
    max_document_bytes: int


class EncodeRequest(PlanRequest, total=False):
    """The options of ``tokpack.encode`` but ``keys``."""

    workers: int
    scratch: str | None
    progress: Show | None

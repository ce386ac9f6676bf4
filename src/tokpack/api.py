"""What the command line does, as functions of the same names with the same options."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, overload

from tokpack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Unpack

    from tokpack.encoding.options import DType, Empty, OnError, SpecialTokens
    from tokpack.indexed import Manifest
    from tokpack.operations.convert import Converted
    from tokpack.progress import Progress
    from tokpack.report import Stats

    PathLike = str | os.PathLike[str]


class EncodeRequest(TypedDict, total=False):
    """The options of ``encode`` but ``keys``, for type checkers; EncodeOptions describes them."""

    output_names: Mapping[str, str] | None
    tokenizer: str | None
    vocab_file: str | None
    merge_file: str | None
    tokenizer_type: str | None
    tokenizer_model: str | None
    pattern: str | None
    vocab_size: int | None
    special_tokens_count: int | None
    append_eod: bool
    eod_token: str | int | None
    prepend_bos: bool
    bos_token: str | int | None
    add_special_tokens: bool
    workers: int
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
    scratch: str | None
    trace: bool
    max_document_bytes: int
    progress: Callable[[Progress], None] | None


@overload
def encode(
    inputs: PathLike | Iterable[PathLike],
    output: PathLike | None = None,
    *,
    keys: str = "text",
    **options: Unpack[EncodeRequest],
) -> Manifest: ...
@overload
def encode(
    inputs: PathLike | Iterable[PathLike],
    output: PathLike | None = None,
    *,
    keys: list[str] | tuple[str, ...],
    **options: Unpack[EncodeRequest],
) -> dict[str, Manifest]: ...
def encode(
    inputs: PathLike | Iterable[PathLike],
    output: PathLike | None = None,
    *,
    output_names: Mapping[str, str] | None = None,
    tokenizer: str | None = None,
    vocab_file: str | None = None,
    merge_file: str | None = None,
    tokenizer_type: str | None = None,
    tokenizer_model: str | None = None,
    pattern: str | None = None,
    vocab_size: int | None = None,
    special_tokens_count: int | None = None,
    keys: str | list[str] | tuple[str, ...] = "text",
    append_eod: bool = True,
    eod_token: str | int | None = None,
    prepend_bos: bool = False,
    bos_token: str | int | None = None,
    add_special_tokens: bool = False,
    workers: int = 0,
    dtype: DType = "auto",
    special_tokens: SpecialTokens = "auto",
    on_error: OnError = "fail",
    max_rejects: int | None = None,
    empty: Empty = "skip",
    ftfy: bool = False,
    split_sentences: bool = False,
    keep_newlines: bool = False,
    lang: str = "english",
    limit: int | None = None,
    input_format: str = "auto",
    hf_split: str | None = None,
    overwrite: bool = False,
    scratch: str | None = None,
    trace: bool = False,
    max_document_bytes: int = 1 << 30,
    progress: Callable[[Progress], None] | None = None,
) -> Manifest | dict[str, Manifest]:
    """Turn documents into PREFIX.bin, .idx and .json, and return the manifest.

    With a list of ``keys`` it returns a dict, of each key its manifest; of several keys each
    becomes a dataset of its own, ``PREFIX_<key>``.

    ``inputs`` are files, folders, patterns or Hugging Face datasets (``hf://NAME``); ``output`` is
    PREFIX, by default made from their names. The other options are described in EncodeOptions. A
    run that was stopped goes on where it was; one that is finished returns at once. ``progress`` is
    called a few times a second. Raises a TokpackError.
    """
    options: dict[str, Any] = dict(locals())  # before anything else is: the parameters
    from tokpack.encoding import EncodeOptions
    from tokpack.encoding import encode as run

    del options["progress"]
    options["inputs"] = _paths(inputs)
    options["output"] = "" if output is None else os.fspath(output)
    options["output_names"] = output_names or {}
    request = EncodeOptions(**options)
    manifests = [replace(one, inputs=list(one.inputs)) for one in run(request, progress=progress)]
    if isinstance(keys, str):
        return manifests[0]
    return dict(zip(request.keys, manifests, strict=True))


def merge(
    inputs: PathLike | Iterable[PathLike],
    output: PathLike,
    *,
    virtual: bool = False,
    overwrite: bool = False,
) -> Manifest:
    """Join datasets, in order, into the dataset ``output``, documents and all.

    ``inputs`` are prefixes of datasets of one dtype and, as far as their manifests tell, one
    tokenizer. ``virtual`` copies nothing and writes only ``output``.json, which lists them.
    UsageError where they do not belong together, FormatError where one is broken, OutputError
    where ``output`` is taken.
    """
    from tokpack.operations.merge import merge as run

    return run(_paths(inputs), os.fspath(output), virtual=virtual, overwrite=overwrite)


def split(
    input: PathLike,  # noqa: A002  as it is called on the command line
    output: PathLike,
    *,
    documents: int | None = None,
    tokens: int | None = None,
    parts: int | None = None,
    shares: Sequence[float] | None = None,
    overwrite: bool = False,
) -> list[tuple[str, Manifest]]:
    """Cut a dataset into OUTPUT_00000, OUTPUT_00001, ...; documents stay whole.

    Exactly one says how: ``documents`` or ``tokens`` at most in each, ``parts`` alike in tokens,
    or ``shares`` of the documents; three shares are named OUTPUT_train, _valid and _test. Gives
    each prefix with its manifest. UsageError where a dataset would have no document, FormatError
    where the dataset is broken, OutputError where an output is taken.
    """
    from tokpack.operations.split import Cut
    from tokpack.operations.split import split as run

    cut = Cut(documents, tokens, parts, None if shares is None else tuple(shares))
    return run(os.fspath(input), os.fspath(output), cut, overwrite=overwrite)


def convert(
    input: PathLike,  # noqa: A002
    output: PathLike,
    *,
    from_: str = "",
    to: str = "",
    dtype: str | None = None,
    input_dtype: str | None = None,
    eod: int | None = None,
    column: str | None = None,
    overwrite: bool = False,
) -> Converted:
    """Convert a dataset of token ids; one side is ``.bin/.idx``, both may be, to change the dtype.

    ``from_`` and ``to`` are formats as `tokpack convert --help` lists them, found by content and
    by name where they are "". ``eod`` cuts formats that are one run of ids; ``input_dtype`` is
    that of raw files without a header; ``column`` is that of parquet files. UsageError for ids
    that do not fit the dtype, FormatError for a broken input, OutputError for a taken output.
    """
    from tokpack.operations.convert import ConvertOptions
    from tokpack.operations.convert import convert as run

    options = ConvertOptions(
        input=os.fspath(input),
        output=os.fspath(output),
        source=from_,
        target=to,
        dtype=dtype,
        input_dtype=input_dtype,
        eod=eod,
        column=column,
        overwrite=overwrite,
    )
    return run(options)


def stats(
    prefix: PathLike,
    *,
    tokenizer: str | None = None,
    vocab_file: str | None = None,
    merge_file: str | None = None,
    tokenizer_type: str | None = None,
    tokenizer_model: str | None = None,
    pattern: str | None = None,
    threads: int = 0,
) -> Stats:
    """Figures about all documents and tokens of a dataset: lengths, frequencies, duplicates.

    The tokenizer, which gives the tokens their texts, is the manifest's where none is given.
    ``threads`` 0 is one for each core, 8 at most. FormatError where the dataset is broken,
    TokenizerError where a tokenizer that is given cannot be loaded.
    """
    from tokpack.indexed import MMapIndexedDataset
    from tokpack.report import Spelling, find_tokenizer
    from tokpack.report import stats as run

    dataset = MMapIndexedDataset(prefix)
    found = find_tokenizer(
        dataset,
        tokenizer,
        vocab_file=vocab_file,
        merge_file=merge_file,
        tokenizer_type=tokenizer_type,
        tokenizer_model=tokenizer_model,
        pattern=pattern,
    )
    spelling = Spelling(found.tokenizer) if found.tokenizer else None
    return run(dataset, spelling, threads=threads)


def _paths(inputs: PathLike | Iterable[PathLike]) -> tuple[str, ...]:
    given = (inputs,) if isinstance(inputs, str | os.PathLike) else inputs
    if not isinstance(given, Iterable) or isinstance(given, bytes) or hasattr(given, "read"):
        raise UsageError(f"inputs is {given!r}: give a path, or a list of them")
    return tuple(os.fspath(path) for path in given)

"""Convert datasets of token ids: from and to ``.bin/.idx``, and from one dtype to another."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokpack.errors import FormatError, InputError, UsageError
from tokpack.files.durable import Staged, cannot_read, cannot_write
from tokpack.indexed.dataset import MMapIndexedDataset
from tokpack.indexed.format import MAGIC, bin_path, idx_path, parse_header, storage_dtype
from tokpack.indexed.manifest import Manifest, manifest_path
from tokpack.indexed.outputs import dataset_files
from tokpack.indexed.prefix import prefix_of
from tokpack.operations import foreign, parquet, tntidx
from tokpack.operations.export import EXPORTS, cast, export, place_of_export
from tokpack.operations.merge import plain_facts
from tokpack.operations.output import NewDataset
from tokpack.operations.place import place_of_datasets, scratch_folder
from tokpack.progress import ProgressStage
from tokpack.stores import exists, head, identity, is_file, is_url, open_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokpack.operations.foreign import Opened
    from tokpack.progress import Show
    from tokpack.stores.anywhere import PathLike

SOURCES = ("mmap", "lazy", "fairseq", "datatrove", "npy", "raw", "llm.c", "parquet")
TARGETS = ("mmap", *EXPORTS)
_SUFFIXES = {".npy": "npy", ".parquet": "parquet", ".ds": "datatrove"}
_HEAD = 64
_COPY = 4 << 20


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """What ``convert`` is asked for, ``from_`` as ``source`` and ``to`` as ``target``."""

    input: str
    output: str
    source: str = ""
    target: str = ""
    dtype: str | None = None
    input_dtype: str | None = None
    eod: int | None = None
    column: str | None = None
    overwrite: bool = False


class Converted(NamedTuple):
    """What was written, in which format, and how much."""

    paths: list[str]
    target: str
    documents: int
    sequences: int
    tokens: int
    dtype: str
    notes: list[str]


def convert(
    input: PathLike,  # noqa: A002  as it is called on the command line
    output: PathLike,
    *,
    from_: str = "",
    to: str = "",
    dtype: str | None = None,
    input_dtype: str | None = None,
    eod: int | None = None,
    column: str | None = None,
    overwrite: bool = False,
    progress: Show | None = None,
) -> Converted:
    """Convert a dataset of token ids; one side is ``.bin/.idx``, both may be, to change the dtype.

    ``from_`` and ``to`` are formats as `tokpack convert --help` lists them, found by content and
    by name where they are "". ``eod`` cuts formats that are one run of ids; ``input_dtype`` is
    that of raw files without a header; ``column`` is that of parquet files. ``progress`` is told
    the tokens that are converted. The output appears whole or not at all. UsageError for ids that
    do not fit the dtype, FormatError for a broken input, OutputError for a taken output.
    """
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
    if options.source and options.source not in SOURCES:
        raise UsageError(f"no format {options.source!r} to convert from: {', '.join(SOURCES)}")
    target = options.target or _SUFFIXES.get(os.path.splitext(options.output)[1], "mmap")
    if target not in TARGETS:
        raise UsageError(f"no format {target!r} to convert to: {', '.join(TARGETS)}")
    source = options.source or detect(options.input)
    if source == "mmap" and target != "mmap":
        return _export(options, target, progress)
    if target != "mmap":
        raise UsageError(
            f"from {source} to {target} it takes two steps: convert to mmap (.bin/.idx) first"
        )
    if source == "mmap" and options.dtype is None:
        raise UsageError(
            f"{options.input} is in the mmap format already: say --to FORMAT "
            f"({', '.join(EXPORTS)}), or --dtype for other ids"
        )
    if not is_url(options.input) or source == "mmap":
        return _import(options, options.input, source, progress)
    with scratch_folder(options.input) as folder:
        return _import(options, _brought(options.input, folder), source, progress)


def _brought(url: str, folder: str) -> str:
    """The path of a copy of an input on a store, with the files that go with it. InputError."""
    copy = os.path.join(folder, os.path.basename(url))
    for name in filter(exists, _input_files(url)):
        path = os.path.join(folder, os.path.basename(name))
        with open_file(name) as source, cannot_write(path), open(path, "wb") as file:
            shutil.copyfileobj(source, file, _COPY)
    return copy


def detect(name: str) -> str:
    """The format of a dataset, by its content: a prefix of .bin/.idx, or a file.

    FormatError for a format that cannot be read, UsageError where nothing tells the format.
    """
    prefix = prefix_of(name)
    if is_file(idx_path(prefix)):
        return _detect_index(idx_path(prefix))
    if MMapIndexedDataset.exists(prefix):  # a virtual one
        return "mmap"
    if not is_file(name):
        raise InputError(
            f"{name}: no such file, nor {idx_path(prefix)}; name a dataset by its prefix, "
            "anything else by its file"
        )
    begin = _head(name)
    if begin.startswith(b"\x93NUMPY"):
        return "npy"
    if begin.startswith(parquet.MAGIC):
        return "parquet"
    if is_file(f"{name}.index"):
        return "datatrove"
    if foreign.is_shard(begin):
        return "llm.c"
    raise UsageError(
        f"{name}: nothing in it tells its format; if it is token ids and nothing else, say "
        "--from raw --input-dtype uint16 --eod ID"
    )


def _detect_index(path: str) -> str:
    begin, found = _head(path), identity(path)
    size = found.size if found else 0
    if begin.startswith(tntidx.MAGIC):
        return "lazy"
    sequences = int.from_bytes(begin[18:26], "little")
    if begin.startswith(MAGIC) and len(begin) >= 26 and size == 26 + 12 * sequences:
        return "fairseq"
    parse_header(begin[:34], size, path)  # a FormatError for all that is not Megatron's
    return "mmap"


def _head(path: str) -> bytes:
    if is_url(path):
        return head(path, _HEAD)
    with cannot_read(path), open(path, "rb") as file:
        return file.read(_HEAD)


def _open(options: ConvertOptions, name: str, source: str) -> Opened:
    eod = options.eod
    openers: dict[str, Callable[[], Opened]] = {
        "mmap": lambda: foreign.open_mmap(prefix_of(name)),
        "lazy": lambda: _open_pair(prefix_of(name), source),
        "fairseq": lambda: _open_pair(prefix_of(name), source),
        "datatrove": lambda: foreign.open_datatrove(name),
        "npy": lambda: foreign.open_npy(name, eod),
        "raw": lambda: foreign.open_raw(name, options.input_dtype, eod),
        "llm.c": lambda: foreign.open_shard(name, eod),
        "parquet": lambda: parquet.open_parquet(name, options.column),
    }
    return openers[source]()


def _open_pair(prefix: str, source: str) -> Opened:
    path = idx_path(prefix)
    if _head(path).startswith(tntidx.MAGIC):
        return foreign.open_lazy(prefix, fairseq=source == "fairseq")
    if source != "fairseq" or _detect_index(path) != source:
        raise FormatError(f"{path}: not an index in the format {source}; leave out --from")
    return foreign.open_fairseq_mmap(prefix)


def _import(options: ConvertOptions, name: str, source: str, progress: Show | None) -> Converted:
    """Convert the dataset ``name``, which is the input, or a copy of it on this machine."""
    opened = _open(options, name, source)
    prefix, files = _output_prefix(options.output), _input_files(options.input)
    dtype = storage_dtype(options.dtype) if options.dtype else _default_dtype(opened.dtype)
    with (
        place_of_datasets([prefix], files, overwrite=options.overwrite) as place,
        Staged() as staged,
    ):
        out = NewDataset(place.here(prefix), staged)
        lengths = out.scratch(opened.sequences, np.int32)
        stage = ProgressStage(progress, "convert", opened.sequences, "sequences")
        at = tokens = 0
        for block in opened.chunks():
            end = at + len(block.lengths)
            if end > opened.sequences:
                raise FormatError(
                    f"{opened.name}: more sequences than the {opened.sequences} it says it has"
                )
            lengths[at:end] = block.lengths
            at = end
            if block.ids.size:
                out.append(cast(block.ids, dtype, tokens, opened.name))
            tokens += block.ids.size
            stage.add(len(block.lengths))
        if at != opened.sequences:
            raise FormatError(f"{opened.name}: {at} sequences, expected {opened.sequences}")
        doc_idx = opened.doc_idx if opened.doc_idx is not None else out.one_each(at)
        facts = _facts(options, source, opened, len(doc_idx) - 1, tokens)
        manifest: Manifest = out.complete(dtype, lengths, doc_idx, facts)
        place.commit(staged)
    paths = [bin_path(prefix), idx_path(prefix), manifest_path(prefix)]
    return Converted(
        paths, "mmap", len(doc_idx) - 1, at, tokens, manifest.dtype, list(opened.notes)
    )


def _default_dtype(stored: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype as it is where Megatron's family has it; else int32, as it uses itself."""
    try:
        kept = storage_dtype(stored)
    except UsageError:
        return np.dtype("<i4")
    return np.dtype("<i4") if kept.itemsize == 8 else kept


def _facts(
    options: ConvertOptions, source: str, opened: Opened, documents: int, tokens: int
) -> dict[str, Any]:
    manifest = Manifest.find(prefix_of(options.input)) if source == "mmap" else None
    if manifest:
        keys = ("tokenizer", "inputs", "records", "documents", "empty", "rejected", "text_bytes")
        known = {key: getattr(manifest, key) for key in keys}
        return {**known, "options": {**manifest.options, "dtype": options.dtype}}
    size = tokens * opened.dtype.itemsize
    facts = plain_facts(options.input, documents, tokens, size)
    facts["inputs"][0]["format"] = source
    if opened.tokenizer:
        facts["tokenizer"] = {"name": opened.tokenizer}
    return facts


def _export(options: ConvertOptions, target: str, progress: Show | None) -> Converted:
    prefix = prefix_of(options.input)
    with MMapIndexedDataset(prefix, verify=True) as dataset:
        output = _output_prefix(options.output) if target == "lazy" else options.output
        manifest = dataset.manifest
        name = str(manifest.tokenizer.get("name", "")) if manifest else ""
        inputs = _input_files(options.input)
        with place_of_export(target, output, inputs, overwrite=options.overwrite) as place:
            dtype, notes = export(
                dataset,
                target,
                output,
                place,
                asked=options.dtype,
                tokenizer=name,
                progress=progress,
            )
        tokens = int(dataset.sizes.sum(dtype=np.int64))
        documents = len(dataset.doc_idx) - 1
        paths = EXPORTS[target].paths(output)
        return Converted(paths, target, documents, len(dataset), tokens, str(dtype), notes)


def _output_prefix(output: str) -> str:
    stem, suffix = os.path.splitext(output)
    return stem if suffix in (".bin", ".idx") else output


def _input_files(name: str) -> list[str]:
    beside = [f"{name}.index", f"{name}.metadata"]  # of datatrove
    return [name, *beside, *dataset_files(prefix_of(name))]

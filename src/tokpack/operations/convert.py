"""Convert datasets of token ids: from and to ``.bin/.idx``, and from one dtype to another."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokpack.errors import FormatError, InputError, UsageError
from tokpack.files.durable import AtomicFiles, cannot_read, cannot_write
from tokpack.indexed.dataset import MMapIndexedDataset
from tokpack.indexed.format import HEADER_BYTES, bin_path, idx_path, parse_header, storage_dtype
from tokpack.indexed.manifest import Manifest, manifest_path
from tokpack.indexed.outputs import dataset_files
from tokpack.indexed.prefix import prefix_of
from tokpack.operations import foreign, parquet
from tokpack.operations.export import EXPORTS, cast, export, place_of_export
from tokpack.operations.merge import plain_facts
from tokpack.operations.olmo import olmo_paths, open_olmo
from tokpack.operations.output import NewDataset
from tokpack.operations.place import place_of_datasets, scratch_folder
from tokpack.progress import ProgressStage
from tokpack.stores import exists, head, identity, is_file, is_url, open_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokpack.operations.foreign import ForeignDataset
    from tokpack.progress import Show
    from tokpack.stores.anywhere import PathLike

SOURCES = ("mmap", "datatrove", "olmo", "npy", "raw", "llm.c", "parquet")
TARGETS = ("mmap", *EXPORTS)
_SUFFIXES = {".parquet": "parquet", ".ds": "datatrove"}
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


class ConvertResult(NamedTuple):
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
) -> ConvertResult:
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
    if not options.target and options.output.endswith(".npy"):
        raise UsageError(
            f"{options.output}: a .npy has numpy's header (--to npy), or none, as OLMo-core and "
            "dolma read it (--to olmo): say which"
        )
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
    if found := identity(idx_path(prefix)):
        head = _head(idx_path(prefix))[:HEADER_BYTES]
        parse_header(head, found.size, idx_path(prefix))  # other programs' are refused by name
        return "mmap"
    if MMapIndexedDataset.exists(prefix):  # a virtual one
        return "mmap"
    if not is_file(name):
        raise InputError(
            f"{name}: no such file, nor {idx_path(prefix)}; name a dataset by its prefix, "
            "anything else by its file"
        )
    begin = _head(name)
    if begin.startswith(foreign.NPY_MAGIC):
        return "npy"
    if begin.startswith(parquet.MAGIC):
        return "parquet"
    if is_file(f"{name}.index"):
        return "datatrove"
    if foreign.is_shard(begin):
        return "llm.c"
    if name.endswith(".npy"):
        raise UsageError(
            f"{name}: a .npy without numpy's header: say --from olmo if OLMo-core or dolma wrote "
            "it, else --from raw; either takes --input-dtype uint16 --eod ID"
        )
    raise UsageError(
        f"{name}: nothing in it tells its format; if it is token ids and nothing else, say "
        "--from raw --input-dtype uint16 --eod ID"
    )


def _head(path: str) -> bytes:
    if is_url(path):
        return head(path, _HEAD)
    with cannot_read(path), open(path, "rb") as file:
        return file.read(_HEAD)


def _open(options: ConvertOptions, name: str, source: str) -> ForeignDataset:
    eod = options.eod
    openers: dict[str, Callable[[], ForeignDataset]] = {
        "mmap": lambda: foreign.open_mmap(prefix_of(name)),
        "datatrove": lambda: foreign.open_datatrove(name),
        "olmo": lambda: open_olmo(name, options.input_dtype, eod),
        "npy": lambda: foreign.open_npy(name, eod),
        "raw": lambda: foreign.open_raw(name, options.input_dtype, eod),
        "llm.c": lambda: foreign.open_shard(name, eod),
        "parquet": lambda: parquet.open_parquet(name, options.column),
    }
    return openers[source]()


def _import(
    options: ConvertOptions, name: str, source: str, progress: Show | None
) -> ConvertResult:
    """Convert the dataset ``name``, which is the input, or a copy of it on this machine."""
    opened = _open(options, name, source)
    prefix, files = _output_prefix(options.output), _input_files(options.input)
    dtype = storage_dtype(options.dtype) if options.dtype else _default_dtype(opened.dtype)
    outputs, notes = [(prefix, opened, dtype)], list(opened.notes)
    if opened.labels:
        outputs.append((f"{prefix}_labels", opened.labels, np.dtype("<i4")))
        loss = os.path.basename(opened.labels.name)
        notes.append(f"{prefix}_labels has labels: the tokens where {loss} is 1, -100 elsewhere")
    prefixes = [own for own, *_ in outputs]
    with (
        place_of_datasets(prefixes, files, overwrite=options.overwrite) as place,
        AtomicFiles() as new,
    ):
        made = []
        for own, one, kind in outputs:
            out = NewDataset(place.here(own), new)
            made.append(_write(out, one, kind, options=options, source=source, progress=progress))
        place.commit(new)
    paths = [path(own) for own in prefixes for path in (bin_path, idx_path, manifest_path)]
    documents = len(opened.doc_idx) - 1 if opened.doc_idx is not None else opened.sequences
    tokens, stored = made[0].tokens, made[0].dtype
    return ConvertResult(paths, "mmap", documents, opened.sequences, tokens, stored, notes)


def _write(
    out: NewDataset,
    opened: ForeignDataset,
    dtype: np.dtype[Any],
    *,
    options: ConvertOptions,
    source: str,
    progress: Show | None,
) -> Manifest:
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
    return out.complete(dtype, lengths, doc_idx, facts, opened.modes)


def _default_dtype(stored: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype as it is where Megatron's family has it; else int32, as it uses itself."""
    try:
        kept = storage_dtype(stored)
    except UsageError:
        return np.dtype("<i4")
    return np.dtype("<i4") if kept.itemsize == 8 else kept


def _facts(
    options: ConvertOptions, source: str, opened: ForeignDataset, documents: int, tokens: int
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


def _export(options: ConvertOptions, target: str, progress: Show | None) -> ConvertResult:
    prefix = prefix_of(options.input)
    with MMapIndexedDataset(prefix, verify=True) as dataset:
        if dataset.modes is not None:
            raise UsageError(
                f"{prefix}: is multimodal, and {target} has no place for the mode of each "
                "sequence: only .bin/.idx has (mmap)"
            )
        output = options.output
        manifest = dataset.manifest
        name = str(manifest.tokenizer.get("name", "")) if manifest else ""
        inputs = _input_files(options.input)
        with place_of_export(target, output, inputs, overwrite=options.overwrite) as place:
            dtype, notes = export(
                dataset,
                target,
                output,
                place,
                asked=options.dtype or _smallest(target, manifest),
                eod=options.eod if options.eod is not None else _appended_eod(manifest),
                tokenizer=name,
                progress=progress,
            )
        tokens = int(dataset.sizes.sum(dtype=np.int64))
        documents = len(dataset.doc_idx) - 1
        paths = EXPORTS[target].paths(output)
        return ConvertResult(paths, target, documents, len(dataset), tokens, str(dtype), notes)


def _appended_eod(manifest: Manifest | None) -> int | None:
    """The id that ends every document, where the manifest says that one was appended."""
    _, after = (manifest and manifest.frame) or ([], [])
    return after[-1] if after else None


def _smallest(target: str, manifest: Manifest | None) -> str | None:
    """The dtype that OLMo-core takes for granted: the smallest for all ids of the vocabulary."""
    size = manifest.token_fact("vocab_size") if manifest and target == "olmo" else None
    return None if size is None else "uint16" if size <= 1 << 16 else "uint32"


def _output_prefix(output: str) -> str:
    stem, suffix = os.path.splitext(output)
    return stem if suffix in (".bin", ".idx") else output


def _input_files(name: str) -> list[str]:
    beside = [f"{name}.{what}" for what in ("index", "metadata", "loss")]  # of datatrove
    if name.endswith(".npy"):
        beside += olmo_paths(name)[:1]
    return [name, *beside, *dataset_files(prefix_of(name))]

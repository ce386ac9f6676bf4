"""Convert datasets of token ids: from and to ``.bin/.idx``, and from one dtype to another."""

from __future__ import annotations

import functools
import os
import shutil
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokpack.errors import InputError, UsageError
from tokpack.files.durable import cannot_read, cannot_write
from tokpack.indexed.dataset import MMapIndexedDataset
from tokpack.indexed.format import HEADER_BYTES, bin_path, idx_path, parse_header, storage_dtype
from tokpack.indexed.manifest import CHOSEN_COUNTS, Manifest, manifest_path
from tokpack.indexed.outputs import dataset_files
from tokpack.indexed.prefix import prefix_of
from tokpack.operations import foreign, parquet
from tokpack.operations.export import EXPORTS, Content, export, export_dtype, new_export
from tokpack.operations.merge import plain_facts
from tokpack.operations.olmo import olmo_paths, open_olmo
from tokpack.operations.output import NewDataset, new_datasets, scratch_folder
from tokpack.operations.tables import all_tables, tables_of
from tokpack.stores import exists, head, identity, is_file, is_url, open_file, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokpack.indexed.digests import FileDigest
    from tokpack.operations.foreign import ForeignDataset
    from tokpack.operations.output import NewFiles
    from tokpack.operations.tables import Tables
    from tokpack.progress import Show
    from tokpack.stores.storage import PathLike

SOURCES = ("mmap", "datatrove", "olmo", "npy", "raw", "llm.c", "parquet")
TARGETS = ("mmap", *EXPORTS)
_SUFFIXES = {".parquet": "parquet", ".ds": "datatrove"}
_HEAD = 64
_COPY = 4 << 20


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
    """Convert a dataset of token ids to another format, or to another dtype.

    ``from_`` and ``to`` are formats as `tokpack convert --help` lists them, found by content and
    by name where they are "". ``eod`` cuts formats that are one run of ids; ``input_dtype`` is
    that of raw files without a header; ``column`` is that of parquet files. ``progress`` is told
    the tokens that are converted. The output appears whole or not at all. UsageError for ids that
    do not fit the dtype, FormatError for a broken input, OutputError for a taken output.
    """
    name, path = os.fspath(input), os.fspath(output)
    target = _target(path, to)
    if from_ and from_ not in SOURCES:
        raise UsageError(f"no format {from_!r} to convert from: {', '.join(SOURCES)}")
    source = from_ or detect(name)
    if source == target == "mmap" and dtype is None:
        raise UsageError(
            f"{name} is in the mmap format already: say --to FORMAT ({', '.join(EXPORTS)}), or "
            "--dtype for other ids"
        )
    with ExitStack() as stack:
        here = name
        if is_url(name) and source != "mmap":
            here = _brought(name, source, stack.enter_context(scratch_folder(shown(name))))
        opened = _open(here, source, input_dtype=input_dtype, eod=eod, column=column)
        inputs = _input_files(name, source)
        if target == "mmap":
            prefix = _output_prefix(path)
            paths = [one(prefix) for one in (bin_path, idx_path, manifest_path)]
            prefixes = [prefix]
            if opened.labels:
                prefixes.append(f"{prefix}_labels")
                paths += [one(prefixes[1]) for one in (bin_path, idx_path, manifest_path)]
            stored = storage_dtype(dtype) if dtype else _default_dtype(opened.dtype)
            tables = tables_of([prefix_of(name)]) if source == "mmap" else None
            new = stack.enter_context(
                new_datasets(prefixes, inputs, overwrite=overwrite, tables=tables is not None)
            )
            content = Content(opened, stored, new, progress=progress)
            notes = _write_datasets(content, prefixes, name, source, dtype, tables=tables)
        else:
            if opened.modes is not None:
                raise UsageError(
                    f"{opened.name}: is multimodal, and {target} has no place for the mode of each "
                    "sequence: only .bin/.idx has (mmap)"
                )
            paths = EXPORTS[target].paths(path)
            stored = export_dtype(target, opened.dtype, dtype or _smallest(target, opened))
            eod = _appended_eod(opened.manifest) if eod is None else eod
            new = stack.enter_context(new_export(target, path, inputs, overwrite=overwrite))
            content = Content(opened, stored, new, eod=eod, progress=progress)
            notes = export(content, target, path, new)
            if opened.labels:
                notes.append(f"{opened.labels.name} is left out: only mmap has a place for labels")
        new.publish()
    counts = len(content.doc_idx) - 1, len(content.lengths), content.tokens
    return ConvertResult(paths, target, *counts, str(stored), notes)


def _target(output: str, to: str) -> str:
    if not to and output.endswith(".npy"):
        raise UsageError(
            f"{output}: a .npy has numpy's header (--to npy), or none, as OLMo-core and "
            "dolma read it (--to olmo): say which"
        )
    target = to or _SUFFIXES.get(os.path.splitext(output)[1], "mmap")
    if target not in TARGETS:
        raise UsageError(f"no format {target!r} to convert to: {', '.join(TARGETS)}")
    return target


def _brought(url: str, source: str, folder: str) -> str:
    """The path of a copy of an input on a store, with the files that go with it. InputError."""
    copy = os.path.join(folder, os.path.basename(shown(url)))
    for name in _input_files(url, source):
        if name != url and not exists(name):
            continue
        path = os.path.join(folder, os.path.basename(shown(name)))
        with open_file(name) as stored, cannot_write(path), open(path, "wb") as file:
            shutil.copyfileobj(stored, file, _COPY)
    return copy


def detect(name: str) -> str:
    """The format of a dataset, by its content: a prefix of .bin/.idx, or a file.

    FormatError for a format that cannot be read, UsageError where nothing tells the format.
    """
    if name.startswith(("http://", "https://")):
        # First what is named: a signature is of this file alone, and to ask for others may fail.
        with suppress(InputError):
            if known := _by_magic(_head(name)):
                return known
    prefix = prefix_of(name)
    if index := identity(idx_path(prefix)):
        head = _head(idx_path(prefix))[:HEADER_BYTES]
        parse_header(head, index.size, idx_path(prefix))  # other programs' are refused by name
        return "mmap"
    if MMapIndexedDataset.exists(prefix):  # a virtual one
        return "mmap"
    if not is_file(name):
        raise InputError(
            f"{name}: no such file, nor {idx_path(prefix)}; name a dataset by its prefix, "
            "anything else by its file"
        )
    known = _by_magic(_head(name))
    if known in ("npy", "parquet"):
        return known
    if is_file(f"{name}.index"):
        return "datatrove"
    if known:
        return known
    if name.endswith(".npy"):
        raise UsageError(
            f"{name}: a .npy without numpy's header: say --from olmo if OLMo-core or dolma wrote "
            "it, else --from raw; either takes --input-dtype uint16 --eod ID"
        )
    raise UsageError(
        f"{name}: nothing in it tells its format; if it is token ids and nothing else, say "
        "--from raw --input-dtype uint16 --eod ID"
    )


def _by_magic(head: bytes) -> str:
    """The format of a file that begins so, "" where that does not tell it."""
    if head.startswith(foreign.NPY_MAGIC):
        return "npy"
    if head.startswith(parquet.MAGIC):
        return "parquet"
    return "llm.c" if foreign.is_shard(head) else ""


def _head(path: str) -> bytes:
    if is_url(path):
        return head(path, _HEAD)
    with cannot_read(path), open(path, "rb") as file:
        return file.read(_HEAD)


def _open(
    name: str, source: str, *, input_dtype: str | None, eod: int | None, column: str | None
) -> ForeignDataset:
    openers: dict[str, Callable[[], ForeignDataset]] = {
        "mmap": lambda: foreign.open_mmap(name),
        "datatrove": lambda: foreign.open_datatrove(name),
        "olmo": lambda: open_olmo(name, input_dtype, eod),
        "npy": lambda: foreign.open_npy(name, eod),
        "raw": lambda: foreign.open_raw(name, input_dtype, eod),
        "llm.c": lambda: foreign.open_shard(name, eod),
        "parquet": lambda: parquet.open_parquet(name, column),
    }
    return openers[source]()


def _write_datasets(
    content: Content,
    prefixes: list[str],
    name: str,
    source: str,
    dtype: str | None,
    *,
    tables: Tables | None,
) -> list[str]:
    """Write ``.bin/.idx``, and those of the labels; notes for users."""
    opened, notes = content.source, list[str]()
    contents = [content]
    if opened.labels:
        contents.append(Content(opened.labels, np.dtype("<i4"), content.new))
        loss = os.path.basename(opened.labels.name)
        notes.append(f"{prefixes[1]} has labels: the tokens where {loss} is 1, -100 elsewhere")
    for prefix, one in zip(prefixes, contents, strict=True):
        out = NewDataset(prefix, content.new)
        for part in one.ids():
            out.append(part)
        facts = _facts(one, name, source, dtype)
        write = functools.partial(_write_tables, tables, prefix, content.new, facts)
        out.complete(one.dtype, one.lengths, one.doc_idx, facts, opened.modes, tables=write)
    return notes


def _write_tables(
    tables: Tables | None, prefix: str, new: NewFiles, facts: dict[str, Any], binary: FileDigest
) -> dict[str, FileDigest]:
    return all_tables(tables, prefix, new, binary, facts)


def _facts(content: Content, name: str, source: str, dtype: str | None) -> dict[str, Any]:
    opened = content.source
    if manifest := opened.manifest:
        keys = ("tokenizer", "inputs", "records", "documents", "empty", "rejected", "text_bytes")
        kept = {key: getattr(manifest, key) for key in (*keys, *CHOSEN_COUNTS)}
        return {**kept, "options": {**manifest.options, "dtype": dtype}}
    size = content.tokens * opened.dtype.itemsize
    facts = plain_facts(shown(name), len(content.doc_idx) - 1, content.tokens, size)
    facts["inputs"][0]["format"] = source
    if opened.tokenizer:
        facts["tokenizer"] = {"name": opened.tokenizer}
    return facts


def _default_dtype(stored: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype as it is where Megatron's family has it; else int32, as it uses itself."""
    try:
        kept = storage_dtype(stored)
    except UsageError:
        return np.dtype("<i4")
    return np.dtype("<i4") if kept.itemsize == 8 else kept


def _appended_eod(manifest: Manifest | None) -> int | None:
    """The id that ends every document, where the manifest says that one was appended."""
    _, after = (manifest and manifest.frame) or ([], [])
    return after[-1] if after else None


def _smallest(target: str, opened: ForeignDataset) -> str | None:
    """The dtype that OLMo-core takes for granted: the smallest for all ids of the vocabulary."""
    manifest = opened.manifest if target == "olmo" else None
    size = manifest.token_fact("vocab_size") if manifest else None
    return None if size is None else "uint16" if size <= 1 << 16 else "uint32"


def _output_prefix(output: str) -> str:
    stem, suffix = os.path.splitext(output)
    return stem if suffix in (".bin", ".idx") else output


def _input_files(name: str, source: str) -> list[str]:
    """All files of a dataset that there may be."""
    if source == "mmap":
        return [name, *dataset_files(prefix_of(name))]
    if source == "datatrove":
        return [name, *(f"{name}.{what}" for what in ("index", "metadata", "loss"))]
    return [name, *(olmo_paths(name)[:1] if source == "olmo" else ())]

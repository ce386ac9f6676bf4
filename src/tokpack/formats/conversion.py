"""Convert datasets of token ids: from and to ``.bin/.idx``, and from one dtype to another."""

from __future__ import annotations

import functools
import os
import shutil
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokpack.counts import FOUND, READ
from tokpack.dataset import MMapIndexedDataset, NewDataset, track_path
from tokpack.dataset.format import (
    HEADER_BYTES,
    bin_path,
    idx_path,
    parse_header,
    prefix_of,
    storage_dtype,
)
from tokpack.dataset.manifest import TRACK_DTYPES, manifest_path, plain_facts
from tokpack.dataset.merge import all_tables, tables_of
from tokpack.dataset.outputs import dataset_files, new_datasets
from tokpack.errors import InputError, UsageError, option
from tokpack.formats import foreign, lists
from tokpack.formats.export import EXPORTS, Content, export, export_dtype, export_paths, new_export
from tokpack.formats.neox import is_neox, neox_base, neox_paths, open_neox
from tokpack.formats.olmo import olmo_mask, olmo_parts, olmo_paths, open_olmo
from tokpack.formats.streamed import open_litdata, open_mds, streamed_format
from tokpack.progress import with_bar
from tokpack.storage import (
    ScratchFolder,
    exists,
    head,
    identity,
    is_file,
    is_url,
    open_file,
    remove_left,
    shown,
)
from tokpack.storage.disk import cannot_read, cannot_write, pointer_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokpack.formats.foreign import ForeignDataset
    from tokpack.progress import Show
    from tokpack.storage import PathLike


# The format of a dataset of token ids, by its content.

_HEAD = 64
_AS_IN_IT = (
    "with the type of its ids and its EOD, such as "
    f"{option('input_dtype', 'uint16')} and {option('eod', 50256)}"
)


def detect(name: str) -> str:
    """The format of a dataset, by its content: a prefix of .bin/.idx, or a file.

    FormatError for a format that cannot be read, UsageError if nothing tells the format.
    """
    if name.startswith(("http://", "https://")):
        # First the named file: its signature decides, and looking for other files may fail.
        with suppress(InputError):
            if form := _by_magic(_head(name)):
                return form
    if is_neox(name):
        return "neox"
    prefix = prefix_of(name)
    if index := identity(idx_path(prefix)):
        head = _head(idx_path(prefix))[:HEADER_BYTES]
        parse_header(head, index.size, idx_path(prefix))  # names foreign formats in its error
        return "mmap"
    if MMapIndexedDataset.exists(prefix):  # a virtual one
        return "mmap"
    if not os.path.isdir(name):
        return _detect_file(name)
    if lists.is_arrow_folder(name):
        return "arrow"
    if olmo_parts(name):
        return "olmo"
    if form := streamed_format(name):
        return form
    raise UsageError(
        f"{name}: a folder of an unknown format: it has neither {lists.STATE} of Hugging Face's "
        "datasets, nor token_ids_part_0000.npy of open-instruct, nor index.json of MosaicML's "
        "streaming or of litdata"
    )


def _detect_file(name: str) -> str:
    if not is_file(name):
        raise InputError(
            f"{name}: no such file, nor {idx_path(prefix_of(name))}; name a dataset by its prefix, "
            "anything else by its file"
        )
    begin = _head(name)
    if pointer := pointer_in(begin):
        raise InputError(f"{name}: this is {pointer}")
    form = _by_magic(begin)
    # The first ids might look like the mark of an Arrow stream, or llm.c's magic number.
    is_told = form in ("npy", "parquet", "arrow") and not begin.startswith(lists.ARROW_STREAM)
    if not is_told and is_file(f"{name}.index"):
        return "datatrove"
    if form:
        return form
    if name.endswith(".npy"):
        raise UsageError(
            f"{name}: a .npy without numpy's header: give {option('from_', 'olmo')} if OLMo-core "
            f"or dolma wrote it, else {option('from_', 'raw')}, {_AS_IN_IT}"
        )
    raise UsageError(
        f"{name}: unknown format; if it is token ids and nothing else, give "
        f"{option('from_', 'raw')}, {_AS_IN_IT}"
    )


_MAGICS = {
    foreign.NPY_MAGIC: "npy",
    lists.MAGIC: "parquet",
    lists.ARROW_FILE: "arrow",
    lists.ARROW_STREAM: "arrow",
}


def _by_magic(head: bytes) -> str:
    """The format of a file with this beginning, "" if that does not tell it."""
    forms = (form for magic, form in _MAGICS.items() if head.startswith(magic))
    return next(forms, "llm.c" if foreign.is_shard(head) else "")


def _head(path: str) -> bytes:
    if is_url(path):
        return head(path, _HEAD)
    with cannot_read(path), open(path, "rb") as file:
        return file.read(_HEAD)


SOURCES = (
    *("mmap", "datatrove", "olmo", "npy", "raw", "llm.c", "parquet", "arrow", "neox"),
    *("mds", "litdata"),
)
TARGETS = ("mmap", *EXPORTS)
_SUFFIXES = {".idx.parquet": "bridge", ".parquet": "parquet", ".ds": "datatrove"}

_COPY = 4 << 20


class ConvertResult(NamedTuple):
    """What was written: format, files and amounts."""

    paths: list[str]
    target: str
    documents: int
    sequences: int
    tokens: int
    dtype: str
    notes: list[str]


@with_bar
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
    seq_length: int | None = None,
    overwrite: bool = False,
    progress: Show | bool | None = None,
) -> ConvertResult:
    """Convert a dataset of token ids to another format, or to another dtype.

    ``from_`` and ``to`` are formats as `tokpack convert --help` lists them, found by content and by
    name if they are "". ``eod`` cuts formats that are one run of ids; ``input_dtype`` is that of
    ids without a header; ``column`` is that of tables and of MDS; with ``seq_length`` documents
    are packed into rows of Megatron-Bridge. Tracks that tell which tokens are trained are converted
    with the ids. ``progress`` is told the tokens that are converted. The output appears whole or
    not at all. UsageError for ids that do not fit the dtype, FormatError for a broken input,
    OutputError if the output exists.
    """
    name, path = os.fspath(input), os.fspath(output)
    target = _target(path, to)
    if from_ and from_ not in SOURCES:
        raise UsageError(f"no format {from_!r} to convert from: {', '.join(SOURCES)}")
    source = from_ or detect(name)
    if source == target == "mmap" and dtype is None:
        raise UsageError(
            f"{name} is in the mmap format already: name another one with {option('to')} "
            f"({', '.join(EXPORTS)}), or another type of ids with {option('dtype')}"
        )
    if seq_length is not None and target != "bridge":
        raise UsageError(f"{option('seq_length')} is only for bridge, which packs documents")
    with ExitStack() as stack:
        here = name
        if is_url(name) and source not in ("mmap", "neox"):
            remove_left(shown(name))
            here = _brought(name, source, stack.enter_context(ScratchFolder(shown(name))))
        openers: dict[str, Callable[[], ForeignDataset]] = {
            "mmap": lambda: foreign.open_mmap(here),
            "datatrove": lambda: foreign.open_datatrove(here),
            "olmo": lambda: open_olmo(here, input_dtype, eod),
            "npy": lambda: foreign.open_npy(here, eod),
            "raw": lambda: foreign.open_raw(here, input_dtype, eod),
            "llm.c": lambda: foreign.open_shard(here, eod),
            "parquet": lambda: lists.open_parquet(here, column),
            "arrow": lambda: lists.open_arrow(here, column),
            "neox": lambda: open_neox(here),
            "mds": lambda: open_mds(here, column, input_dtype, eod),
            "litdata": lambda: open_litdata(here, eod),
        }
        opened = openers[source]()
        inputs, notes = _input_files(name, source), list(opened.notes)
        if target == "mmap":
            stem, suffix = os.path.splitext(path)
            prefix = stem if suffix in (".bin", ".idx") else path
            paths = [one(prefix) for one in (bin_path, idx_path, manifest_path)]
            paths[2:2] = [track_path(prefix, one) for one in TRACK_DTYPES if one in opened.tracks]
            stored = storage_dtype(dtype) if dtype else _default_dtype(opened.dtype)
            tables = tables_of([prefix_of(name)]) if source == "mmap" else None
            with_tables = tables is not None
            new = stack.enter_context(
                new_datasets(
                    [prefix], inputs, overwrite=overwrite, tables=with_tables, tracks=opened.tracks
                )
            )
            content = Content(opened, stored, new, progress=progress)
            out = NewDataset(prefix, new, tracks=opened.tracks)
            for ids, tracks in content.with_tracks(*opened.tracks):
                out.append(ids, tracks)
            facts = _facts(content, name, source, dtype)
            write = functools.partial(all_tables, tables, prefix, new, facts=facts)
            lengths, doc_idx = content.lengths, content.doc_idx
            out.complete(stored, lengths, doc_idx, facts, opened.modes, tables=write)
        else:
            if opened.modes is not None:
                raise UsageError(
                    f"{opened.name}: is multimodal, but {target} cannot store the mode of each "
                    "sequence: only .bin/.idx can (mmap)"
                )
            if manifest := opened.manifest:
                size = manifest.token_fact("vocab_size")
                if not dtype and target == "olmo" and size is not None:  # as OLMo-core assumes
                    dtype = "uint16" if size <= 1 << 16 else "uint32"
                _, after = manifest.frame or ([], [])
                if eod is None and after:
                    eod = after[-1]
            paths = export_paths(target, path, opened.tracks)
            stored = export_dtype(target, opened.dtype, dtype or None)
            new = stack.enter_context(
                new_export(target, path, inputs, opened.tracks, overwrite=overwrite)
            )
            content = Content(
                opened, stored, new, eod=eod, seq_length=seq_length, progress=progress
            )
            notes += export(content, target, path, new)
        new.publish()
    counts = len(content.doc_idx) - 1, len(content.lengths), content.tokens
    return ConvertResult(paths, target, *counts, str(content.dtype), notes)


def _target(output: str, to: str) -> str:
    if not to and output.endswith(".npy"):
        raise UsageError(
            f"{output}: a .npy has numpy's header ({option('to', 'npy')}), or none, as OLMo-core "
            f"and dolma read it ({option('to', 'olmo')}): say which"
        )
    forms = (form for suffix, form in _SUFFIXES.items() if output.endswith(suffix))
    target = to or next(forms, "mmap")
    if target not in TARGETS:
        raise UsageError(f"no format {target!r} to convert to: {', '.join(TARGETS)}")
    return target


def _brought(url: str, source: str, folder: str) -> str:
    """The path of a copy of an input on a store, with the files that belong to it. InputError."""
    copy = os.path.join(folder, os.path.basename(shown(url)))
    for name in _input_files(url, source):
        if name != url and not exists(name):
            continue
        path = os.path.join(folder, os.path.basename(shown(name)))
        with open_file(name) as stored, cannot_write(path), open(path, "wb") as file:
            shutil.copyfileobj(stored, file, _COPY)
    return copy


def _facts(content: Content, name: str, source: str, dtype: str | None) -> dict[str, Any]:
    opened = content.source
    if manifest := opened.manifest:
        keys = ("tokenizer", "inputs", "pairs", *READ, *FOUND)
        kept = {key: getattr(manifest, key) for key in keys}
        return {**kept, "options": {**manifest.options, "dtype": dtype}}
    size = content.tokens * opened.dtype.itemsize
    facts = plain_facts(shown(name), len(content.doc_idx) - 1, content.tokens, size)
    facts["inputs"][0]["format"] = source
    if opened.tokenizer:
        facts["tokenizer"] = {"name": opened.tokenizer}
    return facts


def _default_dtype(stored: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype as it is if Megatron's family has it; else int32, as that uses itself."""
    try:
        kept = storage_dtype(stored)
    except UsageError:
        return np.dtype("<i4")
    return np.dtype("<i4") if kept.itemsize == 8 else kept


def _input_files(name: str, source: str) -> list[str]:
    """All files that a dataset may have."""
    if source == "mmap":
        return [name, *dataset_files(prefix_of(name))]
    if source == "neox":
        return [name, *neox_paths(neox_base(name))]
    if source == "datatrove":
        return [name, *(f"{name}.{what}" for what in ("index", "metadata", "loss"))]
    if source == "olmo" and name.endswith(".npy"):
        return [name, *olmo_paths(name)[:1], olmo_mask(name)]
    return [name]

"""Rebuild the index of a dataset from what is left of it, into new files."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from tokpack.errors import FormatError, InputError, OutputError, UsageError
from tokpack.indexed.copying import copy_range
from tokpack.indexed.format import (
    MAX_LENGTH,
    Remains,
    bin_path,
    idx_path,
    index_chunks,
    index_remains,
    storage_dtype,
)
from tokpack.indexed.manifest import Manifest, digest_file, manifest_path
from tokpack.indexed.reader import MMapIndexedDataset
from tokpack.indexed.scan import Block, scan
from tokpack.indexed.verify import (
    dataset_prefix,
    file_size,
    find_manifest,
    manifest_eod,
    verify,
)
from tokpack.indexed.writer import write_index

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

_CHUNK = 1 << 20  # sequences whose last token is looked up at a time


@dataclass(frozen=True)
class RepairReport:
    """What was rebuilt, from what, and what the rebuilt dataset lacks.

    ``fault`` is what was wrong; ``exact`` whether the index is, byte for byte, the one that the
    manifest describes; ``linked`` whether the new .bin is a hard link of the old one.
    """

    prefix: str
    output: str
    fault: str
    method: str
    documents: int
    sequences: int
    tokens: int
    exact: bool
    linked: bool
    notes: tuple[str, ...]


def repair(
    prefix: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    eod: int | None = None,
    dtype: npt.DTypeLike | None = None,
) -> RepairReport:
    """Rebuild the missing or broken .idx of ``prefix``, as the new dataset ``output``.

    Nothing of the old dataset is changed; the new .bin is a hard link where that can be. The
    index is made from, in this order: the old index, where its lengths add up to the .bin; and
    ``eod``, at which documents end. ``eod`` and ``dtype`` are the manifest's, or the old index's,
    where they are None. A manifest also decides which rebuilt index is the right one.

    UsageError where nothing is broken, or where ``eod`` or ``dtype`` are needed and not known;
    FormatError where an index does not help, because the .bin is what is broken; OutputError
    where ``output`` exists or cannot be written.
    """
    old, new = dataset_prefix(prefix), os.fsdecode(output)
    for path in (bin_path(new), idx_path(new), manifest_path(new)):
        if os.path.lexists(path):
            raise OutputError(f"{path}: exists: a repair writes new files only; name another")
    case = _examine(old, eod, dtype)
    chosen, exact = _choose(case)
    notes = [*case.notes, *chosen.notes, *_differences(case, chosen, exact=exact)]
    linked, kept = _write(case, chosen, new)
    if case.manifest is not None and not kept:
        notes.append("the new dataset has no manifest: the old one no longer describes it")
    return RepairReport(
        prefix=old,
        output=new,
        fault=case.fault,
        method=chosen.method,
        documents=len(chosen.doc_idx) - 1,
        sequences=len(chosen.lengths),
        tokens=case.tokens,
        exact=exact,
        linked=linked,
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class _Case:
    """A broken dataset and all that is known about it."""

    prefix: str
    fault: str
    manifest: Manifest | None
    remains: Remains
    dtype: np.dtype[Any]
    eod: int | None
    tokens: int  # whole ones, in the .bin
    digest: str  # of the old index, "" where there is none
    notes: tuple[str, ...]

    def data(self) -> npt.NDArray[Any]:
        """The tokens, mapped."""
        if not self.tokens:
            return np.empty(0, self.dtype)
        return np.memmap(bin_path(self.prefix), self.dtype, "r", shape=(self.tokens,))


@dataclass(frozen=True)
class _Rebuilt:
    """An index that fits the .bin: lengths [S] and doc_idx [D], and where they come from."""

    method: str
    lengths: npt.NDArray[Any]
    doc_idx: npt.NDArray[Any]
    notes: tuple[str, ...] = ()

    def digest(self, dtype: np.dtype[Any]) -> str:
        """Checksum of the index file that it makes."""
        state = xxhash.xxh3_128()
        for chunk in index_chunks(dtype, self.lengths, self.doc_idx):
            state.update(chunk)
        return state.hexdigest()


def _examine(prefix: str, eod: int | None, dtype: npt.DTypeLike | None) -> _Case:
    size = file_size(bin_path(prefix))
    manifest = _manifest(prefix)
    if manifest is not None and eod is None:
        eod = manifest_eod(manifest)
    remains, digest = _read_remains(idx_path(prefix))
    fault = _fault(prefix, eod)
    if not fault:
        raise UsageError(f"{prefix}: nothing to repair: the index is whole and fits the .bin")
    if manifest and digest == manifest.idx["xxh3_128"] and size == manifest.bin["bytes"]:
        raise FormatError(
            f"{fault}; the index is the one that {manifest_path(prefix)} describes, so a new one "
            "does not help: encode the text again"
        )
    chosen = _choose_dtype(prefix, manifest, remains, dtype)
    if eod is not None and not np.iinfo(chosen).min <= eod <= np.iinfo(chosen).max:
        raise UsageError(f"EOD is {eod}, which {chosen}, the dtype of the ids, cannot hold")
    notes = []
    if rest := size % chosen.itemsize:
        notes.append(f"the .bin ends inside a token ({rest} of {chosen.itemsize} bytes): left out")
    if remains.modes:
        notes.append("the modes of a multimodal dataset are left out")
    tokens = size // chosen.itemsize
    if manifest is not None and tokens != manifest.tokens:
        notes.append(f"the .bin has {tokens} tokens, the manifest says {manifest.tokens}")
    return _Case(prefix, fault, manifest, remains, chosen, eod, tokens, digest, tuple(notes))


def _manifest(prefix: str) -> Manifest | None:
    try:
        return find_manifest(prefix)
    except FormatError:  # broken as well, and then of no use
        return None


def _fault(prefix: str, eod: int | None) -> str:
    """The first fault of the dataset, "" where there is none."""
    try:
        verify(prefix, eod=eod)
    except (FormatError, InputError) as error:
        return str(error)
    return ""


def _read_remains(path: str) -> tuple[Remains, str]:
    """What the old index still says, and its checksum."""
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            buffer = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
        return index_remains(buffer), digest_file(path)["xxh3_128"]
    except (OSError, InputError):
        return index_remains(b""), ""


def _choose_dtype(
    prefix: str, manifest: Manifest | None, remains: Remains, dtype: npt.DTypeLike | None
) -> np.dtype[Any]:
    said = None if manifest is None else storage_dtype(manifest.dtype)
    if dtype is not None:
        asked = storage_dtype(dtype)
        if said is not None and asked != said:
            raise UsageError(f"{manifest_path(prefix)}: dtype is {said}, not {asked} as asked")
        return asked
    known = said or remains.dtype
    if known is None:
        raise UsageError(
            f"{prefix}: the dtype of the ids is not known: there is neither a manifest nor the "
            "head of an index; give it (--dtype uint16 below 65500 tokens in the vocabulary, else "
            "usually int32)"
        )
    return known


def _choose(case: _Case) -> tuple[_Rebuilt, bool]:
    """The best index, and whether it is the one that the manifest describes."""
    manifest = case.manifest
    best: tuple[bool, _Rebuilt] | None = None
    for rebuilt in _candidates(case):
        digest = rebuilt.digest(case.dtype)
        if manifest is not None and digest == manifest.idx["xxh3_128"]:
            return rebuilt, True
        if digest == case.digest:  # the one that was found faulty
            continue
        differs = bool(manifest and _differences(case, rebuilt, exact=False))
        if best is None or (best[0] and not differs):
            best = differs, rebuilt
        if not differs:
            break
    if best is None:
        raise FormatError(
            f"{case.fault}; nothing is left to rebuild the index from: "
            + ("the .bin has no token" if not case.tokens else "give the EOD id (--eod ID)")
        )
    return best[1], False


def _candidates(case: _Case) -> Iterator[_Rebuilt]:
    """Every index that the remains allow, the most faithful first."""
    lengths, doc_idx = case.remains.lengths, case.remains.doc_idx
    if lengths is not None and int(lengths.sum(dtype=np.int64)) == case.tokens:
        if doc_idx is not None:
            yield _Rebuilt("lengths and documents of the old index", lengths, doc_idx)
        if case.eod is not None:
            yield _documents_at_eod(case, lengths, case.eod)
        else:
            each = np.arange(len(lengths) + 1)
            notes = ("where documents end is lost: each sequence is one; --eod ID finds more",)
            yield _Rebuilt("lengths of the old index", lengths, each, notes)
    elif lengths is not None and doc_idx is not None:
        with_eod = _with_eod(case, lengths, doc_idx)
        if with_eod is not None:
            yield with_eod
    if case.eod is not None and case.tokens:
        yield _cut_at_eod(case, case.eod)


def _documents_at_eod(case: _Case, lengths: npt.NDArray[Any], eod: int) -> _Rebuilt:
    """Documents of an index that forgot them: each ends with a sequence that ends with EOD."""
    data = case.data()
    ends = [np.zeros(1, np.int64)]
    begin = 0
    for start in range(0, len(lengths), _CHUNK):
        chunk = lengths[start : start + _CHUNK]
        after = np.cumsum(chunk, dtype=np.int64) + begin
        begin = int(after[-1])
        is_end = chunk > 0
        is_end[is_end] = data[after[is_end] - 1] == eod
        ends.append(np.flatnonzero(is_end) + start + 1)
    doc_idx = np.concatenate(ends)
    notes: tuple[str, ...] = ()
    if doc_idx[-1] != len(lengths):
        doc_idx = np.append(doc_idx, len(lengths))
        notes = ("what follows the last EOD is a last document without one",)
    return _Rebuilt("lengths of the old index, documents ended at EOD", lengths, doc_idx, notes)


def _with_eod(case: _Case, lengths: npt.NDArray[Any], doc_idx: npt.NDArray[Any]) -> _Rebuilt | None:
    """The index of Microsoft's Megatron-DeepSpeed, which left out the EOD of each document."""
    last = doc_idx[1:][doc_idx[1:] > doc_idx[:-1]] - 1
    mended = lengths.astype(np.int64)
    mended[last] += 1
    ends = np.cumsum(mended)
    if not len(last) or int(ends[-1]) != case.tokens:
        return None
    found = np.unique(case.data()[ends[last] - 1])
    if len(found) != 1 or (case.eod is not None and found[0] != case.eod):
        return None
    note = f"every document ends with id {found[0]}, which the old index had left out"
    return _Rebuilt("lengths of the old index, each document's EOD added", mended, doc_idx, (note,))


def _cut_at_eod(case: _Case, eod: int) -> _Rebuilt:
    """A document from each EOD to the next, each of one sequence."""
    itemsize = case.dtype.itemsize
    path = bin_path(case.prefix)

    def find(begin: int, block: Block) -> npt.NDArray[np.int64]:
        return np.flatnonzero(block.view(case.dtype) == eod) + (begin // itemsize + 1)

    ends = np.concatenate(
        [np.zeros(1, np.int64), *(found for _, found in scan(path, case.tokens * itemsize, find))]
    )
    if len(ends) == 1:
        raise FormatError(f"{path}: no token has the id {eod}: it is not the EOD of this dataset")
    notes: tuple[str, ...] = ()
    if rest := case.tokens - int(ends[-1]):
        ends = np.append(ends, case.tokens)
        notes = (f"the {rest} tokens after the last EOD are a last document, without its end",)
    lengths = np.diff(ends)
    if int(lengths.max()) > MAX_LENGTH:
        raise FormatError(
            f"{path}: {lengths.max()} tokens without the id {eod}, more than a document can have: "
            "it is not the EOD of this dataset"
        )
    return _Rebuilt("the .bin, cut at EOD", lengths, np.arange(len(ends)), notes)


def _differences(case: _Case, rebuilt: _Rebuilt, *, exact: bool) -> list[str]:
    """What the manifest says and the rebuilt index does not have."""
    manifest = case.manifest
    if manifest is None or exact:
        return []
    kept = manifest.empty if manifest.options.get("empty") == "document" else 0
    found = []
    documents = len(rebuilt.doc_idx) - 1
    if documents != manifest.documents + kept:
        why = "EODs inside documents cut these" if documents > manifest.documents else "some merged"
        if kept and documents == manifest.documents:
            why = "the empty ones left no trace"
        elif case.tokens < manifest.tokens:
            why = "the others are not in the .bin"
        found.append(f"{documents} documents, the manifest says {manifest.documents + kept}: {why}")
    sequences = len(rebuilt.lengths)
    if manifest.sequences not in (sequences, manifest.documents):
        found.append(
            f"{sequences} sequences, the manifest says {manifest.sequences}: "
            "the bounds inside documents are lost"
        )
    return found


def _write(case: _Case, rebuilt: _Rebuilt, output: str) -> tuple[bool, bool]:
    """Write the new dataset; whether its .bin is a link, and whether it has a manifest."""
    made: list[str] = []
    try:
        os.makedirs(os.path.dirname(output) or ".", exist_ok=True)
        linked = _link_or_copy(case, bin_path(output))
        made.append(bin_path(output))
        write_index(idx_path(output), case.dtype, rebuilt.lengths, rebuilt.doc_idx)
        made.append(idx_path(output))
        MMapIndexedDataset(output, verify=True).close()
        return linked, _write_manifest(case, rebuilt, output)
    except OSError as error:
        _remove(made)
        raise OutputError(f"{output}: cannot be written: {error.strerror or error}") from error
    except BaseException:
        _remove(made)
        raise


def _remove(paths: list[str]) -> None:
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def _link_or_copy(case: _Case, path: str) -> bool:
    old = os.path.realpath(bin_path(case.prefix))  # the file, not a link to it
    size = case.tokens * case.dtype.itemsize
    if size == os.path.getsize(old):
        with suppress(OSError):  # another disk, or a file system without links
            os.link(old, path)
            return True
    temporary = path + ".tmp"
    try:
        with open(old, "rb") as source, open(temporary, "xb") as target:
            copy_range(source.fileno(), target.fileno(), 0, size, 0)
            os.fsync(target.fileno())
        os.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return False


def _write_manifest(case: _Case, rebuilt: _Rebuilt, output: str) -> bool:
    """Keep the manifest where all that it says of the tokens still holds."""
    manifest = case.manifest
    if manifest is None or _differences(case, rebuilt, exact=False):
        return False
    if digest_file(bin_path(output)) != manifest.bin:
        return False
    replace(manifest, idx=digest_file(idx_path(output))).save(output)
    return True

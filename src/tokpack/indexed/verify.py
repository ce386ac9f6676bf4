"""Check a dataset to its last token, and say where its first fault is."""

from __future__ import annotations

import mmap
import os
import time
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from tokpack.errors import FormatError, InputError, UsageError
from tokpack.indexed.format import (
    HEADER_BYTES,
    Index,
    bin_path,
    check_all,
    idx_path,
    parse_header,
    view_index,
)
from tokpack.indexed.manifest import FileDigest, Manifest, digest_file, manifest_path
from tokpack.indexed.scan import scan
from tokpack.indexed.trace import trace_path
from tokpack.indexed.virtual import VirtualIndexedDataset, is_virtual

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

CHECKS = ("index", "counts", "checksums", "token ids", "EOD")
_DOCUMENTS = 1 << 17  # document ends looked up at a time


@dataclass(frozen=True)
class VerifyReport:
    """What was found to be right.

    ``checked`` names the checks that were made, ``unchecked`` those that need something that was
    not there, with the reason; ``bytes_read`` of ``.bin`` and ``.idx`` in ``seconds``.
    """

    prefix: str
    documents: int
    sequences: int
    tokens: int
    dtype: str
    bytes_read: int
    seconds: float
    checked: tuple[str, ...]
    unchecked: tuple[str, ...]


def verify(
    prefix: str | os.PathLike[str],
    *,
    quick: bool = False,
    vocab_size: int | None = None,
    eod: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Check the dataset ``prefix`` and raise FormatError at its first fault, which says where.

    Always: header, sizes, every length, pointer and document entry, and, where there is a manifest,
    its counts and the checksum of the .idx. Unless ``quick`` also the .bin, in one read by all
    cores: its checksum, that token ids are below ``vocab_size``, and that each document that has
    tokens ends with ``eod``; where these are None, as the manifest says. ``progress`` is told the
    bytes of the .bin that are done, and all of them. InputError where a file cannot be read.
    """
    began = time.perf_counter()
    _check_request(vocab_size, eod)
    name = dataset_prefix(prefix)
    if is_virtual(name):
        return _verify_pieces(name, quick, vocab_size, eod, progress)
    manifest = find_manifest(name)
    if manifest is not None:
        _check_size(name, bin_path(name), manifest.bin)
        _check_size(name, idx_path(name), manifest.idx)
    index, bin_bytes = open_index(name)
    check_all(index, bin_bytes)
    if manifest is not None:
        vocab_size = _count_of(manifest, "vocab_size") if vocab_size is None else vocab_size
        eod = manifest_eod(manifest) if eod is None else eod
        _check_counts(name, manifest, index, bin_bytes)
        _check_digest(idx_path(name), digest_file(idx_path(name))["xxh3_128"], manifest.idx)
        _check_trace(name, manifest)
    bytes_read = os.path.getsize(idx_path(name))
    if not quick:
        check = _TokenCheck(index, bin_path(name), bin_bytes, vocab_size, eod)
        _check_tokens(check, name, manifest, progress)
        bytes_read += bin_bytes
    checked, unchecked = _account(manifest, quick=quick, vocab_size=vocab_size, eod=eod)
    return VerifyReport(
        prefix=name,
        documents=index.header.entries - 1,
        sequences=index.header.sequences,
        tokens=bin_bytes // index.header.dtype.itemsize,
        dtype=str(index.header.dtype),
        bytes_read=bytes_read,
        seconds=time.perf_counter() - began,
        checked=checked,
        unchecked=unchecked,
    )


def _verify_pieces(
    prefix: str,
    quick: bool,
    vocab_size: int | None,
    eod: int | None,
    progress: Callable[[int, int], None] | None,
) -> VerifyReport:
    """Check a virtual dataset: that its pieces are those it was made of, and each of them."""
    began = time.perf_counter()
    dataset = VirtualIndexedDataset(prefix, verify=True)
    manifest = Manifest.load(prefix)
    vocab_size = _count_of(manifest, "vocab_size") if vocab_size is None else vocab_size
    eod = manifest_eod(manifest) if eod is None else eod
    total = sum(piece.bin_bytes for piece in dataset.pieces)
    reports: list[VerifyReport] = []
    before = 0
    for piece in dataset.pieces:
        told = None if progress is None else _offset(progress, before, total)
        path = os.path.join(os.path.dirname(prefix), piece.prefix)
        reports.append(verify(path, quick=quick, vocab_size=vocab_size, eod=eod, progress=told))
        before += piece.bin_bytes
    unchecked = tuple(dict.fromkeys(what for report in reports for what in report.unchecked))
    missed = {what.partition(" (")[0] for what in unchecked}
    return VerifyReport(
        prefix=prefix,
        documents=sum(piece.documents for piece in dataset.pieces),
        sequences=len(dataset),
        tokens=sum(piece.tokens for piece in dataset.pieces),
        dtype=str(dataset.dtype),
        bytes_read=sum(report.bytes_read for report in reports),
        seconds=time.perf_counter() - began,
        checked=tuple(what for what in CHECKS if what not in missed),
        unchecked=unchecked,
    )


def _offset(
    progress: Callable[[int, int], None], before: int, total: int
) -> Callable[[int, int], None]:
    return lambda done, _: progress(before + done, total)


def dataset_prefix(path: str | os.PathLike[str]) -> str:
    """The prefix of a dataset, from itself or from the name of one of its files."""
    prefix = os.fsdecode(path)
    stem, suffix = os.path.splitext(prefix)
    if suffix in (".bin", ".idx", ".json") and not Path(bin_path(prefix)).exists():
        return stem
    return prefix


def find_manifest(prefix: str) -> Manifest | None:
    """The manifest of a dataset; None where there is none, or other JSON has its name.

    FormatError for a broken manifest, InputError for one that cannot be read.
    """
    path = manifest_path(prefix)
    if not Path(path).exists():
        return None
    try:
        return Manifest.load(prefix)
    except FormatError:
        with open(path, "rb") as file:
            head = file.read(64).lstrip()
        if head.startswith((b"{", b"[")) and b'"tokpack"' not in head:
            return None
        raise


def manifest_eod(manifest: Manifest) -> int | None:
    """The id that ends every document, where the manifest says that one was appended."""
    appended = manifest.options.get("append_eod") is True
    return _count_of(manifest, "eod_id") if appended else None


def open_index(prefix: str) -> tuple[Index, int]:
    """The index of a dataset, mapped, its header checked; and the size of its .bin."""
    name = idx_path(prefix)
    try:
        bin_bytes = file_size(bin_path(prefix))
        file_size(name)
        with open(name, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            buffer = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror or error}") from error
    return view_index(buffer, parse_header(buffer[:HEADER_BYTES], size, name), name), bin_bytes


def file_size(path: str) -> int:
    """Size of a file; InputError where there is none."""
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file; a dataset is PREFIX.bin and PREFIX.idx")
    if not os.path.isfile(path):
        raise InputError(f"{path}: not a regular file")
    return os.path.getsize(path)


def _check_request(vocab_size: int | None, eod: int | None) -> None:
    if vocab_size is not None and vocab_size < 1:
        raise UsageError(f"vocabulary size is {vocab_size}, expected 1 or more")
    if vocab_size is not None and eod is not None and not 0 <= eod < vocab_size:
        raise UsageError(f"EOD is {eod}, expected an id below the vocabulary size {vocab_size}")


def _count_of(manifest: Manifest, key: str) -> int | None:
    """A number that the manifest says of the tokenizer; None where it does not."""
    value = manifest.tokenizer.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _check_size(prefix: str, path: str, digest: FileDigest) -> None:
    size, said = file_size(path), digest["bytes"]
    if size != said:
        raise FormatError(
            f"{path}: {size} bytes, expected {said}, as {manifest_path(prefix)} says: "
            f"{'cut off' if size < said else 'too long'}, or the files do not belong together"
        )


def _check_counts(prefix: str, manifest: Manifest, index: Index, bin_bytes: int) -> None:
    """The counts of the manifest against the index, and against each other."""
    name = manifest_path(prefix)
    found = (
        ("dtype", manifest.dtype, str(index.header.dtype)),
        ("documents", manifest.documents, index.header.entries - 1 - _kept(manifest, index)),
        ("sequences", manifest.sequences, index.header.sequences),
        ("tokens", manifest.tokens, bin_bytes // index.header.dtype.itemsize),
    )
    for what, said, there in found:
        if said != there:
            raise FormatError(
                f"{name}: {what} is {said}, expected {there}, as in {index.name}: "
                "the files do not belong together"
            )
    parts = manifest.documents + manifest.empty + manifest.rejected
    if manifest.records != parts:
        raise FormatError(
            f"{name}: records is {manifest.records}, expected {parts}: {manifest.documents} "
            f"documents, {manifest.empty} empty and {manifest.rejected} rejected"
        )
    for key in ("records", "documents", "sequences", "tokens", "empty", "rejected"):
        counts = [source.get(key) for source in manifest.inputs if isinstance(source, dict)]
        known = [count for count in counts if isinstance(count, int)]
        total = getattr(manifest, key)
        if known and len(known) == len(manifest.inputs) and sum(known) != total:
            raise FormatError(
                f"{name}: {key} is {total}, expected {sum(known)}, the sum over its inputs"
            )


def _kept(manifest: Manifest, index: Index) -> int:
    """Documents without tokens that have a place in the index: all of them or none."""
    if "empty" in manifest.options:
        return manifest.empty if manifest.options["empty"] == "document" else 0
    # Merged of both kinds: as many as there are.
    return min(max(0, index.header.entries - 1 - manifest.documents), manifest.empty)


def _check_trace(prefix: str, manifest: Manifest) -> None:
    """The trace, which may be left out: a dataset is whole without it."""
    path = trace_path(prefix)
    if manifest.trace is not None and os.path.exists(path):
        _check_size(prefix, path, manifest.trace)
        _check_digest(path, digest_file(path)["xxh3_128"], manifest.trace)


def _check_digest(path: str, found: str, digest: FileDigest) -> None:
    said = digest["xxh3_128"]
    if found != said:
        raise FormatError(
            f"{path}: xxh3_128 is {found}, expected {said}, as the manifest says: bytes of it have "
            "changed, somewhere that no other check sees, or the files do not belong together"
        )


def _check_tokens(
    check: _TokenCheck,
    prefix: str,
    manifest: Manifest | None,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Read the .bin; the first fault in it wins over its checksum, which cannot say where."""
    path = bin_path(prefix)
    digest = None if manifest is None else xxhash.xxh3_128()
    for done, fault in scan(path, check.bin_bytes, check, digest=digest):
        if fault is not None:
            raise FormatError(fault)
        if progress is not None:
            progress(done, check.bin_bytes)
    if manifest is not None and digest is not None:
        _check_digest(path, digest.hexdigest(), manifest.bin)


class _TokenCheck:
    """Look at a chunk of the .bin: are ids in the vocabulary, and does EOD end each document."""

    def __init__(
        self, index: Index, path: str, bin_bytes: int, vocab_size: int | None, eod: int | None
    ) -> None:
        self.index = index
        self.path = path
        self.bin_bytes = bin_bytes
        self.eod = eod
        self.vocab_size = vocab_size
        dtype = index.header.dtype
        self._unsigned = np.dtype(f"<u{dtype.itemsize}")  # where a negative id is a large one
        self._limit = vocab_size
        if vocab_size is None or vocab_size > np.iinfo(dtype).max:
            # Every id that is not negative is in so large a vocabulary.
            self._limit = None
            if vocab_size is not None and dtype.kind == "i":
                self._limit = int(np.iinfo(dtype).max) + 1

    def __call__(self, begin: int, block: npt.NDArray[np.uint8]) -> str | None:
        """The first fault of the chunk at byte ``begin``, or None."""
        faults = (self._stranger(begin, block), self._open_end(begin, block))
        first = min((fault for fault in faults if fault is not None), default=None)
        return None if first is None else self._explain(*first, begin, block)

    def _stranger(self, begin: int, block: npt.NDArray[np.uint8]) -> tuple[int, str] | None:
        """Byte of the first token that is not in the vocabulary, and what is expected there."""
        tokens: npt.NDArray[Any] = block.view(self._unsigned)
        if self._limit is None or not len(tokens) or int(tokens.max()) < self._limit:
            return None
        at = begin + int(np.argmax(tokens >= self._limit)) * self._unsigned.itemsize
        return at, f"expected an id of the vocabulary, which has {self.vocab_size}"

    def _open_end(self, begin: int, block: npt.NDArray[np.uint8]) -> tuple[int, str] | None:
        """Byte of the first token that ends a document and is no EOD, and what is expected."""
        if self.eod is None:
            return None
        index, itemsize = self.index, self.index.header.dtype.itemsize
        tokens = block.view(index.header.dtype)
        numbers = range(index.header.entries - 1)
        # Ends are after the token: those in (begin, begin + len(block)] belong to this chunk.
        first = bisect_right(numbers, begin, key=self._end_of)
        last = bisect_right(numbers, begin + len(block), lo=first, key=self._end_of)
        for low in range(first, last, _DOCUMENTS):
            bounds = self._bytes_of(index.doc_idx[low : min(low + _DOCUMENTS, last) + 1])
            ends = bounds[1:][bounds[1:] > bounds[:-1]]  # a document without tokens has no EOD
            at = (ends - begin) // itemsize - 1
            wrong = np.flatnonzero(tokens[at] != self.eod)
            if wrong.size:
                place = begin + int(at[wrong[0]]) * itemsize
                return place, f"expected {self.eod}, the EOD, at the end of a document"
        return None

    def _end_of(self, document: int) -> int:
        sequence: int = self.index.doc_idx.item(document + 1)
        if sequence == self.index.header.sequences:
            return self.bin_bytes
        return int(self.index.pointers.item(sequence))

    def _bytes_of(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where sequences begin; the number after the last is the end of the .bin."""
        count = self.index.header.sequences
        begins = self.index.pointers[np.minimum(sequences, count - 1)]
        return np.where(sequences == count, self.bin_bytes, begins)

    def _explain(self, at: int, expected: str, begin: int, block: npt.NDArray[np.uint8]) -> str:
        index = self.index
        sequence = bisect_right(index.pointers, at) - 1
        document = bisect_right(index.doc_idx, sequence) - 1
        first = index.pointers.item(index.doc_idx.item(document))
        dtype = index.header.dtype
        token = (at - first) // dtype.itemsize
        found = int(block.view(dtype)[(at - begin) // dtype.itemsize])
        return (
            f"{self.path}: byte {at}, document {document}, token {token}: id is {found}, {expected}"
        )


def _account(
    manifest: Manifest | None, *, quick: bool, vocab_size: int | None, eod: int | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which checks were made, and which were not and why."""
    none = "" if manifest is not None else "no manifest"
    reasons = dict.fromkeys(CHECKS, "")
    reasons["counts"] = none
    reasons["checksums"] = none or ("only of the .idx" if quick else "")
    if quick:
        reasons |= dict.fromkeys(("token ids", "EOD"), "quick")
    else:
        reasons["token ids"] = "" if vocab_size is not None else "no vocabulary size"
        reasons["EOD"] = "" if eod is not None else "no EOD id" if none else "none appended"
    checked = tuple(what for what, reason in reasons.items() if not reason)
    return checked, tuple(f"{what} ({reason})" for what, reason in reasons.items() if reason)

"""Check a dataset to its last token, and say where its first fault is."""

from __future__ import annotations

import mmap
import os
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
from tokpack.indexed.trace import trace_path
from tokpack.indexed.virtual import VirtualIndexedDataset, is_virtual
from tokpack.operations.scan import scan
from tokpack.operations.token_check import TokenCheck

if TYPE_CHECKING:
    from collections.abc import Callable


CHECKS = ("index", "counts", "checksums", "token ids", "EOD")


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
        check = TokenCheck(index, bin_path(name), bin_bytes, vocab_size, eod)
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
        advice = "; `tokpack verify --repair` rebuilds an .idx" if path.endswith(".idx") else ""
        raise InputError(f"{path}: no such file; a dataset is PREFIX.bin and PREFIX.idx{advice}")
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
    check: TokenCheck,
    prefix: str,
    manifest: Manifest | None,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Read the .bin; the first fault in it wins over its checksum, which cannot say where."""
    path = bin_path(prefix)
    digest = None if manifest is None else xxhash.xxh3_128()
    with closing(scan(path, check.bin_bytes, check, digest=digest)) as results:
        for done, fault in results:
            if fault is not None:
                raise FormatError(fault)
            if progress is not None:
                progress(done, check.bin_bytes)
    if manifest is not None and digest is not None:
        _check_digest(path, digest.hexdigest(), manifest.bin)


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
        off = manifest is not None and manifest.options.get("append_eod") is False
        reasons["EOD"] = "" if eod is not None else "none appended" if off else "no EOD id"
    checked = tuple(what for what, reason in reasons.items() if not reason)
    return checked, tuple(f"{what} ({reason})" for what, reason in reasons.items() if reason)

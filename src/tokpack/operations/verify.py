"""Check a dataset to its last token, and say where its first fault is."""

from __future__ import annotations

import os
import stat
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokpack.errors import FormatError, InputError, UsageError
from tokpack.files.blocks import block_sums, checksum_of_sums
from tokpack.indexed.dataset import MMapIndexedDataset
from tokpack.indexed.format import (
    HEADER_BYTES,
    Index,
    bin_path,
    check_all,
    idx_path,
    parse_header,
    view_index,
)
from tokpack.indexed.manifest import (
    FileDigest,
    Manifest,
    checksum_of,
    digest_file,
    manifest_path,
)
from tokpack.indexed.piece_sums import PieceSums, SummedPiece
from tokpack.indexed.prefix import prefix_of
from tokpack.indexed.scan import ByteBlock, scan
from tokpack.indexed.shard import map_file
from tokpack.indexed.shards import piece_prefix
from tokpack.indexed.trace import trace_path
from tokpack.operations.token_check import TokenCheck
from tokpack.progress import ProgressStage
from tokpack.stores import exists, identity, is_url, located, near
from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    from tokpack.indexed.records import ShardRecord
    from tokpack.progress import Show
    from tokpack.stores import Identity
    from tokpack.tokenizers import TokenizerFiles

CHECKS = ("index", "counts", "checksums", "token ids", "EOD", "BOS")


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
    progress: Show | None = None,
    **tokenizer: Unpack[TokenizerFiles],
) -> VerifyReport:
    """Check the dataset ``prefix`` and raise FormatError at its first fault, which says where.

    Always: header, sizes, every length, pointer and document entry, and, where there is a manifest,
    its counts and the checksum of the .idx. Unless ``quick`` also the .bin, in one read by all
    cores: its checksum, that token ids are below ``vocab_size``, and that each document that has
    tokens ends with ``eod``; where these are None, as the manifest says, which also says what else
    stands around each document. A tokenizer, named as for load_tokenizer, gives a ``vocab_size``
    too. ``progress`` is told the bytes of the .bin that are done. InputError where a file cannot be
    read, or the dataset was replaced meanwhile.
    """
    if any(tokenizer.values()):
        own = load_tokenizer(**tokenizer).vocab_size
        vocab_size = own if vocab_size is None else vocab_size
    _check_request(vocab_size, eod)
    request = _Request(quick, vocab_size, None if eod is None else [eod])
    name = prefix_of(prefix)
    with _held(idx_path(name)):
        found = identity(idx_path(name))
        try:
            report = _verify(name, request, progress)
        except (FormatError, InputError):
            _check_current(name, found)
            raise
        _check_current(name, found)
    return report


@contextmanager
def _held(path: str) -> Iterator[None]:
    """Keep a file open, if there is one, so that no other file gets its inode number meanwhile."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        os.close(file)


def _check_current(prefix: str, found: Identity | None) -> None:
    if identity(idx_path(prefix)) != found:
        raise InputError(f"{prefix}: was replaced while it was verified: run again")


@dataclass(frozen=True)
class _Request:
    """What is to be checked; None is not known."""

    quick: bool
    vocab_size: int | None
    after: list[int] | None  # ids at the end of each document
    before: list[int] | None = None

    def filled(self, manifest: Manifest | None) -> _Request:
        """With what the manifest says of what was not asked for."""
        if manifest is None:
            return self
        size = manifest.token_fact("vocab_size") if self.vocab_size is None else self.vocab_size
        before, after = manifest.frame or (None, None)
        return _Request(self.quick, size, after if self.after is None else self.after, before)


def _verify(prefix: str, request: _Request, progress: Show | None) -> VerifyReport:
    manifest = Manifest.find(prefix)
    request = request.filled(manifest)
    if manifest is None or manifest.pieces is None or exists(idx_path(prefix)):
        stage = ProgressStage(progress, "verify", file_size(bin_path(prefix)))
        return _verify_files(prefix, manifest, request, stage)
    stage = ProgressStage(progress, "verify", sum(record.bin_bytes for record in manifest.pieces))
    return _verify_pieces(prefix, manifest.pieces, request, stage)


def _verify_files(
    prefix: str, manifest: Manifest | None, request: _Request, stage: ProgressStage
) -> VerifyReport:
    began = time.perf_counter()
    if manifest is not None:
        _check_size(prefix, bin_path(prefix), manifest.bin)
        _check_size(prefix, idx_path(prefix), manifest.idx)
    index, bin_bytes = open_index(prefix)
    check_all(index, bin_bytes)
    if manifest is not None:
        _check_counts(prefix, manifest, index, bin_bytes)
        _check_whole(idx_path(prefix), manifest.idx)
        _check_trace(prefix, manifest)
    bytes_read = file_size(idx_path(prefix))
    if not request.quick:
        check = TokenCheck(
            *(index, bin_path(prefix), bin_bytes, request.vocab_size),
            (request.before or [], request.after or []),
        )
        _check_tokens(check, manifest, stage)
        bytes_read += bin_bytes
    checked, unchecked = _account(manifest, request)
    return VerifyReport(
        prefix=prefix,
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
    prefix: str, records: tuple[ShardRecord, ...], request: _Request, stage: ProgressStage
) -> VerifyReport:
    """Check a virtual dataset: that its pieces are those it was made of, and each of them."""
    began = time.perf_counter()
    dataset = MMapIndexedDataset(prefix, verify=True)
    reports: list[VerifyReport] = []
    for record in records:
        path = piece_prefix(prefix, record)
        manifest = Manifest.find(path)
        reports.append(_verify_files(path, manifest, request.filled(manifest), stage))
    unchecked = tuple(dict.fromkeys(what for report in reports for what in report.unchecked))
    missed = {what.partition(" (")[0] for what in unchecked}
    made = {what for report in reports for what in report.checked}
    return VerifyReport(
        prefix=prefix,
        documents=sum(record.documents for record in records),
        sequences=len(dataset),
        tokens=sum(record.tokens for record in records),
        dtype=str(dataset.dtype),
        bytes_read=sum(report.bytes_read for report in reports),
        seconds=time.perf_counter() - began,
        checked=tuple(what for what in CHECKS if what in made and what not in missed),
        unchecked=unchecked,
    )


def open_index(prefix: str) -> tuple[Index, int]:
    """The index of a dataset, mapped, its header checked; and the size of its .bin."""
    name = idx_path(prefix)
    bin_bytes = file_size(bin_path(prefix))
    file_size(name)
    buffer, _ = map_file(name)
    header = parse_header(buffer[:HEADER_BYTES], len(buffer), name)
    return view_index(buffer, header, name), bin_bytes


def file_size(path: str) -> int:
    """Size of a file; InputError where there is none."""
    try:
        if is_url(path):
            return located(path).size
        found = os.stat(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; a dataset is PREFIX.bin and PREFIX.idx") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path}: not a regular file")
    return found.st_size


def _check_request(vocab_size: int | None, eod: int | None) -> None:
    if vocab_size is not None and vocab_size < 1:
        raise UsageError(f"vocabulary size is {vocab_size}, expected 1 or more")
    if vocab_size is not None and eod is not None and not 0 <= eod < vocab_size:
        raise UsageError(f"EOD is {eod}, expected an id below the vocabulary size {vocab_size}")


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
        return manifest.kept_empty
    # A merge of datasets that keep empty documents and of some that do not: the index counts them.
    return min(max(0, index.header.entries - 1 - manifest.documents), manifest.empty)


def _check_trace(prefix: str, manifest: Manifest) -> None:
    """The trace, which may be left out: a dataset is whole without it."""
    path = trace_path(prefix)
    if manifest.trace is not None and exists(path):
        _check_size(prefix, path, manifest.trace)
        _check_whole(path, manifest.trace)


def _check_whole(path: str, digest: FileDigest) -> None:
    _check_digest(path, digest_file(near(path)).get("xxh3_128", ""), digest)


def _check_digest(path: str, found: str, digest: FileDigest) -> None:
    said = checksum_of(digest)
    if found != said:
        kind = "xxh3_blocks" if "xxh3_blocks" in digest else "xxh3_128"
        raise FormatError(
            f"{path}: {kind} is {found}, expected {said}, as the manifest says: bytes of it have "
            "changed, somewhere that no other check sees, or the files do not belong together"
        )


def _check_piece(path: str, piece: SummedPiece) -> None:
    where = "" if piece.is_all else f", bytes {piece.begin:,} to {piece.end:,}"
    _check_digest(path + where, piece.checksum, piece.digest)


def _check_tokens(check: TokenCheck, manifest: Manifest | None, stage: ProgressStage) -> None:
    """Read the .bin; the first fault in it wins over its checksum, which cannot say where."""
    in_blocks = manifest is not None and "xxh3_blocks" in manifest.bin
    in_order = None if manifest is None or in_blocks else PieceSums(manifest.bin)
    sums = bytearray()

    def look(begin: int, block: ByteBlock) -> tuple[str | None, bytes]:
        fault = check(begin, block)
        return fault, block_sums(begin, block.data) if in_blocks else b""

    with closing(scan(check.path, check.bin_bytes, look)) as chunks:
        for _, block, (fault, own) in chunks:
            if fault is not None:
                raise FormatError(fault)
            sums += own
            for piece in in_order.add(block.data) if in_order else ():
                _check_piece(check.path, piece)
            stage.add(len(block))
    for piece in in_order.finish() if in_order else ():
        _check_piece(check.path, piece)
    if in_blocks and manifest is not None:
        _check_digest(check.path, checksum_of_sums(bytes(sums)), manifest.bin)


def _account(
    manifest: Manifest | None, request: _Request
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which checks were made, and which were not and why."""
    none = "" if manifest is not None else "no manifest"
    reasons = dict.fromkeys(CHECKS, "")
    reasons["counts"] = none
    reasons["checksums"] = none or ("only of the .idx" if request.quick else "")
    if request.quick:
        reasons |= dict.fromkeys(("token ids", "EOD", "BOS"), "quick")
    else:
        reasons["token ids"] = "" if request.vocab_size is not None else "no vocabulary size"
        off = manifest is not None and manifest.options.get("append_eod") is False
        reasons["EOD"] = "" if request.after else "none appended" if off else "no EOD id"
    if not request.before:
        del reasons["BOS"]
    checked = tuple(what for what, reason in reasons.items() if not reason)
    return checked, tuple(f"{what} ({reason})" for what, reason in reasons.items() if reason)

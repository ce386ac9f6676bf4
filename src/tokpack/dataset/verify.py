"""Check a dataset to its last token, and report its first fault."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from tokpack.counts import READ, records_of
from tokpack.dataset.dataset import MMapIndexedDataset
from tokpack.dataset.format import bin_path, idx_path, prefix_of
from tokpack.dataset.manifest import (
    FileDigest,
    Manifest,
    PieceSums,
    check_file_digest,
    check_size,
    digest_file,
    manifest_path,
)
from tokpack.dataset.mapped import ByteBlock, scan
from tokpack.dataset.results import (
    NewResult,
    Result,
    Task,
    everywhere,
    files_of,
    forget,
    pieces_of,
    result_path,
)
from tokpack.dataset.shards import check_digest, check_manifest
from tokpack.dataset.table import check_footer, dropped_path, table_path
from tokpack.dataset.track import check_tracks
from tokpack.errors import FormatError, InputError, UnreachableError, UsageError
from tokpack.progress import ProgressStage, with_bar
from tokpack.storage import identity, near
from tokpack.storage.disk.blocks import block_sums, checksum_of_sums
from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from typing import Unpack

    from tokpack.dataset.manifest import ShardRecord
    from tokpack.dataset.results import RunTasks
    from tokpack.dataset.shards import Shard
    from tokpack.progress import Show
    from tokpack.tokenizers import TokenizerFiles


_DOCUMENTS = 1 << 17  # document ends looked up at a time


class TokenCheck:
    """Checks chunks of a .bin: ids in the vocabulary, and documents with their frame.

    Documents with tokens must begin with the first ids of ``frame``, and end with the last.
    """

    def __init__(
        self, shard: Shard, vocab_size: int | None, frame: tuple[list[int], list[int]]
    ) -> None:
        self.index = shard.index
        self.path = bin_path(shard.prefix)
        self.bin_bytes = shard.tokens.nbytes
        before, after = frame
        # The expected tokens of each document; negative places count from its end.
        self._frame = [
            (place, one, f"expected {one} as token {place} of a document")
            for place, one in enumerate(before)
        ]
        for place, one in enumerate(reversed(after), 1):
            where = ", the EOD, at the end" if place == 1 else f" as token -{place}"
            self._frame.append((-place, one, f"expected {one}{where} of a document"))
        self.vocab_size = vocab_size
        dtype = shard.dtype
        self._unsigned = np.dtype(f"<u{dtype.itemsize}")  # makes negative ids large
        most, self._limit = int(np.iinfo(dtype).max) + 1, None
        # In a vocabulary this large every id is valid unless it is negative.
        if vocab_size is not None and (vocab_size < most or dtype.kind == "i"):
            self._limit = min(vocab_size, most)

    def __call__(self, begin: int, block: npt.NDArray[np.uint8]) -> str | None:
        """The first fault of the chunk at byte ``begin``, in words, or None."""
        faults = [self._stranger(begin, block)]
        faults += (self._other(begin, block, *one) for one in self._frame)
        first = min((fault for fault in faults if fault is not None), default=None)
        return None if first is None else self._explain(*first, begin, block)

    def _stranger(self, begin: int, block: npt.NDArray[np.uint8]) -> tuple[int, str] | None:
        """The byte of the first id outside the vocabulary, and what is expected there."""
        tokens: npt.NDArray[Any] = block.view(self._unsigned)
        if self._limit is None or not len(tokens) or int(tokens.max()) < self._limit:
            return None
        at = begin + int(np.argmax(tokens >= self._limit)) * self._unsigned.itemsize
        return at, f"expected an id below the vocabulary size {self.vocab_size}"

    def _other(
        self, begin: int, block: npt.NDArray[np.uint8], place: int, expected: int, what: str
    ) -> tuple[int, str] | None:
        """The byte of the first document whose token ``place``, in this chunk, is not
        ``expected``, and ``what`` is expected there.
        """
        index, itemsize = self.index, self.index.header.dtype.itemsize
        tokens = block.view(index.header.dtype)
        numbers = range(index.header.entries - 1)
        # Documents whose token at ``place`` is in this chunk.
        shift = place * itemsize
        is_end = place < 0

        def bound(document: int) -> int:
            sequence = index.doc_idx.item(document + is_end)
            in_file = sequence < index.header.sequences
            return int(index.pointers.item(sequence)) if in_file else self.bin_bytes

        first = bisect_left(numbers, begin - shift, key=bound)
        last = bisect_left(numbers, begin + len(block) - shift, lo=first, key=bound)
        for low in range(first, last, _DOCUMENTS):
            bounds = self._bytes_of(index.doc_idx[low : min(low + _DOCUMENTS, last) + 1])
            filled = bounds[1:] > bounds[:-1]  # a document without tokens has no frame
            at = ((bounds[1:] if is_end else bounds[:-1])[filled] + shift - begin) // itemsize
            wrong = np.flatnonzero(tokens[at] != expected)
            if wrong.size:
                return begin + int(at[wrong[0]]) * itemsize, what
        return None

    def _bytes_of(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The byte at which each sequence begins; one past the last is the end of the .bin."""
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
        token_id = int(block.view(dtype)[(at - begin) // dtype.itemsize])
        return (
            f"{self.path}: byte {at}, document {document}, token {token}: id is {token_id}, "
            f"{expected}"
        )


CHECKS = ("index", "counts", "checksums", "token ids", "tracks", "EOD", "BOS")


@dataclass(frozen=True)
class VerifyReport:
    """The result of a check that found no fault.

    ``checked`` names the checks that were made, ``unchecked`` those that were not, with reasons.
    ``bytes_read`` of ``.bin`` and ``.idx`` in ``seconds``.
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


@with_bar
def verify(
    prefix: str | os.PathLike[str],
    *,
    quick: bool = False,
    vocab_size: int | None = None,
    eod: int | None = None,
    progress: Show | bool | None = None,
    tasks: RunTasks | None = None,
    **tokenizer: Unpack[TokenizerFiles],
) -> VerifyReport:
    """Check the dataset ``prefix`` and raise FormatError at its first fault, which says where.

    Always checked are header, sizes, every length, pointer and document entry, and with a manifest
    its counts and the checksum of the .idx. Unless ``quick``, the .bin is checked, too, in one read
    by all cores: its checksum, that token ids are below ``vocab_size``, and that each document with
    tokens ends with ``eod``. If these are None, they are taken from the manifest, which may also
    name other tokens around each document. So are the values and checksums of tracks. For a view
    its selection is checked, and each dataset that it lists documents of, as a whole. A tokenizer,
    named as for load_tokenizer, also gives a ``vocab_size``. ``progress`` is told the bytes of the
    .bin that are done. ``tasks`` checks shards elsewhere. InputError if a file cannot be read, or
    the dataset is replaced meanwhile.
    """
    began = time.perf_counter()
    if any(tokenizer.values()):
        size = load_tokenizer(**tokenizer).vocab_size
        vocab_size = size if vocab_size is None else vocab_size
    if vocab_size is not None and vocab_size < 1:
        raise UsageError(f"vocabulary size is {vocab_size}, expected 1 or more")
    if vocab_size is not None and eod is not None and not 0 <= eod < vocab_size:
        raise UsageError(f"EOD is {eod}, expected an id below the vocabulary size {vocab_size}")
    request = _Request(quick, vocab_size, None if eod is None else [eod])
    reasons: dict[str, set[str]] = {what: set() for what in CHECKS}
    bytes_read = 0
    with MMapIndexedDataset(prefix) as dataset:
        view = dataset.view
        records = dataset.under.records
        tokens = sum(record.tokens for record in records) or dataset.token_count
        stage = ProgressStage(progress, "verify", tokens * dataset.dtype.itemsize)
        if view is not None:
            bytes_read += view.lengths.nbytes  # computing the lengths checks the selection
        if records:
            request = request.filled(dataset.manifest)
            if dataset.manifest:
                _check_sums(dataset.manifest, manifest_path(dataset.path_prefix))
        found = (
            (_look_at(dataset, n, shard, request, stage) for n, shard in enumerate(dataset.under))
            if tasks is None
            else _found_by(tasks, dataset, request)
        )
        for unchecked, size in found:
            for what, reason in unchecked.items():
                reasons[what].add(reason)
            bytes_read += size
        return VerifyReport(
            prefix=dataset.path_prefix,
            documents=dataset.documents,
            sequences=len(dataset),
            tokens=dataset.token_count,
            dtype=str(dataset.dtype),
            bytes_read=bytes_read,
            seconds=time.perf_counter() - began,
            checked=tuple(what for what, why in reasons.items() if why == {""}),
            unchecked=tuple(
                f"{what} ({one})" for what, why in reasons.items() for one in sorted(why) if one
            ),
        )


@dataclass(frozen=True)
class _Request:
    """The facts that a dataset is checked against; None if not known."""

    quick: bool
    vocab_size: int | None
    after: list[int] | None  # the ids at the end of each document
    before: list[int] | None = None

    def filled(self, manifest: Manifest | None) -> _Request:
        """The request, completed from the manifest."""
        if manifest is None:
            return self
        size = manifest.token_fact("vocab_size") if self.vocab_size is None else self.vocab_size
        before, after = manifest.frame or (None, None)
        return _Request(self.quick, size, after if self.after is None else self.after, before)


def _look_at(
    dataset: MMapIndexedDataset, number: int, shard: Shard, request: _Request, stage: ProgressStage
) -> tuple[dict[str, str], int]:
    """Check a shard: why each of CHECKS was not made, and how many bytes were read."""
    records = dataset.under.records
    record = records[number] if records else None
    try:
        if record is not None:
            check_digest(dataset.path_prefix, shard, record)
        unchecked = _verify_shard(shard, request, stage, record)
    except (FormatError, InputError):
        shard.check_current("verified")
        raise
    shard.check_current("verified")
    size = shard.idx_bytes
    if not request.quick:
        width = sum(dtype.itemsize for dtype in shard.tracks.values())
        size += shard.tokens.nbytes + width * len(shard.tokens)
    return unchecked, size


def _found_by(
    run: RunTasks, dataset: MMapIndexedDataset, request: _Request
) -> Iterator[tuple[dict[str, str], int]]:
    """What ``_look_at`` returns for each shard, or raises, from a task for each."""
    prefix = everywhere(dataset.path_prefix)
    pieces, sizes = zip(*pieces_of(prefix, dataset.under.records), strict=True)
    tasks = []
    for number, files in enumerate(files_of(pieces)):
        facts = {"prefix": prefix, "number": number, "request": asdict(request)}
        tasks.append(Task(result_path(prefix, "verify", facts, files), sizes[number], facts))
    run("verify", tasks)
    results = [Result(task.result).facts for task in tasks]
    forget(task.result for task in tasks)  # the next command is to look again
    for found in results:
        if fault := found.get("fault"):
            raise (FormatError if found["is_broken"] else InputError)(fault)
        yield found["unchecked"], found["size"]


def verify_task(task: Task, progress: Show) -> None:
    """Check a shard, and write what was found, even if it is broken."""
    facts, found = task.facts, {}
    with NewResult(task.result) as new:
        try:
            with MMapIndexedDataset(facts["prefix"]) as dataset:
                stage = ProgressStage(progress, "verify", task.size)
                request, wanted = _Request(**facts["request"]), facts["number"]
                shard = dataset.under.open(wanted)
                unchecked, size = _look_at(dataset, wanted, shard, request, stage)
                found = {"unchecked": unchecked, "size": size}
        except (FormatError, InputError) as error:
            if isinstance(error, UnreachableError) or isinstance(error.__cause__, UnreachableError):
                raise
            found = {"fault": str(error), "is_broken": isinstance(error, FormatError)}
        new.finish(found)


def _verify_shard(
    shard: Shard, request: _Request, stage: ProgressStage, record: ShardRecord | None
) -> dict[str, str]:
    """Check one .bin with its .idx. Returns why each of CHECKS was not made; "" if it was.

    ``record`` is the record of it in a virtual dataset or view.
    """
    recorded = "" if record is None else record.xxh3_128
    manifest = Manifest.find(shard.prefix)
    request = request.filled(manifest)
    shard.validate()
    if manifest:
        check_size(idx_path(shard.prefix), shard.idx_bytes, manifest.idx)
        check_size(bin_path(shard.prefix), shard.tokens.nbytes, manifest.bin)
        check_manifest(manifest, shard)
        for name in shard.tracks:
            shard.track(name)  # compares its size
        _check_sums(manifest, manifest_path(shard.prefix))
        _check_file(idx_path(shard.prefix), manifest.idx)
        documents = manifest.documents + manifest.kept_empty
        dropped = manifest.empty + manifest.rejected - manifest.kept_empty
        _check_table(table_path(shard.prefix), manifest.table, manifest, documents)
        _check_table(dropped_path(shard.prefix), manifest.dropped, manifest, dropped)
    if not request.quick:
        frame = (request.before or [], request.after or [])
        tokens = TokenCheck(shard, request.vocab_size, frame)
        _check_tokens(tokens, manifest, stage, recorded if manifest is None else "")
        check_tracks(shard, request.vocab_size)
    none = "" if manifest else "no manifest"
    reasons = dict.fromkeys(CHECKS, "")
    reasons["counts"] = none
    reasons["checksums"] = none or ("only of the .idx" if request.quick else "")
    if request.quick:
        reasons |= dict.fromkeys(("token ids", "tracks", "EOD", "BOS"), "quick")
    else:
        reasons["token ids"] = "" if request.vocab_size is not None else "no vocabulary size"
        off = manifest and manifest.options.get("append_eod") is False
        reasons["EOD"] = "" if request.after else "none appended" if off else "no EOD id"
    if not request.before:
        del reasons["BOS"]
    if not shard.tracks:
        del reasons["tracks"]
    if manifest is None and recorded and not request.quick:
        reasons["checksums"] = "only of the .bin, no manifest"
    if manifest is None and record is not None and not recorded:
        reasons["checksums"] = "no manifest, so changed tokens cannot be detected"
    return reasons


def _check_table(path: str, digest: FileDigest | None, manifest: Manifest, rows: int) -> None:
    """Check one of the tables that the manifest of a dataset names."""
    if digest is None:
        return
    there = identity(path)
    if there is None:
        raise InputError(f"{path} is missing: {manifest_path(prefix_of(path))} names it")
    check_size(path, there.size, digest)
    _check_file(path, digest)
    check_footer(near(path), manifest, rows, path)


def _check_sums(manifest: Manifest, name: str) -> None:
    """Compare the counts of a manifest with each other."""
    if not manifest.adds_up:
        more = "".join(f", {words}" for words in manifest.chosen())
        raise FormatError(
            f"{name}: records is {manifest.records}, expected {records_of(vars(manifest))}: "
            f"{manifest.documents} documents, {manifest.empty} empty and {manifest.rejected} "
            f"rejected{more}"
        )
    for key in READ[:-1]:  # the text of some inputs is unknown
        counts = [source.get(key) for source in manifest.inputs if isinstance(source, dict)]
        numbers = [count for count in counts if isinstance(count, int)]
        total = getattr(manifest, key)
        if numbers and len(numbers) == len(manifest.inputs) and sum(numbers) != total:
            raise FormatError(
                f"{name}: {key} is {total}, expected {sum(numbers)}, the sum over its inputs"
            )


def _check_file(path: str, digest: FileDigest) -> None:
    check_file_digest(path, digest_file(near(path)).get("xxh3_128", ""), digest)


def _check_tokens(
    check: TokenCheck, manifest: Manifest | None, stage: ProgressStage, recorded: str
) -> None:
    """Read the .bin. Faults in tokens come before a wrong checksum, which has no position.

    ``recorded`` is a checksum of either kind, if only a virtual dataset has one.
    """
    in_blocks = bool(recorded) or (manifest and "xxh3_blocks" in manifest.bin)
    in_order = None if manifest is None or in_blocks else PieceSums(check.path, manifest.bin)
    sums, whole = bytearray(), xxhash.xxh3_128()

    def look(begin: int, block: ByteBlock) -> tuple[str | None, bytes]:
        fault = check(begin, block)
        return fault, block_sums(begin, block.data) if in_blocks else b""

    with closing(scan(check.path, check.bin_bytes, look)) as chunks:
        for _, block, (fault, blocks) in chunks:
            if fault is not None:
                raise FormatError(fault)
            sums += blocks
            if recorded:
                whole.update(block.data)
            if in_order:
                in_order.add(block.data)
            stage.add(len(block))
    if in_order:
        in_order.finish()
    if recorded and recorded not in (checksum_of_sums(bytes(sums)), whole.hexdigest()):
        raise FormatError(
            f"{check.path}: its checksum is not {recorded}, as the manifest of the virtual "
            "dataset says: its bytes have changed, or it was merged on a store and its own "
            "manifest, which names its pieces, is missing"
        )
    if in_blocks and manifest:
        check_file_digest(check.path, checksum_of_sums(bytes(sums)), manifest.bin)

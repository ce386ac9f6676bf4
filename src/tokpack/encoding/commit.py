"""The end of a run: what is joined becomes datasets, complete but for their names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.encoding.folder import create_own
from tokpack.encoding.piece import SOURCE_COLUMNS
from tokpack.encoding.rejects import reject_lines, rejected_lines
from tokpack.encoding.renames import REJECTS, staged, write_commit
from tokpack.encoding.trace import write_trace
from tokpack.errors import InputError, OutputError
from tokpack.files.blocks import checksum_of_sums
from tokpack.files.durable import cannot_write, replace_file
from tokpack.indexed import FileDigest, HashingReader, Manifest, index_chunks
from tokpack.indexed.manifest import now
from tokpack.sources import content_checksum, joined_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tokpack.encoding.piece import Job
    from tokpack.encoding.plan import Plan
    from tokpack.encoding.work import EncodeResult
    from tokpack.sources import Source
    from tokpack.stores.storage import Version

_CHUNK = 1 << 20
# What a manifest counts, of all and of each input, and the columns of a piece that count it.
_COUNTED = {
    "records": "records",
    "documents": "documents",
    "sequences": "sequences",
    "tokens": "tokens",
    "empty": "empty",
    "rejected": "rejected",
    "text_bytes": "key_bytes",
}


def stage(
    job: Job, plan: Plan, finished: EncodeResult, versions: Mapping[str, Version]
) -> list[Manifest]:
    """Write what is still missing into the work folder, and then what there is to rename.

    ``versions`` are those of the outputs that ``check_replaced`` gave. With ``commit.json`` the run
    is complete: ``finish`` may follow at any time. Raises InputError when there is no token at all,
    unless other shards may have some, OutputError when counts do not add up, or where another has
    taken an output meanwhile.
    """
    folder, pieces = job.folder, finished.pieces
    files: dict[str, FileDigest] = {}
    contents = _contents_of(plan, job, finished)
    sums = pieces.by_source()
    manifests = []
    for index, key in enumerate(job.options.keys):
        inputs = _Inputs(plan, contents, _counts(job, sums, index))
        total = inputs.total
        idx, manifest = staged(key, "idx"), staged(key, "manifest.json")
        if not total["tokens"] and "shard" not in plan.options:
            raise InputError(_no_tokens(job, total, key))
        lengths = _joined(job, folder.track(key, "lengths"), total["sequences"], total["tokens"])
        size = total["tokens"] * np.dtype(job.dtype).itemsize
        _check_size(folder(staged(key, "ids")), size)
        content = checksum_of_sums(finished.sums[folder.track(key, "ids")])
        files[staged(key, "ids")] = {"bytes": size, "xxh3_blocks": content}
        documents = _document_index(job, key, total)
        chunks = index_chunks(job.dtype, lengths, documents)
        files[idx] = _write(folder(idx), chunks)
        if job.options.trace:
            files[staged(key, "trace")] = write_trace(pieces, index, rejected_lines(pieces))
        manifests.append(_manifest(job, plan, key, inputs, files))
        files[manifest] = _write(folder(manifest), manifests[-1].chunks())
    if sums[:, SOURCE_COLUMNS.index("rejected")].any():
        files[REJECTS] = _write(folder(REJECTS), reject_lines(pieces))
    write_commit(folder, job.options, versions, files)
    return manifests


def _write(path: str, chunks: Iterable[bytes]) -> FileDigest:
    """Write a file, and tell what was written: it is not read back for that."""
    digested = HashingReader(chunks)
    replace_file(path, digested)
    return digested.digest


def _no_tokens(job: Job, total: Mapping[str, int], key: str) -> str:
    names = job.sources[0].name
    if len(job.sources) > 1:
        names += f" and {len(job.sources) - 1} more"
    is_pipe = any(source.is_pipe and source.memory is None for source in job.sources)
    if not total["records"] and not is_pipe and not any(source.size for source in job.sources):
        return f"{names}: empty, so there is no document to encode"
    return (
        f"{names}: no document with a token under the key {key!r}: {total['records']} records were "
        f"read, {total['rejected']} of them were bad and the others empty"
    )


def _joined(job: Job, track: str, count: int, total: int) -> npt.NDArray[np.int32]:
    """A joined track of int32, mapped: ``count`` numbers above zero with the sum ``total``."""
    path = job.folder.joined(track)
    _check_size(path, 4 * count)
    numbers = np.memmap(path, dtype="<i4", mode="r") if count else np.empty(0, np.int32)
    if numbers.size and int(numbers.min()) < 0:
        raise OutputError(f"{path} holds a number below zero; run again anew")
    if (actual := int(numbers.sum(dtype=np.int64))) != total:
        raise OutputError(f"the sum of {path} is {actual} instead of {total}; run again anew")
    return numbers


def _document_index(job: Job, key: str, total: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """First sequence of each document and the number of sequences, int64, mapped from a file."""
    entries = total["documents"]
    sequences: npt.NDArray[np.int32] | None = None
    if job.has_document_track:
        entries += total["empty"] if job.options.empty == "document" else 0
        track = job.folder.track(key, "documents")
        sequences = _joined(job, track, entries, total["sequences"])
    path = job.folder.joined(job.folder.track(key, "doc_idx"))
    # Written, not mapped to be written: on a full disk a map without space would end the process.
    with cannot_write(path), open(create_own(path), "wb") as file:
        file.write(np.zeros(1, np.int64).data)
        last = 0
        for begin in range(0, entries, _CHUNK):
            end = min(begin + _CHUNK, entries)
            if sequences is None:
                index = np.arange(begin + 1, end + 1)
            else:
                index = last + np.cumsum(sequences[begin:end], dtype=np.int64)
            last = int(index[-1])
            file.write(index.data)
    return np.memmap(path, dtype=np.int64, mode="r")


def _check_size(path: str, expected: int) -> None:
    with cannot_write(path):
        size = os.path.getsize(path)
    if size != expected:
        raise OutputError(f"{path} has {size} bytes instead of {expected}; run again anew")


def _contents_of(plan: Plan, job: Job, finished: EncodeResult) -> list[str | None]:
    """The checksum of the content of each input; None where not all of it was read.

    Raises InputError where parts of it have seen different contents.
    """
    contents: list[str | None] = [None] * len(plan.sources)
    runs: dict[int, list[tuple[int, str | None]]] = {}  # of sources that several parts have read
    for piece in finished.pieces:
        part = job.parts[piece.number]
        if part.kind == "stream":
            if not piece.segment:
                runs[part.source] = [(0, finished.stream_blocks.get(piece.number))]
        elif part.kind in ("whole", "files"):
            for source, sums in zip(job.sources_of(piece.number), piece.blocks, strict=True):
                contents[source] = _content_of(plan.sources[source], [(0, sums)], job)
        else:
            share = (job.blocks_from(piece.number), piece.blocks[0])
            runs.setdefault(part.source, []).append(share)
    for source, shares in runs.items():
        contents[source] = _content_of(plan.sources[source], shares, job)
    return contents


def _content_of(source: Source, runs: list[tuple[int, str | None]], job: Job) -> str | None:
    read = [(begin, sums) for begin, sums in runs if sums is not None]
    if len(read) < len(runs):
        return None
    try:
        blocks = joined_blocks(source.size, read)
    except ValueError:
        raise InputError(
            f"{source.name} changed while it was read; discard {job.folder.path} and run again "
            "when nothing writes to it"
        ) from None
    return None if blocks is None else content_checksum(blocks)


class _Inputs(Sequence[dict[str, Any]]):
    """What a manifest says of each input, made when it is asked for: there may be a million.

    ``counts`` are int64 [sources, columns]: those of _COUNTED, and special tokens.
    """

    def __init__(
        self, plan: Plan, contents: Sequence[str | None], counts: npt.NDArray[np.int64]
    ) -> None:
        self._plan = plan
        self._contents = contents
        self._counts = counts

    def __len__(self) -> int:
        return len(self._counts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        source = self._plan.sources[index]
        *counts, special = self._counts[index].tolist()
        return {
            "name": source.name,
            "size": source.size,
            "format": source.format,
            "compression": source.compression,
            "fingerprint": self._plan.fingerprints[index],
            "mtime_ns": source.mtime_ns,
            "content": self._contents[index],
            **dict(zip(_COUNTED, counts, strict=True)),
            "special_tokens": special,
        }

    @property
    def total(self) -> dict[str, int]:
        """The counts of all inputs."""
        return dict(zip(_COUNTED, self._counts.sum(axis=0).tolist(), strict=False))


def _manifest(
    job: Job, plan: Plan, key: str, inputs: _Inputs, files: Mapping[str, FileDigest]
) -> Manifest:
    return Manifest(
        tokpack_version=plan.version,
        created=now(),
        tokenizer=plan.tokenizer,
        options={**plan.options, "key": key, "on_error": job.options.on_error},
        inputs=inputs,
        dtype=job.dtype,
        bin=files[staged(key, "ids")],
        idx=files[staged(key, "idx")],
        trace=files.get(staged(key, "trace")),
        table=None,
        dropped=None,
        pieces=None,
        selection=None,
        **inputs.total,
    )


def _counts(job: Job, sums: npt.NDArray[np.int64], index: int) -> npt.NDArray[np.int64]:
    """Counts of key number ``index``, of each row of ``sums``: _COUNTED, and special tokens.

    Raises OutputError when they do not add up.
    """
    counts = sums[
        :,
        [
            SOURCE_COLUMNS.index(column)
            if column in SOURCE_COLUMNS
            else job.key_column(index, column)
            for column in (*_COUNTED.values(), "special")
        ],
    ]
    of = dict(zip(_COUNTED, counts.T, strict=False))
    wrong = np.flatnonzero(of["records"] != of["documents"] + of["empty"] + of["rejected"])
    if wrong.size:
        counted = {name: int(column[wrong[0]]) for name, column in of.items()}
        raise OutputError(
            f"the counts do not add up, so nothing was written: {counted}; this is a defect in "
            "tokpack, please report it"
        )
    return counts

"""The end of a run: what is joined becomes datasets, complete but for their names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.encoding.folder import create_own
from tokpack.encoding.piece import SOURCE_COLUMNS
from tokpack.encoding.rejects import reject_lines, rejected_lines
from tokpack.encoding.renames import REJECTS, StagedNames, write_commit
from tokpack.encoding.trace import write_trace
from tokpack.errors import InputError, OutputError
from tokpack.files.blocks import checksum_of_sums
from tokpack.files.durable import cannot_write, replace_file
from tokpack.indexed import Digested, FileDigest, Manifest, index_chunks
from tokpack.indexed.manifest import now
from tokpack.sources import content_checksum, joined_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tokpack.encoding.piece import Job
    from tokpack.encoding.plan import Plan
    from tokpack.encoding.work import Finished
    from tokpack.sources import Source

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


def stage(job: Job, plan: Plan, finished: Finished) -> None:
    """Write what is still missing into the work folder, and then what there is to rename.

    With ``commit.json`` the run is complete: ``finish`` can be done at any time after. Raises
    InputError when there is no token at all, unless other shards may have some, OutputError when
    counts do not add up.
    """
    folder, pieces = job.folder, finished.pieces
    files: dict[str, FileDigest] = {}
    contents = _contents_of(plan, job, finished)
    sums = pieces.by_source()
    for index, key in enumerate(job.options.keys):
        (total,) = _counts(job, sums.sum(axis=0, keepdims=True), index)
        if not total["tokens"] and "shard" not in plan.options:
            raise InputError(_no_tokens(job, total, key))
        names = StagedNames(key)
        lengths = _joined(job, folder.track(key, "lengths"), total["sequences"], total["tokens"])
        size = total["tokens"] * np.dtype(job.dtype).itemsize
        _check_size(folder(names.bin), size)
        content = checksum_of_sums(finished.sums[folder.track(key, "ids")])
        files[names.bin] = {"bytes": size, "xxh3_blocks": content}
        documents = _document_index(job, key, total)
        files[names.idx] = _write(folder(names.idx), index_chunks(job.dtype, lengths, documents))
        if job.options.trace:
            files[names.trace] = write_trace(pieces, index, rejected_lines(pieces))
        manifest = _manifest(job, plan, sums, index, contents=contents, files=files)
        text = manifest.to_json().encode()
        files[names.manifest] = _write(folder(names.manifest), [text])
    if sums[:, SOURCE_COLUMNS.index("rejected")].any():
        files[REJECTS] = _write(folder(REJECTS), reject_lines(pieces))
    write_commit(folder, job.options, job.sources, files)


def _write(path: str, chunks: Iterable[bytes]) -> FileDigest:
    """Write a file, and tell what was written: it is not read back for that."""
    digested = Digested(chunks)
    replace_file(path, digested)
    return digested.digest


def _no_tokens(job: Job, total: Mapping[str, int], key: str) -> str:
    names = job.sources[0].name
    if len(job.sources) > 1:
        names += f" and {len(job.sources) - 1} more"
    if all(not source.size and not source.is_pipe for source in job.sources):
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
    if (found := int(numbers.sum(dtype=np.int64))) != total:
        raise OutputError(f"the sum of {path} is {found} instead of {total}; run again anew")
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
        found = os.path.getsize(path)
    if found != expected:
        raise OutputError(f"{path} has {found} bytes instead of {expected}; run again anew")


def _contents_of(plan: Plan, job: Job, finished: Finished) -> list[str | None]:
    """The checksum of the content of each input; None where not all of it was read.

    Raises InputError where parts of it have seen different contents.
    """
    runs: list[list[tuple[int, str | None]]] = [[] for _ in plan.sources]
    for piece in finished.pieces:
        if job.parts[piece.number].kind == "stream":
            if not piece.segment:
                blocks = finished.stream_blocks.get(piece.number)
                runs[job.parts[piece.number].source].append((0, blocks))
            continue
        for source, sums in zip(job.sources_of(piece.number), piece.blocks, strict=True):
            runs[source].append((job.blocks_from(piece.number), sums))
    return [
        _content_of(plan.sources[number], own, job) if own else None
        for number, own in enumerate(runs)
    ]


def _content_of(source: Source, runs: list[tuple[int, str | None]], job: Job) -> str | None:
    known = [(begin, sums) for begin, sums in runs if sums is not None]
    if len(known) < len(runs):
        return None
    try:
        blocks = joined_blocks(source.size, known)
    except ValueError:
        raise InputError(
            f"{source.name} changed while it was read; discard {job.folder.path} and run again "
            "when nothing writes to it"
        ) from None
    return None if blocks is None else content_checksum(blocks)


def _manifest(
    job: Job,
    plan: Plan,
    sums: npt.NDArray[np.int64],
    index: int,
    *,
    contents: Sequence[str | None],
    files: Mapping[str, FileDigest],
) -> Manifest:
    names = StagedNames(job.options.keys[index])
    inputs: list[dict[str, Any]] = []
    special = sums[:, job.key_column(index, "special")].tolist()
    (total,) = _counts(job, sums.sum(axis=0, keepdims=True), index)
    for source, fingerprint, content, counts, found in zip(
        *(plan.sources, plan.fingerprints, contents, _counts(job, sums, index), special),
        strict=True,
    ):
        inputs.append(
            {
                "name": source.name,
                "size": source.size,
                "format": source.format,
                "compression": source.compression,
                "fingerprint": fingerprint,
                "mtime_ns": source.mtime_ns,
                "content": content,
                **counts,
                "special_tokens": found,
            }
        )
    return Manifest(
        tokpack_version=plan.version,
        created=now(),
        tokenizer=plan.tokenizer,
        options={**plan.options, "key": job.options.keys[index], "on_error": job.options.on_error},
        inputs=inputs,
        dtype=job.dtype,
        bin=files[names.bin],
        idx=files[names.idx],
        trace=files.get(names.trace),
        pieces=None,
        **total,
    )


def _counts(job: Job, sums: npt.NDArray[np.int64], index: int) -> list[dict[str, int]]:
    """Counts of key number ``index``, of each row of ``sums``.

    Raises OutputError when they do not add up.
    """
    columns = [
        SOURCE_COLUMNS.index(column) if column in SOURCE_COLUMNS else job.key_column(index, column)
        for column in _COUNTED.values()
    ]
    counted = [dict(zip(_COUNTED, row, strict=True)) for row in sums[:, columns].tolist()]
    for counts in counted:
        if counts["records"] != counts["documents"] + counts["empty"] + counts["rejected"]:
            raise OutputError(
                f"the counts do not add up, so nothing was written: {counts}; this is a defect in "
                "tokpack, please report it"
            )
    return counted

"""The end of a run: what is joined becomes datasets, complete but for their names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.encoding.folder import create_own
from tokpack.encoding.piece import KeyCounts
from tokpack.encoding.rejects import reject_lines, rejected_lines
from tokpack.encoding.renames import REJECTS, StagedNames, write_commit
from tokpack.encoding.trace import write_trace
from tokpack.errors import InputError, OutputError
from tokpack.files.durable import cannot_write, replace_file
from tokpack.indexed import Digested, FileDigest, Manifest, index_chunks
from tokpack.indexed.manifest import now
from tokpack.sources import content_checksum, joined_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tokpack.encoding.piece import Job, Piece
    from tokpack.encoding.plan import Plan

_CHUNK = 1 << 20


def stage(
    job: Job,
    plan: Plan,
    pieces: Sequence[Piece],
    digests: Mapping[str, str],
) -> None:
    """Write what is still missing into the work folder, and then what there is to rename.

    ``digests`` are the xxh3_128 of the joined tracks. With ``commit.json`` the run is complete:
    ``finish`` can be done at any time after. Raises InputError when there is no token at all,
    OutputError when counts do not add up.
    """
    folder = job.folder
    files: dict[str, FileDigest] = {}
    contents = [_content_of(plan, job, number, pieces) for number in range(len(plan.sources))]
    for index, key in enumerate(job.options.keys):
        counts = [piece.keys[index] for piece in pieces]
        total = _sum(counts)
        if not total.tokens:
            raise InputError(_no_tokens(job, pieces, key))
        names = StagedNames(key)
        lengths = _joined(job, folder.track(key, "lengths"), total.sequences, total.tokens)
        size = total.tokens * np.dtype(job.dtype).itemsize
        _check_size(folder(names.bin), size)
        files[names.bin] = {"bytes": size, "xxh3_128": digests[folder.track(key, "ids")]}
        documents = _document_index(job, key, total)
        files[names.idx] = _write(folder(names.idx), index_chunks(job.dtype, lengths, documents))
        if job.options.trace:
            files[names.trace] = write_trace(job, pieces, index, rejected_lines(job, pieces))
        manifest = _manifest(job, plan, pieces, index, contents=contents, files=files)
        text = manifest.to_json().encode()
        files[names.manifest] = _write(folder(names.manifest), [text])
    if any(piece.rejected for piece in pieces):
        files[REJECTS] = _write(folder(REJECTS), reject_lines(job, pieces))
    write_commit(folder, job.options, job.sources, files)


def _write(path: str, chunks: Iterable[bytes]) -> FileDigest:
    """Write a file, and tell what was written: it is not read back for that."""
    digested = Digested(chunks)
    replace_file(path, digested)
    return digested.digest


def _sum(counts: Iterable[KeyCounts]) -> KeyCounts:
    total = KeyCounts()
    for count in counts:
        total.add(count)
    return total


def _no_tokens(job: Job, pieces: Sequence[Piece], key: str) -> str:
    names = job.sources[0].name
    if len(job.sources) > 1:
        names += f" and {len(job.sources) - 1} more"
    if all(not source.size and not source.is_pipe for source in job.sources):
        return f"{names}: empty, so there is no document to encode"
    records = sum(piece.records for piece in pieces)
    rejected = sum(piece.rejected for piece in pieces)
    return (
        f"{names}: no document with a token under the key {key!r}: {records} records were read, "
        f"{rejected} of them were bad and the others empty"
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


def _document_index(job: Job, key: str, total: KeyCounts) -> npt.NDArray[np.int64]:
    """First sequence of each document and the number of sequences, int64, mapped from a file."""
    entries = total.documents
    sequences: npt.NDArray[np.int32] | None = None
    if job.has_document_track:
        entries += total.empty if job.options.empty == "document" else 0
        sequences = _joined(job, job.folder.track(key, "documents"), entries, total.sequences)
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


def _content_of(plan: Plan, job: Job, number: int, pieces: Sequence[Piece]) -> str | None:
    """The checksum of an input's content; None where not all of it was read.

    Raises InputError where parts of it have seen different contents.
    """
    source = plan.sources[number]
    own = [pieces[part] for part in job.parts_of.get(number, ())]
    runs = [(job.blocks_from(p.number), p.blocks) for p in own if p.blocks is not None]
    if len(runs) != len(own):
        return None
    try:
        blocks = joined_blocks(source.size, runs)
    except ValueError:
        raise InputError(
            f"{source.name} changed while it was read; discard {job.folder.path} and run again "
            "when nothing writes to it"
        ) from None
    return None if blocks is None else content_checksum(blocks)


def _manifest(
    job: Job,
    plan: Plan,
    pieces: Sequence[Piece],
    index: int,
    *,
    contents: Sequence[str | None],
    files: Mapping[str, FileDigest],
) -> Manifest:
    names = StagedNames(job.options.keys[index])
    inputs: list[dict[str, Any]] = []
    by_source: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_source.setdefault(job.parts[piece.number].source, []).append(piece)
    for number, (source, fingerprint) in enumerate(
        zip(plan.sources, plan.fingerprints, strict=True)
    ):
        inputs.append(
            {
                "name": source.name,
                "size": source.size,
                "format": source.format,
                "compression": source.compression,
                "fingerprint": fingerprint,
                "mtime_ns": source.mtime_ns,
                "content": contents[number],
                **_counts(own := by_source.get(number, []), index),
                "special_tokens": _sum(piece.keys[index] for piece in own).special,
            }
        )
    total = _counts(pieces, index)
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


def _counts(pieces: Sequence[Piece], index: int) -> dict[str, int]:
    """What some pieces came to for a key. Raises OutputError when the counts do not add up."""
    keys = _sum(piece.keys[index] for piece in pieces)
    counts = {
        "records": sum(piece.records for piece in pieces),
        "documents": keys.documents,
        "sequences": keys.sequences,
        "tokens": keys.tokens,
        "empty": keys.empty,
        "rejected": sum(piece.rejected for piece in pieces),
        "text_bytes": keys.text_bytes,
    }
    if counts["records"] != keys.documents + keys.empty + counts["rejected"]:
        raise OutputError(
            f"the counts do not add up, so nothing was written: {counts}; this is a defect in "
            "tokpack, please report it"
        )
    return counts

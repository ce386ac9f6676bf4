"""The end of a run: joined tracks become datasets, all at once or not at all."""

from __future__ import annotations

import heapq
import itertools
import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.encoding.outputs import is_rejects, rejects_path
from tokpack.encoding.piece import KeyCounts
from tokpack.encoding.trace import groups_with_base, write_trace
from tokpack.errors import InputError, OutputError
from tokpack.files.durable import cannot_write, sync_folder
from tokpack.indexed import (
    FileDigest,
    Manifest,
    bin_path,
    digest_file,
    idx_path,
    is_trace,
    manifest_path,
    runs_of,
    trace_path,
    write_index,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tokpack.encoding.folder import WorkFolder
    from tokpack.encoding.piece import Job, Piece
    from tokpack.encoding.plan import Plan

_CHUNK = 1 << 20


def stage(
    job: Job,
    plan: Plan,
    pieces: Sequence[Piece],
    digests: Mapping[str, str],
) -> None:
    """Write what is still missing into the work folder, and then what has to be renamed.

    With ``commit.json`` the run is complete: ``finish`` can be done at any time after.
    Raises InputError when there is no token at all, OutputError when counts do not add up.
    """
    folder = job.folder
    rejects = rejects_path(job.options)
    renames: list[tuple[str, str]] = []
    manifests: list[tuple[str, str]] = []
    remove = []
    for index, (key, prefix) in enumerate(job.options.output_names.items()):
        counts = [piece.keys[index] for piece in pieces]
        total = _sum(counts)
        if not total.tokens:
            raise InputError(_no_tokens(pieces, key))
        ids, index_file = folder.track(key, "ids"), folder.joined(folder.track(key, "idx"))
        lengths = _joined(job, folder.track(key, "lengths"), total.sequences)
        with cannot_write(index_file):
            write_index(index_file, job.dtype, lengths, _document_index(job, key, total))
        _check_sizes(job, key, total)
        trace = None
        if job.options.trace:
            trace = write_trace(job, pieces, index, _rejected_lines(job, pieces))
            renames.append((folder.joined(folder.track(key, "trace")), trace_path(prefix)))
        elif is_trace(trace_path(prefix)):  # of the dataset that is replaced
            remove.append(trace_path(prefix))
        manifest = _manifest(
            job,
            plan,
            pieces,
            index,
            bin_digest=digests[ids],
            idx_digest=digest_file(index_file),
            trace_digest=trace,
        )
        staged = folder.joined(folder.track(key, "manifest"))
        manifest.save(staged)
        renames += [(folder.joined(ids), bin_path(prefix)), (index_file, idx_path(prefix))]
        manifests.append((manifest_path(staged), manifest_path(prefix)))
    if _stage_rejects(job, pieces):
        renames.append((folder("rejects.jsonl"), rejects))
    elif is_rejects(rejects):  # of the dataset that is replaced
        remove.append(rejects)
    relative = [
        (os.path.basename(source), os.path.basename(target))
        for source, target in renames + manifests
    ]
    folder.write_json(
        "commit.json", {"renames": relative, "remove": [os.path.basename(name) for name in remove]}
    )


def finish(folder: WorkFolder) -> None:
    """Give the staged files their names, manifests last, and remove the work folder.

    Whatever of it a crash left undone, doing it again completes it.
    """
    commit = folder.read_json("commit.json")
    home = os.path.dirname(os.path.abspath(folder.path))
    renames = [(folder(name), os.path.join(home, target)) for name, target in commit["renames"]]
    waiting = [pair for pair in renames if os.path.exists(pair[0])]
    # An old dataset goes before the new one comes: no reader sees the index of one with the
    # tokens of the other.
    old = [target for _, target in reversed(waiting) if target.endswith((".json", ".idx"))]
    for path in [*old, *(os.path.join(home, name) for name in commit["remove"])]:
        with cannot_write(path):
            if os.path.exists(path):
                os.unlink(path)
    for staged, target in waiting:
        with cannot_write(target):
            os.replace(staged, target)
    with cannot_write(home):
        sync_folder(home)
    folder.remove()


def _sum(counts: Iterable[KeyCounts]) -> KeyCounts:
    total = KeyCounts()
    for count in counts:
        total.add(count)
    return total


def _no_tokens(pieces: Sequence[Piece], key: str) -> str:
    records = sum(piece.records for piece in pieces)
    rejected = sum(piece.rejected for piece in pieces)
    return (
        f"no document with a token under the key {key!r}: {records} records were read, "
        f"{rejected} of them were bad and the others empty"
    )


def _joined(job: Job, track: str, count: int) -> npt.NDArray[np.int32]:
    """A joined track of int32, mapped."""
    path = job.folder.joined(track)
    found = os.path.getsize(path)
    if found != 4 * count:
        raise OutputError(f"{path} has {found} bytes instead of {4 * count}; run again anew")
    return np.memmap(path, dtype="<i4", mode="r") if count else np.empty(0, np.int32)


def _document_index(job: Job, key: str, total: KeyCounts) -> npt.NDArray[np.int64]:
    """First sequence of each document and the number of sequences, int64, mapped from a file."""
    entries = total.documents
    sequences: npt.NDArray[np.int32] | None = None
    if job.has_document_track:
        entries += total.empty if job.options.empty == "document" else 0
        sequences = _joined(job, job.folder.track(key, "documents"), entries)
    path = job.folder.joined(job.folder.track(key, "doc_idx"))
    with cannot_write(path):
        index = np.memmap(path, dtype=np.int64, mode="w+", shape=(entries + 1,))
    last = 0
    for begin in range(0, entries, _CHUNK):
        end = min(begin + _CHUNK, entries)
        if sequences is None:
            index[begin + 1 : end + 1] = np.arange(begin + 1, end + 1)
        else:
            index[begin + 1 : end + 1] = last + np.cumsum(sequences[begin:end], dtype=np.int64)
            last = int(index[end])
    return index


def _check_sizes(job: Job, key: str, total: KeyCounts) -> None:
    path = job.folder.joined(job.folder.track(key, "ids"))
    expected = total.tokens * np.dtype(job.dtype).itemsize
    if os.path.getsize(path) != expected:
        found = os.path.getsize(path)
        raise OutputError(f"{path} has {found} bytes instead of {expected}; run again anew")


def _manifest(
    job: Job,
    plan: Plan,
    pieces: Sequence[Piece],
    index: int,
    *,
    bin_digest: str,
    idx_digest: FileDigest,
    trace_digest: FileDigest | None,
) -> Manifest:
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
                **_counts(own := by_source.get(number, []), index),
                "special_tokens": _sum(piece.keys[index] for piece in own).special,
            }
        )
    total = _counts(pieces, index)
    return Manifest(
        tokpack_version=plan.version,
        created=datetime.now(UTC).astimezone().isoformat(timespec="seconds"),
        tokenizer=plan.tokenizer,
        options={**plan.options, "key": job.options.keys[index], "on_error": job.options.on_error},
        inputs=inputs,
        dtype=job.dtype,
        bin={"bytes": total["tokens"] * np.dtype(job.dtype).itemsize, "xxh3_128": bin_digest},
        idx=idx_digest,
        trace=trace_digest,
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


def _stage_rejects(job: Job, pieces: Sequence[Piece]) -> bool:
    """Write all bad records in input order; whether there are any."""
    if not any(piece.rejected for piece in pieces):
        return False
    path = job.folder("rejects.jsonl")
    with cannot_write(path), open(path, "wb") as file:
        for source, record in _rejects(job, pieces):
            named = {"source": job.sources[source].name, **record}
            file.write(json.dumps(named).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return True


def _rejects(job: Job, pieces: Sequence[Piece]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(input, bad record with its line in it, from 1), in input order."""
    for source, before, group in groups_with_base(job, pieces):
        own = [_piece_rejects(job, piece) for piece in group]
        for record in heapq.merge(*own, key=lambda record: int(record["line"])):
            yield source, {**record, "line": before + record["line"] + 1}


def _rejected_lines(
    job: Job, pieces: Sequence[Piece]
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    for source, records in itertools.groupby(_rejects(job, pieces), key=lambda pair: pair[0]):
        yield source, runs_of(np.fromiter((record["line"] for _, record in records), np.int64))


def _piece_rejects(job: Job, piece: Piece) -> Iterator[dict[str, Any]]:
    if not piece.rejected:
        return
    with open(job.folder.piece(piece.number, "rejects.jsonl"), encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)

"""The end of a run: the joined files become datasets, complete except for their names."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.counts import FOUND, READ, ChosenCounts, records_of, without_zeros
from tokpack.dataset import FileDigest, Manifest, index_chunks, trained_in_files
from tokpack.dataset.manifest import ROLES, TRACK_DTYPES, facts_of_pieces, summed, write_digested
from tokpack.encoding.folder import create_own
from tokpack.encoding.kept import KINDS, column_type
from tokpack.encoding.piece import KEY_COLUMNS, SOURCE_COLUMNS
from tokpack.encoding.publish import REJECTS_FILE, piece_names, staged, write_commit
from tokpack.encoding.table import (
    reject_kinds,
    reject_lines,
    rejected_lines,
    rejects,
    write_dropped,
    write_table,
)
from tokpack.errors import InputError, OutputError, RecordError
from tokpack.quantities import counted
from tokpack.sources import content_checksum, joined_blocks
from tokpack.sources.sql import NAN
from tokpack.storage.disk import cannot_write
from tokpack.storage.disk.blocks import checksum_of_sums

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokpack.encoding.coordinator import Coordinator
    from tokpack.encoding.piece import Job, Pieces
    from tokpack.encoding.plan import Plan
    from tokpack.sources import Source
    from tokpack.storage import Version


# What a manifest counts, of all and of each input, and the columns of a piece that count it.
_COUNTED = {name: name for name in (*READ, *FOUND)} | {"text_bytes": "key_bytes"}


@dataclass(frozen=True, eq=False)
class InputFacts(Sequence[dict[str, Any]]):
    """What a manifest says about each input, computed on access: there may be a million.

    ``_counts`` are int64 [sources, columns]: those of _COUNTED, and special tokens.
    """

    _plan: Plan
    _contents: Sequence[str | None]
    _counts: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self._counts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        source = self._plan.sources[index]
        *counts, special, trained = self._counts[index].tolist()
        return {
            "name": source.name,
            "size": source.size,
            "format": source.format,
            "compression": source.compression,
            "fingerprint": self._plan.fingerprints[index],
            "mtime_ns": source.mtime_ns,
            "content": self._contents[index],
            **without_zeros(dict(zip(_COUNTED, counts, strict=True))),
            "special_tokens": special,
            **({"trained": trained} if trained else {}),
        }

    @property
    def total(self) -> dict[str, int]:
        """The counts of all inputs."""
        return dict(zip(_COUNTED, self._counts.sum(axis=0).tolist(), strict=False))


def manifest_of(job: Job, plan: Plan, key: str, inputs: InputFacts, **files: Any) -> Manifest:
    """The manifest of a key; ``files`` are its facts that are not counts of ``inputs``."""
    return Manifest.new(
        inputs.total,
        tokpack_version=plan.version,
        tokenizer=plan.tokenizer,
        options={**plan.options, "key": key, "on_error": job.options.on_error},
        inputs=inputs,
        dtype=job.setup.dtype,
        **files,
    )


def counts_of(job: Job, sums: npt.NDArray[np.int64], index: int) -> npt.NDArray[np.int64]:
    """The counts of key ``index`` for each row of ``sums``: _COUNTED, special and trained tokens.

    Raises OutputError if they do not add up.
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
    trained = [SOURCE_COLUMNS.index(f"trained of {role}") for role in ROLES]
    of = dict(zip(_COUNTED, counts.T, strict=False))
    wrong = np.flatnonzero(of["records"] != records_of(of))
    if wrong.size:
        counted = {name: int(column[wrong[0]]) for name, column in of.items()}
        raise OutputError(
            f"the counts do not add up, so nothing was written: {counted}; this is a defect in "
            "tokpack, please report it"
        )
    return np.column_stack([counts, sums[:, trained].sum(axis=1)])


def no_tokens(pieces: Pieces, total: Mapping[str, int], key: str) -> str:
    """The message for a run without tokens: what was read, and why nothing is left.

    ``total`` are the counts of all inputs.
    """
    job = pieces.job
    names = job.sources[0].name
    if len(job.sources) > 1:
        names += f" and {len(job.sources) - 1} more"
    is_pipe = any(source.is_pipe and source.memory is None for source in job.sources)
    if not total["records"] and not is_pipe and not any(source.size for source in job.sources):
        return f"{names}: empty, so there is no document to encode"
    if job.chat is not None and not total["records"]:
        return f"{names}: no records, so there is no conversation to encode"
    if job.chat is not None:
        why = [f"{kind} ({count:,})" for kind, count in reject_kinds(pieces).items()]
        why += ChosenCounts(left_out=total["left_out"]).chosen()  # mapped_out is in kinds
        left = f"{names}: no conversation is left of {total['records']:,} records"
        if first := next(rejects(pieces), None):
            source, one = job.sources[first[0]], first[1]
            example = RecordError(source.name, one["line"], one["reason"], unit=source.unit)
            why.append(f"such as {example}")
        return f"{left}: {', '.join(why)}"
    chosen = ChosenCounts(left_out=total["left_out"], mapped_out=total["mapped_out"]).chosen()
    gone = ", ".join([f"{total['rejected']:,} bad", *chosen])
    return (
        f"{names}: no document has a token under the key {key!r}: of "
        f"{counted(total['records'], 'record')}, {gone}, the rest empty"
    )


_log = logging.getLogger(__name__)
_CHUNK = 1 << 20


def stage(
    job: Job, plan: Plan, finished: Coordinator, versions: Mapping[str, Version]
) -> list[Manifest]:
    """The manifests of the datasets, which are then complete in the work folder.

    Indices, tables, the list of bad records and manifests are written beside the joined files,
    commit.json last: from then on the run is complete, and ``finish`` may follow at any time.
    ``versions`` are the outputs' versions from ``check_replaced``. Raises InputError if there are
    no tokens at all, unless other shards may have some, and OutputError if counts do not add up, or
    if an output has appeared meanwhile.
    """
    folder, keys = job.folder, job.options.keys
    contents = _contents_of(plan, job, finished)
    sums = finished.pieces.by_source()
    inputs = [InputFacts(plan, contents, counts_of(job, sums, n)) for n in range(len(keys))]
    for key, read in zip(keys, inputs, strict=True):
        if not read.total["tokens"] and "shard" not in plan.options:
            raise InputError(no_tokens(finished.pieces, read.total, key))
    if nans := inputs[0].total["nans"]:
        _log.warning("where: %s with %s", counted(nans, "record"), NAN)
    several = list(finished.pieces.by_file(plan))
    digests = finished.digests()
    files: dict[str, FileDigest] = {}
    manifests_of_files: list[list[Manifest]] = []  # by file and key
    # A source that is shared by two .bin files was read as a whole by neither.
    ends = ((plan.parts[begin - 1], plan.parts[begin]) for begin in plan.files[1:])
    cut = {last.source for first, last in ends if first.sources[-1] == last.source}
    types = [_kept_types(job, finished.pieces, n) for n in range(len(keys))]
    for begin, (file_plan, pieces) in zip(plan.files, several, strict=True):
        source = plan.parts[begin].source
        here = range(source, source + len(file_plan.sources))
        whole = [None if n in cut else contents[n] for n in here]
        sums_of_file = pieces.by_source() if len(several) > 1 else sums
        counts = (counts_of(pieces.job, sums_of_file, n) for n in range(len(keys)))
        of_file = [InputFacts(file_plan, whole, counted) for counted in counts]
        manifests_of_files.append(
            _stage_file(file_plan, pieces, of_file, types=types, sums=digests, files=files)
        )
    manifests = manifests_of_files[0]
    if len(several) > 1:
        manifests = []
        of_keys = zip(*manifests_of_files, strict=True)
        for key, read, of_key in zip(keys, inputs, of_keys, strict=True):
            names = piece_names(os.path.basename(job.options.output_names[key]), len(of_key))
            records = tuple(one.record(name) for one, name in zip(of_key, names, strict=True))
            facts = {**summed(of_key), **facts_of_pieces(records)}
            manifests.append(manifest_of(job, plan, key, read, **facts))
            name = staged(key, "manifest.json")
            files[name] = write_digested(folder(name), manifests[-1].chunks())
    if sums[:, job.reject_columns].any():
        lines = chain.from_iterable(reject_lines(pieces) for _, pieces in several)
        files[REJECTS_FILE] = write_digested(folder(REJECTS_FILE), lines)
    write_commit(job, versions, files)
    return manifests


def _stage_file(
    plan: Plan,
    pieces: Pieces,
    inputs: Sequence[InputFacts],
    *,
    types: Sequence[dict[str, str]],
    sums: Mapping[str, bytes],
    files: dict[str, FileDigest],
) -> list[Manifest]:
    """The manifests of one .bin file of a run, by key; what it lacks in the folder is written.

    The files that are to get names are added to ``files``.
    """
    job, manifests = pieces.job, list[Manifest]()
    for index, (key, read) in enumerate(zip(job.options.keys, inputs, strict=True)):
        total = read.total
        idx, manifest = (staged(key, kind, job.name) for kind in ("idx", "manifest.json"))
        lengths = _joined(
            job, job.folder.track(key, "lengths"), total["sequences"], total["tokens"]
        )
        # The .bin and the tracks are joined files as they are.
        dtypes = {"ids": np.dtype(job.setup.dtype)}
        dtypes |= {track: TRACK_DTYPES[track] for track in job.options.token_tracks}
        digests: dict[str, FileDigest] = {}
        for kind, dtype in dtypes.items():
            name, size = staged(key, kind, job.name), total["tokens"] * dtype.itemsize
            _check_size(job.folder(name), size)
            digests[kind] = {"bytes": size, "xxh3_blocks": checksum_of_sums(sums[name])}
            files[name] = digests[kind]
        facts: dict[str, Any] = {"bin": digests.pop("ids")}
        if digests:
            facts["tracks"] = {n: {**one, "dtype": str(dtypes[n])} for n, one in digests.items()}
            paths = {track: job.folder(staged(key, track, job.name)) for track in digests}
            facts["trained"] = trained_in_files(paths, total["tokens"])
        documents = _document_index(job, key, total)
        chunks = index_chunks(job.setup.dtype, lengths, documents)
        files[idx] = write_digested(job.folder(idx), chunks)
        facts["idx"] = files[idx]
        if job.options.has_table:
            ids, table, dropped = (
                staged(key, one, job.name) for one in ("ids", "table", "dropped")
            )
            path = job.folder(table)
            files[table] = write_table(pieces, index, path, files[ids], types[index])
            facts["table"] = files[table]
            if total["rejected"] or (total["empty"] and job.options.empty == "skip"):
                bad, path = rejected_lines(pieces), job.folder(dropped)
                files[dropped] = write_dropped(pieces, index, path, files[ids], bad)
                facts["dropped"] = files[dropped]
        if job.chat is not None:
            facts["reasons"] = dict(reject_kinds(pieces))
            facts["roles"] = _roles(pieces.by_source().sum(axis=0))
        manifests.append(manifest_of(job, plan, key, read, **facts))
        files[manifest] = write_digested(job.folder(manifest), manifests[-1].chunks())
    return manifests


def _roles(counts: npt.NDArray[np.int64]) -> dict[str, dict[str, int]]:
    """The tokens and trained tokens of each role with any; ``counts`` are of all sources."""
    by_name = dict(zip(SOURCE_COLUMNS, counts.tolist(), strict=False))
    of_roles = {
        role: {what: by_name[f"{what} of {role}"] for what in ("tokens", "trained")}
        for role in ROLES
    }
    return {role: of_role for role, of_role in of_roles.items() if of_role["tokens"]}


def _kept_types(job: Job, pieces: Pieces, index: int) -> dict[str, str]:
    """The types of the kept columns, from the kinds of all their values."""
    counts = pieces.by_source()[:, job.columns_of_key(index)][:, len(KEY_COLUMNS) :].sum(axis=0)
    of_each = counts.reshape(-1, len(KINDS)).tolist()
    types = {}
    for (name, key), counts_of_kinds in zip(job.options.kept.items(), of_each, strict=True):
        types[name] = column_type(counts_of_kinds)
        if not any(counts_of_kinds) and not index:
            _log.warning("no document has a value under %s: the column %s is empty", key, name)
    return types


def _joined(job: Job, track: str, count: int, total: int) -> npt.NDArray[np.int32]:
    """A joined track of int32, mapped: ``count`` numbers, none below zero, with the sum ``total``.

    Raises OutputError if it is anything else.
    """
    path = job.path(track)
    _check_size(path, 4 * count)
    numbers = np.memmap(path, dtype="<i4", mode="r") if count else np.empty(0, np.int32)
    if numbers.size and int(numbers.min()) < 0:
        raise OutputError(f"{path} holds a number below zero; start from scratch")
    if (actual := int(numbers.sum(dtype=np.int64))) != total:
        raise OutputError(f"the sum of {path} is {actual} instead of {total}; start from scratch")
    return numbers


def _document_index(job: Job, key: str, total: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """First sequence of each document and the number of sequences, int64, mapped from a file."""
    entries = total["documents"]
    sequences: npt.NDArray[np.int32] | None = None
    if job.has_document_track:
        entries += total["empty"] if job.options.empty == "document" else 0
        track = job.folder.track(key, "documents")
        sequences = _joined(job, track, entries, total["sequences"])
    path = job.path(job.folder.track(key, "doc_idx"))
    # Written by calls, not through a map: on a full disk, writing to a map kills the process.
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
        raise OutputError(f"{path} has {size} bytes instead of {expected}; start from scratch")


def _contents_of(plan: Plan, job: Job, finished: Coordinator) -> list[str | None]:
    """The checksum of each input's content, or None if it was not read completely.

    Raises InputError if its parts have read different contents.
    """
    contents: list[str | None] = [None] * len(plan.sources)
    runs: dict[int, list[tuple[int, str | None]]] = {}  # by source, of those that parts share
    for piece in finished.pieces:
        part = job.parts[piece.number]
        if part.kind == "stream":
            if not piece.segment:
                runs[part.source] = [(0, finished.stream_blocks.get(piece.number))]
        elif part.kind in ("whole", "files"):
            for source, sums in zip(part.sources, piece.blocks, strict=True):
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

"""What is there when a run starts: a finished dataset, an unfinished run, somebody else's files."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from tokpack.encoding.journal import NAME
from tokpack.encoding.messages import StreamEnd
from tokpack.encoding.piece import SPILL, Piece
from tokpack.encoding.plan import Plan
from tokpack.errors import FormatError, InputError, OutputError, ResumeError, StoreError
from tokpack.files.durable import UNFINISHED
from tokpack.indexed import Manifest, bin_path, idx_path, trace_path
from tokpack.sources import block_checksums, content_checksum
from tokpack.stores import identity, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.encoding.folder import WorkFolder
    from tokpack.encoding.journal import Journal
    from tokpack.encoding.options import EncodeOptions
    from tokpack.encoding.piece import Job, PieceId

_log = logging.getLogger(__name__)
_OWN_FILES = frozenset(("lock", "lock.probe", f"plan.json{UNFINISHED}"))


def existing(plan: Plan, options: EncodeOptions) -> list[Manifest] | None:
    """The manifests of the datasets, if they are finished and what ``plan`` would make.

    Raises as ``are_made`` does.
    """
    done = complete_datasets(options)
    return done if done and are_made(plan, options, done) else None


def complete_datasets(options: EncodeOptions) -> list[Manifest]:
    """The manifests of the datasets that have the outputs' names, on a disk or a store.

    None of them unless all are there, with files of the sizes that they tell; and none where they
    are to be replaced. StoreError where a store does not answer.
    """
    manifests: list[Manifest] = []
    for prefix in () if options.overwrite else options.output_names.values():
        try:
            manifest = Manifest.load(prefix)
        except StoreError:
            raise
        except (InputError, FormatError):
            return []
        files = {bin_path(prefix): manifest.bin, idx_path(prefix): manifest.idx}
        if options.trace and manifest.trace is None:
            return []
        if options.trace and manifest.trace:
            files[trace_path(prefix)] = manifest.trace
        if any(_size(path) != digest["bytes"] for path, digest in files.items()):
            return []
        manifests.append(manifest)
    return manifests


def are_made(plan: Plan, options: EncodeOptions, manifests: Sequence[Manifest]) -> bool:
    """Whether the datasets of ``complete_datasets`` are what ``plan`` would make.

    Raises InputError where they have more bad records than the options allow, and OutputError where
    an input has changed since, or may have: by its content where its time is another.
    """
    if not all(plan.fingerprints):  # a pipe cannot be recognised
        return False
    contents: dict[int, str] = {}
    for (key, prefix), manifest in zip(options.output_names.items(), manifests, strict=True):
        if not plan.made(manifest) or manifest.options.get("key") != key:
            return False
        _check_inputs(plan, manifest, prefix, contents)
        check_budget(manifest.rejected, options, shown(prefix))
    return True


def check_budget(rejected: int, options: EncodeOptions, where: str) -> None:
    """Raise InputError when there are more bad records than the options allow."""
    budget = options.reject_budget
    if budget is not None and rejected > budget:
        raise InputError(
            f"{rejected} bad records, and {budget} are allowed; they are listed in "
            f"{where}; the run goes on when more are allowed: --on-error skip:N "
            "(on_error='skip', max_rejects=N)"
        )


def open_plan(folder: WorkFolder, plan: Plan, options: EncodeOptions) -> tuple[Plan, list[int]]:
    """The plan to follow, and the sources whose files have another time than in the work folder.

    The parts of the work folder's plan are kept when it is of the same run, so that its pieces fit.
    Raises ResumeError when it is of another run and may not be overwritten.
    """
    if os.path.lexists(folder("plan.json")):
        try:
            old = Plan.read(folder, plan)
            difference = old.difference(plan)
        except ResumeError as error:
            difference = str(error)
        if not difference and all(plan.fingerprints):
            return replace(plan, parts=old.parts), old.touched(plan)
        if difference and not options.overwrite:
            raise _other_run(folder, difference)
        folder.clear(keep=("lock",))
    else:
        strange = set(os.listdir(folder.path)) - _OWN_FILES
        if strange:
            raise OutputError(
                f"{folder.path} has no plan but {sorted(strange)[0]!r}: it is no work folder of "
                "tokpack; move it away, or choose another output"
            )
    folder.write_json("plan.json", plan.to_json())
    return plan, []


def _other_run(folder: WorkFolder, difference: str) -> ResumeError:
    return ResumeError(
        f"{folder.path} holds an unfinished run, which is not this one: {difference}. "
        "Finish that run, choose another output, or discard it with "
        "--overwrite (overwrite=True)"
    )


@dataclass(frozen=True)
class ResumeState:
    """What earlier runs have left: pieces by their ids, and of streams that were read to their end
    the number of segments and the checksums of the file, by part. ``runs`` is how many there were.
    """

    pieces: dict[PieceId, Piece]
    segments: dict[int, int]
    stream_blocks: dict[int, str | None]
    runs: int


def found_pieces(job: Job, plan: Plan, touched: Sequence[int], journal: Journal) -> ResumeState:
    """The pieces of the journal that were made from the inputs as they are now.

    Each source of ``touched``, whose file has another time than before, is compared with the
    checksums in the journal. ResumeError where its content has changed; where the journal has no
    checksum of it, its pieces are left out. Workers check the files of the pieces later. Spills
    that hold no piece are removed.
    """
    found = _in_journal(job, journal)
    for source in touched:
        for part in job.parts_of[source]:
            if not _is_as_it_was(job, found, source, part):
                if not job.options.overwrite:
                    name = job.sources[source].name
                    raise _other_run(job.folder, f"the input {name} has changed since")
                job.folder.clear(keep=("lock", NAME))
                job.folder.write_json("plan.json", plan.to_json())
                journal.clear()
                journal.write({"run": found.runs})
                return ResumeState({}, {}, {}, found.runs)
    for source in touched:
        _forget_unknown(job, found, source)
    if touched:
        # With the new times, so that these sources are not compared again.
        job.folder.write_json("plan.json", plan.to_json())
        journal.write({"forget": sorted(_parts_without(job, found))})
    for part, count in found.segments.items():
        for key in [key for key in found.pieces if key[0] == part and key[1] >= count]:
            del found.pieces[key]
    if job.options.limit is not None:  # how many records are left for a part depends on all before
        _forget(found, range(_first_incomplete(job, found), len(job.parts)))
    used = {piece.stored.place for piece in found.pieces.values() if piece.stored is not None}
    for name in os.listdir(job.folder.path):
        if name.startswith(SPILL) and name.partition(".")[0] not in used:
            job.folder.remove_file(name)
    return found


def _in_journal(job: Job, journal: Journal) -> ResumeState:
    """The newest entry of every piece, and the ends of streams."""
    found, runs = ResumeState({}, {}, {}, 0), 0
    with closing(journal.read()) as entries:
        for entry in entries:
            try:
                if "piece" in entry:
                    piece = Piece.from_json(entry["piece"], job)
                    found.pieces[piece.id] = piece
                elif "stream" in entry:
                    number, count, sums = (entry["stream"][k] for k in StreamEnd._fields)
                    found.segments[int(number)] = int(count)
                    found.stream_blocks[int(number)] = sums
                elif "forget" in entry:
                    _forget(found, entry["forget"])
                elif "run" in entry:
                    runs = int(entry["run"]) + 1
            except (LookupError, TypeError, ValueError, OverflowError, AssertionError):
                break  # of another version of tokpack, or worse: what follows is as good as lost
    journal.write({"run": runs})
    return replace(found, runs=runs)


def _known_sums(job: Job, found: ResumeState, source: int, part: int) -> str | None:
    """The checksums of what a part has read of a source; None where they are not known."""
    if job.parts[part].kind == "stream":
        return found.stream_blocks.get(part)
    piece = found.pieces.get((part, 0))
    return None if piece is None else piece.blocks[source - job.sources_of(part).start]


def _is_as_it_was(job: Job, found: ResumeState, source: int, part: int) -> bool:
    """Whether what a part has read of a source has the same checksums; True without checksums."""
    sums, own = _known_sums(job, found, source, part), job.sources[source]
    if sums is None:
        return True
    if job.parts[part].kind in ("whole", "files", "stream"):
        return sums == block_checksums(own, 0, own.size)
    return sums == job.block_checksums(part)


def _forget_unknown(job: Job, found: ResumeState, source: int) -> None:
    """Leave out the pieces of a touched source that have no checksums to compare."""
    parts = job.parts_of[source]
    told = [part for part in parts if _known_sums(job, found, source, part) is not None]
    # A byte range can be checked by its own blocks; other kinds of parts only all together.
    if len(told) < len(parts) and job.parts[parts.start].kind != "bytes":
        told = []
    _forget(found, sorted(set(parts) - set(told)))


def _forget(found: ResumeState, parts: Sequence[int]) -> None:
    gone = set(parts)
    for key in [key for key in found.pieces if key[0] in gone]:
        del found.pieces[key]
    for part in gone:
        found.segments.pop(part, None)
        found.stream_blocks.pop(part, None)


def _parts_without(job: Job, found: ResumeState) -> set[int]:
    """The parts without any piece."""
    return set(range(len(job.parts))) - {number for number, _ in found.pieces}


def _first_incomplete(job: Job, found: ResumeState) -> int:
    """The first part that lacks pieces; the number of parts where none does."""
    streams = {number for number, _ in found.pieces if job.parts[number].kind == "stream"}
    missing = _parts_without(job, found) | (streams - set(found.segments))
    return min(missing, default=len(job.parts))


def _check_inputs(plan: Plan, manifest: Manifest, prefix: str, contents: dict[int, str]) -> None:
    """Raise OutputError where an input is not, or may not be, what a dataset was made from.

    ``contents`` keeps the checksums of the inputs that had to be read.
    """
    for number, (source, entry) in enumerate(zip(plan.sources, manifest.inputs, strict=True)):
        mtime, content = entry.get("mtime_ns"), entry.get("content")
        if source.mtime_ns == mtime:
            continue
        if isinstance(content, str):
            if number not in contents:
                _log.warning("%s has another time: comparing its content", source.name)
                contents[number] = content_checksum(block_checksums(source, 0, source.size))
            same = content == contents[number]
        else:  # of an earlier version of tokpack: only an older file is surely the same
            same = mtime is None and source.mtime_ns < _made_at(manifest)
        if not same:
            changed = "has changed" if isinstance(content, str) else "may have changed"
            raise OutputError(
                f"{shown(bin_path(prefix))} was made from {source.name}, which {changed} since "
                "(its size is the same, its time is not): replace the dataset with --overwrite "
                "(overwrite=True), or choose another output"
            )


def _made_at(manifest: Manifest) -> int:
    """When a dataset was made, in ns; 0 where the manifest does not tell."""
    try:
        return int(datetime.fromisoformat(manifest.created).timestamp()) * 1_000_000_000
    except (ValueError, OverflowError):
        return 0


def _size(path: str) -> int | None:
    found = identity(path)
    return found.size if found else None

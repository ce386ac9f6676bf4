"""What is there when a run starts: a finished dataset, an unfinished run, somebody else's files."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from tokpack.encoding.folder import checksum_of
from tokpack.encoding.piece import Piece
from tokpack.encoding.plan import Plan
from tokpack.encoding.rejects import rejects_are_whole
from tokpack.errors import FormatError, InputError, OutputError, ResumeError
from tokpack.files.durable import UNFINISHED
from tokpack.indexed import (
    Manifest,
    bin_path,
    idx_path,
    trace_path,
)
from tokpack.sources import block_checksums, content_checksum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokpack.encoding.folder import WorkFolder
    from tokpack.encoding.options import EncodeOptions
    from tokpack.encoding.piece import Job

_log = logging.getLogger(__name__)
_OWN_FILES = frozenset(("lock", "lock.probe", f"plan.json{UNFINISHED}"))


def existing(
    plan: Plan, prefixes: Mapping[str, str], options: EncodeOptions
) -> list[Manifest] | None:
    """The manifests of the datasets, if they are finished and what ``plan`` would make.

    Raises InputError where they have more bad records than the options allow, and OutputError where
    an input has changed since, or may have: by its content where its time is another.
    """
    if options.overwrite or not all(plan.fingerprints):  # a pipe cannot be recognised
        return None
    manifests = []
    contents: dict[int, str] = {}
    for key, prefix in prefixes.items():
        try:
            manifest = Manifest.load(prefix)
        except (InputError, FormatError):
            return None
        sizes = (manifest.bin["bytes"], manifest.idx["bytes"])
        if not plan.made(manifest) or manifest.options.get("key") != key:
            return None
        if sizes != (_size(bin_path(prefix)), _size(idx_path(prefix))):
            return None
        if options.trace and not _has_trace(manifest, prefix):
            return None
        _check_inputs(plan, manifest, prefix, contents)
        check_budget(manifest.rejected, options, prefix)
        manifests.append(manifest)
    return manifests


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
            old = Plan.from_json(folder.read_json("plan.json"))
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
        "Finish that run, choose another output, or discard it with overwrite (--overwrite)"
    )


def known_pieces(job: Job, plan: Plan, touched: Sequence[int]) -> dict[int, Piece]:
    """The pieces that an earlier run has described, and that are of the inputs as they are now.

    What was read of a source that was ``touched`` is compared with the checksums of its blocks.
    Raises ResumeError where it has changed; pieces of which nobody can tell are left out.
    """
    pieces = {}
    for number in range(len(job.parts)):
        piece = Piece.read(job, number)
        if piece is not None and rejects_are_whole(job, piece):
            pieces[number] = piece
    for source in touched:
        own = job.parts_of[source]
        known = [number for number in own if number in pieces]
        for number in known:
            if pieces[number].blocks not in (None, job.block_checksums(number)):
                if job.options.overwrite:
                    return _nothing(job, plan)
                name = job.sources[source].name
                raise _other_run(job.folder, f"the input {name} has changed since")
        # A range of bytes has the checksums of all that it depends on, other parts only together.
        told = [number for number in known if pieces[number].blocks is not None]
        if len(told) < len(own) and job.parts[own.start].kind != "bytes":
            told = []
        for number in set(known) - set(told):
            job.folder.remove_file(f"{number:06d}.json")
            del pieces[number]
    if touched:
        # With the new times, so that these sources are not compared again.
        job.folder.write_json("plan.json", plan.to_json())
    return pieces


def _nothing(job: Job, plan: Plan) -> dict[int, Piece]:
    """Remove what an earlier run left. Returns no pieces."""
    job.folder.clear(keep=("lock",))
    job.folder.write_json("plan.json", plan.to_json())
    return {}


def is_whole(job: Job, piece: Piece) -> bool:
    """Whether the files of a piece are what its description says, byte for byte."""
    return all(
        checksum_of(job.folder.piece(piece.number, track)) == checksum
        for track, checksum in zip(job.tracks, piece.checksums, strict=True)
    )


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
                f"{bin_path(prefix)} was made from {source.name}, which {changed} since (its size "
                "is the same, its time is not): replace the dataset with overwrite (--overwrite), "
                "or choose another output"
            )


def _made_at(manifest: Manifest) -> int:
    """When a dataset was made, in ns; 0 where the manifest does not tell."""
    try:
        return int(datetime.fromisoformat(manifest.created).timestamp()) * 1_000_000_000
    except (ValueError, OverflowError):
        return 0


def _has_trace(manifest: Manifest, prefix: str) -> bool:
    return manifest.trace is not None and manifest.trace["bytes"] == _size(trace_path(prefix))


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return -1

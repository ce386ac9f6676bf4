"""What is there when a run starts: a finished dataset, an unfinished run, somebody else's files."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import xxhash

from tokpack.encoding.piece import Piece
from tokpack.encoding.plan import Plan
from tokpack.errors import FormatError, InputError, OutputError, ResumeError
from tokpack.files.durable import UNFINISHED
from tokpack.indexed import (
    Manifest,
    bin_path,
    idx_path,
    trace_path,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokpack.encoding.folder import WorkFolder
    from tokpack.encoding.options import EncodeOptions
    from tokpack.encoding.piece import Job

_OWN_FILES = frozenset(("lock", "lock.probe", f"plan.json{UNFINISHED}"))


def existing(
    plan: Plan, prefixes: Mapping[str, str], options: EncodeOptions
) -> list[Manifest] | None:
    """The manifests of the datasets, if they are finished and what ``plan`` would make.

    Raises InputError where they have more bad records than the options allow.
    """
    if options.overwrite or not all(plan.fingerprints):  # a pipe cannot be recognised
        return None
    manifests = []
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


def open_plan(folder: WorkFolder, plan: Plan, options: EncodeOptions) -> Plan:
    """The plan to follow.

    That of the work folder is followed when it is of the same run, so that its pieces fit. Raises
    ResumeError when it is of another run and may not be overwritten.
    """
    written = folder.read_json("plan.json")
    if written is None:
        strange = set(os.listdir(folder.path)) - _OWN_FILES
        if strange:
            raise OutputError(
                f"{folder.path} has no plan but {sorted(strange)[0]!r}: it is no work folder of "
                "tokpack; move it away, or choose another output"
            )
    else:
        try:
            old = Plan.from_json(written)
            difference = old.difference(plan)
        except (KeyError, TypeError, AttributeError):
            difference = "its plan cannot be understood"
        if not difference and all(plan.fingerprints):
            return replace(plan, parts=old.parts)
        if difference and not options.overwrite:
            raise ResumeError(
                f"{folder.path} holds an unfinished run, which is not this one: {difference}. "
                "Finish that run, choose another output, or discard it with overwrite (--overwrite)"
            )
        folder.clear(keep=("lock",))
    folder.write_json("plan.json", plan.to_json())
    return plan


def known_pieces(job: Job) -> dict[int, Piece]:
    """The pieces that an earlier run has described."""
    pieces = {}
    for number in range(len(job.parts)):
        value = job.folder.read_json(f"{number:06d}.json")
        try:
            pieces[number] = Piece.from_json(value)
        except (TypeError, KeyError, AttributeError):
            continue
    return pieces


def is_whole(job: Job, piece: Piece) -> bool:
    """Whether the files of a piece are what its description says, byte for byte."""
    sizes = piece.extents[-1][1:] if piece.extents else (0,) * len(job.tracks)
    for track, size, checksum in zip(job.tracks, sizes, piece.checksums, strict=True):
        path = job.folder.piece(piece.number, track)
        if _size(path) != size or _checksum(path) != checksum:
            return False
    if not piece.rejected:
        return True
    try:
        with open(job.folder.piece(piece.number, "rejects.jsonl"), "rb") as file:
            return sum(line.endswith(b"\n") for line in file) == piece.rejected
    except FileNotFoundError:
        return False


def _has_trace(manifest: Manifest, prefix: str) -> bool:
    return manifest.trace is not None and manifest.trace["bytes"] == _size(trace_path(prefix))


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return -1


def _checksum(path: str) -> str:
    state = xxhash.xxh3_64()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            state.update(block)
    return state.hexdigest()

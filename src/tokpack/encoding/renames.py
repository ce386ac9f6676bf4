"""The last moment of a run: what is complete in the work folder gets its names, all or nothing.

``commit.json`` says what is complete, with checksums; where it goes is computed here. A run that
was stopped among the renames is completed by the next one, if all still is what was written.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from tokpack.encoding.folder import WorkFolder
from tokpack.encoding.outputs import output_kinds, piece_names, rejects_path
from tokpack.encoding.piece import JOINED, joined_names
from tokpack.errors import InputError, OutputError, ResumeError
from tokpack.files.durable import cannot_write, identity, remove_file, rename, sync_folder
from tokpack.files.outputs import check_replaceable
from tokpack.indexed import (
    FileDigest,
    bin_path,
    has_digest,
    idx_path,
    manifest_path,
)
from tokpack.indexed.table import dropped_path, table_path
from tokpack.indexed.track import track_path
from tokpack.stores.outputs import check_unchanged

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tokpack.encoding.options import EncodeOptions
    from tokpack.encoding.piece import Job
    from tokpack.files.outputs import Kind
    from tokpack.stores.storage import Version

REJECTS = "rejects.jsonl"
COMMIT = "commit.json"


def staged(key: str, kind: str, name: str = JOINED) -> str:
    """The name in the work folder of a file of one key's dataset.

    ``kind`` is ``ids`` (the .bin), ``idx``, the name of a track, ``table``, ``dropped`` or
    ``manifest.json``.
    ``name`` is that of the joined files; of several files the manifest without it is that of all.
    """
    return f"{name}.{WorkFolder.track(key, kind)}"


def write_commit(
    job: Job, versions: Mapping[str, Version], files: Mapping[str, FileDigest]
) -> None:
    """Declare the run complete: ``files``, by their names in the work folder, get their names.

    ``versions`` of the outputs were looked at. Raises OutputError where one is another by now.
    """
    folder, options = job.folder, job.options
    targets = [path for name, path in _targets(options, len(job.files)).items() if name in files]
    there = {path: version for path, version in versions.items() if version is not None}
    replaced = {**{path: versions.get(path) for path in targets}, **there}
    check_unchanged(replaced)
    by_name = {os.path.basename(path): version for path, version in replaced.items()}
    prefixes = {key: os.path.basename(name) for key, name in options.output_names.items()}
    folder.write_json(COMMIT, {"prefixes": prefixes, "files": dict(files), "replaces": by_name})


def finish(job: Job, *, resumed: bool = False) -> bool:
    """Give the staged files their names, manifests last, and remove the work folder.

    Called again after a crash, with ``resumed``, it does what is left. False where there is nothing
    to complete: the run is not that far, or what it had made is damaged and is to be made again.
    Raises ResumeError for the commit of another run, OutputError where another file has taken the
    name of an output.
    """
    folder, options, count = job.folder, job.options, len(job.files)
    commit = folder.read_json(COMMIT)
    if commit is None:
        return False
    files = _checked(job, commit)
    targets = {
        folder(name): path for name, path in _targets(options, count).items() if name in files
    }
    waiting = {source: path for source, path in targets.items() if os.path.lexists(source)}
    if resumed:
        for source, path in targets.items():
            digest = files[os.path.basename(source)]
            if _is(source if source in waiting else path, digest):
                continue
            if len(waiting) == len(targets):
                folder.remove_file(COMMIT)
                return False
            raise OutputError(
                f"{path} is not what the run wrote, which was stopped while it gave names: remove "
                f"{', '.join(p for p in targets.values() if p not in waiting.values())} and "
                f"{folder.path}, and run again"
            )
    # With --overwrite this is a new request: it may replace what has come since, by the same rule.
    kinds = output_kinds(options, count) if resumed and options.overwrite else {}
    _check_targets(waiting, commit["replaces"], kinds)
    # An old dataset goes before the new one comes: no reader sees the index of one with the
    # tokens of the other.
    old = [path for path in reversed(waiting.values()) if path.endswith((".json", ".idx"))]
    for path in [*old, *_stale(options, commit["replaces"], targets.values())]:
        remove_file(path)
    for source, path in waiting.items():
        with cannot_write(path):
            rename(source, path, fsync=False)
    home = os.path.dirname(os.path.abspath(folder.path))
    with cannot_write(home):
        sync_folder(home)
    folder.remove()
    return True


def take_back(folder: WorkFolder, options: EncodeOptions, count: int) -> None:
    """Remove what a run of ``count`` files had named that was stopped among the renames.

    It cannot be completed, since nothing says that it is the run that is asked for now.
    """
    files = (folder.read_json(COMMIT) or {}).get("files", {})
    targets = [(name, path) for name, path in _targets(options, count).items() if name in files]
    named = [(name, path) for name, path in targets if not os.path.lexists(folder(name))]
    if len(named) < len(targets):  # else it is a whole dataset
        for name, path in reversed(named):
            if _is(path, files[name]):
                remove_file(path)


def _targets(options: EncodeOptions, count: int) -> dict[str, str]:
    """Where each file of the work folder goes, in the order of the renames.

    ``count`` is how many .bin files a dataset has.
    """
    targets, manifests = {}, {}
    for key, prefix in options.output_names.items():
        for name, piece in zip(joined_names(count), piece_names(prefix, count), strict=True):
            targets[staged(key, "table", name)] = table_path(piece)
            targets[staged(key, "dropped", name)] = dropped_path(piece)
            for track in options.token_tracks:
                targets[staged(key, track, name)] = track_path(piece, track)
            targets[staged(key, "ids", name)] = bin_path(piece)
            targets[staged(key, "idx", name)] = idx_path(piece)
            manifests[staged(key, "manifest.json", name)] = manifest_path(piece)
    for key, prefix in options.output_names.items():
        name = staged(key, "manifest.json")
        manifests[name] = manifest_path(prefix)
    return {**targets, REJECTS: rejects_path(options), **manifests}


def _stale(
    options: EncodeOptions, replaced: Mapping[str, Any], targets: Collection[str]
) -> list[str]:
    """Files of a dataset that is replaced, of which the new one has none; manifests first."""
    stale = [rejects_path(options)]
    for prefix in options.output_names.values():
        whole = os.path.basename(prefix)
        names_of_dataset = re.compile(re.escape(whole) + r"(-\d{5,}-of-\d{5,})?\.[a-z.]+")
        home = prefix[: len(prefix) - len(whole)]
        stale += [home + name for name in replaced if names_of_dataset.fullmatch(name)]
    left = (path for path in stale if path not in targets)
    same = [path for path in left if _identity(path) == replaced.get(os.path.basename(path))]
    return sorted(same, key=lambda path: not path.endswith((".json", ".idx")))


def _checked(job: Job, commit: dict[str, Any]) -> dict[str, FileDigest]:
    """The files of a commit. Raises ResumeError where it is not one of this run."""
    folder, options = job.folder, job.options
    expected = {key: os.path.basename(name) for key, name in options.output_names.items()}
    prefixes, files, replaced = (commit.get(name) for name in ("prefixes", "files", "replaces"))
    if prefixes != expected:
        raise ResumeError(
            f"{folder.path} holds a run that is done but for the names of its outputs, which are "
            f"others than {', '.join(map(repr, expected.values()))}: give the names as before, or "
            "remove it"
        )
    possible = _targets(options, len(job.files)).keys()
    needed = {name for name in possible if not name.endswith((".dropped", REJECTS))}
    if not options.has_table:
        needed = {name for name in needed if not name.endswith(".table")}
    if (
        not isinstance(files, dict)
        or not isinstance(replaced, dict)
        or not needed <= files.keys() <= possible
        or not all(isinstance(digest, dict) for digest in files.values())
    ):
        raise ResumeError(
            f"{folder(COMMIT)} is not what a run writes: remove {folder.path} and run again"
        )
    return files


def _check_targets(
    waiting: Mapping[str, str], replaced: Mapping[str, Any], kinds: Mapping[str, Kind]
) -> None:
    """Raise OutputError where a target is neither free nor what the commit found there.

    What has come since may be replaced if it is of the ``kinds`` that tokpack makes.
    """
    for path in waiting.values():
        now = _identity(path)
        if now not in (None, replaced.get(os.path.basename(path))):
            if path in kinds:
                check_replaceable(path, kinds[path], overwrite=True)
                continue
            raise OutputError(
                f"{path} was put there while the run worked: move it away, or replace it with "
                "--overwrite (overwrite=True)"
            )


def _identity(path: str) -> list[int] | None:
    """What the commit says of a file: its identity, or a link's own; None where there is none."""
    return list(identity(path, follow_links=False) or ()) or None


def _is(path: str, digest: FileDigest) -> bool:
    try:
        return not os.path.islink(path) and has_digest(path, digest)
    except InputError:
        return False

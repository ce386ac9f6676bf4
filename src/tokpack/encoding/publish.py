"""The last step of a run: the complete files in the work folder get their names, all or none.

``commit.json`` lists the complete files with their checksums; where each goes is computed here. If
a run is stopped between the renames, the next one compares all files and renames the rest.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from tokpack.dataset import (
    FileDigest,
    Manifest,
    bin_path,
    has_digest,
    idx_path,
    manifest_path,
    track_path,
)
from tokpack.dataset.outputs import dataset_outputs
from tokpack.dataset.table import dropped_path, table_path
from tokpack.encoding.folder import WorkFolder
from tokpack.encoding.piece import JOINED, joined_names
from tokpack.errors import FormatError, InputError, OutputError, ResumeError, option
from tokpack.storage import check_unchanged, head, is_url, look
from tokpack.storage.disk import (
    Kind,
    cannot_write,
    check_replaceable,
    identity,
    remove_file,
    rename,
    sync_folder,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tokpack.encoding.options import EncodeOptions
    from tokpack.encoding.piece import Job
    from tokpack.encoding.plan import Plan
    from tokpack.storage import Version
    from tokpack.storage.disk import Output


_REJECT = re.compile(rb'\{"source": "(?:[^"\\]|\\.)*", "line": \d+, "reason": "')
_HEAD_BYTES = 1 << 16
_PIECE = r"-\d{5,}-of-\d{5,}"


def piece_names(prefix: str, files: int) -> list[str]:
    """The prefixes of the ``files`` .bin files of a dataset: just its own if there is one file."""
    if files == 1:
        return [prefix]
    return [f"{prefix}-{number:05d}-of-{files:05d}" for number in range(files)]


def is_piece_name(name: str, whole: str) -> bool:
    """Whether ``piece_names`` gives this name to one of several files of ``whole``."""
    return bool(re.fullmatch(re.escape(whole) + _PIECE, name))


def rejects_path(options: EncodeOptions) -> str:
    """The path of the file with the bad records of a run."""
    return options.output + ".rejects.jsonl"


def is_rejects(path: str) -> bool:
    """Whether a file begins like a list of bad records."""
    return _REJECT.match(head(path, _HEAD_BYTES)) is not None


REJECTS_KIND = Kind("a list of bad records", is_rejects, kept=False, beside=True)


def check_replaced(
    options: EncodeOptions, plan: Plan, *, files: int = 0, tells: bool = True
) -> dict[str, Version]:
    """The current version of each output that will be replaced or removed; None for no file.

    Old files are removed if the old dataset has another number of .bin files, and so other names.
    ``files`` is the number of .bin files, if not the plan's. With ``tells``, messages say how a
    finished dataset differs from the plan. Raises UsageError for an output that is an input, and
    OutputError for one that must not be replaced.
    """
    inputs = [
        *(source.path for source in plan.sources if source.memory is None),
        *(text[1:] for text in options.inputs if text.startswith("@")),  # lists of inputs
        *options.tokenizer_files,
    ]
    versions: dict[str, Version] = {}
    for prefix in options.output_names.values():
        outputs = _outputs(options, prefix, files or len(plan.files))
        outputs = outputs[:: -1 if is_url(prefix) else 1]
        difference = _found(plan, prefix) if tells and not options.overwrite else ""
        versions |= look(outputs, inputs, overwrite=options.overwrite, detail=difference)
    if options.on_error == "skip" or is_rejects(rejects_path(options)):
        rejects = [(rejects_path(options), REJECTS_KIND)]
        versions |= look(rejects, inputs, overwrite=options.overwrite)
    return versions


def _outputs(options: EncodeOptions, prefix: str, files: int) -> list[Output]:
    """The files of a new dataset, and of the old one those .bin files that nothing will replace."""
    pieces = piece_names(prefix, files) if files > 1 else []
    if options.overwrite:
        pieces += [name for name in _pieces_there(prefix) if name not in pieces]
    names = [prefix, *pieces]
    return [
        output
        for name in names
        for output in dataset_outputs(name, tracks=options.token_tracks, table=options.has_table)
    ]


def _pieces_there(prefix: str) -> list[str]:
    """The prefixes of the .bin files of a dataset that exists, if it has several of its own."""
    try:
        manifest = Manifest.load(prefix)
    except (InputError, FormatError):
        return []
    records = manifest.pieces or () if manifest.selection is None else ()  # a view's are others'
    whole = prefix.rpartition("/")[2]
    names = [record.prefix for record in records if is_piece_name(record.prefix, whole)]
    return [prefix[: len(prefix) - len(whole)] + name for name in names]


def _found(plan: Plan, prefix: str) -> str:
    """How the existing dataset differs from the plan, for a message; "" if unknown."""
    try:
        manifest = Manifest.load(prefix)
        difference = plan.manifest_difference(manifest) or plan.other_files(manifest.bin_files)
    except (InputError, FormatError):
        return ""
    return f" and is another dataset ({difference})" if difference else ""


REJECTS_FILE = "rejects.jsonl"
COMMIT = "commit.json"


def staged(key: str, kind: str, name: str = JOINED) -> str:
    """The name in the work folder of a file of one key's dataset.

    ``kind`` is ``ids`` (the .bin), ``idx``, the name of a track, ``table``, ``dropped`` or
    ``manifest.json``. ``name`` is that of the joined files. If there are several, their manifests
    have their names, and the manifest of the whole dataset has the name JOINED.
    """
    return f"{name}.{WorkFolder.track(key, kind)}"


def write_commit(
    job: Job, versions: Mapping[str, Version], files: Mapping[str, FileDigest]
) -> None:
    """Write commit.json: ``files``, by their names in the work folder, are complete from here on.

    It is the last file that a run writes there, so all files that it names are durable.
    ``versions`` are the versions of the outputs at the first look. OutputError if one has changed
    since.
    """
    folder, options = job.folder, job.options
    targets = targets_of(options, len(job.files), files).values()
    there = {path: version for path, version in versions.items() if version is not None}
    replaced = dict.fromkeys(targets) | there
    check_unchanged(replaced)
    by_name = {os.path.basename(path): version for path, version in replaced.items()}
    prefixes = {key: os.path.basename(name) for key, name in options.output_names.items()}
    folder.write_json(COMMIT, {"prefixes": prefixes, "files": dict(files), "replaces": by_name})


def finish(job: Job, *, resumed: bool = False) -> bool:
    """Rename the staged files to their final names, manifests last, and remove the work folder.

    Manifests come last because they make the other files a dataset: after a crash before that,
    nobody takes the files for one. With ``resumed`` an earlier run may have been stopped in here,
    and the rest is done. Returns False if there is nothing to complete: the run did not get that
    far, or its files are damaged and must be made again. Raises ResumeError for the commit of
    another run, OutputError if an output's name is taken by another file.
    """
    folder, options, count = job.folder, job.options, len(job.files)
    commit = folder.read_json(COMMIT)
    if commit is None:
        return False
    files = _checked(job, commit)
    targets = targets_of(options, count, files)
    waiting = {name: path for name, path in targets.items() if os.path.lexists(folder(name))}
    # After a crash, each file must match commit.json, under its old or its new name. If none has
    # been renamed yet, damage is harmless: everything is made again. If some have been, they may be
    # in use and the old dataset is gone, so only the user can decide.
    if resumed:
        for name, path in targets.items():
            if _is(folder(name) if name in waiting else path, files[name]):
                continue
            if len(waiting) == len(targets):
                folder.remove_file(COMMIT)
                return False
            raise OutputError(
                f"{path} is not what the run wrote, and the run was stopped while it renamed "
                "files: remove "
                f"{', '.join(p for p in targets.values() if p not in waiting.values())} and "
                f"{folder.path}, and run again"
            )
    # Resuming with --overwrite is a new request: it may also replace files that appeared after the
    # first run's look, if tokpack makes files of that kind.
    kinds: dict[str, Kind] = {}
    if resumed and options.overwrite:
        kinds[rejects_path(options)] = REJECTS_KIND
        for prefix in options.output_names.values():
            kinds |= _outputs(options, prefix, count)
    for path in waiting.values():
        now = _identity(path)
        if now in (None, commit["replaces"].get(os.path.basename(path))):
            continue
        if path not in kinds:
            raise OutputError(
                f"{path} appeared while the run worked: move it away, or replace it with "
                f"{option('overwrite', True)}"
            )
        check_replaceable(path, kinds[path], overwrite=True)
    # Old manifests and indices are removed before the first rename, so that no reader finds the
    # index of one dataset beside the tokens of the other.
    old = [path for path in reversed(waiting.values()) if path.endswith((".json", ".idx"))]
    for path in [*old, *_stale(options, commit["replaces"], targets.values())]:
        remove_file(path)
    # All outputs are in one folder, so one sync after the last rename is enough. The work folder is
    # removed only after that: if a power loss undoes some renames, commit.json is still there.
    for name, path in waiting.items():
        with cannot_write(path):
            rename(folder(name), path, fsync=False)
    home = os.path.dirname(os.path.abspath(folder.path))
    with cannot_write(home):
        sync_folder(home)
    folder.remove()
    return True


def take_back(folder: WorkFolder, options: EncodeOptions, count: int) -> None:
    """Remove the outputs of a run that was stopped between its renames and will not be resumed.

    ``count`` is the number of its .bin files. If all files were renamed, it is a whole dataset, and
    stays.
    """
    files = (folder.read_json(COMMIT) or {}).get("files", {})
    targets = targets_of(options, count, files)
    named = [one for one in targets.items() if not os.path.lexists(folder(one[0]))]
    if len(named) < len(targets):
        for name, path in reversed(named):
            if _is(path, files[name]):
                remove_file(path)


def targets_of(
    options: EncodeOptions, count: int, files: Collection[str] | None = None
) -> dict[str, str]:
    """The output path of each staged file, or of ``files``, in rename order.

    ``count`` is the number of .bin files.
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
        manifests[staged(key, "manifest.json")] = manifest_path(prefix)
    targets |= {REJECTS_FILE: rejects_path(options), **manifests}
    return {name: path for name, path in targets.items() if files is None or name in files}


def _stale(
    options: EncodeOptions, replaced: Mapping[str, Any], targets: Collection[str]
) -> list[str]:
    """The files of the old dataset that nothing replaces, manifests and indices first."""
    stale = [rejects_path(options)]
    for prefix in options.output_names.values():
        whole = os.path.basename(prefix)
        names_of_dataset = re.compile(rf"{re.escape(whole)}({_PIECE})?\.[a-z.]+")
        home = prefix[: len(prefix) - len(whole)]
        stale += [home + name for name in replaced if names_of_dataset.fullmatch(name)]
    left = (path for path in stale if path not in targets)
    same = [path for path in left if _identity(path) == replaced.get(os.path.basename(path))]
    return sorted(same, key=lambda path: not path.endswith((".json", ".idx")))


def _checked(job: Job, commit: dict[str, Any]) -> dict[str, FileDigest]:
    """The files that commit.json lists. Raises ResumeError if it is not of this run."""
    folder, options = job.folder, job.options
    expected = {key: os.path.basename(name) for key, name in options.output_names.items()}
    prefixes, files, replaced = (commit.get(name) for name in ("prefixes", "files", "replaces"))
    if prefixes != expected:
        raise ResumeError(
            f"{folder.path} has a finished run whose outputs have other names than "
            f"{', '.join(map(repr, expected.values()))}: give the same names as before, or remove "
            "it"
        )
    possible = targets_of(options, len(job.files)).keys()
    optional = [".dropped", REJECTS_FILE, *([] if options.has_table else [".table"])]
    needed = {name for name in possible if not name.endswith(tuple(optional))}
    if (
        not isinstance(files, dict)
        or not isinstance(replaced, dict)
        or not needed <= files.keys() <= possible
        or not all(isinstance(digest, dict) for digest in files.values())
    ):
        raise ResumeError(
            f"{folder(COMMIT)} was not written by a run: remove {folder.path} and run again"
        )
    return files


def _identity(path: str) -> list[int] | None:
    """The identity of a file, or of a link itself, as in commit.json; None for no file."""
    return list(identity(path, follow_links=False) or ()) or None


def _is(path: str, digest: FileDigest) -> bool:
    try:
        return not os.path.islink(path) and has_digest(path, digest)
    except InputError:
        return False

"""What a run finds when it starts: a finished dataset, an unfinished run, or other files."""

from __future__ import annotations

import errno
import logging
import os
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tokpack.dataset import Manifest, bin_path
from tokpack.dataset.outputs import sizes
from tokpack.encoding.coordinator import StreamEnd, read_journal
from tokpack.encoding.piece import SPILL, Piece
from tokpack.encoding.plan import Plan
from tokpack.encoding.publish import take_back
from tokpack.encoding.worker import TrackFiles, is_whole
from tokpack.errors import (
    FormatError,
    InputError,
    OutputError,
    Remark,
    ResumeError,
    StoreError,
    option,
)
from tokpack.machine import usable_cores
from tokpack.sources import block_checksums, content_checksum
from tokpack.storage import identity, shown
from tokpack.storage.disk import UNFINISHED

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Generator,
        Iterator,
        Mapping,
        Sequence,
    )

    from tokpack.encoding.folder import WorkFolder
    from tokpack.encoding.options import EncodeOptions
    from tokpack.encoding.piece import Job, PieceId

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_R = TypeVar("_R")
_BEAT_SECONDS = 1.0  # while one file is compared
_OWN_FILES = frozenset(("lock", "lock.probe", f"plan.json{UNFINISHED}"))


def existing(plan: Plan, options: EncodeOptions) -> list[Manifest] | None:
    """The manifests of the finished datasets of ``plan``, or None.

    Raises as ``are_made`` does.
    """
    done = complete_datasets(options)
    return done if done and are_made(plan, options, done) else None


def complete_datasets(options: EncodeOptions) -> list[Manifest]:
    """The manifests of the complete datasets with the outputs' names, on a disk or a store.

    Empty if one is missing, if a file does not have the size in its manifest, or if the datasets
    will be replaced. StoreError if a store does not answer.
    """
    manifests: list[Manifest] = []
    for prefix in () if options.overwrite else options.output_names.values():
        try:
            manifest = Manifest.load(prefix)
            files = list(sizes(prefix, manifest, tables=options.has_table))
        except StoreError:
            raise
        except (InputError, FormatError):
            return []
        if manifest.selection or (options.has_table and not manifest.options.get("trace")):
            return []
        if any((file := identity(path)) is None or file.size != size for path, size in files):
            return []
        manifests.append(manifest)
    return manifests


def are_made(plan: Plan, options: EncodeOptions, manifests: Sequence[Manifest]) -> bool:
    """Whether the datasets of ``complete_datasets`` are what ``plan`` would make.

    Raises InputError if they have more bad records than the options allow, and OutputError if an
    input has changed since, or may have. An input whose modification time differs is compared by
    its content.
    """
    if not plan.is_recognizable:
        return False
    if options.files and any(plan.other_files(one.bin_files) for one in manifests):
        return False
    contents: dict[int, str] = {}
    for (key, prefix), manifest in zip(options.output_names.items(), manifests, strict=True):
        if not plan.matches(manifest) or manifest.options.get("key") != key:
            return False
        _check_inputs(plan, manifest, prefix, contents)
        check_budget(manifest.rejected, options, shown(prefix))
    return True


def check_budget(rejected: int, options: EncodeOptions, where: str) -> None:
    """Raise InputError when there are more bad records than the options allow."""
    budget = 0 if options.on_error == "fail" else options.max_rejects
    if budget is not None and rejected > budget:
        raise InputError(
            f"{rejected} bad records, more than the {budget} allowed, listed in {where}; allow "
            "more to continue: --on-error skip:N (on_error='skip', max_rejects=N)"
        )


def open_plan(folder: WorkFolder, plan: Plan, options: EncodeOptions) -> tuple[Plan, list[int]]:
    """The plan to follow, and the numbers of the sources with a new modification time.

    If the work folder has a plan of the same run, its parts are used: this run may have another
    number of workers and cut its inputs differently, but the stored pieces fit only the old parts.
    Raises ResumeError if the plan is of another run that must not be overwritten.
    """
    if os.path.lexists(folder("plan.json")):
        try:
            old = Plan.read(folder, plan)
            difference = old.difference(plan)
            if options.files:
                difference = difference or plan.other_files(len(old.files))
        except ResumeError as error:
            difference = str(error)
        if not difference and plan.is_recognizable:
            return replace(plan, parts=old.parts, files=old.files), old.touched(plan)
        if difference and not options.overwrite:
            raise ResumeError(
                f"{folder.path} has another unfinished run: {difference}. Finish that run, choose "
                f"another output, or discard it with {option('overwrite', True)}"
            )
        if not difference:
            is_iterable = plan.sources[0].format == "documents"
            if is_iterable and not all(plan.fingerprints) and not options.overwrite:
                raise ResumeError(
                    f"{folder.path} has an unfinished run over an iterable without a resume_key, "
                    "so it cannot be resumed: discard it with overwrite=True. With a resume_key, a "
                    "name for the documents, a stopped run can resume"
                )
            if plan.has_unversioned_map:
                _log.warning(
                    Remark(
                        f"{folder.path} is discarded: {option('map')} may have changed since; with "
                        f"{option('map_version')} the run could have resumed"
                    )
                )
            take_back(folder, options, len(old.files))
        folder.clear()
    else:
        # A run writes its plan first (after the lock) and removes it last. So in a folder without a
        # plan nothing is from a run, and any other file must not be touched.
        strange = set(os.listdir(folder.path)) - _OWN_FILES
        if strange:
            raise OutputError(
                f"{folder.path} has no plan, but has {sorted(strange)[0]!r}: it is not a work "
                "folder of tokpack; move it away, or choose another output"
            )
    folder.write_json("plan.json", plan.to_json())
    return plan, []


@dataclass(frozen=True)
class ResumeState:
    """What earlier runs have left: pieces by (part, segment), and the ends of streams by part."""

    pieces: dict[PieceId, Piece] = field(default_factory=dict)
    streams: dict[int, StreamEnd] = field(default_factory=dict)

    def entries(self) -> Iterator[dict[str, Any]]:
        """The entries of a journal of this state."""
        yield from ({"piece": piece.to_json()} for piece in self.pieces.values())
        yield from ({"stream": end._asdict()} for end in self.streams.values())

    def lacks(self, part: int, kind: str) -> bool:
        """Whether a part has fewer pieces than it should have."""
        if kind == "stream" and part not in self.streams:
            return True
        count = self.streams[part].segments if kind == "stream" else 1
        return any((part, segment) not in self.pieces for segment in range(count))

    def drop_following(self, part: int) -> None:
        """Drop the pieces of a part and of all parts after it."""
        pieces = [key for key in self.pieces if key[0] >= part]
        streams = [number for number in self.streams if number >= part]
        for key in pieces:
            del self.pieces[key]
        for number in streams:
            del self.streams[number]


def resume(
    job: Job, touched: Sequence[int], joined: Sequence[TrackFiles], beat: Callable[[], None]
) -> ResumeState:
    """The pieces in the journal that are intact and were made from the current inputs.

    ``touched`` are the sources with a new modification time. Everything from the first part that
    has changed, or may have, is dropped, because what follows it may get another place. ``beat`` is
    called while files are read. Unused spills are removed. Raises InputError and OutputError.
    """
    state = _in_journal(job)
    _leave_out_changed(job, state, sorted(touched), beat)
    # An earlier run may have seen a longer version of a stream: drop the segments beyond its end.
    for part, end in state.streams.items():
        for key in [key for key in state.pieces if key[0] == part and key[1] >= end.segments]:
            del state.pieces[key]
    _leave_out_damaged(job, state, joined, beat)
    # With a limit, the number of records that a part may give depends on all parts before it, so
    # pieces after the first incomplete part are useless.
    if job.options.limit is not None:
        kinds = enumerate(part.kind for part in job.parts)
        state.drop_following(next((n for n, kind in kinds if state.lacks(n, kind)), len(job.parts)))
    used = {piece.stored.place for piece in state.pieces.values() if piece.stored is not None}
    for name in os.listdir(job.folder.path):
        if name.startswith(SPILL) and name.partition(".")[0] not in used:
            job.folder.remove_file(name)
    return state


def _in_journal(job: Job) -> ResumeState:
    """The last entry for each piece, and the ends of streams."""
    state = ResumeState()
    with closing(read_journal(job.folder)) as entries:
        for entry in entries:
            try:
                if "piece" in entry:
                    piece = Piece.from_json(entry["piece"], job)
                    state.pieces[piece.id] = piece
                else:
                    number, segments, blocks = (entry["stream"][n] for n in StreamEnd._fields)
                    end = StreamEnd(int(number), int(segments), blocks)
                    if job.parts[end.number].kind != "stream" or min(end[:2]) < 0:
                        break
                    state.streams[end.number] = end
            except (LookupError, TypeError, ValueError, OverflowError, AssertionError):
                break  # by another version of tokpack, or damaged: treat the rest as lost
    return state


def _leave_out_changed(
    job: Job, state: ResumeState, touched: Sequence[int], beat: Callable[[], None]
) -> None:
    """Drop the pieces whose input has changed in a touched source, or may have."""
    blocks_of_pieces = {number: piece.blocks for (number, _), piece in state.pieces.items()}
    blocks_of_pieces |= {
        n: [end.blocks]
        for n, end in state.streams.items()
        if end.blocks or n not in blocks_of_pieces
    }
    compared = _on_all_cores(
        lambda share: (
            share.blocks is not None
            and share.blocks == job.block_checksums(share.number, share.source)
        ),
        [share for source in touched for share in _shares(job, blocks_of_pieces, source)],
        beat,
    )
    with closing(compared):
        for share, same in compared:
            if not same:
                state.drop_following(share.first)
                name = job.sources[share.source].name
                _log.warning("%s has changed: it and what follows it are encoded again", name)
                break
    # A part without a stored piece has no checksum to compare. If its content has changed, later
    # parts of the same source may begin at another record now, so they cannot be trusted either.
    unsure = set[int]()
    for parts in (job.parts_of[source] for source in touched):
        gap = next((number for number in parts if number not in blocks_of_pieces), parts.stop)
        unsure.update(range(gap, parts.stop))
    # Such a part may get another size, and then all pieces after it in the joined files would have
    # to move: drop them. Pieces in spills have no place yet, and are kept.
    first = min(unsure, default=len(job.parts))
    for key, piece in list(state.pieces.items()):
        is_joined = piece.stored is not None and piece.stored.is_joined
        if key[0] in unsure or (is_joined and key[0] > first):
            del state.pieces[key]


class _Share(NamedTuple):
    """What a part has read of a source; if it has changed, parts from ``first`` on are redone."""

    source: int
    number: int
    first: int
    blocks: str | None  # the checksums of the blocks that it read; None: not known


def _shares(
    job: Job, blocks_of_pieces: Mapping[int, Sequence[str | None]], source: int
) -> list[_Share]:
    """The shares of a source to compare.

    A byte range depends only on its own blocks, any other part on all blocks of the source. So for
    other parts, if not all blocks are known, one share stands for the source and counts as changed.
    """
    parts = job.parts_of[source]
    by_range = job.parts[parts.start].kind == "bytes"
    shares = []
    for number in (number for number in parts if number in blocks_of_pieces):
        blocks = blocks_of_pieces[number][job.parts[number].sources.index(source)]
        shares.append(_Share(source, number, number if by_range else parts.start, blocks))
    is_known = len(shares) == len(parts) and all(share.blocks is not None for share in shares)
    return shares if by_range or is_known else [share._replace(blocks=None) for share in shares[:1]]


def _leave_out_damaged(
    job: Job, state: ResumeState, joined: Sequence[TrackFiles], beat: Callable[[], None]
) -> None:
    """Drop the pieces that do not match their checksums, for instance after a power loss."""
    pieces = list(state.pieces.values())
    checked = _on_all_cores(lambda piece: _is_whole(job, piece, joined), pieces, beat)
    damaged = [piece.id for piece, whole in checked if not whole]
    for key in damaged:
        del state.pieces[key]
    if damaged:
        _log.warning(
            "%s: parts of the stopped run are damaged or lost; they are made again",
            job.folder.path,
        )


def _on_all_cores(
    function: Callable[[_T], _R], items: Collection[_T], beat: Callable[[], None]
) -> Generator[tuple[_T, _R]]:
    """Each item with the result of ``function``, in order; ``beat`` is called each second."""
    pool = ThreadPoolExecutor(usable_cores())
    try:
        futures = [pool.submit(function, item) for item in items]
        for item, future in zip(items, futures, strict=True):
            while not future.done():
                beat()
                wait([future], _BEAT_SECONDS)
            beat()
            yield item, future.result()
    finally:
        # All threads must end before the run forks its workers: a fork copies locks, but only the
        # forking thread, so a lock held by another thread would stay locked in it for ever.
        pool.shutdown(cancel_futures=True)


def _is_whole(job: Job, piece: Piece, joined: Sequence[TrackFiles]) -> bool:
    assert piece.stored is not None
    if piece.stored.is_joined:
        return is_whole(joined[job.file_of(piece.number)], piece.stored, piece.sizes)
    try:
        spill = TrackFiles(job, piece.stored.place)
    except OutputError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
    with closing(spill):
        return is_whole(spill, piece.stored, piece.sizes)


def _check_inputs(plan: Plan, manifest: Manifest, prefix: str, contents: dict[int, str]) -> None:
    """Raise OutputError if an input has changed since a dataset was made from it, or may have.

    ``contents`` keeps the checksums of the inputs that had to be read, by their number.
    """
    for number, (source, entry) in enumerate(zip(plan.sources, manifest.inputs, strict=True)):
        mtime, content = entry.get("mtime_ns"), entry.get("content")
        if source.mtime_ns == mtime:
            continue
        if isinstance(content, str):
            if number not in contents:
                _log.warning("%s has a new modification time: comparing its content", source.name)
                contents[number] = content_checksum(block_checksums(source, 0, source.size))
            same = content == contents[number]
        else:  # a manifest of an earlier version: only an older input is certainly unchanged
            same = mtime is None and source.mtime_ns < _creation_time(manifest)
        if not same:
            changed = "has changed" if isinstance(content, str) else "may have changed"
            raise OutputError(
                f"{shown(bin_path(prefix))} was made from {source.name}, which {changed} since "
                "(its size is the same, its time is not): replace the dataset with "
                f"{option('overwrite', True)}, or choose another output"
            )


def _creation_time(manifest: Manifest) -> int:
    """When a dataset was made, in ns since the epoch; 0 if unknown."""
    try:
        return int(datetime.fromisoformat(manifest.created).timestamp()) * 1_000_000_000
    except (ValueError, OverflowError):
        return 0

"""One run: discover, plan, encode the parts, commit."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import sys
import threading
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from tokpack.apart import has_processes
from tokpack.dataset import Manifest, manifest_path
from tokpack.encoding.columns import as_planned
from tokpack.encoding.commit import stage
from tokpack.encoding.coordinator import Coordinator, Journal
from tokpack.encoding.engine import Processes, run_here
from tokpack.encoding.folder import UNFINISHED_SUFFIX, WorkFolder, create_own
from tokpack.encoding.part import BESIDE_BYTES, no_memory
from tokpack.encoding.piece import Job
from tokpack.encoding.plan import NAME as PLAN
from tokpack.encoding.plan import plan_run
from tokpack.encoding.publish import COMMIT, check_replaced, finish, staged
from tokpack.encoding.resume import (
    are_made,
    check_budget,
    complete_datasets,
    existing,
    open_plan,
    resume,
)
from tokpack.encoding.status import NAME, RunReporter
from tokpack.encoding.worker import Meter, Slots, TrackFiles
from tokpack.errors import FormatError, InputError, OutputError, Remark, TokenizerError, option
from tokpack.sources import read
from tokpack.storage.disk import cannot_write, replace_file, sync_data
from tokpack.storage.disk.lock import Lock
from tokpack.storage.objects.urls import is_url
from tokpack.tokenizers import first_documents, is_framed_elsewhere, self_check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType, TracebackType

    from tokpack.encoding.options import EncodeOptions
    from tokpack.encoding.piece import Pieces
    from tokpack.encoding.plan import Plan, PlannedRun
    from tokpack.encoding.setup import TokenizerSetup
    from tokpack.progress import Show
    from tokpack.sources import Documents, Source
    from tokpack.tokenizers import Tokenizer


# The self-check of a run: its first documents are encoded by the core and by the library.

_log = logging.getLogger(__name__)
_TIMED_BYTES = 1 << 17  # of documents that a slow tokenizer is timed on
_BATCHES = 8  # how many batches are searched for one that has documents


def check_first_documents(job: Job) -> None:
    """Raise TokenizerError where the core does not encode as the library does; WorkerError.

    It warns of a tokenizer that is not native, with its speed. It runs beside the workers; no run
    is committed before its end.
    """
    try:
        documents = _first_documents(job)
        tokenizer, mode = job.setup.tokenizer, job.options.special_tokens
        if not tokenizer.native:
            _warn_slow(tokenizer, documents, mode)
        elif documents is not None:
            self_check(tokenizer, documents.data, documents.spans, special_tokens=mode)
    except MemoryError as error:
        raise no_memory("the self-check of the first documents", error) from error


def _first_documents(job: Job) -> Documents | None:
    """The first batch that has documents.

    Two kinds of documents are left to the encoder: those from a pipe, which can be read only once,
    and those over BESIDE_BYTES, which would be in memory twice.
    """
    part = next((part for part in job.parts if not job.sources[part.source].is_pipe), None)
    if (
        part is None or job.types is not None or job.chat is not None
    ):  # what is encoded is not yet known
        return None
    key = job.options.keys[0]
    reading = read(
        job.sources[part.source],
        part,
        job.options.keys,
        max_document_bytes=min(job.options.max_document_bytes, BESIDE_BYTES),
    )
    # The worker that encodes this part says which is wrong, with its line.
    with suppress(InputError), closing(reading) as batches:
        for batch in islice(batches, _BATCHES):
            documents = batch.documents[key]
            if len(documents):
                return documents
    return None


def _warn_slow(tokenizer: Tokenizer, documents: Documents | None, mode: str) -> None:
    """Say that a tokenizer is slow, and how slow where there are documents enough."""
    speed = None if documents is None else _speed(tokenizer, documents, mode)
    _log.warning(
        "the tokenizer %s takes the slow path%s, not the native one: %s",
        tokenizer.name,
        f" (about {speed:.1f} MB/s a worker)" if speed else "",
        tokenizer.why_not_native,
    )


def _speed(tokenizer: Tokenizer, documents: Documents, mode: str) -> float | None:
    """MB/s over the first documents; None where they are too few to tell."""
    sample = first_documents(documents.data, documents.spans, _TIMED_BYTES)
    size = int((sample[:, 1] - sample[:, 0]).sum())
    if size < _TIMED_BYTES // 8:
        return None
    with suppress(TokenizerError):  # of a document that cannot be encoded the encoder says more
        encoder = tokenizer.encoder(dtype="int32", special_tokens=mode)
        began = time.perf_counter()
        encoder.encode(documents.data, sample)
        return size / 1e6 / (time.perf_counter() - began)
    return None


# The work of a run: all parts of a job become pieces in their places, in joined files.

SYNC_SECONDS = 2.0
_SLOTS_A_WORKER = 2
_SEGMENT_SLACK = 2  # blocks more than a segment has, at most, if no line is longer


@dataclass(frozen=True)
class EncodeResult:
    """The result of the work: pieces, checksums of the files of a stream, sums of the .bin."""

    pieces: Pieces
    stream_blocks: Mapping[int, str | None]  # by part
    sums: Mapping[str, bytes]  # of the blocks of each file of ids, by its name


class EncodingRun:
    """The work of one run; a context, which closes what it has opened.

    ``touched`` are the sources whose files have another time than in the plan of the work folder.
    ``beat`` is called now and then to show that the run is alive.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        touched: Sequence[int],
        *,
        workers: int,
        show: Show | None,
        beat: Callable[[], None],
    ) -> None:
        with ExitStack() as opened:
            self._job = job
            self._joined: list[TrackFiles] = []
            for name in job.joined:
                self._joined.append(_open_joined(job, name))
                opened.callback(self._joined[-1].close)
            resumed = resume(job, touched, self._joined, beat)
            self._journal = Journal(job.folder, resumed.entries())
            opened.callback(self._journal.close)
            if touched:  # with the new times, so that nothing is left out again
                job.folder.write_json(PLAN, plan.to_json())
            workers = self._useful(workers)
            self._meter = Meter(show, plan.bytes, workers)
            self._meter.add(list(resumed.pieces.values()), job.columns)
            self._slots = _slots_for(job, workers)
            slots = self._slots.count if self._slots else 0
            self._coordinator = Coordinator(
                job, resumed, self._journal, workers=workers, slots=slots
            )
            self._beat = beat
            self._ended = threading.Event()
            self._check = _Background(
                functools.partial(check_first_documents, job), "tokpack-check"
            )
            self._syncs = _Background(self._sync, "tokpack-sync")
            self._opened = opened.pop_all()

    def encode(self) -> EncodeResult:
        """Do what is left to do, and make it durable."""
        job, coordinator = self._job, self._coordinator
        # Whoever runs this is not limited: where templates run, there are workers' processes.
        if len(self._meter.shared) > 1 or (job.chat is not None and has_processes()):
            with Processes(job, self._meter.shared, self._slots) as processes:
                self._start()
                processes.run(coordinator, self._poll)
        else:
            self._start()
            run_here(job, self._meter.shared[0], coordinator, self._poll)
        self._check.join()
        self._check.check()
        self._meter.show("sync", now=True)
        self._ended.set()
        self._syncs.join()
        self._look()  # of a write that failed the system tells once, maybe in the last sync of all
        for joined, ends in zip(self._joined, coordinator.ends, strict=True):
            for path, file, end in zip(joined.paths, joined.files, ends, strict=True):
                with cannot_write(path):
                    os.ftruncate(file, end)
                    sync_data(file)
        return EncodeResult(coordinator.pieces, coordinator.stream_blocks, coordinator.digests())

    @property
    def is_worth_keeping(self) -> bool:
        """Whether there is anything that a later run could go on with, or a user look at."""
        column = self._job.key_column(0, "tokens")
        lists = self._job.options.on_error == "skip" and self._coordinator.rejected > 0
        return lists or any(piece.total(column) for piece in self._coordinator.pieces)

    def __enter__(self) -> EncodingRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._syncs.join()
        self._check.join()
        self._opened.close()

    def _useful(self, workers: int) -> int:
        """How many of the workers have something to do."""
        parts = self._job.parts
        is_linux = sys.platform == "linux"  # elsewhere workers do not inherit what is in memory
        if any(part.kind == "stream" for part in parts) and is_linux:
            return workers
        if not is_linux and any(source.memory is not None for source in self._job.sources):
            return 1
        return max(1, min(workers, len(parts)))

    def _start(self) -> None:
        # Threads come after the fork: a worker starts with one thread and no lock held.
        self._syncs.start()
        self._check.start()
        self._poll()

    def _poll(self) -> None:
        """Raise what went wrong elsewhere; show how far the run is."""
        self._look()
        self._meter.show("place" if self._coordinator.all_encoded else "encode")

    def _look(self) -> None:
        self._syncs.check()
        self._check.check()
        check_budget(self._coordinator.rejected, self._job.options, self._job.folder.path)

    def _sync(self) -> None:
        """Make files durable now and then, so that little is left at the end."""
        files = {
            path: file
            for joined in self._joined
            for path, file in zip(joined.paths, joined.files, strict=True)
        }
        files[self._journal.path] = self._journal.file
        while not self._ended.wait(SYNC_SECONDS):
            self._beat()
            for path, file in files.items():
                with cannot_write(path):
                    sync_data(file)


def _open_joined(job: Job, name: str) -> TrackFiles:
    """The joined files of a name, which are there when a worker opens them."""
    for track in job.tracks:
        path = job.folder(f"{name}.{track}")
        if not os.path.lexists(path):
            os.close(create_own(path))
    return TrackFiles(job.folder, name, job.tracks)


def _slots_for(job: Job, workers: int) -> Slots | None:
    """Shared memory for the segments of streams, where there are any, and others to encode them."""
    segments = [part.end for part in job.parts if part.kind == "stream"]
    if not segments or workers < 2 or sys.platform != "linux":
        return None
    return Slots(_SLOTS_A_WORKER * workers, max(segments) + _SEGMENT_SLACK * (1 << 20))


class _Background:
    """A thread that works beside the workers; what it raises is raised by ``check``."""

    def __init__(self, main: Callable[[], None], name: str) -> None:
        self._main = main
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def check(self) -> None:
        """Raise the error that ended the thread, if any."""
        if self._error is not None:
            raise self._error

    def join(self) -> None:
        """Wait for its end: Python must not exit while a thread is in native code."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._main()
        except BaseException as error:
            self._error = error


def encode(
    options: EncodeOptions, *, source: Source | None = None, progress: Show | None = None
) -> list[Manifest]:
    """Turn documents into a ``.bin/.idx`` dataset for each key, and return their manifests.

    A run that was stopped at any point goes on where it was when it is started again; one that is
    finished returns at once. ``source`` is an object of this process that is read in place of the
    inputs. ``progress`` is called a few times a second. What is worth a warning goes to the logger
    ``tokpack``. Raises a TokpackError (UsageError, InputError, RecordError, TokenizerError,
    OutputError, ResumeError or WorkerError), or what an iterable raises.
    """
    return encode_planned(lambda: plan_run(options, source), options, progress=progress)


def encode_planned(
    plan: Callable[[], PlannedRun],
    options: EncodeOptions,
    *,
    progress: Show | None = None,
    check: Callable[[], None] | None = None,
) -> list[Manifest]:
    """As ``encode``, for what ``plan`` returns, which is called when that is needed.

    Of a shard ``check`` is called before anything gets its name, and raises where it is no longer
    wanted. Several machines may make the same one at once: files without a manifest are an
    unfinished copy of it, and are replaced.
    """
    is_shard = check is not None
    if not is_url(options.output):
        # Without a manifest, what is there of a shard is an unfinished copy of the same bytes.
        paths = map(manifest_path, options.output_names.values())
        replaces = is_shard and not any(map(os.path.lexists, paths))
        return _encode(plan(), options, progress, replaces=replaces, check=check)
    from tokpack.encoding.deliver import Delivery  # no other run needs what sends

    with Delivery(options, check) as delivery:
        done = complete_datasets(options)
        planned = plan() if done else None
        if planned and are_made(planned.plan, options, done):
            delivery.discard()
            return done
        delivery.check_writable()
        planned = planned or plan()
        delivery.prepare(planned.plan)
        # What another plan, or another function, has left in the scratch folder is of no use.
        replaces = is_shard or planned.plan.has_unversioned_map
        manifests = _encode(planned, delivery.options, progress, replaces=replaces)
        delivery.send(planned.plan, manifests)
        return manifests


def _encode(
    planned: PlannedRun,
    asked: EncodeOptions,
    progress: Show | None,
    *,
    replaces: bool,
    check: Callable[[], None] | None = None,
) -> list[Manifest]:
    """A run whose output is on a disk; with ``replaces`` it overwrites what has its names."""
    plan, setup, workers = planned
    asked = as_planned(asked, plan)
    prefixes = asked.output_names
    options = replace(asked, overwrite=asked.overwrite or replaces)
    folder = WorkFolder(options.output + UNFINISHED_SUFFIX)
    if not os.path.exists(folder.path):
        done = existing(plan, asked)
        if done is not None:
            return done
        check_replaced(options, plan)
    with ends_on_sigterm(), _locked(folder, options) as beat:
        plan, touched = open_plan(folder, plan, options)
        types, chat = plan.options.get("columns"), plan.options.get("chat")
        read = folder, plan.sources, plan.parts
        job = Job(*read, setup, options, plan.files, types=types, chat=chat)
        is_staged = os.path.lexists(folder(COMMIT))
        if is_staged and touched and not _is_staged_from(plan, options, folder):
            folder.remove_file(COMMIT)
        if finish(job, resumed=True):  # it was stopped in its last moment
            return [Manifest.load(prefix) for prefix in prefixes.values()]
        done = existing(plan, asked)
        if done is not None:
            folder.remove()
            return done
        versions = check_replaced(options, plan)
        _warn_of_setup(setup, options)
        if plan.has_unversioned_map:
            _log.warning(
                Remark(
                    f"{option('map')} without {option('map_version')}: if this run is stopped, the "
                    "next one begins anew"
                )
            )
        with (
            _interruptible(plan),
            _reporter(folder, progress) as show,
            EncodingRun(job, plan, touched, workers=workers, show=show, beat=beat) as run,
        ):
            try:
                finished = run.encode()
                manifests = stage(job, plan, finished, versions)
            except Exception:  # also what an iterable raises
                if not run.is_worth_keeping:
                    folder.remove()
                raise
        if check is not None:
            try:
                check()
            except OutputError:
                folder.remove()
                raise
        finish(job)
        return manifests


@contextlib.contextmanager
def _interruptible(plan: Plan) -> Iterator[None]:
    """Let Ctrl-C say so where the run cannot go on later."""
    try:
        yield
    except KeyboardInterrupt:
        if plan.is_recognizable:
            raise
        raise KeyboardInterrupt("the same command begins anew") from None


def _is_staged_from(plan: Plan, options: EncodeOptions, folder: WorkFolder) -> bool:
    """Whether a run has staged its datasets, or named them, from the inputs as they are now."""
    try:
        manifests = []
        for key, prefix in options.output_names.items():
            staged_path = folder(staged(key, "manifest.json"))
            manifests.append(
                Manifest.load(
                    staged_path.removesuffix(".json") if os.path.lexists(staged_path) else prefix
                )
            )
        return are_made(plan, options, manifests)
    except (InputError, FormatError, OutputError):
        return False


def _warn_of_setup(setup: TokenizerSetup, options: EncodeOptions) -> None:
    """Warn of ids around documents that are probably not meant so."""
    tokenizer = setup.tokenizer
    for note in tokenizer.notes:
        _log.warning("%s", note)
    is_plain = setup.has_usual_frame(options)
    if is_plain and options.add_special_tokens:
        _log.warning("the tokenizer %s adds no special tokens of its own", tokenizer.name)
    elif is_plain and is_framed_elsewhere(tokenizer, options.tokenizer_type):
        _log.warning(
            Remark(
                f"documents are without the special tokens that {options.tokenizer_type} puts "
                f"around them in other programs; {option('add_special_tokens', True)} adds them"
            )
        )
    if tokenizer.eod_id in setup.frame.before:
        _log.warning(
            "documents begin with the EOD %d: masks and positions that look for EOD see it there",
            tokenizer.eod_id,
        )


def _reporter(folder: WorkFolder, progress: Show | None) -> RunReporter:
    """Writes how far the run is into the work folder, as long as that is not removed."""

    def write(content: bytes) -> None:
        if os.path.exists(folder("lock")):
            replace_file(folder(NAME), [content], fsync=False)

    return RunReporter(write, progress)


@contextlib.contextmanager
def _locked(folder: WorkFolder, options: EncodeOptions) -> Iterator[Callable[[], None]]:
    """Lock the work folder, and those that runs with only one of these outputs would have.

    Gives a function to call now and then, which shows others that the run is alive. OutputError.
    """
    others = {
        os.path.abspath(prefix) + UNFINISHED_SUFFIX for prefix in options.output_names.values()
    }
    others -= {os.path.abspath(folder.path)}
    locks = []
    with contextlib.ExitStack() as stack:
        for place in [folder, *map(WorkFolder, sorted(others))]:
            place.make()
            locks.append(stack.enter_context(Lock(place.path)))
            if place is not folder:
                stack.callback(_leave, place)

        def beat() -> None:
            for lock in locks:
                lock.beat()

        yield beat


def _leave(folder: WorkFolder) -> None:
    """Remove a folder that was only made for its lock."""
    with contextlib.suppress(OSError):
        if os.listdir(folder.path) == ["lock"]:
            folder.remove()


@contextlib.contextmanager
def ends_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the run as Ctrl-C does: in order, so that it can go on later."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # another must not interrupt the end
        raise _Terminated

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except _Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Terminated(BaseException):
    pass

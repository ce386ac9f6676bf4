"""One run: discover, plan, encode the parts, commit."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from tokpack.apart import has_processes
from tokpack.dataset import Manifest, manifest_path
from tokpack.encoding.commit import stage
from tokpack.encoding.coordinator import Coordinator, Journal
from tokpack.encoding.engine import Processes, run_here
from tokpack.encoding.folder import UNFINISHED_SUFFIX, WorkFolder, create_own
from tokpack.encoding.kept import ALL
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
from tokpack.encoding.send import Sender
from tokpack.encoding.status import NAME, RunReporter
from tokpack.encoding.worker import Meter, Slots, TrackFiles
from tokpack.errors import FormatError, InputError, OutputError, Remark, TokenizerError, option
from tokpack.sources import read
from tokpack.storage import is_url
from tokpack.storage.disk import Lock, cannot_write, replace_file, sync_data
from tokpack.tokenizers import first_documents, is_framed_elsewhere, self_check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future
    from types import FrameType

    from tokpack.encoding.options import EncodeOptions
    from tokpack.encoding.plan import Plan, PlannedRun
    from tokpack.encoding.setup import TokenizerSetup
    from tokpack.progress import Show
    from tokpack.sources import Documents, Source
    from tokpack.tokenizers import Tokenizer


# The self-check of a run encodes its first documents in the core and with the tokenizer's own
# library, and compares the ids.

_log = logging.getLogger(__name__)
_TIMED_BYTES = 1 << 17  # of documents to time a slow tokenizer
_BATCHES = 8  # batches searched for one with documents


def check_first_documents(job: Job) -> None:
    """Raise TokenizerError if the core does not encode as the library does.

    Warns of a tokenizer that is not native, with its speed. Runs beside the workers; nothing is
    committed before it ends. WorkerError if there is not enough memory.
    """
    tokenizer, mode = job.setup.tokenizer, job.options.special_tokens
    if job.setup.is_checked:
        return
    try:
        documents = _first_documents(job)
        if not tokenizer.native:
            _warn_slow(tokenizer, documents, mode)
        elif documents is not None:
            self_check(tokenizer, documents.data, documents.spans, special_tokens=mode)
        job.setup.is_checked = documents is not None
    except MemoryError as error:
        raise no_memory("the self-check of the first documents", error) from error


def _first_documents(job: Job) -> Documents | None:
    """The documents of the first batch with any, or None if the encoder checks them itself.

    It does so for a pipe, which can be read only once, and for documents over BESIDE_BYTES, which
    would be in memory twice.
    """
    part = next((part for part in job.parts if not job.sources[part.source].is_pipe), None)
    if (
        part is None or job.types is not None or job.chat is not None
    ):  # only a worker knows the text of such records
        return None
    key = job.options.keys[0]
    reading = read(
        job.sources[part.source],
        part,
        job.options.keys,
        max_document_bytes=min(job.options.max_document_bytes, BESIDE_BYTES),
    )
    # The worker that encodes this part reports a bad input: it knows the line.
    with suppress(InputError), closing(reading) as batches:
        for batch in islice(batches, _BATCHES):
            documents = batch.documents[key]
            if len(documents):
                return documents
    return None


def _warn_slow(tokenizer: Tokenizer, documents: Documents | None, mode: str) -> None:
    """Warn that a tokenizer is slow, with its speed if there are enough documents to time it."""
    speed = ""
    if documents is not None:
        sample = first_documents(documents.data, documents.spans, _TIMED_BYTES)
        size = int((sample[:, 1] - sample[:, 0]).sum())
        if size >= _TIMED_BYTES // 8:
            with suppress(TokenizerError):  # the worker will report such a document, with its line
                encoder = tokenizer.encoder(dtype="int32", special_tokens=mode)
                began = time.perf_counter()
                encoder.encode(documents.data, sample)
                seconds = time.perf_counter() - began
                speed = f" (about {size / 1e6 / seconds:.1f} MB/s per worker)"
    _log.warning(
        "the tokenizer %s runs on a slower library%s: %s",
        tokenizer.name,
        speed,
        tokenizer.why_not_native,
    )


SYNC_SECONDS = 2.0
_SLOTS_A_WORKER = 2
_SEGMENT_SLACK = 2  # blocks by which a segment may exceed its size, without longer lines


class EncodingRun:
    """The work of one run: turn all parts of a job into pieces in place in the joined files.

    ``touched`` are the sources with another modification time than in the work folder's plan.
    ``beat`` is called now and then to show that the run is alive. ``close`` closes its files.
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
            # The plan gets the new times, so that the next run does not compare these inputs again.
            # But only after the journal was rewritten without pieces of their old content:
            # otherwise, after a crash in between, such pieces would count as current.
            if touched:
                job.folder.write_json(PLAN, plan.to_json())
            is_linux = sys.platform == "linux"  # elsewhere workers do not inherit memory
            segments = [part.end for part in job.parts if part.kind == "stream" and is_linux]
            if not is_linux and any(source.memory is not None for source in job.sources):
                workers = 1
            elif not segments:  # segments of a stream can occupy any number of workers
                workers = max(1, min(workers, len(job.parts)))
            self._slots: Slots | None = None
            if segments and workers > 1:
                longest = max(segments) + _SEGMENT_SLACK * (1 << 20)
                self._slots = Slots(_SLOTS_A_WORKER * workers, longest)
            self._meter = Meter(show, plan.bytes, workers)
            self._meter.add(list(resumed.pieces.values()), job.columns)
            slots = self._slots.count if self._slots else 0
            self._coordinator = Coordinator(
                job, resumed, self._journal, workers=workers, slots=slots
            )
            self._beat = beat
            self._ended = threading.Event()
            # Wait for the thread: Python must not exit while it is in native code.
            self._threads = ThreadPoolExecutor(2, "tokpack-run")
            opened.callback(self._threads.shutdown)
            opened.callback(self._ended.set)
            self._running: list[Future[None]] = []
            self.close = opened.pop_all().close

    def encode(self) -> Coordinator:
        """Encode what is missing, and make all durable. Returns the coordinator of all pieces."""
        job, coordinator = self._job, self._coordinator
        with ExitStack() as stack:
            processes = None
            # Chat templates need limits, and the user's process must not be limited: so with chat
            # even a single worker gets a process of its own.
            if len(self._meter.shared) > 1 or (job.chat is not None and has_processes()):
                started = Processes(job, self._meter.shared, self._slots)
                processes = stack.enter_context(started)
            # Fork workers before any thread starts: a fork copies locks but not threads, so a lock
            # held at that moment would stay locked in it for ever.
            syncs = self._threads.submit(self._sync)
            check = self._threads.submit(check_first_documents, job)
            self._running = [syncs, check]
            self._poll()
            if processes is not None:
                processes.run(coordinator, self._poll)
            else:
                run_here(job, self._meter.shared[0], coordinator, self._poll)
        check.result()
        self._meter.show("sync", now=True)
        self._ended.set()
        self._threads.shutdown()
        # The system reports a failed write only once per open file, to the next sync. If that was
        # the sync thread's, the sync below would succeed. So look at the thread's error first.
        self._look()
        for joined, ends in zip(self._joined, coordinator.ends, strict=True):
            for path, file, end in zip(joined.paths, joined.files, ends, strict=True):
                with cannot_write(path):
                    os.ftruncate(file, end)  # an earlier run may have written more
                    sync_data(file)
        return coordinator

    @property
    def is_worth_keeping(self) -> bool:
        """Whether there is anything that a later run could resume, or a user could read."""
        column = self._job.key_column(0, "tokens")
        lists = self._job.options.on_error == "skip" and self._coordinator.rejected > 0
        return lists or any(piece.total(column) for piece in self._coordinator.pieces)

    def _poll(self) -> None:
        """Raise errors of threads and of too many bad records; show the progress."""
        self._look()
        self._meter.show("place" if self._coordinator.all_encoded else "encode")

    def _look(self) -> None:
        for thread in self._running:
            if thread.done():
                thread.result()
        check_budget(self._coordinator.rejected, self._job.options, self._job.folder.path)

    def _sync(self) -> None:
        """Sync the files now and then, so that the last sync is short."""
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
    """The joined files of this name, created if missing, so that workers can open them."""
    for track in job.tracks:
        path = job.folder(f"{name}.{track}")
        if not os.path.lexists(path):
            os.close(create_own(path))
    return TrackFiles(job, name)


def encode(
    options: EncodeOptions, *, source: Source | None = None, progress: Show | None = None
) -> list[Manifest]:
    """Turn documents into a ``.bin/.idx`` dataset for each key, and return their manifests.

    A stopped run resumes when it is started again; a finished one returns at once. ``source`` is an
    object in this process to read instead of the inputs.
    ``progress`` is called a few times a second. Warnings go to the logger ``tokpack``. Raises a
    TokpackError (UsageError, InputError, RecordError, TokenizerError, OutputError, ResumeError or
    WorkerError), or what an iterable raises.
    """
    return encode_planned(lambda: plan_run(options, source), options, progress=progress)


def encode_planned(
    plan: Callable[[], PlannedRun],
    options: EncodeOptions,
    *,
    progress: Show | None = None,
    check: Callable[[], None] | None = None,
    beat: Callable[[], None] = lambda: None,
) -> list[Manifest]:
    """Follow the plan that ``plan`` returns, as ``encode`` does; it is called only when needed.

    For a shard, ``check`` is called before any file gets its name, and raises if the shard is no
    longer wanted. Several machines may make the same shard at once: files without a manifest are an
    unfinished copy of it, and are replaced. ``beat`` is called for each part of a file that is
    sent.
    """
    with Sender(options) as send:
        manifests = _encode_planned(plan, options, send, progress, check=check, beat=beat)
        send.done(manifests[0])
    return manifests


def _encode_planned(
    plan: Callable[[], PlannedRun],
    options: EncodeOptions,
    send: Sender,
    progress: Show | None,
    *,
    check: Callable[[], None] | None,
    beat: Callable[[], None],
) -> list[Manifest]:
    is_shard = check is not None
    if not is_url(options.output):
        # Files of a shard without its manifest are an unfinished copy of the same bytes.
        paths = map(manifest_path, options.output_names.values())
        replaces = is_shard and not any(map(os.path.lexists, paths))
        return _encode(plan(), options, send, progress, replaces=replaces, check=check)
    from tokpack.encoding.deliver import Delivery  # a run to a disk need not load it

    with closing(Delivery(options, check, beat)) as delivery:
        done = complete_datasets(options)
        planned = plan() if done else None
        if planned and are_made(planned.plan, options, done):
            delivery.discard()
            return done
        delivery.check_writable()
        planned = planned or plan()
        delivery.prepare(planned.plan)
        # Leftovers of another plan or function in the scratch folder are useless.
        replaces = is_shard or planned.plan.has_unversioned_map
        manifests = _encode(planned, delivery.options, send, progress, replaces=replaces)
        delivery.send(planned.plan, manifests)
        return manifests


def _encode(
    planned: PlannedRun,
    asked: EncodeOptions,
    send: Sender,
    progress: Show | None,
    *,
    replaces: bool,
    check: Callable[[], None] | None = None,
) -> list[Manifest]:
    """The manifests of a run to a disk; with ``replaces`` it overwrites files of its names.

    It looks twice whether the dataset is finished. Without a work folder nobody is making it, and a
    finished one is returned without creating a folder or lock. With a work folder, another run may
    finish until this one holds the lock, so the second look, under the lock, decides.
    """
    plan, setup, workers = planned
    if ALL in asked.keep:  # the plan has the actual columns
        asked = replace(asked, keep=tuple(plan.options.get("keep", ())), trace=True)
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
        # An earlier run may have staged its datasets before an input changed. Then they must not be
        # published: without commit.json they are made again.
        is_staged = os.path.lexists(folder(COMMIT))
        if is_staged and touched and not _is_staged_from(plan, options, folder):
            folder.remove_file(COMMIT)
        if finish(job, resumed=True):  # an earlier run was stopped between renames
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
                    "next one starts from scratch"
                )
            )

        def report(content: bytes) -> None:
            send(content)
            if os.path.exists(folder("lock")):  # the folder is not removed yet
                replace_file(folder(NAME), [content], fsync=False)

        try:
            with (
                RunReporter(report, progress) as show,
                closing(
                    EncodingRun(job, plan, touched, workers=workers, show=show, beat=beat)
                ) as run,
            ):
                try:
                    manifests = stage(job, plan, run.encode(), versions)
                except Exception:  # of an iterable, too
                    if not run.is_worth_keeping:
                        folder.remove()
                    raise
        except KeyboardInterrupt:
            if plan.is_recognizable:
                raise
            raise KeyboardInterrupt("the same command starts from scratch") from None
        if check is not None:
            try:
                check()
            except OutputError:
                folder.remove()
                raise
        finish(job)
        return manifests


def _is_staged_from(plan: Plan, options: EncodeOptions, folder: WorkFolder) -> bool:
    """Whether staged or renamed datasets of a run were made from the current inputs."""
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
    """Warn of tokens around documents that are probably unintended, or unintentionally missing."""
    tokenizer = setup.tokenizer
    for note in tokenizer.notes:
        _log.warning("%s", note)
    is_plain = setup.has_usual_frame(options)
    if is_plain and options.add_special_tokens:
        _log.warning("the tokenizer %s adds no special tokens of its own", tokenizer.name)
    elif is_plain and is_framed_elsewhere(tokenizer, options.tokenizer_type):
        _log.warning(
            Remark(
                f"in other programs {options.tokenizer_type} puts special tokens around documents, "
                f"here it does not; {option('add_special_tokens', True)} adds them"
            )
        )
    if tokenizer.eod_id in setup.frame.before:
        _log.warning(
            "documents begin with the EOD %d: masks and positions based on EOD will find it there",
            tokenizer.eod_id,
        )


@contextlib.contextmanager
def _locked(folder: WorkFolder, options: EncodeOptions) -> Iterator[Callable[[], None]]:
    """Lock the work folder, and those of runs that would make just one of these outputs.

    Yields a function to call now and then, to show others that the run is alive. OutputError.
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
                stack.callback(locks[-1].leave)

        def beat() -> None:
            for lock in locks:
                lock.beat()

        yield beat


@contextlib.contextmanager
def ends_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the run as Ctrl-C does: cleanly, so that it can be resumed."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt cleanup
        raise _Terminated

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except (_Terminated, RuntimeError) as error:
        # A signal inside of threading.Condition comes out as a RuntimeError of its lock.
        stopped = error if isinstance(error, _Terminated) else error.__context__
        if isinstance(stopped, KeyboardInterrupt):
            raise stopped from None
        if not isinstance(stopped, _Terminated):
            raise
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Terminated(BaseException):
    pass

"""One run: discover, plan, encode the parts, commit."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from tokpack.encoding.columns_read import as_planned
from tokpack.encoding.commit import stage
from tokpack.encoding.folder import SUFFIX, WorkFolder
from tokpack.encoding.outputs import check_replaced
from tokpack.encoding.piece import Job
from tokpack.encoding.plan import plan_run
from tokpack.encoding.renames import COMMIT, finish, staged
from tokpack.encoding.report import NAME, RunReporter
from tokpack.encoding.resume import are_made, complete_datasets, existing, open_plan
from tokpack.encoding.work import EncodingRun
from tokpack.errors import FormatError, InputError, OutputError
from tokpack.files.durable import replace_file
from tokpack.files.lock import Lock
from tokpack.indexed import Manifest, manifest_path
from tokpack.stores import is_url
from tokpack.tokenizers import is_framed_elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from tokpack.encoding.options import EncodeOptions
    from tokpack.encoding.plan import Plan, PlannedRun
    from tokpack.encoding.setup import TokenizerSetup
    from tokpack.progress import Show
    from tokpack.sources import Source

_log = logging.getLogger(__name__)


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
    folder = WorkFolder(options.output + SUFFIX)
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
                "--map without --map-version (map_version=): if this run is stopped, the next one "
                "begins anew"
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
            "documents are without the special tokens that %s puts around them in other programs; "
            "--add-special-tokens (add_special_tokens=True) adds them",
            options.tokenizer_type,
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
    others = {os.path.abspath(prefix) + SUFFIX for prefix in options.output_names.values()}
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

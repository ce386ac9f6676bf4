"""One run: discover, plan, encode the parts, commit."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from typing import TYPE_CHECKING, NamedTuple

from tokpack.encoding.commit import stage
from tokpack.encoding.folder import SUFFIX, WorkFolder
from tokpack.encoding.options import EncodeOptions, worker_count
from tokpack.encoding.outputs import check_replaced
from tokpack.encoding.piece import Job
from tokpack.encoding.plan import make_plan
from tokpack.encoding.renames import finish
from tokpack.encoding.resume import existing, open_plan
from tokpack.encoding.transforms import make_transform
from tokpack.encoding.work import Run
from tokpack.errors import TokpackError
from tokpack.files.lock import Lock
from tokpack.indexed import Manifest, best_fitting_dtype
from tokpack.sources import discover
from tokpack.stores import is_url
from tokpack.tokenizers import Frame, frame_of, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from tokpack.encoding.plan import Plan
    from tokpack.progress import Show
    from tokpack.sources import Source
    from tokpack.tokenizers import Tokenizer

_log = logging.getLogger(__name__)


def encode(options: EncodeOptions, *, progress: Show | None = None) -> list[Manifest]:
    """Turn documents into a ``.bin/.idx`` dataset for each key, and return their manifests.

    A run that was stopped at any point goes on where it was when it is started again; one that is
    finished returns at once. ``progress`` is called a few times a second. What is worth a warning
    goes to the logger ``tokpack``. Raises a TokpackError: UsageError, InputError, RecordError,
    TokenizerError, OutputError, ResumeError or WorkerError.
    """
    if not is_url(options.output):
        return _encode(options, progress)
    from tokpack.encoding.deliver import Delivery  # no other run needs what sends

    with Delivery(options) as delivery:
        done = delivery.existing()
        if done and delivery.is_made(_planned(options).plan, done):
            return done
        delivery.prepare()
        manifests = _encode(delivery.options, progress)
        delivery.send(manifests)
        return manifests


class _Planned(NamedTuple):
    """A plan, and what it was made with."""

    plan: Plan
    sources: list[Source]
    tokenizer: Tokenizer
    frame: Frame
    dtype: str
    workers: int


def _planned(options: EncodeOptions) -> _Planned:
    from tokpack import __version__

    sources = discover(options.inputs, input_format=options.input_format, hf_split=options.hf_split)
    make_transform(options)  # what is missing for it is said before anything is begun
    tokenizer = _tokenizer_of(options)
    frame = frame_of(
        tokenizer,
        append_eod=options.append_eod,
        prepend_bos=options.prepend_bos,
        bos_token=options.bos_token,
        add_special_tokens=options.add_special_tokens,
    )
    dtype: str = options.dtype
    if dtype == "auto":
        dtype = best_fitting_dtype(tokenizer.vocab_size).name
    # The first N records are the same for any number of workers when one takes them in turn.
    workers = worker_count(options) if options.limit is None else 1
    plan = make_plan(
        *(options, sources, tokenizer, frame), dtype=dtype, ways=workers, version=__version__
    )
    return _Planned(plan, sources, tokenizer, frame, dtype, workers)


def _encode(options: EncodeOptions, progress: Show | None) -> list[Manifest]:
    """A run whose output is on a disk."""
    plan, sources, tokenizer, frame, dtype, workers = _planned(options)
    prefixes = options.output_names
    folder = WorkFolder(options.output + SUFFIX)
    if not os.path.exists(folder.path):
        done = existing(plan, prefixes, options)
        if done is not None:
            return done
        check_replaced(options, sources, plan)
    with _ends_on_sigterm(), _locked(folder, options) as beat:
        plan, touched = open_plan(folder, plan, options)
        job = Job(folder, plan.sources, plan.parts, tokenizer, frame, dtype, options)
        if finish(folder, options, resumed=True):  # it was stopped in its last moment
            return [Manifest.load(prefix) for prefix in prefixes.values()]
        done = existing(plan, prefixes, options)
        if done is not None:
            folder.remove()
            return done
        check_replaced(options, sources, plan)
        _tell_of_frame(tokenizer, frame, options)
        if not tokenizer.native:
            _log.warning(
                "the tokenizer %s takes the slow path, not the native one: %s",
                *(tokenizer.name, tokenizer.why_not_native),
            )
        with Run(job, plan, touched, workers=workers, show=progress, beat=beat) as run:
            try:
                finished = run.encode()
                stage(job, plan, finished)
            except TokpackError:
                if not run.has_tokens:  # no later run could use it
                    folder.remove()
                raise
        finish(folder, options)
        return [Manifest.load(prefix) for prefix in prefixes.values()]


def _tokenizer_of(options: EncodeOptions) -> Tokenizer:
    return load_tokenizer(
        options.tokenizer,
        vocab_file=options.vocab_file,
        merge_file=options.merge_file,
        tokenizer_type=options.tokenizer_type,
        tokenizer_model=options.tokenizer_model,
        eod_token=options.eod_token,
        pattern=options.pattern,
        vocab_size=options.vocab_size,
        special_tokens_count=options.special_tokens_count,
    )


def _tell_of_frame(tokenizer: Tokenizer, frame: Frame, options: EncodeOptions) -> None:
    """Say what is probably not what was meant."""
    if options.add_special_tokens and frame == tokenizer.framing(options.append_eod, None):
        _log.warning("the tokenizer %s adds no special tokens of its own", tokenizer.name)
    if tokenizer.eod_id in frame.before:
        _log.warning(
            "documents begin with the EOD %d: masks and positions that look for EOD see it there",
            tokenizer.eod_id,
        )


@contextlib.contextmanager
def _locked(folder: WorkFolder, options: EncodeOptions) -> Iterator[Callable[[], None]]:
    """Keep other runs out of the work folder, and of those of runs with one of the same outputs.

    Gives what is to be called now and then to show that the run is alive. Raises OutputError.
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
def _ends_on_sigterm() -> Iterator[None]:
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

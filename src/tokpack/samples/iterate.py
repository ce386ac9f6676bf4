"""Micro batches in order for one rank, resumed from one integer, with or without a DataLoader."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import tempfile
import weakref
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from operator import index as as_integer
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

import numpy as np

from tokpack import _core
from tokpack.errors import ResumeError, UsageError, option
from tokpack.samples.gather import asked_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    import typing_extensions
    from torch.utils.data import IterableDataset

    from tokpack.samples.batch import Sample, SampleDataset

    B = typing_extensions.TypeVar("B", default=Sample)  # what load makes

    class IterableStyle(IterableDataset[B], Generic[B]):  # a type that a DataLoader takes
        pass
else:
    IterableStyle, B = Generic, TypeVar("B")  # so that torch need not be loaded

T = TypeVar("T")


class Samples(Protocol):
    """A dataset to iterate over: a GPTDataset, a BlendedDataset, or one of the user's own."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Sample: ...
    @property
    def fingerprint(self) -> str: ...


class MicroBatches:
    """The sample numbers of every micro batch of one rank: a batch sampler, in torch's words.

    A step takes the next ``micro_batch_size * world_size`` samples; rank r takes the r-th
    ``micro_batch_size`` of them. So steps take a contiguous range of samples, and which samples a
    run has seen does not depend on its number of ranks. Samples that do not fill the last step are
    left out. If several ``workers`` make the micro batches of a rank in turn, worker w makes the
    w-th and every ``workers``-th after it.
    """

    def __init__(
        self,
        samples: int,
        micro_batch_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        consumed_samples: int = 0,
        worker: int = 0,
        workers: int = 1,
    ) -> None:
        for name, value in (("micro_batch_size", micro_batch_size), ("world_size", world_size)):
            if value < 1:
                raise UsageError(f"{name} is {value}, expected 1 or more")
        if not 0 <= rank < world_size:
            raise UsageError(
                f"{option('rank')} is {rank}, expected 0 to {world_size - 1}: one of world_size"
            )
        if not 0 <= consumed_samples <= samples:
            raise UsageError(f"consumed_samples is {consumed_samples}, expected 0 to {samples}")
        self.samples = samples
        self.micro_batch_size = micro_batch_size
        self.rank = rank
        self.world_size = world_size
        self.consumed_samples = consumed_samples
        self._worker, self._workers = worker, workers

    @property
    def step(self) -> int:
        """The number of samples that all ranks take at a time."""
        return self.micro_batch_size * self.world_size

    def __len__(self) -> int:
        """The number of micro batches that are left."""
        return len(self._left)

    @property
    def _left(self) -> range:
        left = (self.samples - self.consumed_samples) // self.step
        return range(self._worker, left, self._workers)

    def __iter__(self) -> Iterator[list[int]]:
        first = self.consumed_samples + self.rank * self.micro_batch_size
        for number in self._left:
            begin = first + number * self.step
            yield list(range(begin, begin + self.micro_batch_size))


class WholeBatches:
    """A dataset of batches: ``WholeBatches(ds)[numbers]`` is ``ds.batch(numbers)``.

    Several times faster with torch's DataLoader than single samples, which it copies one by one::

        DataLoader(WholeBatches(dataset), batch_size=None, sampler=batches, num_workers=4)
    """

    def __init__(self, dataset: SampleDataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._dataset)

    def __getitem__(self, numbers: Sequence[int]) -> Sample:
        return self._dataset.batch(numbers)


class SampleIterator(IterableStyle[B]):
    """Iterates over the micro batches of one rank; its state is the number of samples consumed.

    ``dataset`` is map-style. A batch is the dict of its samples' arrays, stacked: [micro batch,
    sequence]. ``load`` turns the lists of sample numbers into batches and may work ahead; with
    torch::

        load=lambda batches: DataLoader(dataset, batch_sampler=batches, num_workers=4)

    or, faster, with WholeBatches. Without ``load`` batches are made in this process, one by one;
    with ``prefetch`` a thread makes that many ahead, to hide disk latency. The state counts batches
    handed out, not batches made ahead. It can be loaded with another rank, world size or micro
    batch size: samples continue where the run stopped. ResumeError if the dataset's samples differ
    from those consumed; later weights of a blend may differ, see ``fingerprint_at``.

    ``iter()`` continues where the iterator is: after a ``break``, ``load_state_dict`` or
    ``consumed_samples``. After the end (a StopIteration) it begins a new pass, with sample 0, so
    loops can be epochs; a state saved there says so too. ``next()`` does not begin a new pass.

    It is an iterable dataset for torch's DataLoader too::

        DataLoader(SampleIterator(dataset, 8), batch_size=None, num_workers=4)

    Workers share the micro batches, which come in the same order, pass after pass. Workers are
    copies of this object, and have read ahead when a loop ends early: the next pass begins at this
    object's position, and the real position is in the state of torchdata's StatefulDataLoader.
    """

    _begin: int  # in a worker: the position of the original
    _consumed: int
    _ended: bool  # the pass has ended, so iter() begins the next

    def __init__(
        self,
        dataset: Samples,
        micro_batch_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        consumed_samples: int = 0,
        load: Callable[[MicroBatches], Iterable[B]] | None = None,
        prefetch: int = 0,
    ) -> None:
        if not hasattr(dataset, "fingerprint") or not hasattr(dataset, "__len__"):
            advice = "has no samples: give a GPTDataset, or open_blend(...).train"
            if isinstance(dataset, str):
                advice = f"is a name: give the samples, as GPTDataset({dataset!r}, sequence_length)"
            elif hasattr(dataset, "train"):
                advice = "has several datasets: give one, such as its .train"
            raise UsageError(f"{dataset!r} {advice}")
        group = getattr(dataset, "group", 1)
        if micro_batch_size % group:
            raise UsageError(
                f"micro_batch_size is {micro_batch_size}, but {group} samples belong together: "
                f"give a multiple of {group}"
            )
        if prefetch < 0:
            raise UsageError(f"prefetch is {prefetch}, expected 0 or more")
        self._dataset = dataset
        self._load: Callable[[MicroBatches], Iterable[Any]] = (
            load if load is not None else self._gather
        )
        self._prefetch = prefetch
        self._stream: Iterator[B] | None = None
        self._passes = _Passes()
        self._shape = {
            "micro_batch_size": micro_batch_size,
            "rank": rank,
            "world_size": world_size,
        }
        self._start(consumed_samples)

    @property  # type: ignore[misc]
    def __class__(self) -> type[SampleIterator[B]]:
        """The class that torch's DataLoader sees: an IterableDataset.

        This does not import torch, which may be imported after this object was made.
        """
        if (torch_data := sys.modules.get("torch.utils.data")) is not None:
            torch_data.IterableDataset.register(SampleIterator)
        return SampleIterator

    def __iter__(self) -> SampleIterator[B]:
        torch_data = sys.modules.get("torch.utils.data")
        worker = torch_data.get_worker_info() if torch_data is not None else None
        if worker is None:
            if self._ended:
                self._start(0)
            return self
        _core.watch_bus_errors()  # again: torch has replaced our signal handler
        if "worker" not in self._shape:  # the first pass of this copy
            self._shape |= {"worker": worker.id, "workers": worker.num_workers}
            self._begin = 0 if self._ended else self._consumed
        self._start(0 if self._passes.begin(worker) else self._begin)
        return self

    def __next__(self) -> B:
        if self._stream is None:
            if self._ended:
                raise StopIteration
            batches = self._load(self._batches)
            self._stream = ahead(batches, self._prefetch) if self._prefetch else iter(batches)
        try:
            batch = next(self._stream)
        except BaseException as error:  # after any other error the batch can be taken again
            self._stream = None
            if isinstance(error, StopIteration):
                self._ended = True
                self._passes.end()
            raise
        # With several workers, each takes one before this one takes its next.
        taken = self._batches.step * self._shape.get("workers", 1)
        self._consumed = min(self._consumed + taken, self._batches.samples)
        return batch

    def __len__(self) -> int:
        """The micro batches that iter() will give: those that are left, or all after the end."""
        return (self._batches.samples - self._consumed * (not self._ended)) // self._batches.step

    def __repr__(self) -> str:
        left = f"{self._consumed} of {len(self._dataset)} samples consumed"
        return f"SampleIterator({self._dataset!r}, {left})"

    @property
    def consumed_samples(self) -> int:
        """The number of samples that all ranks together have taken."""
        return self._consumed

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint: the samples consumed, and the identity of these.

        After the end also ``ended``, the number of samples of the pass; then iter() begins again.
        """
        state = {
            "consumed_samples": self._consumed,
            "fingerprint": fingerprint_of(self._dataset, self._consumed),
        }
        return {**state, "ended": self._batches.samples} if self._ended else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the sample after those that the state has consumed."""
        try:
            consumed, then = as_integer(state["consumed_samples"]), state["fingerprint"]
        except (KeyError, TypeError):
            consumed = -1
        if consumed < 0:
            raise ResumeError(
                f"{state!r} is not the state of a SampleIterator, which has consumed_samples, 0 or "
                "more, and the fingerprint of the samples"
            )
        if then != (now := fingerprint_of(self._dataset, consumed)):
            raise ResumeError(
                f"the state is of samples {then}, but the dataset has {now} before sample "
                f"{consumed:,}: data, seed, sequence length, split, order or weights differ. To "
                "change weights from there on, use a schedule"
            )
        self._start(consumed)
        self._ended = state.get("ended") == self._batches.samples  # if there are more now, go on

    def _start(self, consumed: int) -> None:
        self._batches = MicroBatches(len(self._dataset), consumed_samples=consumed, **self._shape)
        self._consumed = consumed
        self._ended = False
        self._stream = None

    def _gather(self, batches: MicroBatches) -> Iterator[Sample]:
        batch = getattr(self._dataset, "batch", None)
        if batch is None:
            return (collate([self._dataset[number] for number in numbers]) for numbers in batches)
        return map(batch, asked_ahead(self._dataset, batches))


def fingerprint_of(dataset: Samples, consumed: int) -> str:
    """The fingerprint of the first ``consumed`` samples, or of all if the dataset has no other."""
    at: Callable[[int], str] | None = getattr(dataset, "fingerprint_at", None)
    return dataset.fingerprint if at is None else at(consumed)


def collate(samples: list[Sample]) -> Sample:
    """The stacked arrays from the dicts of samples."""
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


def ahead(items: Iterable[T], count: int) -> Iterator[T]:
    """The same items, made by a thread up to ``count`` in advance.

    An exception in the thread is raised in place of its item. The thread starts when the first item
    is taken; if the caller stops early, at most one more item is made.
    """
    source, end = iter(items), object()
    thread = ThreadPoolExecutor(1, "tokpack-ahead")
    coming: deque[Future[object]] = deque()
    try:
        while True:
            while len(coming) <= count:
                coming.append(thread.submit(next, source, end))
            item = coming.popleft().result()
            if item is end:
                return
            yield cast("T", item)
    finally:
        thread.shutdown(wait=False, cancel_futures=True)


class _Passes:
    """The passes of DataLoader workers, in a file that all workers append to.

    With workers, nothing is taken from the iterator itself, and each pass has new workers, which
    are copies of it. So only from this file can they learn that an earlier pass has ended. All
    workers of a pass must agree on that: so each considers only what was written before the first
    of them began.
    """

    _entry = struct.Struct("<q3i?")  # seed and number of a pass, workers, worker, is it the end

    def __init__(self, descriptor: int | None = None) -> None:
        self._file = _unnamed_file() if descriptor is None else descriptor
        weakref.finalize(self, os.close, self._file)
        self._pass: tuple[int, ...] = ()

    def begin(self, worker: Any) -> bool:
        """Begin a pass of torch's ``worker``. Returns whether an earlier pass has ended."""
        before = self._entries()
        number = sum(one[3] == worker.id and not one[4] for one in before)
        mine = worker.seed - worker.id, number, worker.num_workers  # the same in all workers
        self._pass = (*mine, worker.id)
        os.write(self._file, self._entry.pack(*self._pass, False))
        entries = self._entries()
        first = next(place for place, one in enumerate(entries) if one[:3] == mine)
        ends = Counter(one[:3] for one in entries[:first] if one[4])
        return any(count == one[2] for one, count in ends.items())

    def end(self) -> None:
        """Note that the pass of this worker has ended, if this is a worker."""
        if self._pass:
            os.write(self._file, self._entry.pack(*self._pass, True))

    def _entries(self) -> list[tuple[Any, ...]]:
        content = os.pread(self._file, os.fstat(self._file).st_size, 0)
        return list(self._entry.iter_unpack(content))

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.context import get_spawning_popen
        from multiprocessing.reduction import DupFd

        if get_spawning_popen() is None:  # a copy that is not a worker gets passes of its own
            return _Passes, ()
        return _attached, (DupFd(self._file),)


def _attached(descriptor: Any) -> _Passes:
    """The passes in a file that a spawned worker is given."""
    return _Passes(descriptor.detach())


def _unnamed_file() -> int:
    """The descriptor of a new file without a name, opened for appending."""
    try:
        descriptor = os.memfd_create("tokpack-passes")
    except AttributeError:  # the system is not Linux
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)
    return descriptor

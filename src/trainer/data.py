"""From a configuration to samples: datasets, their vocabulary, and micro batches read ahead."""

from __future__ import annotations

import json
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from tokpack.errors import FormatError, InputError, UsageError
from tokpack.indexed import MMapIndexedDataset, bin_path
from tokpack.samples import (
    BlendedDataset,
    GPTDataset,
    SampleIterator,
    collate,
    parse_split,
)
from tokpack.samples.megatron import blend_request
from tokpack.samples.plan import find_prefix, load_blend

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    import numpy.typing as npt

    from .config import Config
    from .parallel import Topology

    Samples = GPTDataset | BlendedDataset
    Batch = dict[str, torch.Tensor]

T = TypeVar("T")

AHEAD = 2  # steps whose samples wait for their turn
SCANNED = 1 << 28  # tokens that are looked at before a run where no manifest knows the vocabulary
COUNTED = 1 << 20  # tokens from which the unigram entropy is computed
ARRAYS = ("tokens", "labels", "loss_mask", "position_ids", "cu_seqlens")


@dataclass
class Data:
    """The samples of a run; ``valid`` and ``test`` by name, each at least one step long."""

    train: Samples
    vocab_size: int
    valid: dict[str, Samples] = field(default_factory=dict)
    test: dict[str, Samples] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def shares(self, size: int) -> Iterator[tuple[str, float, float, int]]:
        """Of each dataset in the first ``size`` samples: prefix, samples, epochs, tokens."""
        counts = self.train.counts(size) if isinstance(self.train, BlendedDataset) else [size]
        for dataset, count in zip(members(self.train), counts, strict=True):
            epochs = count / max(dataset.samples_per_epoch, 1)
            yield dataset.path_prefix, count, epochs, dataset.tokens

    def unigram_entropy(self, size: int) -> float:
        """Nats a token of the frequencies alone, in a sample of the first ``size`` samples."""
        wanted = min(size, max(1, COUNTED // self.train.seq_length))
        counts = np.zeros(self.vocab_size, np.int64)
        for number in np.unique(np.linspace(0, size - 1, wanted).astype(np.int64)).tolist():
            labels = gather(self.train, [number], self.vocab_size)["labels"]
            counts += np.bincount(labels.ravel(), minlength=self.vocab_size)
        shares = counts[counts > 0] / counts.sum()
        return float(-np.sum(shares * np.log(shares)))


def members(samples: Samples) -> list[GPTDataset]:
    """The datasets of a blend, in order."""
    if isinstance(samples, GPTDataset):
        return [samples]
    return [leaf for dataset in samples.datasets for leaf in members(dataset)]


def open_data(config: Config, step: int) -> Data:
    """Open all that a run reads; ``step`` samples are the smallest batch, a micro batch a rank.

    Raises UsageError, InputError or FormatError for what is missing, empty, too small, or of a
    larger vocabulary than the model's.
    """
    if bool(config.data_path) == bool(config.train_data_path):
        raise UsageError("say where the data is: either data_path or train_data_path")
    wanted = config.train_samples or (config.train_iters or 0) * config.global_batch_size or None
    shared = bool(config.data_path)
    train = _open(config, config.data_path or config.train_data_path, wanted, 0 if shared else None)
    data = Data(train, _vocabulary(config, members(train)))
    for part, words in ((1, config.valid_data_path), (2, config.test_data_path)):
        if config.eval_iters:
            _open_held_out(config, data, part, words, step)
    _check_ids(data)
    return data


def _open_held_out(
    config: Config, data: Data, part: int, words: tuple[str, ...], step: int
) -> None:
    """Add a validation set (part 1), or a test set (part 2), to the data of a run."""
    found, kind = (data.valid, "valid") if part == 1 else (data.test, "test")
    size = config.eval_iters * config.global_batch_size
    try:
        if words:
            prefixes, weights = _blend(words)
            sets = {p: (p,) for p in prefixes} if weights is None else {kind: words}
            found |= {name: _open(config, given, size, None) for name, given in sets.items()}
        elif config.data_path and _has_part(config.split, part):
            found[kind] = _open(config, config.data_path, size, part)
        for name, samples in found.items():
            if len(samples) < step:
                raise UsageError(
                    f"{name}: {len(samples)} samples for evaluation do not fill one micro batch "
                    f"on every rank, {step}: give it more data, or train with eval_iters 0"
                )
    except UsageError as error:
        if part == 1 or words:
            raise UsageError(f"{kind} data: {error}") from error
        found.clear()
        data.notes.append(f"no test at the end: {error}")


def _has_part(split: str, part: int) -> bool:
    ranges = parse_split(split, 1 << 30)  # so many that only a share of 0 gets none
    return part < len(ranges) and ranges[part] is not None


def _blend(words: Sequence[str]) -> tuple[list[str], list[float] | None]:
    """Prefixes and weights from: prefix | weight prefix ... | prefix ... | blend.yaml."""
    if len(words) == 1 and words[0].endswith((".yaml", ".yml")):
        plan = load_blend(words[0])
        return [member.prefix for member in plan.members], list(plan.shares)
    try:
        weights = [float(word) for word in words[::2]]
    except ValueError:
        return [find_prefix(word) for word in words], None
    if len(words) % 2:
        raise UsageError(f"{' '.join(words)}: the last weight has no dataset behind it")
    return [find_prefix(word) for word in words[1::2]], weights


def _open(config: Config, words: Sequence[str], size: int | None, part: int | None) -> Samples:
    """The blend that ``words`` mean, or part ``part`` of it; of validation at most one epoch."""
    prefixes, weights = _blend(words)
    counts: list[int | None] = [None] * len(prefixes)
    shares: Sequence[float] | None = weights
    stateless = config.order == "stateless"
    if not stateless and len(prefixes) > 1 and weights is not None:
        if size is None:
            raise UsageError(f"a weighted blend in the order {config.order} needs train_samples")
        asked = blend_request(weights, size, config.order)
        counts, shares, size = list(asked.samples), list(asked.weights), asked.size
    elif len(prefixes) == 1 and (part in (None, 0) or not stateless):
        counts = [size]
    datasets = [
        GPTDataset(
            prefix,
            config.seq_length,
            order=config.order,
            seed=config.seed,
            split=None if part is None else config.split,
            split_index=part or 0,
            num_samples=count,
            eod_mask_loss=config.eod_mask_loss,
            reset_position_ids=config.reset_position_ids,
            document_boundaries=config.reset_attention_mask,
        )
        for prefix, count in zip(prefixes, counts, strict=True)
    ]
    if len(datasets) == 1:
        return datasets[0]
    return BlendedDataset(datasets, shares, size if part in (None, 0) or not stateless else None)


def _vocabulary(config: Config, datasets: Iterable[GPTDataset]) -> int:
    """The number of ids: as given, or that of the datasets' tokenizer."""
    known = {d.path_prefix: (d.tokenizer or {}).get("vocab_size") for d in datasets}
    size = max((count for count in known.values() if count), default=None)
    in_file = None if config.vocab_file is None else _ids_in(config.vocab_file)
    if in_file is not None and size is not None and in_file != size:
        raise UsageError(
            f"{config.vocab_file} has {in_file:,} ids, the tokenizer of the data {size:,}: give "
            "the file that the data was made with, or none"
        )
    given = config.vocab_size or size or in_file
    if given is None:
        raise UsageError(f"no manifest says the vocabulary of {', '.join(known)}: give vocab_size")
    if size is not None and given < size:
        raise UsageError(f"vocab_size is {given:,}, the tokenizer of the data has {size:,} ids")
    return int(given)


def _ids_in(path: str) -> int:
    """One more than the largest id of a vocab.json or tokenizer.json."""
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
        added = [token["id"] for token in values.get("added_tokens", [])]
        ids = values["model"]["vocab"] if "model" in values else values
        return 1 + int(max([*(range(len(ids)) if isinstance(ids, list) else ids.values()), *added]))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(f"{path}: not a vocabulary of ids by token: {error!r}") from error


def _check_ids(data: Data) -> None:
    """Look for ids that the model does not know where no manifest speaks for a dataset."""
    for samples in (data.train, *data.valid.values(), *data.test.values()):
        for dataset in members(samples):
            prefix = dataset.path_prefix
            known = (dataset.tokenizer or {}).get("vocab_size")
            if not known and os.path.exists(bin_path(prefix)):
                tokens = MMapIndexedDataset(prefix).tokens[:SCANNED]
                _check_range(prefix, tokens, data.vocab_size)


def _check_range(name: str, tokens: npt.NDArray[Any], vocab_size: int) -> None:
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocab_size:
        raise InputError(
            f"{name}: it has the token id {low if low < 0 else high:,}, the vocabulary has "
            f"{vocab_size:,} ids: give the vocab_size of its tokenizer"
        )


def gather(samples: Samples, numbers: list[int], vocab_size: int) -> dict[str, npt.NDArray[Any]]:
    """The samples of these numbers, stacked: arrays [n, sequence], every id checked."""
    arrays = collate([samples.sample(number) for number in numbers])
    for name in ("tokens", "labels"):
        _check_range(samples.path_prefix, arrays[name], vocab_size)
    return arrays


def stream(
    data: Data, samples: Samples, config: Config, topology: Topology, consumed: int = 0
) -> SampleIterator:
    """The micro batches of this data rank from sample ``consumed`` on, made ahead by a thread.

    A step takes as many as its batch size needs. Tensors are on the CPU, pinned where there is a
    GPU to send them to.
    """

    def make(numbers: list[int]) -> Batch:
        arrays = gather(samples, numbers, data.vocab_size)
        batch = {name: torch.from_numpy(arrays[name]) for name in ARRAYS if name in arrays}
        if topology.device.type == "cuda":
            return {name: tensor.pin_memory() for name, tensor in batch.items()}
        return batch

    micro, ranks = config.micro_batch_size, topology.data_size
    count = AHEAD * config.global_batch_size // (micro * ranks)
    return SampleIterator(
        samples,
        micro,
        rank=topology.data_rank,
        world_size=ranks,
        consumed_samples=consumed,
        load=lambda batches: _ahead(map(make, batches), count),
    )


def _ahead(items: Iterator[T], count: int) -> Iterator[T]:
    """The same items, of which a thread makes up to ``count`` before they are asked for."""
    coming: deque[Future[T | None]] = deque()
    thread = ThreadPoolExecutor(1)
    try:
        while True:
            while len(coming) <= count:
                coming.append(thread.submit(next, items, None))
            if (item := coming.popleft().result()) is None:
                return
            yield item
    finally:
        thread.shutdown(wait=False, cancel_futures=True)

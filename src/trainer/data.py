"""From a configuration to samples: datasets, their vocabulary, and micro batches read ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tokpack.errors import InputError, TokenizerError, UsageError, option
from tokpack.samples import BlendedDataset, SampleIterator, asked_ahead, open_blend
from tokpack.samples.blend import plan_of
from tokpack.tokenizers import load_tokenizer

from .config.data import spec_of_config, vocabulary_of
from .parallel import total
from .tensor import divisor

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tokpack.samples import GPTDataset
    from tokpack.samples.blend import BlendPlan

    from .config.config import Config
    from .parallel import Topology

    Samples = GPTDataset | BlendedDataset
    MicroBatch = dict[str, torch.Tensor]

AHEAD = 2  # steps whose samples are read ahead
SCANNED = 1 << 28  # tokens of a shard whose ids are checked if no manifest has the vocabulary
COUNTED = 1 << 20  # tokens from which the unigram entropy is computed
MOST_BIAS = 0.05  # nats
ARRAYS = ("tokens", "labels", "loss_mask", "position_ids", "cu_seqlens")


@dataclass
class Data:
    """The samples of a run. ``valid`` and ``test`` are held-out sets by name, each with enough
    samples for one evaluation.
    """

    plan: BlendPlan
    train: Samples
    valid: dict[str, Samples]
    test: dict[str, Samples]
    vocab_size: int
    tokenizer: dict[str, Any] | None  # as a manifest describes it
    notes: list[str]

    def unigram_entropy(self, size: int) -> float | None:
        """The entropy in nats of the label frequencies, over part of the first ``size`` samples.

        None if these are too few: from N labels with m different ones it is about (m - 1) / 2N too
        low (Miller, Note on the bias of information estimates, 1955).
        """
        wanted = min(size, max(1, COUNTED // self.train.seq_length))
        counts = np.zeros(self.vocab_size, np.int64)
        numbers = np.unique(np.linspace(0, size - 1, wanted).astype(np.int64)).tolist()
        for number in asked_ahead(self.train, [[number] for number in numbers]):
            sample = gather(self.train, number, self.vocab_size)
            labels = sample["labels"][sample["loss_mask"] > 0]
            counts += np.bincount(labels, minlength=self.vocab_size)
        seen, total = counts[counts > 0], max(int(counts.sum()), 1)
        if (len(seen) - 1) / (2 * total) > MOST_BIAS:
            return None
        return float(np.sum(seen / total * -np.log(seen / total)))


def open_data(config: Config, step: int) -> Data:
    """The data of a run, opened; ``step`` is the number of samples in one micro batch of every data
    rank.

    Raises UsageError, InputError or FormatError for data that is missing, empty or too small, or
    that has a larger vocabulary than the model.
    """
    plan = plan_of(spec_of_config(config))
    test = None if config.test_data_path else plan.test
    without = []
    if test is not None and (test.missing or test.samples < step):  # too little data: no error
        without = [f"no test at the end: the split leaves {test.samples} samples for it"]
        plan = plan_of(plan.spec.changed(test_samples=0))
    notes = plan.warnings(float("inf"), config.flags) + without
    for mixture in plan.mixtures if config.eval_iters else ():
        if mixture.name == "valid" and mixture.missing and mixture.is_absent:
            raise UsageError(f"{mixture.shortfalls[0]}, or train with {option('eval_iters')} 0")
    opened = open_blend(plan)
    valid = dict(opened.valid)
    if config.valid_by_source:
        _add_sources(valid, step, notes)
    tokenizer = opened.train.tokenizer or _tokenizer(config, notes)
    size = vocabulary_of(config, (tokenizer or {}).get("vocab_size"))
    if size is None:
        raise UsageError(
            f"no manifest names the vocabulary of {opened.train.path_prefix}: give "
            f"{option('vocab_size')}"
        )
    for dataset in plan.datasets:
        if dataset.tokenizer is None:
            for shard in filter(lambda shard: len(shard.tokens), dataset.shards()):
                _check_range(shard.prefix, shard.tokens[:SCANNED], size)
    if config.eval_iters and not opened.valid:
        reason = (
            f"split {config.split} leaves nothing for it" if config.split else "there is no split"
        )
        notes.append(f"no validation: {reason}, and no {option('valid_data_path')} is given")
    tests = {} if opened.test is None else {"test": opened.test}
    for name, samples in {**valid, **tests}.items():
        if len(samples) < step:
            raise UsageError(
                f"{name}: {len(samples)} samples for evaluation do not fill one micro batch on "
                f"every rank, {step}: give it more data, or train with {option('eval_iters')} 0"
            )
    return Data(plan, opened.train, valid, tests, size, tokenizer, notes)


def _add_sources(valid: dict[str, Samples], step: int, notes: list[str]) -> None:
    """Add each dataset of each blend that has ``step`` samples as a set of its own."""
    for name, samples in list(valid.items()):
        if not isinstance(samples, BlendedDataset):
            notes.append(f"{option('valid_by_source')}: {name} has only one dataset")
            continue
        for source in samples.datasets:
            title = f"{name} of {source.path_prefix}"
            if len(source) < step:
                notes.append(f"no {title}: its {len(source)} samples do not fill one micro batch")
            else:
                valid[title] = source


def _tokenizer(config: Config, notes: list[str]) -> dict[str, Any] | None:
    """The tokenizer of data without a manifest, from the files that other programs take; or None if
    there are none.
    """
    files = config.tokenizer_files
    try:
        tokenizer = load_tokenizer(**files) if any(files.values()) else None
    except (TokenizerError, UsageError) as error:  # a vocabulary alone says no more than its size
        notes.append(f"the checkpoints will not name a tokenizer: {error.args[0]}")
        return None
    if tokenizer is None:
        return None
    tokenizer.keep_copies()
    return tokenizer.describe()


def _check_range(name: str, tokens: npt.NDArray[Any], vocab_size: int) -> None:
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocab_size:
        raise InputError(
            f"{name}: it has the token id {low if low < 0 else high:,}, the vocabulary has "
            f"{vocab_size:,} ids: give the {option('vocab_size')} of its tokenizer"
        )


def gather(samples: Samples, numbers: list[int], vocab_size: int) -> dict[str, npt.NDArray[Any]]:
    """The samples with these numbers, stacked to arrays [n, sequence]; every id is checked."""
    arrays = samples.batch(numbers)
    for name in ("tokens", "labels"):
        _check_range(samples.path_prefix, arrays[name], vocab_size)
    return arrays


def weigh(batches: Sequence[MicroBatch], topology: Topology) -> float:
    """The sum of all loss masks; the micro batches are weighted so that their mean loss is a mean
    over labels. Collective.

    The mean is over the micro batches of all data ranks. Without weights the sum is the number of
    labels that count.
    """
    counts = torch.stack([batch["loss_mask"].sum(dtype=torch.float64) for batch in batches])
    whole = total(counts.sum(), topology.data_group)
    weights = divisor(counts) * len(batches) * topology.data_size / divisor(whole)
    for batch, weight in zip(batches, weights.to(torch.get_default_dtype()), strict=True):
        batch["weight"] = weight
    return float(whole)


def stream(
    data: Data, samples: Samples, config: Config, topology: Topology, consumed: int = 0
) -> SampleIterator[MicroBatch]:
    """The micro batches of this data rank from sample ``consumed`` on; a thread makes them ahead.

    Tensors are on the CPU, in pinned memory if the run is on a GPU.
    """

    def make(numbers: list[int]) -> MicroBatch:
        arrays = gather(samples, numbers, data.vocab_size)
        batch = {name: torch.from_numpy(arrays[name]) for name in ARRAYS if name in arrays}
        if topology.device.type == "cuda":
            return {name: tensor.pin_memory() for name, tensor in batch.items()}
        return batch

    micro, ranks = config.micro_batch_size, topology.data_size
    return SampleIterator(
        samples,
        micro,
        rank=topology.data_rank,
        world_size=ranks,
        consumed_samples=consumed,
        load=lambda batches: map(make, asked_ahead(samples, batches)),
        prefetch=AHEAD * config.global_batch_size // (micro * ranks),
    )

"""The request for a blend, before any dataset is opened."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tokpack.display import nearest
from tokpack.errors import UsageError
from tokpack.option import check_options, options_of, show_options
from tokpack.samples.settings import PARTS, SampleSettings, Settings, described, wanted_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Unpack

    from tokpack.keywords import BlendOptions
    from tokpack.samples.orders import OrderRules

MEANINGS = ("tokens", "documents", "epochs", "trained")
LENGTHS = ("samples", "tokens", "epochs")


class Entry(NamedTuple):
    """A dataset in a request, with its weight, and its identity when the blend was saved."""

    prefix: str
    weight: float | None = None
    fingerprint: str | None = None
    checksum: str | None = None
    labels: str | None = None
    labels_fingerprint: str | None = None


Entries = tuple[Entry, ...]
Changes = tuple[tuple[int, tuple[float, ...]], ...]


@dataclass(frozen=True, kw_only=True)
class BlendSpec(SampleSettings):
    """The contents of a blend file."""

    datasets: Entries = described((), "the training sets; with a split also validation and test")
    schedule: Changes = described(
        (), "later weights, each with the first sample for which they hold"
    )
    valid: Mapping[str, Entries] = field(
        default_factory=dict, metadata={"help": "separate validation sets, by name"}
    )
    test: Entries = described((), "a separate test set")
    by: str = described(
        "tokens",
        "what weights mean: shares of tokens, of documents, or of trained tokens, or epochs",
        choices=MEANINGS,
    )
    temperature: float = described(1.0, "raise shares to the power 1/T, and normalise again", "T")
    seq_length: int = described(2048, "tokens of a sample", "S")
    samples: int | None = described(None, "samples of training", "N")
    tokens: float | None = described(None, "tokens in all, such as 3e11", "T")
    epochs: float | None = described(None, "epochs over all datasets", "E", otherwise="1")
    valid_samples: int | None = described(
        None,
        "samples of each validation set, 0: none",
        "N",
        otherwise="as many as fit without repeats",
        least=0,
    )
    test_samples: int | None = described(
        None,
        "samples of the test set, 0: none",
        "N",
        otherwise="as many as fit without repeats",
        least=0,
    )
    surplus: float = described(
        0.005, "Megatron-core's mid_level_dataset_surplus, as for blend_request", least=0
    )
    allow_empty: bool = described(
        False, "leave out a dataset that gets no sample in a part of the split"
    )
    source: str = field(default="", compare=False)  # the file that it was read from

    def changed(self, **changes: Unpack[BlendOptions]) -> BlendSpec:
        """The same request with other settings; one length replaces another."""
        for name in changes:
            if name not in OPTIONS:
                raise UsageError(unknown(f"a blend has no setting {name!r}", name, OPTIONS))
        values: dict[str, Any] = {**changes}
        if any(values.get(name) is not None for name in LENGTHS):
            values = {**dict.fromkeys(LENGTHS), **values}
        return replace(self, **values)

    def groups(self) -> Iterator[tuple[str, Entries]]:
        """All lists of datasets, each with the name of its purpose."""
        yield "train", self.datasets
        yield from self.valid.items()
        if self.test:
            yield "test", self.test

    @property
    def options(self) -> dict[str, Any]:
        """The options of GPTDataset that differ from their defaults, without order, seed and
        split.
        """
        values = {one.name: (getattr(self, one.name), one.default) for one in _OPTIONS}
        return {name: value for name, (value, default) in values.items() if value != default}

    @cached_property
    def settings(self) -> Settings:
        """The settings of the datasets of training; how many samples each gives is not known
        yet.
        """
        values = {name: getattr(self, name) for name in options_of(SampleSettings)}
        # NeoX's packing needs a number: each dataset is given its own when it is opened.
        return Settings(**values, seq_length=self.seq_length, samples=1)


_OPTIONS = [
    one
    for name, one in options_of(SampleSettings).items()
    if name not in ("order", "seed", "split", "split_by", "split_rule")
]
OPTIONS = {name: one for name, one in options_of(BlendSpec).items() if name != "source"}


def takes_settings(function: Callable[..., Any]) -> None:
    """Show the settings of a blend in the signature and help of a function."""
    show_options(function, OPTIONS.values())


def plain_option(value: Any) -> Any:
    """An option in the form of a file."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    values = {name: one for name, one in asdict(value).items() if one is not None}
    if "tokenizer" in values:
        raise UsageError("FIM with a tokenizer cannot be saved in a file: give it to open_blend")
    return values


def unknown(message: str, word: str, words: Iterable[str]) -> str:
    """``message``, followed by the one of ``words`` that was probably meant, or all of them."""
    near = nearest(word, words)
    return f"{message}; did you mean {near}?" if near else f"{message}; {', '.join(words)}"


def check_spec(spec: BlendSpec) -> None:
    """Raise UsageError for a request that no dataset could fulfil."""
    if not spec.datasets:
        raise UsageError("a blend needs at least one dataset")
    check_options(spec)
    spec.settings  # noqa: B018  raises UsageError
    if sum(getattr(spec, name) is not None for name in LENGTHS) > 1:
        raise UsageError("give samples, tokens or epochs, only one of them")
    for name, entries in spec.groups():
        if name in ("train", "test") and name in spec.valid:
            raise UsageError(f"a validation set is named {name}: give it another name")
        if not entries:
            raise UsageError(f"{name} has no datasets: name one, or leave {name} out")
        if spec.fim is not None and any(entry.labels is not None for entry in entries):
            raise UsageError("fim moves tokens away from their labels: give fim or labels")
        _check_weights(entries, spec.schedule if entries is spec.datasets else (), spec.rules)
    if spec.split is not None:
        wanted = wanted_parts(spec.split)
        for part, has_datasets in ((1, "valid" in spec.valid), (2, bool(spec.test))):
            if wanted[part] and has_datasets:
                raise UsageError(
                    f"split {spec.split!r} leaves a part for {PARTS[part]}, and {PARTS[part]} has "
                    "datasets of its own: keep one of them"
                )


def _check_weights(entries: Entries, schedule: Changes, rules: OrderRules) -> None:
    names = [entry.prefix for entry in entries]
    without = [entry.prefix for entry in entries if entry.weight is None]
    weights = [entry.weight for entry in entries if entry.weight is not None]
    if without and weights:
        raise UsageError(
            f"{len(weights)} weights for {len(entries)} datasets: {without[0]} has none; give all "
            "of them weights, or none"
        )
    if schedule and not weights:
        raise UsageError("a schedule needs weights to begin with: give each dataset one")
    if schedule:
        check_schedule(names, [(0, weights), *schedule], rules)
    elif weights:
        check_weights(names, weights)


def check_schedule(
    names: Sequence[str], changes: Sequence[tuple[int, Sequence[float]]], rules: OrderRules
) -> None:
    """Raise UsageError unless ``changes``, (first sample, a weight for each of ``names``), are
    phases.
    """
    if not rules.endless:
        raise UsageError(
            f"a schedule needs the stateless order: {rules.name} has one set of weights"
        )
    if not changes:
        raise UsageError("the schedule is empty: give (0, weights), (first sample, weights), ...")
    if changes[0][0] != 0:
        raise UsageError(f"the schedule begins at sample {changes[0][0]}, expected 0")
    for (last, _), (first, _) in pairwise(changes):
        if first <= last:
            raise UsageError(
                f"the schedule has sample {first} after sample {last}: each change must come later "
                "than the one before it"
            )
    for first, weights in changes:
        check_weights(names, weights, zero=True, where=f" from sample {first} on")
    for number, name in enumerate(names):
        if not any(weights[number] for _, weights in changes):
            raise UsageError(
                f"the weight of {name} is 0 in all of the schedule: leave the dataset out, or "
                "give it a share"
            )


def check_weights(
    names: Sequence[str], weights: Sequence[float], *, zero: bool = False, where: str = ""
) -> None:
    """Raise UsageError unless each of ``names`` has a positive weight; with ``zero``, one of
    them.
    """
    if len(weights) != len(names):
        raise UsageError(
            f"{len(weights)} weights for {len(names)} datasets{where}: give one for each"
        )
    for name, weight in zip(names, weights, strict=True):
        if not (0 < weight < math.inf or (zero and weight == 0)):
            raise UsageError(
                f"the weight of {name} is {weight:g}{where}, expected a number "
                f"{'of 0 or more' if zero else 'above 0'}: leave the dataset out, or give it a "
                "share"
            )
    if not any(weights):
        raise UsageError(f"the weights are all 0{where}: give one a share")

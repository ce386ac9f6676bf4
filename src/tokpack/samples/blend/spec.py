"""What is asked of a blend, before any dataset is opened."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tokpack.display import nearest
from tokpack.errors import UsageError
from tokpack.samples.blend.schedule import check_schedule, check_weights
from tokpack.samples.fim import FIM
from tokpack.samples.orders.rules import rules_of
from tokpack.samples.settings import Settings
from tokpack.samples.split_string import PARTS, wanted_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tokpack.samples.blend.mixture import Changes
    from tokpack.samples.orders.rules import OrderName, OrderRules

MEANINGS = ("tokens", "documents", "epochs")
LENGTHS = ("samples", "tokens", "epochs")
_SHARED = ("seq_length", "order", "seed", "split_by", "split_rule")  # with GPTDataset
_PLANNED = ("split", "split_index", "sequences", "epochs", "samples")
OPTIONS = tuple(known.name for known in fields(Settings) if known.name not in (*_SHARED, *_PLANNED))


class Entry(NamedTuple):
    """A dataset as it is asked for, with its weight, and what it was when the blend was saved."""

    prefix: str
    weight: float | None = None
    fingerprint: str | None = None
    checksum: str | None = None
    labels: str | None = None
    labels_fingerprint: str | None = None


Entries = tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True)
class BlendSpec:
    """The contents of a blend file.

    ``datasets`` are those of training, and with ``split`` of validation and test too. ``valid`` are
    named validation sets, ``test`` a test set, of datasets of their own. ``schedule`` has later
    weights of ``datasets``, each with the first sample that they hold for. ``options`` are those of
    GPTDataset, see OPTIONS. ``surplus`` is that of ``blend_request``. ``allow_empty`` leaves a
    dataset out where the split has no sample of it. ``source`` is the file that this comes from.
    """

    datasets: Entries
    schedule: Changes = ()
    valid: Mapping[str, Entries] = field(default_factory=dict)
    test: Entries = ()
    by: str = "tokens"
    temperature: float = 1.0
    seq_length: int = 2048
    samples: int | None = None
    tokens: float | None = None
    epochs: float | None = None
    valid_samples: int | None = None
    test_samples: int | None = None
    split: str | None = None
    split_by: str = Settings.split_by
    split_rule: str | None = None
    order: OrderName = Settings.order
    seed: int = Settings.seed
    surplus: float = 0.005
    allow_empty: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    source: str = field(default="", compare=False)

    @property
    def rules(self) -> OrderRules:
        """Those of its order. UsageError where there is none of that name."""
        return rules_of(self.order)

    def changed(self, **changes: Any) -> BlendSpec:
        """The same with other settings or options; a length takes the place of another."""
        check_names(changes)
        options = {name: changes.pop(name) for name in OPTIONS if name in changes}
        if any(changes.get(name) is not None for name in LENGTHS):
            changes = {**dict.fromkeys(LENGTHS), **changes}
        return replace(self, **changes, options={**self.options, **options})

    def groups(self) -> Iterator[tuple[str, Entries]]:
        """All lists of datasets, each with the name of what it is for."""
        yield "train", self.datasets
        yield from self.valid.items()
        if self.test:
            yield "test", self.test

    def settings(self) -> Settings:
        """The options of the datasets of training; how many samples each gives is not known yet."""
        values = {name: getattr(self, name) for name in _SHARED} | dict(self.options)
        # NeoX's packing needs some number: each dataset is told its own when it is opened.
        return Settings(**values, split=self.split, samples=1)


KEYS = (
    tuple(known.name for known in fields(BlendSpec) if known.name not in ("options", "source"))
    + OPTIONS
)


def plain_option(value: Any) -> Any:
    """An option as a file has it."""
    if not isinstance(value, FIM):
        return value
    if value.tokenizer is not None:
        raise UsageError("FIM with a tokenizer cannot be written down: give it to open_blend")
    return {k: v for k, v in asdict(value).items() if v is not None}


def check_names(names: Iterable[str]) -> None:
    """UsageError for a setting that no blend has, with the nearest one that there is."""
    for name in names:
        if name not in KEYS:
            raise UsageError(unknown(f"a blend has no setting {name!r}", name, KEYS))


def unknown(message: str, word: str, known: Iterable[str]) -> str:
    """``message``, with the known word that was probably meant, or all of them."""
    near = nearest(word, known)
    return f"{message}; did you mean {near}?" if near else f"{message}; {', '.join(known)}"


def check_spec(spec: BlendSpec) -> Settings:
    """The datasets' settings; UsageError for a request that no dataset could meet."""
    if not spec.datasets:
        raise UsageError("a blend needs at least one dataset")
    if spec.by not in MEANINGS:
        raise UsageError(f"weights are by {', '.join(MEANINGS)}, not by {spec.by!r}")
    if not (math.isfinite(spec.temperature) and spec.temperature > 0):
        raise UsageError(f"the temperature is {spec.temperature}, expected a number above 0")
    settings = spec.settings()
    _check_lengths(spec)
    for name, entries in spec.groups():
        if name in ("train", "test") and name in spec.valid:
            raise UsageError(f"a validation set is named {name}: give it another name")
        if not entries:
            raise UsageError(f"{name} has no datasets: name one, or leave it out")
        _check_labels(entries, spec.options.get("fim"))
        _check_weights(entries, spec.schedule if entries is spec.datasets else (), spec.rules)
    if spec.split is not None:
        wanted = wanted_parts(spec.split)
        for part, given in ((1, "valid" in spec.valid), (2, bool(spec.test))):
            if wanted[part] and given:
                raise UsageError(
                    f"split {spec.split!r} leaves a part for {PARTS[part]}, and {PARTS[part]} has "
                    "datasets of its own: keep one of them"
                )
    return settings


def _check_lengths(spec: BlendSpec) -> None:
    if sum(getattr(spec, name) is not None for name in LENGTHS) > 1:
        raise UsageError("give samples, tokens or epochs, only one of them")
    for name in LENGTHS:
        value = getattr(spec, name)
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{name} is {value}, expected a number above 0")
    for name in ("valid_samples", "test_samples"):
        value = getattr(spec, name)
        if value is not None and value < 0:
            raise UsageError(f"{name} is {value}, expected 0 or more")


def _check_weights(entries: Entries, schedule: Changes, rules: OrderRules) -> None:
    without = [entry.prefix for entry in entries if entry.weight is None]
    if without and len(without) < len(entries):
        raise UsageError(
            f"{len(entries) - len(without)} weights for {len(entries)} datasets: "
            f"{without[0]} has none; give each one, or none"
        )
    weights = [entry.weight for entry in entries if entry.weight is not None]
    names = [entry.prefix for entry in entries]
    if schedule and not weights:
        raise UsageError("a schedule needs weights to begin with: give each dataset one")
    if schedule:
        check_schedule(names, [(0, weights), *schedule], rules)
    elif weights:
        check_weights(names, weights)


def _check_labels(entries: Entries, fim: Any) -> None:
    without = [entry.prefix for entry in entries if entry.labels is None]
    if without and len(without) < len(entries):
        raise UsageError(
            f"{without[0]} has no labels, and others of its blend have: where every token counts, "
            "give its own prefix as labels"
        )
    if fim is not None and len(without) < len(entries):
        raise UsageError("fim moves tokens away from their labels: give fim or labels")

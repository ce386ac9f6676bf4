"""The plan of a blend: what each dataset gives, how often it is seen, and what to beware of."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from tokpack.errors import FormatError, InputError, UsageError
from tokpack.indexed import Manifest, MMapIndexedDataset, digest_file
from tokpack.indexed.writer import replace_file

if TYPE_CHECKING:
    from collections.abc import Sequence

BLEND_VERSION = 1
MEANINGS = ("tokens", "documents", "epochs")
_SUFFIXES = ("", "_text_document", "_text_sentence")


@dataclass(frozen=True)
class Member:
    """One dataset of a blend."""

    prefix: str
    documents: int
    tokens: int
    fingerprint: str  # xxh3_128 of the .bin where a manifest says it, else of the .idx
    tokenizer: str | None  # sha256 of its definition, where a manifest says it


@dataclass(frozen=True)
class BlendPlan:
    """Datasets and the share of the samples that each gives.

    ``weights`` are as given; what they mean is ``by``: shares of the tokens, shares of the
    documents, or epochs. ``shares`` are of the tokens, and add up to 1. ``samples`` have
    ``seq_length`` tokens each.
    """

    members: tuple[Member, ...]
    weights: tuple[float, ...]
    by: str
    temperature: float
    seq_length: int
    samples: int

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the tokens, and so of the samples, that each dataset gives."""
        raw = [
            (weight * self._tokens_a_weight(member)) ** (1 / self.temperature)
            for weight, member in zip(self.weights, self.members, strict=True)
        ]
        return tuple(value / math.fsum(raw) for value in raw)

    def _tokens_a_weight(self, member: Member) -> float:
        if self.by == "documents":
            return member.tokens / member.documents
        return float(member.tokens) if self.by == "epochs" else 1.0

    @property
    def member_samples(self) -> tuple[float, ...]:
        """Samples that each dataset gives; not whole, since the last ones depend on the order."""
        return tuple(share * self.samples for share in self.shares)

    @property
    def epochs(self) -> tuple[float, ...]:
        """How often each dataset is seen."""
        return tuple(
            count * self.seq_length / member.tokens
            for count, member in zip(self.member_samples, self.members, strict=True)
        )

    def warnings(self, max_epochs: float) -> list[str]:
        """What the user should know before a GPU does."""
        found = []
        for member, epochs, count in zip(
            self.members, self.epochs, self.member_samples, strict=True
        ):
            if epochs > max_epochs:
                found.append(
                    f"{member.prefix} is seen {epochs:.2f} times, more than {max_epochs:g}: "
                    "lower its weight, or raise --max-epochs"
                )
            if count < 1:
                found.append(f"{member.prefix} gives less than one of {self.samples:,} samples")
        seen: dict[str, str] = {}
        for member in self.members:
            if (first := seen.setdefault(member.fingerprint, member.prefix)) != member.prefix:
                found.append(f"{first} and {member.prefix} hold the same tokens")
        unknown = [member.prefix for member in self.members if member.tokenizer is None]
        if unknown and len(unknown) < len(self.members):
            found.append(f"no manifest says which tokenizer made {', '.join(unknown)}")
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as YAML, atomically. Raises OutputError."""
        values = {
            "tokpack_blend": BLEND_VERSION,
            "seq_length": self.seq_length,
            "samples": self.samples,
            "by": self.by,
            "temperature": self.temperature,
            "datasets": [
                {"prefix": m.prefix, "weight": w, "tokens": m.tokens, "fingerprint": m.fingerprint}
                for m, w in zip(self.members, self.weights, strict=True)
            ],
        }
        text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
        replace_file(path, [text.encode()])


def find_prefix(name: str) -> str:
    """The dataset that a user means: NAME, NAME.idx, NAME.bin or NAME_text_document."""
    base = name[:-4] if name.endswith((".idx", ".bin")) else name
    for suffix in _SUFFIXES:
        if MMapIndexedDataset.exists(base + suffix):
            return base + suffix
    tried = ", ".join(f"{base}{suffix}.idx" for suffix in _SUFFIXES)
    raise InputError(f"{name}: no such dataset; looked for {tried}, each with its .bin")


def read_member(name: str) -> Member:
    """Open a dataset and note what identifies it."""
    prefix = find_prefix(name)
    dataset = MMapIndexedDataset(prefix)
    tokens = int(np.sum(dataset.sizes, dtype=np.int64))
    if tokens == 0:
        raise InputError(f"{prefix}: no tokens in it")
    documents = len(dataset.doc_idx) - 1
    if not os.path.exists(prefix + ".json"):
        return Member(prefix, documents, tokens, digest_file(prefix + ".idx")["xxh3_128"], None)
    manifest = Manifest.load(prefix)
    sha256 = manifest.tokenizer.get("sha256")
    return Member(prefix, documents, tokens, manifest.bin["xxh3_128"], sha256)


def plan_blend(
    names: Sequence[str],
    weights: Sequence[float] | None = None,
    *,
    by: str = "tokens",
    temperature: float = 1.0,
    seq_length: int = 2048,
    samples: int | None = None,
    tokens: int | None = None,
    epochs: float | None = None,
) -> BlendPlan:
    """Plan a blend of the datasets ``names``; without ``weights`` each counts by its size.

    Its length is ``samples``, or ``tokens``, or ``epochs`` over all datasets together; one epoch
    when nothing is said. Raises InputError for a dataset that is missing or empty, UsageError for
    weights that are not positive finite numbers, one for each dataset, and for datasets of
    different tokenizers.
    """
    if not names:
        raise UsageError("a blend needs at least one dataset")
    if by not in MEANINGS:
        raise UsageError(f"weights are by {', '.join(MEANINGS)}, not by {by!r}")
    if not (math.isfinite(temperature) and temperature > 0):
        raise UsageError(f"the temperature is {temperature}, expected a number above 0")
    if seq_length < 1:
        raise UsageError(f"the sequence length is {seq_length}, expected at least 1")
    if sum(value is not None for value in (samples, tokens, epochs)) > 1:
        raise UsageError("give samples, tokens or epochs, only one of them")
    if weights is not None:
        _check_weights(weights, names)
    members = tuple(read_member(name) for name in names)
    _check_tokenizers(members)
    if weights is None:
        weights, by = [float(member.tokens) for member in members], "tokens"
    total = sum(member.tokens for member in members)
    if samples is None:
        if tokens is None:
            tokens = int(total * (1.0 if epochs is None else epochs))
        samples = tokens // seq_length
    if samples < 1:
        raise UsageError(
            f"{tokens if tokens is not None else samples:,} tokens are less than one sample of "
            f"{seq_length:,}: shorten the sequence length, or ask for more"
        )
    return BlendPlan(members, tuple(map(float, weights)), by, temperature, seq_length, samples)


def load_blend(path: str | os.PathLike[str]) -> BlendPlan:
    """Read a plan written by ``save`` and check that its datasets are still the same.

    Raises InputError or FormatError that names what is missing or has changed.
    """
    name = os.fspath(path)
    try:
        with open(path, encoding="utf-8") as file:
            values = yaml.safe_load(file)
    except OSError as error:
        raise InputError(f"{name}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FormatError(f"{name}: not YAML: {error}") from error
    if not isinstance(values, dict) or "tokpack_blend" not in values:
        raise FormatError(f"{name}: not a blend: expected the key tokpack_blend")
    if values["tokpack_blend"] != BLEND_VERSION:
        raise FormatError(
            f"{name}: blend version is {values['tokpack_blend']!r}, this tokpack knows "
            f"{BLEND_VERSION}"
        )
    try:
        datasets = [dict(entry) for entry in values["datasets"]]
        plan = plan_blend(
            [str(entry["prefix"]) for entry in datasets],
            [float(entry["weight"]) for entry in datasets],
            by=str(values["by"]),
            temperature=float(values["temperature"]),
            seq_length=int(values["seq_length"]),
            samples=int(values["samples"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise FormatError(f"{name}: not a blend: {error!r} is missing or wrong") from error
    for entry, member in zip(datasets, plan.members, strict=True):
        if entry.get("fingerprint") != member.fingerprint:
            raise InputError(
                f"{name}: {member.prefix} has changed since the blend was made (fingerprint "
                f"{member.fingerprint}, then {entry.get('fingerprint')}): plan the blend again"
            )
    return plan


def _check_weights(weights: Sequence[float], names: Sequence[str]) -> None:
    if len(weights) != len(names):
        raise UsageError(f"{len(weights)} weights for {len(names)} datasets")
    for weight, name in zip(weights, names, strict=True):
        if not (math.isfinite(weight) and weight > 0):
            raise UsageError(f"the weight of {name} is {weight:g}, expected a number above 0")


def _check_tokenizers(members: Sequence[Member]) -> None:
    known = [member for member in members if member.tokenizer is not None]
    for member in known[1:]:
        if member.tokenizer != known[0].tokenizer:
            raise UsageError(
                f"{known[0].prefix} and {member.prefix} were made with different tokenizers "
                f"({known[0].tokenizer} and {member.tokenizer}): ids of one mean nothing in the "
                "other"
            )


def as_json(plan: BlendPlan, max_epochs: float) -> dict[str, Any]:
    """The plan for machines."""
    rows = zip(
        plan.members, plan.weights, plan.shares, plan.member_samples, plan.epochs, strict=True
    )
    return {
        "seq_length": plan.seq_length,
        "samples": plan.samples,
        "tokens": plan.samples * plan.seq_length,
        "datasets": [
            {
                "prefix": member.prefix,
                "documents": member.documents,
                "tokens": member.tokens,
                "weight": weight,
                "share": share,
                "samples": samples,
                "epochs": epochs,
            }
            for member, weight, share, samples, epochs in rows
        ],
        "warnings": plan.warnings(max_epochs),
    }

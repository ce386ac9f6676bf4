"""The request for samples: signatures, keys of files and flags are generated from this record."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from tokpack.errors import UsageError, option
from tokpack.option import check_options, in_group
from tokpack.samples.orders import (
    ORDERS,
    PACKINGS,
    OrderName,
    OrderRules,
    PackingName,
    PackingRules,
    rules_of,
)

if TYPE_CHECKING:
    import os

    import numpy as np
    import numpy.typing as npt

    from tokpack.dataset import MMapIndexedDataset
    from tokpack.dataset.format import LengthSums
    from tokpack.samples.fim import FIM


Range = tuple[int, int]

PARTS = ("train", "valid", "test")  # the parts of a split string, in order
RULES = ("core", "classic")

_NUMBER = r"(?:\d+\.?\d*|\.\d+)"
_WEIGHTS = re.compile(rf"{_NUMBER}(?:[,/]{_NUMBER})*")
_RANGES = re.compile(rf"{_NUMBER}:{_NUMBER}(?:[,/]{_NUMBER}:{_NUMBER})*")
_MANY = 2**40  # sequences; enough that every share above 0 has some


def parse_split(text: str, documents: int, rule: str = "core") -> list[Range | None]:
    """The ranges [begin, end) of ``documents`` sequences for a split string; None for empty ones.

    ``text`` is either up to three weights of training, validation and test ("969,30,1",
    "0.9,0.05,0.05"), or any number of ranges of shares "begin:end" ("0:0.9,0.9:1").

    Weights are rounded as in Megatron-core from 0.5 on (``rule="core"``), or as in older versions,
    NeoX, bigscience and Megatron-DeepSpeed (``"classic"``): often one sequence differs. UsageError
    for anything else.
    """
    if rule not in RULES:
        raise UsageError(f"split rule {rule!r} is unknown: use one of {', '.join(RULES)}")
    shares = _shares(text)
    if isinstance(shares[0], tuple):
        ranges = [(round(a * documents), round(b * documents)) for a, b in shares]
    elif rule == "core":
        edges = [0.0, *accumulate(shares)]
        ends = [round(edge * float(documents)) for edge in edges]
        ranges = list(pairwise(ends))
    else:
        # Round each share by itself; then move all ends by the difference of their sum.
        ends = [0, *accumulate(round(share * float(documents)) for share in shares)]
        missed = ends[-1] - documents
        ends[1:] = [min(max(end - missed, 0), documents) for end in ends[1:]]
        ranges = list(pairwise(ends))
    return [pair if pair[0] < pair[1] else None for pair in ranges]


def wanted_parts(split: str) -> list[bool]:
    """Whether a split string is meant to leave something for training, validation and test."""
    parts = parse_split(split, _MANY)
    if len(parts) > len(PARTS):
        raise UsageError(
            f"split {split!r} has {len(parts)} ranges, expected up to {len(PARTS)}: training, "
            "validation and test"
        )
    return [number < len(parts) and parts[number] is not None for number in range(len(PARTS))]


def split_bounds(text: str) -> list[tuple[float, float] | None]:
    """The shares [begin, end) of training, validation and test in a split string of weights.

    None for a part without any. UsageError for ranges, and for anything else.
    """
    shares = _shares(text)
    if isinstance(shares[0], tuple):
        raise UsageError(
            f"split {text!r}: Megatron takes only weights, such as 969,30,1, not ranges"
        )
    edges = pairwise(accumulate([0, *shares]))
    return [(begin, end) if begin < end else None for begin, end in edges]


def split_tokens(text: str, lengths: npt.NDArray[np.int32] | LengthSums) -> list[Range | None]:
    """The ranges [begin, end) of sequences whose tokens have the shares of a split string.

    ``lengths`` int32 [n] are the tokens of each sequence, or their sums. A sequence belongs to the
    range in which its last token lies, so a range misses its share by less than one sequence.
    """
    from tokpack.dataset.format import LengthSums

    shares = _shares(text)
    pairs = shares
    if not isinstance(shares[0], tuple):
        pairs = list(pairwise([0.0, *accumulate(shares)]))
    sums = lengths if isinstance(lengths, LengthSums) else LengthSums.of(lengths)
    total = sums.total(0, len(sums.lengths))
    ends = {e: sums.ending_within(round(e * total)) for e in {e for pair in pairs for e in pair}}
    ranges = [(ends[a], ends[b]) for a, b in pairs]
    return [pair if pair[0] < pair[1] else None for pair in ranges]


def _shares(text: str) -> list[Any]:
    """Three weights that add up to 1, or (begin, end) of each range, as shares."""
    compact = re.sub(r"\s", "", text)
    if _RANGES.fullmatch(compact):
        pairs = [tuple(map(float, pair.split(":"))) for pair in re.split(r"[,/]", compact)]
        for begin, end in pairs:
            if end > 1:
                raise UsageError(f"split {text!r}: the range {begin}:{end} goes beyond 1")
        return pairs
    if not _WEIGHTS.fullmatch(compact):
        raise UsageError(
            f"split {text!r} is neither weights, such as 969,30,1, nor ranges, such as 0:0.9,0.9:1"
        )
    weights = [float(weight) for weight in re.split(r"[,/]", compact)]
    if len(weights) > len(PARTS):
        raise UsageError(
            f"split {text!r} has {len(weights)} weights, expected up to {len(PARTS)}: training, "
            "validation and test; ranges such as 0:0.9,0.9:0.95 name any number"
        )
    weights += [0.0] * (len(PARTS) - len(weights))
    total = sum(weights)
    if not 0 < total < float("inf"):
        raise UsageError(f"split {text!r}: the weights add up to {total}")
    return [weight / total for weight in weights]


LONGEST_PACKED = 2**24 - 1  # tokens of a sample with packed documents
SPLIT_BY = ("documents", "tokens")
LOSSES = ("trained", "all")


described = in_group()


@dataclass(frozen=True, kw_only=True)
class SampleSettings:
    """The settings common to GPTDataset and blends."""

    order: OrderName = described(
        "stateless",
        "stateless, stateless-blocks, or that of another program: megatron, neox, ...",
        "NAME",
        choices=tuple(ORDERS),
    )
    seed: int = described(1234, "seed of the order", "N", least=0, most=2**64 - 1)
    split: str | None = described(None, "shares of the sequences, such as 969,30,1", "STRING")
    split_by: str = described("documents", "what the shares of a split count", choices=SPLIT_BY)
    split_rule: str | None = described(
        None,
        "how the split is rounded, core or classic (as in the order's program)",
        choices=RULES,
    )
    add_extra_token: bool = described(
        True, "read one more token as the last label; without it the last label has no loss"
    )
    drop_last: bool = described(
        True,
        "leave out a shorter last sample in the order of another program; if kept, it is filled "
        "with 0, without a loss",
    )
    eod_id: int | None = described(
        None, "the token that ends documents (the manifest's)", least=-math.inf
    )
    pad_id: int | None = described(
        None,
        "the padding token of Megatron-core's tokenizer, if it has one: as there, labels equal to "
        "it have no loss, and it is replaced by 0 wherever it occurs",
        least=-math.inf,
    )
    eod_mask_loss: bool = described(False, "no loss where eod_id is an input token, as in Megatron")
    reset_position_ids: bool = described(False, "positions restart after eod_id")
    reset_attention_mask: bool = described(False, "attention does not cross eod_id")
    document_boundaries: bool = described(
        False, "positions restart and attention ends at each document of the index"
    )
    packing: PackingName = described(
        "none",
        "best_fit packs whole documents together, document puts one in each sample; "
        "pack_until_overflow and unpacked are NeoX's",
        "NAME",
        choices=tuple(PACKINGS),
    )
    pad_to_multiple_of: int = described(
        1,
        "packed documents are padded to a multiple of N tokens, such as lcm(2 CP, CP TP) for "
        "context parallelism",
        "N",
    )
    loss: str = described(
        "trained",
        "which labels count: those selected by a dataset's mask, weights or labels (trained), or "
        "all",
        choices=LOSSES,
    )
    fim: FIM | None = described(None, "rearrange documents for fill-in-the-middle, see FIM")
    cache: str | os.PathLike[str] | None = described(
        None,
        "a folder, see IndexCache: arrays of other programs' orders and of best_fit are written "
        "there once, then mapped (built in memory each time)",
        "DIR",
    )

    @property
    def rules(self) -> OrderRules:
        """The rules of its order. UsageError if there is no order of that name."""
        return rules_of(self.order)


@dataclass(frozen=True, kw_only=True)
class Settings(SampleSettings):
    """The options of GPTDataset. UsageError for a value outside of its range."""

    seq_length: int
    split_index: int = described(0, "the part of the split to read")
    sequences: tuple[int, int] | None = described(
        None, "the range [begin, end) of sequences to read, instead of a split"
    )
    epochs: int | None = described(None, "the length in epochs (1), instead of samples")
    samples: int | None = described(None, "the length in samples, instead of epochs")

    def __post_init__(self) -> None:
        check_options(self)
        if self.split is not None and self.sequences is not None:
            raise UsageError("split and sequences both say what to read: give one of them")
        if self.rules.endless and not self.drop_last:
            raise UsageError(
                "drop_last=False: the stateless order has only whole samples; leave it out"
            )
        if self.epochs is not None and self.samples is not None:
            raise UsageError(
                f"{option('epochs')} is {self.epochs} and {option('samples')} is {self.samples}: "
                "give one of them"
            )
        if self.reset_attention_mask and self.document_boundaries:
            raise UsageError(
                f"{option('reset_attention_mask')} finds documents by EOD, "
                f"{option('document_boundaries')} by the index: give one of them"
            )
        if self.pad_id is not None and not self.rules.takes_pad_id:
            raise UsageError(
                f"{option('pad_id')} is {self.pad_id}, but only Megatron-core's order has a "
                f"padding token, and the order is {self.order!r}: leave it out"
            )
        self._check_packing()
        if self.fim is not None:
            from tokpack.samples.fim import FIM

            if isinstance(self.fim, Mapping):  # as in a file
                object.__setattr__(self, "fim", FIM.of(self.fim))
            elif not isinstance(self.fim, FIM):
                raise UsageError(f"fim is {self.fim!r}, expected a FIM or its options by name")

    def _check_packing(self) -> None:
        rules = self.packing_rules
        if rules.order == "stateless" and self.reset_attention_mask:
            raise UsageError(
                f"{option('packing', self.packing)} separates documents already: leave out "
                f"{option('reset_attention_mask')}"
            )
        if rules.order not in (None, self.order):
            raise UsageError(
                f"{option('packing', self.packing)} goes with {option('order', rules.order)}, not "
                f"{self.order!r}"
            )
        multiple = self.pad_to_multiple_of
        if self.seq_length % multiple:
            raise UsageError(
                f"{option('pad_to_multiple_of')} is {multiple}, expected a divisor of "
                f"{option('seq_length')}, {self.seq_length}"
            )
        if multiple != 1 and (rules.order != "stateless" or self.fim is not None):
            raise UsageError(
                f"{option('pad_to_multiple_of')} needs packed documents, as with "
                f"{option('packing', 'best_fit')}, and no fim"
            )
        if rules.order == "stateless" and self.seq_length > LONGEST_PACKED:
            raise UsageError(
                f"{option('seq_length')} is {self.seq_length}, expected at most {LONGEST_PACKED} "
                "for packed documents"
            )
        whole = self.samples and self.add_extra_token and self.drop_last
        if rules.needs_samples and not whole:
            raise UsageError(
                f"{option('packing', self.packing)} needs {option('samples')} (in NeoX they follow "
                "from the training iterations), add_extra_token and drop_last"
            )

    @property
    def packing_rules(self) -> PackingRules:
        """The rules of its packing."""
        return PACKINGS[self.packing]

    @property
    def extra(self) -> int:
        """The tokens that a sample reads in addition to its ``seq_length``: 1 or 0."""
        return int(self.add_extra_token)

    def is_enough(self, tokens: int) -> bool:
        """Whether this number of tokens is enough for a sample.

        One token is enough if packing fills up the rest, or if a sample may continue in the next
        epoch.
        """
        whole = self.rules.endless and self.packing == "none"
        return tokens >= (self.seq_length + self.extra if whole else 1)

    def check_enough(self, tokens: int) -> None:
        """Raise UsageError if this number of tokens is not enough for a sample."""
        if not self.is_enough(tokens):
            raise UsageError(
                f"{tokens:,} tokens are less than one sample of {self.seq_length + self.extra:,} "
                f"({option('seq_length')} {self.seq_length:,} plus {self.extra}): use shorter "
                "samples, or more data"
            )

    @property
    def needs_eod(self) -> bool:
        """Whether one of the options looks for EOD among the tokens."""
        resets = self.reset_position_ids or self.reset_attention_mask
        return self.eod_mask_loss or resets or self.fim is not None

    def ranges(self, dataset: MMapIndexedDataset) -> list[Range | None]:
        """The sequences [begin, end) of each part of the split; without a split all, as one part.

        None for an empty part. A split string is rounded by ``split_rule``, or else as the program
        of the order does.
        """
        if self.split is None:
            return [(0, len(dataset))]
        if self.split_by == "tokens":
            return split_tokens(self.split, dataset.length_sums)
        return parse_split(self.split, len(dataset), self.split_rule or self.rules.split_rule)

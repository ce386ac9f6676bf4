"""What a GPTDataset is told besides its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import index as as_integer
from typing import TYPE_CHECKING, Literal, get_args

from tokpack.errors import UsageError
from tokpack.samples.fim import FIM
from tokpack.samples.megatron.flavours import FLAVOURS, FlavourName
from tokpack.samples.megatron.neox_packing import NEOX_PACKED, NeoxPackingName
from tokpack.samples.orders.packing import LONGEST_SAMPLE, OwnPackingName
from tokpack.samples.split_string import parse_split, split_tokens

if TYPE_CHECKING:
    import os

    from tokpack.indexed import MMapIndexedDataset
    from tokpack.samples.split_string import Range

MOST_SAMPLES = 2**62  # the largest number of samples that an order can have
OwnOrderName = Literal["stateless", "stateless-blocks"]
OrderName = Literal[OwnOrderName, FlavourName]
PackingName = Literal["none", OwnPackingName, NeoxPackingName]
# Orders without an end; the others are those of other programs.
OWN_ORDERS: tuple[str, ...] = get_args(OwnOrderName)
ORDERS: tuple[str, ...] = get_args(OrderName)
PACKINGS: tuple[str, ...] = get_args(PackingName)
SPLIT_BY = ("documents", "tokens")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of GPTDataset, see there. UsageError for a value that none of them can have."""

    seq_length: int
    order: OrderName = "stateless"
    seed: int = 1234
    split: str | None = None
    split_index: int = 0
    sequences: tuple[int, int] | None = None
    split_rule: str | None = None
    split_by: str = "documents"
    epochs: int | None = None
    samples: int | None = None
    add_extra_token: bool = True
    drop_last: bool = True
    eod_id: int | None = None
    eod_mask_loss: bool = False
    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    document_boundaries: bool = False
    packing: PackingName = "none"
    fim: FIM | None = None
    cache: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        self._check_kinds()
        if self.order not in ORDERS:
            raise UsageError(f"order {self.order!r} is unknown: use one of {', '.join(ORDERS)}")
        if self.order in OWN_ORDERS and not self.drop_last:
            raise UsageError("drop_last=False: the stateless order has whole samples only")
        if self.split_by not in SPLIT_BY:
            raise UsageError(
                f"split_by is {self.split_by!r}, expected one of {', '.join(SPLIT_BY)}"
            )
        if self.seq_length < 1:
            raise UsageError(f"seq_length is {self.seq_length}, expected 1 or more")
        if not 0 <= self.seed < 2**64:
            raise UsageError(f"seed is {self.seed}, expected 0 to 2**64 - 1")
        if self.epochs is not None and self.samples is not None:
            raise UsageError(
                f"epochs is {self.epochs} and samples is {self.samples}: give one of them"
            )
        for name, value in (("epochs", self.epochs), ("samples", self.samples)):
            if value is not None and not 1 <= value <= MOST_SAMPLES:
                raise UsageError(f"{name} is {value}, expected 1 or more, and 2**62 at most")
        if self.reset_attention_mask and self.document_boundaries:
            raise UsageError(
                "reset_attention_mask takes documents from EOD, document_boundaries from the "
                "index: give one of them"
            )
        self._check_packing()
        if isinstance(self.fim, Mapping):  # from a file
            object.__setattr__(self, "fim", FIM.of(self.fim))
        if not isinstance(self.fim, FIM | None):
            raise UsageError(f"fim is {self.fim!r}, expected a FIM or its options by name")

    def _check_kinds(self) -> None:
        for name in ("seq_length", "seed", "split_index", "epochs", "samples", "eod_id"):
            value = getattr(self, name)
            if value is None and getattr(Settings, name, 0) is None:
                continue
            try:  # numpy's integers become Python's, which all compare and print alike
                object.__setattr__(self, name, as_integer(value))
            except TypeError:
                raise UsageError(f"{name} is {value!r}, expected a whole number") from None
        if not isinstance(self.split, str | None):
            raise UsageError(f"split is {self.split!r}, expected text such as '969,30,1'")
        if self.split is not None and self.sequences is not None:
            raise UsageError("split and sequences are both given: each says what is read")

    def _check_packing(self) -> None:
        if self.packing not in PACKINGS:
            raise UsageError(f"packing is {self.packing!r}, expected one of {', '.join(PACKINGS)}")
        if self.packing == "none":
            return
        order = "neox" if self.packing in NEOX_PACKED else "stateless"
        if self.reset_attention_mask and order == "stateless":
            raise UsageError(
                f"packing={self.packing!r} has the boundaries of its documents already: leave out "
                "reset_attention_mask"
            )
        if self.order != order:
            raise UsageError(
                f"packing={self.packing!r} goes with order={order!r}, not {self.order!r}"
            )
        if order == "stateless" and self.seq_length > LONGEST_SAMPLE:
            raise UsageError(
                f"seq_length is {self.seq_length}: documents are packed into {LONGEST_SAMPLE} "
                "tokens or fewer"
            )
        if order == "neox" and not (self.samples and self.add_extra_token and self.drop_last):
            raise UsageError(
                f"packing={self.packing!r} needs samples, which NeoX takes from its training "
                "iterations, add_extra_token and drop_last"
            )

    @property
    def extra(self) -> int:
        """Tokens that a sample reads besides its ``seq_length``: 1 or 0."""
        return int(self.add_extra_token)

    @property
    def needs_eod(self) -> bool:
        """Whether any of the options looks for EOD among the tokens."""
        resets = self.reset_position_ids or self.reset_attention_mask
        return self.eod_mask_loss or resets or self.fim is not None

    def ranges(self, dataset: MMapIndexedDataset) -> list[Range | None]:
        """The sequences [begin, end) of each part of the split; without a split all, as one part.

        None for a part that comes out empty. A split string is rounded by ``split_rule``, else as
        the program of the order does.
        """
        if self.split is None:
            return [(0, len(dataset))]
        if self.split_by == "tokens":
            return split_tokens(self.split, dataset.length_sums)
        own = FLAVOURS[self.order].split_rule if self.order in FLAVOURS else "core"
        return parse_split(self.split, len(dataset), self.split_rule or own)

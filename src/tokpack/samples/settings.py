"""What a GPTDataset is told besides its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import index as as_integer
from typing import TYPE_CHECKING, Any, Literal, get_args

from tokpack.errors import UsageError, option
from tokpack.samples.fim import FIM
from tokpack.samples.megatron.flavours import FLAVOURS, FlavourName
from tokpack.samples.megatron.neox_packing import NEOX_PACKED, NeoxPackingName
from tokpack.samples.orders.packing import LONGEST_SAMPLE, OwnPackingName
from tokpack.samples.orders.rules import OWN_ORDERS, OrderRules, OwnOrderName
from tokpack.samples.split_string import parse_split, split_tokens

if TYPE_CHECKING:
    import os

    from tokpack.indexed import MMapIndexedDataset
    from tokpack.samples.split_string import Range

MOST_SAMPLES = 2**62  # the largest number of samples that an order can have
OrderName = Literal[OwnOrderName, FlavourName]
PackingName = Literal["none", OwnPackingName, NeoxPackingName]
ORDERS: dict[str, OrderRules] = {**OWN_ORDERS, **FLAVOURS}
PACKINGS: tuple[str, ...] = get_args(PackingName)
SPLIT_BY = ("documents", "tokens")


def rules_of(order: str) -> OrderRules:
    """The rules of the order of that name; UsageError where there is none."""
    try:
        return ORDERS[order]
    except KeyError:
        raise UsageError(f"order {order!r} is unknown: use one of {', '.join(ORDERS)}") from None


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of GPTDataset. UsageError for a value that none of them can have."""

    seq_length: int
    order: OrderName = _option(
        "stateless", "stateless, stateless-blocks, or that of another program: megatron, neox, ..."
    )
    seed: int = _option(1234, "of the order")
    split: str | None = _option(None, "shares of the sequences, see parse_split")
    split_index: int = _option(0, "the part of the split that is read")
    sequences: tuple[int, int] | None = _option(
        None, "begin and end of those that are read, in place of a split"
    )
    split_rule: str | None = _option(None, "how the split is rounded (as the order's program does)")
    split_by: str = _option("documents", "what shares are of, documents or tokens")
    epochs: int | None = _option(None, "the length (1), in place of samples")
    samples: int | None = _option(None, "the length, in place of epochs")
    add_extra_token: bool = _option(
        True, "read one token more than the sample has, as its last label; else that has no loss"
    )
    drop_last: bool = _option(
        True,
        "leave out the last, shorter sample of another program's order; else its missing tokens "
        "are 0, without a loss",
    )
    eod_id: int | None = _option(None, "the token that ends documents (that of the manifest)")
    pad_id: int | None = _option(
        None,
        "the padding of Megatron-core's tokenizer, where it has one: as there, labels equal to it "
        "have no loss, and wherever it occurs it becomes 0",
    )
    eod_mask_loss: bool = _option(False, "no loss where eod_id is an input token, as in Megatron")
    reset_position_ids: bool = _option(False, "positions begin anew behind eod_id")
    reset_attention_mask: bool = _option(False, "attention does not cross eod_id")
    document_boundaries: bool = _option(
        False, "positions begin anew, and attention ends, with every document of the index"
    )
    packing: PackingName = _option(
        "none",
        "best_fit puts whole documents together, document one into a sample, see PackedOrder; "
        "pack_until_overflow and unpacked are NeoX's, see NeoxPackedOrder",
    )
    fim: FIM | None = _option(None, "rearrange documents for filling in the middle, see FIM")
    cache: str | os.PathLike[str] | None = _option(
        None,
        "a folder, see IndexCache: the arrays of other programs' orders and of best_fit are "
        "mapped from a file in it, written when it is absent (built in memory, each time)",
    )

    def __post_init__(self) -> None:
        self._check_kinds()
        if rules_of(self.order).endless and not self.drop_last:
            raise UsageError("drop_last=False: the stateless order has whole samples only")
        if self.split_by not in SPLIT_BY:
            raise UsageError(
                f"{option('split_by')} is {self.split_by!r}, expected one of {', '.join(SPLIT_BY)}"
            )
        if self.seq_length < 1:
            raise UsageError(f"{option('seq_length')} is {self.seq_length}, expected 1 or more")
        if not 0 <= self.seed < 2**64:
            raise UsageError(f"{option('seed')} is {self.seed}, expected 0 to 2**64 - 1")
        if self.epochs is not None and self.samples is not None:
            raise UsageError(
                f"{option('epochs')} is {self.epochs} and {option('samples')} is {self.samples}: "
                "give one of them"
            )
        for name, value in (("epochs", self.epochs), ("samples", self.samples)):
            if value is not None and not 1 <= value <= MOST_SAMPLES:
                raise UsageError(
                    f"{option(name)} is {value}, expected 1 or more, and 2**62 at most"
                )
        if self.reset_attention_mask and self.document_boundaries:
            raise UsageError(
                f"{option('reset_attention_mask')} takes documents from EOD, "
                f"{option('document_boundaries')} from the index: give one of them"
            )
        if self.pad_id is not None and not self.rules.takes_pad_id:
            raise UsageError(
                f"{option('pad_id')} is {self.pad_id}, which Megatron-core takes for padding: "
                f"other orders, such as {self.order!r}, leave every token as it is; leave it out"
            )
        self._check_packing()
        if isinstance(self.fim, Mapping):  # from a file
            object.__setattr__(self, "fim", FIM.of(self.fim))
        if not isinstance(self.fim, FIM | None):
            raise UsageError(f"fim is {self.fim!r}, expected a FIM or its options by name")

    def _check_kinds(self) -> None:
        for name in ("seq_length", "seed", "split_index", "epochs", "samples", "eod_id", "pad_id"):
            value = getattr(self, name)
            if value is None and getattr(Settings, name, 0) is None:
                continue
            try:  # numpy's integers become Python's, which all compare and print alike
                object.__setattr__(self, name, as_integer(value))
            except TypeError:
                raise UsageError(f"{option(name)} is {value!r}, expected a whole number") from None
        if not isinstance(self.split, str | None):
            raise UsageError(
                f"{option('split')} is {self.split!r}, expected text such as '969,30,1'"
            )
        if self.split is not None and self.sequences is not None:
            raise UsageError("split and sequences are both given: each says what is read")

    def _check_packing(self) -> None:
        if self.packing not in PACKINGS:
            raise UsageError(
                f"{option('packing')} is {self.packing!r}, expected one of {', '.join(PACKINGS)}"
            )
        if self.packing == "none":
            return
        order = "neox" if self.packing in NEOX_PACKED else "stateless"
        if self.reset_attention_mask and order == "stateless":
            raise UsageError(
                f"{option('packing', self.packing)} has the boundaries of its documents already: "
                f"leave out {option('reset_attention_mask')}"
            )
        if self.order != order:
            raise UsageError(
                f"{option('packing', self.packing)} goes with {option('order', order)}, not "
                f"{self.order!r}"
            )
        if order == "stateless" and self.seq_length > LONGEST_SAMPLE:
            raise UsageError(
                f"{option('seq_length')} is {self.seq_length}: documents are packed into "
                f"{LONGEST_SAMPLE} tokens or fewer"
            )
        if order == "neox" and not (self.samples and self.add_extra_token and self.drop_last):
            raise UsageError(
                f"{option('packing', self.packing)} needs samples, which NeoX takes from its "
                "training iterations, add_extra_token and drop_last"
            )

    @property
    def rules(self) -> OrderRules:
        """Those of its order."""
        return ORDERS[self.order]

    @property
    def extra(self) -> int:
        """Tokens that a sample reads besides its ``seq_length``: 1 or 0."""
        return int(self.add_extra_token)

    @property
    def least_tokens(self) -> int:
        """The fewest tokens that give a sample.

        One is enough where packing fills up the rest, or a sample may go on in the next epoch.
        """
        whole = self.rules.endless and self.packing == "none"
        return self.seq_length + self.extra if whole else 1

    def too_few(self, tokens: int) -> str:
        """What an error says of fewer ``tokens`` than that."""
        return (
            f"{tokens:,} tokens are less than one sample of {self.seq_length + self.extra:,} "
            f"({option('seq_length')} {self.seq_length:,} and {self.extra} more): use a shorter "
            "one, or more data"
        )

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
        return parse_split(self.split, len(dataset), self.split_rule or self.rules.split_rule)

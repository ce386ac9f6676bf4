"""The options of GPTDataset as keyword arguments, for type checkers; Settings has all else.

mypy compares the two where GPTDataset makes one of the other, and a test does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import os

    from tokpack.samples.fim import FIM
    from tokpack.samples.orders.rules import OrderName, PackingName


class SampleOptions(TypedDict, total=False):
    """The options of GPTDataset but ``seq_length``; Settings says what they mean."""

    order: OrderName
    seed: int
    split: str | None
    split_index: int
    sequences: tuple[int, int] | None
    split_rule: str | None
    split_by: str
    epochs: int | None
    samples: int | None
    add_extra_token: bool
    drop_last: bool
    eod_id: int | None
    pad_id: int | None
    eod_mask_loss: bool
    reset_position_ids: bool
    reset_attention_mask: bool
    document_boundaries: bool
    packing: PackingName
    fim: FIM | None
    cache: str | os.PathLike[str] | None

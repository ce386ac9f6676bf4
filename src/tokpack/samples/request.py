"""The settings of samples as keyword arguments, for type checkers; the records say what they mean.

mypy compares the two where one is made of the other, and a test does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from tokpack.samples.blend.spec import Changes, Entries
    from tokpack.samples.fim import FIM
    from tokpack.samples.orders.rules import OrderName, PackingName


class CommonOptions(TypedDict, total=False):
    """Those of SampleSettings."""

    order: OrderName
    seed: int
    split: str | None
    split_by: str
    split_rule: str | None
    add_extra_token: bool
    drop_last: bool
    eod_id: int | None
    pad_id: int | None
    eod_mask_loss: bool
    reset_position_ids: bool
    reset_attention_mask: bool
    document_boundaries: bool
    packing: PackingName
    pad_to_multiple_of: int
    loss: str
    fim: FIM | None
    cache: str | os.PathLike[str] | None


class SampleOptions(CommonOptions, total=False):
    """Those of Settings, the options of GPTDataset, but ``seq_length``."""

    split_index: int
    sequences: tuple[int, int] | None
    epochs: int | None
    samples: int | None


class BlendOptions(CommonOptions, total=False):
    """Those of BlendSpec."""

    datasets: Entries
    schedule: Changes
    valid: Mapping[str, Entries]
    test: Entries
    by: str
    temperature: float
    seq_length: int
    samples: int | None
    tokens: float | None
    epochs: float | None
    valid_samples: int | None
    test_samples: int | None
    surplus: float
    allow_empty: bool

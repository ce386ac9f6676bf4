"""The cases whose results by Megatron and its relatives are stored, and the datasets they read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from support.optional import SHARED
from support.places import GOLDEN
from tokpack.samples.megatron.orders import MegatronOrder, megatron_index_key
from tokpack.samples.orders.rows import OrderInput

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

PARTS = ("train", "valid", "test")
_LISTED = json.loads((GOLDEN / "index" / "settings.json").read_text())
# Cases that settings.json does not list.
_SINGLE = {
    "edge_s7": ("edge", 7, (300,), 2, "1,0,0"),
    "long_s256": ("long", 256, (1000, 60, 20), 3, "8,1,1"),
    "owt_s1024_900": ("owt", 1024, (3300, 200, 100), 42, "900,50,50"),
    "owt_s128_thirds": ("owt", 128, (9000, 3000, 12000), 2024, "1,1,1"),
    "short_s64": ("short", 64, (4000, 60, 60), 1234, "949,50,1"),
}
_BLENDS = {
    "b3": ({"owt": 30.0, "long": 20.0, "short": 50.0}, (5000, 50, 20), 1234),
    "b4irr": ({"owt": 0.1, "long": 0.2, "short": 0.3, "owt2": 0.4}, (4999, 31, 17), 7),
}


def stored(folder: Path, *, blends: bool) -> list[Path]:
    """What programs built of one dataset, or of blends with weights."""
    return [
        file
        for file in sorted(folder.glob("*/*.npz"))
        if file.parent.name != "masks"
        and file.stem.startswith("b") == blends
        and "pack_until_overflow" not in file.stem  # another packing
        and not file.stem.startswith("bnone")
    ]


def single_case(name: str) -> dict[str, Any]:
    """The settings of a case of one dataset."""
    if name in _SINGLE:
        keys = ("dataset", "seq_length", "num_samples", "seed", "split")
        return dict(zip(keys, _SINGLE[name], strict=True))
    return dict(_LISTED["single"][name])


def blend_case(name: str) -> dict[str, Any]:
    """The settings of a case of a blend, whose ``weights`` are by the names of datasets."""
    if name in _BLENDS:
        weights, samples, seed = _BLENDS[name]
        case = {"weights": weights, "num_samples": samples, "seed": seed}
        return {**case, "seq_length": 128, "split": "90,5,5"}
    case = _LISTED["blend"][name]
    return {**case, "weights": dict(case["weights"])}


def prefix_of(folder: Path, name: str) -> str:
    """Where a dataset lies whose results are in ``folder``; owt is real data."""
    if name.startswith("owt"):
        return str(SHARED / "megatron" / "meg-gpt2-openwebtext_text_document")
    return str(folder / name)


def megatron_order(
    lengths: np.ndarray[Any, Any],
    begin: int,
    end: int,
    seq_length: int,
    num_samples: int | None,
    *,
    seed: int,
    flavour: str = "megatron",
    add_extra_token: bool = True,
    drop_last: bool = True,
) -> MegatronOrder:
    """The order of these sequences."""
    data = OrderInput(lengths, begin, end, seq_length, int(add_extra_token), seed, fingerprint=1)
    key = megatron_index_key(data, num_samples, flavour=flavour, drop_last=drop_last)
    return MegatronOrder(key, flavour=flavour)

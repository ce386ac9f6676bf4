"""Samples, masks and blends equal to what Megatron and its relatives gave for the same data."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.places import GOLDEN

from tokpack import BlendedDataset, GPTDataset
from tokpack.samples import attention_mask

if TYPE_CHECKING:
    from pathlib import Path

PARTS = ("train", "valid", "test")
EOD = 4999
ALL = {"eod_mask_loss": True, "reset_position_ids": True, "reset_attention_mask": True}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("plain", {}),
        ("eodloss", {"eod_mask_loss": True}),
        ("resetpos", {"reset_position_ids": True}),
        ("resetmask", {"reset_attention_mask": True}),
        ("all", ALL),
        ("interdoc", {"document_boundaries": True}),
        ("noextra", {"add_extra_token": False}),
        ("pad", {"pad_id": 4157, "eod_mask_loss": True, "reset_position_ids": True}),
    ],
)
def test_masks_are_those_of_megatron(index: Path, name: str, options: dict[str, Any]) -> None:
    folder = GOLDEN / "index" if name == "pad" else index
    with np.load(folder / "masks" / f"{name}.npz") as file:
        arrays = dict(file)
    for place, part in enumerate(PARTS[:2]):
        dataset = GPTDataset(
            index / "eod",
            512,
            order="megatron",
            split="80,15,5",
            split_index=place,
            num_samples=(50, None)[place],
            drop_last=place == 0,  # so that one sample of the second part is padded
            eod_id=EOD,
            **options,
        )
        expected = {k.removeprefix(f"{part}_"): a for k, a in arrays.items() if k.startswith(part)}
        masks = expected.pop("attention_mask", None)
        assert (masks is None) == ("reset_attention_mask" not in options)
        assert len(expected) == (6 if name == "interdoc" else 4)
        assert place == 0 or len(dataset) == 16
        for number in range(len(expected["tokens"])):
            sample = dataset[number]
            if masks is not None:
                found = attention_mask(sample.pop("cu_seqlens"))
                assert found.shape == (1, 512, 512)
                assert np.array_equal(np.packbits(found), masks[number]), (part, number)
                del sample["max_seqlen"]
            assert sample.keys() == expected.keys()
            for key, array in sample.items():
                assert array.dtype == expected[key].dtype
                assert np.array_equal(array, expected[key][number]), (part, key, number)


def open_part(index: Path, cases: Any, order: str, case: Any, part: int, **more: Any) -> Any:
    file = cases["files"].get(case.get("dataset"), case.get("dataset"))
    return GPTDataset(
        index / file,
        case["seq_length"],
        order=order,
        seed=case["seed"],
        split=case["split"],
        split_index=part,
        add_extra_token=case.get("add_extra_token_to_sequence", True),
        drop_last=part != 1 or case.get("drop_last_partial_validation_sequence", True),
        **more,
    )


@pytest.mark.parametrize("folder", ["megatron", "neox", "bigscience", "microsoft"])
def test_tokens_are_those_of_the_program(index: Path, folder: str) -> None:
    cases = json.loads((index / "settings.json").read_text())
    compared = 0
    for name, case in cases["single"].items():
        path = index / folder / f"{name}.npz"
        if not path.exists():
            continue
        with np.load(path) as arrays:
            for part, wanted in enumerate(case["num_samples"]):
                key = f"{PARTS[part]}_tokens"
                if key not in arrays:
                    continue
                dataset = open_part(index, cases, folder, case, part, num_samples=wanted)
                for number, tokens in enumerate(arrays[key].tolist()):
                    sample = dataset[number]
                    found = [*sample["tokens"].tolist(), int(sample["labels"][-1])]
                    assert found[: len(tokens)] == [max(t, 0) for t in tokens], (name, part, number)
                    compared += 1
    assert compared >= (40 if index.is_relative_to(GOLDEN) else 200)


def test_a_blend_without_weights_uses_all_up(index: Path) -> None:
    datasets = [GPTDataset(index / name, 64, order="megatron") for name in ("short", "long")]
    blend = BlendedDataset(datasets)
    assert blend.counts(len(blend)) == [len(dataset) for dataset in datasets]
    again = pickle.loads(pickle.dumps(blend))
    assert [again.locate(k) for k in range(len(blend))] == [
        blend.locate(k) for k in range(len(blend))
    ]
    assert BlendedDataset(datasets, size=len(blend)).fingerprint != blend.fingerprint

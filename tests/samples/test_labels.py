"""Label datasets beside the tokens: -100 does not count."""

from __future__ import annotations

import pickle
import random
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.indexed_twin import Plain, write_plainly
from support.samples_twin import some_lengths, write_dataset

from tokpack import BlendedDataset, GPTDataset
from tokpack.errors import UsageError
from tokpack.samples.megatron.neox_packing import NeoxPackedOrder

if TYPE_CHECKING:
    from pathlib import Path


def write_labels(prefix: Path, sequences: list[list[int]], code: str = "i") -> dict[int, int]:
    """Labels of which a third do not count; which token has which."""
    draw = random.Random(1)
    labels = [[-100 if draw.random() < 0.3 else t + 10_000 for t in s] for s in sequences]
    write_plainly(prefix, Plain(code, labels, list(range(len(labels) + 1))))
    return dict(zip(chain(*sequences), chain(*labels), strict=True))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_extra_token": False},
        {"packing": "best_fit"},
        {"packing": "document", "add_extra_token": False},
        {"order": "megatron", "num_samples": 90},
        {"order": "neox", "packing": "pack_until_overflow", "num_samples": 60},
        {"order": "neox", "packing": "unpacked", "num_samples": 60},
    ],
    ids=str,
)
def test_labels_stand_for_the_tokens_that_they_lie_beside(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    sequences = write_dataset(tmp_path / "text", some_lengths(120))
    label_of = write_labels(tmp_path / "labels", sequences)
    dataset = GPTDataset(tmp_path / "text", 64, labels=tmp_path / "labels", **options)
    neox = options.get("order") == "neox"  # leaves out documents without a label; all is joined
    plain = dataset if neox else GPTDataset(tmp_path / "text", 64, **options)
    assert dataset.fingerprint != GPTDataset(tmp_path / "text", 64).fingerprint
    with pytest.raises(UsageError, match="pad_id"):
        GPTDataset(tmp_path / "text", 64, order="megatron", pad_id=3, labels=tmp_path / "labels")
    batch = dataset.batch(range(len(dataset)))
    again = pickle.loads(pickle.dumps(dataset))
    for number in range(len(dataset)):
        sample, before = again[number], plain[number]
        text = [*sample["tokens"].tolist()]
        assert text == before["tokens"].tolist()
        for name, array in sample.items():
            assert np.array_equal(array, batch[name][number])
        for place in range(63):
            token, label = text[place + 1], int(sample["labels"][place])
            if token == 0:  # padding
                assert (label, sample["loss_mask"][place]) == (0, 0)
                continue
            assert label == max(label_of[token], 0)
            counts = label_of[token] >= 0 and (neox or before["loss_mask"][place])
            assert sample["loss_mask"][place] == counts


def test_labels_that_are_the_tokens_change_nothing(tmp_path: Path) -> None:
    write_dataset(tmp_path / "text", some_lengths(50))
    plain = GPTDataset(tmp_path / "text", 32)
    labelled = GPTDataset(tmp_path / "text", 32, labels=tmp_path / "text")
    for number in range(len(plain)):
        for name, array in plain[number].items():
            assert np.array_equal(labelled[number][name], array)
    assert np.array_equal(plain.batch([3, 1])["labels"], labelled.batch([3, 1])["labels"])


def test_where_only_one_dataset_of_a_blend_has_labels_the_others_predict_their_tokens(
    tmp_path: Path,
) -> None:
    sequences = write_dataset(tmp_path / "text", some_lengths(50))
    label_of = write_labels(tmp_path / "labels", sequences)
    plain = GPTDataset(tmp_path / "text", 32)
    labelled = GPTDataset(tmp_path / "text", 32, labels=tmp_path / "labels")
    blend = BlendedDataset([plain, labelled], [1, 1])
    batch = blend.batch(range(len(blend)))
    seen = set()
    for number in range(len(blend)):
        which, index = blend.locate(number)
        expected = (plain, labelled)[which][index]
        assert expected["labels"].tolist() == [
            token if which == 0 else max(label_of[token], 0)
            for token in plain[index]["labels"].tolist()
        ]
        for name, array in expected.items():
            assert np.array_equal(batch[name][number], array)
        seen.add(which)
    assert seen == {0, 1}


def test_neox_leaves_out_what_has_no_label(tmp_path: Path) -> None:
    lengths = [9, 0, 9, 4, 5, 2]
    sequences = write_dataset(tmp_path / "text", lengths)
    labels = [[-100] * len(sequence) for sequence in sequences]
    labels[3][1] = labels[5][0] = 7
    labels[0][7] = 7  # beyond a sample
    labels[2][6] = 7  # the last token of a sample, at which NeoX's unpacked does not look
    write_plainly(tmp_path / "labels", Plain("i", labels, list(range(7))))
    options: dict[str, Any] = {"order": "neox", "labels": tmp_path / "labels", "num_samples": 4}
    unpacked = GPTDataset(tmp_path / "text", 6, packing="unpacked", **options)
    order: Any = unpacked._order
    assert isinstance(order, NeoxPackedOrder)
    assert order.document_index.tolist() == [3, 5, 3, 5, 3]
    assert order.locate(0)[0].tolist() == [[3, 0, 4], [5, 0, 2]][int(order.shuffle_index[0]) % 2]
    until: Any = GPTDataset(tmp_path / "text", 6, packing="pack_until_overflow", **options)._order
    assert set(until.document_index.tolist()) == {2, 3, 5}

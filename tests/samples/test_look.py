"""What samples are made of, and which samples a document is in, against a look at all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.indexed_twin import Plain, write_plainly
from support.samples_twin import some_lengths, write_dataset

from tokpack import BlendedDataset, GPTDataset, MMapIndexedDataset
from tokpack.samples import FIM
from tokpack.samples.look import find, look

LENGTHS = [0, *some_lengths(70, longest=30), 150, 0, 0, 1, *some_lengths(30, seed=1, longest=8)]
PART = {"split": "3,1", "split_index": 0}
ORDERS: dict[str, dict[str, Any]] = {
    "stateless": {},
    "stateless without an extra token": {"add_extra_token": False},
    "a part": {**PART, "seed": 5},
    "the end": {"split": "1,3", "split_index": 1},
    "blocks": {"order": "stateless-blocks", "split": "1,3", "split_index": 1},
    "blocks without an extra token": {"order": "stateless-blocks", "add_extra_token": False},
    "best fit": {"packing": "best_fit", **PART},
    "a document a sample": {"packing": "document"},
    "megatron": {"order": "megatron", "num_samples": 300},
    "neox": {"order": "neox", "num_samples": 60, "packing": "pack_until_overflow"},
}


@pytest.fixture(scope="module")
def prefixes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three datasets: of a sequence a document, of sentences, and a small one."""
    folder = tmp_path_factory.mktemp("data")
    write_dataset(folder / "whole", LENGTHS)
    sequences = [[100 * i + t for t in range(1 + i % 7)] for i in range(200)]
    bounds = sorted({0, 1, 200, *(int(7 * i**1.3) % 200 for i in range(60))})
    write_plainly(folder / "sentences", Plain("i", sequences, [*bounds, 200]))
    write_dataset(folder / "small", [9, 40, 3])
    return [str(folder / name) for name in ("whole", "sentences", "small")]


def brute(samples: GPTDataset | BlendedDataset, prefix: str, size: int) -> dict[int, list[int]]:
    """The samples of each document, by its sequences."""
    bounds = MMapIndexedDataset(prefix).doc_idx
    found: dict[int, list[int]] = {}
    for number in range(size):
        dataset, own = samples, number
        while isinstance(dataset, BlendedDataset):
            place, own = dataset.locate(own)
            dataset = dataset.datasets[place]
        if dataset.path_prefix != prefix:
            continue
        rows = dataset.locate(own)
        documents = np.searchsorted(bounds, rows[rows[:, 2] > 0, 0], side="right") - 1
        for document in np.unique(documents).tolist():
            found.setdefault(document, []).append(number)
    return found


def check(samples: GPTDataset | BlendedDataset, prefix: str, size: int) -> None:
    found = brute(samples, prefix, size)
    assert found
    for document in range(MMapIndexedDataset(prefix).documents):
        assert list(find(samples, prefix, document, size)) == found.get(document, [])


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("which", [0, 1])
def test_a_document_is_found_in_all_its_samples(prefixes: list[str], name: str, which: int) -> None:
    samples = GPTDataset(prefixes[which], 16, **ORDERS[name])
    size = samples.limit or 3 * samples.samples_per_epoch + 5
    check(samples, prefixes[which], size)


def test_a_document_is_found_in_blends(prefixes: list[str]) -> None:
    whole, sentences, small = (GPTDataset(prefix, 16) for prefix in prefixes)
    changed = [(0, [1.0, 0.0, 0.2]), (37, [0.3, 2.0, 0.0]), (90, [1.0, 1.0, 1.0])]
    for blend in (
        BlendedDataset([whole, small, whole], [0.6, 0.1, 0.3], 150),
        BlendedDataset([whole, sentences, small], size=150, schedule=changed),
        BlendedDataset([GPTDataset(p, 16, order="megatron", num_samples=90) for p in prefixes]),
    ):
        for prefix in {dataset.path_prefix for dataset in blend.datasets}:
            check(blend, prefix, len(blend))


@pytest.mark.parametrize("name", ORDERS)
def test_pieces_are_what_they_say(prefixes: list[str], name: str) -> None:
    options = {**ORDERS[name], "document_boundaries": True}
    for prefix in prefixes[:2]:
        samples, dataset = GPTDataset(prefix, 16, **options), MMapIndexedDataset(prefix)
        for number in range(samples.limit or 80):
            sample, arrays = look(samples, number), samples.sample(number)
            assert all(np.array_equal(a, arrays[name]) for name, a in sample.arrays.items())
            for piece in sample.pieces:
                part = dataset.get(piece.sequence, piece.first, piece.tokens).tolist()
                assert sample.ids(piece) == part
                document = dataset.document(piece.document)
                assert document[piece.offset : piece.offset + piece.tokens].tolist() == part
            ends = [0, *(piece.at + piece.tokens for piece in sample.pieces)]
            assert [piece.at for piece in sample.pieces] == ends[:-1]
            assert ends[-1] == sample.filled <= 16
            label = sample.filled - 1 if name == "neox" else None  # a last token, never read
            begins = {piece.at for piece in sample.pieces if piece.at != label}
            assert begins <= set(sample.boundaries or ())
            mask = np.ones(16, np.float32)
            for missing in sample.no_loss:
                mask[missing.start : missing.stop] = 0
            assert np.array_equal(mask, sample.arrays["loss_mask"])
            if samples.limit is None:
                assert sample.epoch == number // samples.samples_per_epoch


def test_moved_tokens_stay_with_their_pieces(prefixes: list[str]) -> None:
    fim = FIM(prefix_id=1001, middle_id=1002, suffix_id=1003, rate=1.0)
    samples = GPTDataset(prefixes[0], 32, fim=fim, eod_id=999)
    marked = 0
    for number in range(10):
        sample = look(samples, number)
        dataset = MMapIndexedDataset(prefixes[0])
        for piece in sample.pieces:
            ids = set(sample.ids(piece))
            marked += 1001 in ids
            assert ids - {1001, 1002, 1003} <= set(dataset[piece.sequence].tolist())
    assert marked

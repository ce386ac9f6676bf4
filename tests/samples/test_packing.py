"""Packed samples as a trainer gets them: tokens, masks, boundaries; NeoX's packing."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.places import GOLDEN
from support.samples_twin import some_lengths, write_dataset

from tokpack import BlendedDataset, GPTDataset, MMapIndexedDataset
from tokpack.errors import UsageError
from tokpack.samples import SampleIterator, flat_cu_seqlens
from tokpack.samples.megatron.neox_packing import NeoxPackedOrder
from tokpack.samples.orders.rows import OrderInput

if TYPE_CHECKING:
    from pathlib import Path


def expected(pieces: list[list[int]], seq_length: int, multiple: int) -> dict[str, list[int]]:
    """The arrays of a sample of separate documents, position by position."""
    edges = [0]
    text, mask, positions = [], [], []
    for number, piece in enumerate(pieces):
        gap = -len(piece) % multiple if multiple > 1 or number + 1 < len(pieces) else 0
        text += piece + [0] * gap
        mask += [1] * (len(piece) - 1) + [0] + [0] * gap
        positions += range(len(piece) + gap)
        edges.append(len(text))
    mask, positions = mask[: seq_length + 1], positions[: seq_length + 1]
    text = text[: seq_length + 1]
    missing = seq_length + 1 - len(text)
    positions += range(missing)
    edges = [edge for edge in edges if edge < seq_length]
    sizes = np.diff([*edges, seq_length])
    text += [0] * missing
    return {
        "tokens": text[:-1],
        "labels": text[1:],
        "loss_mask": (mask + [0] * missing)[:seq_length],
        "position_ids": positions[:seq_length],
        "cu_seqlens": edges + [seq_length] * (seq_length + 1 - len(edges)),
        "max_seqlen": int(sizes.max()),
    }


@pytest.mark.parametrize("packing", ["best_fit", "document"])
@given(
    lengths=st.lists(st.integers(0, 60), min_size=3, max_size=40),
    shape=st.one_of(
        st.tuples(st.integers(1, 50), st.just(1)),
        st.sampled_from([(2, 2), (16, 2), (40, 5), (48, 8)]),
    ),
    extra=st.booleans(),
)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_samples_are_separate_documents(
    tmp_path: Path, packing: str, lengths: list[int], shape: tuple[int, int], extra: bool
) -> None:
    sequences = write_dataset(tmp_path / "data", lengths)
    seq_length, multiple = shape
    options: dict[str, Any] = {"packing": packing, "add_extra_token": extra}
    options["pad_to_multiple_of"] = multiple
    if max(lengths) < 2 or seq_length + extra < 2:
        if max(lengths) > 0:
            with pytest.raises(UsageError, match=r"/data: sequences 0 to \d+: .*\bsample of 1,"):
                GPTDataset(tmp_path / "data", seq_length, **options)
        return
    dataset = GPTDataset(tmp_path / "data", seq_length, **options)
    by_first = {sequence[0]: sequence for sequence in sequences if sequence}
    firsts = np.array(sorted(by_first))
    labels = 0
    for sample in (dataset[k] for k in range(len(dataset))):
        starts = [int(e) for e in dict.fromkeys(sample["cu_seqlens"].tolist()) if e < seq_length]
        text = [*sample["tokens"].tolist(), int(sample["labels"][-1])]
        pieces = []
        for begin, end in zip(starts, [*starts[1:], seq_length + 1], strict=True):
            piece = text[begin:end]
            if piece[0] == 0:  # padding
                continue
            while piece[-1] == 0:
                piece.pop()
            whole = by_first[int(firsts[np.searchsorted(firsts, piece[0], "right") - 1])]
            at = whole.index(piece[0])
            assert piece == whole[at : at + len(piece)]
            assert at % seq_length == 0
            pieces.append(piece)
        found = {name: array.tolist() for name, array in sample.items()}
        assert found == expected(pieces, seq_length, multiple)
        assert all(start % multiple == 0 for start in starts)
        labels += int(sample["loss_mask"].sum())
        assert packing == "best_fit" or len(pieces) == 1
    assert dataset.packing_stats is not None
    assert labels == dataset.packing_stats.labels
    if extra:
        assert labels == sum(length - 1 for length in lengths if length)


def test_batches_resumes_and_pickles_are_the_same_samples(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", some_lengths(500))
    dataset = GPTDataset(tmp_path / "data", 64, packing="best_fit", epochs=2, split="8,2")
    assert len(dataset) == 2 * dataset.samples_per_epoch
    numbers = [3, 0, dataset.samples_per_epoch + 1, 3]
    batch = dataset.batch(numbers)
    again = pickle.loads(pickle.dumps(dataset))
    for place, number in enumerate(numbers):
        for name, array in again[number].items():
            assert np.array_equal(array, batch[name][place])
    iterator = SampleIterator(dataset, 2, world_size=2, rank=1)
    next(iterator)
    state = iterator.state_dict()
    second = next(iterator)
    resumed = SampleIterator(dataset, 4)
    resumed.load_state_dict(state)
    assert np.array_equal(next(resumed)["tokens"][2:], second["tokens"])
    prints = {
        GPTDataset(tmp_path / "data", 64, packing=packing).fingerprint
        for packing in ("none", "best_fit", "document")
    }
    assert len(prints) == 3
    assert GPTDataset(tmp_path / "data", 64).packing_stats is None


def test_boundaries_of_a_batch_laid_end_to_end(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", some_lengths(300))
    dataset = GPTDataset(tmp_path / "data", 48, packing="best_fit", pad_to_multiple_of=4)
    batch = dataset.batch(range(5))
    flat = flat_cu_seqlens(batch["cu_seqlens"])
    assert flat.dtype == np.int32
    starts = np.flatnonzero(batch["position_ids"].ravel() == 0)  # positions restart where documents
    assert flat.tolist() == [*starts.tolist(), 5 * 48]
    assert np.diff(flat).max() == batch["max_seqlen"].max()
    assert np.all(flat % 4 == 0)
    fixed = flat_cu_seqlens(batch["cu_seqlens"], 240)
    assert fixed.tolist() == [*flat.tolist(), *[240] * (241 - len(flat))]
    same_size = flat_cu_seqlens(batch["cu_seqlens"], len(flat) - 1)
    assert same_size.tolist() == flat.tolist()
    with pytest.raises(UsageError, match=rf"^size is 3, .*\b{len(flat) - 1} documents"):
        flat_cu_seqlens(batch["cu_seqlens"], 3)
    assert flat_cu_seqlens(batch["cu_seqlens"][:0]).tolist() == [0]


def test_less_than_one_row_is_enough(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", [5, 1, 0, 9])
    assert len(GPTDataset(tmp_path / "data", 100, packing="best_fit")) == 1
    packed = GPTDataset(tmp_path / "data", 8, packing="best_fit")
    assert len(BlendedDataset([packed, packed], [1, 1])) > 0


def test_arrays_and_tokens_are_those_of_neox() -> None:
    path = GOLDEN / "index" / "neox" / "short_s64_pack_until_overflow.npz"
    with np.load(path) as file:
        arrays = dict(file)
    source = MMapIndexedDataset(GOLDEN / "index" / "short")
    data = OrderInput(source.sizes, 0, len(source), 64, 1, seed=1234, fingerprint=1)
    order = NeoxPackedOrder(data, 200, packing="pack_until_overflow")
    for name in ("document_index", "sample_index", "shuffle_index"):
        found = getattr(order, name)
        assert found.dtype == arrays[name].dtype
        assert np.array_equal(found, arrays[name]), name
    dataset = GPTDataset(
        source, 64, order="neox", packing="pack_until_overflow", num_samples=200, seed=1234
    )
    assert len(dataset) == 200
    for number, tokens in enumerate(arrays["tokens"].tolist()):
        sample = dataset[number]
        assert [*sample["tokens"].tolist(), int(sample["labels"][-1])] == tokens
        end = np.flatnonzero(tokens)[-1]  # what is padded does not count, all else does
        assert sample["loss_mask"].tolist() == [1.0] * end + [0.0] * (64 - end)
    last = int(np.flatnonzero(order.shuffle_index == 199)[0])
    assert order.locate(last).tolist() == order.locate(0).tolist()
    assert dataset.batch([last, 7])["tokens"].shape == (2, 64)
    with pytest.raises(IndexError):
        order.locate(200)

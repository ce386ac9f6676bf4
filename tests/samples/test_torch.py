"""The real DataLoader of torch: any workers, any start method, any world size, the same samples."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.gather_twin import stacked
from support.samples_twin import some_lengths, write_dataset

from tokpack import BlendedDataset, GPTDataset
from tokpack.errors import UsageError
from tokpack.samples import MicroBatches, SampleIterator, WholeBatches

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch", reason="torch is not installed: no DataLoader to test")
from torch.utils.data import DataLoader  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

LENGTH = 16


@pytest.fixture(scope="module")
def blend(tmp_path_factory: pytest.TempPathFactory) -> BlendedDataset:
    folder = tmp_path_factory.mktemp("data")
    datasets = []
    for number in range(2):
        write_dataset(folder / str(number), some_lengths(90, number), 100_000 * number + 1)
        datasets.append(GPTDataset(folder / str(number), LENGTH, document_boundaries=True))
    return BlendedDataset(datasets, [0.35, 0.65], 240)


def check(batch: dict[str, Any], dataset: Any, numbers: list[int]) -> None:
    expected = stacked([dataset[number] for number in numbers])
    assert batch.keys() == expected.keys()
    for name, array in expected.items():
        assert isinstance(batch[name], torch.Tensor)
        assert np.array_equal(batch[name].numpy(), array), name


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_any_workers_give_every_sample_in_order(blend: BlendedDataset, workers: int) -> None:
    method = "fork" if workers else None
    if method is not None and method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    loader = DataLoader(
        blend,
        batch_sampler=MicroBatches(len(blend), 8),
        num_workers=workers,
        multiprocessing_context=method,
        persistent_workers=workers == 3,
    )
    assert len(loader) == 30
    for _ in range(2 if method == "fork" else 1):  # an epoch again, with the same workers
        batches = list(loader)
        assert len(batches) == 30
        for place, batch in enumerate(batches):
            check(batch, blend, list(range(8 * place, 8 * place + 8)))


@pytest.mark.parametrize("order", ["stateless", "megatron"])
def test_torchs_own_shuffle_and_batches(tmp_path: Path, order: str) -> None:
    write_dataset(tmp_path / "data", some_lengths(200))
    dataset = GPTDataset(tmp_path / "data", LENGTH, order=order)
    plain = list(DataLoader(dataset, batch_size=None))
    assert len(plain) == len(dataset)
    assert np.array_equal(plain[5]["tokens"], dataset[5]["tokens"])
    seen = [
        tokens
        for batch in DataLoader(dataset, batch_size=7, shuffle=True)
        for tokens in batch["tokens"].tolist()
    ]
    assert sorted(seen) == sorted(dataset[k]["tokens"].tolist() for k in range(len(dataset)))


def test_a_batch_of_numpy_becomes_tensors_without_a_copy(blend: BlendedDataset) -> None:
    batch = blend.batch(range(8))
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    check(tensors, blend, list(range(8)))
    tensors["loss_mask"][0, 0] = -5  # not read-only
    assert batch["loss_mask"][0, 0] == -5


@pytest.mark.parametrize("workers", [0, 2])
def test_whole_batches(blend: BlendedDataset, workers: int) -> None:
    whole = WholeBatches(blend)
    assert len(whole) == 240

    def load(batches: MicroBatches) -> DataLoader[Any]:
        return DataLoader(whole, batch_size=None, sampler=batches, num_workers=workers)

    iterator = SampleIterator(blend, 8, load=load)
    for place, batch in enumerate(iterator):
        check(batch, blend, list(range(8 * place, 8 * place + 8)))
    assert iterator.consumed_samples == 240


def rank_iterator(dataset: Any, micro: int, rank: int, world: int, workers: int) -> SampleIterator:
    def load(batches: MicroBatches) -> DataLoader[Any]:
        return DataLoader(dataset, batch_sampler=batches, num_workers=workers, prefetch_factor=4)

    return SampleIterator(dataset, micro, rank=rank, world_size=world, load=load)


def test_a_run_goes_on_with_another_world_size_whatever_workers_read_ahead(
    blend: BlendedDataset,
) -> None:
    seen: list[list[int]] = []

    def take(ranks: list[SampleIterator], steps: int) -> None:
        for _ in range(steps):
            for rank in ranks:
                seen.extend(next(rank)["tokens"].tolist())

    ranks = [rank_iterator(blend, 2, rank, 3, workers=2) for rank in range(3)]
    take(ranks, 7)
    states = [rank.state_dict() for rank in ranks]
    assert all(state == states[0] for state in states)
    assert states[0]["consumed_samples"] == 42  # not what was fetched ahead: 16 batches a rank
    ranks = [rank_iterator(blend, 4, rank, 2, workers=1) for rank in range(2)]
    for rank in ranks:
        next(rank)
        rank.load_state_dict(states[0])
    take(ranks, 11)
    state = ranks[0].state_dict()
    assert state["consumed_samples"] == 42 + 88
    last = SampleIterator(blend, 5, prefetch=3)  # without torch, and one rank
    last.load_state_dict(state)
    seen.extend(tokens for batch in last for tokens in batch["tokens"].tolist())
    assert seen == [blend[number]["tokens"].tolist() for number in range(240)]


def test_an_error_in_a_worker_reaches_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)  # seconds, of 5
    write_dataset(tmp_path / "data", [100] * 10)
    dataset = GPTDataset(tmp_path / "data", LENGTH)
    with open(tmp_path / "data.idx", "r+b") as file:
        file.seek(34 + 4 * 10 + 8 * 4)
        file.write(b"\xff" * 8)
    loader = DataLoader(dataset, batch_sampler=MicroBatches(len(dataset), 4), num_workers=1)
    with pytest.raises(Exception, match=r"data\.idx: byte \d+"):
        list(loader)


def taken(batches: Any) -> list[bytes]:
    """The tokens of the samples of some batches."""
    return [np.asarray(tokens).tobytes() for one in batches for tokens in one["tokens"]]


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (3, True)])
def test_an_iterator_is_an_iterable_dataset_whose_workers_keep_the_order(
    blend: BlendedDataset, workers: int, persistent: bool
) -> None:
    iterator = SampleIterator(blend, 8, rank=1, world_size=2)
    assert isinstance(iterator, torch.utils.data.IterableDataset)
    loader = DataLoader(
        iterator, batch_size=None, num_workers=workers, persistent_workers=persistent
    )
    for _ in range(3):
        assert len(loader) == 15
        for place, batch in enumerate(loader):
            check(batch, blend, list(range(16 * place + 8, 16 * place + 16)))
        assert place == 14


LOADERS: dict[str, dict[str, Any]] = {
    "none": {},
    "0": {"num_workers": 0},
    "1": {"num_workers": 1},
    "2": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "spawned": {"num_workers": 1, "multiprocessing_context": "spawn"},
}


@pytest.mark.parametrize("torchdata", [False, True])
@pytest.mark.parametrize("how", LOADERS)
@pytest.mark.filterwarnings("ignore:.*set_vital:UserWarning")
def test_passes_are_the_same_however_an_iterator_is_loaded(
    how: str, torchdata: bool, blend: BlendedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)  # seconds, of 5
    made: Any = DataLoader
    if torchdata:
        if how in ("none", "spawned"):  # the same as without
            return
        reason = "torchdata is not installed: no StatefulDataLoader to test"
        stateful = pytest.importorskip("torchdata.stateful_dataloader", reason=reason)
        made = stateful.StatefulDataLoader
    whole = [sample["tokens"].tobytes() for sample in blend]
    for consumed in (0, 120, 236, 240) if how in ("none", "0") else (120, 240):
        if how == "spawned" and consumed == 240:  # a process more, which imports torch
            break
        begun = SampleIterator(blend, 4, consumed_samples=consumed)
        batches = made(begun, batch_size=None, **LOADERS[how]) if LOADERS[how] else begun
        assert [taken(batches) for _ in range(2)] == [whole[consumed:], whole], consumed


@pytest.mark.parametrize("how", [name for name in LOADERS if name not in ("none", "spawned")])
def test_a_pass_that_is_left_goes_on_or_begins_where_the_iterator_is(
    how: str, blend: BlendedDataset
) -> None:
    whole = [sample["tokens"].tobytes() for sample in blend]
    begun = SampleIterator(blend, 4, consumed_samples=200)
    next(begun)  # a loader takes over what is left
    loader = DataLoader(begun, batch_size=None, **LOADERS[how])
    places = (204, 208, 212) if how == "0" else (204, 204, 204)  # workers that read ahead are gone
    for place in places[:2]:
        assert taken([next(iter(loader))]) == whole[place : place + 4]
    assert [taken(loader) for _ in range(2)] == [whole[places[2] :], whole]


IMPORTED_LATER = """
import sys
from tokpack import GPTDataset, SampleIterator

iterator = SampleIterator(GPTDataset(sys.argv[1], 16), 4)
assert "torch" not in sys.modules
from torch.utils.data import DataLoader

print(len(list(DataLoader(iterator, batch_size=None, num_workers=1))), len(iterator))
"""


def test_torch_may_be_imported_later(tmp_path: Path) -> None:
    write_dataset(tmp_path / "wiki", some_lengths(90, 1), 1)
    command = [sys.executable, "-c", IMPORTED_LATER, str(tmp_path / "wiki")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    made, left = done.stdout.split()
    assert made == left != "0"


@pytest.mark.filterwarnings("ignore:.*set_vital:UserWarning")  # torchdata asks torch for it
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_saves_the_position_of_its_workers(blend: BlendedDataset, workers: int) -> None:
    reason = "torchdata is not installed: no StatefulDataLoader to test"
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason=reason)
    whole = [sample["tokens"].tobytes() for sample in blend]

    def loader(consumed: int) -> Any:
        begun = SampleIterator(blend, 4, consumed_samples=consumed)
        return stateful.StatefulDataLoader(begun, batch_size=None, num_workers=workers)

    for steps in (1, 30):
        first, seen = loader(120), []
        for batch in first:
            seen += taken([batch])
            if len(seen) == 4 * steps:
                break
        again = loader(0)
        again.load_state_dict(first.state_dict())
        assert seen + taken(again) == whole[120:]
        assert [taken(again) for _ in range(2)] == [whole, whole]
        after = loader(0)
        after.load_state_dict(again.state_dict())  # of the end of a pass
        assert [taken(after) for _ in range(2)] == [whole, whole]


def test_what_is_no_dataset_is_named(blend: BlendedDataset) -> None:
    with pytest.raises(UsageError, match=r"GPTDataset\('wiki', "):
        SampleIterator("wiki", 8)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"'x'"):
        blend["x"]  # type: ignore[index]

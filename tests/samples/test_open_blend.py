"""open_blend: what a user gets is what Megatron and its relatives gave, and what the plan says."""

from __future__ import annotations

import math
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.megatron_cases import PARTS, blend_case, prefix_of, stored
from support.places import GOLDEN
from support.rounding import equal
from support.samples_twin import some_lengths, write_dataset

from tokpack import BlendedDataset, GPTDataset, open_blend
from tokpack.errors import InputError
from tokpack.samples import SampleIterator, plan_blend, save_blend
from tokpack.samples.blend.file import parse_blend
from tokpack.samples.blend.plan import plan_of
from tokpack.samples.blend.spec import Entry
from tokpack.samples.fim import FIM
from tokpack.samples.megatron.orders import blend_request

if TYPE_CHECKING:
    from pathlib import Path

    from tokpack.samples import Blends


def opened(shared: Path, order: str, case: dict[str, Any], **more: Any) -> Blends:
    datasets = [
        {"prefix": prefix_of(shared / "index", name), "weight": weight}
        for name, weight in case["weights"].items()
    ]
    samples = dict(
        zip(("samples", "valid_samples", "test_samples"), case["num_samples"], strict=True)
    )
    values = {
        "datasets": datasets,
        "order": order,
        "seq_length": case["seq_length"],
        "seed": case["seed"],
        **samples,
    }
    if order == "neox":  # its blends have no common split: each purpose names its datasets
        own = {"valid": datasets, "test": datasets}
        return open_blend({**values, **own}, **more)
    return open_blend({**values, "split": case["split"]}, **more)


def test_blends_are_those_of_the_programs(shared: Path) -> None:
    """Training, validation and test of every stored case, from prefixes to tokens."""
    compared = 0
    files = stored(shared / "index", blends=True)
    assert len(files) >= 20
    for path in files:
        order, name, case = path.parent.name, path.stem, blend_case(path.stem)
        with np.load(path) as file:
            arrays = dict(file)
        blends = opened(shared, order, case)
        for part, asked in zip(PARTS, case["num_samples"], strict=True):
            blend = blends.valid["valid"] if part == "valid" else getattr(blends, part)
            assert isinstance(blend, BlendedDataset)
            datasets = arrays[f"{part}_dataset_index"]
            own = arrays[f"{part}_dataset_sample_index"]
            where = order, name, part
            if order in ("neox", "bigscience"):  # they go on, a run reads as many as it asked for
                assert len(blend) == asked, where
            else:
                assert len(blend) == len(datasets), where
            hidden = order == "neox"  # it counts one fewer than it reads
            lengths = [len(dataset) - hidden for dataset in blend.datasets]
            assert lengths == arrays[f"{part}_mid_len"].tolist(), where
            for number in range(len(blend)):
                assert blend.locate(number) == (datasets[number], own[number]), (where, number)
            for number, tokens in enumerate(arrays[f"{part}_tokens"][: len(blend)]):
                sample = blend[number]
                found = [*sample["tokens"].tolist(), int(sample["labels"][-1])]
                assert found == tokens.tolist(), (where, number)
                compared += 1
    assert compared >= 1500


def test_blends_without_weights_are_those_of_megatron(shared: Path) -> None:
    names = [prefix_of(shared / "index", name) for name in ("owt", "long", "short")]
    values = {"datasets": names, "seq_length": 128, "split": "90,5,5"}
    sized = {"samples": 1500, "valid_samples": 100, "test_samples": 50}
    for order, name, sizes in (
        ("megatron", "bnone_exhaustive", {}),
        ("megatron-0.9", "bnone_exhaustive", {}),
        ("megatron-0.9", "bnone_sized", sized),
    ):
        with np.load(shared / "index" / order / f"{name}.npz") as file:
            arrays = dict(file)
        blends = open_blend(values, order=order, **sizes)
        planned = [mixture.samples for mixture in blends.plan.mixtures]
        for part, count in zip(PARTS, planned, strict=True):
            blend = blends.valid["valid"] if part == "valid" else getattr(blends, part)
            assert len(blend) == count
            expected = zip(
                arrays[f"{part}_dataset_index"].tolist(),
                arrays[f"{part}_dataset_sample_index"].tolist(),
                strict=True,
            )
            assert [blend.locate(number) for number in range(count)] == list(expected)


def test_without_weights_no_more_than_there_is() -> None:
    names = [str(GOLDEN / "index" / name) for name in ("long", "short")]
    values = {"datasets": names, "seq_length": 128, "order": "megatron"}
    all_of_it = open_blend(values).train
    asked = open_blend(values, samples=10**6)
    assert asked.plan.train.samples == len(asked.train) == len(all_of_it)


def test_a_single_dataset_is_blended_where_megatron_does() -> None:
    values = {"order": "megatron", "seq_length": 64, "samples": 900, "seed": 3}
    short, long = str(GOLDEN / "index" / "short"), str(GOLDEN / "index" / "long")
    plain = open_blend({"datasets": short, "split": "90,10", "valid_samples": 7, **values})
    assert isinstance(plain.train, GPTDataset)
    same = GPTDataset(short, 64, order="megatron", split="90,10", num_samples=900, seed=3)
    assert plain.train.fingerprint == same.fingerprint
    assert isinstance(plain.valid["valid"], GPTDataset)
    assert plain.test is None
    weighted = open_blend({"datasets": {short: 2.0}, **values})
    assert isinstance(weighted.train, BlendedDataset)
    asked = blend_request([2.0], 900).samples
    alike = GPTDataset(short, 64, order="megatron", num_samples=asked[0], seed=3)
    assert weighted.train.datasets[0].fingerprint == alike.fingerprint
    own = open_blend({"datasets": {short: 2.0}, "valid": {long: 1.0}, "valid_samples": 7, **values})
    assert isinstance(own.train, GPTDataset)
    assert isinstance(own.valid["valid"], GPTDataset)


def test_a_last_sample_is_kept_in_validation_only() -> None:
    values = {"datasets": str(GOLDEN / "index" / "short"), "order": "megatron", "split": "80,15,5"}
    kept = open_blend(values, seq_length=64, drop_last=False)
    dropped = open_blend(values, seq_length=64)
    assert len(kept.train) == len(dropped.train)
    assert len(kept.valid["valid"]) == len(dropped.valid["valid"]) + 1


NAMES = ("wiki", "owt", "code")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for number, name in enumerate(NAMES):
        write_dataset(folder / name, some_lengths(60 * (number + 1), number), 100_000 * number)
    write_dataset(folder / "one", [500], 900_000)
    write_dataset(folder / "eleven", [70] * 11, 950_000)
    return folder


@pytest.fixture(autouse=True)
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def tokens_of(dataset: Any) -> set[int]:
    return {int(t) for k in range(len(dataset)) for t in dataset[k]["tokens"]}


@pytest.mark.parametrize("by", ["documents", "tokens"])
def test_a_split_has_nothing_in_common(by: str) -> None:
    blends = open_blend(
        {"datasets": {"wiki": 1, "owt": 1, "code": 2}, "seq_length": 8},
        split="8,1,1",
        split_by=by,
    )
    assert blends.test is not None
    parts = [blends.train, blends.valid["valid"], blends.test]
    assert [len(part) for part in parts] == [m.samples for m in blends.plan.mixtures]
    seen = [tokens_of(part) for part in parts]
    assert all(seen)
    assert sum(map(len, seen)) == len(set.union(*seen))
    for part, name in zip(parts, PARTS, strict=True):
        assert isinstance(part, BlendedDataset)
        assert part.weights == [0.25, 0.25, 0.5], name
    for part in parts[1:]:  # nothing is seen twice there
        limits = [dataset.samples_per_epoch for dataset in part.datasets]
        assert all(c <= n for c, n in zip(part.counts(len(part)), limits, strict=True))


def test_named_validation_sets_and_a_test_set() -> None:
    blends = open_blend(
        {
            "datasets": "wiki",
            "split": "9,1",
            "valid": {"books": ["owt", "code"], "code": {"code": 1}},
            "test": ["owt"],
            "seq_length": 8,
        }
    )
    assert list(blends.valid) == ["valid", "books", "code"]
    assert isinstance(blends.train, GPTDataset)
    assert isinstance(blends.valid["valid"], GPTDataset)
    assert blends.valid["books"].path_prefix == "owt, code"
    assert isinstance(blends.test, GPTDataset)
    assert blends.test.path_prefix == "owt"
    none = open_blend(blends.plan, valid_samples=0, test_samples=0)
    assert (none.valid, none.test) == ({}, None)
    some = open_blend(blends.plan, valid_samples=5)
    assert {len(valid) for valid in some.valid.values()} == {5}


def test_documents_that_are_trained_on_too_are_told() -> None:
    values = {"datasets": ["wiki", "owt"], "seq_length": 8, "split": "9,1"}
    own = {"valid": {"more": ["code", "owt"]}, "test": {"wiki": 1}}
    told = [w.split(",")[0] for w in open_blend({**values, **own}).plan.warnings(99)]
    assert told[:2] == ["owt is in more", "wiki is in test"]
    assert [w for w in open_blend(values).plan.warnings(99) if "trained" in w] == []


def test_a_blend_is_what_blended_dataset_gives() -> None:
    datasets = [GPTDataset(name, 8, seed=5) for name in NAMES]
    blends = open_blend(plan_blend(NAMES, [3, 2, 1], seq_length=8, samples=300, seed=5))
    assert blends.train.fingerprint == BlendedDataset(datasets, [3, 2, 1], 300).fingerprint
    rows = [(0, [3.0, 2.0, 1.0]), (50, [1.0, 0.0, 1.0])]
    changed = open_blend(blends.plan, schedule=((50, (1.0, 0.0, 1.0)),)).train
    assert changed.fingerprint == BlendedDataset(datasets, size=300, schedule=rows).fingerprint
    assert changed.fingerprint_at(50) == blends.train.fingerprint_at(50)
    run = SampleIterator(blends.train, 5)
    for _ in range(10):
        next(run)
    SampleIterator(changed, 5).load_state_dict(run.state_dict())
    assert pickle.loads(pickle.dumps(changed)).fingerprint == changed.fingerprint
    by_size = open_blend({"datasets": list(NAMES), "seq_length": 8})
    assert len(by_size.train) == by_size.plan.train.samples
    flat = open_blend({"datasets": list(NAMES), "seq_length": 8}, temperature=1000.0)
    assert isinstance(flat.train, BlendedDataset)
    # The largest has at most exp(10) times the tokens of the smallest: its 1000th root.
    assert flat.train.weights == pytest.approx([1 / 3] * 3, rel=math.expm1(10 / 1000))


def test_a_split_that_leaves_nothing_of_a_dataset() -> None:
    values = {"datasets": {"wiki": 1, "one": 1, "eleven": 2}, "seq_length": 8, "split": "80,20"}
    plan = open_blend(values, allow_empty=True).plan
    assert [p.prefix for p in plan.valid["valid"].missing] == ["one"]
    assert not any("the split leaves" in warning for warning in plan.warnings(99))
    warnings = plan_of(parse_blend(values)).warnings(99)
    assert "the split leaves 0 tokens of one for valid" in warnings[0]
    blends = open_blend(values, allow_empty=True)
    valid = blends.valid["valid"]
    assert isinstance(valid, BlendedDataset)
    assert valid.weights == equal([1 / 3, 2 / 3], 2)
    assert valid.path_prefix == "wiki, eleven"
    assert "one" in blends.train.path_prefix
    nothing = open_blend({**values, "datasets": "one"}, allow_empty=True)
    assert nothing.valid == {}


def test_a_missing_dataset_keeps_the_schedule_in_step() -> None:
    values = {
        "datasets": {"one": 5, "wiki": 1, "eleven": 2},
        "schedule": {20: [5, 3, 1]},
        "split": ".3,.7",
        "seq_length": 8,
        "samples": 60,
    }
    train = open_blend(values, allow_empty=True).train
    assert isinstance(train, BlendedDataset)
    assert [phase.shares for phase in train.schedule] == [(1 / 3, 2 / 3), (0.75, 0.25)]


def test_validation_has_the_weights_that_training_begins_with() -> None:
    values = {"datasets": {"wiki": 1, "owt": 0, "code": 3}, "schedule": {50: [1, 1, 1]}}
    blends = open_blend(values, split="8,2", seq_length=8)
    valid = blends.valid["valid"]
    assert isinstance(valid, BlendedDataset)
    assert (valid.path_prefix, valid.weights) == ("wiki, code", [0.25, 0.75])
    assert blends.train.path_prefix == "wiki, owt, code"


def test_a_part_that_nobody_asked_for_is_not_there() -> None:
    blends = open_blend({"datasets": {"wiki": 1, "one": 1}, "seq_length": 8, "split": "100,0,0"})
    assert (blends.valid, blends.test, blends.plan.warnings(99)[1:]) == ({}, None, [])


@pytest.mark.parametrize("packing", ["best_fit", "document"])
def test_packed_blends(packing: str) -> None:
    values = {"datasets": {"wiki": 1, "owt": 2}, "seq_length": 32, "packing": packing}
    blends = open_blend(values, split="8,2")
    valid = blends.valid["valid"]
    for blend, mixture in ((blends.train, blends.plan.train), (valid, blends.plan.valid["valid"])):
        assert isinstance(blend, BlendedDataset)
        assert "cu_seqlens" in blend[0]
        if packing == "document":  # the plan knows how many there are
            assert len(blend) == mixture.samples
        else:
            # No rounding: how full the plan thinks that samples are.
            assert len(blend) == pytest.approx(mixture.samples, rel=0.3)
    if packing == "document":
        real = [dataset.samples_per_epoch for dataset in blends.train.datasets]
        train = blends.plan.train
        assert [train.epoch_samples(portion) for portion in train.portions] == real
    counts = valid.counts(len(valid))
    assert all(c <= d.samples_per_epoch for c, d in zip(counts, valid.datasets, strict=True))
    # Documents too short to fill a sample are enough.
    assert len(open_blend(values, datasets=(Entry("eleven"),), seq_length=999).train) >= 1


def test_filling_in_the_middle_and_labels(folder: Path) -> None:
    fim = {"prefix_id": 1, "middle_id": 2, "suffix_id": 3, "rate": 1.0}
    values = {"datasets": ["wiki", "owt"], "seq_length": 32, "eod_id": 0}
    plain, filled = open_blend(values).train, open_blend(values, fim=fim).train
    assert filled.fingerprint != plain.fingerprint
    assert {1, 2, 3} & tokens_of(filled)
    saved = folder / "fim.yaml"
    for given in (fim, FIM(**fim)):
        save_blend(open_blend(values, fim=given).plan, saved)
        assert open_blend(saved).train.fingerprint == filled.fingerprint
    labelled = [{"prefix": name, "labels": name} for name in ("wiki", "owt")]
    save_blend(open_blend({**values, "datasets": labelled}).plan, saved)
    train = open_blend(saved).train
    assert train.fingerprint != plain.fingerprint
    assert all(np.array_equal(train[0][key], plain[0][key]) for key in plain[0])
    saved.write_text(saved.read_text().replace("labels: owt", "labels: wiki"))
    with pytest.raises(InputError, match=r"fim\.yaml: .*/wiki .*\(fingerprint"):
        open_blend(saved)


def test_how_few_tokens_are_enough() -> None:
    packed = {"order": "neox", "packing": "pack_until_overflow", "seq_length": 8}
    assert len(open_blend({"datasets": "wiki", "samples": 5, **packed}).train) == 5
    few = {"datasets": "one", "seq_length": 512, "order": "megatron"}
    assert len(open_blend(few, samples=4, valid={"x": [Entry("one")]}, valid_samples=3).valid["x"])
    assert len(open_blend({"datasets": "one", "seq_length": 600, "order": "neox"}, samples=3).train)

"""Blend files: saved and read again, written by hand, and every mistake in one named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from support.samples_twin import write_dataset, write_manifest

from tokpack.errors import InputError, UsageError
from tokpack.samples import load_blend, open_blend, plan_blend, save_blend
from tokpack.samples.blend.datasets import marks
from tokpack.samples.blend.file import parse_blend, read_blend
from tokpack.samples.blend.spec import Entry

if TYPE_CHECKING:
    from tokpack.samples.blend.plan import BlendPlan, Portion


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data").mkdir()
    for number, name in enumerate(("wiki", "owt", "held out")):
        write_dataset(tmp_path / "data" / name, [40 + number] * (20 + number), 5000 * number)
    write_manifest(tmp_path / "data" / "owt", "gpt2", "aa")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def counted(plan: BlendPlan) -> list[Any]:
    return [
        (m.name, list(map(counts_of, m.portions)), [u.share for u in m.usage], m.samples, m.part)
        for m in plan.mixtures
    ]


def counts_of(portion: Portion) -> tuple[Any, ...]:
    labels = None if portion.labels is None else portion.labels.path_prefix
    span = portion.begin, portion.end, portion.documents, portion.tokens
    return (*marks(portion.dataset).values(), *span, labels)


ALL = """
datasets:
  data/wiki: 0.3
  data/owt: 0.7
schedule:
  100: [1, 0]
  200: {data/owt: 2}
split: 8,2
split_by: tokens
valid:
  held: data/held out
  both: {data/wiki: 1, data/owt: 3}
test: [data/held out]
valid_samples: 20
temperature: 1.5
by: epochs
seq_length: 16
tokens: 1e4
seed: 7
document_boundaries: true
"""


@pytest.mark.parametrize("text", [ALL, "datasets: data/wiki", "datasets: [data/wiki, data/owt]"])
def test_a_saved_blend_comes_back(text: str) -> None:
    Path("hand.yaml").write_text(text + "\nseq_length: 16" * ("seq" not in text))
    plan = load_blend("hand.yaml")
    save_blend(plan, "saved.yaml")
    again = load_blend("saved.yaml")
    assert counted(again) == counted(plan)
    entries = [e for _, group in plan.spec.groups() for e in group]
    marked = [e for _, group in again.spec.groups() for e in group]
    assert [e.fingerprint for e in entries] == [None] * len(entries)
    for before, after in zip(entries, marked, strict=True):
        marked_as = tuple(marks(plan.opened[before.prefix]).values())
        assert after[:4] == (before.prefix, before.weight, *marked_as)
    assert again.spec.changed(datasets=(), valid={}, test=()) == plan.spec.changed(
        datasets=(), valid={}, test=()
    )


def test_what_the_keys_mean() -> None:
    Path("hand.yaml").write_text(ALL)
    spec = load_blend("hand.yaml").spec
    assert spec.datasets == (Entry("data/wiki", 0.3), Entry("data/owt", 0.7))
    assert spec.schedule == ((100, (1, 0)), (200, (0, 2)))
    assert spec.valid["held"] == (Entry("data/held out"),)
    assert spec.valid["both"] == (Entry("data/wiki", 1), Entry("data/owt", 3))
    assert (spec.tokens, spec.seed, spec.options) == (1e4, 7, {"document_boundaries": True})
    blends = open_blend("hand.yaml")
    assert sorted(blends.valid) == ["both", "held", "valid"]
    assert {len(valid) for valid in blends.valid.values()} == {20}
    assert "cu_seqlens" in blends.train[0]


@pytest.mark.parametrize(
    "datasets",
    [
        ["data/wiki", "data/owt"],
        {"data/wiki": None, "data/owt": None},
        [{"prefix": "data/wiki"}, "data/owt"],
        {"data/wiki": 1, "data/owt": 2.5},
        [{"data/wiki": 1}, {"data/owt": "2.5"}],
        [{"prefix": "data/wiki", "weight": 1}, {"prefix": "data/owt", "weight": 2.5}],
    ],
)
def test_ways_to_write_datasets(datasets: Any) -> None:
    weights = (1, 2.5) if "2.5" in str(datasets) else (None, None)
    entries = tuple(map(Entry, ("data/wiki", "data/owt"), weights))
    assert parse_blend({"datasets": datasets}).datasets == entries


def test_a_single_validation_set_needs_no_name() -> None:
    for valid in ("data/owt", ["data/owt"], {"data/owt": 2}):
        spec = parse_blend({"datasets": "data/wiki", "valid": valid})
        assert list(spec.valid) == ["valid"]
        assert spec.valid["valid"][0].prefix == "data/owt"


def test_prefixes_are_relative_to_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_blend(["data/wiki", str(folder / "data" / "owt")], seq_length=16)
    (folder / "configs").mkdir()
    save_blend(plan, "configs/blend.yaml")
    prefixes = [
        d["prefix"] for d in yaml.safe_load(Path("configs/blend.yaml").read_text())["datasets"]
    ]
    assert prefixes == ["../data/wiki", str(folder / "data" / "owt")]
    monkeypatch.chdir("data")
    assert load_blend("../configs/blend.yaml").train.samples == plan.train.samples
    monkeypatch.chdir(folder.parent)  # moved with its data, it still finds them
    folder.rename(folder.parent / "moved")
    with pytest.raises(InputError, match="data/owt:"):
        load_blend("moved/configs/blend.yaml")
    assert load_blend("moved/configs/blend.yaml", datasets=(Entry("moved/data/wiki"),))
    (folder.parent / "moved").rename(folder)


def test_a_cache_is_relative_to_the_file_too(folder: Path) -> None:
    (folder / "configs").mkdir()
    values = {"datasets": "data/wiki", "seq_length": 16, "order": "megatron", "samples": 90}
    plan = open_blend(values, cache="indices").plan
    save_blend(plan, "configs/blend.yaml")
    assert "cache: ../indices" in Path("configs/blend.yaml").read_text()
    kept = {path.name for path in (folder / "indices").rglob("*") if path.is_file()}
    assert kept
    opened = open_blend("configs/blend.yaml").train
    assert {path.name for path in (folder / "indices").rglob("*") if path.is_file()} == kept
    assert opened.fingerprint == open_blend(values).train.fingerprint


def test_a_cache_whose_name_is_a_number_to_yaml(folder: Path) -> None:
    (folder / "blend.yaml").write_text("datasets: [wiki]\ncache: 2024\n")
    assert read_blend(str(folder / "blend.yaml")).cache == str(folder / "2024")


def test_a_file_reached_by_a_link_has_the_same_datasets(folder: Path) -> None:
    (folder / "deep" / "configs").mkdir(parents=True)
    (folder / "link").symlink_to("deep/configs")
    save_blend(plan_blend(["data/wiki"], seq_length=16), "link/blend.yaml")
    assert "prefix: ../../data/wiki" in Path("deep/configs/blend.yaml").read_text()
    for name in ("link/blend.yaml", "deep/configs/blend.yaml"):
        assert load_blend(name).train.tokens == 800


def test_a_dataset_that_changed_is_named(folder: Path) -> None:
    save_blend(plan_blend(["data/wiki", "data/owt"], seq_length=16), "blend.yaml")
    write_dataset(folder / "data" / "wiki", [40] * 20, 1)  # lengths as before, other tokens
    with pytest.raises(InputError, match=r"blend\.yaml: data/wiki .*\(fingerprint"):
        load_blend("blend.yaml")
    write_dataset(folder / "data" / "wiki", [40] * 20, 0)
    assert load_blend("blend.yaml")
    manifest = folder / "data" / "owt.json"
    digest = marks(plan_blend(["data/owt"], seq_length=16).datasets[0])["checksum"]
    assert digest
    digits = digest.removeprefix("xxh3_128:")
    manifest.write_text(manifest.read_text().replace(digits, "0" * 32))
    with pytest.raises(InputError, match=r"blend\.yaml: data/owt .*\(checksum xxh3_128:0000"):
        load_blend("blend.yaml")
    manifest.unlink()  # the order depends on the fingerprint alone
    assert load_blend("blend.yaml")


def test_changes_take_the_place_of_what_the_file_says() -> None:
    Path("hand.yaml").write_text(ALL)
    plan = load_blend("hand.yaml", samples=9, seed=8, split=None, document_boundaries=False)
    assert plan.train.samples == 9
    assert plan.spec.tokens is None
    assert plan.spec.seed == 8
    assert "valid" not in plan.valid
    assert plan.spec.options == {}
    with pytest.raises(UsageError, match=r"'splitt'; .*\bsplit\?"):
        load_blend("hand.yaml", splitt="1")


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("split: 0:0.9", "split", "0:0.9"),  # 0.9 in YAML 1.1: all of it for training
        ("split: 8:30", "split", "8:30"),
        ("by: no", "by", "no"),
        ("samples: 1_000", "samples", 1000),
        ("samples: 1e3", "samples", 1000),
        ("tokens: 3e9", "tokens", 3e9),
        ("tokens: 3.5e+9", "tokens", 3.5e9),
        ("temperature: .5", "temperature", 0.5),
        ("allow_empty: true", "allow_empty", True),
        ("epochs: ~", "epochs", None),
        ("epochs:", "epochs", None),
    ],
)
def test_values_mean_what_they_look_like(text: str, key: str, value: Any) -> None:
    Path("blend.yaml").write_text(f"datasets: a\n{text}")
    assert getattr(read_blend("blend.yaml"), key) == value


def test_names_mean_what_they_look_like() -> None:
    names = ["no", "007", "2024-01-01", "1e3", "12:30", "0x10", "null", "1_000", "1.50"]
    Path("blend.yaml").write_text("datasets:\n" + "".join(f"  {name}: 1\n" for name in names))
    assert [entry.prefix for entry in read_blend("blend.yaml").datasets] == names

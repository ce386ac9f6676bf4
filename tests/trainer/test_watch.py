"""What a run shows and keeps on the way: losses by dataset, traces, checkpoints by the clock."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from support.flags_tools import config  # noqa: E402
from support.trainer_tools import records, run, settings, write_tokens  # noqa: E402

import tokpack  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def prefixes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("data")
    return [write_tokens(folder / name, seed=n) for n, name in enumerate(("wiki", "owt"))]


def test_a_save_interval_is_of_steps_or_of_minutes() -> None:
    for words, steps, minutes in (
        ("--save-interval 100", 100, None),
        ("--save-interval 10m", None, 10.0),
        ("--save-interval 1.5h", None, 90.0),
        ("--save-interval 10M", 10_000_000, None),
        ("--save-interval 10m --save-interval 7", 7, None),
        ("--save-interval 7 --save-interval 10min", None, 10.0),
    ):
        found = config(words)
        assert (found.save_interval, found.save_interval_in_mins) == (steps, minutes), words
    with pytest.raises(tokpack.UsageError, match="save_interval"):
        tokpack.train({"data_path": "x", "save_interval": 3, "save_interval_in_mins": 1})


def test_all_ranks_save_by_the_clock_of_one(prefixes: list[str], tmp_path: Path) -> None:
    words = ["--data-path", prefixes[0], "--save", str(tmp_path), "--save-interval", "0.0001m"]
    run(2, *words, "--exit-interval", "5")
    steps = [record["iteration"] for record in records(tmp_path, "save")]
    assert steps == [1, 2, 3, 4, 5]
    rare = tmp_path / "rare"
    run(1, *words[:2], "--save", str(rare), "--save-interval", "2h", "--exit-interval", "5")
    assert [record["iteration"] for record in records(rare, "save")] == [5]


@pytest.mark.usefixtures("float64")
def test_losses_of_each_dataset_are_its_own(prefixes: list[str], tmp_path: Path) -> None:
    """As the model that was saved has them, of the same samples."""
    blend = (0.25, prefixes[0], 0.75, prefixes[1])
    more = {"eval_iters": 1, "save": str(tmp_path), "train_samples": 64, "log_interval": 100}
    values = settings("", **more, valid_by_source=True, data_path=tuple(map(str, blend)))
    found = tokpack.train(values).losses
    model = tokpack.load_model(tmp_path, device="cpu").double()
    assert set(found) == {"training", "valid", "test", *(f"valid of {one}" for one in prefixes)}
    for prefix in prefixes:
        data: Any = tokpack.GPTDataset(prefix, 32, split="90,5,5", split_index=1, seed=1234)
        batch = data.batch(list(range(8)))
        with torch.no_grad():
            logits = model(torch.from_numpy(batch["tokens"]).long()).flatten(0, 1)
        labels = torch.from_numpy(batch["labels"]).long().flatten()
        loss = float(torch.nn.functional.cross_entropy(logits, labels))
        assert abs(loss - found[f"valid of {prefix}"]) < 1e-6  # weights are stored in fp32
    names = [record["name"] for record in records(tmp_path, "evaluation")]
    assert names == ["valid", *(f"valid of {one}" for one in prefixes), "test"]


def test_of_one_dataset_there_are_no_sources(
    prefixes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    values = settings(prefixes[0], eval_iters=1, train_samples=8, valid_by_source=True)
    assert set(tokpack.train(values).losses) == {"training", "valid", "test"}
    assert "valid has only one dataset" in capsys.readouterr().err


def test_a_trace_of_some_steps(
    prefixes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = settings(prefixes[0], log_dir=str(tmp_path), train_samples=48)
    tokpack.train({**values, "profile": "2:3"})
    path = tmp_path / "profile-2-3.json.gz"
    assert f"profile: {path}, for" in capsys.readouterr().err
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    # Of two steps of four micro batches, whose losses read the head once each.
    steps = [event for event in events if event.get("name") == "Optimizer.step#AdamW.step"]
    assert len(steps) == 2
    tokpack.train({**values, "profile": "5:99"})  # the run ends before
    assert (tmp_path / "profile-5-6.json.gz").exists()
    assert "no profile" not in capsys.readouterr().err
    tokpack.train({**values, "profile": "10:12"})
    said = capsys.readouterr().err
    assert "note: no profile: profile is of the steps 10 to 12, and the last step was 6\n" in said


def test_the_steps_of_a_trace(tmp_path: Path) -> None:
    folder = f"--log-dir {tmp_path}"
    assert config(f"--profile 3:3 {folder}").profiled == range(3, 4)
    assert config(f"--profile {folder}").profiled == range(10, 13)  # as a switch of Megatron-LM
    assert not config("").profiled
    path = tmp_path / "neox.yml"
    for word, steps in (("false", range(1, 1)), ("true", range(10, 13)), ("'2:4'", range(2, 5))):
        path.write_text(f"profile: {word}\n")
        assert config(f"{path} {folder}").profiled == steps

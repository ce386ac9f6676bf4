"""Checkpoints that are written while training goes on: of their step, whole, and never lost."""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from safetensors.torch import save as to_bytes  # noqa: E402
from support.faults import failure, plant  # noqa: E402
from support.trainer_checkpoint_tools import load, make, state, steps  # noqa: E402
from support.trainer_model_tools import model_of  # noqa: E402
from support.trainer_tools import records, settings, write_tokens  # noqa: E402

from tokpack.errors import TrainingError  # noqa: E402
from tokpack.trainer import checkpoint  # noqa: E402
from tokpack.trainer.checkpoint import CheckpointWrite  # noqa: E402
from tokpack.trainer.checkpoints import files  # noqa: E402
from tokpack.trainer.checkpoints.files import write_tensors  # noqa: E402
from tokpack.trainer.checkpoints.folder import find  # noqa: E402
from tokpack.trainer.config.config import Config  # noqa: E402
from tokpack.trainer.loop import train  # noqa: E402
from tokpack.trainer.metrics import StepMeter  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_files_are_the_librarys(tmp_path: Path, dtype: torch.dtype) -> None:
    shapes = {"b:exp_avg": (3, 5), "b": (3, 5), "a.weight": (7,), 'ä "': (1, 1), "empty": (0, 4)}
    tensors = {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}
    tensors["turned"] = torch.randn(4, 6).to(dtype).t()
    write_tensors(tmp_path / "x", tensors)
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    assert (tmp_path / "x").read_bytes() == to_bytes(whole, {"format": "pt"})


def test_a_checkpoint_is_of_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However late it is written: until then the one before it is the latest."""
    engine, may_write = make(), threading.Event()

    def wait(path: Path, tensors: dict[str, Any]) -> None:
        assert may_write.wait(60)
        write_tensors(path, tensors)

    monkeypatch.setattr(checkpoint, "write_tensors", wait)
    steps(engine, 0, 1)
    saving = CheckpointWrite(engine, tmp_path, state(engine, 1), later=True)
    expected = steps(engine, 1, 2)
    assert not saving.is_written
    assert find(tmp_path) is None
    may_write.set()
    saving.finish()
    again = make(seed=7)
    assert load(again, tmp_path, model_of()) is not None
    assert steps(again, 1, 2) == expected


def test_what_fails_in_the_background_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the run goes on; its last checkpoint is tried again."""
    prefix, full = write_tokens(tmp_path / "corpus"), failure(errno.ENOSPC)
    plant(files, "sync_file", full, times=2, patch=monkeypatch)
    more: dict[str, Any] = {"save": str(tmp_path / "run"), "async_save": True, "save_interval": 2}
    assert train(Config(**settings(prefix, train_samples=64, **more)))
    missed, saved = (
        [record["iteration"] for record in records(tmp_path / "run", event)]
        for event in ("not saved", "save")
    )
    assert missed == [2, 4]
    assert saved == [6, 8]
    said = capsys.readouterr().err
    assert said.count("warning: iteration 2 was not saved: cannot write") == 1
    found = find(tmp_path / "run")
    assert found is not None
    plain = {**more, "save": str(tmp_path / "plain"), "async_save": False}
    assert train(Config(**settings(prefix, train_samples=64, **plain)))
    for file in found.glob("*.safetensors"):
        assert file.read_bytes() == (tmp_path / "plain" / found.name / file.name).read_bytes()


def test_what_was_begun_is_finished_before_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, add = write_tokens(tmp_path / "corpus"), StepMeter.add
    monkeypatch.setattr(CheckpointWrite, "is_written", property(lambda _: False))
    more: dict[str, Any] = {"save": str(tmp_path / "run"), "async_save": True, "save_interval": 3}

    def diverge(self: Any, *_: Any) -> None:
        if len(records(tmp_path / "run")) >= 4:
            raise TrainingError("the loss is nan")
        add(self, *_)

    monkeypatch.setattr(StepMeter, "add", diverge)
    with pytest.raises(TrainingError):
        train(Config(**settings(prefix, train_samples=64, **more)))
    found = find(tmp_path / "run")
    assert found is not None
    assert found.name == "step_00000003"

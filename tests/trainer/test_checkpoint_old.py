"""A checkpoint from before settings and optimizers were added loads, and goes on as it did then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from support.rounding import EXACT  # noqa: E402
from support.trainer_checkpoint_tools import load  # noqa: E402

from tokpack.errors import FormatError, UsageError  # noqa: E402
from tokpack.trainer import parallel  # noqa: E402
from tokpack.trainer.checkpoints.export import open_weights  # noqa: E402
from tokpack.trainer.checkpoints.files import checksum_of  # noqa: E402
from tokpack.trainer.config.config import Config  # noqa: E402
from tokpack.trainer.config.model import ModelConfig  # noqa: E402
from tokpack.trainer.engine import Engine, make_engine  # noqa: E402

GOLDEN = Path(__file__).parents[1] / "golden/checkpoint"
SETTINGS: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "seq_length": 64,
    "vocab_size": 32,
    "make_vocab_size_divisible_by": 32,
    "position_embedding_type": "rope",
    "micro_batch_size": 2,
    "global_batch_size": 4,
    "device": "cpu",
}
LOSSES = [3.4825456325472546, 3.461343731884064, 3.4870610274772407]  # of steps 3 to 5 in float64


def make(**more: Any) -> Engine:
    torch.set_num_threads(1)
    config = Config(**{**SETTINGS, **more})
    return make_engine(config, ModelConfig.of(config, 32), parallel.Topology())


def step(engine: Engine, number: int) -> float:
    """The loss of a step over tokens that are a function of its number."""
    ids = torch.randint(0, 32, (2, 65), generator=torch.Generator().manual_seed(number))
    batch = {"tokens": ids[:, :-1], "labels": ids[:, 1:], "loss_mask": torch.ones(2, 64)}
    return float(engine.train_batch([batch], 1e-2).loss)


@pytest.mark.usefixtures("float64")
def test_an_old_checkpoint_goes_on(tmp_path: Path) -> None:
    folder = shutil.copytree(GOLDEN, tmp_path / "run")
    engine = make()
    found = load(engine, folder, engine.model.model)
    assert found is not None
    assert (found.step, engine.steps) == (3, 3)
    losses = [step(engine, number) for number in range(3, 6)]
    apart = max(abs(a - b) for a, b in zip(losses, LOSSES, strict=True))
    assert apart < EXACT
    assert open_weights(folder).model == engine.model.model


def test_its_moments_are_adams(tmp_path: Path) -> None:
    folder, engine = shutil.copytree(GOLDEN, tmp_path / "run"), make(optimizer="muon")
    with pytest.raises(UsageError, match=r"/step_00000003: .*\bmuon: .*\bfinetune=True"):
        load(engine, folder, engine.model.model)


def test_a_setting_of_a_newer_model_is_named(tmp_path: Path) -> None:
    """Settings are added to models without a new version: those of before have their defaults."""
    folder = shutil.copytree(GOLDEN, tmp_path / "run")
    (path,) = folder.glob("step_*/state.json")
    values = json.loads(path.read_text())
    values["model"]["softcap"] = 30.0
    values["checksum"] = checksum_of({k: v for k, v in values.items() if k != "checksum"})
    path.write_text(json.dumps(values))
    with pytest.raises(FormatError, match=r"/state\.json: .*\bsoftcap\b"):
        open_weights(folder)

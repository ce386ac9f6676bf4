"""Training from Python, and a checkpoint as a torch module."""

from __future__ import annotations

import subprocess
import sys
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

import yaml  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from support.trainer_tools import settings  # noqa: E402

import tokpack  # noqa: E402
from tokpack.trainer.config.config import Config  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.usefixtures("float64")
def test_what_was_trained_gives_the_same_loss(prefix: str, tmp_path: Path) -> None:
    """As a mapping, a file and a Config; what the run says of its validation set, from logits."""
    run = settings(prefix, train_samples=64, eval_iters=2, eval_interval=100)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**run, "data_path": [prefix]}))
    saved = tokpack.train({**run, "save": str(tmp_path / "run")})
    others = [tokpack.train(tmp_path / "run.yaml"), tokpack.train(Config(**run))]
    for one in (saved, *others):
        assert (one.iteration, one.consumed_samples) == (8, 64)
        assert one.losses == saved.losses
    checkpoints = [one.checkpoint for one in (saved, *others)]
    assert checkpoints == [tmp_path / "run/step_00000008", None, None]

    model = tokpack.load_model(tmp_path / "run", device="cpu").double()
    data: Any = tokpack.GPTDataset(prefix, 32, split="90,5,5", split_index=1, seed=1234)
    losses = []
    with torch.no_grad():
        for sample in (data[number] for number in range(16)):
            logits = model(torch.from_numpy(sample["tokens"])[None].long())
            assert logits.shape == (1, 32, 128)
            labels = torch.from_numpy(sample["labels"]).long()
            losses.append(float(torch.nn.functional.cross_entropy(logits[0], labels)))
    mean = sum(losses) / len(losses)
    assert abs(mean - saved.losses["valid"]) < 1e-6  # the checkpoint's weights are fp32


def test_a_loaded_model_has_the_names_of_its_checkpoint(prefix: str, tmp_path: Path) -> None:
    run = settings(prefix, train_samples=8, save=str(tmp_path / "run"))
    result = tokpack.train(run)
    assert result.checkpoint is not None
    stored: dict[str, Any] = {}
    for file in result.checkpoint.glob("*.safetensors"):
        stored |= load_file(file)
    model = tokpack.load_model(result.checkpoint, device="cpu")
    names = {name for name, _ in model.named_parameters()}
    assert names == {name for name in stored if ":" not in name}
    assert torch.equal(model.get_parameter("norm.weight"), stored["norm.weight"])
    for more in ({}, {"position_ids": torch.full((2, 33), 32)}):
        with pytest.raises(tokpack.UsageError, match=r"\b33 positions: .*\b32$"):
            model(torch.zeros(2, 33, dtype=torch.int64), **more)
    model(torch.zeros(2, 5, dtype=torch.int64)).sum().backward()
    assert model.get_parameter("embedding.word.weight").grad is not None


def test_it_can_be_called_again_and_in_a_thread(prefix: str, tmp_path: Path) -> None:
    """The folder is free when a run has ended, and no signal is caught where none can be."""
    run = settings(prefix, train_samples=8, save=str(tmp_path / "run"), load=str(tmp_path / "run"))
    first = tokpack.train(run)
    found: list[Any] = []
    thread = Thread(target=lambda: found.append(tokpack.train({**run, "train_samples": 16})))
    thread.start()
    thread.join()
    assert [first.iteration, found[0].iteration] == [1, 2]


def test_wrong_settings_are_named_as_in_python() -> None:
    for values, message in (
        ({"num_layer": 3}, "^settings: .* num_layer; .* num_layers[?]$"),
        ({"num-layer": 3}, "^settings: .* num-layer; .* num-layers[?]$"),
        ({"num_layers": 0}, "^num_layers .*0, .* 1$"),
        ({"nproc": 2}, r"^nproc 2, .*\b1 processes\b"),
    ):
        with pytest.raises(tokpack.UsageError, match=message):
            tokpack.train(values)


def test_deepspeed_is_an_extra_of_its_own() -> None:
    """It is missed at once, before torch is loaded."""
    code = (
        "import sys; sys.modules['deepspeed'] = None; from tokpack.cli.main import main;"
        "code = main(['train', '--deepspeed', '--data-path', 'x']);"
        "print(code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stdout == "1 False\n"
    assert "needs the package deepspeed: pip install 'tokpack[deepspeed]'" in done.stderr

"""What flags of other programs do in a run: its data, its first weights, its checkpoints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

from support.flags_tools import config, write
from support.trainer_model_tools import model_of
from support.trainer_tools import FLAGS, losses, settings, write_tokens

from tokpack.errors import TokpackError, UsageError
from tokpack.trainer.config.config import Config
from tokpack.trainer.data import Data, open_data
from tokpack.trainer.loop import train
from tokpack.trainer.model import Stage
from tokpack.trainer.parallel import Topology

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets, and one of which a split leaves nothing."""
    path = tmp_path_factory.mktemp("data")
    write_tokens(path / "big")
    write_tokens(path / "other", seed=1)
    write_tokens(path / "tiny", documents=3, seed=2)
    return path


def opened(folder: Path, *words: str) -> Data:
    """The data of a run; names are those of the folder's datasets."""
    at = {name: str(folder / name) for name in ("big", "other", "tiny")}
    line = FLAGS.replace("--eval-iters 0", "--eval-iters 2")
    return open_data(config(f"{line} {' '.join(at.get(word, word) for word in words)}"), 2)


def test_extra_checkpoints(folder: Path, tmp_path: Path) -> None:
    """Those that are asked for, the beginning too, and each is one to go on from."""
    base = settings(str(folder / "big"), train_samples=40, keep_checkpoints=0, save_interval=2)
    assert train(Config(**base, save=str(tmp_path / "a"), extra_save_iters=(0, 3, 999)))
    saved = sorted(path.name for path in (tmp_path / "a").glob("step_*"))
    assert saved == [f"step_{number:08d}" for number in (0, 2, 3, 4, 5)]
    for number in (0, 3):
        load = str(tmp_path / "a" / saved[2 if number else 0])
        again = Config(**base, load=load, save=str(tmp_path / f"b{number}"))
        assert train(again)
        expected = losses(tmp_path / "a")
        found = losses(tmp_path / f"b{number}")
        assert found == {step: expected[step] for step in range(number + 1, 6)}


def test_a_dataset_that_a_split_leaves_empty(folder: Path) -> None:
    words = ("--data-path", ".5", "big", ".5", "tiny")
    with pytest.raises(UsageError, match="allow_empty"):
        opened(folder, *words)
    data = opened(folder, *words, "--allow-empty")
    assert [one.prefix for one in data.plan.train.portions] == [
        str(folder / name) for name in ("big", "tiny")
    ]
    assert len(data.valid["valid"]) >= 2


@pytest.mark.parametrize("order", ["megatron", "megatron-0.7", "bigscience", "microsoft", "neox"])
def test_other_orders_know_how_much_is_evaluated(folder: Path, order: str) -> None:
    """320 samples are 40 steps of 8; evaluated at 15, 30 and the end: 3 times, and once a test."""
    words = ("--data-path", ".5", "big", ".5", "other", "--order", order, "--eval-interval", "15")
    data = opened(folder, *words)
    assert len(data.valid["valid"]) >= 3 * 2 * 8
    assert data.plan.spec.valid_samples == 3 * 2 * 8
    assert data.plan.spec.test_samples == 2 * 8
    assert opened(folder, *words, "--eval-iters", "0").valid == {}
    stateless = opened(folder, *words[:5])
    assert stateless.plan.spec.valid_samples is None


def test_the_end_of_documents_without_a_manifest(folder: Path) -> None:
    words = ("--data-path", "big", "--eod-mask-loss")
    with pytest.raises(UsageError, match="eod_id"):
        opened(folder, *words)
    data = opened(folder, *words, "--eod-id", "5")
    sample = data.train[0]
    assert not sample["loss_mask"][sample["tokens"] == 5].any()
    assert sample["loss_mask"].any()


def test_weights_of_neox_are_those_of_the_blend(folder: Path, tmp_path: Path) -> None:
    big, other = (str(folder / name) for name in ("big", "other"))
    for weights, shares in (([1, 3], (0.25, 0.75)), (None, (0.5, 0.5))):
        values: dict[str, Any] = {"train_data_paths": [big, other], "valid_data_paths": [other]}
        values |= {"train_data_weights": weights} if weights else {}
        words = write(tmp_path / "neox.yml", values)
        samples = [one.samples for one in opened(folder, words).plan.train.usage]
        assert [round(n / sum(samples), 2) for n in samples] == list(shares)


def test_wang_init_reaches_the_weights() -> None:
    model = model_of(hidden_size=256, output_init_method_std=2 / 3 / 16, init_method_std=0.5)
    stage = Stage(model, Topology())
    stage.initialise(1)
    for name, weight in stage.named_parameters():
        if weight.ndim == 2:
            ends = name.endswith(("out.weight", "down.weight"))
            expected = 2 / 3 / 16 if ends else 0.5
            real = weight[: model.vocab_size]
            bound = 6 / (2 * real.numel()) ** 0.5  # standard errors of a standard deviation
            assert real.std().item() == pytest.approx(expected, rel=bound)


def test_every_error_names_a_flag_that_there_is(folder: Path, tmp_path: Path) -> None:
    """What a message proposes is understood: no other setting is refused in its place."""
    with pytest.raises(TokpackError) as caught:
        opened(folder, "--data-path", "tiny", "--order", "neox")
    assert "allow_empty" in str(caught.value)
    blend = tmp_path / "b.yaml"
    blend.write_text(json.dumps({"datasets": {str(folder / "big"): 0.5}, "allow_empty": True}))
    assert config(f"{blend} --allow-empty --samples 40").train_samples == 40

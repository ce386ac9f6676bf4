"""Training on conversations: the loss of trained tokens, equal to one that is computed plainly."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from support.parallel_tools import LLAMA, PP, TINY, TP, in_processes
from support.trainer_tools import records, settings
from torch.nn import functional

from tokpack import MMapIndexedDataset, MMapIndexedDatasetBuilder
from tokpack.trainer import parallel
from tokpack.trainer.config.config import Config
from tokpack.trainer.config.model import ModelConfig
from tokpack.trainer.data import open_data, stream, weigh
from tokpack.trainer.engine import make_engine
from tokpack.trainer.loop import train

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VOCABULARY = 90
TOLERANCE = 1e-12
Value = float | int


def write_chats(
    prefix: Path, lengths: list[int], trained: Callable[[int], dict[str, Value]], names: list[str]
) -> None:
    """Conversations of random tokens; ``trained`` gives the tracks of the token at a place."""
    draw = random.Random(5)
    with MMapIndexedDatasetBuilder(f"{prefix}.bin", np.uint16, tracks=names) as builder:
        for length in lengths:
            values = [trained(place) for place in range(length)]
            tokens = [draw.randrange(VOCABULARY) for _ in range(length)]
            builder.add_item(tokens, **{n: [value[n] for value in values] for n in names})
            builder.end_document()
        builder.finalize(f"{prefix}.idx")


def blend_of(folder: Path, text: str) -> tuple[str]:
    path = folder / "blend.yaml"
    path.write_text(text)
    return (str(path),)


def one_step(argument: dict[str, Any]) -> list[float]:
    """Loss and gradient norm of a step, and the loss of an evaluation before it."""
    torch.set_num_threads(1)
    config = Config(**argument)
    topology = parallel.start(config)
    micro = config.micro_batch_size * topology.data_size
    data = open_data(config, micro)
    engine = make_engine(config, ModelConfig.of(config, data.vocab_size), topology)
    batches = list(stream(data, data.train, config, topology))
    assert len(batches) == config.global_batch_size // micro
    weigh(batches, topology)
    before = float(engine.evaluate(batches))
    result = engine.train_batch(batches, 1e-3)
    return [before, float(result.loss), float(result.grad_norm)]


def plain(argument: dict[str, Any], prefix: Path) -> list[float]:
    """The same of each conversation by itself: no packing, no padding, no masks; torch alone."""
    config = Config(**argument)
    topology = parallel.Topology()
    engine = make_engine(config, ModelConfig.of(config, VOCABULARY), topology)
    dataset = MMapIndexedDataset(prefix)
    losses, weights = [], []
    for number, tokens in enumerate(dataset):
        text = torch.from_numpy(tokens.astype(np.int64))
        logits = engine.model.logits({"tokens": text[None, :-1]})[0]
        weight = torch.ones(len(text) - 1)
        for name in dataset.tracks:
            weight = weight * torch.from_numpy(dataset.track(name)[number].astype(float))[1:]
        losses.append((functional.cross_entropy(logits, text[1:], reduction="none") * weight).sum())
        weights.append(weight.sum())
    loss = torch.stack(losses).sum() / torch.stack(weights).sum()
    loss.backward()
    grads = [p.grad for p in engine.model.parameters() if p.grad is not None]
    norm = torch.stack([(grad**2).sum() for grad in grads]).sum().sqrt()
    return [float(loss.detach()), float(loss.detach()), float(norm)]


LAYOUTS: list[tuple[dict[str, Any], int]] = [
    ({}, 1),
    ({"micro_batch_size": 1}, 2),
    (TP, 2),
    ({**PP, "micro_batch_size": 1}, 2),
    ({"zero_stage": 3, "micro_batch_size": 1}, 2),
]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("names", [["mask"], ["mask", "weights"]])
def test_the_loss_is_that_of_trained_tokens_in_every_layout(
    tmp_path: Path, names: list[str]
) -> None:
    def trained(place: int) -> dict[str, Value]:
        return {"mask": int(place % 7 > 3), "weights": (0.5, 0.25, 0.125)[place % 3]}

    # Two conversations in one sample, and one alone in the other, of which the most is padding.
    write_chats(tmp_path / "chat", [25, 33, 19], trained, names)
    text = f"datasets: {tmp_path / 'chat'}\npacking: best_fit\n"
    argument = {**TINY, **LLAMA, "global_batch_size": 2, "train_samples": 2, "split": None}
    argument |= {"data_path": blend_of(tmp_path, text), "vocab_size": VOCABULARY, "clip_grad": 0.0}
    argument |= {"eval_iters": 0, "calculate_per_token_loss": True}
    wanted = plain(argument, tmp_path / "chat")
    jobs = [(world, one_step, {**argument, **layout}) for layout, world in LAYOUTS]
    for (layout, _), ranks in zip(LAYOUTS, in_processes(jobs, float64=True), strict=True):
        for found in ranks:
            assert found == pytest.approx(wanted, rel=TOLERANCE, abs=0), layout


def test_without_a_trained_token_the_loss_is_0_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_chats(tmp_path / "none", [40] * 90, lambda _: {"mask": 0}, ["mask"])
    more = {"data_path": (str(tmp_path / "none"),), "eval_iters": 1, "eval_interval": 2}
    for exact in (False, True):
        folder = tmp_path / str(exact)
        run = settings("", **more, calculate_per_token_loss=exact, log_dir=str(folder))
        assert train(Config(**run | {"train_samples": 16, "split": "6,2,2"}))
        steps = records(folder)
        assert [step["loss"] for step in steps] == [0.0, 0.0]
        assert [step["labels"] for step in steps] == [0, 0]
        assert [step["grad_norm"] for step in steps] == [0.0, 0.0]
        assert {one["loss"] for one in records(folder, "evaluation")} == {0.0}
        said = capsys.readouterr().err
        assert "1 of the last 1 steps had no trained token" in said
        assert "valid has no trained token: its loss is 0" in said
    assert train(Config(**run | {"train_samples": 16, "data_path": blend_of(
        tmp_path, f"datasets: {tmp_path / 'none'}\nloss: all\n"), "split": None}))  # fmt: skip
    assert "trained token" not in capsys.readouterr().err
    assert records(tmp_path / "True")[-1]["labels"] == 8 * 32

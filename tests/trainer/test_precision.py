"""bf16 and fp16 over several ranks: near fp32, and of one mind about overflow."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from support.parallel_tools import (
    BATCHES,
    NEOX,
    PP,
    TP,
    Run,
    batches,
    check_near,
    open_engine,
    train_many,
)

from tokpack.trainer.tensor import ColumnLinear, RowLinear


def test_half_precision_is_near_and_agrees_across_ranks() -> None:
    grids = [({}, 1), (TP, 2), (PP, 2), ({}, 2)]
    check_near([Run({}), *(Run({**grid, "precision": "bf16"}, n) for grid, n in grids)], 1e-3)
    check_near([Run({}), *(Run({**grid, "precision": "fp16"}, n) for grid, n in grids[1:3])], 2e-4)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_weights_cast_once_a_step_give_the_same_bits(precision: str) -> None:
    """As casting them for each micro batch, which autocast does by itself; recomputed too."""
    settings = {"precision": precision, "checkpoint_activations": True, "global_batch_size": 16}
    run = Run({**NEOX, **settings}, steps=4)
    once, each = open_engine(run.settings), open_engine(run.settings)
    for module in each.model.modules():
        if isinstance(module, (ColumnLinear, RowLinear)):
            assert module.cast is not None
            module.cast = None
    data = batches(run, 0, 1)
    for step in range(run.steps):
        found = [one.train_batch(data[step % BATCHES], 1e-3) for one in (once, each)]
        assert found[0].loss == found[1].loss
        assert found[0].grad_norm == found[1].grad_norm
    pairs = zip(once.model.parameters(), each.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert once.evaluate(data[0]) == each.evaluate(data[0])


def test_only_fp16_has_a_loss_scale() -> None:
    """Also where it would grow with every step: it would leave fp32 behind after 64 of them."""
    base = {"loss_scale_window": 1}
    found = train_many([Run(base, steps=8), Run({**base, "precision": "bf16"}, 1, 8)])
    assert all(set(figures["scale"]) == {1.0} for figures in found)
    fixed = {**base, "precision": "fp16", "loss_scale": 64.0}
    assert train_many([Run(fixed, steps=8)])[0]["scale"] == [64.0] * 8


def test_all_ranks_skip_a_step_that_overflows() -> None:
    base = {"precision": "fp16", "initial_loss_scale": 2.0**24, "hysteresis": 1}
    found = train_many([Run(base, steps=10), Run({**base, **TP, **PP}, 4, 10)])
    for figures in found:
        skipped = int(sum(figures["skipped"]))
        assert 4 < skipped < 10
        assert figures["steps"] == [10 - skipped]
        assert figures["scale"][:3] == [2.0**24, 2.0**23, 2.0**22]
        assert figures["loss"][0] == figures["loss"][4]  # nothing was changed

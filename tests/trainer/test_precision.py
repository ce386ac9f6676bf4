"""bf16 and fp16 over several ranks: near fp32, and of one mind about overflow."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from support.parallel_tools import (
    NEOX,
    PP,
    TP,
    Run,
    check_copies,
    check_precision,
    in_processes,
    train_many,
)


def test_half_precision_is_near_and_agrees_across_ranks() -> None:
    grids = [({}, 1), (TP, 2), (PP, 2), ({}, 2)]
    halves = [Run({**grid, "precision": "bf16"}, n) for grid, n in grids]
    halves += [Run({**grid, "precision": "fp16"}, n) for grid, n in grids[1:3]]
    check_precision([Run({}), *halves])


def test_copies_are_the_rounded_weights() -> None:
    """Made once a step, in all stages of ZeRO, of pieces on several ranks; recomputed too."""
    base = {**NEOX, "checkpoint_activations": True}
    runs = [Run({**base, "precision": half}) for half in ("bf16", "fp16")]
    runs += [Run({"precision": "bf16", "zero_stage": stage}, 2) for stage in range(4)]
    in_processes([(run.world, check_copies, run) for run in runs])


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

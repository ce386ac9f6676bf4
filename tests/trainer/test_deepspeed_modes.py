"""The DeepSpeed engine with half precision, dropout, documents and recomputation."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

from support.deepspeed_tools import needs_deepspeed, zero
from support.parallel_tools import PP, TP, Run, check, check_precision, train_many

pytestmark = needs_deepspeed
BF16, FP16 = {"precision": "bf16"}, {"precision": "fp16"}
RECOMPUTE = {"checkpoint_activations": True, "checkpoint_num_layers": 3}
DROPOUT = {"num_layers": 4, "hidden_dropout": 0.1, "attention_dropout": 0.1}


def test_documents_dropout_and_recomputation_reach_all_stages() -> None:
    base = {**DROPOUT, **RECOMPUTE}
    grids = [zero(2, **base), zero(3, **base), zero(1, **base, **PP)]
    runs = [Run(DROPOUT, 1, 4, 2, documents=True)]
    check([*runs, *(Run(grid, 2, 4, 2, documents=True) for grid in grids)])
    parts = {**base, **TP, "partition_activations": True, "checkpoint_in_cpu": True}
    check(
        [Run(parts, 2, 4, 2), Run(zero(2, **parts), 2, 4, 2), Run(zero(1, **parts, **PP), 4, 4, 2)]
    )


def test_half_precision_is_near() -> None:
    grids = [zero(0), zero(2), zero(3), zero(0, **PP)]
    halves = [Run({**grid, **half}, 2) for half in (FP16, BF16) for grid in grids]
    check_precision([Run({}), *halves])


def test_all_ranks_skip_a_step_that_overflows() -> None:
    base = {**FP16, "initial_loss_scale": 2.0**24, "hysteresis": 1}
    grids = [zero(2, **base), zero(3, **base), zero(1, **base, **PP)]
    for figures in train_many([Run(grid, 2, 10) for grid in grids]):
        skipped = int(sum(figures["skipped"]))
        assert 4 < skipped < 10
        assert figures["steps"] == [10 - skipped]
        assert figures["scale"][:3] == [2.0**24, 2.0**23, 2.0**22]
        assert figures["norm"][0] == math.inf
        assert figures["loss"][0] == figures["loss"][4]  # nothing was changed

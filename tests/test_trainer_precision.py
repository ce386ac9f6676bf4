"""bf16 and fp16 over several ranks: near fp32, and of one mind about overflow."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from parallel_tools import PP, TP, Run, check, train_many


def test_half_precision_is_near_and_agrees_across_ranks() -> None:
    grids = [({}, 1), (TP, 2), (PP, 2), ({}, 2)]
    check([Run({}), *(Run({**grid, "precision": "bf16"}, n) for grid, n in grids)], 1e-3)
    check([Run({}), *(Run({**grid, "precision": "fp16"}, n) for grid, n in grids[1:3])], 2e-4)


def test_all_ranks_skip_a_step_that_overflows() -> None:
    base = {"precision": "fp16", "initial_loss_scale": 2.0**24, "hysteresis": 1}
    found = train_many([Run(base, steps=10), Run({**base, **TP, **PP}, 4, 10)])
    for figures in found:
        skipped = int(sum(figures["skipped"]))
        assert 4 < skipped < 10
        assert figures["steps"] == [10 - skipped]
        assert figures["scale"][:3] == [2.0**24, 2.0**23, 2.0**22]
        assert figures["loss"][0] == figures["loss"][4]  # nothing was changed

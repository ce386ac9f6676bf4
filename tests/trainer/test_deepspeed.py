"""The DeepSpeed engine against the torch engine in one process."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from support.deepspeed_tools import needs_deepspeed, zero
from support.parallel_tools import LLAMA, PP, RAMP, TP, Run, check, check_precision

pytestmark = needs_deepspeed
CLIP = {"clip_grad": 0.3}


def test_steps_are_those_of_one_process() -> None:
    """Clipping is on in most steps; a pipeline accumulates gradients of four micro batches."""
    grids = [*map(zero, range(4)), zero(0, **TP), zero(3, **TP), zero(1, **PP)]
    check([Run(CLIP), *(Run({**grid, **CLIP}, 2) for grid in grids)])


def test_steps_of_a_growing_batch() -> None:
    grids = [(zero(0), 2), (zero(2), 2), (zero(3), 2), (zero(1, **PP), 4)]
    check([Run(RAMP, steps=6), *(Run({**grid, **RAMP}, n, 6) for grid, n in grids)])


def test_fp32_is_fp32() -> None:
    grids = [*map(zero, range(4)), zero(1, **PP)]
    check_precision([Run(CLIP), *(Run({**grid, **CLIP}, 2) for grid in grids)])


def test_zero_with_other_grids() -> None:
    grids = [zero(1, **TP), zero(2, **TP), zero(0, **PP)]
    check([Run({}), *(Run(grid, 2) for grid in grids), Run(zero(1, **TP, **PP), 4)])


def test_one_process() -> None:
    check([Run(s, steps=6) for s in (LLAMA, *(zero(stage, **LLAMA) for stage in (0, 1, 3)))])

"""The DeepSpeed engine against the torch engine in one process."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

from deepspeed_tools import zero
from parallel_tools import LLAMA, PP, TP, Run, check

CLIP = {"clip_grad": 0.3}


def test_fifty_steps_are_those_of_one_process() -> None:
    """Clipping is on in most steps; a pipeline accumulates gradients of four micro batches."""
    grids = [zero(2), zero(1, **PP)]
    check([Run(CLIP, steps=50), *(Run({**grid, **CLIP}, 2, 50) for grid in grids)], 1e-5)


def test_all_stages_of_zero_are_exact() -> None:
    grids = [zero(stage, **grid) for stage in range(4) for grid in ({}, TP)]
    piped = [Run(zero(0, **PP), 2), Run(zero(1, **TP, **PP), 4)]
    check([Run({}), *(Run(grid, 2) for grid in grids), *piped], 1e-5)


def test_one_process() -> None:
    check([Run(LLAMA), *(Run(zero(stage, **LLAMA)) for stage in (0, 1, 3))], 1e-5)

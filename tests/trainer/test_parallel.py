"""Parallel training equals training in one process: real processes on gloo, a tiny model."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

pytest.importorskip("torch")

from support.parallel_tools import NEOX, PP, RAMP, TINY, TP, Run, check, check_precision

from tokpack.configuration.config import Config
from tokpack.configuration.schedule import Schedule

RECOMPUTE = {"checkpoint_activations": True, "checkpoint_num_layers": 3}


@pytest.mark.parametrize(
    ("family", "clip"), [({}, 0.3), (NEOX, 1.0)], ids=["gpt2-tied", "neox-untied"]
)
def test_each_parallelism_equals_one_process(family: dict[str, Any], clip: float) -> None:
    base = {**family, "num_layers": 4, "clip_grad": clip}
    grids = [(TP, 2), (PP, 2), ({}, 2), (RECOMPUTE, 1)]
    runs = [Run(base, 1, 6, 2), *(Run({**base, **grid}, n, 6, 2) for grid, n in grids)]
    found = check(runs)
    assert max(found[0]["norm"]) > clip  # so clipping did something


def test_fp32_is_fp32() -> None:
    grids = [(TP, 2), (PP, 2), ({}, 2), (RECOMPUTE, 1)]
    base = {**NEOX, "num_layers": 4}
    check_precision([Run(base, 1, 4, 2), *(Run({**base, **grid}, n, 4, 2) for grid, n in grids)])


def test_all_parallelisms_together() -> None:
    base = {"clip_grad": 0.3}
    check([Run(base), Run({**base, **TP, **PP}, 8)])


def test_a_growing_batch_is_that_of_one_process() -> None:
    grids = [(TP, 2), (PP, 2), ({}, 2), ({**TP, **PP}, 4)]
    runs = [Run(RAMP, steps=6), *(Run({**RAMP, **grid}, n, 6) for grid, n in grids)]
    check(runs)
    steps = Schedule(Config(**{**TINY, **RAMP}), epoch=1000).steps()
    assert [size for _, size in islice(steps, 6)] == [4] * 3 + [8] * 3

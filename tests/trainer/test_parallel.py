"""Parallel training equals training in one process: real processes on gloo, a tiny model."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

pytest.importorskip("torch")

from support.parallel_tools import (
    NEOX,
    PP,
    RAMP,
    TINY,
    TP,
    Run,
    check,
)

from tokpack.configuration.config import Config
from tokpack.configuration.schedule import Schedule

RECOMPUTE = {"checkpoint_activations": True, "checkpoint_num_layers": 3}


@pytest.mark.parametrize(
    ("family", "clip"), [({}, 0.3), (NEOX, 1.0)], ids=["gpt2-tied", "neox-untied"]
)
def test_each_parallelism_equals_one_process(family: dict[str, Any], clip: float) -> None:
    base = {**family, "clip_grad": clip}
    grids = [(TP, 2), (PP, 2), ({}, 2), (RECOMPUTE, 1)]
    runs = [Run(base, 1, 50, 2), *(Run({**base, **grid}, n, 50, 2) for grid, n in grids)]
    found = check(runs, 1e-5)
    assert max(found[0]["norm"]) > clip  # so clipping did something


def test_all_parallelisms_together() -> None:
    base = {"clip_grad": 0.3}
    check([Run(base, steps=50), Run({**base, **TP, **PP}, 8, 50)], 1e-5)


def test_a_growing_batch_is_that_of_one_process() -> None:
    grids = [(TP, 2), (PP, 2), ({}, 2), ({**TP, **PP}, 4)]
    runs = [Run(RAMP, 1, 50), *(Run({**RAMP, **grid}, n, 50) for grid, n in grids)]
    check(runs, 1e-5)
    steps = Schedule(Config(**{**TINY, **RAMP}), epoch=1000).steps()
    assert [size for _, size in islice(steps, 50)] == [4] * 25 + [8] * 25

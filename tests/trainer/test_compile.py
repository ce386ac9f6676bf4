"""A compiled model trains as one that is not, and is compiled once for all blocks and steps."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

pytest.importorskip("torch")

from support.parallel_checks import check, difference
from support.parallel_tools import NEOX, TP, Run, in_processes, train
from support.rounding import EXACT

# The C++ compiler takes most of a minute.
pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++"),
    pytest.mark.slow,
]
DROPOUT = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
RECOMPUTE = {"checkpoint_activations": True, "checkpoint_num_layers": 3}


def test_compiled_steps_are_those_of_the_interpreter() -> None:
    check([Run(settings, documents=True) for settings in (NEOX, {**NEOX, "compile": True})])


def test_collectives_are_compiled() -> None:
    split = {**NEOX, **TP, "sequence_parallel": True, "num_layers": 1}
    check([Run(settings, 2) for settings in (split, {**split, "compile": True})])


def compiled_once(run: Run) -> dict[str, Any]:
    """Train where a function that is compiled more often than for each grad mode is an error."""
    import torch._dynamo.config as dynamo

    dynamo.recompile_limit = 2
    dynamo.fail_on_recompile_limit_hit = True
    return train(run)


def test_blocks_that_drop_share_their_code_and_repeat_themselves() -> None:
    """Four blocks, whose seeds change with each of them and each micro batch, computed twice.

    They are those of the test above but for dropout: what the C++ compiler made of it serves here.
    """
    model = {**NEOX, "num_layers": 4, "compile": True, **DROPOUT}
    runs = [Run({**model, **more}, documents=True) for more in ({}, RECOMPUTE)]
    jobs = [(1, compiled_once, run) for run in runs]
    (dropped,), (again,) = in_processes(jobs, float64=True)
    assert difference(dropped, again) < EXACT

"""A compiled model trains as one that is not, and is compiled once for all blocks and steps."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

pytest.importorskip("torch")

from support.parallel_tools import NEOX, Run, check, in_processes, rounding, train

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++")
DROPOUT = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
RECOMPUTE = {"checkpoint_activations": True, "checkpoint_num_layers": 3}


def test_compiled_steps_are_those_of_the_interpreter() -> None:
    model = {**NEOX, "num_layers": 2}
    compiled = {**model, "compile": True}
    check([Run(settings, documents=True) for settings in (model, compiled)])


def compiled_once(run: Run) -> dict[str, Any]:
    """Train where a function that is compiled more often than for each grad mode is an error."""
    import torch._dynamo.config as dynamo

    dynamo.recompile_limit = 2
    dynamo.fail_on_recompile_limit_hit = True
    return train(run)


@pytest.mark.slow
def test_blocks_that_drop_share_their_code_and_repeat_themselves() -> None:
    """Five blocks, whose seeds change with each of them and each micro batch."""
    runs = [Run({"num_layers": 5, "compile": True, **DROPOUT, **more}) for more in ({}, RECOMPUTE)]
    found = in_processes([(1, compiled_once, run) for run in (runs[0], *runs)])
    assert found[0] == found[1]
    dropped, again = found[1][0]["loss"], found[2][0]["loss"]
    allowed = rounding(runs[0].steps) * dropped[0]
    assert max(abs(a - b) for a, b in zip(dropped, again, strict=True)) < allowed

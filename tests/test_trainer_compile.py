"""A compiled model trains as one that is not, on the CPU, with documents and all of NeoX."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("torch")

from parallel_tools import NEOX, Run, check


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler: g++")
def test_compiled_steps_are_those_of_the_interpreter() -> None:
    model = {**NEOX, "num_layers": 2}
    compiled = {**model, "compile": True}
    check([Run(settings, documents=True) for settings in (model, compiled)], 1e-5)

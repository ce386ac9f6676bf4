"""Ranks that share nothing but their launcher, as on machines of a cluster."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from support.trainer_tools import records, run, write_tokens

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("stage", ["0", "1"])
def test_sums_are_of_the_same_parameters_on_ranks_whose_sets_have_other_orders(
    tmp_path: Path, stage: str
) -> None:
    data = write_tokens(tmp_path / "data")
    flags = ("--data-path", data, "--train-samples", "24", "--zero-stage", stage, "--log-dir")
    run(1, *flags, str(tmp_path / "one"))
    run(2, *flags, str(tmp_path / "two"), python=sys.executable)
    one, two = (records(tmp_path / name) for name in ("one", "two"))
    assert len(one) == len(two) == 3
    for alone, together in zip(one, two, strict=True):
        # Sums of fp32 in another order; of other parameters they differ by a tenth.
        assert together["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-4)
        assert together["loss"] == pytest.approx(alone["loss"], rel=1e-4)

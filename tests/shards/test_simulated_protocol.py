"""The protocol of datasets on a store, on simulated machines; see torture/simulate.py."""

from __future__ import annotations

import pytest
from torture import simulate

AT_A_TIME, SEEDS = 625, 1_250


def right(seeds: range) -> None:
    for seed, _, wrong in simulate.rounds(seeds):
        assert not wrong, f"python -m torture.simulate --seed {seed} --replay"


def test_a_few_seeds() -> None:
    right(range(20_000, 20_060))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, AT_A_TIME))
def test_many_seeds(first: int) -> None:
    right(range(first, first + AT_A_TIME))

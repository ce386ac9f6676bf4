"""What the plots of pages are drawn from: axes, and curves of many points."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rounding import gamma

from tokpack.report.charts import curves_plot, thinned
from tokpack.report.plot import even_axis

VALUES = st.floats(-1e12, 1e12, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-12)


@given(st.lists(VALUES, min_size=1, max_size=20))
def test_an_axis_holds_all_values_between_its_ticks(values: list[float]) -> None:
    axis = even_axis(values, "", str)
    places = [value for value, _ in axis.ticks]
    assert 2 <= len(places) <= 9
    assert places == sorted(set(places))
    assert (axis.low, axis.high) == (places[0], places[-1])
    # A value may lie beyond the last tick by a 10^9th of the distance of two, and its rounding.
    slack = 1e-9 * (places[1] - places[0]) + gamma(4) * max(map(abs, values))
    assert axis.low - slack <= min(values) <= max(values) <= axis.high + slack


@pytest.mark.parametrize("size", [1, 599, 600, 601, 5000, 123_457])
def test_no_spike_is_lost(size: int) -> None:
    points = [(float(i), 1.0) for i in range(size)]
    points[size // 3] = (float(size // 3), 9.0)
    points[size // 2] = (float(size // 2), -9.0)
    kept = thinned(points)
    assert len(kept) <= 602
    assert kept == sorted(kept)
    assert {points[size // 3], points[size // 2]} <= set(kept)
    assert set(kept) <= set(points)


def test_a_plot_of_nothing() -> None:
    assert curves_plot([[], []], ("", "", "")) == ""
    assert "<circle" in curves_plot([[(3.0, 4.0)]], ("one", "x", "y"))

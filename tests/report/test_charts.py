"""What the plots of pages are drawn from: curves of many points."""

from __future__ import annotations

import re

import pytest

from tokpack.look.plots import Curve, curves_plot, thinned


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


def ticks(plot: str) -> list[str]:
    """The labels of a plot's axes."""
    return re.findall("<text[^>]*>([^<]*)<", plot)


def test_curves_have_round_ticks_and_their_names() -> None:
    assert curves_plot("", "", [Curve("none", [])]) == ""
    plot = curves_plot(
        "Loss", "nats", [Curve("a<b", [(3.0, 4.0)]), Curve("c", [(1.0, 25_000.0)], 9)]
    )
    assert "a&lt;b" in plot
    assert ticks(plot) == ["5000", "10k", "15k", "20k", "25k", "1", "2", "3", "step"]
    assert re.findall('<circle class="fill (s[0-9])', plot) == ["s0", "s9"]  # of one point each
    assert "<polyline" not in plot
    line = curves_plot("Loss", "nats", [Curve("a", [(0.0, 10.8), (2000.0, 3.1)])])
    assert ticks(line) == ["4", "6", "8", "10", "0", "500", "1000", "1500", "2000", "step"]
    assert "<circle" not in line
    assert ticks(curves_plot("", "", [Curve("a", [(1.0, 2.5)])])) == ["2.5", "1", "step"]
    close = curves_plot("", "", [Curve("a", [(7.0, 2.5), (8.0, 2.5)])])
    assert len(ticks(curves_plot("", "", [Curve("a", [(1.0, -1e308), (2.0, 1e308)])]))) == 5
    assert ticks(close) == ["2.5", "7", "8", "step"]

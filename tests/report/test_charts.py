"""What the plots of pages are drawn from: curves of many points."""

from __future__ import annotations

import re

import pytest

from tokpack.look.plots import Curve, curves_plot, epochs_plot, round_axis, thinned
from tokpack.samples.blend.blended import Phase


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


@pytest.mark.parametrize("highest", [1e-4, 0.3, 1, 4.99, 5, 7, 10, 99_999, 1e12])
def test_an_axis_has_a_few_round_ticks(highest: float) -> None:
    axis = round_axis(highest, "", "{:.3g}".format)
    assert 3 <= len(axis.ticks) <= 6
    assert highest * (1 - 1e-9) <= axis.high < 2 * highest
    assert all(float(text) == pytest.approx(value) for value, text in axis.ticks)


def test_epochs_follow_the_schedule() -> None:
    phases = [Phase(0, (0.75, 0.25)), Phase(400, (0.0, 1.0)), Phase(5000, (1.0, 0.0))]
    plot = epochs_plot(phases, 1000, [100, 1400])
    found = re.findall('<polyline class="line (s[01]) " points="([^"]*)"', plot)
    curves = {name: [tuple(map(float, p.split(","))) for p in text.split()] for name, text in found}
    (x0, y0), (x1, y1), (x2, y2), end = curves["s0"]
    assert (y1, end) == (y2, (x2, y2))  # nothing of it from sample 400 on
    assert x1 - x0 == pytest.approx(0.4 * (x2 - x0), abs=0.2)
    [_, (_, half), (_, whole), _] = curves["s1"]
    assert y0 - half == pytest.approx((y0 - y1) * (100 / 1400) / 3, abs=0.2)
    assert y0 - whole == pytest.approx((y0 - y1) * (700 / 1400) / 3, abs=0.2)

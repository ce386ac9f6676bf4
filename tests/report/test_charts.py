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


def test_curves_have_the_ends_of_their_numbers_and_their_names() -> None:
    assert curves_plot("", "", [Curve("none", [])]) == ""
    plot = curves_plot(
        "Loss", "nats", [Curve("a<b", [(3.0, 4.0)]), Curve("c", [(1.0, 25_000.0)], 9)]
    )
    assert "a&lt;b" in plot
    assert re.findall("<text[^>]*>([^<]*)<", plot) == ["4", "25k", "1", "3", "step"]
    assert re.findall('<polyline class="line (s[0-9])', plot) == ["s0", "s9"]
    assert len(re.findall(r'points="\S+ \S+"', plot)) == 2  # a dot is a line to where it begins


@pytest.mark.parametrize("highest", [1e-4, 0.3, 1, 4.99, 5, 7, 10, 99_999, 1e12])
def test_an_axis_has_a_few_round_ticks(highest: float) -> None:
    axis = round_axis(highest, "", "{:.3g}".format)
    assert 3 <= len(axis.ticks) <= 6
    assert highest * (1 - 1e-9) <= axis.high < 2 * highest
    assert all(float(text) == pytest.approx(value) for value, text in axis.ticks)


def test_epochs_follow_the_schedule() -> None:
    phases = [Phase(0, (0.75, 0.25)), Phase(400, (0.0, 1.0)), Phase(5000, (1.0, 0.0))]
    plot = epochs_plot(["<a>", "b"], phases, 1000, [100, 1400])
    found = re.findall('<polyline class="line (s[01]) " points="([^"]*)"', plot)
    curves = {name: [tuple(map(float, p.split(","))) for p in text.split()] for name, text in found}
    (x0, y0), (x1, y1), (x2, y2), end = curves["s0"]
    assert (y1, end) == (y2, (x2, y2))  # nothing of it from sample 400 on
    assert x1 - x0 == pytest.approx(0.4 * (x2 - x0), abs=0.2)
    [_, (_, half), (_, whole), _] = curves["s1"]
    assert y0 - half == pytest.approx((y0 - y1) * (100 / 1400) / 3, abs=0.2)
    assert y0 - whole == pytest.approx((y0 - y1) * (700 / 1400) / 3, abs=0.2)
    assert "&lt;a&gt;" in plot

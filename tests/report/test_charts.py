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


def test_curves_have_the_ends_of_their_numbers_and_their_names() -> None:
    assert curves_plot("", "", [Curve("none", [])]) == ""
    plot = curves_plot(
        "Loss", "nats", [Curve("a<b", [(3.0, 4.0)]), Curve("c", [(1.0, 25_000.0)], 9)]
    )
    assert "a&lt;b" in plot
    assert re.findall("<text[^>]*>([^<]*)<", plot) == ["4", "25k", "1", "3", "step"]
    assert re.findall('<polyline class="line (s[0-9])', plot) == ["s0", "s9"]
    assert len(re.findall(r'points="\S+ \S+"', plot)) == 2  # a dot is a line to where it begins

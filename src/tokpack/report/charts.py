"""The plots of reports and pages: lengths of documents, frequencies of tokens, curves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from tokpack.quantities import count_text
from tokpack.report.facts import binary
from tokpack.report.html import Html
from tokpack.report.plot import Axis, Plot, decades_axis, percent_axis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.report.lengths import Bin, LengthStats
    from tokpack.report.plot import Point
    from tokpack.report.stats import Stats

_MOST_TICKS = 8
_MOST_POINTS = 600  # of a curve; of more, the highest and the lowest of each stretch are drawn


def length_plot(names: Sequence[str], datasets: Sequence[Stats | LengthStats]) -> Html:
    """Documents by length; for one dataset also its tokens by the length of their document."""
    outlines = [_outline(stats.histogram, "documents") for stats in datasets]
    bins = [one for stats in datasets for one in stats.histogram]
    if not bins:
        return Html()
    what = "share of documents"
    if len(datasets) == 1:
        names, what = ["documents", "tokens"], "share of documents and of tokens"
        outlines.append(_outline(bins, "tokens"))
    highest = max(share for outline in outlines for _, share in outline)
    plot = Plot(_length_axis(bins), percent_axis(highest, what), "Histogram")
    for number, outline in enumerate(outlines):
        plot.line(outline, number, "area")
    return plot.figure(enumerate(names))


def zipf_plot(names: Sequence[str], datasets: Sequence[Stats]) -> Html:
    """Frequency of tokens by rank, both logarithmic."""
    shown = [(i, stats) for i, stats in enumerate(datasets) if stats.frequency.zipf]
    if not shown:
        return Html()
    rates = [1e6 * stats.frequency.zipf[i][1] / stats.tokens for _, stats in shown for i in (0, -1)]
    used = max(stats.frequency.used for _, stats in shown)
    plot = Plot(
        decades_axis(1, max(used, 2), "rank of the token"),
        decades_axis(min(rates), max(rates), "in a million tokens"),
        "By rank",
    )
    for number, stats in shown:
        points = {rank: 1e6 * times / stats.tokens for rank, times in stats.frequency.zipf}
        plot.line([(math.log10(r), math.log10(y)) for r, y in points.items()], number)
    return plot.figure(enumerate(names) if names[1:] else ())


class Curve(NamedTuple):
    """Points, x ascending, and how they are drawn: Plot.line; "" is the name of a companion."""

    name: str
    points: Sequence[Point]
    series: int = 0
    kind: str = ""


def curves_plot(title: str, unit: str, curves: Sequence[Curve]) -> Html:
    """Curves over steps, between the ends of their numbers. Nothing where there is no point."""
    drawn = [(curve, thinned(curve.points)) for curve in curves if curve.points]
    if not drawn:
        return Html()
    across, up = zip(*(point for _, points in drawn for point in points), strict=True)
    plot = Plot(_ends_axis(across, "step"), _ends_axis(up, unit), title)
    for curve, points in drawn:
        plot.line(points, curve.series, curve.kind)
    named = [(one.series, one.name) for one in curves if one.name]
    return plot.figure(named if named[1:] else ())


def _ends_axis(values: Sequence[float], title: str) -> Axis:
    ends = dict.fromkeys((min(values), max(values)))
    return Axis(min(ends), max(ends), [(end, number_text(end)) for end in ends], title)


def number_text(value: float) -> str:
    """A number to a few figures."""
    return count_text(value) if abs(value) >= 10_000 else f"{value:.4g}"


def thinned(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """Of many points the highest and the lowest of each stretch, so that no spike is lost."""
    if len(points) <= most:
        return list(points)
    heights, size, result = [y for _, y in points], -(-2 * len(points) // most), []
    for begin in range(0, len(points), size):
        places = range(begin, min(begin + size, len(points)))
        ends = {min(places, key=heights.__getitem__), max(places, key=heights.__getitem__)}
        result += [points[i] for i in sorted(ends)]
    return result


def _length_axis(bins: Sequence[Bin]) -> Axis:
    low = min(_log(one.begin) for one in bins)
    high = max(_log(one.end) for one in bins)
    if high - low < 4:  # a length or two alone would fill the plot
        low, high = max(math.floor(low) - 2, 0 if low >= 0 else -1), math.ceil(high) + 2
    first, last = math.ceil(low), math.floor(high)
    step = max(1, -(-(last - first) // _MOST_TICKS))
    ticks = [(float(i), binary(2**i)) for i in range(max(first, 0), last + 1, step)]
    if any(one.begin == 0 for one in bins):
        ticks = [(-0.5, "0"), *ticks]
    return Axis(low, high, ticks, "tokens in a document")


def _log(length: int) -> float:
    return math.log2(length) if length else -1.0


def _outline(bins: Sequence[Bin], name: str) -> list[Point]:
    """The outline of a histogram of shares of the bins' ``documents`` or ``tokens``."""
    total = sum(getattr(one, name) for one in bins) or 1
    points = []
    for one in bins:
        share = getattr(one, name) / total
        points += [(_log(one.begin), share), (_log(one.end), share)]
    return [(points[0][0], 0.0), *points, (points[-1][0], 0.0)] if points else []

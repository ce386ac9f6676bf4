"""The plots of reports and pages: lengths of documents, frequencies of tokens, curves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from tokpack.quantities import count_text, counted, percent
from tokpack.report.facts import binary
from tokpack.report.html import Html
from tokpack.report.plot import Axis, Plot, decades_axis, even_axis, percent_axis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.report.lengths import Bin
    from tokpack.report.plot import Point
    from tokpack.report.stats import Stats

_MOST_TICKS = 12
_MOST_POINTS = 600  # of a curve; of more, the highest and the lowest of each stretch are drawn


class Measured(Protocol):
    """A dataset whose documents were measured: Stats, or less."""

    @property
    def documents(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def histogram(self) -> Sequence[Bin]: ...


def length_plot(datasets: Sequence[Measured]) -> Html:
    """Documents by length: bars with the share of tokens for one dataset, lines for several."""
    shown = [(i, stats) for i, stats in enumerate(datasets) if stats.histogram]
    if not shown:
        return Html()
    alone = len(datasets) == 1
    bins = [one for _, stats in shown for one in stats.histogram]
    highest = max(one.documents / stats.documents for _, stats in shown for one in stats.histogram)
    if alone and shown[0][1].tokens:
        highest = max(highest, *(one.tokens / shown[0][1].tokens for one in bins))
    what = "share of documents" + (" and tokens" if alone else "")
    plot = Plot(_length_axis(bins), percent_axis(highest, what), "Lengths of documents")
    for number, stats in shown:
        if alone:
            plot.bars([_bar(one, stats) for one in stats.histogram], 0)
            if stats.tokens:
                plot.line(_steps(stats.histogram, [b.tokens for b in stats.histogram]), 1)
        else:
            plot.line(_steps(stats.histogram, [b.documents for b in stats.histogram]), number)
    return plot.svg()


def zipf_plot(datasets: Sequence[Stats]) -> Html:
    """Frequency of tokens by rank, both logarithmic."""
    shown = [(i, stats) for i, stats in enumerate(datasets) if stats.frequency.zipf]
    if not shown:
        return Html()
    rates = [1e6 * stats.frequency.zipf[i][1] / stats.tokens for _, stats in shown for i in (0, -1)]
    used = max(stats.frequency.used for _, stats in shown)
    plot = Plot(
        decades_axis(1, max(used, 2), "rank of the token", count_text),
        decades_axis(min(rates), max(rates), "in a million tokens", count_text),
        "Frequency of tokens by rank",
    )
    for number, stats in shown:
        points = {rank: 1e6 * times / stats.tokens for rank, times in stats.frequency.zipf}
        plot.line([(math.log10(r), math.log10(y)) for r, y in points.items()], number)
        if len(datasets) == 1:
            for rank, label in _marks(stats, plot.x):
                plot.dot((math.log10(rank), math.log10(_near(points, rank))), 1, label)
    return plot.svg()


def curves_plot(
    curves: Sequence[Sequence[Point]],
    titles: tuple[str, str, str],
    links: Sequence[tuple[float, float, str, str]] = (),
) -> Html:
    """Curves over numbers; ``titles`` are those of the plot, of x and of y.

    ``links`` are dots on them, see Plot.links. Nothing where there is no point.
    """
    points = [point for curve in curves for point in curve]
    if not points:
        return Html()
    title, below, beside = titles
    plot = Plot(
        even_axis([x for x, _ in points], below, count_text),
        even_axis([y for _, y in points], beside, _plain),
        title,
    )
    for number, curve in enumerate(curves):
        if curve:
            plot.line(thinned(curve), number)
    plot.links(links, 0)
    return plot.svg()


def _plain(value: float) -> str:
    """A number for the narrow side of a plot."""
    if 0 < abs(value) < 0.01:
        return f"{value:.1e}".replace("e-0", "e-")
    return count_text(value) if value >= 10_000 else f"{value:.4g}"


def thinned(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """Of many points the highest and the lowest of each stretch, so that no spike is lost."""
    if len(points) <= most:
        return list(points)
    size = -(-2 * len(points) // most)
    result = []
    for begin in range(0, len(points), size):
        places = range(begin, min(begin + size, len(points)))
        ends = {min(places, key=lambda i: points[i][1]), max(places, key=lambda i: points[i][1])}
        result += [points[i] for i in sorted(ends)]
    return result


def _marks(stats: Stats, axis: Axis) -> list[tuple[int, str]]:
    """Ranks at which shares of all tokens are reached, and labels where there is room for them."""
    marks: list[tuple[int, str]] = []
    room = (axis.high - axis.low) / 12
    labelled = 0.0
    for share, rank in stats.frequency.coverage.items():
        near = bool(marks) and math.log10(rank / labelled) < room
        marks.append((rank, "" if near else f"{share}%"))
        labelled = labelled if near else rank
    return marks


def _near(points: dict[int, float], rank: int) -> float:
    """The height at the known rank that is nearest to ``rank``."""
    return points[min(points, key=lambda other: abs(other - rank))]


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


def _bar(one: Bin, stats: Measured) -> tuple[float, float, float, str]:
    last = f" to {one.end - 1:,}" if one.end - 1 > one.begin else ""
    text = (
        f"{one.begin:,}{last} tokens: {counted(one.documents, 'document')} "
        f"({percent(one.documents, stats.documents)}), "
        f"{percent(one.tokens, stats.tokens)} of tokens"
    )
    return _log(one.begin), _log(one.end), one.documents / stats.documents, text


def _steps(bins: Sequence[Bin], values: Sequence[int]) -> list[Point]:
    """The outline of a histogram."""
    total = sum(values) or 1
    points = [(_log(bins[0].begin), 0.0)]
    for one, value in zip(bins, values, strict=True):
        points += [(_log(one.begin), value / total), (_log(one.end), value / total)]
    return [*points, (_log(bins[-1].end), 0.0)]

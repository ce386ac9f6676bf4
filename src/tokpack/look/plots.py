"""Plots as SVG, drawn here: no library, no script, colours from the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from tokpack.display import shown
from tokpack.look.facts import binary
from tokpack.quantities import count_text

if TYPE_CHECKING:
    from tokpack.dataset.overview import Bin, LengthStats
    from tokpack.look.statistics import Stats
    from tokpack.samples.blend import Phase


_EMPTY = ("br", "input", "link", "meta")  # elements without an end
SERIES = 10  # colours in the page's style


class Html(str):
    """Text that is HTML already. All other text is escaped when added to it."""

    __slots__ = ()


def html(*parts: object) -> Html:
    """Parts, one after the other; a part that is not Html is escaped."""
    return Html(
        "".join(part if isinstance(part, Html) else escape(shown(str(part))) for part in parts)
    )


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. Attributes that are None or False are left out; ``class_`` is the attribute
    class.
    """
    words = [name]
    for key, value in attributes.items():
        if value is not None and value is not False:
            named = key.rstrip("_").replace("_", "-")
            words.append(named if value is True else f'{named}="{escape(shown(str(value)))}"')
    end = "" if name in _EMPTY else f"</{name}>"
    return Html(f"<{' '.join(words)}>{html(*children)}{end}")


def table(head: Sequence[object], rows: Iterable[Sequence[object]], kind: str = "") -> Html:
    """A table with its own scroll bar if it is too wide; the first column names the row.

    On a narrow screen the style shows the head of a column before each cell.
    """
    top = html(*(tag("th", cell, scope="col") for cell in head))
    body = []
    for first, *others in rows:
        cells = (
            tag("td", cell, data_head=name) for cell, name in zip(others, head[1:], strict=True)
        )
        body.append(tag("tr", tag("th", first, scope="row"), *cells))
    inner = tag("table", tag("thead", tag("tr", top)), tag("tbody", *body), class_=kind)
    return tag("div", inner, class_="scroll")


def section(title: str, *parts: object) -> Html:
    """A part of a page with a title."""
    return tag("section", tag("h2", title), *parts)


def tiles(facts: Iterable[tuple[str, object]]) -> Html:
    """Figures with their names, as many side by side as fit."""
    return tag("dl", *(tag("div", tag("dt", k), tag("dd", v)) for k, v in facts), class_="tiles")


def none(text: str) -> Html:
    """The text for "nothing to show"."""
    return tag("p", text, class_="none")


def key(number: int, name: object) -> Html:
    """The colour of series ``number``, and its name."""
    return html(tag("i", class_=f"key s{number % SERIES}"), name)


def legend(names: Iterable[tuple[int, object]]) -> Html:
    """The meaning of the colours of series."""
    return tag("p", *(tag("span", key(*named)) for named in names), class_="legend")


WIDTH, HEIGHT = 440, 250  # small enough to be readable on a phone
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 12, 42

Point = tuple[float, float]
Scale = Callable[[float], float]


@dataclass
class Axis:
    """A range of values, the ticks on it with their labels, and a title.

    The title of the y axis is above the plot, where it does not collide with a tick.
    """

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    title: str

    def scale(self, begin: float, end: float) -> Scale:
        """A map from values to positions from ``begin`` to ``end``."""
        span = (self.high - self.low) or 1.0
        return lambda value: begin + (end - begin) * (value - self.low) / span


@dataclass
class Plot:
    """Axes, and shapes drawn between them in the units of the axes."""

    x: Axis
    y: Axis
    title: str
    _shapes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._at_x = self.x.scale(LEFT, WIDTH - RIGHT)
        self._at_y = self.y.scale(HEIGHT - BOTTOM, TOP)

    def line(self, points: Sequence[Point], series: int, kind: str = "") -> None:
        """Draw a line, or a dot if there is one point; ``kind`` are more classes of the style."""
        if not points:
            return
        if len(points) == 1:
            x, y = self._at_x(points[0][0]), self._at_y(points[0][1])
            colour = f"s{series % SERIES}"
            self._shapes.append(f'<circle class="fill {colour}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
            return
        path = " ".join(f"{self._at_x(x):.1f},{self._at_y(y):.1f}" for x, y in points)
        self._shapes.append(f'<polyline class="line s{series % SERIES} {kind}" points="{path}"/>')

    def figure(self, names: Iterable[tuple[int, str]] = ()) -> Html:
        """The drawing with its title, its unit, and the names of series."""
        caption = tag("figcaption", self.title, tag("small", self.y.title))
        return tag("figure", caption, legend(names), self._svg())

    def _svg(self) -> Html:
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title)}">'
        ]
        for value, label in self.y.ticks:
            y = self._at_y(value)
            parts.append(
                f'<line class="cross" x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
            )
            parts.append(_text(LEFT - 6, y + 4, label, "end"))
        for value, label in self.x.ticks:
            x = self._at_x(value)
            parts.append(
                f'<line class="axis" x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 4}"/>'
            )
            parts.append(_text(x, bottom + 20, label, "middle"))
        parts.append(f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>')
        parts.append(_text((LEFT + right) / 2, HEIGHT - 4, self.x.title, "middle"))
        return Html("".join([*parts, *self._shapes, "</svg>"]))


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def percent_axis(highest: float, title: str) -> Axis:
    """From 0 to a share (1 is all), with three to six round ticks."""
    return round_axis(highest, title, lambda share: f"{100 * share:.4g}%")


def round_axis(highest: float, title: str, text: Callable[[float], str]) -> Axis:
    """From 0 to a number, with three to six round ticks."""
    highest = highest if highest > 0 else 1.0
    step = _round_step(highest)
    ticks = [(i * step, text(i * step)) for i in range(math.ceil(highest / step - 1e-9) + 1)]
    return Axis(0.0, ticks[-1][0], ticks, title)


def _round_step(span: float) -> float:
    """A round distance of ticks, five of which at most fit into a span."""
    step = 10.0 ** math.floor(math.log10(span))
    return next(s for s in (step / 5, step / 2, step, step * 2) if span / s <= 5)


def decades_axis(low: float, high: float, title: str) -> Axis:
    """The decimal logarithms of ``low`` to ``high``, with nine ticks at most."""
    begin, end = math.floor(math.log10(low)), math.ceil(math.log10(high))
    end = max(end, begin + 1)
    step = -(-(end - begin) // 8)
    ticks = [(float(i), count_text(10.0**i)) for i in range(begin, end + 1, step)]
    return Axis(float(begin), float(end), ticks, title)


def bar(share: float, series: int = 0) -> Html:
    """A bar for a cell of a table; ``share`` of its width, 0 to 1."""
    return stack([(min(max(share, 0.0), 1.0), series, "")], "bar")


def stack(parts: Sequence[tuple[float, int, str]], kind: str = "stack") -> Html:
    """Shares of a whole in a row: for each its share, 0 to 1, its series, and its name."""
    shapes, at = [], 0.0
    for share, series, text in parts:
        title = f"<title>{escape(text)}</title>" if text else ""
        shapes.append(
            f'<rect class="fill s{series % SERIES}" x="{100 * at:.2f}" width="{100 * share:.2f}" '
            f'height="10">{title}</rect>'
        )
        at += share
    return Html(
        f'<svg class="{kind}" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="10"/>{"".join(shapes)}</svg>'
    )


def sparkline(values: Sequence[float], label: str) -> Html:
    """A curve without axes, from the lowest value to the highest; ``label`` describes it."""
    across = Axis(0, len(values) - 1, (), "").scale(2, 158)
    up = Axis(min(values), max(values), (), "").scale(34, 2)
    path = " ".join(f"{across(i):.1f},{up(value):.1f}" for i, value in enumerate(values))
    return Html(
        f'<svg class="spark" viewBox="0 0 160 36" role="img" aria-label="{escape(label)}">'
        f'<polyline class="line s0" points="{path}"/></svg>'
    )


# The plots of reports and pages: lengths of documents, frequencies of tokens, curves.

_MOST_TICKS = 8
_MOST_POINTS = 600  # of longer curves, the highest and lowest point per stretch are drawn


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
    """Points, x ascending, and their style, see Plot.line; name "" for a companion curve."""

    name: str
    points: Sequence[Point]
    series: int = 0
    kind: str = ""


def curves_plot(title: str, unit: str, curves: Sequence[Curve]) -> Html:
    """Curves over steps, with round ticks; nothing without points."""
    drawn = [(curve, thinned(curve.points)) for curve in curves if curve.points]
    if not drawn:
        return Html()
    across, up = zip(*(point for _, points in drawn for point in points), strict=True)
    plot = Plot(_curve_axis(across, "step", 1.0), _curve_axis(up, unit), title)
    for curve, points in drawn:
        plot.line(points, curve.series, curve.kind)
    named = [(one.series, one.name) for one in curves if one.name]
    return plot.figure(named if named[1:] else ())


def _curve_axis(values: Sequence[float], title: str, least: float = 0.0) -> Axis:
    """An axis over all values with round ticks ``least`` apart; else ticks at both ends."""
    low, high = min(values), max(values)
    places = list(dict.fromkeys((low, high)))
    if 1e-300 < high - low < math.inf:
        step = max(_round_step(high - low), least)
        inside = range(math.ceil(low / step), math.floor(high / step) + 1)
        places = [number * step for number in inside] if inside[1:] else places
    return Axis(low, high, [(place, number_text(place)) for place in places], title)


def epochs_plot(phases: Sequence[Phase], size: int, lengths: Sequence[float]) -> Html:
    """The epochs of each dataset of a blend, over its ``size`` samples.

    ``lengths`` are the samples of one epoch of each. A table beside it has names and colours.
    """
    edges = [*(min(phase.first, size) for phase in phases), size]
    curves = []
    for number, length in enumerate(lengths):
        shares = zip(phases, pairwise(edges), strict=True)
        seen = accumulate((p.shares[number] * (b - a) for p, (a, b) in shares), initial=0.0)
        curves.append([(at, samples / length) for at, samples in zip(edges, seen, strict=True)])
    across = round_axis(size, "sample", number_text)
    ticks = [tick for tick in across.ticks if tick[0] <= size]
    highest = max(points[-1][1] for points in curves)
    up = round_axis(highest, "times that each dataset is passed through", number_text)
    plot = Plot(replace(across, high=size, ticks=ticks), up, "Epochs")
    for number, points in enumerate(curves):
        plot.line(points, number)
    return plot.figure()


def number_text(value: float) -> str:
    """A number to a few figures."""
    return count_text(value) if abs(value) >= 10_000 else f"{value:.4g}"


def thinned(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """The highest and lowest point per stretch of a long curve, so that no spike is lost."""
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
    if high - low < 4:  # one or two lengths would fill the plot
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

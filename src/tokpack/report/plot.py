"""Plots as SVG, drawn here: no library, no script, colours from the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from tokpack.quantities import count_text
from tokpack.report.html import SERIES, Html, legend, tag

WIDTH, HEIGHT = 440, 250  # so that its text can be read on a phone
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 12, 42

Point = tuple[float, float]
Scale = Callable[[float], float]


@dataclass
class Axis:
    """A range of values, the ticks on it with their labels, and what it is of.

    That of y is said above the plot, where no tick is in its way.
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
        """A line; ``kind`` are more classes of the style."""
        if not points:
            return
        points = points if len(points) > 1 else [*points, *points]  # which are drawn as a dot
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
    highest = highest if highest > 0 else 1.0
    step = 10.0 ** math.floor(math.log10(highest * 100))
    step = next(s for s in (step / 5, step / 2, step, step * 2) if highest * 100 / s <= 5)
    count = math.ceil(highest * 100 / step - 1e-9)
    ticks = [(i * step / 100, f"{i * step:.4g}%") for i in range(count + 1)]
    return Axis(0.0, ticks[-1][0], ticks, title)


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
    """Shares of a whole in a row: of each its share, 0 to 1, its series, and what it is."""
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
    """A curve without axes, from the lowest value to the highest; ``label`` says what it is."""
    across = Axis(0, len(values) - 1, (), "").scale(2, 158)
    up = Axis(min(values), max(values), (), "").scale(34, 2)
    path = " ".join(f"{across(i):.1f},{up(value):.1f}" for i, value in enumerate(values))
    return Html(
        f'<svg class="spark" viewBox="0 0 160 36" role="img" aria-label="{escape(label)}">'
        f'<polyline class="line s0" points="{path}"/></svg>'
    )

"""Plots as SVG, drawn here: no library, no script, colours from the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

from tokpack.report.html import Html, tag

WIDTH, HEIGHT = 680, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 22, 12, 46
SERIES = 6  # colours in the page's style

Point = tuple[float, float]
Scale = Callable[[float], float]


@dataclass
class Axis:
    """A range of values, the ticks on it with their labels, and a title."""

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

    def bars(self, bars: Sequence[tuple[float, float, float, str]], series: int) -> None:
        """Bars from x to x with a height, and what they say when pointed at."""
        base = self._at_y(0)
        for begin, end, height, text in bars:
            left, right, top = self._at_x(begin), self._at_x(end), self._at_y(height)
            width = max(right - left - 1, 1)
            self._shapes.append(
                f'<rect class="fill s{series % SERIES}" x="{left:.1f}" y="{top:.1f}" '
                f'width="{width:.1f}" height="{max(base - top, 0):.1f}">'
                f"<title>{escape(text)}</title></rect>"
            )

    def line(self, points: Sequence[Point], series: int) -> None:
        """A line; one point alone becomes a dot."""
        if len(points) == 1:
            self.dot(points[0], series, "")
            return
        path = " ".join(f"{self._at_x(x):.1f},{self._at_y(y):.1f}" for x, y in points)
        self._shapes.append(f'<polyline class="line s{series % SERIES}" points="{path}"/>')

    def dot(self, point: Point, series: int, label: str) -> None:
        """A dot with its label."""
        x, y = self._at_x(point[0]), self._at_y(point[1])
        self._shapes.append(
            f'<circle class="fill s{series % SERIES}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
        )
        if label:
            # Falling curves leave room above to the right, and below to the left.
            right = x < WIDTH - 100
            x, y = (x + 8, max(y - 8, TOP + 10)) if right else (x - 8, y + 16)
            self._shapes.append(_text(x, y, label, "start" if right else "end"))

    def links(self, points: Sequence[tuple[float, float, str, str]], series: int) -> None:
        """Dots that lead somewhere: x, y, the address, and what the dot is."""
        for x, y, address, text in points:
            dot = tag(
                "circle",
                tag("title", text),
                class_=f"fill s{series % SERIES}",
                cx=f"{self._at_x(x):.1f}",
                cy=f"{self._at_y(y):.1f}",
                r="3",
            )
            self._shapes.append(tag("a", dot, href=address, aria_label=text))

    def svg(self) -> Html:
        """The drawing."""
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title)}">'
        ]
        for value, label in self.y.ticks:
            y = self._at_y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
            parts.append(_text(LEFT - 6, y + 4, label, "end"))
        for value, label in self.x.ticks:
            x = self._at_x(value)
            parts.append(
                f'<line class="axis" x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 4}"/>'
            )
            parts.append(_text(x, bottom + 20, label, "middle"))
        parts.append(f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>')
        parts.append(_text((LEFT + right) / 2, HEIGHT - 6, self.x.title, "middle", "title"))
        middle = (TOP + bottom) / 2
        parts.append(
            f'<text class="title" transform="translate(12 {middle:.1f}) rotate(-90)" '
            f'text-anchor="middle">{escape(self.y.title)}</text>'
        )
        return Html("".join([*parts, *self._shapes, "</svg>"]))


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def percent_axis(highest: float, title: str) -> Axis:
    """From 0 to a share (1 is all), with three to six round ticks."""
    highest = highest if highest > 0 else 1.0
    step = 10.0 ** math.floor(math.log10(highest * 100))
    step = next(s for s in (step / 5, step / 2, step, step * 2) if highest * 100 / s <= 5)
    count = math.ceil(highest * 100 / step - 1e-9)
    ticks = [(i * step / 100, f"{i * step:.4g}%") for i in range(count + 1)]
    return Axis(0.0, ticks[-1][0], ticks, title)


def even_axis(values: Sequence[float], title: str, label: Callable[[float], str]) -> Axis:
    """From the lowest value to the highest or a little further, with three to eight even ticks."""
    low, high = min(values), max(values)
    span = (high - low) or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(span))
    step = next(s for s in (step / 5, step / 2, step, step * 2) if span / s <= 6)
    begin, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    end = max(end, begin + 1)
    ticks = [(i * step, label(i * step)) for i in range(begin, end + 1)]
    return Axis(begin * step, end * step, ticks, title)


def decades_axis(low: float, high: float, title: str, label: Callable[[float], str]) -> Axis:
    """The decimal logarithms of ``low`` to ``high``, with nine ticks at most."""
    begin, end = math.floor(math.log10(low)), math.ceil(math.log10(high))
    end = max(end, begin + 1)
    step = -(-(end - begin) // 8)
    ticks = [(float(i), label(10.0**i)) for i in range(begin, end + 1, step)]
    return Axis(float(begin), float(end), ticks, title)


def bar(share: float, series: int = 0) -> Html:
    """A bar for a cell of a table; ``share`` of its width, 0 to 1."""
    width = 100 * min(max(share, 0.0), 1.0)
    return Html(
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="10"/>'
        f'<rect class="fill s{series % SERIES}" width="{width:.1f}" height="10"/></svg>'
    )

"""A picture of bars, as SVG that any page or README shows: no style sheet, no script."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTH, _NAMES, _ROOM = 700, 200, 400  # of the picture, of the names, of the longest bar
_ROW, _TITLE, _GAP = 22, 26, 14
_OWN, _OTHER, _TEXT = "#2563eb", "#94a3b8", "#64748b"  # seen on light and on dark pages


def bars(panels: Sequence[tuple[str, Mapping[str, float]]], ours: str = "tokpack") -> str:
    """Panels, each with a title and named values, one below the other; ``ours`` first, marked."""
    parts: list[str] = []
    y = 0
    for title, values in panels:
        parts.append(_text(8, y + 17, title, weight="bold"))
        y += _TITLE
        largest = max(values.values(), default=0.0) or 1.0
        for name in sorted(values, key=lambda name: (name != ours, -values[name])):
            length = max(1, round(_ROOM * values[name] / largest))
            colour = _OWN if name == ours else _OTHER
            parts.append(_text(_NAMES - 8, y + 15, name, anchor="end"))
            parts.append(
                f'<rect x="{_NAMES}" y="{y + 3}" width="{length}" height="{_ROW - 6}" rx="2" '
                f'fill="{colour}"/>'
            )
            parts.append(_text(_NAMES + length + 6, y + 15, f"{values[name]:.3g}"))
            y += _ROW
        y += _GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" '
        f'height="{y}" font-family="system-ui, sans-serif" font-size="13" fill="{_TEXT}">'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def _text(x: int, y: int, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    where = f'x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {where}>{escape(text)}</text>"

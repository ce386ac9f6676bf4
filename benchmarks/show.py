"""Print the results that are kept in benchmarks/results, a table for each run of a benchmark.

python benchmarks/show.py [encode families pipeline scale samples gpu peers]
python benchmarks/show.py --chart docs/pictures/speed.svg    # the picture of README
"""

from __future__ import annotations

import argparse
import json
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import common

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCRIPTS = {
    "encode": "encode",
    "families": "families",
    "pipeline": "pipeline",
    "scale": "scale",
    "samples": "samples",
    "gpu": "common",  # its script needs torch
    "peers": "peers.run",
}

PROGRAMS = {
    "tokpack": "tokpack",
    "megatron": "Megatron-LM",
    "megatron-fast": "Megatron-LM, fast one",
    "gpt-neox": "GPT-NeoX",
    "bigscience": "BigScience",
    "microsoft": "Microsoft's fork",
    "datatrove": "datatrove",
    "dolma": "dolma",
}
_WIDTH, _NAMES, _ROOM = 700, 200, 400  # of the picture, of the names, of the longest bar
_ROW, _TITLE, _GAP = 22, 26, 14
_OWN, _OTHER, _TEXT = "#2563eb", "#94a3b8", "#64748b"  # seen on light and on dark pages


def rows_of(name: str) -> list[common.Row]:
    """The rows of a benchmark, in the order in which they were measured."""
    text = (common.RESULTS / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def draw(path: Path) -> None:
    """Draw the last rows of English in one thread, and of whole programs, as bars."""
    panels = []
    for tokenizer in ("gpt2", "o200k"):
        speeds = {
            _with_version(row): (row.get("first") or row["cold"])["median"]
            for row in rows_of("encode")
            if (row.get("tokenizer"), row["corpus"]) == (tokenizer, "english")
        }
        panels.append((f"{tokenizer}: MB/s of one thread, text not seen before", speeds))
    for size, is_large in (("100 MB", False), ("1 GB", True)):
        seconds = {
            PROGRAMS[row["program"]]: row["wall"]
            for row in rows_of("peers")
            if row["program"] in PROGRAMS and (row["text_bytes"] > 500e6) == is_large
        }
        panels.append((f"{size} of JSON lines to a dataset, 2 workers: seconds", seconds))
    path.write_text(bars(panels), encoding="utf-8")


def _with_version(row: common.Row) -> str:
    """The name of a row's library in the picture; of the Hugging Face library there are two."""
    required = row["versions"][row["library"]]  # tokpack's has a commit in the place of ==
    return str(required).replace("==", " ") if "==" in required else str(row["library"])


def bars(panels: Sequence[tuple[str, Mapping[str, float]]], ours: str = "tokpack") -> str:
    """Panels, each with a title and named values, one below the other; ``ours`` first, marked."""
    parts: list[str] = []
    y = 0
    for title, values in panels:
        parts.append(_label(8, y + 17, title, weight="bold"))
        y += _TITLE
        largest = max(values.values(), default=0.0) or 1.0
        for name in sorted(values, key=lambda name: (name != ours, -values[name])):
            length = max(1, round(_ROOM * values[name] / largest))
            colour = _OWN if name == ours else _OTHER
            parts.append(_label(_NAMES - 8, y + 15, name, anchor="end"))
            parts.append(
                f'<rect x="{_NAMES}" y="{y + 3}" width="{length}" height="{_ROW - 6}" rx="2" '
                f'fill="{colour}"/>'
            )
            parts.append(_label(_NAMES + length + 6, y + 15, f"{values[name]:.3g}"))
            y += _ROW
        y += _GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" '
        f'width="{_WIDTH}" height="{y}" font-family="system-ui, sans-serif" font-size="13" '
        f'fill="{_TEXT}">'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def _label(x: int, y: int, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    where = f'x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {where}>{escape(text)}</text>"


def main() -> None:
    """Print the tables of the benchmarks that are asked for; of all without arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--chart", type=Path, metavar="FILE.svg", help="draw README's picture")
    arguments = parser.parse_args()
    if arguments.chart:
        draw(arguments.chart)
        return
    for name in arguments.names or SCRIPTS:
        days: dict[tuple[str, str], list[common.Row]] = {}
        for row in rows_of(name):
            where = f"{row['machine']['cpu']}, {row['machine']['cores']} cores"
            days.setdefault((row["date"][:10], where), []).append(row)
        for (day, where), same in days.items():
            print(f"\n== {name}: {day}, {where}, tokpack {same[-1]['versions']['tokpack']}")
            import_module(SCRIPTS[name]).show(same)


if __name__ == "__main__":
    main()

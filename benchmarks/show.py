"""Print the results that are kept in benchmarks/results, a table for each run of a benchmark.

python benchmarks/show.py [encode pipeline scale samples gpu peers]
python benchmarks/show.py --chart docs/pictures/speed.svg    # the picture of README
"""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from pathlib import Path

import common

from tokpack.look.plots import bars

SCRIPTS = {
    "encode": "encode",
    "pipeline": "pipeline",
    "scale": "scale",
    "samples": "samples",
    "gpu": "common",  # its script needs torch
    "peers": "peers.run",
}

LIBRARIES = {"tokenizers-0.23": "Hugging Face"}  # names in the picture, where they are others
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


def rows_of(name: str) -> list[common.Row]:
    """The rows of a benchmark, in the order in which they were measured."""
    text = (common.RESULTS / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def draw(path: Path) -> None:
    """Draw the last rows of English in one thread, and of whole programs, as bars."""
    panels = []
    for tokenizer in ("gpt2", "o200k"):
        speeds = {
            LIBRARIES.get(row["library"], row["library"]): (row.get("first") or row["cold"])[
                "median"
            ]
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

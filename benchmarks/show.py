"""Print the results that are kept in benchmarks/results, a table for each run of a benchmark.

python benchmarks/show.py [encode pipeline scale samples gpu peers]
"""

from __future__ import annotations

import argparse
import json
from importlib import import_module

import common

SCRIPTS = {
    "encode": "encode",
    "pipeline": "pipeline",
    "scale": "scale",
    "samples": "samples",
    "gpu": "common",  # its script needs torch
    "peers": "peers.run",
}


def main() -> None:
    """Print the tables of the benchmarks that are asked for; of all without arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    for name in parser.parse_args().names or SCRIPTS:
        lines = (common.RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        days: dict[tuple[str, str], list[common.Row]] = {}
        for row in rows:
            where = f"{row['machine']['cpu']}, {row['machine']['cores']} cores"
            days.setdefault((row["date"][:10], where), []).append(row)
        for (day, where), same in days.items():
            print(f"\n== {name}: {day}, {where}, tokpack {same[-1]['versions']['tokpack']}")
            import_module(SCRIPTS[name]).show(same)


if __name__ == "__main__":
    main()

"""Reading a tokenizer's JSON: by tokpack's bounded reader, and by others, as a ratio.

    python benchmarks/json_readers.py TOKENIZER.json [--runs 9]

The readers take turns; each row is the best of the runs, and what it is of the first row, which is
json with a call for each number.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import ujson

from tokpack.files.foreign import parse_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--runs", type=int, default=9)
    arguments = parser.parse_args()
    raw = arguments.path.read_bytes()
    readers = {
        "json, a call for each number": lambda: json.loads(raw, parse_int=int, parse_float=float),
        "json": lambda: json.loads(raw),
        "ujson": lambda: ujson.loads(raw),
        "tokpack's parse_json": lambda: parse_json(raw, arguments.path),
    }
    best = dict.fromkeys(readers, float("inf"))
    for _ in range(arguments.runs):
        for name, read in readers.items():
            begin = time.perf_counter()
            read()
            best[name] = min(best[name], time.perf_counter() - begin)
    first = next(iter(best.values()))
    for name, seconds in best.items():
        print(f"{name:30} {seconds * 1000:7.1f} ms  {seconds / first:.2f}")


if __name__ == "__main__":
    main()

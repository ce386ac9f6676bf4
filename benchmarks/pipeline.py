"""From compressed JSON lines to a committed dataset: the whole of ``tokpack encode``, timed.

    python benchmarks/pipeline.py            1 GB of english and of a mix, with 1 and 2 workers
    python benchmarks/pipeline.py --python   documents in Python beside JSON lines, without start-up
    python benchmarks/pipeline.py --table    with a table of four kept columns beside none

What is timed is the command as people give it, from its start to its end: start-up, self-check,
join and the final sync to disk are inside. Runs with different numbers of workers take turns, so
that a machine that slows down does so for all. The files that come out must be the right ones.

Kind to tokpack: the inputs are in the page cache. A corpus of 24 to 48 MB is repeated, and words
come back that would not in 1 GB of different text (`rounds` in a row says how often). Beside one
worker the parent checks, joins and hashes on another core, if there is one (--pin takes it away).
Not kind: the dataset is synced to disk, and start-up counts.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import common
import inputs
import measure

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

COMPRESSIONS = {"plain": "", "zst": "zst"}
KINDS = ("plain", "table", "generator")
KEPT = {"no table": [], "table": ["--keep", "id,url,score,lang"]}
PYTHON = """
import json, os, pathlib, sys, pyarrow, tokpack
kind, source, prefix, vocab, merges, workers = sys.argv[1:]
texts = [json.loads(line)["text"] for line in open(source)]
made = {"plain": source, "table": pyarrow.table({"text": texts}), "generator": iter(texts)}[kind]
before = os.times()
tokpack.encode(made, prefix, vocab_file=vocab, merge_file=merges, workers=int(workers))
user, system, *children, wall = (b - a for a, b in zip(before, os.times()))
print(json.dumps({"wall": wall, "cpu": user + system + sum(children), "parent_cpu": user + system}))
"""


def main() -> None:
    """Run what the arguments ask for."""
    args = parse()
    data = common.find_data(args.data)
    rows: list[common.Row] = []
    with common.work_folder(args.work) as work:
        for corpus in args.corpus if not (args.python or args.table) else ():
            source = inputs.build(data, corpus, args.size * 10**6, args.files, work)
            for compression in args.compression:
                rows += measured(data, source, COMPRESSIONS[compression], work, args)
        if args.python or args.table:
            rows = compared(data, work, args, kept=args.table)
    check_same(rows)
    show(rows)
    if not args.no_save:
        common.append_rows("pipeline", rows, common.versions("zstandard", "xxhash"))


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = common.parser(__doc__)
    parser.add_argument("--corpus", nargs="+", choices=inputs.MIXES, default=["english", "mix"])
    parser.add_argument("--size", type=int, default=1000, metavar="MB", help="text (1000)")
    parser.add_argument("--files", type=int, default=8, metavar="N", help="input files (8)")
    parser.add_argument(
        "--compression", nargs="+", choices=COMPRESSIONS, default=list(COMPRESSIONS)
    )
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--python", action="store_true", help="english as documents in Python")
    parser.add_argument("--table", action="store_true", help="what --keep costs")
    parser.add_argument("--pin", action="store_true", help="as many cores as workers, no more")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="of each kind (3)")
    return parser.parse_args()


def measured(
    data: common.Data, source: inputs.Inputs, compression: str, work: Path, args: argparse.Namespace
) -> list[common.Row]:
    """Rows of all runs over one input, which take turns between the numbers of workers."""
    files = source.files(compression)
    return [
        {
            "benchmark": "pipeline",
            **source.sizes(),
            "files": len(files),
            "compression": compression,
            "stored_bytes": sum(path.stat().st_size for path in files),
            "workers": workers,
            "pinned": args.pin,
            "run": run,
            **encode(data, source, files, work, workers, cores=workers if args.pin else None),
        }
        for run in range(args.runs)
        for workers in args.workers
    ]


def encode(
    data: common.Data,
    source: inputs.Inputs,
    files: Sequence[Path],
    work: Path,
    workers: int,
    *,
    cores: int | None = None,
) -> common.Row:
    """One run of the command; ends the benchmark when its files are wrong, and leaves them."""
    prefix = work / "out"
    inputs.remove(prefix)
    os.sync()  # or this run would wait for the disk on behalf of the last one
    result = measure.run(
        inputs.encode_command(data, list(files), prefix, workers=workers),
        log=work / "log",
        cores=cores,
    )
    inputs.check(source, prefix)
    rate = round(source.text_bytes / result.wall / 1e6, 1)
    return {**asdict(result), "text_mb_s": rate, "equal": True}


def compared(
    data: common.Data, work: Path, args: argparse.Namespace, *, kept: bool
) -> list[common.Row]:
    """Rows of english and of its paragraphs, in turns.

    They are documents in Python beside JSON lines, of which the call alone is timed, or with
    ``kept`` JSON lines with four more columns that are kept or not.
    """
    rows = list[common.Row]()
    for name, documents in documents_of(data).items():
        source = work / f"{name}.jsonl"
        size = sum(len(text.encode()) for text in documents)
        texts = documents * -(-args.size * 10**6 // size) if kept else documents
        records = (record(n, text) if kept else {"text": text} for n, text in enumerate(texts))
        with open(source, "w", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(one)}\n" for one in records)
        same = {"corpus": name, "documents": len(texts)}
        same |= {"text_bytes": size * len(texts) // len(documents)}
        kinds = tuple(KEPT) if kept else KINDS
        for kind, workers in [(k, n) for n in args.workers for k in kinds] * args.runs:
            inputs.remove(work / "out")
            row = same | {"compression": kind, "workers": workers}
            if kept:
                command = inputs.encode_command(data, [source], work / "out", workers=workers)
                rows.append(timed([*command, *KEPT[kind]], row, work))
                continue
            words = [kind, source, work / "out", data.vocab_file, data.merge_file, workers]
            row = timed([sys.executable, "-c", PYTHON, *map(str, words)], row, work)
            row |= json.loads((work / "log").read_text().splitlines()[-1])
            row["text_mb_s"] = round(row["text_bytes"] / row["wall"] / 1e6, 1)
            rows.append(row)
    return rows


def documents_of(data: common.Data) -> dict[str, list[str]]:
    """Documents of some 10 kB, and of some 70 bytes."""
    texts = data.texts("english")
    return {
        "english": texts,
        "paragraphs": [part for text in texts for part in text.split("\n") if part],
    }


def record(number: int, text: str) -> dict[str, str | int | float]:
    """A document with columns as crawls have them."""
    page = f"https://example.org/{number % 977}/page-{number}.html"
    return {"id": number, "url": page, "score": number % 8191 / 8191, "lang": "en", "text": text}


def timed(command: Sequence[str], row: common.Row, work: Path) -> common.Row:
    """``row`` with one run of a command, and the checksum of the dataset that it makes."""
    os.sync()
    taken = measure.run(command, log=work / "log")
    rate = round(row["text_bytes"] / taken.wall / 1e6, 1)
    whole = {"benchmark": "pipeline", **row, **asdict(taken), "text_mb_s": rate}
    return whole | {"sha256": inputs.sha256(work / "out.bin")}


def check_same(rows: list[common.Row]) -> None:
    """End the benchmark where the same documents gave several datasets."""
    for (corpus,), same in common.grouped(rows, "corpus").items():
        if len({row.get("sha256") for row in same}) > 1:
            sys.exit(f"{corpus}: not all runs gave the same .bin")


def show(rows: list[common.Row]) -> None:
    """Print medians with their spread, and what more workers bring."""
    rows = [row for row in rows if row["benchmark"] == "pipeline"]
    groups = common.grouped(rows, "corpus", "compression", "workers")
    table = []
    for (corpus, compression, workers), same in groups.items():
        rate = common.spread([row["text_mb_s"] for row in same])
        fewest = min(number for c, z, number in groups if (c, z) == (corpus, compression))
        base = common.median(groups[corpus, compression, fewest], "text_mb_s")
        line = [corpus, compression or "plain", workers, *rate.values()]
        line.append(common.ratio(rate["median"], base, 2))
        line += [common.median(same, name) for name in ("wall", "cpu")]
        line += [max(row[name] for row in same) // 10**6 for name in ("memory", "worker_memory")]
        table.append(line)
    columns = ("corpus", "input", "workers", "MB/s", "min", "max", "scale", "wall s", "CPU s")
    common.print_table((*columns, "MB all", "MB a worker"), table)
    print("MB/s: 10^6 bytes of UTF-8 text, median, least and most of the runs; all files right")


if __name__ == "__main__":
    main()

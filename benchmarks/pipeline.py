"""From compressed JSON lines to a committed dataset: the whole of ``tokpack encode``, timed.

    python benchmarks/pipeline.py                   1 GB of english and of a mix, 1 and 2 workers
    python benchmarks/pipeline.py --files 1         one large file
    python benchmarks/pipeline.py --new-words       with words that were not there before
    python benchmarks/pipeline.py --profile         where the time goes, in one thread

What is timed is the command as people give it, from its start to its end: start-up, self-check,
join and the final sync to disk are inside. Runs with different numbers of workers take turns, so
that a machine that slows down does so for all. The files that come out must be the right ones.

Kind to tokpack: the inputs are in the page cache. A corpus of 24 to 48 MB is repeated, and words
come back that would not in 1 GB of different text (`rounds` in a row says how often; --new-words
brings a few more new ones than that text would, so that the truth is between). Beside one worker
the parent checks, joins and hashes on another core, if there is one (--pin takes it away).
Not kind: the dataset is synced to disk, and start-up counts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import common
import inputs
import measure

if TYPE_CHECKING:
    from collections.abc import Iterator

COMPRESSIONS = {"plain": "", "zst": "zst"}
PACKAGES = ("tokenizers", "zstandard", "xxhash")
Row = dict[str, Any]


def main() -> None:
    """Run what the arguments ask for."""
    arguments = parse()
    data = common.find_data(arguments.data)
    with work_folder(arguments.work, keep=arguments.keep) as work:
        rows: list[Row] = []
        stages: list[Row] = []
        for corpus in arguments.corpus:
            size, new_words = arguments.size * 10**6, arguments.new_words
            given = inputs.build(data, corpus, size, arguments.files, work, new_words=new_words)
            if arguments.profile:
                from stages import profile

                rows_of = profile(data, given, work, arguments.runs)
                stages += [{**row, "new_words": new_words} for row in rows_of]
                continue
            for compression in arguments.compression:
                rows += measured(data, given, COMPRESSIONS[compression], work, arguments)
    if rows:
        show(rows)
    if stages:
        show_stages(stages)
    if not arguments.no_save:
        path = common.append_rows("pipeline", [*rows, *stages], common.versions(*PACKAGES))
        print(f"rows appended to {path.relative_to(common.ROOT)}")


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common.add_data_argument(parser)
    parser.add_argument("--corpus", nargs="+", choices=inputs.MIXES, default=["english", "mix"])
    parser.add_argument("--size", type=int, default=1000, metavar="MB", help="text (1000)")
    parser.add_argument("--files", type=int, default=8, metavar="N", help="input files (8)")
    parser.add_argument("--new-words", action="store_true", help="in every round of the corpus")
    parser.add_argument(
        "--compression", nargs="+", choices=COMPRESSIONS, default=list(COMPRESSIONS)
    )
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--pin", action="store_true", help="as many cores as workers, no more")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="of each kind (3)")
    parser.add_argument("--profile", action="store_true", help="the stages, instead of the whole")
    parser.add_argument("--work", type=Path, metavar="DIR", help="for inputs and outputs (kept)")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder")
    parser.add_argument("--no-save", action="store_true", help="append no rows to the results")
    return parser.parse_args()


@contextlib.contextmanager
def work_folder(given: Path | None, *, keep: bool) -> Iterator[Path]:
    """The folder for inputs and outputs: a given one, which is kept, or a temporary one."""
    folder = given or Path(tempfile.mkdtemp(prefix="tokpack-benchmark-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"work folder: {folder}")
    try:
        yield folder
    finally:
        if given is None and not keep:
            shutil.rmtree(folder)


def measured(
    data: common.Data,
    given: inputs.Inputs,
    compression: str,
    work: Path,
    arguments: argparse.Namespace,
) -> list[Row]:
    """Rows of all runs over one input, which take turns between the numbers of workers."""
    rows = []
    checksums: dict[inputs.Inputs, str] = {}
    for run in range(arguments.runs):
        for workers in arguments.workers:
            cores = workers if arguments.pin else None
            result, tokens = encode(data, given, compression, work, workers=workers, cores=cores)
            if tokens != checksums.setdefault(given, tokens):
                raise SystemExit(f"{given.name}: {workers} workers wrote other files than before")
            stored = sum(path.stat().st_size for path in given.files(compression))
            rows.append(
                {
                    "benchmark": "pipeline",
                    "corpus": given.name,
                    "files": len(given.files(compression)),
                    "compression": compression,
                    "workers": workers,
                    "pinned": arguments.pin,
                    "run": run,
                    "documents": given.documents,
                    "rounds": given.rounds,
                    "new_words": arguments.new_words,
                    "text_bytes": given.text_bytes,
                    "json_bytes": given.json_bytes,
                    "stored_bytes": stored,
                    **asdict(result),
                    "text_mb_s": round(given.text_bytes / result.wall / 1e6, 1),
                    "equal": True,  # a wrong dataset ends the benchmark
                }
            )
    return rows


def encode(
    data: common.Data,
    given: inputs.Inputs,
    compression: str,
    work: Path,
    *,
    workers: int,
    cores: int | None,
) -> tuple[measure.Measured, str]:
    """One run of the command, and a checksum; ends the benchmark when its files are wrong."""
    prefix = work / "out"
    unfinished = work / "out.unfinished"
    remove(prefix)
    os.sync()  # or this run would wait for the disk on behalf of the last one
    result = measure.run(
        inputs.encode_command(data, list(given.files(compression)), prefix, workers=workers),
        log=work / "log",
        has_result=lambda: has_tokens(unfinished),
        cores=cores,
    )
    tokens = inputs.check(given, prefix)
    remove(prefix)
    return result, tokens


def remove(prefix: Path) -> None:
    """Remove a dataset and what an interrupted run left of it."""
    for suffix in (".bin", ".idx", ".json"):
        prefix.with_suffix(suffix).unlink(missing_ok=True)
    shutil.rmtree(prefix.with_suffix(".unfinished"), ignore_errors=True)


def has_tokens(unfinished: Path) -> bool:
    """Whether a running encode has written tokens to a file."""
    try:
        with os.scandir(unfinished) as entries:
            return any(e.name.endswith(".ids") and e.stat().st_size > 0 for e in entries)
    except OSError:  # not there yet, or the file was joined meanwhile
        return False


def show(rows: list[Row]) -> None:
    """Print medians with their spread, and what more workers bring."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(
            (row["corpus"], row["compression"] or "plain", row["workers"]), []
        ).append(row)
    table = []
    for (corpus, compression, workers), same in groups.items():
        rate = common.spread([row["text_mb_s"] for row in same])
        fewest = min(number for c, z, number in groups if (c, z) == (corpus, compression))
        base = common.spread([r["text_mb_s"] for r in groups[corpus, compression, fewest]])
        first = [row["first"] for row in same if row["first"] is not None]
        table.append(
            [
                corpus,
                compression,
                workers,
                rate["median"],
                rate["min"],
                rate["max"],
                f"{rate['median'] / base['median']:.2f}x",
                common.spread([row["wall"] for row in same])["median"],
                common.spread([row["cpu"] for row in same])["median"],
                common.spread(first)["median"] if first else "-",
                max(row["memory"] for row in same) // 10**6,
                max(row["worker_memory"] for row in same) // 10**6,
            ]
        )
    columns = ("corpus", "input", "workers", "MB/s", "min", "max", "scale", "wall s", "CPU s")
    common.print_table((*columns, "first token s", "MB all", "MB a worker"), table)
    print("MB/s: 10^6 bytes of UTF-8 text, median, least and most of the runs; all files right")
    measure.warn_if_busy(rows)


def show_stages(rows: list[Row]) -> None:
    """Print the profile."""
    columns = ("corpus", "input", "stage", "ns/B", "min", "max", "MB/s")
    common.print_table(
        columns,
        [
            [
                row["corpus"],
                row["compression"] or "plain",
                row["stage"],
                row["ns_per_byte"]["median"],
                row["ns_per_byte"]["min"],
                row["ns_per_byte"]["max"],
                1000 / row["ns_per_byte"]["median"],
            ]
            for row in rows
        ],
    )
    print("processor time of one thread for a byte of UTF-8 text; the input is in memory")


if __name__ == "__main__":
    main()

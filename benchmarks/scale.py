"""`tokpack encode` with more and more workers, and a model of machines with more cores than here.

    python benchmarks/scale.py                             on this machine's cores
    python benchmarks/scale.py --workers 1 16 32 64 --text 32 --pin --work /dev/shm

The real command runs over two sizes of English with GPT-2's vocabulary, and the difference is
taken, so that starting and ending cost nothing: seconds and processor seconds for a GB of ids (10^9
bytes). The model: with W cores a GB takes max(all work of one worker / W, write lock / files,
parent) seconds, where the write lock is what one write call after the other takes, as a file has
one writer at a time, and ``files`` how many .bin files the command makes with W workers where
there is text enough. Memory and disk may allow less. --pin gives the command as many processors as
workers, of different cores first. A disk that is slower than the cores decides alone; --work
/dev/shm leaves it out.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import common
import inputs
import measure
import numpy as np

from tokpack.encoding.plan import FILE_WORKERS

if TYPE_CHECKING:
    import argparse

GB = 10**9
CORES = (1, 2, 8, 16, 20, 21, 32, 64, 128, 192)
PARENT = 0.07  # seconds of the parent for a GB: the most in lab-book.md


def slope(small: list[common.Row], large: list[common.Row], *names: str) -> common.Row:
    """What a further GB of ids takes, from the least of several runs of two sizes."""
    least = [{key: min(row[key] for row in rows) for key in rows[0]} for rows in (small, large)]
    ids = least[1]["ids"] - least[0]["ids"]
    return {name: (least[1][name] - least[0][name]) * GB / ids for name in names}


def measured(
    data: common.Data, workers: int, dtype: str, args: argparse.Namespace, work: Path
) -> common.Row:
    """Seconds and processor seconds of a GB; ``wall`` is of the whole command and larger input."""
    prefix, sizes = work / "real", []
    for path in texts(data, args.text * GB, work):
        words = inputs.encode_command(data, [path], prefix, workers=workers)
        rows = []
        for _ in range(args.runs):
            os.sync()  # what the run before has written is not this one's
            cores = workers if args.pin else None
            run = measure.run([*words, "--dtype", dtype], log=work / "log", cores=cores)
            ids = prefix.with_suffix(".bin").stat().st_size
            rows.append({"ids": ids, "seconds": run.wall, "processor_seconds": run.cpu})
        sizes.append(rows)
    return {
        "workers": workers,
        "dtype": dtype,
        "pinned": args.pin,
        "text_bytes": path.stat().st_size,
        "wall": min(row["seconds"] for row in sizes[1]),
        **slope(*sizes, "seconds", "processor_seconds"),
    }


def texts(data: common.Data, size: int, work: Path) -> list[Path]:
    """English in JSON lines, twice: a quarter of ``size`` bytes, and all of them."""
    paths = [work / f"{wanted}.jsonl" for wanted in (size // 4, size)]
    if not paths[1].exists():
        lines = data.lines("english")
        for number, path in enumerate(paths):
            with path.open("wb") as file:
                file.writelines([lines] * max(number + 1, round(int(path.stem) / len(lines))))
    return paths


def write_lock(work: Path) -> float:
    """Processor seconds of write calls for a GB, in one process."""
    block = memoryview(np.arange(1 << 17).view(np.uint8)).cast("B")
    times = []
    for _ in range(3):
        with (work / "lock.bin").open("wb", buffering=0) as file:
            before = resource.getrusage(resource.RUSAGE_SELF)
            for _block in range(256):
                file.write(block)
            after = resource.getrusage(resource.RUSAGE_SELF)
        (work / "lock.bin").unlink()
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        times.append(spent * GB / (256 * len(block)))
    return min(times)


def model(cores: int, encoding: float, lock: float, files: int) -> float:
    """GB of ids a second."""
    return min(cores / encoding, files / lock, 1 / PARENT)


def plot(rows: list[common.Row], path: Path) -> None:
    """Draw model and measurement."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    axes = figure.add_subplot()
    for (dtype, encoding, lock), same in common.grouped(
        rows, "dtype", "encoding", "write_lock"
    ).items():
        several = [model(n, encoding, lock, -(-n // FILE_WORKERS)) for n in CORES]
        (line,) = axes.plot(CORES, several, label=f"model, ids as {dtype}")
        one = [model(n, encoding, lock, 1) for n in CORES]
        axes.plot(CORES, one, "--", color=line.get_color(), label="model, one file")
        points = [(row["workers"], 1 / row["seconds"]) for row in same]
        label = f"measured, {dtype}"
        axes.plot(*zip(*points, strict=True), "o", color=line.get_color(), label=label)
    axes.set(xscale="log", yscale="log", xlabel="cores", ylabel="GB of ids a second")
    ticks = [cores for cores in CORES if cores not in (20, 21)]
    axes.set_xticks(ticks, map(str, ticks))
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def parse() -> argparse.Namespace:
    """The arguments."""
    from tokpack.machine import affine_cores

    doublings = [1 << n for n in range(affine_cores().bit_length())]
    parser = common.parser(__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=doublings, metavar="N")
    parser.add_argument("--pin", action="store_true", help="as many processors as workers")
    parser.add_argument("--dtype", nargs="+", default=["uint16", "int32"])
    parser.add_argument("--text", type=int, default=2, metavar="GB", help="of the larger run (2)")
    parser.add_argument("--runs", type=int, default=3, help="of each size; the least counts (3)")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw model and measurement")
    return parser.parse_args()


def show(rows: list[common.Row]) -> None:
    """Print what the command took beside the model."""
    cells = []
    # Older rows without "wall" are of a replay of ready ids.
    for _, same in common.grouped((row for row in rows if "wall" in row), "dtype").items():
        fewest = min(same, key=lambda row: row["workers"])
        for row in same:
            line = [row["dtype"], row["workers"], row["wall"]]
            line += [row["text_bytes"] / row["wall"] / 1e6, 1 / row["seconds"]]
            line += [common.ratio(fewest["seconds"], row["seconds"]), row["model"]]
            cells.append([*line, row["processor_seconds"], row["write_lock"]])
    columns = ("ids", "workers", "wall s", "MB/s of text", "GB/s of ids", "speed-up", "model")
    common.print_table((*columns, "CPU s/GB", "lock s/GB"), cells)
    print("wall, text: the whole command; GB/s of ids: of a further GB, without start and end")


def main() -> None:
    """Measure, print and append rows."""
    args = parse()
    data, rows = common.find_data(args.data), list[common.Row]()
    with common.work_folder(args.work) as work:
        lock = write_lock(work)
        for dtype in args.dtype:
            real = [measured(data, n, dtype, args, work) for n in sorted({1, *args.workers})]
            encoding = real[0]["processor_seconds"]
            for row in real:
                limit = model(row["workers"], encoding, lock, -(-row["workers"] // FILE_WORKERS))
                terms = {"write_lock": lock, "encoding": encoding, "model": limit}
                rows.append({"benchmark": "scale", **row, **terms})
    show(rows)
    if args.plot:
        plot(rows, args.plot)
    if not args.no_save:
        common.append_rows("scale", rows, common.versions("xxhash"))


if __name__ == "__main__":
    main()

"""What `tokpack encode` costs beside encoding, a model of machines with many cores, and its proof.

    python benchmarks/scale.py                             on this machine's cores
    python benchmarks/scale.py --workers 1 16 32 64 --text 32 --pin --work /dev/shm
    python benchmarks/scale.py --replay 1 2 8 32 --workers 1

Encoders share nothing, so what decides on a large machine is the rest. Here each worker's reading
and encoding is replaced by one that hands out ready ids of the same size: 32 of them, on 2 cores,
ask for places as fast as the encoders of many more would. Everything else is real: processes,
messages, pieces, checksums, journal, files, commit. Two sizes are run, and the difference taken, so
that starting costs nothing. All figures are processor seconds for a GB of ids (10^9 bytes), which a
crowded machine does not change much:

    encoding    all that one worker takes with real text: English, GPT-2's vocabulary
    parent      the process that everything waits for: messages, arithmetic, syncs
    workers     writing pieces to their places, checksums, messages
    write lock  what one write call after the other takes: a file has one writer at a time

The model: with W cores a GB of ids takes max(all work / W, parent, write lock) seconds, and no less
than memory and disk allow: the text is read once, and the ids are written to memory twice and to
the disk once. What this machine's memory copies with W processes, and its disk takes, is measured.

Then the real command runs with each of --workers, and stands beside the model. --pin gives it as
many processors as workers, of different cores first. A disk that is slower than the cores decides
alone; --work /dev/shm leaves it out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import common
import measure
import scale_real

if TYPE_CHECKING:
    from collections.abc import Iterator

GB = 10**9
BYTES_A_TOKEN = 4.3  # of English, with GPT-2's vocabulary
DOCUMENT_TOKENS = 1000
BATCH_BYTES = 1 << 20
BEFORE = 1.0  # s/GB of the parent when it copied and hashed all ids, measured in the same way
CORES = (1, 2, 8, 16, 32, 64, 128, 192)


class Replay:
    """An encoder that gives ready ids, as many as the text would have."""

    def __init__(self, dtype: str) -> None:
        tokens = int(BATCH_BYTES / BYTES_A_TOKEN)
        documents = tokens // DOCUMENT_TOKENS
        self.ids = np.arange(documents * DOCUMENT_TOKENS).astype(dtype)
        self.lengths = np.full(documents, DOCUMENT_TOKENS, np.int32)
        self.special = np.empty(0, np.int64)

    def encode(self, _data: Any, _spans: Any) -> Replay:
        """The ids of one batch."""
        return self


def replaced(dtype: str) -> None:
    """Replace reading, encoding, the self-check and the checksums of inputs."""
    from tokpack.encoding import check, part, piece
    from tokpack.sources import DocumentBatch, Documents
    from tokpack.tokenizers import native

    replay = Replay(dtype)
    count = len(replay.lengths)
    documents = Documents(
        np.empty(0, np.uint8), np.zeros((count, 2), np.int64), np.arange(count, dtype=np.int64)
    )

    def read(_source: Any, own: Any, keys: Any, **_: Any) -> Iterator[DocumentBatch]:
        for _batch in range((own.end - own.begin) // BATCH_BYTES):
            given = dict.fromkeys(keys, documents)
            yield DocumentBatch(given, [], count, count, BATCH_BYTES, BATCH_BYTES)

    names: dict[Any, tuple[str, Any]] = {
        part: ("read", read),
        check.SelfCheck: ("_run", lambda *_: None),
        piece.Job: ("block_checksums", lambda *_: None),
        native.NativeTokenizer: ("encoder", lambda *_, **__: replay),
    }
    for owner, (name, value) in names.items():
        setattr(owner, name, value)


def one(folder: str, size: int, workers: int, dtype: str) -> None:
    """One run in this process; prints a row."""
    import tokpack
    from tokpack.encoding import engine, work

    replaced(dtype)
    source = Path(folder, "in.jsonl")
    with source.open("wb") as file:
        file.truncate(size)
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]  # GPT-2's letters for bytes
    letters = [*shown, *range(256, 512 - len(shown))]
    vocabulary = {chr(letter): i for i, letter in enumerate(letters)}
    Path(folder, "vocab.json").write_text(json.dumps({**vocabulary, "<|endoftext|>": 256}))
    Path(folder, "merges.txt").write_text("#version: 0.2\n")
    spent = [0.0]
    encode = work.EncodingRun.encode

    def timed(run: work.EncodingRun) -> work.Finished:
        begun = time.process_time()
        finished = encode(run)
        spent[0] += time.process_time() - begun
        return finished

    setattr(work.EncodingRun, "encode", timed)  # noqa: B010
    messages = [0]
    receive = engine.Processes._receive

    def counted(*arguments: Any) -> Any:
        messages[0] += 1
        return receive(*arguments)

    setattr(engine.Processes, "_receive", counted)  # noqa: B010
    began = time.perf_counter()
    tokpack.encode(
        str(source),
        f"{folder}/out",
        vocab_file=f"{folder}/vocab.json",
        merge_file=f"{folder}/merges.txt",
        input_format="jsonl",
        dtype=dtype,
        workers=workers,
        overwrite=True,
    )
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    status = Path("/proc/self/status").read_text()
    row = {
        "ids": os.path.getsize(f"{folder}/out.bin"),
        "wall": time.perf_counter() - began,
        "parent": spent[0],
        "workers": others.ru_utime + others.ru_stime,
        "messages": messages[0],
        "parent_mb": int(status.partition("VmHWM:")[2].split()[0]) >> 10,
        "worker_mb": others.ru_maxrss >> 10,
    }
    print(json.dumps(row))


def run(size: int, workers: int, dtype: str, folder: str) -> dict[str, Any]:
    """One run in a process of its own."""
    words = [sys.executable, __file__, "--one", folder, str(size), str(workers), dtype]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    shutil.rmtree(f"{folder}/out.unfinished", ignore_errors=True)
    if done.returncode:
        sys.exit(f"a run failed:\n{done.stderr[-3000:]}")
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def slope(workers: int, dtype: str, text: int, runs: int, folder: str) -> dict[str, Any]:
    """Processor seconds for a further GB of ids: the least of several runs, small and large."""
    small, large = (
        [run(size, workers, dtype, folder) for _ in range(runs)] for size in (text // 4, text)
    )
    least = [{key: min(row[key] for row in rows) for key in rows[0]} for rows in (small, large)]
    ids = least[1]["ids"] - least[0]["ids"]
    found = {
        key: (least[1][key] - least[0][key]) * GB / ids for key in ("parent", "workers", "messages")
    }
    if workers == 1:  # there is one process: how much of it a parent would do is not known
        found = {**found, "parent": 0.0, "workers": found["parent"]}
    return {
        "workers_running": workers,
        "dtype": dtype,
        "ids": ids,
        **found,
        "parent_mb": least[1]["parent_mb"],
        "worker_mb": least[1]["worker_mb"],
    }


def write_lock(folder: str) -> float:
    """Processor seconds of write calls for a GB, in one process."""
    block = memoryview(np.arange(1 << 17).view(np.uint8)).cast("B")
    times = []
    for _ in range(3):
        with Path(folder, "lock.bin").open("wb", buffering=0) as file:
            before = resource.getrusage(resource.RUSAGE_SELF)
            for _block in range(256):
                file.write(block)
            after = resource.getrusage(resource.RUSAGE_SELF)
        os.unlink(f"{folder}/lock.bin")
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        times.append(spent * GB / (256 * len(block)))
    return min(times)


def model(own: list[dict[str, Any]], encoding: float, lock: float, cores: int) -> float:
    """GB of ids a second, from the terms measured with the most workers up to ``cores``."""
    if cores == 1:
        return 1 / encoding
    # What one worker takes beside placing, whose cost depends on how many there are.
    alone = encoding - own[0]["parent"] - own[0]["workers"]
    fitting = [row for row in own if row["workers_running"] <= cores] or own[:1]
    term = max(fitting, key=lambda row: row["workers_running"])
    return 1 / max((alone + term["workers"]) / cores, term["parent"], lock)


def copies(dtype: str) -> float:
    """Bytes that are copied through memory for each byte of ids: the text, and the ids twice."""
    return BYTES_A_TOKEN / np.dtype(dtype).itemsize + 2


def plot(curves: dict[str, list[float]], measured: list[dict[str, Any]], path: Path) -> None:
    """Draw the curves, what was measured, and where one thread that copies all ids would end."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    axes = figure.add_subplot()
    for dtype, speeds in curves.items():
        (line,) = axes.plot(CORES, speeds, label=f"model, ids as {dtype}")
        points = [(row["workers"], 1 / row["seconds"]) for row in measured if row["dtype"] == dtype]
        axes.plot(
            *zip(*points, strict=True), "o", color=line.get_color(), label=f"measured, {dtype}"
        )
    axes.axhline(1 / BEFORE, linestyle="--", color="gray", label="one thread copies all ids")
    axes.set(xscale="log", yscale="log", xlabel="cores", ylabel="GB of ids a second")
    axes.set_xticks(CORES, map(str, CORES))
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def parse() -> argparse.Namespace:
    """The arguments."""
    from tokpack.machine import affine_cores

    cores = affine_cores()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common.add_data_argument(parser)
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        metavar="N",
        default=[1 << n for n in range(cores.bit_length())],
        help="of the real command, beside 1 (2, 4, 8, ... as many as there are processors)",
    )
    parser.add_argument("--pin", action="store_true", help="as many processors as workers")
    parser.add_argument(
        "--replay",
        type=int,
        nargs="+",
        metavar="N",
        default=[1, 2, 8, 32],
        help="workers with ready ids (1 2 8 32)",
    )
    parser.add_argument("--dtype", nargs="+", default=["uint16", "int32"])
    parser.add_argument("--text", type=int, default=2, metavar="GB", help="of the larger run (2)")
    parser.add_argument("--runs", type=int, default=3, help="of each size; the least counts (3)")
    parser.add_argument("--work", type=Path, help="where to write (a temporary folder)")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw model and measurement")
    parser.add_argument("--no-rows", action="store_true", help="append no rows to the results")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    return parser.parse_args()


def show_terms(rows: list[dict[str, Any]]) -> None:
    """Print what the replays took."""
    cells = [
        (
            *(row["dtype"], row["workers_running"], f"{row['parent']:.3f}"),
            *(f"{row['workers']:.3f}", f"{row['messages']:.0f}"),
            *(row["parent_mb"], row["worker_mb"]),
        )
        for row in rows
    ]
    names = ("ids", "replaying", "parent s/GB", "workers s/GB", "messages/GB", "parent MB")
    common.print_table((*names, "MB each"), cells)


def show_measured(rows: list[dict[str, Any]]) -> None:
    """Print what the real command took, beside the model."""
    cells = []
    for row in rows:
        fewest = min((r for r in rows if r["dtype"] == row["dtype"]), key=lambda r: r["workers"])
        cells.append(
            (
                *(row["dtype"], row["workers"], f"{row['wall']:.2f}"),
                f"{row['text_bytes'] / row['wall'] / 1e6:.0f}",
                f"{fewest['wall'] / row['wall']:.2f}x",
                *(f"{1 / row['seconds']:.3f}", f"{fewest['seconds'] / row['seconds']:.2f}x"),
                *(f"{row['model']:.3f}", f"{row['limit']:.2f}", f"{row['processor_seconds']:.2f}"),
            )
        )
    names = ("ids", "workers", "wall s", "MB/s of text", "speed-up", "GB/s of ids", "speed-up")
    common.print_table((*names, "model", "memory, disk allow", "CPU s/GB"), cells)
    print(
        "wall, text: the whole command; GB/s of ids: of a further GB, without start and end; "
        f"{'as many processors as workers' if rows[0]['pinned'] else 'all processors for each'}, "
        f"which are {os.cpu_count()} of {measure.physical_cores()} cores"
    )


def main() -> None:
    """Measure, print and append rows."""
    arguments = parse()
    if arguments.one:
        folder, size, workers, dtype = arguments.one
        one(folder, int(size), int(workers), dtype)
        return
    data, runs, size = common.find_data(arguments.data), arguments.runs, arguments.text * GB
    with tempfile.TemporaryDirectory(dir=arguments.work) as folder:
        lock, disk = write_lock(folder), scale_real.disk_speed(folder)
        memory = scale_real.memory_speed(sorted({1, *arguments.workers}))
        replays = [
            slope(workers, dtype, size, runs, folder)
            for dtype in arguments.dtype
            for workers in arguments.replay
        ]
        texts = scale_real.Texts(data, size, folder)
        real = scale_real.Real(data, texts, folder, pinned=arguments.pin)
        measured = [
            real.measured(workers, dtype, runs)
            for dtype in arguments.dtype
            for workers in sorted({1, *arguments.workers})
        ]
    encoding = {row["dtype"]: row["processor_seconds"] for row in measured if row["workers"] == 1}
    terms = {dtype: [row for row in replays if row["dtype"] == dtype] for dtype in encoding}
    for row in measured:
        dtype, workers = row["dtype"], row["workers"]
        row["model"] = model(terms[dtype], encoding[dtype], lock, workers)
        row["limit"] = min(disk, memory[workers] / copies(dtype))
    curves = {
        dtype: [model(terms[dtype], spent, lock, cores) for cores in CORES]
        for dtype, spent in encoding.items()
    }
    show_terms(replays)
    for dtype, spent in encoding.items():
        print(f"encoding, all work of one worker, {dtype}: {spent:.2f} s/GB")
    copied = ", ".join(f"{speed:.1f} with {count}" for count, speed in memory.items())
    print(f"write lock: {lock:.3f} s/GB; disk: {disk:.2f} GB/s; memory copies GB/s: {copied}")
    show_measured(measured)
    cells = [(dtype, *(f"{speed:.2f}" for speed in curve)) for dtype, curve in curves.items()]
    common.print_table(("model: GB/s of ids", *map(str, CORES)), cells)
    if arguments.plot:
        plot(curves, measured, arguments.plot)
    if not arguments.no_rows:
        common_terms = {"benchmark": "scale", "write_lock": lock, "disk": disk}
        rows = [
            {**common_terms, **row, "encoding": encoding[row["dtype"]]}
            for row in (*replays, *measured)
        ]
        path = common.append_rows("scale", rows, common.versions("xxhash"))
        print(f"rows appended to {path.relative_to(common.ROOT)}")


if __name__ == "__main__":
    main()

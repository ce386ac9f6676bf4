"""Views of many short documents: ``tokpack select``, opened, and their samples.

    python benchmarks/selections.py [--documents 100e6] [--runs 3] [--work DIR]

A dataset of documents of five tokens, four words and an end, is encoded by GPT-2, with a table of
six and four columns (id, url, score, lang), and kept in ``--work``. Then each selection is run as a
command, start-up inside. Of its view, in a process of its own: seconds until ``MMapIndexedDataset``
is open, until it has the lengths of all documents, and those of batches of samples against the same
number of batches of the plain dataset, in turns.

Kind to tokpack: everything is in the page cache, if memory is enough. Not kind: a sample of 2,048
tokens is of 400 documents.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import common
import measure
import numpy as np

import tokpack

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

COLUMNS = ["id", "url", "score", "lang"]
LANGUAGES = ["de", "en", "fr", "it"]
BATCH = 1 << 16  # documents made at a time
WORDS = [" time", " year", " people", " way", " day", " man", " thing", " life", " child", " world"]
OPEN = """
import json, sys, time
import numpy as np
import tokpack
plain, view, batches, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
begin = time.perf_counter()
dataset = tokpack.MMapIndexedDataset(view)
opened = time.perf_counter() - begin
dataset.sizes
took = {"open": opened, "lengths": time.perf_counter() - begin - opened}
samples = {name: tokpack.GPTDataset(name, seq_length=2048, seed=1) for name in (plain, view)}
numbers = np.random.default_rng(1).integers(0, min(map(len, samples.values())), (batches, 8))
seconds = {name: [] for name in samples}
for turn in range(rounds):
    for name, data in samples.items():
        data.batch(numbers[0])
        begin = time.process_time()
        for some in numbers:
            data.batch(some)
        seconds[name].append(time.process_time() - begin)
took["samples"] = min(seconds[view]) / min(seconds[plain])
print(json.dumps(took))
"""


def main() -> None:
    """Make the dataset, select, and show what each selection took."""
    arguments = common.parser(__doc__)
    arguments.add_argument("--documents", type=float, default=100e6, metavar="N", help="(100e6)")
    arguments.add_argument("--runs", type=int, default=3, metavar="N", help="of each (3)")
    args = arguments.parse_args()
    data = common.find_data(args.data)
    with common.work_folder(args.work) as work:
        prefix, scores = made(data, int(args.documents), work)
        rows = [
            {"benchmark": "selections", "documents": int(args.documents), "run": run}
            | selected(name, words, prefix, work, args)
            for run in range(args.runs)
            for name, words in selections(int(args.documents), scores)
        ]
    show(rows)
    if not args.no_save:
        common.append_rows("selections", rows, common.versions("pyarrow", "duckdb"))


def selections(documents: int, scores: Path) -> Iterator[tuple[str, list[str]]]:
    """The arguments of the selections, each with what the table calls it."""
    where = ["--where", "score > 0.7 and lang = 'de'"]
    join = ["--join", str(scores), "--on", "id", "--where", "quality > 0.7"]
    yield "where", where
    yield "where, repeat", ["--where", "score > 0.7", "--repeat", "2 if score > 0.9"]
    yield "join", join
    yield "all three", [*join[:4], where[0], f"{where[1]} and quality > 0.1", "--repeat", "2"]
    yield "first", ["--first", str(documents // 100)]
    yield "random", ["--random", "0.1"]
    yield "tokens", ["--tokens", str(documents // 2)]
    yield "random, most", ["--random", "0.9"]


def made(data: common.Data, documents: int, work: Path) -> tuple[Path, Path]:
    """A dataset of so many documents, and a table of scores of every tenth of them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    prefix, scores = work / f"short-{documents}", work / f"scores-{documents}.parquet"
    if not prefix.with_suffix(".json").exists():
        schema = next(batches(BATCH)).schema
        tokpack.encode(
            pa.RecordBatchReader.from_batches(schema, batches(documents)),
            prefix,
            vocab_file=data.vocab_file,
            merge_file=data.merge_file,
            keep=COLUMNS,
            workers=2,
            overwrite=True,
        )
        numbers = np.arange(0, documents, 10)
        quality = np.random.default_rng(2).random(len(numbers))
        pq.write_table(pa.table({"id": numbers, "quality": quality}), scores)
    return prefix, scores


def batches(documents: int) -> Iterator[Any]:
    """Documents of two to six words, with columns."""
    import pyarrow as pa

    words = pa.array(WORDS)
    for first in range(0, documents, BATCH):
        count = min(BATCH, documents - first)
        source = np.random.default_rng(first)
        chosen = (words.take(pa.array(source.integers(0, len(WORDS), count))) for _ in range(6))
        lengths = source.integers(2, 7, count)
        yield pa.record_batch(columns(first, lengths, list(chosen), source))


def columns(first: int, lengths: Any, words: list[Any], source: np.random.Generator) -> Any:
    """The columns of documents that have so many of the words."""
    import pyarrow as pa
    import pyarrow.compute as pc

    number = np.arange(first, first + len(lengths))
    parts = [pc.if_else(pa.array(lengths > place), some, "") for place, some in enumerate(words)]
    ids = pa.array(number)
    return {
        "text": pc.binary_join_element_wise(*parts, ""),
        "id": ids,
        "url": pc.binary_join_element_wise("https://example.org/page/", ids.cast("string"), ""),
        "score": pa.array(source.random(len(lengths))),
        "lang": pa.array(LANGUAGES).take(pa.array(source.integers(0, 4, len(lengths)))),
    }


def selected(
    name: str, words: list[str], prefix: Path, work: Path, args: argparse.Namespace
) -> common.Row:
    """A row for one selection and its view."""
    view = work / "view"
    command = [sys.executable, "-m", "tokpack", "select", str(prefix), *words]
    taken = measure.run([*command, "-o", str(view), "--overwrite"], log=work / "log")
    row = {"selection": name, **asdict(taken)}
    row["kept"] = tokpack.MMapIndexedDataset(view).documents
    opened = [sys.executable, "-c", OPEN, str(prefix), str(view), "200", "7"]
    measure.run(opened, log=work / "log")
    row |= json.loads((work / "log").read_text().splitlines()[-1])
    for path in work.glob("view.*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return row


def show(rows: list[common.Row]) -> None:
    """Print medians."""
    table = []
    for (name,), same in common.grouped(rows, "selection").items():
        line = [common.median(same, n) for n in ("kept", "wall", "cpu", "memory")]
        line[3] = line[3] / 1e9
        table.append([name, *line, *(common.median(same, n) for n in ("open", "lengths"))])
        table[-1].append(common.ratio(common.median(same, "samples"), 1, 2))
    names = ("selection", "kept", "wall s", "CPU s", "GB", "open s", "lengths s", "samples")
    common.print_table(names, table)
    print("samples: processor time of batches of 8 x 2,048 tokens, beside the plain dataset")


if __name__ == "__main__":
    main()

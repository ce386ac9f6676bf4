"""The encoder in memory, one thread, beside other libraries in the same run, with equal ids.

    python benchmarks/encode.py [--tokenizers gpt2 ...] [--corpora english ...] [--peers ...]
    python benchmarks/encode.py --corpora wiki.jsonl  # JSON lines with "text"; best 100 MB or more

Each cell, one library with one tokenizer on one corpus, is a fresh process (``bench_one.py``)
that takes each document once, and that is measured in three parts: *construction*, in seconds,
from the tokenizer's file to the ids of a letter, which includes tokpack's seeding of its cache
with the vocabulary; the *first* 10 MB, in megabytes of UTF-8 text a CPU second; and the *later*
text, up to ``--bytes`` of the corpus. The table shows the median over the runs, and how many times
as fast tokpack is as the best peer. Libraries take turns, so that a noisy machine is noisy for all
of them. A cell whose ids are not tokpack's says so, and the exit status is 1.

``llama3-like`` stands in for Llama 3's tokenizer, whose licence is not free: cl100k's vocabulary
with Llama 3's pattern and ``ignore_merges``.

What is unfair: slow libraries get the first ``--slow-bytes`` of a corpus only; tokpack writes
uint16 where the vocabulary fits, as a dataset needs it, and int32 otherwise, the others uint32
always; tokpack and gigatoken get bytes, the others ``str``. ``tokenizers`` 0.23 and 1.0 cannot live
in one environment, so every peer gets its own, made with pip under ``--work``.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import common
import numpy as np

from tokpack.look import bench_one

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

# name in the table -> its file in the data folder
TOKENIZERS = {
    "gpt2": "gpt2-vocab.json",
    "neox": "20B_tokenizer.json",
    "cl100k": "cl100k_base.tiktoken",
    "llama3-like": "cl100k_base.tiktoken",
    "qwen2": "qwen.tiktoken",
    "o200k": "o200k_base.tiktoken",
    "deepseek": "deepseek-v3.json",
}
# name in the table -> (library in bench_one.py, requirement, whether it is slow)
PEERS = {
    "fastokens": ("fastokens", "fastokens==0.3.5", False),
    "gigatoken": ("gigatoken", "gigatoken==0.10.0", False),
    "snaptokens": ("snaptokens", "snaptokens==0.2.6", False),
    "tiktoken": ("tiktoken", "tiktoken==0.14.0", False),
    "tokenizers-1.0rc": ("tokenizers", "tokenizers==1.0.0rc3", False),
    "tokenizers-0.23": ("tokenizers", "tokenizers==0.23.3", True),
}
PARTS = ("first", "later")


@dataclass(frozen=True)
class Program:
    """A library as it is measured: its interpreter, and of how many bytes of a corpus."""

    name: str
    library: str
    python: str
    limit: int


def environment(work: Path, name: str, requirement: str) -> str:
    """The interpreter of the peer's own environment, made when it is not there yet."""
    folder = work / f"venv-{name}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"installing {requirement}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "numpy", requirement], check=True, stderr=subprocess.DEVNULL)
        (folder / "ready").touch()
    return str(python)


def write_tokenizer(data: common.Data, work: Path, name: str) -> None:
    """Write ``work/tokenizers/NAME/tokenizer.json``."""
    target = work / "tokenizers" / name / "tokenizer.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    source = data.find(TOKENIZERS[name])
    if name == "gpt2":
        _write_gpt2(data, target)
    elif source.suffix == ".json":
        shutil.copyfile(source, target)
    else:
        shutil.copyfile(_converted(data, work) / f"{name}.json", target)


def _write_gpt2(data: common.Data, target: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE.from_file(str(data.vocab_file), str(data.merge_file)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(target))


def _converted(data: common.Data, work: Path) -> Path:
    """The folder of what the data's own script makes of its .tiktoken files, once."""
    folder = work / "converted"
    if not (folder / "ready").exists():
        print("converting .tiktoken files", file=sys.stderr)
        folder.mkdir(exist_ok=True)
        command = [sys.executable, str(data.find("to_json.py")), str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (folder / "ready").touch()
    return folder


def write_corpus(data: common.Data, work: Path, name: str) -> None:
    """Write the documents, one after the other, and their offsets."""
    # The libraries differ in what they make of a special token inside a document; that is an
    # option, not speed.
    documents = [t.replace("<|endoftext|>", "").encode() for t in data.texts(name)]
    (work / f"{_short(name)}.txt").write_bytes(b"".join(documents))
    np.cumsum([0, *map(len, documents)]).astype(np.int64).tofile(work / f"{_short(name)}.offsets")


def _short(corpus: str) -> str:
    return Path(corpus).name.partition(".")[0]


def measure(program: Program, work: Path, tokenizer: str, corpus: str) -> common.Row:
    """What ``bench_one.measure`` returns in a fresh process."""
    text, offsets = (work / f"{_short(corpus)}.{kind}" for kind in ("txt", "offsets"))
    folder = work / "tokenizers" / tokenizer
    arguments = [program.library, text, offsets, program.limit, folder]
    command = [program.python, "-P", bench_one.__file__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{program.name} with {tokenizer} on {corpus} failed:\n{done.stderr}")
    result: common.Row = json.loads(done.stdout)
    return result


def compare(
    programs: Sequence[Program], work: Path, tokenizer: str, corpus: str, runs: int
) -> list[common.Row]:
    """Rows, tokpack's first: every program ``runs`` times in turns, ids compared with tokpack's."""
    results: dict[str, list[common.Row]] = {program.name: [] for program in programs}
    for _ in range(runs):
        for program in programs:
            results[program.name].append(measure(program, work, tokenizer, corpus))
    own = results["tokpack"]
    wanted = {programs[0].limit: own[0]["ids"]}
    rows = []
    for program in programs:
        found = results[program.name]
        if program.limit not in wanted:
            short = Program("tokpack", "tokpack", sys.executable, program.limit)
            wanted[program.limit] = measure(short, work, tokenizer, corpus)["ids"]
        row: common.Row = {"benchmark": "encode", "tokenizer": tokenizer, "corpus": _short(corpus)}
        row |= {"library": program.name, "runs": runs}
        row["bytes"] = sum(found[0][part]["bytes"] for part in PARTS)
        row["equal_ids"] = all(r["ids"] == wanted[program.limit] for r in found)
        row["construction"] = common.spread([r["construction"] for r in found])
        for part in PARTS:
            if found[0][part]["bytes"] == 0:
                continue
            row[part] = common.spread([_speed(r[part]) for r in found])
            system = [r[part]["system"] for r in found]
            user = [r[part]["seconds"] - r[part]["system"] for r in found]
            row |= {f"{part}_user": common.spread(user), f"{part}_system": common.spread(system)}
            row[f"tokpack_{part}_ratio"] = statistics.median(
                _speed(a[part]) / _speed(b[part]) for a, b in zip(own, found, strict=True)
            )
        rows.append(row)
    return rows


def _speed(part: common.Row) -> float:
    """MB/s."""
    return float(part["bytes"] / 1e6 / part["seconds"])


def show(rows: Sequence[common.Row]) -> None:
    """Print a line for each tokenizer and corpus: seconds and MB/s of all libraries, and ids.

    Older rows are of text that was encoded again and again: ``cold`` and ``warm``.
    """
    for parts in (PARTS, ("cold", "warm")):
        some = [row for row in rows if parts[0] in row]
        if some:
            _show(some, parts)


def _show(rows: Sequence[common.Row], parts: Sequence[str]) -> None:
    libraries = list(dict.fromkeys(row["library"] for row in rows))
    columns = ["tokenizer", "corpus", "MB"]
    keys = [key for key in ("construction", *parts) if key in rows[0]]
    lines = []
    for (tokenizer, corpus), same in common.grouped(rows, "tokenizer", "corpus").items():
        # Rows without a tokenizer are older, and of GPT-2's.
        line = [tokenizer or "gpt2", corpus, max(row["bytes"] for row in same) / 1e6]
        for library in libraries:
            row = next((row for row in same if row["library"] == library), {})
            line += [row[key]["median"] if key in row else "-" for key in keys]
        for key in (f"tokpack_{part}_ratio" for part in parts):
            others = [row[key] for row in same if row["library"] != "tokpack" and key in row]
            line.append(min(others, default="-"))
        different = [row["library"] for row in same if not row["equal_ids"]]
        lines.append([*line, f"DIFFER: {' '.join(different)}" if different else "equal"])
    columns += [f"{library} {key}" for library in libraries for key in keys]
    common.print_table([*columns, *(f"x best {part}" for part in parts), "ids"], lines)
    print("MB/s of one thread; construction: processor seconds")


def parse() -> argparse.Namespace:
    """The command line, with lists for --tokenizers, --corpora and --peers."""
    parser = common.parser(__doc__)
    lists = {"tokenizers": (TOKENIZERS, list(TOKENIZERS)), "peers": (PEERS, list(PEERS)[:3])}
    for name, (choices, chosen) in lists.items():
        parser.add_argument(f"--{name}", nargs="*", choices=choices, default=chosen)
    parser.add_argument(
        "--corpora",
        nargs="*",
        default=["english", "code", "multi"],
        metavar="NAME|FILE",
        help=f"of the data folder ({', '.join(common.CORPORA)}), or JSON lines, plain or zstd",
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--bytes", type=int, default=100_000_000, help="of a corpus, at most")
    parser.add_argument("--slow-bytes", type=int, default=6_000_000)
    return parser.parse_args()


def main() -> None:
    """Measure everything in turns, compare ids, print the table and append rows."""
    args = parse()
    data, packages = common.find_data(args.data), common.versions()
    rows: list[common.Row] = []
    with common.work_folder(args.work) as work:
        for corpus in args.corpora:
            write_corpus(data, work, corpus)
        for tokenizer in args.tokenizers:
            write_tokenizer(data, work, tokenizer)
        programs = [Program("tokpack", "tokpack", sys.executable, args.bytes)]
        for name in args.peers:
            library, packages[name], slow = PEERS[name]
            python = environment(work, name, packages[name])
            limit = min(args.bytes, args.slow_bytes) if slow else args.bytes
            programs.append(Program(name, library, python, limit))
        for tokenizer in args.tokenizers:
            for corpus in args.corpora:
                print(f"{tokenizer} on {corpus}", file=sys.stderr)
                rows += compare(programs, work, tokenizer, corpus, args.runs)
    show(rows)
    if not args.no_save:
        common.append_rows("encode", rows, packages)
    if not all(row["equal_ids"] for row in rows):
        sys.exit("ids differ")


if __name__ == "__main__":
    main()

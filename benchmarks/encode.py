"""The encoder in memory, one thread, beside other libraries in the same run, with equal ids.

    python benchmarks/encode.py [--data DIR] [--corpora english,code,multi] [--runs 3]

Each cell is a fresh process (``encode_one.py``): *cold* is its first pass over the corpus, *warm*
the best of the later ones, in megabytes of UTF-8 text a CPU second; the table shows the median over
the runs. Libraries take turns, so that a noisy machine is noisy for all of them.

What is unfair: slow libraries get the first ``--slow-bytes`` of a corpus only, which is colder for
whoever has a cache; tokpack writes uint16 as a dataset needs it, the others what they can;
vocabularies are loaded before the clock starts, which includes tokpack's seeding of its cache with
the vocabulary. ``tokenizers`` 0.23 and 1.0 cannot live in one environment, so every peer gets its
own, made with pip under ``--work``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import common

# name in the table -> (library in encode_one.py, requirement, whether it is slow)
PEERS = {
    "gigatoken": ("gigatoken", "gigatoken==0.10.0", False),
    "tokenizers-1.0rc": ("tokenizers", "tokenizers==1.0.0rc3", False),
    "tiktoken": ("tiktoken", "tiktoken==0.14.0", True),
    "tokenizers-0.23": ("tokenizers", "tokenizers==0.23.3", True),
}
PASSES = 4


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


def prepare(data: common.Data, work: Path, corpora: list[str]) -> None:
    """Write what encode_one.py reads: the tokenizer in two forms, documents and offsets."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    shutil.copy(data.vocab_file, work / "vocab.json")
    shutil.copy(data.merge_file, work / "merges.txt")
    tokenizer = Tokenizer(models.BPE.from_file(str(data.vocab_file), str(data.merge_file)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(work / "tokenizer.json"))
    for name in corpora:
        # The libraries differ in what they make of a special token inside a document; that is an
        # option, not speed.
        documents = [t.replace("<|endoftext|>", "").encode() for t in data.texts(name)]
        (work / f"{name}.txt").write_bytes(b"".join(documents))
        np.cumsum([0, *map(len, documents)]).astype(np.int64).tofile(work / f"{name}.offsets")


def measure(python: str, library: str, work: Path, corpus: str, limit: int) -> dict[str, Any]:
    """One fresh process."""
    script = Path(__file__).with_name("encode_one.py")
    text, offsets = work / f"{corpus}.txt", work / f"{corpus}.offsets"
    passes = PASSES if limit > 1 << 40 else 2
    arguments = [library, text, offsets, limit, work, passes]
    done = subprocess.run(
        [python, script, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{library} on {corpus} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    speeds = [result["bytes"] / s / 1e6 for s in result["seconds"]]
    return {"ids": result["ids"], "bytes": result["bytes"], "cold": speeds[0], "warm": max(speeds)}


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    common.add_data_argument(parser)
    parser.add_argument("--corpora", default="english,code,multi")
    parser.add_argument("--peers", default=",".join(PEERS), help="'' for none")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--slow-bytes", type=int, default=6_000_000)
    parser.add_argument("--work", type=Path, help="kept folder for environments and corpora")
    return parser.parse_args()


def main() -> None:
    """Measure everything in turns, compare ids, print and append rows."""
    args = parse()
    data = common.find_data(args.data)
    corpora = args.corpora.split(",")
    peers = {name: PEERS[name] for name in args.peers.split(",") if name}
    work = args.work or Path(tempfile.mkdtemp(prefix="tokpack-encode-"))
    work.mkdir(parents=True, exist_ok=True)
    prepare(data, work, corpora)
    cells = [("tokpack", sys.executable, "tokpack", False)] + [
        (name, environment(work, name, requirement), library, slow)
        for name, (library, requirement, slow) in peers.items()
    ]
    rows = []
    for corpus in corpora:
        results: dict[str, list[dict[str, Any]]] = {name: [] for name, *_ in cells}
        short = measure(sys.executable, "tokpack", work, corpus, args.slow_bytes)["ids"]
        for _ in range(args.runs):
            for name, python, library, slow in cells:
                limit = args.slow_bytes if slow else 1 << 50
                results[name].append(measure(python, library, work, corpus, limit))
        for name, _, _, slow in cells:
            wanted = short if slow else results["tokpack"][0]["ids"]
            row: dict[str, Any] = {"corpus": corpus, "library": name}
            row["bytes"] = results[name][0]["bytes"]
            row["equal_ids"] = all(r["ids"] == wanted for r in results[name])
            for key in ("cold", "warm"):
                speeds = [r[key] for r in results[name]]
                own = [r[key] for r in results["tokpack"]]
                row[key] = common.spread(speeds)
                row[f"tokpack_{key}_ratio"] = statistics.median(
                    a / b for a, b in zip(own, speeds, strict=True)
                )
            rows.append(row)
    common.print_table(
        ["corpus", "library", "MB", "cold MB/s", "warm MB/s", "tokpack x cold", "x warm", "ids"],
        [
            [
                r["corpus"],
                r["library"],
                r["bytes"] / 1e6,
                r["cold"]["median"],
                r["warm"]["median"],
                r["tokpack_cold_ratio"],
                r["tokpack_warm_ratio"],
                "equal" if r["equal_ids"] else "DIFFER",
            ]
            for r in rows
        ],
    )
    requirements = {name: requirement for name, (_, requirement, _) in peers.items()}
    path = common.append_rows("encode", rows, {**common.versions(), **requirements})
    print(f"rows appended to {path.relative_to(common.ROOT)}", file=sys.stderr)
    if not args.work:
        shutil.rmtree(work)
    if not all(r["equal_ids"] for r in rows):
        sys.exit("ids differ")


if __name__ == "__main__":
    main()

"""The existing preprocessors beside tokpack: same input, same workers, whole processes.

    python benchmarks/peers/run.py --megatron-lm ~/Megatron-LM --datatrove ~/venv/bin/python

README.md in this folder says what each peer needs. A peer that was not given is listed as not
measured. The programs take turns; what each wrote is compared with what tokpack wrote, and that
with the known answer.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import common
import inputs
import measure
import pipeline
from peers.drivers import OFFLINE, PEERS, Peer, Setting
from peers.files import compare, write_tokenizer

if TYPE_CHECKING:
    import argparse

Place = tuple[str, Path | None]  # the interpreter and the checkout of a peer


def main() -> None:
    """Measure tokpack and every peer that was given."""
    args = parse()
    data = common.find_data(args.data)
    places = {peer: place(peer, args) for peer in PEERS if peer.name in args.peers}
    rows: list[common.Row] = []
    with common.work_folder(args.work) as work:
        write_tokenizer(work / "gpt2", data.vocab_file, data.merge_file)
        for workers in args.workers:
            rows += measured(data, places, workers, work, args)
    show(rows)
    missing = [peer.name for peer, where in places.items() if where is None]
    if missing:
        print(f"not measured (see benchmarks/peers/README.md): {', '.join(missing)}")
    if not args.no_save:
        common.append_rows("peers", rows, common.versions("tokenizers"))


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = common.parser(__doc__)
    names = [peer.name for peer in PEERS]
    parser.add_argument("--peers", nargs="+", choices=names, default=names, metavar="NAME")
    for option in dict.fromkeys(peer.option for peer in PEERS if not peer.module):
        parser.add_argument(f"--{option}", type=Path, metavar="CHECKOUT")
        parser.add_argument(
            f"--{option}-python", metavar="PYTHON", help="(CHECKOUT/.venv/bin/python, or this one)"
        )
    for option in (peer.option for peer in PEERS if peer.module):
        parser.add_argument(f"--{option}", metavar="PYTHON", help="interpreter that has it")
    parser.add_argument("--corpus", choices=inputs.MIXES, default="english")
    parser.add_argument("--size", type=int, default=1000, metavar="MB", help="text (1000)")
    parser.add_argument("--workers", nargs="+", type=int, default=[2], metavar="N")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="of each program (3)")
    parser.add_argument("--timeout", type=float, default=3600, metavar="S", help="a run (3600)")
    return parser.parse_args()


def place(peer: Peer, args: argparse.Namespace) -> Place | None:
    """The interpreter and the checkout of a peer; None when it was not given."""
    option = peer.option.replace("-", "_")
    given = getattr(args, option)
    if peer.module:
        if given is None and importlib.util.find_spec(peer.module):
            given = sys.executable
        return (given, None) if given else None
    if given is None:
        return None
    own = given / ".venv" / "bin" / "python"
    python = getattr(args, f"{option}_python") or (str(own) if own.exists() else None)
    return python or sys.executable, given.resolve()


def measured(
    data: common.Data,
    places: dict[Peer, Place | None],
    workers: int,
    work: Path,
    args: argparse.Namespace,
) -> list[common.Row]:
    """Rows of all programs with one number of workers, taking turns."""
    size = args.size * 10**6
    source = inputs.build(data, args.corpus, size, 1, work, compressed=False)
    shards = inputs.build(data, args.corpus, size, workers, work, compressed=False)
    rows = []
    for run in range(args.runs):
        known = {"benchmark": "peers", **source.sizes(), "workers": workers, "run": run}
        result = pipeline.encode(data, source, source.jsonl, work, workers)
        rows.append({**known, "program": "tokpack", **result, "result": "the known answer"})
        for peer, where in places.items():
            if where is None:
                continue
            output = work / "peer"
            shutil.rmtree(output, ignore_errors=True)
            (output / "data").mkdir(parents=True)
            # One of them looks for a folder with the name of its tokenizer before it asks a server.
            (output / "gpt2").symlink_to(work / "gpt2")
            setting = Setting(*where, source.jsonl[0], shards.jsonl, work / "gpt2", output, workers)
            result = one(peer, setting, work, args.timeout)
            rows.append({**known, "program": peer.name, **result})
            print(f"{peer.name}: {result.get('wall', 0):.1f} s, {result['result']}", flush=True)
    inputs.remove(work / "out")
    return rows


def one(peer: Peer, setting: Setting, work: Path, timeout: float) -> common.Row:
    """Run a peer and compare what it wrote."""
    os.sync()
    try:
        result = measure.run(
            peer.command(setting),
            log=work / f"{peer.name}.log",
            cwd=setting.output,
            environment={**OFFLINE, **peer.environment(setting)},
            timeout=timeout,
        )
    except measure.CommandError as error:
        print(error, file=sys.stderr)
        return {"result": f"FAILED: {str(error).splitlines()[-1]}"}
    equal = compare(sorted(setting.output.glob(peer.results)), work / "out")
    return {**asdict(result), "result": equal, "peer_versions": peer_versions(peer, setting)}


def peer_versions(peer: Peer, setting: Setting) -> dict[str, str]:
    """Versions of the packages in the peer's environment, and the commit of its checkout."""
    code = "import importlib.metadata as m, sys\nfor n in sys.argv[1:]: print(n, m.version(n))"
    command = [setting.python, "-c", code, *peer.packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    packages = dict(line.split() for line in done.stdout.splitlines())
    if setting.checkout:
        command = ["git", "-C", str(setting.checkout), "rev-parse", "--short=10", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        packages["commit"] = done.stdout.strip()
    return packages


def show(rows: list[common.Row]) -> None:
    """Print medians, and how many times faster tokpack was."""
    groups = common.grouped(rows, "text_bytes", "workers", "program")
    table = []
    for (text, workers, program), same in groups.items():
        wall = common.median(same, "wall")
        ours = common.median(groups[text, workers, "tokpack"], "wall")
        line = [program, text / 1e6, workers, wall, common.median(same, "cpu")]
        line.append("-" if wall == "-" else text / wall / 1e6)
        line += [common.ratio(wall, ours), max(row.get("memory", 0) for row in same) // 10**6]
        table.append([*line, ", ".join(sorted({row["result"] for row in same}))])
    columns = ("program", "MB", "workers", "wall s", "CPU s", "MB/s", "tokpack is", "MB all")
    common.print_table((*columns, "files"), table)
    print("medians of whole processes; MB/s: 10^6 bytes of UTF-8 text")


if __name__ == "__main__":
    main()

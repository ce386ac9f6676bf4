"""The existing preprocessors beside tokpack: same input, same workers, whole processes.

    python benchmarks/peers/run.py --megatron-lm ~/Megatron-LM --datatrove ~/venv/bin/python

README.md in this folder says what each peer needs. A peer that was not given is listed as not
measured. The programs take turns; what each wrote is compared with what tokpack wrote, and that
with the known answer.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import common  # noqa: E402
import inputs  # noqa: E402
import measure  # noqa: E402
import tokenizer_files  # noqa: E402
from compare import compare  # noqa: E402
from drivers import PEERS, Peer, Setting  # noqa: E402
from pipeline import remove, work_folder  # noqa: E402

Row = dict[str, Any]


def main() -> None:
    """Measure tokpack and every peer that was given."""
    arguments = parse()
    data = common.find_data(arguments.data)
    found = {peer: place(peer, arguments) for peer in PEERS if peer.name in arguments.peers}
    with work_folder(arguments.work, keep=arguments.keep) as work:
        tokenizer_files.write(work / "gpt2", data.vocab_file, data.merge_file)
        rows = []
        for workers in arguments.workers:
            rows += measured(data, found, workers, work.resolve(), arguments)
    show(rows, [peer.name for peer, where in found.items() if where is None])
    if not arguments.no_save:
        path = common.append_rows("peers", rows, common.versions("tokenizers"))
        print(f"rows appended to {path.relative_to(common.ROOT)}")


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common.add_data_argument(parser)
    names = [peer.name for peer in PEERS]
    parser.add_argument("--peers", nargs="+", choices=names, default=names, metavar="NAME")
    for option in ("megatron-lm", "gpt-neox", "bigscience", "microsoft"):
        parser.add_argument(f"--{option}", type=Path, metavar="CHECKOUT")
        parser.add_argument(
            f"--{option}-python", metavar="PYTHON", help="(CHECKOUT/.venv/bin/python, or this one)"
        )
    for option in ("datatrove", "dolma"):
        parser.add_argument(f"--{option}", metavar="PYTHON", help="interpreter that has it")
    parser.add_argument("--corpus", choices=inputs.MIXES, default="english")
    parser.add_argument("--size", type=int, default=1000, metavar="MB", help="text (1000)")
    parser.add_argument("--workers", nargs="+", type=int, default=[2], metavar="N")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="of each program (3)")
    parser.add_argument("--timeout", type=float, default=3600, metavar="S", help="a run (3600)")
    parser.add_argument("--work", type=Path, metavar="DIR", help="for inputs and outputs (kept)")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder")
    parser.add_argument("--no-save", action="store_true", help="append no rows to the results")
    return parser.parse_args()


def place(peer: Peer, arguments: argparse.Namespace) -> tuple[str, Path | None] | None:
    """The interpreter and the checkout of a peer; None when it was not given."""
    option = peer.option.replace("-", "_")
    given = getattr(arguments, option)
    if peer.module:
        if given is None and importlib.util.find_spec(peer.module):
            given = sys.executable
        return (given, None) if given else None
    if given is None:
        return None
    own = given / ".venv" / "bin" / "python"
    python = getattr(arguments, f"{option}_python") or (str(own) if own.exists() else None)
    return python or sys.executable, given.resolve()


def measured(
    data: common.Data,
    found: dict[Peer, tuple[str, Path | None] | None],
    workers: int,
    work: Path,
    arguments: argparse.Namespace,
) -> list[Row]:
    """Rows of all programs with one number of workers, taking turns."""
    size = arguments.size * 10**6
    given = inputs.build(data, arguments.corpus, size, 1, work, compressed=False)
    shards = inputs.build(data, arguments.corpus, size, workers, work, compressed=False)
    rows = []
    for run in range(arguments.runs):
        common_part = {
            "benchmark": "peers",
            "corpus": given.name,
            "workers": workers,
            "run": run,
            "documents": given.documents,
            "rounds": given.rounds,
            "text_bytes": given.text_bytes,
            "json_bytes": given.json_bytes,
        }
        rows.append({**common_part, "program": "tokpack", **tokpack(data, given, workers, work)})
        for peer, where in found.items():
            if where is None:
                continue
            output = work / "peer"
            shutil.rmtree(output, ignore_errors=True)
            (output / "data").mkdir(parents=True)
            # One of them looks for a folder with the name of its tokenizer before it asks a server.
            (output / "gpt2").symlink_to(work / "gpt2")
            setting = Setting(
                python=where[0],
                checkout=where[1],
                source=given.jsonl[0],
                shards=shards.jsonl,
                gpt2=work / "gpt2",
                output=output,
                workers=workers,
            )
            result = one(peer, setting, work, arguments.timeout)
            rows.append({**common_part, "program": peer.name, **result})
            print(f"{peer.name}: {result.get('wall', 0):.1f} s, {result['result']}", flush=True)
    remove(work / "out")
    return rows


def tokpack(data: common.Data, given: inputs.Inputs, workers: int, work: Path) -> Row:
    """Run tokpack, whose files must be the right ones; they stay for the comparison."""
    prefix = work / "out"
    remove(prefix)
    os.sync()
    command = inputs.encode_command(data, list(given.jsonl), prefix, workers=workers)
    result = measure.run(command, log=work / "log")
    inputs.check(given, prefix)
    return {**asdict(result), "result": "the known answer"}


def one(peer: Peer, setting: Setting, work: Path, timeout: float) -> Row:
    """Run a peer and compare what it wrote."""
    job = peer.job(setting)
    os.sync()
    try:
        result = measure.run(
            job.command,
            log=work / f"{peer.name}.log",
            cwd=setting.output,
            environment=job.environment,
            timeout=timeout,
        )
    except measure.CommandError as error:
        print(error, file=sys.stderr)
        return {"result": f"FAILED: {str(error).splitlines()[-1]}"}
    wrote = compare(sorted(setting.output.glob(peer.results)), work / "out")
    packages = peer_versions(peer, setting)
    return {**asdict(result), "result": wrote, "peer_versions": packages}


def peer_versions(peer: Peer, setting: Setting) -> dict[str, str]:
    """Versions of the packages in the peer's environment, and the commit of its checkout."""
    code = (
        "import importlib.metadata as m, sys\n"
        "for name in sys.argv[1:]: print(name, m.version(name))"
    )
    command = [setting.python, "-c", code, *peer.packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = dict(line.split() for line in done.stdout.splitlines())
    if setting.checkout:
        command = ["git", "-C", str(setting.checkout), "rev-parse", "--short=10", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found["commit"] = done.stdout.strip()
    return found


def show(rows: list[Row], missing: list[str]) -> None:
    """Print medians, and how many times faster tokpack was."""
    groups: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["workers"], row["program"]), []).append(row)
    table = []
    for (workers, program), same in groups.items():
        done = [row for row in same if "wall" in row]
        results = ", ".join(sorted({row["result"] for row in same}))
        if not done:
            table.append([program, workers, "-", "-", "-", "-", "-", results])
            continue
        wall = statistics.median(row["wall"] for row in done)
        ours = statistics.median(row["wall"] for row in groups[workers, "tokpack"])
        table.append(
            [
                program,
                workers,
                wall,
                statistics.median(row["cpu"] for row in done),
                done[0]["text_bytes"] / wall / 1e6,
                f"{wall / ours:.1f}x",
                max(row["memory"] for row in done) // 10**6,
                results,
            ]
        )
    columns = ("program", "workers", "wall s", "CPU s", "MB/s", "tokpack is", "MB all", "files")
    common.print_table(columns, table)
    print("medians of whole processes; MB/s: 10^6 bytes of UTF-8 text")
    measure.warn_if_busy(rows)
    if missing:
        print(
            f"not measured (see {(HERE / 'README.md').relative_to(common.ROOT)}): "
            + ", ".join(missing)
        )


if __name__ == "__main__":
    main()

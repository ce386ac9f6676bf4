"""Encoding files on a store beside the same files on a disk.

    python benchmarks/stores.py [--data DIR] [--size 400MB] [--workers 2] [--rounds 3] [--save]

The English corpus, repeated, as one plain file and as eight in zstd, is encoded in turns from the
disk, from a server that only sends files (as much of S3's protocol as reading one takes), and from
moto's server. The servers run on the cores that encode: the clock shows what both cost, and the
processor time of the run alone what a server elsewhere would leave. Output goes to the disk in all
cases. With ``--datatrove PYTHON``, an interpreter that has datatrove[io,processing] and s3fs, its
tokenizer reads the eight files from moto's server, too, with as many workers, once. With --save
rows are appended to benchmarks/results.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import add_data_argument, append_rows, find_data, print_table, repeated, versions

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "texts"
UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
RUN = """
import json, resource, sys, time
import tokpack
from tokpack.stores import access
options = json.loads(sys.argv[1])
began = time.perf_counter()
made = tokpack.encode(options.pop("inputs"), **options)
wall = time.perf_counter() - began
access.shut_down()
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps({
    "wall": wall,
    "cpu": sum(one.ru_utime + one.ru_stime for one in used),
    "worker_mb": used[1].ru_maxrss / 1024,
    "tokens": made.tokens,
}))
"""


class Sender(BaseHTTPRequestHandler):
    """HEAD and ranges of the files in a folder, sent by the kernel, ``delay`` seconds later."""

    protocol_version = "HTTP/1.1"
    folder: Path
    delay: float

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        time.sleep(self.delay)
        path = self.folder / self.path.rpartition("/")[2]
        if not path.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        size = path.stat().st_size
        begin, end = 0, size
        wanted = self.headers.get("Range", "").removeprefix("bytes=")
        if wanted:
            first, _, last = wanted.partition("-")
            begin, end = int(first), min(int(last or size) + 1, size)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(end - begin))
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.send_header("ETag", f'"{hashlib.md5(path.name.encode()).hexdigest()}"')
        self.send_header("Last-Modified", self.date_time_string(int(path.stat().st_mtime)))
        self.end_headers()
        if self.command == "GET":
            with open(path, "rb") as file:
                while begin < end:
                    begin += os.sendfile(
                        self.connection.fileno(), file.fileno(), begin, end - begin
                    )


def serve(folder: str, delay: str, port: str) -> None:
    """The main function of the server process."""
    Sender.folder, Sender.delay = Path(folder), float(delay)
    ThreadingHTTPServer.request_queue_size = 128  # a reader has 32 connections
    ThreadingHTTPServer(("127.0.0.1", int(port)), Sender).serve_forever()


@contextmanager
def server(*command: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start ``python COMMAND PORT``; its address and process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, *command, str(port)], stdout=quiet, stderr=quiet)
    try:
        for _ in range(600):
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.wait()


def put(endpoint: str, key: str, body: bytes) -> None:
    """Write an object; moto takes any signature."""
    authorization = "AWS4-HMAC-SHA256 Credential=x/20200101/us-east-1/s3/aws4_request"
    request = urllib.request.Request(f"{endpoint}/{BUCKET}{key}", data=body, method="PUT")
    request.add_header("Authorization", authorization)
    request.add_header("Content-Type", "application/octet-stream")  # else it is taken for a form
    urllib.request.urlopen(request).close()


def processor_seconds(process: subprocess.Popen[bytes]) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def settings(endpoint: str) -> dict[str, str]:
    """The variables of a store at an address."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
    }


def encode(inputs: list[str], endpoint: str, options: dict[str, Any]) -> dict[str, float]:
    """One run in a process of its own."""
    environment = os.environ | settings(endpoint)
    with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
        given = {k: v for k, v in options.items() if k not in ("folder", "datatrove")}
        given |= {"inputs": inputs, "output": f"{folder}/out"}
        done = subprocess.run(
            [sys.executable, "-c", RUN, json.dumps(given)],
            env=environment,
            stdout=subprocess.PIPE,
            check=True,
        )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def datatrove(endpoint: str, options: dict[str, Any], tasks: int) -> dict[str, float]:
    """A run of datatrove's tokenizer over the files in zstd."""
    from peers import tokenizer_files

    folder = Path(options["folder"])
    tokenizer_files.write(folder / "gpt2", Path(options["vocab_file"]), Path(options["merge_file"]))
    script = str(Path(__file__).parent / "peers" / "datatrove_job.py")
    with tempfile.TemporaryDirectory(dir=folder) as output:
        words = [str(folder / "gpt2" / "tokenizer.json"), f"s3://{BUCKET}", output]
        words += [str(options["workers"]), "*.jsonl.zst", str(tasks)]
        done = subprocess.run(
            [options["datatrove"], script, *words],
            env=os.environ | settings(endpoint) | {"HF_HUB_OFFLINE": "1"},  # else it asks a server
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        wall = float(done.stdout.split()[-1])  # without the imports of the first process
        tokens = sum(path.stat().st_size for path in Path(output).rglob("*.bin")) // 2
    # Nobody waits for its processes, so that the system does not say what they used.
    return {"wall": wall, "tokens": tokens}


def measure(
    folder: Path, names: list[str], options: dict[str, Any], rounds: int
) -> list[dict[str, Any]]:
    """Rows of one kind of input: from the disk, from the sender, from moto."""
    here = [str(folder / name) for name in names]
    there = [f"s3://{BUCKET}/{name}" for name in names]
    sender = server(__file__, "--serve", str(folder), "0")
    moto = server("-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p")
    with sender as (sends, sending), moto as (endpoint, storing):
        put(endpoint, "", b"")
        for name in names:
            put(endpoint, f"/{name}", (folder / name).read_bytes())
        places = {
            "disk": (here, "", None),
            "sender": (there, sends, sending),
            "moto": (there, endpoint, storing),
        }
        runs: dict[str, list[dict[str, float]]] = {place: [] for place in places}
        for _ in range(rounds):
            for place, (inputs, address, process) in places.items():
                before = processor_seconds(process) if process else 0.0
                run = encode(inputs, address, options)
                run["server"] = processor_seconds(process) - before if process else 0.0
                runs[place].append(run)
        if options["datatrove"] and len(names) > 1:
            before = processor_seconds(storing)
            run = datatrove(endpoint, options, len(names))
            runs["moto, datatrove"] = [run | {"server": processor_seconds(storing) - before}]
    if len({run["tokens"] for found in runs.values() for run in found}) > 1:
        raise SystemExit("the tokens are not equally many")
    rows: list[dict[str, Any]] = []
    for place, found in runs.items():
        row: dict[str, Any] = {"place": place}
        row |= {key: statistics.median(run[key] for run in found) for key in found[0]}
        rows.append(row)
    for row in rows:
        row["speed"] = rows[0]["wall"] / row["wall"]
        if "cpu" in row:
            row["speed_elsewhere"] = rows[0]["cpu"] / row["cpu"]
    return rows


def main() -> None:
    """Measure, print a table, and save rows where that is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_data_argument(parser)
    parser.add_argument("--size", default="400MB", help="of the text, such as 400MB")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--datatrove", metavar="PYTHON", help="an interpreter with datatrove")
    parser.add_argument("--save", action="store_true", help="append rows to benchmarks/results")
    arguments = parser.parse_args()
    size = int(arguments.size[:-2]) * UNITS[arguments.size[-2:].upper()]
    data = find_data(arguments.data)
    import zstandard

    results = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        options = {
            "folder": temporary,
            "vocab_file": str(data.vocab_file),
            "merge_file": str(data.merge_file),
            "workers": arguments.workers,
            "datatrove": arguments.datatrove,
        }
        content = data.lines("english")
        with open(folder / "plain.jsonl", "wb") as file:
            file.writelines(repeated(content, size))
        for number in range(8):
            text = b"".join(repeated(content, size // 8))
            (folder / f"{number}.jsonl.zst").write_bytes(zstandard.compress(text))
        kinds = {"plain": ["plain.jsonl"], "zst": [f"{n}.jsonl.zst" for n in range(8)]}
        for kind, names in kinds.items():
            for row in measure(folder, names, options, arguments.rounds):
                results.append(
                    {"input": kind, "text_mb": size / 1e6, "workers": arguments.workers, **row}
                )
    columns = ("input", "place", "wall", "cpu", "server", "speed", "speed_elsewhere", "worker_mb")
    print_table(columns, [[row.get(column, "") for column in columns] for row in results])
    if arguments.save:
        print(append_rows("stores", results, versions("obstore", "moto")))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        main()

"""What all benchmarks share: corpora, the machine in words, the command line, rows, tables.

A row is one JSON object a line in ``benchmarks/results/NAME.jsonl``: what was measured, with the
date, the command, the machine and the versions, so that it can be compared and repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Row = dict[str, Any]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DEFAULT_DATA = ROOT.parent / "shared" / "data"
CORPORA = ("english", "code", "multi", "owt")
ZSTD_WINDOW = 1 << 27  # the corpora are stored with a long window
CONTENTS = (
    "english, code, multi and owt .jsonl.zst, expected.json, gpt2-vocab.json, gpt2-merges.txt and "
    "20B_tokenizer.json; for encode.py also cl100k_base, o200k_base and qwen.tiktoken with "
    "to_json.py that converts them, and deepseek-v3.json"
)


@dataclass(frozen=True)
class Data:
    """A folder of real corpora and tokenizers."""

    folder: Path

    @property
    def vocab_file(self) -> Path:
        """GPT-2's ``vocab.json``."""
        return self.find("gpt2-vocab.json")

    @property
    def merge_file(self) -> Path:
        """GPT-2's ``merges.txt``."""
        return self.find("gpt2-merges.txt")

    def corpus(self, name: str) -> Path:
        """The file of the corpus ``name``, zstd-compressed JSON lines; or such a file itself."""
        return self.find(f"{name}.jsonl.zst") if name in CORPORA else Path(name)

    def lines(self, name: str) -> bytes:
        """The JSON lines of a corpus, decompressed; the last one ends with a newline too."""
        import zstandard

        reader = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
        path = self.corpus(name)
        with open(path, "rb") as file, reader.stream_reader(file) as stream:
            content: bytes = stream.read() if path.suffix == ".zst" else file.read()
        return content if content.endswith(b"\n") else content + b"\n"

    def texts(self, name: str) -> list[str]:
        """The documents of a corpus."""
        return [json.loads(line)["text"] for line in self.lines(name).split(b"\n")[:-1]]

    def expected(self, name: str, tokenizer: str = "gpt2") -> dict[str, Any]:
        """Documents, tokens and sha256 of .bin and .idx that other programs wrote for a corpus."""
        answers: dict[str, Row] = json.loads(self.find("expected.json").read_text())
        return answers[f"{name}.{tokenizer}"]

    def find(self, name: str) -> Path:
        """A file of the folder or of its usual subfolders, or an error that names them."""
        for place in ("", "corpora", "tokenizers", "tokenizers/modern"):
            if (self.folder / place / name).is_file():
                return self.folder / place / name
        sys.exit(
            f"{self.folder}: no {name} there, nor in corpora/, tokenizers/, tokenizers/modern/"
        )


def parser(doc: str | None, *, data: bool = True, work: bool = True) -> argparse.ArgumentParser:
    """A command line with the options that benchmarks share."""
    command_line = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if data:
        command_line.add_argument(
            "--data",
            type=Path,
            default=DEFAULT_DATA,
            metavar="DIR",
            help=f"folder with {CONTENTS} (shared/data beside the repository)",
        )
    if work:
        command_line.add_argument("--work", type=Path, metavar="DIR", help="kept")
    command_line.add_argument("--no-save", action="store_true", help="append no rows to results")
    return command_line


def find_data(folder: Path) -> Data:
    """The data folder, or an error that says what to give."""
    if not folder.is_dir():
        sys.exit(f"{folder}: no such folder; give --data DIR with {CONTENTS}")
    return Data(folder)


@contextlib.contextmanager
def work_folder(kept: Path | None) -> Iterator[Path]:
    """The folder for inputs and outputs: ``kept``, or a temporary one."""
    folder = kept or Path(tempfile.mkdtemp(prefix="tokpack-benchmark-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder.resolve()
    finally:
        if kept is None:
            shutil.rmtree(folder)


def machine() -> dict[str, Any]:
    """What the numbers depend on, in words."""
    from tokpack import _core

    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "simd": _core.simd_levels()[-1],
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
    }


def versions(*packages: str) -> dict[str, str]:
    """Versions of installed packages, and the commit of this repository."""
    names = {"tokpack": _commit()}
    for package in ("numpy", *packages):
        try:
            names[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            names[package] = "not installed"
    return names


def command() -> str:
    """The command as it can be given again: absolute paths, which differ elsewhere, are cut."""
    words = [f".../{Path(word).name}" if word.startswith("/") else word for word in sys.argv[1:]]
    script = Path(sys.argv[0]).resolve()
    name = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script.name
    return shlex.join(["python", str(name), *words])


def append_rows(name: str, rows: Iterable[Mapping[str, Any]], packages: Mapping[str, str]) -> None:
    """Append rows to ``benchmarks/results/NAME.jsonl``, each with its circumstances."""
    circumstances = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": command(),
        "machine": machine(),
        "versions": dict(packages),
        "load": round(os.getloadavg()[0], 2),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.jsonl"
    with open(path, "a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({**row, **circumstances}) + "\n")
    print(f"rows appended to {path.relative_to(ROOT)}", file=sys.stderr)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def grouped(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by their values under ``names``, in the order of the first of each."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in names), []).append(row)
    return groups


def median(rows: Iterable[Row], name: str) -> Any:
    """The median of the numbers under ``name``; "-" where there are none."""
    values = [row[name] for row in rows if row.get(name) is not None]
    return statistics.median(values) if values else "-"


def ratio(above: Any, below: Any, digits: int = 1) -> str:
    """``above`` by ``below``, as in "2.3x"; "-" where one is missing."""
    return "-" if "-" in (above, below) else f"{above / below:.{digits}f}x"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a plain table: words to the left, numbers to the right, three figures."""
    text = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *text, strict=True)]
    numeric = [all(_is_number(row[i]) for row in text) for i in range(len(columns))]
    for row in (list(columns), *text):
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        print("  ".join(cells).rstrip())


def show(rows: Iterable[Row]) -> None:
    """Print all rows, a table for each kind of them."""
    hidden = {"benchmark", "gpu", "shares", "date", "command", "machine", "versions", "load"}
    for (kind,), same in grouped(rows, "benchmark").items():
        flat = [{**row, **row.get("shares", {})} for row in same]
        columns = [n for n in dict.fromkeys(n for row in flat for n in row) if n not in hidden]
        print(f"\n{kind}")
        print_table(columns, [[row.get(name, "-") for name in columns] for row in flat])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _is_number(cell: str) -> bool:
    return cell in ("", "-") or cell.strip("x%").replace(",", "").replace(".", "").isdigit()


def _cpu() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    from tokpack import __version__

    describe = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    return f"{__version__} ({commit})" if commit else __version__

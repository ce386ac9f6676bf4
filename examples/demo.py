"""The main job on text that every machine has: Python's own standard library.

Writes demo/modules.jsonl.zst and demo/docstrings.jsonl.zst (a document for each), trains a small
byte-level BPE on both, encodes them with the commands that a user would type, reads a dataset back,
and plans a blend of the two.
"""

from __future__ import annotations

import ast
import io
import json
import shlex
import shutil
import subprocess
import sys
import sysconfig
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import zstandard

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path("demo")
MODULES = FOLDER / "modules.jsonl.zst"
DOCSTRINGS = FOLDER / "docstrings.jsonl.zst"
TOKENIZER = FOLDER / "tokenizer.json"
SKIPPED = {"site-packages", "dist-packages", "__pycache__", "lib2to3", "idlelib"}
DOCSTRINGS_OF = 2_000_000  # bytes of source that are parsed: enough of them, in a second or two


def sources() -> Iterator[tuple[str, str]]:
    """Name and text of each module of the standard library that is UTF-8."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if not SKIPPED.intersection(name.parts):
            try:
                yield str(name), path.read_bytes().decode("utf-8")
            except (OSError, UnicodeDecodeError):
                continue  # a test file in some other encoding


def docstrings(source: str) -> Iterator[str]:
    """The docstrings of a module, of its classes and of its functions."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # a test file that is wrong on purpose
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text


def modules() -> Iterator[dict[str, str]]:
    """A document for each module."""
    return ({"text": source, "source": name} for name, source in sources())


def all_docstrings() -> Iterator[dict[str, str]]:
    """A document for each docstring of the first modules."""
    parsed = 0
    for name, source in sources():
        if parsed < DOCSTRINGS_OF and "test" not in Path(name).parts:
            parsed += len(source)
            yield from ({"text": text, "source": name} for text in docstrings(source))


def write_text(path: Path, documents: Iterator[dict[str, str]]) -> None:
    """Write documents as compressed JSON lines, the usual shape of a corpus."""
    count = size = 0
    compressor = zstandard.ZstdCompressor(level=3)
    with path.open("wb") as file, compressor.stream_writer(file) as stream:
        lines = io.TextIOWrapper(stream, encoding="utf-8", newline="\n")
        for document in documents:
            lines.write(json.dumps(document, ensure_ascii=False) + "\n")
            count += 1
            size += len(document["text"])
        lines.flush()
        lines.detach()
    print(f"wrote {path}: {count:,} documents, {size / 1e6:.1f} MB of Python's own text")


def run(*arguments: str) -> None:
    """Show a command as a user would type it, and run it."""
    print(f"$ {shlex.join(('tokpack', *arguments))}", flush=True)
    code = subprocess.run([sys.executable, "-m", "tokpack", *arguments], check=False).returncode
    if code:
        sys.exit(code)
    print(flush=True)


def show_document(prefix: Path) -> None:
    """Read a dataset back and show how it begins."""
    from tokpack import MMapIndexedDataset, load_tokenizer

    dataset = MMapIndexedDataset(str(prefix))
    tokens = dataset[0][:40]
    text = load_tokenizer(str(TOKENIZER)).decode(tokens)
    print(f"{prefix} holds {len(dataset):,} sequences; the first begins")
    print(f"  {' '.join(map(str, tokens))} ...")
    print("which is")
    print("".join(f"  | {line}\n" for line in text.splitlines()), flush=True)


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    write_text(MODULES, modules())
    write_text(DOCSTRINGS, all_docstrings())
    print()
    texts = str(MODULES), str(DOCSTRINGS)
    run("vocab", *texts, "-o", str(TOKENIZER), "--type", "bpe", "--size", "8192")
    prefixes = [FOLDER / Path(text).name.partition(".")[0] for text in texts]
    for text, prefix in zip(texts, prefixes, strict=True):
        run("encode", text, "-o", str(prefix), "--tokenizer", str(TOKENIZER))
    show_document(prefixes[0])
    blend = ["0.97", str(prefixes[0]), "0.03", str(prefixes[1])]
    run("blend", *blend, "--show", "1", "--max-tokens", "40", "-o", str(FOLDER / "blend.yaml"))
    print("Next, your own text:")
    print("  .venv/bin/tokpack encode my-texts/*.jsonl.zst --tokenizer demo/tokenizer.json")


if __name__ == "__main__":
    main()

"""From text to a model, using the source of Python's standard library as text.

Writes demo/modules.jsonl.zst and demo/docstrings.jsonl.zst, trains a small byte-level BPE on both,
encodes them, blends them, trains a small GPT on the blend and lets it complete a line of Python.
Each step is the command that a user would type.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
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
NAMES = ("modules", "docstrings")
TOKENIZER = FOLDER / "tokenizer.json"
BLEND = FOLDER / "blend.yaml"
RUN = FOLDER / "gpt"
# 0.7 million parameters, 512,000 tokens: a minute on an idle core, two on a busy one.
LENGTH = ("--seq-length", "128", "--samples", "4000", "--split", "95,5,0")
MODEL = """--num-layers 3 --hidden-size 128 --num-attention-heads 4 --position-embedding-type rope
    --micro-batch-size 8 --optimizer muon --lr 1e-2 --muon-extra-scale-factor 0.2
    --lr-decay-style cosine --adam-beta2 0.95 --log-interval 25 --eval-iters 8
    --exit-duration-in-mins 2"""
SKIPPED = {"site-packages", "dist-packages", "__pycache__", "lib2to3", "idlelib"}
DOCSTRINGS_OF = 2_000_000  # bytes of source to parse: enough docstrings in a second or two


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
        return  # a test file with deliberate syntax errors
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text


def documents() -> Iterator[tuple[str, dict[str, str]]]:
    """The documents, each with the name of its corpus."""
    parsed = 0
    for name, source in sources():
        yield "modules", {"text": source, "source": name}
        if parsed < DOCSTRINGS_OF and "test" not in Path(name).parts:
            parsed += len(source)
            for text in docstrings(source):
                yield "docstrings", {"text": text, "source": name}


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.jsonl.zst"


def write_text() -> None:
    """Write the documents as compressed JSON lines, the usual shape of a corpus."""
    counts, sizes = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0)
    with contextlib.ExitStack() as files:
        opened = {
            name: files.enter_context(zstandard.open(path_of(name), "wt", encoding="utf-8"))
            for name in NAMES
        }
        for name, document in documents():
            opened[name].write(json.dumps(document, ensure_ascii=False) + "\n")
            counts[name] += 1
            sizes[name] += len(document["text"])
    for name in NAMES:
        size = sizes[name] / 1e6
        print(f"wrote {path_of(name)}: {counts[name]:,} documents, {size:.1f} MB of text")
    print()


def run(*arguments: str) -> None:
    """Show a command as a user would type it, and run it."""
    print(f"$ {shlex.join(('tokpack', *arguments))}", flush=True)
    # So small a model gains little from more threads, and loses much on busy cores.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    command = [sys.executable, "-m", "tokpack", *arguments]
    code = subprocess.run(command, check=False, env=environment).returncode
    if code:
        sys.exit(code)
    print(flush=True)


def show_document() -> None:
    """Read a dataset back and show how it begins."""
    from tokpack import MMapIndexedDataset, load_tokenizer

    prefix = FOLDER / NAMES[0]
    dataset = MMapIndexedDataset(str(prefix))
    tokens = dataset[0][:40]
    text = load_tokenizer(str(TOKENIZER)).decode(tokens)
    print(f"{prefix} holds {len(dataset):,} sequences; the first one begins with the ids")
    print(f"  {' '.join(map(str, tokens))} ...")
    print("which decode to")
    print("".join(f"  | {line}\n" for line in text.splitlines()), flush=True)


def show_result() -> None:
    """The final loss, compared with that of token frequencies alone."""
    lines = [json.loads(line) for line in (RUN / "log.jsonl").read_text().splitlines()]
    entropy = next(line["unigram_entropy"] for line in lines if line["event"] == "begin")
    loss = next(line["loss"] for line in reversed(lines) if "loss" in line)
    print(f"A model that knows only token frequencies has a loss of {entropy:.2f} nats per token.")
    if loss < entropy:
        print(f"This model reached {loss:.2f}: see the curve in {RUN / 'loss.html'}.\n")
    else:
        print(f"This model reached only {loss:.2f}: the machine was too busy to train longer.\n")


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    write_text()
    paths = map(str, map(path_of, NAMES))
    run("tokenizer", "train", *paths, "-o", str(TOKENIZER), "--vocab-size", "1024")
    for name in NAMES:
        tokenizer = ("--tokenizer", str(TOKENIZER))
        run("encode", str(path_of(name)), "-o", str(FOLDER / name), *tokenizer)
    show_document()
    weighted = ("0.7", str(FOLDER / NAMES[0]), "0.3", str(FOLDER / NAMES[1]))
    run("blend", *weighted, *LENGTH, "--show", "1", "--max-tokens", "40", "-o", str(BLEND))
    run("train", str(BLEND), *MODEL.split(), "--save", str(RUN))
    show_result()
    run(
        "generate",
        str(RUN),
        "--prompt",
        "    def __init__(self",
        "--tokens",
        "80",
        "--temperature",
        "0.7",
    )
    print("Next, your own text:")
    print("  .venv/bin/tokpack encode my-texts/*.jsonl.zst --tokenizer gpt2")


if __name__ == "__main__":
    main()

"""Measure the structure of the code: how much there is, what rooms show, what a journey enters.

    python tools/house.py            print the figures
    python tools/house.py --write    keep them, in tests/house/budget.txt

The static figures are of the files below src:

- tokens: of Python, without imports, docstrings and comments; of tokpack, and of its trainer.
  keywords.pyi counts like a file that is written, though it is generated; the core's stub does not.
- doors: modules of a room that are imported from outside of it. A room is a folder with modules;
  one inside of another is a room of its own. The modules of src/tokpack itself are in no room.
- arrows: imports from file to file, anywhere in them but for type checkers, by names too
  (``import_module("tokpack...")``); inside of a room, and across.
- circles: files that import each other, in however many steps.

A journey is a command, or a batch of samples, in a process of its own, with tiny inputs: how many
functions of src it enters, in how many files. Processes that it starts are not counted.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import tokenize
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"
KEYWORDS = SRC / "tokpack" / "keywords.pyi"
BUDGET = ROOT / "tests" / "house" / "budget.txt"
PACKAGE = "tokpack"
TRAINER = "tokpack.trainer"  # which lies in src/trainer
NO_CODE = frozenset(
    (
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
        *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
    )
)
BY_NAME = ("import_module", "__import__")  # functions that import what a text names
ENCODE = ("encode", "--tokenizer", "tokenizer", "--workers", "1", "-q", "-o")
BATCH = "a batch"  # the journey that is no command
SEQ_LENGTH, BATCH_SIZE = 8, 2
TIMES = 2  # at most
COMMANDS = {
    "encode": (*ENCODE, "one", "one.jsonl"),
    "encode --chat": (*ENCODE, "chat", "chat.jsonl", "--chat"),
    "select --where": ("select", "many", "--where", "score > 0.5", "-o", "few"),
    "merge": ("merge", "many", "one", "-o", "both", "-q"),
}
SPECIAL = ("<|user|>", "<|assistant|>", "<|endoftext|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|endoftext|>' }}"
    "{% endfor %}"
)

Graph = dict[str, set[str]]


@dataclass(frozen=True)
class Module:
    """A file below src."""

    name: str  # dotted
    package: str  # dotted, of which a relative import speaks
    room: str  # the folder's path below src, "" for what is in no room
    text: str
    nodes: tuple[ast.AST, ...]  # of its syntax tree


@cache
def modules() -> dict[str, Module]:
    """All files below src, by their dotted names."""
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        whole = parts if parts[0] == PACKAGE else (PACKAGE, *parts)
        name, package = ".".join(whole).removesuffix(".__init__"), ".".join(whole[:-1])
        folder = "/".join(parts[:-1])
        room = "" if folder == PACKAGE else folder
        found[name] = _module(path, name, package, room)
    return found


def _module(path: Path, name: str, package: str, room: str) -> Module:
    text = path.read_text(encoding="utf-8")
    return Module(name, package, room, text, tuple(ast.walk(ast.parse(text))))


def is_of_trainer(name: str) -> bool:
    return f"{name}.".startswith(f"{TRAINER}.")


def tokens(module: Module) -> int:
    """Python tokens of a file, without imports, docstrings and comments."""
    left_out: set[int] = set()  # lines
    for node in module.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(_lines(node))
        elif _has_docstring(node):
            left_out.update(_lines(node.body[0]))
    found = tokenize.generate_tokens(io.StringIO(module.text).readline)
    return sum(one.type not in NO_CODE and one.start[0] not in left_out for one in found)


def _has_docstring(node: ast.AST) -> TypeGuard[ast.Module | ast.ClassDef | ast.FunctionDef]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    return isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def imports(module: Module, known: Collection[str]) -> set[str]:
    """The modules of ``known`` that a file imports when it runs, but for the package's face."""
    for_types = {
        id(inner)
        for node in module.nodes
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    nodes = (node for node in module.nodes if id(node) not in for_types)
    named = {name for node in nodes for name in _named(node, known, module.package)}
    return (named & set(known)) - {module.name, PACKAGE}


def _named(node: ast.AST, known: Collection[str], package: str) -> Iterator[str]:
    """Dotted names that a node of the syntax tree of a file in ``package`` imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: -(node.level - 1) or None] if node.level else []
        base = ".".join([*above, *filter(None, [node.module])])
        for alias in node.names:
            full = f"{base}.{alias.name}"
            yield full if full in known else base
    elif isinstance(node, ast.Call) and node.args:
        function, first = node.func, node.args[0]
        called = getattr(function, "attr", getattr(function, "id", ""))
        if called in BY_NAME and isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield first.value


def circles(graph: Graph) -> list[set[str]]:
    """The largest sets of files in which each leads to each other one."""
    reached = {name: _reached(graph, name) for name in graph}
    found: list[set[str]] = []
    for name in graph:
        if name in reached[name] and not any(name in circle for circle in found):
            found.append({other for other in reached[name] if name in reached[other]})
    return found


def _reached(graph: Graph, begin: str) -> set[str]:
    """What a file imports, in however many steps."""
    found: set[str] = set()
    waiting = set(graph[begin])
    while waiting:
        found |= waiting
        waiting = {target for name in waiting for target in graph[name]} - found
    return found


def static_figures() -> dict[str, int]:
    """What the files say, without running them."""
    known = modules()
    graph = {name: imports(module, known) for name, module in known.items()}
    sizes = {name: tokens(module) for name, module in known.items()}
    sizes["tokpack.keywords"] = tokens(_module(KEYWORDS, "tokpack.keywords", PACKAGE, ""))
    arrows = [(known[one], known[other]) for one, targets in graph.items() for other in targets]
    across = [(one, other) for one, other in arrows if one.room != other.room]
    doors = {other.name: other.room for _, other in across if other.room}
    of_trainer = sum(size for name, size in sizes.items() if is_of_trainer(name))
    loops = circles(graph)
    figures = {
        "tokens of tokpack": sum(sizes.values()) - of_trainer,
        "tokens of trainer": of_trainer,
        "files": len(known),
        "doors": len(doors),
        "arrows inside rooms": len(arrows) - len(across),
        "arrows across rooms": len(across),
        "circles": len(loops),
        "files in circles": sum(map(len, loops)),
    }
    rooms = list(doors.values())
    return figures | {f"doors of {room}": rooms.count(room) for room in sorted(set(rooms))}


def journeys(enough: Mapping[str, int]) -> dict[str, int]:
    """Functions and files of src that each journey enters: the fewest of some times.

    On a machine that is busy a run may be so slow that it shows now and then that it lives. So
    they are taken again while a figure is above what is ``enough``.
    """
    found = _journeys()
    for _ in range(TIMES - 1):
        if all(figure <= enough.get(name, 0) for name, figure in found.items()):
            break
        again = _journeys()
        found = {name: min(figure, again[name]) for name, figure in found.items()}
    return found


def _journeys() -> dict[str, int]:
    figures = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_inputs(folder)
        _write_tokenizer(folder / "tokenizer")
        _enter(folder, [*ENCODE, "many", "many.jsonl", "--keep", "score"])
        for journey, words in {**COMMANDS, BATCH: (BATCH, "many")}.items():
            functions, files = _enter(folder, list(words))
            figures[f"functions of {journey}"] = functions
            figures[f"files of {journey}"] = files
    return figures


def _enter(folder: Path, words: list[str]) -> list[int]:
    """Let another process take a journey; functions and files."""
    command = [sys.executable, "-P", __file__, "--enter", *words]
    environment = {**os.environ, "TOKPACK_TOKENIZER_CACHE": "0"}  # it would be another each time
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")
    counts: list[int] = json.loads(done.stdout.splitlines()[-1])
    return counts


def enter(words: list[str]) -> None:
    """Take a journey in this process, and print how many functions and files it has entered."""
    import tokpack

    if words[0] == BATCH:
        samples = tokpack.GPTDataset(words[1], SEQ_LENGTH)
        batches = iter(tokpack.SampleIterator(samples, BATCH_SIZE))
        next(batches)
        entered = _watched(lambda: next(batches))
    else:
        from tokpack.cli import main as run_command

        entered = _watched(lambda: run_command(words))
    print(json.dumps([len(entered), len({file for file, _ in entered})]))


def _watched(journey: Callable[[], Any]) -> set[tuple[str, str]]:
    """File and name of each function of ours that a call enters, in its threads too."""
    import tokpack

    places = (str(SRC), str(Path(tokpack.__file__).parent))
    entered: set[tuple[str, str]] = set()

    def watch(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        is_function = code.co_flags & 1 and not code.co_name.startswith("<")  # no body of a class
        if event == "call" and is_function and code.co_filename.startswith(places):
            entered.add((code.co_filename, code.co_qualname))

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        failed = journey()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if isinstance(failed, int) and failed:
        raise SystemExit(failed)
    return entered


def _write_inputs(folder: Path) -> None:
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    records: Mapping[str, list[dict[str, Any]]] = {
        "one": [{"text": "hello world", "score": 0.5}],
        "many": [{"text": f"number {n} of them", "score": n / 200} for n in range(200)],
        "chat": [{"messages": chat}],
    }
    for name, lines in records.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))


def _write_tokenizer(folder: Path) -> None:
    """A byte-level BPE without merges, with a template of conversations."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = range(256, 512 - len(printable))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    definition = {
        "version": "1.0",
        "added_tokens": [
            {"id": 256 + n, "content": word, "special": True, **dict.fromkeys(flags, False)}
            for n, word in enumerate(SPECIAL)
        ],
        "pre_tokenizer": {**byte_level, "trim_offsets": True},
        "decoder": {**byte_level, "trim_offsets": True},
        "model": {
            "type": "BPE",
            "vocab": {chr(c): n for n, c in enumerate(sorted({*printable, *others}))},
            "merges": [],
        },
    }
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    settings = {"eos_token": SPECIAL[-1], "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def read_budget() -> dict[str, int]:
    """The figures that are kept, by their names."""
    lines = BUDGET.read_text(encoding="utf-8").splitlines()
    pairs = (line.split(maxsplit=1) for line in lines)
    return {name: int(figure.replace(",", "")) for figure, name in pairs}


def lines_of(figures: Mapping[str, int]) -> str:
    return "".join(f"{figure:>9,}  {name}\n" for name, figure in figures.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="keep the figures")
    parser.add_argument("--enter", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.enter:
        enter(arguments.enter)
        return
    text = lines_of(static_figures() | journeys({}))
    print(text, end="")
    if arguments.write:
        BUDGET.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

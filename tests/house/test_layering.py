"""The house of docs/design.md, held against the code: imports point down only."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKAGE = ROOT / "src" / "tokpack"
TRAINER = ROOT / "src" / "trainer"

FLOORS = {
    "errors": 0,
    "_core": 0,
    "counts": 0,
    "display": 0,
    "input_formats": 0,
    "machine": 0,
    "option": 1,
    "progress": 1,
    "quantities": 0,
    "wall": 0,
    "face": 0,
    "apart": 1,
    "storage": 2,
    "sources": 3,
    "tokenizers": 3,
    "dataset": 4,
    "chat": 4,
    "encoding": 5,
    "formats": 5,
    "samples": 5,
    "documents": 6,
    "shards": 6,
    "look": 7,
    "cli": 9,
    "trainer": 10,
}
# The package's face may name every room below the top floor; nothing of it but its version may be
# imported from inside.
FACE = "tokpack"
VERSION = "tokpack.__version__"
# Options as keywords, generated, without a module: it names types of all rooms, and all may name it
# where only type checkers read.
KEYWORDS = "tokpack.keywords"
COMMANDS = "tokpack.cli.commands."
BY_NAME = ("import_module", "__import__")  # functions that import what a text names


def modules() -> dict[str, Path]:
    """Dotted name of every module of the package, and its file."""
    found = {}
    for root, name in ((PACKAGE, "tokpack"), (TRAINER, "tokpack.trainer")):
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join((name, *parts))] = path
    return found


@functools.cache
def parsed(path: Path) -> ast.Module:
    """A file's syntax tree, which several tests look at."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path, module: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything of tokpack that a file imports, anywhere in it."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = parsed(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            # `from tokpack import sources` names a room, `from tokpack.sources import read` too.
            names = [f"{base}.{a.name}" for a in node.names] if base == FACE else [base]
        elif isinstance(node, ast.Call):
            names = by_name(node)
        else:
            continue
        if room(module) != "trainer" and id(node) in of_types(tree):  # these may be spoken of
            names = [name for name in names if room(name) != "trainer" and name != KEYWORDS]
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == FACE)


@functools.cache
def of_types(tree: ast.Module) -> set[int]:
    """The nodes that stand below ``if TYPE_CHECKING``, which only type checkers read."""
    blocks = (node for node in tree.body if isinstance(node, ast.If))
    typing = (node for node in blocks if getattr(node.test, "id", "") == "TYPE_CHECKING")
    return {id(inner) for node in typing for inner in ast.walk(node)}


def by_name(call: ast.Call) -> list[str]:
    """What a call imports: ``import_module("tokpack.look")``, the name as it stands there."""
    called = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if called not in BY_NAME or not call.args or not isinstance(call.args[0], ast.Constant):
        return []
    return [str(call.args[0].value)]


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in FLOORS else FACE


def broken(module: str, imported: str) -> str | None:
    """Why ``module`` may not import ``imported``, or None."""
    source, target = room(module), room(imported)
    if module == "tokpack.__main__":
        return None if target == "cli" else "__main__ starts the command line and nothing else"
    if source == target or imported == VERSION:
        return "main loads commands by name" if imported.startswith(COMMANDS) else None
    if target == FACE:
        return "nothing imports the package's face"
    if source == FACE:
        return None if FLOORS[target] < FLOORS["cli"] else "the face shows no command, no trainer"
    if FLOORS[target] == FLOORS[source]:
        return "rooms on one floor do not import each other"
    return None if FLOORS[target] < FLOORS[source] else "imports point down only"


def test_every_module_has_a_room() -> None:
    outside = (FACE, "tokpack.api", "tokpack.__main__")
    lost = [m for m in modules() if room(m) == FACE and m not in outside]
    assert not lost, f"no floor is known for {lost}"


def test_imports_point_down() -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{line}: imports {imported}: {reason}"
        for module, path in modules().items()
        for line, imported in imports(path, module)
        if (reason := broken(module, imported))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("module", "code", "fault"),
    [
        ("tokpack.sources.parts", "def f():\n  from tokpack.encoding import x", True),
        ("tokpack.sources.parts", "from tokpack import tokenizers", True),
        ("tokpack.sources.parts", "from ..dataset import format", True),
        ("tokpack.sources.parts", "from .base import Source", False),
        ("tokpack.sources.parts", "import tokpack.errors", False),
        ("tokpack.sources.parts", "import tokpack", True),
        ("tokpack.sources.parts", "from tokpack import encode", True),
        ("tokpack.samples.gpt", "from tokpack.keywords import SampleOptions", True),
        ("tokpack.encoding.run", "from tokpack import __version__", False),
        ("tokpack.encoding.run", "from tokpack.sources import read", False),
        ("tokpack.cli.commands.encode", "import tokpack.trainer.train", True),
        ("tokpack.dataset.dataset", 'import_module("tokpack.look")', True),
        ("tokpack.dataset.dataset", 'importlib.import_module("tokpack.look.plots")', True),
        ("tokpack.dataset.dataset", '__import__("tokpack.look")', True),
        ("tokpack.look.plots", 'import_module("tokpack.dataset")', False),
        ("tokpack", "from tokpack.cli import main", True),
        ("tokpack", "from tokpack.encoding import encode", False),
    ],
)
def test_the_checker_sees(tmp_path: Path, module: str, code: str, fault: bool) -> None:
    path = tmp_path / ("__init__.py" if module == FACE else "module.py")
    path.write_text(code)
    found = [broken(module, name) for _, name in imports(path, module)]
    assert found
    assert any(found) == fault


def test_core_knows_no_python_files_or_threads() -> None:
    banned = re.compile(
        r"#include\s*[<\"](Python\.h|pybind11|[io]?fstream|iostream|filesystem|thread)"
    )
    files = sorted((ROOT / "csrc" / "core").rglob("*.[ch]pp"))
    assert files
    faults = [str(path) for path in files if banned.search(path.read_text(encoding="utf-8"))]
    assert not faults


def test_instruction_sets_have_files_of_their_own() -> None:
    """The rule of csrc/README.md; base/target_*.inc.hpp follow it as well."""
    uses = re.compile(r"[a-z]mmintrin\.h|\barm_\w+\.h|\b_mm\d*_|\btarget\(\"")
    names = re.compile(r"_(x86|sse2|avx2|avx512|neon|sve2?)(\.inc)?\.[ch]pp$")
    files = [path for path in (ROOT / "csrc").rglob("*.[ch]pp") if uses.search(path.read_text())]
    assert files
    assert not [str(path) for path in files if not names.search(path.name)]


def test_one_module_syncs_and_renames() -> None:
    """So that an error of a sync is treated by one rule (docs/design.md, "Write once")."""
    calls = re.compile(r"\bos\.(replace|rename|link|fsync|fdatasync)\(|\.rename\(")
    users = {name for name, path in modules().items() if calls.search(path.read_text("utf-8"))}
    assert users == {"tokpack.storage.disk.durable"}


def test_import_is_light() -> None:
    """Of a few modules only, none of them another package's: what it costs without a clock."""
    code = (
        "import sys; before = set(sys.modules); import tokpack;print(*(set(sys.modules) - before))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = run.stdout.split()
    packages = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert packages == {"tokpack"}
    assert len(loaded) < 100  # numpy alone would bring more


def test_help_is_light() -> None:
    """The page of no command loads another package, nor the core: what it costs without a clock."""
    code = (
        "import contextlib, io, sys; before = set(sys.modules);"
        "from tokpack.cli.main import COMMANDS, main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    codes = [main([*name.split(), '--help']) for name in COMMANDS] + [main(['--help'])]\n"
        "assert not any(codes), codes\n"
        "print(*(set(sys.modules) - before))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = run.stdout.split()
    packages = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert packages == {"tokpack"}
    assert "tokpack._core" not in loaded

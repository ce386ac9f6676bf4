"""What functions say of wrong requests, word for word: a file messages.txt beside a room's tests.

A section begins with a line ``# what it is about``, and runs in an empty folder of its own; lines
``> `` and ``. `` are Python and what goes on with it; those before all sections are for each. A
line behind them says what they raise, which leaves no file behind and changes none.
To add a case, write its Python; ``TOKPACK_WRITE_MESSAGES=1 make test ROOM=...`` writes what is said
of it, and ``git diff`` shows that.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
from typing import TYPE_CHECKING, Any

from support.places import GOLDEN
from tokpack.errors import TokpackError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pytest

_OTHERS = re.compile(
    r"(not JSON|not YAML|not a right [\w. ]+|unreadable \w+ file|not readable): .*"  # by a library
    r"|(?<=cut off after )\d+(?= decompressed bytes)",  # by how far it had read
    re.DOTALL,
)
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_NEEDS = re.compile(r"# .* \(needs ([\w, ]+)\)")


def replay(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the code of ``path`` below ``folder``; its messages must be those that the file has."""
    before = path.read_text(encoding="utf-8").splitlines()
    now = list(_replayed(before, folder, monkeypatch))
    if os.environ.get("TOKPACK_WRITE_MESSAGES"):
        path.write_text("\n".join([*now, ""]), encoding="utf-8")
    assert now == path.read_text(encoding="utf-8").splitlines()


def _replayed(lines: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    shared: dict[str, Any] = {}
    names, home, code, missing = shared, folder, "", False
    for number, line in enumerate([*lines, "#"]):
        if code and not line.startswith(". "):
            yield from _said(code, names, home)
            code = ""
        if line.startswith("# "):
            names, home = dict(shared), folder / str(number)
            home.mkdir()
            monkeypatch.chdir(home)
            needs = _NEEDS.fullmatch(line)
            missing = bool(needs) and not all(map(importlib.util.find_spec, needs[1].split(", ")))
        is_code = line.startswith(("> ", ". "))
        if number < len(lines) and (is_code or missing or line[:1] in ("", "#")):
            yield line
        if is_code and not missing:
            code += line[2:] + "\n"


def _said(code: str, names: dict[str, Any], home: Path) -> Iterator[str]:
    """What the last statement raises, on one line; it must leave the files as they are."""
    *first, last = ast.parse(code).body
    exec(compile(ast.Module(first, []), code, "exec"), names)
    before = _files(home)
    try:
        exec(compile(ast.Module([last], []), code, "exec"), names)
    except (TokpackError, ValueError, IndexError, TypeError) as error:
        message = str(error).replace(f"{home}/", "").replace(f"{GOLDEN}/", "golden/")
        message = _ADDRESS.sub("0x...", _OTHERS.sub(_hidden, message)).replace("\n", "\\n")
        assert _files(home) == before, code
        yield f"{type(error).__name__}: {message}"


def _hidden(match: re.Match[str]) -> str:
    return f"{match[1]}: ..." if match[1] else "..."


def _files(home: Path) -> dict[Path, tuple[int, int]]:
    """The files and how they were last written, but for the work of a run that can go on, and for
    what Python compiles.
    """
    paths = (path for path in home.rglob("*") if path.suffix != ".pyc" and path.is_file())
    found = ((path, path.stat()) for path in paths)
    return {
        path: (status.st_size, status.st_mtime_ns)
        for path, status in found
        if not path.parent.name.endswith(".unfinished")
    }

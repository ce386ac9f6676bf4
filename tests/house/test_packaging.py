"""What an installation holds: one version, the command, the extras, a stub that is true."""

from __future__ import annotations

import ast
import inspect
from importlib import metadata
from pathlib import Path

import tokpack
from tokpack import _core

PACKAGE = Path(tokpack.__file__).parent


def test_one_version() -> None:
    assert metadata.version("tokpack") == tokpack.__version__ == _core.__version__


def test_the_command() -> None:
    scripts = metadata.entry_points(group="console_scripts", name="tokpack")
    (script,) = scripts
    assert script.value == "tokpack.cli:main"
    assert callable(script.load())


def test_extras() -> None:
    extras = set(metadata.metadata("tokpack").get_all("Provides-Extra") or ())
    assert extras >= {"hf", "ftfy", "parquet", "train", "dev", "all"}


def test_typed_and_the_trainer_has_its_place() -> None:
    assert (PACKAGE / "py.typed").is_file()
    assert (PACKAGE / "_core.pyi").is_file()
    from tokpack import trainer

    assert trainer.__name__ == "tokpack.trainer"


def test_the_stub_names_what_the_native_module_has() -> None:
    tree = ast.parse((PACKAGE / "_core.pyi").read_text(encoding="utf-8"))
    stub: dict[str, set[str] | None] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            stub[node.name] = None
        elif isinstance(node, ast.ClassDef):
            members = (getattr(n, "name", None) or n.target.id for n in node.body
                       if isinstance(n, ast.FunctionDef | ast.AnnAssign))  # fmt: skip
            stub[node.name] = {name for name in members if not name.startswith("_")}
    native = {
        name: None
        if not inspect.isclass(value)
        else {member for member in vars(value) if not member.startswith("_")}
        for name, value in vars(_core).items()
        if not name.startswith("_")
    }
    assert native == stub

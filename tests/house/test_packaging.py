"""What an installation holds: one version, the command, the extras, a stub that is true."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tarfile
import tomllib
from importlib import metadata
from pathlib import Path

import yaml
from support.places import ROOT

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
    assert (PACKAGE / "keywords.pyi").is_file()
    from tokpack import trainer

    assert trainer.__name__ == "tokpack.trainer"


def test_the_stub_names_what_the_native_module_has() -> None:
    tree = ast.parse((PACKAGE / "_core.pyi").read_text(encoding="utf-8"))
    stub: dict[str, set[str] | None] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            stub[node.name] = None
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
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


def test_the_sdist_holds_what_a_wheel_is_built_from(tmp_path: Path) -> None:
    """Built as pip builds it, without a network: all of src and csrc, and nothing of the rest."""
    code = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    build = [sys.executable, "-c", code, tmp_path]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (sdist,) = tmp_path.iterdir()
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    listed = ["git", "ls-files", "src", "csrc", "tools/smoke.py"]
    tracked = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
    assert not set(tracked.stdout.split()) - held
    files = {"CHANGELOG.md", "CMakeLists.txt", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    assert {name for name in held if not name.startswith(("src/", "csrc/"))} == {
        *files,
        "tools/smoke.py",
    }


def test_the_smoke_test_of_wheels_runs() -> None:
    script = [sys.executable, ROOT / "tools" / "smoke.py"]
    run = subprocess.run(script, check=False, capture_output=True)
    assert run.returncode == 0, run.stderr.decode()


def test_a_release_has_wheels_for_every_system(tmp_path: Path) -> None:
    """The step that looks for them, with files of their names: then nobody needs a compiler."""
    builds = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]["build"]
    pythons = [build.removesuffix("-*") for build in builds.split()]
    workflows = [ROOT / ".github" / "workflows" / f"{name}.yml" for name in ("ci", "release")]
    ci, release = (yaml.safe_load(path.read_text())["jobs"] for path in workflows)
    systems = {
        "ubuntu-24.04": ("manylinux_2_28_x86_64", "musllinux_1_2_x86_64"),
        "ubuntu-24.04-arm": ("manylinux_2_28_aarch64", "musllinux_1_2_aarch64"),
        "macos-15-intel": ("macosx_11_0_x86_64",),
        "macos-15": ("macosx_11_0_arm64",),
    }
    assert set(ci["wheels"]["strategy"]["matrix"]["system"]) == set(systems)
    tags = [f"{p}-{p}-{one}" for p in pythons for ones in systems.values() for one in ones]
    steps = {step.get("name"): step for step in release["publish"]["steps"]}
    script = steps["every Python has a wheel for every system"]["run"]
    (tmp_path / "dist").mkdir()
    wheels = [tmp_path / "dist" / f"tokpack-1.2.3-{tag}.whl" for tag in tags]
    for wheel in wheels:
        wheel.touch()

    def look() -> int:
        run = subprocess.run(["bash", "-e"], cwd=tmp_path, input=script.encode(), check=False)
        return run.returncode

    assert look() == 0
    for wheel in wheels[:: len(systems)]:
        wheel.unlink()
        assert look() != 0
        wheel.touch()


def test_the_recipe_asks_for_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "recipe" / "recipe.yaml").read_text()
    recipe = yaml.safe_load(text)
    asked = {re.sub("^(xxhash|isal)", r"python-\1", need) for need in project["dependencies"]}
    assert {need.replace(" ", "") for need in recipe["requirements"]["run"]} == {
        *asked,
        f"python{project['requires-python']}",
    }
    assert recipe["context"]["version"] == tokpack.__version__
    assert recipe["about"]["summary"] == project["description"]

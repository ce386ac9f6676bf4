"""Mutation score of files: changes one place of the code at a time, and counts what tests notice.

    python -P tools/mutations.py FILES... --tests TESTS... [--number 40] [--seed 1]

The tests run first as they are, to learn which of them reach which line, and how long each takes.
Then each mutant is tried with the tests that reach its line, the shortest first, for about SECONDS
of processor time. A mutant that no test notices is shown with its line: it is equivalent, or a test
is missing. Only copies of the files are changed. What is reached in other processes alone counts as
reached by no test, and is tried with the shortest tests.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np  # noqa: F401 - each test run is a fork, which need not load these again
import pytest
from hypothesis import Phase, settings

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from types import FrameType

# A python that starts in the copy must not find the installed package first.
OWN_SOURCES = """
import sys
sys.meta_path[:] = [x for x in sys.meta_path if "Redirecting" not in type(x).__name__]
"""
# What this process has loaded pytest cannot rewrite; it need not.
WARNED = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]


class Mutant(NamedTuple):
    """A changed file, and where and how it differs."""

    path: str
    line: int
    change: str
    text: str


COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift,
}  # fmt: skip


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that may stand in place of one."""
    match node:
        case ast.Compare():
            for n, operator in enumerate(node.ops):
                new = copy.deepcopy(node)
                new.ops[n] = COMPARED[type(operator)]()
                yield new
        case ast.BinOp() if type(node.op) in COMPUTED:
            yield ast.BinOp(node.left, COMPUTED[type(node.op)](), node.right)
        case ast.BoolOp():
            yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int()):
            yield ast.Constant(node.value + 1)
            yield ast.Constant(node.value - 1)
        case ast.If(test=ast.Name() | ast.Call() | ast.Attribute() | ast.NamedExpr()):
            yield ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Constant()):
            pass  # a docstring
        case (
            ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Delete() | ast.Continue() | ast.Break()
        ):
            yield ast.Pass()


def places(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """The places of code below a node: its parent, the field, and where in a list of nodes."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "type_comment"):
            continue
        for n, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Assert):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            yield node, field, n
            yield from places(child)


def mutants(path: str, text: str, names: set[str]) -> Iterator[Mutant]:
    """All mutants of a file, or of the named functions and classes at its top."""
    tree = ast.parse(text)
    tops = [x for x in tree.body if not names or getattr(x, "name", None) in names]
    for parent, field, n in [place for top in tops for place in places(top)]:
        whole = getattr(parent, field)
        node = whole if n is None else whole[n]
        for new in variants(node):
            before = ast.unparse(node).splitlines()[0]
            put(parent, field, n, ast.copy_location(new, node))
            try:
                changed = ast.unparse(ast.fix_missing_locations(tree))
            finally:
                put(parent, field, n, node)
            after = ast.unparse(new).splitlines()[0]
            yield Mutant(path, node.lineno, f"{before}  ->  {after}", changed)


def put(parent: ast.AST, field: str, n: int | None, node: ast.AST) -> None:
    if n is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[n] = node


class Reached:
    """A plugin of pytest: which lines of some files each test reaches, and its processor time."""

    def __init__(self, files: set[str], out: Path) -> None:
        self.files, self.out = files, out
        self.lines: set[tuple[str, int]] = set()
        self.tests: dict[str, Any] = {}

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        return self.line if frame.f_code.co_filename in self.files else None

    def line(self, frame: FrameType, event: str, argument: object) -> Any:
        self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self.line

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.lines.clear()
        begin = sum(os.times()[:4])
        threading.settrace(self.trace)
        sys.settrace(self.trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            self.tests[item.nodeid] = (sum(os.times()[:4]) - begin, sorted(self.lines), True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.tests[report.nodeid + " not"] = None

    def pytest_sessionfinish(self) -> None:
        self.out.write_text(json.dumps(self.tests))


class Unshrunk:
    """A plugin of pytest: a failing example is not made smaller, which would take long."""

    def pytest_configure(self) -> None:
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", settings.get_profile("ci"), phases=phases)
        settings.load_profile("mutants")


class Copy:
    """A copy of the repository, where forks of this process run tests."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.folder = folder
        names = subprocess.check_output(["git", "ls-files", "-z"], cwd=source).split(b"\0")
        for name in map(os.fsdecode, filter(None, names)):
            if (source / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source / name, folder / name)
        package = folder / "src" / "tokpack"
        shutil.copy(core(source), package)
        if not (package / "trainer").exists():
            (package / "trainer").symlink_to(folder / "src" / "trainer")
        (folder / "own").mkdir()
        (folder / "own" / "sitecustomize.py").write_text(OWN_SOURCES)
        self.paths = [str(folder / x) for x in ("own", "src")]

    def run(self, tests: list[str], seconds: float, plugins: list[object]) -> int | None:
        """The exit code of pytest in a fork, or None if it crashed or took too long."""
        pid = os.fork()
        if not pid:
            self._pytest(tests, seconds, plugins)
        end = time.monotonic() + 20 * seconds
        status = None
        while status is None and time.monotonic() < end:
            done, code = os.waitpid(pid, os.WNOHANG)
            if done:
                status = code
            else:
                time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        if status is None:
            os.waitpid(pid, 0)
            return None
        return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else None

    def _pytest(self, tests: list[str], seconds: float, plugins: list[object]) -> NoReturn:
        try:
            code = self._begin(tests, seconds, plugins)
        except BaseException:
            traceback.print_exc()
            code = 99
        sys.stdout.flush()
        os._exit(code)

    def _begin(self, tests: list[str], seconds: float, plugins: list[object]) -> int:
        os.setsid()
        limit = int(seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        out = os.open(self.folder / "out.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(self.folder)
        exec(OWN_SOURCES)
        sys.path[:0] = self.paths
        os.environ |= {
            "PYTHONPATH": os.pathsep.join(self.paths),
            "CI": "1",
        }  # examples that never change
        if not plugins:  # of a mutant: only what the first run has compiled stays
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        options = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "-m",
            "not slow",
            *WARNED,
        ]
        return int(pytest.main([*options, *tests], plugins=[*plugins, Unshrunk()]))


def core(source: Path) -> Path:
    """The compiled core that belongs to a checkout: the newest below its build folder."""
    found = [*source.glob("build/*/_core*.so")]
    return max(found, key=lambda path: path.stat().st_mtime)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "files", nargs="+", help="below src; FILE:NAME,NAME for some of its classes and functions"
    )
    parser.add_argument("--tests", nargs="+", required=True)
    parser.add_argument("--source", type=Path, default=Path.cwd(), help="another checkout")
    parser.add_argument("--number", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0, help="of these, what was tried before")
    parser.add_argument(
        "--like", default="", help="only those in whose line this expression is found"
    )
    parser.add_argument("--seconds", type=float, default=12)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Copy(args.source, Path(name))
        tried = []
        for file in args.files:
            path, _, names = file.partition(":")
            text = (work.folder / path).read_text()
            tried += mutants(path, text, set(filter(None, names.split(","))))
        paths = {x.path for x in tried}
        out = work.folder / "reached.json"
        code = work.run(args.tests, 3000, [Reached({str(work.folder / x) for x in paths}, out)])
        if not out.exists() or code not in (0, 1):
            print((work.folder / "out.txt").read_text()[-3000:])
        known = json.loads(out.read_text()) if out.exists() else {}
        if not known:
            raise SystemExit(1)
        failed = {x.removesuffix(" not") for x in known if x.endswith(" not")}
        known = {x: known[x] for x in known if not x.endswith(" not") and x not in failed}
        seconds = sum(x[0] for x in known.values())
        print(f"{len(tried)} mutants; {len(known)} tests take {seconds:.0f} s", flush=True)
        tried = [x for x in tried if re.search(args.like, f"{x.path}:{x.line}: {x.change}")]
        chosen = random.Random(args.seed).sample(tried, min(args.number, len(tried)))
        killed = 0
        for mutant in chosen[args.skip :]:
            at = [str(work.folder / mutant.path), mutant.line]
            reach = sorted(
                (seconds, test) for test, (seconds, lines, _) in known.items() if at in lines
            )
            unreached = "" if reach else " (reached by no test)"
            tests, total = [], 0.0
            for seconds, test in reach or sorted((x[0], test) for test, x in known.items()):
                if total > args.seconds and tests:
                    break
                tests.append(test)
                total += seconds
            place = work.folder / mutant.path
            text = place.read_bytes()
            for old in place.parent.glob(f"__pycache__/{place.stem}.*"):
                old.unlink()
            place.write_text(mutant.text)
            begin = time.monotonic()
            code = work.run(tests, 3 * total + 30, [])
            place.write_bytes(text)
            killed += code != 0
            what = "killed  " if code else "SURVIVED" if code == 0 else "crashed "
            print(
                f"{what} {mutant.path}:{mutant.line}: {mutant.change}{unreached}"
                f"  [{len(tests)}/{len(reach)} tests, {time.monotonic() - begin:.0f} s]",
                flush=True,
            )
        print(f"killed {killed} of {len(chosen) - args.skip}")


if __name__ == "__main__":
    main()

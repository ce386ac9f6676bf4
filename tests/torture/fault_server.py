"""A process that runs commands in forks of itself, with one system call going wrong in each.

Started by ``faults.Server`` with the library of faults.c loaded before all others. A request and an
answer are a line of JSON each.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import pkgutil
import signal
import sys
import traceback
from typing import Any

import pytest

import tokpack

HEAVY = ("tokpack.trainer.checkpoints", "tokpack.trainer", "tokpack.__main__")  # with torch
CODE = 99  # of a fork that could not report
SECONDS = 120  # after which a fork is ended: it waits for something


def command(argv: list[str]) -> int:
    """Run ``tokpack ARGV``, the trainer in this very process; after "python" comes code instead."""
    if argv[0] == "python":
        try:
            exec(argv[1], {})
        except tokpack.TokpackError as error:
            print(f"tokpack: error: {error}", file=sys.stderr)
            return 1
        except Exception:
            traceback.print_exc()
            return CODE
        return 0
    if argv[0] != "train":
        from tokpack.cli.main import main

        return main(argv)
    from tokpack.trainer import __main__ as trainer

    sys.argv = ["tokpack train", *argv[1:]]
    return trainer.main()


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Fork, run one command with its fault, and say what came of it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        in_child(request, write)
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    answer = json.loads(said) if said else {"calls": 0, "met": "", "errors": ""}
    return {**answer, "code": os.waitstatus_to_exitcode(status)}


def in_child(request: dict[str, Any], report: int) -> None:
    """Never returns."""
    signal.alarm(SECONDS)
    code = CODE
    shim = ctypes.CDLL(None)
    shim.fault_met.restype = ctypes.c_char_p
    try:
        for name, value in request["sizes"].items():
            pytest.MonkeyPatch().setattr(name, value)
        errors = os.memfd_create("errors")
        os.dup2(errors, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        shim.fault_arm(os.fsencode(request["folder"]), request["at"], request["kind"])
        code = command(request["argv"])
        sys.stdout.flush()
        sys.stderr.flush()
        calls, met = shim.fault_count(), shim.fault_met().decode()
        shim.fault_arm(b"", 0, 0)
        text = os.pread(errors, 1 << 20, 0).decode()
        os.write(report, json.dumps({"calls": calls, "met": met, "errors": text}).encode())
    finally:
        os._exit(code)


def main() -> None:
    """Load what commands need, once, and serve until the input ends."""
    # An editable install has the folder above on its path, too.
    paths = [path for path in tokpack.__path__ if os.path.basename(path) == "tokpack"]
    rooms = (module.name for module in pkgutil.walk_packages(paths, "tokpack."))
    light = [name for name in rooms if not name.startswith(HEAVY)]
    for name in [*light, *json.loads(sys.argv[1])]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

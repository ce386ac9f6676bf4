"""One Python target under atheris: ``python harness.py TARGET [libFuzzer's options] CORPUS...``."""

from __future__ import annotations

import gc
import sys
import tarfile  # noqa: F401
import zipfile  # noqa: F401
from pathlib import Path
from types import FunctionType

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tokpack.tokenizers.load  # noqa: F401  it is imported late otherwise
from fuzz import targets

_WATCHED = ("tokpack", "tarfile", "zipfile")


def watch() -> None:
    """Count coverage of what is imported by now.

    atheris's import hook does it for none of the modules of an editable installation.
    """
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and str(thing.__module__).split(".")[0] in _WATCHED:
            atheris.instrument_func(thing)


def main() -> None:
    """Fuzz until libFuzzer has enough."""
    target = targets.TARGETS[sys.argv.pop(1)]
    watch()
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

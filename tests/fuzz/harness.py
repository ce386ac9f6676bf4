"""One Python target under atheris: ``python harness.py TARGET [libFuzzer's options] CORPUS...``."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

with atheris.instrument_imports(include=["tokpack", "tarfile", "zipfile"]):
    from fuzz import targets


def main() -> None:
    """Fuzz until libFuzzer has enough."""
    target = targets.TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

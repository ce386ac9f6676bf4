"""The command line as its users meet it: real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from support import forked

if TYPE_CHECKING:
    from pathlib import Path

TOKPACK = [sys.executable, "-m", "tokpack"]
TEXTS = ["The first document.", "Le deuxième, où ça va?", "third\nof\tthem " * 20]


def tokpack(
    *arguments: object, cwd: Path | None = None, fresh: bool = False, **settings: Any
) -> subprocess.CompletedProcess[str]:
    """Run the command and wait for it; with ``fresh`` in a python that has nothing loaded."""
    environment = {**os.environ, "TERM": "dumb", **settings.pop("env", {})}
    words = ("-m", "tokpack", *map(str, arguments))
    settings |= {
        "env": environment,
        "cwd": cwd,
        "timeout": 60,
        "capture_output": True,
        "text": True,
    }
    if fresh:
        return subprocess.run([sys.executable, *words], check=False, **settings)
    return forked.run(words, **settings)


def ids(prefix: Path | str) -> list[int]:
    """The tokens of a dataset."""
    return np.fromfile(f"{prefix}.bin", dtype=np.uint16).tolist()

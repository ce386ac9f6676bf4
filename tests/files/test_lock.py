"""A lock file: one process at a time, also where another one is forked meanwhile."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from tokpack.files.lock import turn

if TYPE_CHECKING:
    from pathlib import Path


def test_a_fork_keeps_no_turn(tmp_path: Path) -> None:
    """It has the file open too, and lives longer."""
    path = f"{tmp_path}/lock"
    reading, writing = os.pipe()
    with turn(path):
        child = os.fork()
        if not child:
            os.close(writing)
            os.read(reading, 1)  # until the test ends
            os._exit(0)
    begun = time.monotonic()
    with turn(path, seconds=20) as waited:
        assert not waited
    assert time.monotonic() - begun < 20
    os.close(writing)
    os.waitpid(child, 0)
    os.close(reading)

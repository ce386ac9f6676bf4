"""An index of very many sequences: looked at in memory that does not grow with it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SEQUENCES = 1 << 25  # an index of 0.7 GB
# ru_maxrss counts the pages of a map that are there at the same time.
SCRIPT = """
import resource, sys
from tokpack.cli.main import main
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
code = main(sys.argv[1:])
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(code, (after - before) // 1024, file=sys.stderr)
"""


def write_empty_sequences(prefix: Path, sequences: int) -> None:
    """A dataset of so many sequences and documents without a token; its files are nearly holes."""
    import numpy as np

    entries = sequences + 1
    head = b"MMIDIDX\0\0" + np.array([1], "<u8").tobytes() + bytes([8])
    with open(f"{prefix}.idx", "wb") as file:
        file.write(head + np.array([sequences, entries], "<u8").tobytes())
        file.seek(12 * sequences, os.SEEK_CUR)
        for begin in range(0, entries, 1 << 20):
            np.arange(begin, min(begin + (1 << 20), entries), dtype="<i8").tofile(file)
    open(f"{prefix}.bin", "wb").close()


def output_and_memory(command: list[str]) -> tuple[str, int]:
    """What a command prints, and the MB of memory that it took."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *command], capture_output=True, text=True, check=True
    )
    code, megabytes = done.stderr.split()[-2:]
    assert code == "0", done.stderr
    return done.stdout, int(megabytes)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("huge") / "many"
    write_empty_sequences(prefix, SEQUENCES)
    return prefix


@pytest.mark.parametrize("command", [["inspect"], ["inspect", "--json"], ["verify"]])
def test_memory_is_bounded(command: list[str], many: Path) -> None:
    out, megabytes = output_and_memory([*command, str(many)])
    assert f"{SEQUENCES:,}" in out or str(SEQUENCES) in out
    assert megabytes < 125  # the documents' lengths alone would be 250

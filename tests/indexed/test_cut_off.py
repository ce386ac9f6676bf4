"""A dataset that is cut off in its place under those who read it: each says which file that was."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support.samples_twin import write_dataset

if TYPE_CHECKING:
    from pathlib import Path

BEGIN = """
import os, sys
import tokpack

dataset = tokpack.MMapIndexedDataset("d")
samples = tokpack.GPTDataset("d", 128)
iterator = tokpack.SampleIterator(samples, 4)
next(iterator)
"""
CUT = 'os.truncate("d.bin", 5000)\n'
LOADER = """
from torch.utils.data import DataLoader
for _ in DataLoader({what}, batch_size={size}, num_workers=1):
    pass
"""
READERS = {
    "sequences": "for sequence in dataset: sequence.sum()",
    "samples": "for batch in iterator: pass",
    "a fork": """
if os.fork() == 0:
    for batch in iterator: pass
sys.exit(os.WTERMSIG(os.wait()[1]))""",
    "threads": """
from concurrent.futures import ThreadPoolExecutor
list(ThreadPoolExecutor(8).map(samples.__getitem__, range(len(samples))))""",
    "workers": LOADER.format(what="iterator", size=None),
    "workers of a dataset": LOADER.format(what="samples", size=4),
}
CODES = {"a fork": signal.SIGBUS, "workers": 1, "workers of a dataset": 1}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which file an address is of")
def test_a_reader_names_the_file_that_was_cut_off(reader: str, tmp_path: Path) -> None:
    if "workers" in reader:
        pytest.importorskip("torch", reason="torch is not installed: no DataLoader to test")
    write_dataset(tmp_path / "d", [600] * 400, 0)
    script = tmp_path / "read.py"
    body = BEGIN + CUT + READERS[reader]
    script.write_text(f"def main():\n    {body.replace(chr(10), chr(10) + '    ')}\n\n\n"
                      'if __name__ == "__main__":\n    main()\n')  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    said = [line for line in done.stderr.splitlines() if "tokpack: " in line]
    assert f"{tmp_path}/d.bin was cut off while it was mapped: it has 5,000 bytes" in said[0]
    assert done.returncode == CODES.get(reader, -signal.SIGBUS)


FAULTS = """
import faulthandler, os, signal, sys
import tokpack

faulthandler.enable()
dataset = tokpack.MMapIndexedDataset("d")
if sys.argv[1] == "cut":
    os.truncate("d.bin", 5000)
    for sequence in dataset: sequence.sum()
os.kill(os.getpid(), signal.SIGBUS)
"""


@pytest.mark.parametrize("what", ["cut", "sent"])
def test_handlers_of_before_come_behind(what: str, tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", [600] * 400, 0)
    command = [sys.executable, "-c", FAULTS, what]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGBUS
    assert ("d.bin was cut off" in done.stderr) == (what == "cut")
    assert "Fatal Python error: Bus error" in done.stderr

"""The example scripts as people run them, at toy size: real launchers, real processes, on gloo.

Each runs for a few steps, at a port of its own, and is ended with all its processes if it hangs.
"""

from __future__ import annotations

import os
import select
import subprocess
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from support.deepspeed_tools import needs_deepspeed
from support.script_tools import (
    Place,
    bigscience,
    libai,
    megatron_1_1_5,
    megatron_gpt,
    microsoft_gpt3,
    neox_20b,
    run_limited,
)

if TYPE_CHECKING:
    from pathlib import Path


@needs_deepspeed
def test_bigscience(tmp_path: Path, place: Place) -> None:
    """Tensor 2, ZeRO 1, fp16, a growing batch, activations in parts: all that the script asks."""
    rows = bigscience(tmp_path, place, "1")
    assert {row["loss_scale"] for row in rows} == {4096.0}


def test_bigscience_without_deepspeed(tmp_path: Path, place: Place) -> None:
    rows = bigscience(tmp_path, place, "0", "--engine", "torch")
    assert {row["loss_scale"] for row in rows} == {4096.0}


@needs_deepspeed
def test_megatron_1_1_5(tmp_path: Path, place: Place) -> None:
    """ZeRO 2 of its JSON; flags that say another stage and other buckets have no effect there."""
    rows = megatron_1_1_5(tmp_path, place, "2")
    assert {row["loss_scale"] for row in rows} == {65536.0}


@needs_deepspeed
def test_microsoft_gpt3(tmp_path: Path, place: Place) -> None:
    microsoft_gpt3(tmp_path, place, "true")


def test_megatron_gpt(tmp_path: Path, place: Place) -> None:
    megatron_gpt(tmp_path, place)


def test_libai_comparison(tmp_path: Path, place: Place) -> None:
    libai(tmp_path, place, "")


def test_neox_20b(tmp_path: Path, place: Place) -> None:
    neox_20b(tmp_path, place)


def test_a_script_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """Also what ignores the first signal: nobody holds its output open any more."""
    (tmp_path / "hang.sh").write_text("trap '' TERM\necho hangs >&9\nsleep 1000\n")
    os.mkfifo(tmp_path / "held")
    held = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(subprocess.TimeoutExpired):
        run_limited(["bash", "-c", "exec 9> held; bash hang.sh & bash hang.sh"], tmp_path, 1, 1)
    while select.select([held], [], [], 100)[0] == [held] and os.read(held, 64):
        pass
    assert select.select([held], [], [], 0)[0], "somebody lives who may write"
    os.close(held)

"""The example scripts as people run them, at toy size: real launchers, real processes, on gloo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from support.deepspeed_tools import needs_deepspeed
from support.script_tools import (
    Place,
    bigscience,
    libai,
    megatron_1_1_5,
    microsoft_gpt3,
    neox_20b,
)

if TYPE_CHECKING:
    from pathlib import Path

TORCH = ("--engine", "torch")


def test_bigscience(tmp_path: Path, place: Place) -> None:
    rows = bigscience(tmp_path, place, "0", *TORCH)
    assert {row["loss_scale"] for row in rows} == {4096.0}


@needs_deepspeed  # its launcher
def test_megatron_1_1_5(tmp_path: Path, place: Place) -> None:
    megatron_1_1_5(tmp_path, place, "0", *TORCH)


def test_microsoft_gpt3(tmp_path: Path, place: Place) -> None:
    microsoft_gpt3(tmp_path, place, "false")


def test_libai_comparison(tmp_path: Path, place: Place) -> None:
    libai(tmp_path, place, "")


def test_neox_20b(tmp_path: Path, place: Place) -> None:
    neox_20b(tmp_path, place, *TORCH, "--zero-stage", "0")

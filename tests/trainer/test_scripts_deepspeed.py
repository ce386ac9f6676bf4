"""The example scripts with DeepSpeed, as they are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from support.deepspeed_tools import needs_deepspeed
from support.script_tools import Place, bigscience, libai, megatron_1_1_5, microsoft_gpt3, neox_20b

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs_deepspeed


def test_bigscience(tmp_path: Path, place: Place) -> None:
    """Tensor 2, ZeRO 1, fp16, a growing batch, activations in parts: all that the script asks."""
    rows = bigscience(tmp_path, place, "1")
    assert {row["loss_scale"] for row in rows} == {4096.0}


def test_megatron_1_1_5(tmp_path: Path, place: Place) -> None:
    """ZeRO 2 of its JSON; flags that say another stage and other buckets have no effect there."""
    rows = megatron_1_1_5(tmp_path, place, "2")
    assert {row["loss_scale"] for row in rows} == {65536.0}


def test_microsoft_gpt3(tmp_path: Path, place: Place) -> None:
    microsoft_gpt3(tmp_path, place, "true")


def test_libai_comparison(tmp_path: Path, place: Place) -> None:
    libai(tmp_path, place, "1")


def test_neox_20b(tmp_path: Path, place: Place) -> None:
    neox_20b(tmp_path, place)

"""The state of an engine goes to any other, whatever their layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

from support.deepspeed_tools import INSTALLED, zero
from support.parallel_tools import LLAMA, PP, TP, Run, go_on, in_processes, save_state, train
from support.rounding import EXACT

if TYPE_CHECKING:
    from pathlib import Path

ADAM: dict[str, Any] = {**LLAMA, "clip_grad": 0.3}
MUON: dict[str, Any] = {**ADAM, "optimizer": "muon", "muon_extra_scale_factor": 0.2}
# Also where parts do not divide: LLAMA's norms have no even number of elements a rank.
SOURCES: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, ADAM),
    "tensor and pipeline": (4, {**ADAM, **TP, **PP}),
    "zero 3": (2, {**ADAM, "zero_stage": 3}),
    "muon": (2, {**MUON, "zero_stage": 1}),
}
TARGETS = [
    ("one", 1, ADAM),
    ("one", 2, {**ADAM, "zero_stage": 1}),
    ("tensor and pipeline", 1, ADAM),
    ("tensor and pipeline", 2, {**ADAM, "zero_stage": 3}),
    ("zero 3", 1, ADAM),
    ("zero 3", 2, {**ADAM, "zero_stage": 3}),
    ("muon", 1, MUON),
    ("muon", 2, {**MUON, "zero_stage": 2}),
]
if INSTALLED:
    SOURCES |= {
        "DeepSpeed, zero 1": (2, zero(1, **ADAM)),
        "DeepSpeed, zero 2": (2, zero(2, **ADAM)),
        "DeepSpeed, zero 3": (2, zero(3, **ADAM, **TP)),
    }
    TARGETS += [
        ("DeepSpeed, zero 1", 1, ADAM),
        ("DeepSpeed, zero 3", 1, zero(1, **ADAM)),
        ("DeepSpeed, zero 2", 2, zero(3, **ADAM)),
        ("tensor and pipeline", 2, zero(2, **ADAM)),
    ]


def test_state_goes_from_any_engine_to_any_other(tmp_path: Path) -> None:
    def files(name: str) -> list[str]:
        return sorted(map(str, tmp_path.glob(f"{name}.*")))

    saves = [
        (n, save_state, (Run(s, steps=2), str(tmp_path / name))) for name, (n, s) in SOURCES.items()
    ]
    in_processes(saves, float64=True)
    jobs = [(n, go_on, (Run(s, steps=2), files(name))) for name, n, s in TARGETS]
    whole = [(n, train, Run(s, steps=4)) for n, s in (SOURCES["one"], SOURCES["muon"])]
    *found, (adam,), (muon, _) = in_processes([*jobs, *whole], float64=True)
    for (name, _, _), ranks in zip(TARGETS, found, strict=True):
        wanted = (muon if name == "muon" else adam)["loss"][2:]
        assert max(abs(a - b) for a, b in zip(ranks[0], wanted, strict=True)) < EXACT, name
    assert found[0][0] == adam["loss"][2:]  # bit by bit in the same layout


def test_a_run_in_half_precision_goes_on_bit_by_bit(tmp_path: Path) -> None:
    run, path = Run({**ADAM, "precision": "bf16", "zero_stage": 3}, 2, 2), str(tmp_path / "half")
    in_processes([(2, save_state, (run, path))])
    whole = Run(run.settings, 2, 4)
    again, straight = in_processes([(2, go_on, (run, [f"{path}.0"])), (2, train, whole)])
    assert again[0] == straight[0]["loss"][2:]

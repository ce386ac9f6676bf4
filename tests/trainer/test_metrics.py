"""Numbers that a run reports: rates, use of the hardware, memory, and what ends a run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from support.rounding import equal

from tokpack.errors import TrainingError

torch = pytest.importorskip("torch")

from tokpack.trainer import metrics  # noqa: E402
from tokpack.trainer.engine import StepResult  # noqa: E402
from tokpack.trainer.log import line  # noqa: E402
from tokpack.trainer.parallel import Topology  # noqa: E402

CPU = torch.device("cpu")


def result(loss: float, norm: float = 1.0, scale: float = 1.0, skipped: bool = False) -> StepResult:
    return StepResult(torch.tensor(loss), torch.tensor(norm), scale, skipped)


def meter(**more: Any) -> metrics.StepMeter:
    return metrics.StepMeter(1e9, 1024, replace(Topology(world_size=2, data_size=2), **more))


def test_means_and_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(metrics, "_peak", lambda _: 1e14)
    it = meter()
    it.restart()
    it.add(result(2.0), 8, 0.1)
    it.add(result(99.0, math.inf, 512, skipped=True), 8, 0.2)
    it.add(result(3.0, 0.5, 256), 16, 0.3)
    it.waited += 0.2
    now[0] = 14.0
    found = it.read()
    assert found["loss"] == 2.5
    assert (found["grad_norm"], found["loss_scale"], found["skipped"]) == (0.5, 256, 1)
    assert (found["lr"], found["batch_size"]) == (0.3, 16)
    assert found["tokens_per_second"] == 32 * 1024 / 4
    assert found["tokens_per_second_per_gpu"] == 32 * 1024 / 8
    assert found["tflops_per_gpu"] == equal(32 * 1024 / 8 * 1e9 / 1e12, 6)
    assert found["mfu"] == equal(32 * 1024 / 8 * 1e9 / 1e14, 6)
    assert found["data_wait"] == equal(0.05, 3)
    assert found["seconds_per_step"] == equal(4 / 3, 2)
    found |= {"iteration": 3, "consumed_samples": 32, "peak_memory_bytes": 2.5e9, "device": "cuda"}
    assert line(found, 1000) == (
        "iteration 3/1000  loss 2.5000  lr 3.00e-01  1 skipped  8.19k tokens/s  MFU 4.1%  "
        "ETA 22 min"
    )
    absent = {"loss": None, "mfu": None, "skipped": 0}
    assert line(found | absent, 3) == "iteration 3/3  lr 3.00e-01  norm 0.5  8.19k tokens/s"
    large = {"iteration": 100_000, "grad_norm": 10.0, "tokens_per_second": 1.234e6, "skipped": 0}
    assert len(line(found | large, 999_999)) <= 100


@pytest.mark.parametrize(
    "results",
    [
        [result(2.0), result(math.nan), result(2.0)],
        [result(math.inf)],
        [result(2.0, math.nan)],
        [result(2.0, math.inf)],
    ],
)
def test_what_is_not_finite_ends_a_run(results: list[StepResult]) -> None:
    it = meter()
    for one in results:
        it.add(one, 8, 0.1)
    with pytest.raises(TrainingError):
        it.read()


def test_a_loss_scale_that_falls_is_no_streak() -> None:
    it = meter()
    for power in range(40, 0, -1):  # with hysteresis: two skipped steps for every halving
        for _ in range(2):
            it.add(result(1.0, math.inf, 2.0**power, skipped=True), 8, 0.1)
    assert it.read()["loss"] is None
    for _ in range(metrics.STREAK - 2):
        it.add(result(1.0, math.inf, 2.0, skipped=True), 8, 0.1)
    with pytest.raises(TrainingError, match=f"^{metrics.STREAK} steps "):
        it.add(result(1.0, math.inf, 2.0, skipped=True), 8, 0.1)


def test_peaks_are_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {
        "NVIDIA H200": 989e12,
        "NVIDIA H100 80GB HBM3": 989e12,
        "NVIDIA H100 PCIe": 756e12,
        "NVIDIA A100-SXM4-80GB": 312e12,
        "NVIDIA H20": 148e12,
        "NVIDIA L40S": 362e12,
        "NVIDIA L4": 121e12,
        "Something new": None,
    }
    for name, peak in names.items():
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        assert metrics._peak(torch.device("cuda")) == peak
    assert metrics._peak(CPU) is None

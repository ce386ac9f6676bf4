"""What is measured in a run: losses, rates, use of the hardware, memory."""

from __future__ import annotations

import math
import resource
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tokpack.errors import TrainingError

from .config.hardware import PEAKS

if TYPE_CHECKING:
    from .engine import StepResult
    from .parallel import Topology

STREAK = 10  # skipped steps in a row, at the same loss scale, that end a run


@dataclass
class StepMeter:
    """The results of steps, kept on the device until they are read.

    ``waited`` are the seconds that steps waited for samples; ``labels`` is how many labels of each
    step count on this rank.
    """

    flops_per_token: float
    seq_length: int
    topology: Topology
    results: list[StepResult] = field(default_factory=list)
    samples: int = 0
    labels: list[int] = field(default_factory=list)
    waited: float = 0.0
    _last: dict[str, Any] = field(default_factory=dict)
    _streak: int = 0
    _scale: float = math.inf
    _begin: float = field(default_factory=time.perf_counter)

    def add(self, result: StepResult, samples: int, lr: float) -> None:
        """Add a step. Raises TrainingError if too many steps in a row were skipped."""
        self.results.append(result)
        self.samples += samples
        self._last = {"batch_size": samples, "lr": lr}
        stuck = result.skipped and result.loss_scale >= self._scale
        self._streak, self._scale = self._streak + 1 if stuck else 0, result.loss_scale
        if self._streak >= STREAK:
            raise TrainingError(
                f"{STREAK} steps in a row were skipped: gradients are not finite at a loss scale "
                f"of {result.loss_scale:g}; lower the learning rate, or, in fp16, use bf16"
            )

    def restart(self) -> None:
        """Forget the steps, and measure time from now on."""
        self.results, self.samples, self.labels, self.waited = [], 0, [], 0.0
        self._begin = time.perf_counter()

    def read(self) -> dict[str, Any]:
        """Means and rates of the steps since the restart; waits for the device.

        ``loss`` is the mean over steps that were not skipped, ``data_wait`` is a share of the time.
        Raises TrainingError if a loss is not finite.
        """
        steps = [result for result in self.results if not result.skipped]
        losses = [float(result.loss) for result in steps]
        norm = float(self.results[-1].grad_norm)
        seconds = max(time.perf_counter() - self._begin, 1e-9)
        finite = self.results[-1].skipped or math.isfinite(norm)
        if not (finite and all(map(math.isfinite, losses))):
            worst = next((loss for loss in losses if not math.isfinite(loss)), losses[-1])
            raise TrainingError(
                f"the loss is {worst}, the norm of the gradients {norm:g}: nothing was saved "
                "since; lower the learning rate, or look at the data"
            )
        rate = self.samples * self.seq_length / seconds
        per_gpu = rate / self.topology.world_size
        peak = _peak(self.topology.device)
        return {
            **self._last,
            "loss": sum(losses) / len(losses) if losses else None,
            "grad_norm": norm,
            "loss_scale": self.results[-1].loss_scale,
            "skipped": len(self.results) - len(steps),
            "seconds_per_step": seconds / len(self.results),
            "tokens_per_second": rate,
            "tokens_per_second_per_gpu": per_gpu,
            "tflops_per_gpu": per_gpu * self.flops_per_token / 1e12,
            "mfu": per_gpu * self.flops_per_token / peak if peak else None,
            "data_wait": self.waited / seconds,
        }


def peak_memory(device: torch.device) -> int:
    """The most bytes that this process has held: on the GPU, or without one in main memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _peak(device: torch.device) -> float | None:
    """The device's peak in FLOP/s, or None if it is not known."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((peak * 1e12 for key, peak in PEAKS.items() if key in name), None)

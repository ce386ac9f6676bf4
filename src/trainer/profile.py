"""A trace of some steps, by torch's profiler."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from torch.profiler import ProfilerActivity, profile

from tokpack.errors import option
from tokpack.files.durable import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokpack.configuration.config import Config

    from .parallel import Topology


class StepProfiler:
    """Writes what rank 0 does in the steps that ``profile`` names to LOG_DIR/profile-A-B.json.gz.

    The trace has CPU and GPU, and is read by Perfetto or chrome://tracing. Without ``profile``, and
    on other ranks, nothing is done.
    """

    def __init__(self, config: Config, topology: Topology, say: Callable[[str], None]) -> None:
        self._steps = config.profiled if topology.is_main else range(0)
        self._folder, self._say = Path(config.log_dir or config.save or ""), say
        self._profiler: profile | None = None
        self._first = 0
        kinds = [ProfilerActivity.CPU]
        self._kinds = [*kinds, ProfilerActivity.CUDA] if topology.device.type == "cuda" else kinds

    def before(self, step: int) -> None:
        """To be called before each step."""
        if step in self._steps and self._profiler is None:
            self._first = step
            self._profiler = profile(activities=self._kinds)
            self._profiler.start()

    def after(self, step: int) -> None:
        """To be called after each step, and at the end."""
        if self._profiler is not None and step + 1 not in self._steps:
            self.close(step)

    def end(self, step: int) -> None:
        """Write what was taken until ``step``, the run's last one, or say that this was nothing."""
        self.close(step)
        if self._steps and not self._first:
            self._say(
                f"note: no profile: {option('profile')} is of the steps {self._steps[0]} to "
                f"{self._steps[-1]}, and the last step was {step}"
            )

    def close(self, step: int) -> None:
        """Write the trace, if one is being taken; ``step`` was the last one. OutputError."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        profiler.stop()
        path = self._folder / f"profile-{self._first}-{step}.json.gz"
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json.gz"
            profiler.export_chrome_trace(str(trace))
            replace_file(path, [trace.read_bytes()])
        self._say(f"profile: {path}, for https://ui.perfetto.dev")

"""A trace of some steps, by torch's profiler."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from torch.profiler import ProfilerActivity, profile

from tokpack.errors import option
from tokpack.storage.disk import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .run import TrainingRun


@contextmanager
def profiled(run: TrainingRun) -> Iterator[Callable[[int], None]]:
    """A context for the steps of a run; it gives a function to call before each step, with its
    number.

    For the steps that ``profile`` names, rank 0 writes a trace of CPU and GPU to
    LOG_DIR/profile-A-B.json.gz, for Perfetto or chrome://tracing. Raises OutputError.
    """
    steps = run.config.profiled if run.topology.is_main else range(0)
    kinds = [ProfilerActivity.CPU]
    if run.topology.device.type == "cuda":
        kinds.append(ProfilerActivity.CUDA)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # no lines of its own among ours
    profiler, first, written = profile(activities=kinds), 0, False

    def before(step: int) -> None:
        nonlocal first, written
        if step in steps and not first:
            first = step
            profiler.start()
        elif step not in steps and first and not written:
            profiler.stop()
            path = Path(run.config.log_dir or run.config.save or "")
            path /= f"profile-{first}-{run.step}.json.gz"
            with tempfile.TemporaryDirectory() as folder:
                trace = Path(folder) / "trace.json.gz"
                profiler.export_chrome_trace(str(trace))
                replace_file(path, [trace.read_bytes()])
            written = True
            run.log.say(f"profile: {path}, for https://ui.perfetto.dev")

    yield before
    before(0)
    if steps and not first:
        run.log.say(
            f"note: no profile: {option('profile')} is of the steps {steps[0]} to {steps[-1]}, and "
            f"the last step was {run.step}"
        )

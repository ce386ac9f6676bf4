"""What a training run writes beside its checkpoints, and what of it may be replaced."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tokpack.files.durable import replace_file
from tokpack.files.outputs import Kind, begins_with, check_outputs, is_sealed, sealed
from tokpack.report.page import is_page

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_MAKER = "tokpack train"


@dataclass(frozen=True)
class TrainingResult:
    """How far a run came, and what it leaves.

    ``losses`` are the last ones, in nats a token: "training", as the last log line has it, and
    those of the evaluated sets by name. ``checkpoint`` is that of the last step, if it was saved.
    """

    iteration: int
    consumed_samples: int
    losses: dict[str, float]
    checkpoint: Path | None


def _is_log(path: str) -> bool:
    return os.path.getsize(path) == 0 or begins_with(path, b'{"event": "begin"')


_is_config = partial(is_sealed, maker=_MAKER)
CONFIG = Kind("a configuration as tokpack train wrote it", _is_config, kept=False, beside=True)
LOG = Kind("a log of tokpack train", _is_log, kept=False, beside=True)
_is_plot = partial(is_page, command="train")
PLOT = Kind("a plot of tokpack train", _is_plot, kept=False, beside=True)


def save_config(path: Path, text: str, inputs: Sequence[str]) -> None:
    """Write the YAML of a run's configuration; one that the run itself reads stays as it is."""
    if path.exists() and any(os.path.exists(name) and path.samefile(name) for name in inputs):
        return
    check_outputs([(str(path), CONFIG)], (), overwrite=False)
    replace_file(path, [sealed(text, _MAKER).encode()])


def check_log(path: Path, inputs: Sequence[str]) -> None:
    """OutputError where ``path`` is a file that is no log of a run."""
    check_outputs([(str(path), LOG)], inputs, overwrite=False)


def save_plot(path: Path, page: str) -> None:
    """Write the plot of a run. OutputError."""
    check_outputs([(str(path), PLOT)], (), overwrite=False)
    replace_file(path, [page.encode()])

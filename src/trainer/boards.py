"""Curves of a run for TensorBoard, which Weights & Biases reads too. Names are Megatron's."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tokpack.display import tell
from tokpack.errors import OutputError, UsageError, needs_extra, option
from tokpack.files.durable import cannot_write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tokpack.configuration.config import Config


class Board:
    """Curves over steps and over samples, in files of TensorBoard's; without a folder none."""

    def __init__(self, config: Config, first: int, say: Callable[[str], None]) -> None:
        """Open them, to go on behind step ``first``. Raises UsageError and OutputError."""
        self._folder, self._run, self._writer = config.tensorboard_dir or "", None, None
        if config.wandb_project:
            self._run = _begin_run(config)
            self._folder = self._folder or os.path.join(self._run.dir, "tensorboard")
            offline = f"offline, in {self._run.dir}" if self._run.offline else self._run.url
            say(f"Weights & Biases: {offline or 'disabled'}")
        if self._folder:
            self._writer = self._open(first + 1 if first else None)

    def add(self, points: Mapping[str, float | None], step: int, samples: int) -> None:
        """Add a point to each curve that has one. Raises OSError; then a new file is begun."""
        if not self._folder:
            return
        writer = self._writer or self._open(None)
        self._writer = None  # its thread ends with an error
        for name, value in points.items():
            if value is not None:
                writer.add_scalar(name, value, step)
                writer.add_scalar(f"{name} vs samples", value, samples)
        self._writer = writer

    def close(self) -> None:
        """Write and send what is left. Raises OSError."""
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            if self._run is not None:
                with telling_of_a_wait("Weights & Biases has not taken all curves; sending them"):
                    self._run.finish()

    def _open(self, purge_step: int | None) -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError(
                f"{option('tensorboard_dir')} needs a package: pip install tensorboard"
            ) from error
        with cannot_write(self._folder):
            return SummaryWriter(self._folder, purge_step=purge_step)


def _begin_run(config: Config) -> Any:
    """A run of Weights & Biases, whose variables of the environment apply.

    Raises UsageError, as without an account, and OutputError.
    """
    with needs_extra("wandb"):
        import wandb
    try:
        with telling_of_a_wait("Weights & Biases does not answer yet; training waits for it"):
            return wandb.init(
                project=config.wandb_project,
                name=config.wandb_exp_name,
                group=config.wandb_group,
                entity=config.wandb_entity,
                dir=config.wandb_save_dir or config.log_dir or config.save,
                config=config.to_dict(),
                settings=wandb.Settings(silent=True),
                sync_tensorboard=True,
            )
    except wandb.errors.UsageError as error:
        hint = "log in with `wandb login`, or set WANDB_MODE=offline"
        reason = str(error).rstrip(".")
        raise UsageError(f"{option('wandb_project')}: {reason}; {hint}") from None
    except (wandb.Error, OSError) as error:
        raise OutputError(f"Weights & Biases: {error}") from error


@contextmanager
def telling_of_a_wait(text: str, seconds: float = 10.0) -> Iterator[None]:
    """Say why nothing happens, where this takes longer: their client tries again in silence."""
    timer = threading.Timer(seconds, tell, [f"tokpack: note: {text}"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()

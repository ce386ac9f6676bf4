"""Boards that draw the curves of a run: TensorBoard, and Weights & Biases. Names are Megatron's."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from tokpack.display import tell
from tokpack.errors import OutputError, UsageError, needs_extra, option
from tokpack.files.durable import cannot_write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tokpack.configuration.config import Config


class Board(Protocol):
    """Takes points of curves, and may fail: with OSError or OutputError."""

    def add(self, points: Mapping[str, float | None], step: int, samples: int) -> None:
        """Add a point to each curve that has one."""

    def close(self) -> None:
        """Write what is left."""


def open_boards(config: Config, first: int, say: Callable[[str], None]) -> dict[str, Board]:
    """Those that are asked for, by their names, to go on behind step ``first``.

    Raises UsageError and OutputError.
    """
    boards: dict[str, Board] = {}
    if config.tensorboard_dir:
        boards["TensorBoard's curves"] = TensorBoard(config, first)
    if config.wandb_project:
        boards["Weights & Biases"] = board = WeightsAndBiases(config)
        say(f"Weights & Biases: {board.where}")
    return boards


class TensorBoard:
    """Curves over steps and over samples, in files of TensorBoard's."""

    def __init__(self, config: Config, first: int) -> None:
        """Open them, to go on behind step ``first``. Raises UsageError and OutputError."""
        self._folder, self._size = config.tensorboard_dir or "", config.tensorboard_queue_size
        self._board = self._open(first + 1 if first else None)

    def add(self, points: Mapping[str, float | None], step: int, samples: int) -> None:
        """Add a point to each curve that has one. Raises OSError; then a new file is begun."""
        if self._board is None:
            self._board = self._open(None)
        try:
            for name, value in points.items():
                if value is not None:
                    self._board.add_scalar(name, value, step)
                    self._board.add_scalar(f"{name} vs samples", value, samples)
        except OSError:
            self._board = None  # its thread has ended with the error
            raise

    def close(self) -> None:
        """Write what is left. Raises OSError."""
        if self._board is not None:
            self._board.close()

    def _open(self, purge_step: int | None) -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError(
                f"{option('tensorboard_dir')} needs a package: pip install tensorboard"
            ) from error
        with cannot_write(self._folder):
            return SummaryWriter(self._folder, purge_step=purge_step, max_queue=self._size)


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


class WeightsAndBiases:
    """A run of a project at Weights & Biases, whose environment variables apply."""

    def __init__(self, config: Config) -> None:
        """Begin it. Raises UsageError, as without an account, and OutputError."""
        with needs_extra("wandb"):
            import wandb
        self._error: type[Exception] = wandb.Error
        folder = config.wandb_save_dir or config.log_dir or config.save
        try:
            with telling_of_a_wait("Weights & Biases does not answer yet; training waits for it"):
                self._run: Any = wandb.init(
                    project=config.wandb_project,
                    name=config.wandb_exp_name,
                    group=config.wandb_group,
                    entity=config.wandb_entity,
                    dir=folder,
                    config=config.to_dict(),
                    settings=wandb.Settings(silent=True),
                )
        except wandb.errors.UsageError as error:
            hint = "log in with `wandb login`, or set WANDB_MODE=offline"
            raise UsageError(
                f"{option('wandb_project')}: {str(error).rstrip('.')}; {hint}"
            ) from None
        except (wandb.Error, OSError) as error:
            raise OutputError(f"Weights & Biases: {error}") from error
        # A resumed run may make a step again, and W&B's own step count cannot go back.
        self._run.define_metric("*", step_metric="iteration")
        self.where = self._run.url or "disabled"
        if self._run.offline:
            self.where = f"offline, in {self._run.dir}"

    def add(self, points: Mapping[str, float | None], step: int, samples: int) -> None:
        """Add a point to each curve that has one. Raises OSError."""
        known = {name: value for name, value in points.items() if value is not None}
        try:
            self._run.log({**known, "iteration": step, "samples": samples})
        except self._error as error:
            raise OSError(str(error)) from error

    def close(self) -> None:
        """Send what is left. Raises OSError."""
        try:
            with telling_of_a_wait("Weights & Biases has not taken all curves yet; sending them"):
                self._run.finish()
        except self._error as error:
            raise OSError(str(error)) from error

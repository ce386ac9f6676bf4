"""The interface of training engines, whichever library they use."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from .config.config import Config
    from .config.model import ModelConfig
    from .model import Batch, Stage
    from .parallel import Topology

    # (global name, kinds) -> whole fp32 tensors; a kind is "parameter" or one of optimizer state.
    Read = Callable[[str, Sequence[str]], Mapping[str, Tensor]]


@dataclass(frozen=True)
class StepResult:
    """The result of a step, the same on every rank. Reading a tensor waits for the device."""

    loss: Tensor  # float32 []: mean over the global batch's micro batches
    grad_norm: Tensor  # float32 []: before clipping; not finite where fp16 overflowed
    loss_scale: float
    skipped: bool  # fp16 overflowed: no weight was changed
    norms: Tensor | None = None  # float32 [rooms]: the same by parts of the model, where known


class Engine(Protocol):
    """An engine that trains a model. Every method is a collective: all ranks call it, in the same
    order.
    """

    config: Config
    topology: Topology
    model: Stage
    steps: int  # optimizer steps made, without skipped ones
    rooms: Sequence[str]  # the parts of the model: see room_of

    def train_batch(self, micro_batches: Sequence[Batch], lr: float) -> StepResult:
        """The result of one optimizer step over the micro batches of this data rank.

        All pipeline and tensor ranks of one data rank get the same micro batches; all data ranks
        get equally many.
        """

    def evaluate(self, micro_batches: Sequence[Batch]) -> Tensor:
        """The mean loss, float32 [], over these micro batches and all data ranks."""

    def full_state(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """The parameters of this stage one by one: see Stage.full_state."""

    def load_full_state(self, read: Read, *, optimizer: bool) -> None:
        """Load every parameter, and with ``optimizer`` its state in the optimizer."""

    def scalars(self) -> dict[str, Any]:
        """The rest of the state, as JSON values: steps, the loss scale."""

    def load_scalars(self, values: dict[str, Any]) -> None:
        """Restore what ``scalars`` returned."""


def make_engine(config: Config, model_config: ModelConfig, topology: Topology) -> Engine:
    """The engine that the configuration names, with weights initialised from its seed."""
    name = {"torch": "engine_torch", "deepspeed": "engine_ds"}[config.engine]
    module = importlib.import_module(f".{name}", __package__)
    engine: Engine = module.make(config, model_config, topology)
    return engine

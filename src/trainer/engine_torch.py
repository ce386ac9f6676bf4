"""Data, tensor and pipeline parallel training in plain torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import pipeline
from .checkpoints.files import DTYPES
from .config.model import room_of
from .engine import StepResult
from .fp8 import use_fp8
from .model import Stage, stage_layers
from .optimizers import make_optimizers, set_steps, state_of
from .parallel import mean_loss, norms_of
from .sharding import DataParallel
from .tensor import sequence_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .config.config import Config
    from .config.model import ModelConfig
    from .engine import Read
    from .model import Batch
    from .parallel import Topology


def make(config: Config, model_config: ModelConfig, topology: Topology) -> TorchEngine:
    """A TorchEngine with weights initialised from the seed."""
    with topology.device:  # weights never take the CPU's memory
        stage = Stage(model_config, topology, stage_layers(config, topology))
    stage.initialise(config.seed)
    return TorchEngine(config, stage, topology)


@dataclass
class LossScale:
    """The factor that keeps fp16 gradients in range.

    It is halved after ``hysteresis`` overflowing steps since it last grew, and doubled after
    ``window`` good steps in a row.
    """

    value: float
    patience: int
    good: int = 0

    def update(self, overflow: bool, config: Config) -> None:
        """Adapt the scale after a step."""
        self.good = 0 if overflow else self.good + 1
        self.patience -= overflow
        if overflow and self.patience <= 0:
            self.value = max(self.value / 2, config.min_loss_scale)
        elif self.good == config.loss_scale_window:
            self.value, self.good, self.patience = self.value * 2, 0, config.hysteresis


class TorchEngine:
    """An engine.Engine in plain torch. Weights, gradients and moments are fp32; autocast decides
    the types of the rest.

    In half precision the linear layers of blocks compute with half precision copies of their
    matrices.
    """

    def __init__(self, config: Config, model: Stage, topology: Topology) -> None:
        self.config, self.model, self.topology = config, model, topology
        self.steps = 0
        self.rooms = list(dict.fromkeys(map(room_of, model.model.layout)))
        self._batches = 0  # calls of train_batch, also skipped ones: part of dropout's key
        cuda = topology.device.type == "cuda"
        precision = config.precision_on(topology.device.type)
        self.half = precision != "fp32"
        # In fp32 it is torch's default type: a test may set that to float64, so that sums in
        # another order agree to 1e-9 on every processor.
        self.dtype = DTYPES[precision] if self.half else torch.get_default_dtype()
        self._dynamic = self.dtype == torch.float16 and not config.loss_scale
        scale = config.loss_scale or config.initial_loss_scale
        self._scale = LossScale(scale if self.dtype == torch.float16 else 1.0, config.hysteresis)
        if config.fp8:
            use_fp8(config, model)
        half = self.dtype if self.half else None
        self.data = DataParallel(model, config.zero_stage, half)
        self._optimizers = make_optimizers(config, model, self.data.held)
        model.recompute = config.recomputed_together
        if cuda if config.compile is None else config.compile:
            model.compile_parts()

    def train_batch(self, micro_batches: Sequence[Batch], lr: float) -> StepResult:
        topology, count, scale = self.topology, len(micro_batches), self._scale.value
        # Made on the device: a copy from the CPU would wait until the device has caught up.
        share = torch.full((), scale / count, device=topology.device)
        self.model.train()
        self.data.begin_step()
        link, forward, losses = self._pipeline(micro_batches)

        def backward(number: int, y: Tensor, grad: Tensor | None) -> None:
            with self.data.backward(last=number == count - 1):
                torch.autograd.backward(y, share if topology.last_stage else grad)

        pipeline.train(link, forward, backward, count)
        self.data.add_of_parts()
        if self.model.tied and self.model.embedding is not None:  # it may be on two stages
            self.data.add_of_stages("embedding.word.weight")
        grads: dict[str, list[Tensor]] = {room: [] for room in self.rooms}
        for name, grad in self.data.gradients(self.model.counted()).items():
            grads[room_of(name)].append(grad)
        norms = norms_of(grads, topology, shared=self.data.shared) / scale
        norm = norms.norm()
        skipped = self.dtype == torch.float16 and not torch.isfinite(norm)
        if not skipped:
            self._step(norm, lr)
        self._batches += 1
        if self._dynamic:
            self._scale.update(skipped, self.config)
        return StepResult(mean_loss(losses, topology), norm, scale, skipped, norms)

    @torch.no_grad()
    def evaluate(self, micro_batches: Sequence[Batch]) -> Tensor:
        self.model.eval()
        link, forward, losses = self._pipeline(micro_batches)
        pipeline.evaluate(link, forward, len(micro_batches))
        return mean_loss(losses, self.topology)

    def full_state(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        def parts(name: str) -> dict[str, Tensor]:
            held, mine = self.data.held[name], self._parts(name, optimizer=True)
            return {kind: held.whole(x) for kind, x in mine.items()}

        return self.model.full_state(parts)

    @torch.no_grad()
    def load_full_state(self, read: Read, *, optimizer: bool) -> None:
        for name, held in self.data.held.items():
            parts = self._parts(name, optimizer=optimizer)
            whole = read(name, list(parts))
            for kind, part in parts.items():
                part.copy_(held.rows(self.model.own_part(name, whole[kind])))
        self.data.refresh()

    def scalars(self) -> dict[str, Any]:
        scale = asdict(self._scale) if self._dynamic else None
        return {"steps": self.steps, "batches": self._batches, "loss_scale": scale}

    def load_scalars(self, values: dict[str, Any]) -> None:
        self.steps, self._batches = values["steps"], values["batches"]
        if self._dynamic and (scale := values["loss_scale"]):  # none of a run without fp16
            self._scale = LossScale(**scale)
        set_steps(self._optimizers, self.steps)

    def _parts(self, name: str, *, optimizer: bool) -> dict[str, Tensor]:
        """This rank's part of a weight, and of its state in the optimizer; writable."""
        parameter = self.data.held[name].parameter
        state = state_of(self._optimizers, parameter) if optimizer else {}
        return {"parameter": parameter.detach(), **state}

    def _pipeline(
        self, micro_batches: Sequence[Batch]
    ) -> tuple[pipeline.StageLink, pipeline.Forward, list[Tensor]]:
        """The link to the other stages, the forward function, and the list to which that appends
        losses.
        """
        topology, outputs = self.topology, list[Tensor]()

        def forward(number: int, hidden: Tensor | None) -> Tensor:
            batch = micro_batches[number]
            batch = {k: x.to(topology.device, non_blocking=True) for k, x in batch.items()}
            key = (self.config.seed, self._batches, topology.micro_batch(number))
            with torch.autocast(topology.device.type, self.dtype, enabled=self.half):
                y: Tensor = self.model(batch, hidden, key)
            if topology.last_stage:
                outputs.append(y.detach())
            return y

        tokens = sequence_part(micro_batches[0]["tokens"], topology)
        shape = (*tokens.shape, self.model.model.hidden_size)
        return pipeline.StageLink(topology, shape, self.dtype), forward, outputs

    def _step(self, norm: Tensor, lr: float) -> None:
        factor = torch.full_like(norm, 1 / self._scale.value)
        if self.config.clip_grad:
            factor *= (self.config.clip_grad / (norm + 1e-6)).clamp(max=1)
        self.data.scale(factor)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
        self.data.refresh()
        self.steps += 1

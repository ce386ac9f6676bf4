"""Data, tensor and pipeline parallel training in plain torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tokpack.checkpoints.files import DTYPES

from . import pipeline
from .blocks import recomputation
from .engine import StepResult
from .model import Stage, stage_layers
from .optimizers import make_optimizers, set_steps, state_of
from .parallel import ColumnLinear, RowLinear, mean_loss, total

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from tokpack.configuration.config import Config
    from tokpack.configuration.model import ModelConfig

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

    It is halved once ``hysteresis`` steps have overflowed since it last grew, and doubled after
    ``window`` good steps in a row.
    """

    value: float
    patience: int
    good: int = 0

    def update(self, overflow: bool, config: Config) -> None:
        """Learn from one step."""
        self.good = 0 if overflow else self.good + 1
        self.patience -= overflow
        if overflow and self.patience <= 0:
            self.value = max(self.value / 2, config.min_loss_scale)
        elif self.good == config.loss_scale_window:
            self.value, self.good, self.patience = self.value * 2, 0, config.hysteresis


class TorchEngine:
    """See engine.Engine. Weights, gradients and moments are fp32; autocast decides the rest.

    In half precision linear layers compute with copies of their weights, made once a step.
    """

    def __init__(self, config: Config, model: Stage, topology: Topology) -> None:
        self.config, self.model, self.topology = config, model, topology
        self.steps = 0
        self._batches = 0  # calls of train_batch, also skipped ones: part of dropout's key
        cuda = topology.device.type == "cuda"
        precision = config.precision_on(topology.device.type)
        self.half = precision != "fp32"
        # Else torch's default type, which a test may set to float64: there sums in another order
        # agree to 1e-9 on every processor.
        self.dtype = DTYPES[precision] if self.half else torch.get_default_dtype()
        self._dynamic = self.dtype == torch.float16 and not config.loss_scale
        scale = config.loss_scale or config.initial_loss_scale
        self._scale = LossScale(scale if self.dtype == torch.float16 else 1.0, config.hysteresis)
        self._parameters = dict(model.named_parameters())
        self._grads = _flat_gradients(list(self._parameters.values()))
        self._optimizers = make_optimizers(config, model)
        self._casts = _cast_weights(model, self.dtype) if self.half else []
        model.recompute = recomputation(config, topology)
        model.recompute_layers = config.checkpoint_num_layers
        if cuda if config.compile is None else config.compile:
            model.compile_parts()

    def train_batch(self, micro_batches: Sequence[Batch], lr: float) -> StepResult:
        topology, count, scale = self.topology, len(micro_batches), self._scale.value
        # A tensor made by the device: one that is copied there waits until it has caught up.
        share = torch.full((), scale / (count * topology.data_size), device=topology.device)
        self.model.train()
        self._cast()
        self._grads.zero_()
        link, forward, losses = self._pipeline(micro_batches)

        def backward(_: int, y: Tensor, grad: Tensor | None) -> None:
            torch.autograd.backward(y, share if topology.last_stage else grad)

        pipeline.train(link, forward, backward, count)
        total(self._grads, topology.data_group)
        if self.model.tied and self.model.embedding is not None:  # it may be on two stages
            grad = self.model.embedding.word.weight.grad
            assert grad is not None
            total(grad, topology.embedding_group)
        norm = self.model.grad_norm() / scale
        skipped = self.dtype == torch.float16 and not torch.isfinite(norm)
        if not skipped:
            self._step(norm, lr)
        self._batches += 1
        if self._dynamic:
            self._scale.update(skipped, self.config)
        return StepResult(mean_loss(losses, topology), norm, scale, skipped)

    @torch.no_grad()
    def evaluate(self, micro_batches: Sequence[Batch]) -> Tensor:
        self.model.eval()
        self._cast()
        link, forward, losses = self._pipeline(micro_batches)
        pipeline.evaluate(link, forward, len(micro_batches))
        return mean_loss(losses, self.topology)

    def full_state(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        return self.model.full_state(self._parts)

    @torch.no_grad()
    def load_full_state(self, read: Read, *, optimizer: bool) -> None:
        for name, parameter in self._parameters.items():
            parts = self._parts(parameter) if optimizer else {"parameter": parameter}
            whole = read(name, list(parts))
            for kind, part in parts.items():
                part.copy_(self.model.own_part(name, whole[kind]))

    def scalars(self) -> dict[str, Any]:
        scale = asdict(self._scale) if self._dynamic else None
        return {"steps": self.steps, "batches": self._batches, "loss_scale": scale}

    def load_scalars(self, values: dict[str, Any]) -> None:
        self.steps, self._batches = values["steps"], values["batches"]
        if self._dynamic and (scale := values["loss_scale"]):  # none of a run without fp16
            self._scale = LossScale(**scale)
        set_steps(self._optimizers, self.steps)

    def _parts(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """A parameter and the state of it, as this tensor rank has them; writable."""
        return {"parameter": parameter.detach(), **state_of(self._optimizers, parameter)}

    @torch.no_grad()
    def _cast(self) -> None:
        """Bring the weights in half precision up to date: once a step, not for each micro batch."""
        for cast, weight in self._casts:
            cast.copy_(weight)

    def _pipeline(
        self, micro_batches: Sequence[Batch]
    ) -> tuple[pipeline.Link, pipeline.Forward, list[Tensor]]:
        """The link to other stages, the way forward, and the list to which it adds the losses."""
        topology, found = self.topology, list[Tensor]()

        def forward(number: int, hidden: Tensor | None) -> Tensor:
            batch = micro_batches[number]
            batch = {k: x.to(topology.device, non_blocking=True) for k, x in batch.items()}
            key = (self.config.seed, self._batches, topology.micro_batch(number))
            with torch.autocast(topology.device.type, self.dtype, enabled=self.half):
                y: Tensor = self.model(batch, hidden, key)
            if topology.last_stage:
                found.append(y.detach())
            return y

        shape = (*micro_batches[0]["tokens"].shape, self.model.model.hidden_size)
        return pipeline.Link(topology, shape, self.dtype), forward, found

    def _step(self, norm: Tensor, lr: float) -> None:
        factor = torch.full_like(norm, 1 / self._scale.value)
        if self.config.clip_grad:
            factor *= (self.config.clip_grad / (norm + 1e-6)).clamp(max=1)
        self._grads.mul_(factor)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
        self.steps += 1


def _flat_gradients(parameters: Sequence[nn.Parameter]) -> Tensor:
    """One float32 tensor of which the gradients are views: data ranks sum it in one go."""
    sizes = [parameter.numel() for parameter in parameters]
    flat = torch.zeros(sum(sizes), device=parameters[0].device)
    for parameter, piece in zip(parameters, flat.split_with_sizes(sizes), strict=True):
        parameter.grad = piece.view_as(parameter)
    return flat


def _cast_weights(model: Stage, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Give linear layers copies of their weights, whose gradients are added to the weights'.

    As autocast does for each micro batch, bit by bit: it too adds what is of ``dtype`` in float32.
    """
    pairs: list[tuple[Tensor, Tensor]] = []
    for module in model.modules():
        if isinstance(module, (ColumnLinear, RowLinear)):
            module.cast = cast = module.weight.detach().to(dtype).requires_grad_()
            cast.register_post_accumulate_grad_hook(partial(_hand_on, module.weight))  # type: ignore[no-untyped-call]
            pairs.append((cast, module.weight))
    return pairs


def _hand_on(weight: Tensor, cast: Tensor) -> None:
    assert weight.grad is not None
    assert cast.grad is not None
    weight.grad.add_(cast.grad)
    cast.grad = None

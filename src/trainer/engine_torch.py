"""Data, tensor and pipeline parallel training in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import model as models
from . import pipeline
from .engine import StepResult
from .parallel import Topology, global_norm, shard_dim, total

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from .config import Config
    from .model import Batch, ModelConfig

BUCKET = 25_000_000  # elements of gradients that are summed over data ranks at a time
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def make(config: Config, model_config: ModelConfig, topology: Topology) -> TorchEngine:
    """A TorchEngine with weights initialised from the seed."""
    stage = models.Stage(model_config, topology, *models.stage_layers(config, topology))
    stage.initialise(config.seed)
    return TorchEngine(config, stage.to(topology.device), topology)


class Gradients:
    """fp32 gradients in flat buckets, summed over data ranks while the last backward runs."""

    def __init__(self, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.buckets: list[Tensor] = []
        self._left: list[int] = []  # parameters of each bucket whose gradient is not complete
        self._sizes: list[int] = []
        self._work: dict[int, dist.Work] = {}
        self._last = False
        for part in _buckets(list(reversed(parameters))):  # the order in which they come
            flat = torch.zeros(sum(p.numel() for p in part), device=part[0].device)
            for p, piece in zip(part, torch.split(flat, [p.numel() for p in part]), strict=True):
                p.grad = piece.view_as(p)
                if group is not None:
                    p.register_post_accumulate_grad_hook(self._hook(len(self.buckets)))  # type: ignore[no-untyped-call]
            self.buckets.append(flat)
            self._sizes.append(len(part))

    def zero(self) -> None:
        for flat in self.buckets:
            flat.zero_()

    def before_last(self) -> None:
        """The backward that comes next completes the gradients."""
        self._left, self._last = list(self._sizes), True

    def finish(self) -> None:
        """Wait until all gradients are summed over the data ranks."""
        for index in range(len(self.buckets)) if self.group is not None else ():
            if index not in self._work:
                self._send(index)
        for work in self._work.values():
            work.wait()
        self._work.clear()
        self._last = False

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        def complete(_: Tensor) -> None:
            if self._last:
                self._left[index] -= 1
                if self._left[index] == 0:
                    self._send(index)

        return complete

    def _send(self, index: int) -> None:
        work = dist.all_reduce(self.buckets[index], group=self.group, async_op=True)
        assert work is not None
        self._work[index] = work


def _buckets(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    part: list[nn.Parameter] = []
    for parameter in parameters:
        part.append(parameter)
        if sum(p.numel() for p in part) >= BUCKET:
            yield part
            part = []
    if part:
        yield part


@dataclass
class LossScale:
    """The factor that keeps fp16 gradients in range; 1 where it is not needed.

    It halves when ``patience`` steps overflowed since it last grew, and doubles after ``window``
    good steps in a row.
    """

    value: float = 1.0
    dynamic: bool = False
    window: int = 1000
    hysteresis: int = 2
    lowest: float = 1.0
    good: int = 0
    patience: int = 2

    @classmethod
    def of(cls, config: Config) -> LossScale:
        if config.precision != "fp16":
            return cls()
        value = config.loss_scale or config.initial_loss_scale
        patience = config.hysteresis
        dynamic = config.loss_scale == 0
        window, lowest = config.loss_scale_window, config.min_loss_scale
        return cls(value, dynamic, window, patience, lowest, 0, patience)

    def update(self, overflow: bool) -> None:
        if not self.dynamic:
            return
        self.good = 0 if overflow else self.good + 1
        if overflow:
            self.patience -= 1
            if self.patience <= 0:
                self.value = max(self.value / 2, self.lowest)
        elif self.good == self.window:
            self.value, self.good, self.patience = self.value * 2, 0, self.hysteresis


class TorchEngine:
    """See engine.Engine. Weights, gradients and moments are fp32; autocast decides the rest."""

    def __init__(self, config: Config, model: models.Stage, topology: Topology) -> None:
        self.config, self.model, self.topology = config, model, topology
        self.steps = 0
        device = topology.device.type
        self.dtype = TYPES[config.precision or ("bf16" if device == "cuda" else "fp32")]
        self._scale = LossScale.of(config)
        self._batches = 0  # train_batch calls, skipped or not: the key of dropout
        self._parameters = dict(model.named_parameters())
        self._grads = Gradients(list(self._parameters.values()), topology.data_group)
        self._optimizer = _adamw(config, self._parameters)
        model.flex = device == "cuda" and not model.model.attention_dropout
        if config.checkpoint_activations:
            model.recompute = models.checkpointed
            model.recompute_layers = config.checkpoint_num_layers
        if config.compile or (config.compile is None and device == "cuda"):
            whole = topology.tensor_size == 1 and not model.random
            for block in model.blocks.values():
                block.compile(fullgraph=whole)

    def train_batch(self, micro_batches: Sequence[Batch], lr: float) -> StepResult:
        self.model.train()
        self._grads.zero()
        seed, topology = self.config.seed, self.topology
        batches, count = self._moved(micro_batches), len(micro_batches)
        share = self._scale.value / (count * topology.data_size)
        losses: list[Tensor] = []

        def forward(number: int, hidden: Tensor | None) -> Tensor:
            key = (seed, self._batches, number * topology.data_size + topology.data_rank)
            with self._autocast():
                y = self.model(batches[number], hidden, key)
            return self._noted(losses, y)

        def backward(number: int, y: Tensor, grad: Tensor | None) -> None:
            if number == count - 1:
                self._grads.before_last()
            torch.autograd.backward(y if grad is not None else y * share, grad)

        pipeline.train(topology, self._link(batches), forward, backward, count)
        self._grads.finish()
        self._sum_tied()
        self._batches += 1
        norm, skipped = self._step(lr)
        scale = self._scale.value
        self._scale.update(skipped)
        return StepResult(self._mean(losses), norm, scale, skipped)

    @torch.no_grad()
    def evaluate(self, micro_batches: Sequence[Batch]) -> Tensor:
        self.model.eval()
        batches, losses = self._moved(micro_batches), list[Tensor]()

        def forward(number: int, hidden: Tensor | None) -> Tensor:
            with self._autocast():
                return self._noted(losses, self.model(batches[number], hidden))

        pipeline.evaluate(self._link(batches), forward, len(batches))
        return self._mean(losses)

    def full_state(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        for name, parameter in self._owned():
            state = self._optimizer.state.get(parameter, {})
            parts = {"parameter": parameter.detach()}
            for moment in ("exp_avg", "exp_avg_sq"):
                parts[moment] = state.get(moment, torch.zeros_like(parts["parameter"]))
            whole = {}
            for key, part in parts.items() if self.topology.data_rank == 0 else ():
                tensor = self.model.gather_whole(name, part)
                if self.topology.writes:
                    whole[key] = tensor.to("cpu", copy=True)
            yield name, whole

    @torch.no_grad()
    def load_full_state(self, read: Callable[[str], dict[str, Tensor]], *, optimizer: bool) -> None:
        self._optimizer.state.clear()
        for name, parameter in self._parameters.items():
            parts = {k: self.model.own_part(name, whole) for k, whole in read(name).items()}
            parameter.copy_(parts["parameter"])
            if optimizer:
                self._optimizer.state[parameter] = {
                    "step": torch.tensor(float(self.steps), device=parameter.device),
                    **{
                        k: torch.empty_like(parameter).copy_(parts[k])
                        for k in ("exp_avg", "exp_avg_sq")
                    },
                }

    def scalars(self) -> dict[str, Any]:
        scale = {
            "value": self._scale.value,
            "good": self._scale.good,
            "patience": self._scale.patience,
        }
        return {"steps": self.steps, "batches": self._batches, "loss_scale": scale}

    def load_scalars(self, values: dict[str, Any]) -> None:
        self.steps, self._batches = values["steps"], values["batches"]
        if self._scale.dynamic:
            for key, value in values["loss_scale"].items():
                setattr(self._scale, key, value)
        for state in self._optimizer.state.values():
            state["step"].fill_(self.steps)

    def _step(self, lr: float) -> tuple[Tensor, bool]:
        """Clip, and step unless fp16 overflowed: the norm, and whether the step was skipped."""
        norm = global_norm(self._counted(), self.topology) / self._scale.value
        if self._scale.value != 1 and not torch.isfinite(norm):
            return norm, True
        factor = torch.full_like(norm, 1 / self._scale.value)
        if self.config.clip_grad:
            factor *= (self.config.clip_grad / (norm + 1e-6)).clamp(max=1)
        for flat in self._grads.buckets:
            flat.mul_(factor)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        self.steps += 1
        return norm, False

    def _counted(self) -> list[Tensor]:
        """Gradients that this rank adds to the global norm, so that each counts once."""
        whole = self.topology.tensor_rank == 0
        grads = [p.grad for _, p in self._owned() if whole or shard_dim(p) is not None]
        return [grad for grad in grads if grad is not None]

    def _owned(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters without the last stage's copy of a tied word embedding."""
        for name, parameter in self._parameters.items():
            if self.topology.first_stage or not name.startswith("embedding."):
                yield name, parameter

    def _sum_tied(self) -> None:
        """A tied word embedding is used on two stages: both take the sum of its gradients."""
        if self.model.tied and self.model.embedding is not None:
            grad = self.model.embedding.word.weight.grad
            assert grad is not None
            total(grad, self.topology.embedding_group)

    def _mean(self, losses: list[Tensor]) -> Tensor:
        """Mean over micro batches and data ranks, on all ranks."""
        topology = self.topology
        mean = torch.stack(losses).mean() if losses else torch.zeros((), device=topology.device)
        mean = total(total(mean, topology.pipeline_group), topology.data_group)
        return mean / topology.data_size

    def _noted(self, losses: list[Tensor], y: Tensor) -> Tensor:
        if self.topology.last_stage:
            losses.append(y.detach())
        return y

    def _moved(self, micro_batches: Sequence[Batch]) -> list[Batch]:
        device = self.topology.device
        return [{k: x.to(device, non_blocking=True) for k, x in b.items()} for b in micro_batches]

    def _link(self, batches: list[Batch]) -> pipeline.Link:
        shape = (*batches[0]["tokens"].shape, self.model.model.hidden_size)
        return pipeline.Link(self.topology, shape, torch.float32)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        device, half = self.topology.device.type, self.dtype != torch.float32
        return torch.autocast(device, self.dtype, enabled=half)


def _adamw(config: Config, parameters: dict[str, nn.Parameter]) -> torch.optim.AdamW:
    """Fused AdamW that does not decay biases and norms."""
    values = list(parameters.values())
    groups = [
        {"params": [p for p in values if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in values if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (config.adam_beta1, config.adam_beta2)
    return torch.optim.AdamW(groups, config.lr, betas, config.adam_eps, fused=True)

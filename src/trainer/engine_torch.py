"""Data, tensor and pipeline parallel training in plain torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import pipeline
from .blocks import recomputation
from .engine import StepResult
from .model import Stage, stage_layers
from .parallel import Group, Topology, global_norm, shard_dim, total

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from .config import Config
    from .model import Batch, ModelConfig

BUCKET = 25_000_000  # elements of gradients that are summed over data ranks at a time
MOMENTS = ("exp_avg", "exp_avg_sq")
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def make(config: Config, model_config: ModelConfig, topology: Topology) -> TorchEngine:
    """A TorchEngine with weights initialised from the seed."""
    stage = Stage(model_config, topology, *stage_layers(config, topology))
    stage.initialise(config.seed)
    return TorchEngine(config, stage.to(topology.device), topology)


class Gradients:
    """fp32 gradients in flat buckets, summed over data ranks while the last backward runs."""

    def __init__(self, parameters: Sequence[nn.Parameter], group: Group | None) -> None:
        self.group, self.buckets = group, list[Tensor]()
        self._sizes = list[int]()  # parameters in each bucket
        self._left = list[int]()  # of them, those without a gradient yet; only in the last backward
        self._work = list[dist.Work]()
        part, size = list[Any](), 0
        for parameter in reversed(parameters):  # the order in which gradients come
            part.append(parameter)
            size += parameter.numel()
            if size >= BUCKET or parameter is parameters[0]:
                self._add(part)
                part, size = [], 0

    def _add(self, part: list[nn.Parameter]) -> None:
        sizes, index = [parameter.numel() for parameter in part], len(self.buckets)
        flat = torch.zeros(sum(sizes), device=part[0].device)
        for parameter, piece in zip(part, flat.split_with_sizes(sizes), strict=True):
            parameter.grad = piece.view_as(parameter)
            if self.group is not None:
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    lambda _: self._arrived(index)
                )
        self.buckets.append(flat)
        self._sizes.append(len(part))

    def zero(self) -> None:
        """Begin a step."""
        for flat in self.buckets:
            flat.zero_()

    def before_last(self) -> None:
        """The backward that comes next completes the gradients."""
        self._left = list(self._sizes)

    def finish(self) -> None:
        """Wait until all gradients are summed over the data ranks."""
        for index, left in enumerate(self._left if self.group is not None else ()):
            if left:  # a parameter that was not used
                self._send(index)
        for work in self._work:
            work.wait()
        self._work.clear()
        self._left.clear()

    def _arrived(self, index: int) -> None:
        if self._left:
            self._left[index] -= 1
            if not self._left[index]:
                self._send(index)

    def _send(self, index: int) -> None:
        work = dist.all_reduce(self.buckets[index], group=self.group, async_op=True)
        assert work is not None
        self._work.append(work)


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
        """Learn from one step; a constant scale stays."""
        if config.loss_scale:
            return
        self.good = 0 if overflow else self.good + 1
        self.patience -= overflow
        if overflow and self.patience <= 0:
            self.value = max(self.value / 2, config.min_loss_scale)
        elif self.good == config.loss_scale_window:
            self.value, self.good, self.patience = self.value * 2, 0, config.hysteresis


class TorchEngine:
    """See engine.Engine. Weights, gradients and moments are fp32; autocast decides the rest."""

    def __init__(self, config: Config, model: Stage, topology: Topology) -> None:
        self.config, self.model, self.topology = config, model, topology
        cuda = topology.device.type == "cuda"
        self.dtype = TYPES[config.precision or ("bf16" if cuda else "fp32")]
        self.steps = 0
        self._batches = 0  # calls of train_batch, also skipped ones: part of dropout's key
        scale = config.loss_scale or config.initial_loss_scale
        self._scale = LossScale(scale if self.dtype == torch.float16 else 1.0, config.hysteresis)
        self._parameters = dict(model.named_parameters())
        self._grads = Gradients(list(self._parameters.values()), topology.data_group)
        self._optimizer = _adamw(config, list(self._parameters.values()))
        model.recompute = recomputation(config, topology)
        model.recompute_layers = config.checkpoint_num_layers
        if cuda if config.compile is None else config.compile:
            model.softmax = torch.compile(model.softmax)
            shape = model.model  # FlexAttention's kernels drop nothing and want wide heads
            model.flex = cuda and shape.head_width >= 16 and not shape.attention_dropout
            for block in model.blocks.values():
                block.compile(fullgraph=not model.model.random)  # seeding breaks the graph

    def train_batch(self, micro_batches: Sequence[Batch], lr: float) -> StepResult:
        self.model.train()
        self._grads.zero()
        topology, batches, losses = self.topology, self._moved(micro_batches), list[Tensor]()
        share = self._scale.value / (len(batches) * topology.data_size)

        def forward(number: int, hidden: Tensor | None) -> Tensor:
            index = number * topology.data_size + topology.data_rank
            with self._autocast():
                y = self.model(batches[number], hidden, (self.config.seed, self._batches, index))
            losses.append(y.detach())
            return y * share if topology.last_stage else y  # type: ignore[no-any-return]

        def backward(number: int, y: Tensor, grad: Tensor | None) -> None:
            if number == len(batches) - 1:
                self._grads.before_last()
            torch.autograd.backward(y, grad)

        pipeline.train(topology, self._link(batches), forward, backward, len(batches))
        self._grads.finish()
        if self.model.tied and self.model.embedding is not None:  # it may be on two stages
            grad = self.model.embedding.word.weight.grad
            assert grad is not None
            total(grad, topology.embedding_group)
        norm, scale = global_norm(self._counted(), topology) / self._scale.value, self._scale.value
        skipped = self.dtype == torch.float16 and not torch.isfinite(norm)
        if not skipped:
            self._step(norm, lr)
        self._batches += 1
        self._scale.update(skipped, self.config)
        return StepResult(self._mean(losses), norm, scale, skipped)

    @torch.no_grad()
    def evaluate(self, micro_batches: Sequence[Batch]) -> Tensor:
        self.model.eval()
        batches, losses = self._moved(micro_batches), list[Tensor]()

        def forward(number: int, hidden: Tensor | None) -> Tensor:
            with self._autocast():
                losses.append(self.model(batches[number], hidden))
            return losses[-1]

        pipeline.evaluate(self._link(batches), forward, len(batches))
        return self._mean(losses)

    def full_state(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        writes = self.topology.data_rank == 0 and self.topology.tensor_rank == 0
        for name, parameter in self._owned():
            state, weight = self._optimizer.state.get(parameter, {}), parameter.detach()
            parts = {"parameter": weight}
            parts |= {key: state.get(key, torch.zeros_like(weight)) for key in MOMENTS}
            wholes = {key: self.model.gather_whole(name, part) for key, part in parts.items()}
            yield name, {k: x.to("cpu", copy=True) for k, x in wholes.items()} if writes else {}

    @torch.no_grad()
    def load_full_state(self, read: Callable[[str], dict[str, Tensor]], *, optimizer: bool) -> None:
        self._optimizer.state.clear()
        for name, parameter in self._parameters.items():
            wholes = read(name)
            parameter.copy_(self.model.own_part(name, wholes["parameter"]))
            if optimizer:
                state = {"step": torch.tensor(float(self.steps), device=parameter.device)}
                for key in MOMENTS:
                    part = self.model.own_part(name, wholes[key])
                    state[key] = torch.empty_like(parameter).copy_(part)
                self._optimizer.state[parameter] = state

    def scalars(self) -> dict[str, Any]:
        return {"steps": self.steps, "batches": self._batches, "loss_scale": asdict(self._scale)}

    def load_scalars(self, values: dict[str, Any]) -> None:
        self.steps, self._batches = values["steps"], values.get("batches", values["steps"])
        if self.dtype == torch.float16 and not self.config.loss_scale and "loss_scale" in values:
            self._scale = LossScale(**values["loss_scale"])
        for state in self._optimizer.state.values():
            state["step"].fill_(self.steps)

    def _step(self, norm: Tensor, lr: float) -> None:
        factor = torch.full_like(norm, 1 / self._scale.value)
        if self.config.clip_grad:
            factor *= (self.config.clip_grad / (norm + 1e-6)).clamp(max=1)
        for flat in self._grads.buckets:
            flat.mul_(factor)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        self.steps += 1

    def _counted(self) -> list[Tensor]:
        """Gradients that this rank adds to the global norm, so that each counts once."""
        main = self.topology.tensor_rank == 0
        grads = [p.grad for _, p in self._owned() if main or shard_dim(p) is not None]
        return [grad for grad in grads if grad is not None]

    def _owned(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters without the last stage's copy of a tied word embedding."""
        for name, parameter in self._parameters.items():
            if self.topology.first_stage or not name.startswith("embedding."):
                yield name, parameter

    def _mean(self, losses: list[Tensor]) -> Tensor:
        """Mean over micro batches and data ranks, on all ranks; the last stage's count."""
        topology = self.topology
        mean = torch.zeros((), device=topology.device)
        if topology.last_stage:
            mean = torch.stack(losses).mean() / topology.data_size
        return total(total(mean, topology.pipeline_group), topology.data_group)

    def _moved(self, micro_batches: Sequence[Batch]) -> list[Batch]:
        device = self.topology.device
        return [{k: x.to(device, non_blocking=True) for k, x in b.items()} for b in micro_batches]

    def _link(self, batches: list[Batch]) -> pipeline.Link:
        shape = (*batches[0]["tokens"].shape, self.model.model.hidden_size)
        return pipeline.Link(self.topology, shape, self.dtype)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        half = self.dtype != torch.float32
        return torch.autocast(self.topology.device.type, self.dtype, enabled=half)


def _adamw(config: Config, parameters: Sequence[nn.Parameter]) -> torch.optim.AdamW:
    """Fused AdamW that does not decay biases and norms."""
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (config.adam_beta1, config.adam_beta2)
    return torch.optim.AdamW(groups, config.lr, betas, config.adam_eps, fused=True)

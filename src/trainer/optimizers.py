"""How a step changes the weights: one function for each optimizer, which makes its state too."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from .parallel import spread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from tokpack.configuration.config import Config

    from .model import Stage

    Optimizers = list[torch.optim.Optimizer]

MOMENTS = ("exp_avg", "exp_avg_sq")  # of Adam


def make_optimizers(config: Config, model: Stage) -> Optimizers:
    """What makes a step together, each of its own parameters of the stage.

    The state of a parameter is there from the beginning, so that it can be loaded: tensors of the
    parameter's shape, under any names, which checkpoints have too, and perhaps a "step", which the
    engine sets to the number of steps made.
    """
    return OPTIMIZERS[config.optimizer](config, model)


def state_of(optimizers: Optimizers, parameter: nn.Parameter) -> dict[str, Tensor]:
    """The tensors of a parameter's state, by name; writable."""
    states = (one.state[parameter] for one in optimizers if parameter in one.state)
    return {kind: x for state in states for kind, x in state.items() if kind != "step"}


def set_steps(optimizers: Optimizers, steps: int) -> None:
    """Tell the optimizers how many steps were made."""
    for state in (state for one in optimizers for state in one.state.values() if "step" in state):
        state["step"].fill_(steps)


def adamw(config: Config, parameters: Sequence[nn.Parameter]) -> torch.optim.AdamW:
    """Fused AdamW that does not decay biases and norms; it has no state yet."""
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (config.adam_beta1, config.adam_beta2)
    return torch.optim.AdamW(groups, config.lr, betas, config.adam_eps, fused=True)


def begin_moments(optimizer: torch.optim.AdamW, parameters: Sequence[Tensor]) -> None:
    """Give AdamW its moments, 0, so that they can be read and set before the first step."""
    for x in parameters:
        zeros = {kind: torch.zeros_like(x) for kind in MOMENTS}
        optimizer.state[x] = {"step": torch.zeros((), device=x.device), **zeros}


def _adam(config: Config, model: Stage, names: Sequence[str] | None = None) -> Optimizers:
    """AdamW of all parameters, or of those with these names."""
    parameters = [p for n, p in model.named_parameters() if names is None or n in names]
    optimizer = adamw(config, parameters)
    begin_moments(optimizer, parameters)
    return [optimizer]


class Muon(torch.optim.Optimizer):
    """Steps along the momentum of each matrix with all its singular values made about 1.

    The matrix is the whole one, whatever ranks share it; of data ranks each does some of them, and
    gives the others its steps.
    """

    def __init__(self, config: Config, model: Stage, names: Sequence[str]) -> None:
        parameters = [model.get_parameter(name) for name in names]
        super().__init__(parameters, {"lr": config.lr})
        self.state.update({p: {"momentum_buffer": torch.zeros_like(p)} for p in parameters})
        self._config, self._model = config, model
        self._named = list(zip(names, parameters, strict=True))
        half = config.precision_on(model.topology.device.type) == "bf16"
        self._dtype = torch.bfloat16 if half else parameters[0].dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        ranks, rank = self._model.topology.data_size, self._model.topology.data_rank
        steps = []
        for number, (name, parameter) in enumerate(self._named):
            momentum, grad = self.state[parameter]["momentum_buffer"], parameter.grad
            assert grad is not None
            momentum.lerp_(grad, 1 - self._config.muon_momentum)
            x = momentum
            if self._config.muon_nesterov:
                x = grad.lerp(momentum, self._config.muon_momentum)
            mine = number % ranks == rank
            steps.append(
                self._orthogonal(name, x) if mine else torch.empty_like(x, dtype=self._dtype)
            )
        lr = self.param_groups[0]["lr"]
        for number, ((_, parameter), x) in enumerate(zip(self._named, steps, strict=True)):
            spread(x, number % ranks, self._model.topology.data_group)
            parameter.mul_(1 - lr * self._config.weight_decay).sub_(x.to(parameter.dtype), alpha=lr)

    def _orthogonal(self, name: str, x: Tensor) -> Tensor:
        """This tensor rank's part of the step of one matrix; tensor ranks call it together."""
        whole = self._model.gather_whole(name, x.to(self._dtype))
        if name.endswith("attention.qkv.weight") and self._config.muon_split_qkv:
            shape = self._model.model
            rows = whole.view(shape.num_query_groups, -1, shape.head_width, whole.shape[1])
            parts = torch.split(rows, [rows.shape[1] - 2, 1, 1], 1)
            done = [self._scaled(part.flatten(0, 2)).view_as(part) for part in parts]
            whole = torch.cat(done, 1).flatten(0, 2)
        else:
            whole = self._scaled(whole)
        return self._model.own_part(name, whole).contiguous()

    def _scaled(self, x: Tensor) -> Tensor:
        rows, columns = x.shape
        scale: dict[str, float] = {
            "spectral": max(rows, columns),
            "unit_rms_norm": rows / columns,
            "shape_scaling": max(1, rows / columns),
        }
        factor = math.sqrt(scale[self._config.muon_scale_mode])
        x = newton_schulz(x, self._config.muon_num_ns_steps)
        return x * (factor * self._config.muon_extra_scale_factor)


def newton_schulz(x: Tensor, steps: int) -> Tensor:
    """A matrix like ``x`` [r, c] whose singular values, but for tiny ones, are 0.7 to 1.2."""
    wide: Tensor = x if x.shape[0] <= x.shape[1] else x.mT
    wide = wide / wide.norm().clamp(min=1e-7)
    for _ in range(steps):
        square = wide @ wide.mT
        wide = 3.4445 * wide + (2.0315 * square @ square - 4.7750 * square) @ wide
    return wide if x.shape[0] <= x.shape[1] else wide.mT


def _muon(config: Config, model: Stage) -> Optimizers:
    """Muon of the matrices of the layers, AdamW of all else."""
    names = [n for n, p in model.named_parameters() if n.startswith("blocks.") and p.ndim == 2]
    rest = [n for n, _ in model.named_parameters() if n not in names]
    return [*([Muon(config, model, names)] if names else ()), *_adam(config, model, rest)]


OPTIMIZERS: dict[str, Callable[[Config, Stage], Optimizers]] = {"adam": _adam, "muon": _muon}

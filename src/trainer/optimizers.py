"""The optimizers, AdamW and Muon, with their state."""

from __future__ import annotations

import math
from itertools import cycle
from typing import TYPE_CHECKING

import torch

from .parallel import spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

    from .config.config import Config
    from .config.model import ModelConfig
    from .model import Stage
    from .sharding import OptimizerShard

    Optimizers = list[torch.optim.Optimizer]

MOMENTS = ("exp_avg", "exp_avg_sq")  # of Adam


def make_optimizers(config: Config, model: Stage, held: Mapping[str, OptimizerShard]) -> Optimizers:
    """The optimizers that make a step together, each for some of the parameters ``held`` here.

    AdamW for all; or Muon for the matrices of the layers and AdamW for everything else. The state
    of a parameter exists from the beginning, so that it can be loaded: tensors of the held
    parameter's shape, which have the same names in checkpoints. If there is a tensor "step", the
    engine sets it to the number of steps made.
    """
    matrices = {
        name: one
        for name, one in held.items()
        if config.optimizer == "muon" and name.startswith("blocks.") and len(one.shape) == 2
    }
    rest = {name: one.parameter for name, one in held.items() if name not in matrices}
    optimizer = adamw(config, rest, model.model)
    begin_moments(optimizer, list(rest.values()))
    return [*([Muon(config, model, matrices)] if matrices else ()), optimizer]


def state_of(optimizers: Optimizers, parameter: nn.Parameter) -> dict[str, Tensor]:
    """The state of a parameter, as writable tensors by name."""
    states = (one.state[parameter] for one in optimizers if parameter in one.state)
    return {kind: x for state in states for kind, x in state.items() if kind != "step"}


def set_steps(optimizers: Optimizers, steps: int) -> None:
    """Set the number of steps made in the state of all optimizers."""
    for state in (state for one in optimizers for state in one.state.values() if "step" in state):
        state["step"].fill_(steps)


def adamw(
    config: Config, parameters: Mapping[str, nn.Parameter], model: ModelConfig
) -> torch.optim.AdamW:
    """Fused AdamW that does not decay biases and norms; it has no state yet."""
    matrices = {name for name in parameters if len(model.layout[name].shape) > 1}
    groups = [
        {
            "params": [p for name, p in parameters.items() if (name in matrices) is decays],
            "weight_decay": config.weight_decay if decays else 0.0,
        }
        for decays in (True, False)
    ]
    betas = (config.adam_beta1, config.adam_beta2)
    return torch.optim.AdamW(groups, config.lr, betas, config.adam_eps, fused=True)


def begin_moments(optimizer: torch.optim.AdamW, parameters: Sequence[Tensor]) -> None:
    """Create AdamW's moments, all 0, so that they can be read and set before the first step."""
    for x in parameters:
        zeros = {kind: torch.zeros_like(x) for kind in MOMENTS}
        optimizer.state[x] = {"step": torch.zeros((), device=x.device), **zeros}


class Muon(torch.optim.Optimizer):
    """Muon: its step is the momentum of a matrix, with all singular values brought to about 1.

    This is always the whole matrix, however ranks share it. Data ranks compute the steps of
    matrices in turn and send them to each other. (https://kellerjordan.github.io/posts/muon)
    """

    def __init__(self, config: Config, model: Stage, held: Mapping[str, OptimizerShard]) -> None:
        super().__init__([one.parameter for one in held.values()], {"lr": config.lr})
        self._config, self._model, self._held = config, model, held
        for one in held.values():
            self.state[one.parameter] = {"momentum_buffer": torch.zeros_like(one.parameter)}
        half = config.precision_on(model.topology.device.type) == "bf16"
        self._dtype = torch.bfloat16 if half else next(iter(self.state)).dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        topology, lr = self._model.topology, self.param_groups[0]["lr"]
        turns = dict(zip(self._held, cycle(range(topology.data_size)), strict=False))
        mine: dict[str, Tensor] = {}  # whole directions, and then steps, of this rank's turns
        for name, one in self._held.items():
            whole = one.whole(self._direction(one.parameter).to(self._dtype))
            if turns[name] == topology.data_rank:
                mine[name] = whole
        for name, x in mine.items():  # all of them, before the first one is sent
            mine[name] = self._orthogonal(name, x)
        for name, one in self._held.items():
            absent = one.parameter.new_empty(one.shape, dtype=self._dtype)
            whole = spread(mine.pop(name, absent), turns[name], topology)
            rows = one.rows(whole).to(one.parameter.dtype)
            one.parameter.mul_(1 - lr * self._config.weight_decay).sub_(rows, alpha=lr)

    def _direction(self, parameter: nn.Parameter) -> Tensor:
        grad, momentum = parameter.grad, self.state[parameter]["momentum_buffer"]
        assert grad is not None
        momentum.lerp_(grad, 1 - self._config.muon_momentum)
        if not self._config.muon_nesterov:
            return momentum  # type: ignore[no-any-return]
        return grad.lerp(momentum, self._config.muon_momentum)

    def _orthogonal(self, name: str, x: Tensor) -> Tensor:
        """This tensor rank's part of the step of one matrix; all tensor ranks call it together."""
        whole = self._model.gather_whole(name, x)
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
    """``x`` [r, c] with its singular values, except tiny ones, brought to 0.7 to 1.2."""
    wide: Tensor = x if x.shape[0] <= x.shape[1] else x.mT
    wide = wide / wide.norm().clamp(min=1e-7)
    for _ in range(steps):
        square = wide @ wide.mT
        wide = 3.4445 * wide + (2.0315 * square @ square - 4.7750 * square) @ wide
    return wide if x.shape[0] <= x.shape[1] else wide.mT

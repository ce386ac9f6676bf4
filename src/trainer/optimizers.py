"""How a step changes the weights: one function for each optimizer, which makes its state too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

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


OPTIMIZERS: dict[str, Callable[[Config, Stage], Optimizers]] = {"adam": _adam}

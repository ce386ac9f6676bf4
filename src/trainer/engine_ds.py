"""Training through DeepSpeed: ZeRO 1 to 3, with tensor parallelism, without a pipeline.

It uses DeepSpeed's public API, and works around what that lacks (0.19.8): the counters of its loss
scale; in ZeRO 3, setting a weight whose size is not a multiple of the ranks; fp16 on a CPU.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import math
import os
import sys
import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tokpack.display import tell
from tokpack.errors import UsageError, worded

from .config.flags import make_settings
from .engine import StepResult
from .model import Stage, stage_layers
from .optimizers import MOMENTS, adamw, begin_moments, set_steps
from .parallel import Topology, mean_loss

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .config.config import Config
    from .config.model import ModelConfig
    from .engine import Read
    from .model import Batch

    Feed = Iterator[tuple[Batch, tuple[int, ...]]]  # micro batches with their keys of dropout

FIRST, BEFORE = (0, 19, 3), (0, 20)  # releases of DeepSpeed
KINDS = ("parameter", *MOMENTS)  # the tensors of a parameter


def make(config: Config, model_config: ModelConfig, topology: Topology) -> DeepSpeedEngine:
    """A DeepSpeedEngine with weights initialised from the seed.

    Raises UsageError if this release of DeepSpeed is not known, or cannot do what is asked.
    """
    settings, notes = make_settings(config, topology.device.type)
    if topology.is_main:
        for note in notes:
            tell(f"note: {worded(note, config.flags)}")
    library = _open_library(topology)
    stage = Stage(model_config, topology, stage_layers(config, topology))
    stage.initialise(config.seed)
    return DeepSpeedEngine(config, stage, topology, library, settings)


class DeepSpeedEngine:
    """An engine.Engine on DeepSpeed. In half precision the weights are halves, and ZeRO keeps fp32
    masters of them.
    """

    def __init__(
        self, config: Config, model: Stage, topology: Topology, library: Any, settings: Any
    ) -> None:
        self.config = config
        self.model = model
        self.topology = topology
        self.library = library
        self.zero = settings["zero_optimization"]["stage"]
        self.steps, self.rooms = 0, ()
        self._batches = 0  # calls of train_batch, also skipped ones: part of dropout's key
        self._parameters = dict(model.named_parameters())
        model.recompute = config.recomputed_together
        cuda = topology.device.type == "cuda"
        if self.zero < 3 and (cuda if config.compile is None else config.compile):
            model.compile_parts()  # but not with ZeRO 3, which gathers weights inside of blocks
        self._adamw = adamw(config, self._parameters, model.model)

        with contextlib.redirect_stdout(io.StringIO()):  # the run itself says what matters
            self._engine = library.initialize(
                model=model,
                optimizer=self._adamw,
                mpu=_mpu(topology),
                config=settings,
                dist_init_required=False,
            )[0]

        if self.zero == 3:  # the loss reads the head's weight, which is one of another module
            library.zero.register_external_parameter(model, model.head_weight)
        if scaler := self._scaler():  # metrics.STREAK ends such a run with a better message
            scaler.raise_error_at_min_scale = False
        self._begin_moments()

    def train_batch(self, micro_batches: Sequence[Batch], lr: float) -> StepResult:
        engine, count = self._engine, len(micro_batches)
        scale = float(getattr(engine.optimizer, "cur_scale", 1.0))
        engine.set_train_batch_size(count * self.topology.data_size * self.config.micro_batch_size)
        for group in self._adamw.param_groups:
            group["lr"] = lr
        engine.train()
        losses: list[Tensor] = []
        for number, (batch, key) in enumerate(self._feed(micro_batches), 1):
            # DeepSpeed counts micro batches through all steps, wrongly when the batch size changes.
            engine.set_gradient_accumulation_boundary(number == count)
            loss = engine(batch, None, key)
            losses.append(loss.detach())
            engine.backward(loss)
            engine.step()
        skipped = not engine.was_step_applied()
        self.steps += not skipped
        self._batches += 1
        norm = math.inf if skipped else engine.get_global_grad_norm()
        norm = torch.as_tensor(norm, dtype=torch.float32, device=self.topology.device)
        return StepResult(mean_loss(losses, self.topology), norm, scale, skipped)

    @torch.no_grad()
    def evaluate(self, micro_batches: Sequence[Batch]) -> Tensor:
        self._engine.eval()
        feed = self._feed(micro_batches)
        return mean_loss([self._engine(batch, None, key) for batch, key in feed], self.topology)

    def full_state(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        def parts(name: str) -> dict[str, Tensor]:
            return {kind: self._part(self._parameters[name], kind) for kind in KINDS}

        return self.model.full_state(parts)

    @torch.no_grad()
    def load_full_state(self, read: Read, *, optimizer: bool) -> None:
        kinds = KINDS if optimizer else KINDS[:1]
        for name, parameter in self._parameters.items():
            whole = read(name, kinds)
            parts = {kind: self.model.own_part(name, whole[kind]) for kind in kinds}
            with self.library.zero.GatheredParameters([parameter], modifier_rank=0):
                parameter.data.copy_(parts["parameter"])
            for kind, part in parts.items():
                self._set_part(parameter, kind, part)
        if not optimizer:
            for x in (x for state in self._adamw.state.values() for x in state.values()):
                x.zero_()

    def scalars(self) -> dict[str, Any]:
        scale = None  # a fixed scale needs no saving
        if scaler := self._scaler():
            good = scaler.cur_iter - scaler.last_overflow_iter - 1
            scale = {"value": scaler.cur_scale, "patience": scaler.cur_hysteresis, "good": good}
        return {"steps": self.steps, "batches": self._batches, "loss_scale": scale}

    def load_scalars(self, values: dict[str, Any]) -> None:
        self.steps, self._batches = values["steps"], values["batches"]
        if (scaler := self._scaler()) and (scale := values["loss_scale"]):
            scaler.cur_scale, scaler.cur_hysteresis = scale["value"], scale["patience"]
            scaler.last_overflow_iter = scaler.cur_iter - scale["good"] - 1
        set_steps([self._adamw], self.steps)

    def _feed(self, micro_batches: Sequence[Batch]) -> Feed:
        for number, batch in enumerate(micro_batches):
            moved = {k: x.to(self.topology.device, non_blocking=True) for k, x in batch.items()}
            yield moved, (self.config.seed, self._batches, self.topology.micro_batch(number))

    def _scaler(self) -> Any:
        """DeepSpeed's dynamic loss scale, or None."""
        scaler = getattr(self._engine.optimizer, "loss_scaler", None)
        return scaler if getattr(scaler, "dynamic", False) else None

    def _begin_moments(self) -> None:
        """Create AdamW's moments, all 0, so that they can be read and set before the first step.

        Before a first step DeepSpeed gives no moments: so one is made without labels, at a learning
        rate of 0.
        """
        if self.zero < 3:  # else it hands out those of the first group alone (0.19.8)
            begin_moments(
                self._adamw, [x for one in self._adamw.param_groups for x in one["params"]]
            )
        shape = self.config.micro_batch_size, self.config.seq_length
        zeros, scalars = torch.zeros(shape, dtype=torch.long), self.scalars()
        batch = dict.fromkeys(("tokens", "labels", "position_ids"), zeros)
        self.train_batch([batch | {"loss_mask": torch.zeros(shape)}], 0.0)
        self.load_scalars(scalars)

    def _part(self, parameter: nn.Parameter, kind: str) -> Any:
        """This tensor rank's part of a parameter, or of one of its moments, as float32;
        collective.
        """
        utils = self.library.utils
        if kind == "parameter":
            return utils.safe_get_full_fp32_param(parameter)
        return utils.safe_get_full_optimizer_state(parameter, kind)

    def _set_part(self, parameter: Any, kind: str, value: Tensor) -> None:
        """Set what ``_part`` returns; this rank keeps the share that ZeRO assigns to it."""
        value = value.to(self.topology.device, torch.float32)
        scope = "full"
        if self.zero == 3:  # cut here: DeepSpeed's own function forgets that the end is padded
            scope = "local"
            size = -(-value.numel() // self.topology.data_size)
            begin = size * self.topology.data_rank
            value = functional.pad(value.flatten(), (0, size * self.topology.data_size))
            value = value[begin : begin + size]

        if kind == "parameter":
            getattr(self.library.utils, f"safe_set_{scope}_fp32_param")(parameter, value)
        else:
            getattr(self.library.utils, f"safe_set_{scope}_optimizer_state")(parameter, value, kind)


def _open_library(topology: Topology) -> Any:
    """DeepSpeed, ready for this machine. Raises UsageError if the release is not known."""
    cuda = topology.device.type == "cuda"
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if cuda else "cpu")
    import deepspeed

    release = tuple(map(int, deepspeed.__version__.split("+")[0].split(".")[:3]))
    if not FIRST <= release < BEFORE:
        first, before = (".".join(map(str, numbers)) for numbers in (FIRST, BEFORE))
        raise UsageError(
            f"deepspeed is {deepspeed.__version__}, expected at least {first} and before {before}, "
            "which are tested"
        )
    logger = deepspeed.utils.logger
    logger.setLevel("WARNING" if topology.is_main else "ERROR")  # all ranks mostly say the same
    for handler in logger.handlers:  # to stderr: stdout is buffered, and its lines come too late
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
    for name in ("all_gather_into_tensor", "reduce_scatter_tensor"):
        warnings.filterwarnings("ignore", f".*{name}", FutureWarning)
    if not cuda:
        # A CPU may emulate fp16, which is slow but correct, so that scripts can be tried.
        deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True
        # Every rank would compile this, and wait for ever if a killed run has left a lock there.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    os.environ.setdefault("LOCAL_RANK", "0")
    deepspeed.init_distributed(dist_init_required=False)
    return deepspeed


def _mpu(topology: Topology) -> SimpleNamespace:
    """Our process groups, under the names that DeepSpeed asks for."""
    mesh = topology.mesh
    assert mesh is not None
    tensor, data = (
        (mesh.get_local_rank(name), mesh[name].size(), mesh.get_group(name))
        for name in ("tensor", "data")
    )
    kinds = {"model_parallel": tensor, "tensor_model_parallel": tensor, "data_parallel": data}
    answers = {
        f"get_{kind}_{what}": itertools.repeat(value).__next__
        for kind, values in kinds.items()
        for what, value in zip(("rank", "world_size", "group"), values, strict=True)
    }
    return SimpleNamespace(**answers)

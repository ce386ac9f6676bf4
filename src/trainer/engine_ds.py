"""Training through DeepSpeed: ZeRO 0 to 3, or its pipeline with ZeRO 1."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from tokpack.configuration.deepspeed_json import make_settings
from tokpack.display import tell
from tokpack.errors import worded

from .blocks import recomputation
from .deepspeed_setup import open_library
from .engine import StepResult
from .model import Stage, stage_layers
from .optimizers import MOMENTS, adamw, begin_moments, set_steps
from .parallel import Topology, global_norm, group_of_one, mean_loss

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.configuration.config import Config
    from tokpack.configuration.model import ModelConfig

    from .engine import Read
    from .model import Batch

    Feed = Iterator[tuple[Batch, tuple[int, ...]]]  # micro batches with their keys of dropout

KINDS = ("parameter", *MOMENTS)  # the tensors of a parameter
PARTITIONS = (  # attributes in which an optimizer of DeepSpeed keeps its fp32 weights
    "fp32_partitioned_groups_flat",  # ZeRO 3
    "single_partition_of_fp32_groups",  # ZeRO 1 and 2
    "fp32_groups_flat_partition",  # ZeRO 1 in bf16
)
# Batches that DeepSpeed's pipeline loads and nobody reads: micro batches come from ``feed``.
NOTHING = itertools.repeat((torch.zeros(()), torch.zeros(())))


def make(config: Config, model_config: ModelConfig, topology: Topology) -> DeepSpeedEngine:
    """A DeepSpeedEngine with weights initialised from the seed.

    Raises UsageError where DeepSpeed is of an unknown release, or cannot do this.
    """
    settings, notes = make_settings(config, topology.device.type)
    if topology.is_main:
        for note in notes:
            tell(f"note: {worded(note, config.flags)}")
    library = open_library(topology)
    stage = Stage(model_config, topology, stage_layers(config, topology))
    stage.initialise(config.seed)
    return DeepSpeedEngine(config, stage, topology, library, settings)


class Layer(nn.Module):
    """A whole stage as a single layer of DeepSpeed's pipeline.

    The pipeline passes only hidden states on: each stage takes the micro batches from ``feed``.
    """

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage
        self.feed: Feed = iter(())

    def forward(self, x: Tensor) -> Tensor:
        batch, key = next(self.feed)
        return self.stage(batch, None if self.stage.topology.first_stage else x, key)  # type: ignore[no-any-return]


class DeepSpeedEngine:
    """See engine.Engine. In half precision weights are halves, of which ZeRO keeps fp32 masters."""

    def __init__(
        self, config: Config, model: Stage, topology: Topology, library: Any, settings: Any
    ) -> None:
        self.config = config
        self.model = model
        self.topology = topology
        self.library = library
        self.zero = settings["zero_optimization"]["stage"]
        self.steps = 0
        self._batches = 0  # calls of train_batch, also skipped ones: part of dropout's key
        self._parameters = dict(model.named_parameters())
        model.recompute = recomputation(config, topology)
        model.recompute_layers = config.checkpoint_num_layers
        cuda = topology.device.type == "cuda"
        if self.zero < 3 and (cuda if config.compile is None else config.compile):
            model.compile_parts()  # ZeRO 3 gathers weights inside of blocks
        self._layer = Layer(model)
        self._adamw = adamw(config, self._parameters, model.model)
        self._pipes = topology.pipeline_size > 1

        with contextlib.redirect_stdout(io.StringIO()):  # the run says itself what matters of it
            self._engine = library.initialize(
                model=_pipeline(library, self._layer, topology) if self._pipes else model,
                optimizer=self._adamw,
                mpu=None if self._pipes else _mpu(topology),
                config=settings,
                dist_init_required=False,
            )[0]

        if self.zero == 3:  # the loss reads the head's weight, which is one of another module
            library.zero.register_external_parameter(model, model.head_weight)
        if scaler := self._scaler():  # metrics.STREAK ends such a run with a better message
            scaler.raise_error_at_min_scale = False
        self._begin_moments()

    def train_batch(self, micro_batches: Sequence[Batch], lr: float) -> StepResult:
        engine = self._engine
        scale = self._loss_scale()
        feed = self._feed(micro_batches)
        samples = len(micro_batches) * self.topology.data_size * self.config.micro_batch_size
        engine.set_train_batch_size(samples)
        for group in self._adamw.param_groups:
            group["lr"] = lr

        norm: Any = None
        if self._pipes:
            self._layer.feed = feed
            loss = engine.train_batch(NOTHING)
        else:
            loss, norm = self._train(feed, len(micro_batches))
        if norm is None:
            norm = engine.get_global_grad_norm()

        skipped = not engine.was_step_applied()
        self.steps += not skipped
        self._batches += 1
        norm = torch.as_tensor(math.inf if skipped else norm, dtype=torch.float32)
        return StepResult(loss, norm.to(self.topology.device), scale, skipped)

    @torch.no_grad()
    def evaluate(self, micro_batches: Sequence[Batch]) -> Tensor:
        feed = self._feed(micro_batches)
        if self._pipes:
            self._layer.feed = feed
            return self._engine.eval_batch(NOTHING, num_micro_batches=len(micro_batches))  # type: ignore[no-any-return]
        self._engine.eval()
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
            self._begin_moments()

    def scalars(self) -> dict[str, Any]:
        scale = None  # where it does not change there is nothing to keep
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

    def _train(self, feed: Feed, count: int) -> tuple[Tensor, Tensor | None]:
        """A step of a whole model: its loss, and the norm where DeepSpeed keeps that to itself."""
        engine = self._engine
        losses: list[Tensor] = []
        norm: Tensor | None = None
        engine.train()
        for number, (batch, key) in enumerate(feed, 1):
            # DeepSpeed counts micro batches through all steps, wrongly when the batch size changes.
            engine.set_gradient_accumulation_boundary(number == count)
            loss = engine(batch, None, key)
            losses.append(loss.detach())
            engine.backward(loss)
            if self.zero == 0 and number == count:
                grads = (self._parameters[name].grad for name in self.model.counted())
                norm = global_norm([grad for grad in grads if grad is not None], self.topology)
            engine.step()
        return mean_loss(losses, self.topology), norm

    def _feed(self, micro_batches: Sequence[Batch]) -> Feed:
        for number, batch in enumerate(micro_batches):
            moved = {k: x.to(self.topology.device, non_blocking=True) for k, x in batch.items()}
            yield moved, (self.config.seed, self._batches, self.topology.micro_batch(number))

    def _loss_scale(self) -> float:
        return float(getattr(self._engine.optimizer, "cur_scale", 1.0))

    def _scaler(self) -> Any:
        """DeepSpeed's dynamic loss scale, or None."""
        scaler = getattr(self._engine.optimizer, "loss_scaler", None)
        return scaler if getattr(scaler, "dynamic", False) else None

    def _begin_moments(self) -> None:
        """Make AdamW's moments, 0, so that they can be read and set before the first step."""
        optimizer = self._engine.optimizer
        held = list(self._parameters.values())
        if self.zero:
            held = next(x for name in PARTITIONS if (x := getattr(optimizer, name, None)))
        begin_moments(self._adamw, held)
        if self.zero in (1, 2):
            optimizer._hp_optimizer_states_linked = False
            optimizer._lazy_init_hp_params_optimizer_state()

    def _part(self, parameter: nn.Parameter, kind: str) -> Any:
        """This tensor rank's part of a parameter, or of a moment of it, float32; collective."""
        utils = self.library.utils
        if self.zero == 0:
            state = self._adamw.state[parameter]
            return parameter.detach() if kind == "parameter" else state[kind]
        if kind == "parameter":
            return utils.safe_get_full_fp32_param(parameter)
        return utils.safe_get_full_optimizer_state(parameter, kind)

    def _set_part(self, parameter: Any, kind: str, value: Tensor) -> None:
        """The reverse of ``_part``, of which this rank keeps what ZeRO gives it."""
        if self.zero == 0:
            self._part(parameter, kind).copy_(value)
            return

        value = value.to(self.topology.device, torch.float32)
        scope = "full"
        if self.zero == 3:  # cut here: DeepSpeed's own function forgets that the end is padded
            scope = "local"
            size = parameter.ds_tensor.numel()
            begin = size * self.topology.data_rank
            value = functional.pad(value.flatten(), (0, size * self.topology.data_size))
            value = value[begin : begin + size]

        if kind == "parameter":
            getattr(self.library.utils, f"safe_set_{scope}_fp32_param")(parameter, value)
        else:
            getattr(self.library.utils, f"safe_set_{scope}_optimizer_state")(parameter, value, kind)


def _mpu(topology: Topology) -> SimpleNamespace:
    """Our groups, under the names that DeepSpeed asks for."""
    alone = group_of_one(topology.device)
    tensor = (topology.tensor_rank, topology.tensor_size, topology.tensor_group or alone)
    data = (topology.data_rank, topology.data_size, topology.data_group or alone)
    kinds = {"model_parallel": tensor, "tensor_model_parallel": tensor, "data_parallel": data}
    answers = {
        f"get_{kind}_{what}": itertools.repeat(value).__next__
        for kind, values in kinds.items()
        for what, value in zip(("rank", "world_size", "group"), values, strict=True)
    }
    return SimpleNamespace(**answers)


def _pipeline(library: Any, layer: Layer, topology: Topology) -> Any:
    """A PipelineModule with one layer in each stage, in which the word embedding may be tied."""
    pipe, embedding = library.runtime.pipe, layer.stage.embedding
    axes = (topology.pipeline_size, topology.tensor_size, topology.data_size)
    module = pipe.PipelineModule(
        [layer] * topology.pipeline_size,
        topology=pipe.topology.PipeModelDataParallelTopology(*axes),
        partition_method="uniform",
    )
    if layer.stage.tied and embedding is not None:
        word, group = embedding.word, topology.embedding_group
        ranks = dist.get_process_group_ranks(group)
        tie = {"ranks": ranks, "group": group, "weight_attr": ["weight"], "module": word}
        module.tied_modules["word"], module.tied_comms["word"] = word, tie
        word.weight.ds_pipe_replicated = not topology.first_stage  # type: ignore[attr-defined]
    return module

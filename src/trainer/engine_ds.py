"""Training through DeepSpeed: ZeRO 0 to 3, or its pipeline with ZeRO 1."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import os
import sys
import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from tokpack.errors import UsageError

from .blocks import recomputation
from .engine import StepResult
from .engine_torch import MOMENTS, _adamw
from .model import Stage, stage_layers
from .parallel import Topology, global_norm, shard_dim, total

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .config import Config
    from .model import Batch, ModelConfig

# Older releases, from 0.16 on, sum or shrink a pipeline's gradients without a word.
FIRST, BEFORE = (0, 19, 3), (0, 20)
# Blocks of its JSON that are ours: flags.py has taken what they say.
OURS = ("activation_checkpointing", "optimizer", "scheduler", "bfloat16")


def make(config: Config, model_config: ModelConfig, topology: Topology) -> DeepSpeedEngine:
    """A DeepSpeedEngine with weights initialised from the seed.

    Raises UsageError where DeepSpeed is missing, of an unknown release, or cannot do this.
    """
    precision = config.precision or ("bf16" if topology.device.type == "cuda" else "fp32")
    zero = _zero_stage(config, precision, topology)
    settings = _settings(config, precision, zero, topology)
    library = _library(topology)
    stage = Stage(model_config, topology, *stage_layers(config, topology))
    stage.initialise(config.seed)
    return DeepSpeedEngine(config, stage, topology, library, settings)


class Layer(nn.Module):
    """A whole stage as the one layer that DeepSpeed's pipeline gives each of its stages.

    Only hidden states go through that pipeline: micro batches are taken from ``feed``, in order.
    """

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage
        self.feed: Iterator[tuple[Batch, tuple[int, ...]]] = iter(())

    def forward(self, x: Tensor) -> Tensor:
        batch, key = next(self.feed)
        hidden = None if self.stage.topology.first_stage else x
        return self.stage(batch, hidden, key)  # type: ignore[no-any-return]


class DeepSpeedEngine:
    """See engine.Engine. In half precision weights are halves, of which ZeRO keeps fp32 masters."""

    def __init__(
        self,
        config: Config,
        model: Stage,
        topology: Topology,
        library: Any,
        settings: dict[str, Any],
    ) -> None:
        self.config, self.model, self.topology, self.library = config, model, topology, library
        self.zero = settings["zero_optimization"]["stage"]
        self.steps = 0
        self._batches = 0  # calls of train_batch, also skipped ones: part of dropout's key
        self._parameters = dict(model.named_parameters())
        model.recompute = recomputation(config, topology)
        model.recompute_layers = config.checkpoint_num_layers
        self._layer, self._adamw = Layer(model), _adamw(config, list(self._parameters.values()))
        piped = topology.pipeline_size > 1
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what the run says itself
            self._engine = library.initialize(
                model=_pipeline(library, self._layer, topology) if piped else model,
                optimizer=self._adamw,
                mpu=None if piped else _mpu(topology),
                config=settings,
                dist_init_required=False,
            )[0]
        if self.zero == 3:  # the loss asks for a weight that is another module's
            library.zero.register_external_parameter(model, model.head_weight)
        self._begin_moments()

    def train_batch(self, micro_batches: Sequence[Batch], lr: float) -> StepResult:
        engine, scale = self._engine, self._loss_scale()
        samples = len(micro_batches) * self.topology.data_size * self.config.micro_batch_size
        engine.set_train_batch_size(samples)
        for group in self._adamw.param_groups:
            group["lr"] = lr
        feed = self._feed(micro_batches)
        if self.topology.pipeline_size > 1:
            self._layer.feed = feed
            loss = engine.train_batch(_nothing())
            norm = engine.get_global_grad_norm()
        else:
            loss, norm = self._train(feed)
        skipped = not engine.was_step_applied()
        self.steps += not skipped
        self._batches += 1
        norm = torch.as_tensor(math.inf if skipped else norm, dtype=torch.float32)
        return StepResult(loss, norm.to(self.topology.device), scale, skipped)

    @torch.no_grad()
    def evaluate(self, micro_batches: Sequence[Batch]) -> Tensor:
        feed, count = self._feed(micro_batches), len(micro_batches)
        if self.topology.pipeline_size > 1:
            self._layer.feed = feed
            loss: Tensor = self._engine.eval_batch(_nothing(), num_micro_batches=count)
            return loss
        self._engine.eval()
        return self._mean([self._engine(batch) for batch, _ in feed])

    def full_state(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        writes = self.topology.data_rank == 0 and self.topology.tensor_rank == 0
        for name, parameter in self._owned():
            parts = {"parameter": self._full(parameter, None)}
            parts |= {key: self._full(parameter, key) for key in MOMENTS}
            wholes = {key: self.model.gather_whole(name, part) for key, part in parts.items()}
            yield name, {k: x.to("cpu", copy=True) for k, x in wholes.items()} if writes else {}

    @torch.no_grad()
    def load_full_state(self, read: Callable[[str], dict[str, Tensor]], *, optimizer: bool) -> None:
        for name, parameter in self._parameters.items():
            wholes = read(name)
            part = self.model.own_part(name, wholes["parameter"])
            with self.library.zero.GatheredParameters([parameter], modifier_rank=0):
                parameter.data.copy_(part)
            self._set_full(parameter, None, part)
            for key in MOMENTS:
                moment = self.model.own_part(name, wholes[key]) if optimizer else part * 0
                self._set_full(parameter, key, moment)

    def scalars(self) -> dict[str, Any]:
        scaler = getattr(self._engine.optimizer, "loss_scaler", None)
        scale = {"value": self._loss_scale(), "patience": self.config.hysteresis, "good": 0}
        if getattr(scaler, "dynamic", False):
            scale["patience"] = scaler.cur_hysteresis
            scale["good"] = scaler.cur_iter - scaler.last_overflow_iter - 1
        return {"steps": self.steps, "batches": self._batches, "loss_scale": scale}

    def load_scalars(self, values: dict[str, Any]) -> None:
        self.steps, self._batches = values["steps"], values.get("batches", values["steps"])
        scaler, scale = getattr(self._engine.optimizer, "loss_scaler", None), values["loss_scale"]
        if getattr(scaler, "dynamic", False):
            scaler.cur_scale, scaler.cur_hysteresis = scale["value"], scale["patience"]
            scaler.last_overflow_iter = scaler.cur_iter - scale["good"] - 1
        for state in self._adamw.state.values():
            state["step"].fill_(self.steps)

    def _train(self, feed: Iterator[tuple[Batch, tuple[int, ...]]]) -> tuple[Tensor, Any]:
        """A step of a whole model: the loss, and the norm of the gradients."""
        engine, losses, norm = self._engine, list[Tensor](), None
        engine.train()
        for batch, key in feed:
            loss = engine(batch, None, key)
            losses.append(loss.detach())
            engine.backward(loss)
            if self.zero == 0 and engine.is_gradient_accumulation_boundary():
                norm = global_norm(self._counted(), self.topology)  # it keeps its own to itself
            engine.step()
        return self._mean(losses), engine.get_global_grad_norm() if norm is None else norm

    def _feed(self, micro_batches: Sequence[Batch]) -> Iterator[tuple[Batch, tuple[int, ...]]]:
        """Micro batches on this device, each with its key of dropout."""
        topology = self.topology
        for number, batch in enumerate(micro_batches):
            index = number * topology.data_size + topology.data_rank
            moved = {k: x.to(topology.device, non_blocking=True) for k, x in batch.items()}
            yield moved, (self.config.seed, self._batches, index)

    def _mean(self, losses: list[Tensor]) -> Tensor:
        mean = torch.stack(losses).mean() / self.topology.data_size
        return total(mean, self.topology.data_group)

    def _counted(self) -> list[Tensor]:
        """Gradients that this rank adds to the global norm, so that each counts once."""
        main = self.topology.tensor_rank == 0
        mine = [p for p in self._parameters.values() if main or shard_dim(p) is not None]
        return [p.grad for p in mine if p.grad is not None]

    def _owned(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters without the last stage's copy of a tied word embedding."""
        for name, parameter in self._parameters.items():
            if self.topology.first_stage or not name.startswith("embedding."):
                yield name, parameter

    def _loss_scale(self) -> float:
        return float(getattr(self._engine.optimizer, "cur_scale", 1.0))

    def _begin_moments(self) -> None:
        """Make AdamW's moments, so that they can be read and set before the first step."""
        optimizer = self._engine.optimizer
        if self.zero == 0:
            flats = list(self._parameters.values())
        else:
            name = "fp32_partitioned_groups_flat" if self.zero == 3 else None
            flats = getattr(optimizer, name or "single_partition_of_fp32_groups")
        for flat in flats:
            zeros = {key: torch.zeros_like(flat) for key in MOMENTS}
            self._adamw.state[flat] = {"step": torch.zeros((), device=flat.device), **zeros}
        if self.zero in (1, 2):
            optimizer._lazy_init_hp_params_optimizer_state()

    def _full(self, parameter: nn.Parameter, key: str | None) -> Tensor:
        """This tensor rank's part of a parameter, or of a moment of it, float32; collective."""
        if self.zero == 0:
            state: Tensor = parameter.detach() if key is None else self._adamw.state[parameter][key]
            return state
        if key is None:
            return self.library.utils.safe_get_full_fp32_param(parameter)  # type: ignore[no-any-return]
        return self.library.utils.safe_get_full_optimizer_state(parameter, key)  # type: ignore[no-any-return]

    def _set_full(self, parameter: nn.Parameter, key: str | None, value: Tensor) -> None:
        """The reverse of ``_full``, where this rank keeps a piece of ``value``."""
        utils, words = self.library.utils, () if key is None else (key,)
        if self.zero == 0:
            self._full(parameter, key).copy_(value)
            return
        value = value.to(self.topology.device, torch.float32)
        if self.zero == 3:
            size, rank = parameter.ds_tensor.numel(), self.topology.data_rank
            flat = functional.pad(value.flatten(), (0, size * self.topology.data_size))
            value = flat[size * rank : size * (rank + 1)]
        scope = "local" if self.zero == 3 else "full"
        kind = "fp32_param" if key is None else "optimizer_state"
        getattr(utils, f"safe_set_{scope}_{kind}")(parameter, value, *words)


def _zero_stage(config: Config, precision: str, topology: Topology) -> int:
    """The stage of ZeRO that will run. Raises UsageError for one that a pipeline cannot have."""
    zero, stages = config.zero_stage, topology.pipeline_size
    if zero >= 2 and stages > 1:
        raise UsageError(
            f"zero_stage {zero} does not work with pipeline_model_parallel_size {stages}: "
            "use zero_stage 1, or 1 pipeline stage"
        )
    if zero == 0 and (stages > 1 or precision != "fp32"):
        # It clips by the norm of each stage, and in half precision takes one step of AdamW more.
        reason = f"{stages} pipeline stages" if stages > 1 else precision
        _say(topology, f"zero_stage 1 is used, as 0 of DeepSpeed is not exact with {reason}")
        return 1
    return zero


def _settings(config: Config, precision: str, zero: int, topology: Topology) -> dict[str, Any]:
    """DeepSpeed's JSON: what was given, and over it what our own settings say."""
    given = config.deepspeed_json
    if checkpointing := [*given.get("activation_checkpointing", {})]:
        _say(topology, f"activations are recomputed without {', '.join(checkpointing)}: no need")
    power = math.log2(config.initial_loss_scale)
    if precision == "fp16" and not (config.loss_scale or power.is_integer()):
        raise UsageError(
            f"initial_loss_scale is {config.initial_loss_scale:g}: DeepSpeed needs a power of 2"
        )
    scaling = {
        "loss_scale": config.loss_scale,
        "initial_scale_power": int(power),
        "loss_scale_window": config.loss_scale_window,
        "hysteresis": config.hysteresis,
        "min_loss_scale": config.min_loss_scale,
    }
    own = {
        "train_batch_size": config.global_batch_size,
        "train_micro_batch_size_per_gpu": config.micro_batch_size,
        "gradient_clipping": config.clip_grad,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {**given.get("zero_optimization", {}), "stage": zero},
        "bf16": {**given.get("bf16", {}), "enabled": precision == "bf16"},
        "fp16": {**given.get("fp16", {}), **scaling, "enabled": precision == "fp16"},
    }
    return {k: v for k, v in given.items() if k not in OURS} | own


def _library(topology: Topology) -> Any:
    """DeepSpeed, ready for this machine. Raises UsageError where it is missing or not known."""
    cuda = topology.device.type == "cuda"
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if cuda else "cpu")
    try:
        import deepspeed
    except ImportError as error:
        raise UsageError(
            f"engine deepspeed: {error}; pip install 'tokpack[train]', or use --engine torch"
        ) from error
    release = tuple(int(part) for part in deepspeed.__version__.split("+")[0].split(".")[:3])
    if not FIRST <= release < BEFORE:
        raise UsageError(
            f"deepspeed is {deepspeed.__version__}, expected at least "
            f"{'.'.join(map(str, FIRST))} and before {'.'.join(map(str, BEFORE))}: others train "
            "pipelines with wrong gradients"
        )
    deepspeed.utils.logger.setLevel("WARNING")
    for name in ("all_gather_into_tensor", "reduce_scatter_tensor"):
        warnings.filterwarnings("ignore", f".*{name}", FutureWarning)
    if not cuda:
        accelerator = deepspeed.accelerator.get_accelerator()
        if not accelerator.is_fp16_supported():  # slow where the machine has to emulate it, but right
            accelerator.is_fp16_supported = lambda: True
        # It would be compiled, by every rank, and a lock left by a killed run would wait for ever.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if not dist.is_initialized():
        backend = "nccl" if cuda else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        os.environ.setdefault("LOCAL_RANK", "0")
    deepspeed.init_distributed(dist_init_required=False)
    return deepspeed


def _mpu(topology: Topology) -> SimpleNamespace:
    """Our groups, under the names that DeepSpeed asks for."""
    alone = dist.new_subgroups(1)[0]
    tensor = (topology.tensor_rank, topology.tensor_size, topology.tensor_group or alone)
    data = (topology.data_rank, topology.data_size, topology.data_group or alone)
    kinds = {"model_parallel": tensor, "tensor_model_parallel": tensor, "data_parallel": data}
    answers: dict[str, Callable[[], Any]] = {
        f"get_{kind}_{what}": lambda value=value: value  # type: ignore[misc]
        for kind, values in kinds.items()
        for what, value in zip(("rank", "world_size", "group"), values, strict=True)
    }
    return SimpleNamespace(**answers)


def _pipeline(library: Any, layer: Layer, topology: Topology) -> nn.Module:
    """A PipelineModule with one layer a stage, which knows that the word embedding is tied."""
    pipe = library.runtime.pipe
    axes = (topology.pipeline_size, topology.tensor_size, topology.data_size)
    module: Any = pipe.PipelineModule(
        [layer] * topology.pipeline_size,
        topology=pipe.topology.PipeModelDataParallelTopology(*axes),
        partition_method="uniform",
    )
    if layer.stage.tied and layer.stage.embedding is not None:
        word = layer.stage.embedding.word
        ranks = dist.get_process_group_ranks(topology.embedding_group)
        shared = {"ranks": ranks, "group": topology.embedding_group}
        module.tied_modules["word"] = word
        module.tied_comms["word"] = {**shared, "weight_attr": ["weight"], "module": word}
        word.weight.ds_pipe_replicated = not topology.first_stage  # counts once in the norm
    return module  # type: ignore[no-any-return]


def _nothing() -> Iterator[tuple[Tensor, Tensor]]:
    """What DeepSpeed's pipeline may load: the stages have their micro batches already."""
    return itertools.repeat((torch.zeros(()), torch.zeros(())))


def _say(topology: Topology, text: str) -> None:
    if topology.is_main:
        sys.stderr.write(f"tokpack: note: {text}\n")

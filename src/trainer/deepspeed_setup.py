"""What DeepSpeed needs before it can train: its JSON, a known release, a machine that is ready."""

from __future__ import annotations

import math
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tokpack.errors import UsageError

if TYPE_CHECKING:
    from tokpack.configuration.config import Config

    from .parallel import Topology

# Others, from 0.16 on, sum or shrink the gradients of a pipeline without a word.
FIRST, BEFORE = (0, 19, 3), (0, 20)
# Blocks of DeepSpeed's JSON that are not handed on: what they say is in Config, or of no use.
OURS = ("activation_checkpointing", "optimizer")
# What may stand beside the optimizer's numbers: torch's AdamW does just that.
ADAMW = {"adam_w_mode": True, "amsgrad": False, "bias_correction": True, "torch_adam": True}


def make_settings(config: Config, topology: Topology) -> dict[str, Any]:
    """DeepSpeed's JSON: what was given, and over it what our own settings say.

    Raises UsageError for what DeepSpeed cannot do; what is done in another way is said aloud.
    """
    given, zero, stages = config.deepspeed_json, config.zero_stage, topology.pipeline_size
    precision = config.precision_on(topology.device.type)
    power = math.log2(config.initial_loss_scale)
    if zero >= 2 and stages > 1:
        raise UsageError(
            f"zero_stage {zero} does not work with pipeline_model_parallel_size {stages}: "
            "use zero_stage 1, or 1 pipeline stage"
        )
    if precision == "fp16" and not (config.loss_scale or power.is_integer()):
        raise UsageError(
            f"initial_loss_scale is {config.initial_loss_scale:g}: DeepSpeed needs a power of 2"
        )
    for name, value in given.get("optimizer", {}).get("params", {}).items():
        if ADAMW.get(name) != value:
            raise UsageError(
                f"{name} {value} of the optimizer is not supported: it is torch's AdamW"
            )
    unused = ", ".join(given.get("activation_checkpointing", {}))
    notes = [f"not needed to recompute activations: {unused}"] if unused else []
    if zero == 0 and (stages > 1 or precision != "fp32"):
        # It clips by the norm of each stage, and takes a step of AdamW too many in half precision.
        zero, reason = 1, f"{stages} pipeline stages" if stages > 1 else precision
        notes.append(f"zero_stage 1 is used: DeepSpeed's 0 is not exact with {reason}")
    if topology.is_main:
        sys.stderr.writelines(f"note: {note}\n" for note in notes)
    scaling = {
        "loss_scale": config.loss_scale,
        "initial_scale_power": int(power),
        "loss_scale_window": config.loss_scale_window,
        "hysteresis": config.hysteresis,
        "min_loss_scale": config.min_loss_scale,
    }
    if precision == "bf16":  # a sum of 256 micro batches in bf16 takes no more
        given = {"data_types": {"grad_accum_dtype": "fp32"}, **given}
    return {k: v for k, v in given.items() if k not in OURS} | {
        "train_batch_size": config.global_batch_size,
        "train_micro_batch_size_per_gpu": config.micro_batch_size,
        "gradient_clipping": config.clip_grad,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {**given.get("zero_optimization", {}), "stage": zero},
        "bf16": {**given.get("bf16", {}), "enabled": precision == "bf16"},
        "fp16": {**given.get("fp16", {}), **scaling, "enabled": precision == "fp16"},
    }


def open_library(topology: Topology) -> Any:
    """DeepSpeed, ready for this machine. Raises UsageError where it is missing or not known."""
    cuda = topology.device.type == "cuda"
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if cuda else "cpu")
    try:
        import deepspeed
    except ImportError as error:
        raise UsageError(
            f"engine deepspeed: {error}; pip install 'tokpack[train]', or use --engine torch"
        ) from error
    release = tuple(map(int, deepspeed.__version__.split("+")[0].split(".")[:3]))
    if not FIRST <= release < BEFORE:
        first, before = (".".join(map(str, numbers)) for numbers in (FIRST, BEFORE))
        raise UsageError(
            f"deepspeed is {deepspeed.__version__}, expected at least {first} and before {before}: "
            "others may train pipelines with wrong gradients"
        )
    deepspeed.utils.logger.setLevel("WARNING")
    for name in ("all_gather_into_tensor", "reduce_scatter_tensor"):
        warnings.filterwarnings("ignore", f".*{name}", FutureWarning)
    if not cuda:
        # The CPU may have to emulate fp16: slow, but right, and scripts can be tried.
        deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True
        # It would be compiled, by every rank, and a lock left by a killed run would wait for ever.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if not dist.is_initialized():
        store = torch._C._distributed_c10d.HashStore()
        dist.init_process_group("nccl" if cuda else "gloo", store=store, rank=0, world_size=1)
        os.environ.setdefault("LOCAL_RANK", "0")
    deepspeed.init_distributed(dist_init_required=False)
    return deepspeed

"""Config -> the JSON that DeepSpeed is given."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tokpack.errors import UsageError, option

if TYPE_CHECKING:
    from tokpack.configuration.config import Config

# Blocks of DeepSpeed's JSON that it is not given: what they say is in Config, or has no effect.
OURS = ("activation_checkpointing", "optimizer")
# Other settings of the optimizer that are accepted: they describe torch's AdamW, which is used.
ADAMW = {"adam_w_mode": True, "amsgrad": False, "bias_correction": True, "torch_adam": True}


def make_settings(config: Config, device_type: str) -> tuple[dict[str, Any], list[str]]:
    """The JSON for DeepSpeed: what was given, overridden by what Config says; and notes.

    The notes say what is done otherwise than asked. UsageError for what DeepSpeed cannot do.
    """
    extra, zero = config.deepspeed_json, config.zero_stage
    precision, stages = config.precision_on(device_type), config.pipeline_model_parallel_size
    power = math.log2(config.initial_loss_scale)
    if stages > 1:
        raise UsageError(f"{option('pipeline_model_parallel_size')} {stages} needs engine torch")
    if precision == "fp16" and not (config.loss_scale or power.is_integer()):
        raise UsageError(
            f"{option('initial_loss_scale')} is {config.initial_loss_scale:g}: DeepSpeed needs a "
            "power of 2"
        )
    for name, value in extra.get("optimizer", {}).get("params", {}).items():
        if ADAMW.get(name) != value:
            raise UsageError(
                f"{name} {value} of the optimizer is not supported: it is torch's AdamW"
            )
    unused = ", ".join(extra.get("activation_checkpointing", {}))
    notes = [f"not needed to recompute activations: {unused}"] if unused else []
    if zero == 0:  # which is not exact: in half precision it makes one step too many
        zero = 1
        notes.append(f"{option('zero_stage')} 1 is used, which DeepSpeed computes exactly")
    scaling = {
        "loss_scale": config.loss_scale,
        "initial_scale_power": int(power),
        "loss_scale_window": config.loss_scale_window,
        "hysteresis": config.hysteresis,
        "min_loss_scale": config.min_loss_scale,
    }
    if precision == "bf16":  # in bf16 a sum of 256 micro batches would not grow any more
        extra = {"data_types": {"grad_accum_dtype": "fp32"}, **extra}
    settings = {k: v for k, v in extra.items() if k not in OURS} | {
        "train_batch_size": config.global_batch_size,
        "train_micro_batch_size_per_gpu": config.micro_batch_size,
        "gradient_clipping": config.clip_grad,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {**extra.get("zero_optimization", {}), "stage": zero},
        "bf16": {**extra.get("bf16", {}), "enabled": precision == "bf16"},
        "fp16": {**extra.get("fp16", {}), **scaling, "enabled": precision == "fp16"},
    }
    return settings, notes

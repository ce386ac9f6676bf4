"""Settings of several programs -> Config: fields are derived from others as each program does it.

A note says each value that was derived, and each choice that the programs make differently.
"""

from __future__ import annotations

import math
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tokpack.errors import UsageError, option

from .config import FIELDS, Config
from .names import NEEDS

if TYPE_CHECKING:
    from collections.abc import Mapping

_MICRO_BATCH = 4
_OFFLOADS = ("cpu_offload", "offload_optimizer.device", "offload_param.device")
_PARTS = ("train", "valid", "test")


class Overrides(dict[str, Any]):
    """Settings by name; what is not among them has Config's default."""

    notes: tuple[str, ...] = ()
    unlike: str = ""
    flags: Mapping[str, str] = MappingProxyType({})  # by setting, to who typed them

    def default(self, name: str) -> Any:
        """The value of a field of Config: as it is given, else its default."""
        return self.get(name, FIELDS[name].default)

    def note(self, text: str) -> None:
        """Say something before the run."""
        self.notes += (text,)


def configure(given: Overrides, world_size: int, neox: bool) -> Config:
    """The configuration of ``world_size`` processes that settings ask for. Raises UsageError.

    With ``neox`` words are read as GPT-NeoX reads them, where programs differ. Settings from which
    fields are derived are taken out of ``given``.
    """
    like = given.pop("like", "")
    for step in (_needs, _samples, _data, _model, _weights, _recomputation):
        step(given)
    _mlp(given, neox, like)
    _fill_in_batch(given, world_size)
    _engine(given)
    uses = given.pop("use_wandb", None)  # GPT-NeoX's files name a project in any case
    if uses:
        given.setdefault("wandb_project", "neox")  # as there
    elif uses is False:
        given.pop("wandb_project", None)
    if given.get("extra_save_iters") and (kept := given.default("keep_checkpoints")):
        every = f"{option('keep_checkpoints')} 0 keeps all"
        given.note(f"of all checkpoints the last {kept} are kept; {every}")
    extras = {name: given.pop(name) for name in list(given) if name not in FIELDS}
    given["deepspeed_json"] = _nested(extras)
    if extras and given.default("engine") == "torch":
        given.note(f"of no use to engine torch: {', '.join(extras)}")
    return Config(**given, notes=given.notes, unlike=given.unlike, flags=dict(given.flags))


def _needs(given: Overrides) -> None:
    """UsageError for a name that needs another setting, which has another value."""
    for name, (value, setting, needed) in NEEDS.items():
        if given.pop(name, None) is value and given.default(setting) != needed:
            said, word = str(value).lower(), "true" if needed is True else needed
            raise UsageError(f"{option(name)} {said} needs {option(setting)} {word}")


def _samples(given: Overrides) -> None:
    """Counts of tokens, as counts of samples; where both are given the smaller one."""
    for name in ("train", "lr_decay", "lr_warmup"):
        if tokens := given.pop(f"{name}_tokens", None):
            samples = given.get(f"{name}_samples") or math.inf
            given[f"{name}_samples"] = min(samples, max(tokens // given.default("seq_length"), 1))


def _data(given: Overrides) -> None:
    """GPT-NeoX's lists of datasets and weights; without weights it takes 1 for each."""
    for part in _PARTS:
        paths = given.pop(f"{part}_data_paths", ())
        weights = given.pop(f"{part}_data_weights", None)
        if weights is not None and len(weights) != len(paths):
            raise UsageError(
                f"{part}_data_weights has {len(weights)} weights for the {len(paths)} datasets of "
                f"{part}_data_paths: give one for each"
            )
        if len(paths) > 1:
            if weights is None:
                weights = (1.0,) * len(paths)
                given.note(f"{option(f'{part}_data_paths')} have equal weights, as in GPT-NeoX")
            pairs = zip(map(repr, weights), paths, strict=True)
            paths = tuple(word for pair in pairs for word in pair)
        if paths:
            given[f"{part}_data_path"] = paths


def _model(given: Overrides) -> None:
    """Settings of the model of which one value is possible, or that other settings say too."""
    attention = str(given.pop("attention_config", "")).lower()
    if unknown := set(re.findall("[a-z_]+", attention)) - {"all", "flash", "global"}:
        raise UsageError(
            f"{option('attention_config')} {', '.join(sorted(unknown))} is not supported: only "
            "global and flash"
        )
    window, length = given.pop("sliding_window_width", math.inf), given.default("seq_length")
    if window < length:
        raise UsageError(
            f"{option('sliding_window_width')} {window} is not supported: only "
            f"{option('seq_length')} {length} or more"
        )
    epsilon = given.pop("rms_norm_epsilon", None)
    if epsilon is not None and given.default("normalization") == "RMSNorm":
        given["layernorm_epsilon"] = epsilon


def _weights(given: Overrides) -> None:
    """Standard deviations of the initial weights, by GPT-NeoX's names for them."""
    first, last = given.pop("init_method", None), given.pop("output_layer_init_method", None)
    if first is None and last is None:
        return
    layers, width = max(given.default("num_layers"), 1), max(given.default("hidden_size"), 1)
    std = given.default("init_method_std")
    known = {
        "normal": std,
        "scaled_normal": std / math.sqrt(2 * layers),
        "single_residual_scaled_normal": std / math.sqrt(layers),
        "small_init": math.sqrt(2 / (5 * width)),
        "wang_init": 2 / layers / math.sqrt(width),
    }
    given["init_method_std"] = known[first or "normal"]
    given.setdefault("output_init_method_std", known[last or "scaled_normal"])


def _recomputation(given: Overrides) -> None:
    """Megatron's kinds of recomputation: here all blocks are recomputed, with the same result."""
    words = {given.pop(name, None) for name in ("recompute_granularity", "recompute_method")}
    if words != {None}:
        given["checkpoint_activations"] = True
    for word in sorted({"selective", "block"} & words):
        given.note(f"recomputation {word}: all blocks are recomputed, with the same result")


def _engine(given: Overrides) -> None:
    """DeepSpeed where a file offloads to the CPU; torch for a pipeline, whoever asks for it."""
    offloads = (given.get(f"zero_optimization.{name}") for name in _OFFLOADS)
    offloading = any(to not in (None, False, "none") for to in offloads)
    if offloading:
        given.setdefault("engine", "deepspeed")
    if given.default("engine") != "deepspeed":
        return
    stages = given["pipeline_model_parallel_size"]
    if stages > 1 and offloading:
        raise UsageError(
            f"{option('pipeline_model_parallel_size')} {stages} needs engine torch, which does not "
            "offload to the CPU: take 1 stage, or offload nothing"
        )
    if stages > 1:
        given["engine"] = "torch"
        given.note(
            f"engine torch, not deepspeed, trains the {stages} pipeline stages; the results are "
            "the same"
        )
    elif given.get("sequence_parallel"):
        given.note(
            f"{option('sequence_parallel')} is the torch engine's; the results are the same without"
        )


def _mlp(given: Overrides, neox: bool, like: str) -> None:
    """Activation, width and biases, on which the programs do not agree."""
    said, fused = "bias_gelu_fusion" in given, given.pop("bias_gelu_fusion", None)
    kind = given.pop("mlp_type", "standard")
    if kind == "llama":  # of GPT-NeoX before 2024-09: gated, without biases, of the width it says
        if given.default("activation") not in ("silu", "swiglu"):
            raise UsageError(
                f"{option('mlp_type')} llama with activation {given.default('activation')} is not "
                "supported: only silu"
            )
        given["activation"] = "swiglu"
        given.setdefault("use_bias_in_mlp", False)
    if given.pop("openai_gelu", False):
        given["activation"], fused = "gelu", True
    if given.pop("disable_bias_linear", False):
        given["add_bias_linear"], fused = False, False  # in Megatron there is no fusion without
    _biases(given)
    activation = given.default("activation")
    if activation == "gelu" and (neox or fused is not None):
        exact = not fused
        given["activation"] = "gelu_erf" if exact else "gelu"
        form, owner = "erf" if exact else "tanh", "GPT-NeoX" if neox else "Megatron"
        how = "without" if exact else "with"
        fusion = option("bias_gelu_fusion")
        given.note(f"gelu in its {form} form, as {owner} computes it {how} {fusion}")
    elif said:
        given.note(f"{option('bias_gelu_fusion')} does not concern activation {activation}")
    if activation == "swiglu" and like in ("megatron", "microsoft"):
        given.setdefault("ffn_hidden_size", int(given.default("hidden_size") * 8 / 3) // 64 * 64)
    _width(given, neox and activation == "swiglu", kind == "llama")


def _biases(given: Overrides) -> None:
    """add_bias_linear from GPT-NeoX's two settings, which must be alike."""
    names = ("use_bias_in_mlp", "use_bias_in_attn_linear")
    if any(name in given for name in names):
        mlp, attention = (given.pop(name, True) for name in names)
        if mlp != attention:
            raise UsageError(
                f"{option('use_bias_in_mlp')} {mlp} with {option('use_bias_in_attn_linear')} "
                f"{attention} (True where it is not said) is not supported: say the same for both, "
                "or give --no-add-bias-linear"
            )
        given["add_bias_linear"] = mlp


def _width(given: Overrides, derived: bool, llama: bool) -> None:
    """ffn_hidden_size from GPT-NeoX's settings; with ``derived`` also without any of them."""
    hidden, factor = given.default("hidden_size"), given.pop("expansion_factor", None)
    size, multiple = given.pop("intermediate_size", None), given.pop("mlp_multiple_of", None)
    said = size is not None or factor is not None or multiple is not None
    if "ffn_hidden_size" in given:
        if said:
            raise UsageError(
                f"{option('ffn_hidden_size')} and {option('intermediate_size')} are given: give "
                "one of them"
            )
        return
    if not (said or derived or llama):
        return
    if factor is not None and not 0 < factor < 1e6:
        raise UsageError(f"{option('expansion_factor')} is {factor}, expected a positive number")
    whole = size or int((factor or 4) * hidden)
    gated, multiple = given.default("activation") == "swiglu", multiple or 1
    if llama:  # two thirds of 4 x hidden_size
        width = size or _rounded(int(8 * hidden / 3), 256)
    else:
        first = int(whole * 2 / 3) if gated else whole  # rows of the first layer
        second = first // 2 if gated else first  # columns of the second
        width, columns = _rounded(first, 2 * multiple), _rounded(second, multiple)
        width = width // 2 if gated else width
        if width != columns:
            raise UsageError(
                f"{option('intermediate_size')} {whole} and {option('mlp_multiple_of')} {multiple} "
                f"give {width} rows and {columns} columns{' of a gated MLP' if gated else ''}, "
                f"which GPT-NeoX cannot train: give {option('ffn_hidden_size')}"
            )
    given["ffn_hidden_size"] = width
    if gated and not llama:
        name = option("ffn_hidden_size")
        given.note(f"{name} {width}: GPT-NeoX takes a third of {whole} for a gated MLP")


def _rounded(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _fill_in_batch(given: Overrides, world_size: int) -> None:
    """Micro and global batch size, where they are left out. UsageError if they do not fit."""
    kinds = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
    given[kinds[1]] = given.get(kinds[1]) or 1  # GPT-NeoX writes 0
    tensor, stages = (max(given.get(kind, 1), 1) for kind in kinds)
    if world_size % (tensor * stages):
        raise UsageError(
            f"{world_size} processes do not divide into {option(kinds[0])} {tensor} x "
            f"{option(kinds[1])} {stages}"
        )
    ranks = world_size // (tensor * stages)
    batch, ramp = given.get("global_batch_size"), given.get("rampup_batch_size") or ()
    steps = given.pop("gradient_accumulation_steps", None)
    parts = [size // ranks for size in (batch or 0, *ramp[:2])]
    whole = parts[0] // steps if batch and steps else math.gcd(_MICRO_BATCH, *parts)
    micro = given.setdefault("micro_batch_size", max(whole, 1))
    step = max(micro, 1) * ranks
    batch = given.setdefault("global_batch_size", step * (steps or 1))
    product = f"{option('micro_batch_size')} {micro} x {ranks} data parallel processes"
    for size, name in zip((batch, *ramp[:2]), ("global", "rampup", "rampup"), strict=False):
        if size % step:
            raise UsageError(
                f"{option(f'{name}_batch_size')} {size} is not a multiple of {product}"
            )
    if steps and batch != step * steps:
        raise UsageError(
            f"{option('global_batch_size')} {batch} is not {product} x {steps} gradient "
            "accumulation steps"
        )


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    """Dotted names as dictionaries."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        *blocks, last = name.split(".")
        inner = result
        for block in blocks:
            inner = inner.setdefault(block, {})
        inner[last] = value
    return result

"""Make a Config from settings of several programs: each program derives some fields from others.

A note names each value that was derived, and each choice on which the programs differ.
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
    """Settings by name; a setting that is absent has Config's default."""

    notes: tuple[str, ...] = ()
    unlike: str = ""
    assumed: str = ""  # what was assumed of the number of processes, for a message
    flags: Mapping[str, str] = MappingProxyType({})  # by setting, if flags were typed

    def default(self, name: str) -> Any:
        """The value of a field of Config: the given one, else its default."""
        return self.get(name, FIELDS[name].default)

    def note(self, text: str) -> None:
        """Add a note to be printed before the run."""
        self.notes += (text,)


def configure(values: Overrides, world_size: int, neox: bool) -> Config:
    """The configuration for ``world_size`` processes, from settings. Raises UsageError.

    With ``neox`` a word means what it means to GPT-NeoX, if programs differ. Settings from which
    fields are derived are removed from ``values``.
    """
    like = values.pop("like", "")
    for step in (_needs, _length, _samples, _data, _model, _weights, _recomputation):
        step(values)
    _mlp(values, neox, like)
    try:
        _fill_in_batch(values, world_size)
    except UsageError as error:
        raise UsageError(f"{error.args[0]}{values.assumed}") from None
    _engine(values)
    uses = values.pop("use_wandb", None)  # GPT-NeoX's files name a project even without W&B
    if uses:
        values.setdefault("wandb_project", "neox")  # GPT-NeoX's default
    elif uses is False:
        values.pop("wandb_project", None)
    if values.get("extra_save_iters") and (kept := values.default("keep_checkpoints")):
        every = f"{option('keep_checkpoints')} 0 keeps all"
        values.note(f"only the last {kept} checkpoints are kept; {every}")
    extras = {name: values.pop(name) for name in list(values) if name not in FIELDS}
    values["deepspeed_json"] = _nested(extras)
    if extras and values.default("engine") == "torch":
        values.note(f"not used by engine torch: {', '.join(extras)}")
    return Config(**values, notes=values.notes, unlike=values.unlike, flags=dict(values.flags))


def _needs(values: Overrides) -> None:
    """Raise UsageError for a setting that needs a certain value of another one, and does not have
    it.
    """
    for name, (value, setting, needed) in NEEDS.items():
        if values.pop(name, None) is value and values.default(setting) != needed:
            text, word = str(value).lower(), "true" if needed is True else needed
            raise UsageError(f"{option(name)} {text} needs {option(setting)} {word}")


def _length(values: Overrides) -> None:
    """Derive the length of samples for a model that has fewer positions than the default."""
    positions = values.get("max_position_embeddings")
    if positions is not None and "seq_length" not in values:
        values["seq_length"] = min(values.default("seq_length"), positions)


def _samples(values: Overrides) -> None:
    """Convert counts of tokens to counts of samples; if both are given, the smaller one counts."""
    for name in ("train", "lr_decay", "lr_warmup"):
        if tokens := values.pop(f"{name}_tokens", None):
            samples = values.get(f"{name}_samples") or math.inf
            values[f"{name}_samples"] = min(samples, max(tokens // values.default("seq_length"), 1))


def _data(values: Overrides) -> None:
    """Derive the blend from GPT-NeoX's lists of datasets and weights; without weights each weight
    is 1.
    """
    for part in _PARTS:
        paths = values.pop(f"{part}_data_paths", ())
        weights = values.pop(f"{part}_data_weights", None)
        if weights is not None and len(weights) != len(paths):
            raise UsageError(
                f"{part}_data_weights has {len(weights)} weights for the {len(paths)} datasets of "
                f"{part}_data_paths: give one for each"
            )
        if len(paths) > 1:
            if weights is None:
                weights = (1.0,) * len(paths)
                values.note(f"{option(f'{part}_data_paths')} have equal weights, as in GPT-NeoX")
            pairs = zip(map(repr, weights), paths, strict=True)
            paths = tuple(word for pair in pairs for word in pair)
        if paths:
            values[f"{part}_data_path"] = paths


def _model(values: Overrides) -> None:
    """Derive settings of the model that have only one possible value, or that follow from other
    settings.
    """
    attention = str(values.pop("attention_config", "")).lower()
    if unknown := set(re.findall("[a-z_]+", attention)) - {"all", "flash", "global"}:
        raise UsageError(
            f"{option('attention_config')} {', '.join(sorted(unknown))} is not supported: only "
            "global and flash"
        )
    window, length = values.pop("sliding_window_width", math.inf), values.default("seq_length")
    if window < length:
        raise UsageError(
            f"{option('sliding_window_width')} {window} is not supported: only "
            f"{option('seq_length')} {length} or more"
        )
    epsilon = values.pop("rms_norm_epsilon", None)
    if epsilon is not None and values.default("normalization") == "RMSNorm":
        values["layernorm_epsilon"] = epsilon


def _weights(values: Overrides) -> None:
    """Derive the standard deviations of initial weights from GPT-NeoX's names for them."""
    first, last = values.pop("init_method", None), values.pop("output_layer_init_method", None)
    if first is None and last is None:
        return
    layers, width = max(values.default("num_layers"), 1), max(values.default("hidden_size"), 1)
    std = values.default("init_method_std")
    deviations = {
        "normal": std,
        "scaled_normal": std / math.sqrt(2 * layers),
        "single_residual_scaled_normal": std / math.sqrt(layers),
        "small_init": math.sqrt(2 / (5 * width)),
        "wang_init": 2 / layers / math.sqrt(width),
    }
    values["init_method_std"] = deviations[first or "normal"]
    values.setdefault("output_init_method_std", deviations[last or "scaled_normal"])


def _recomputation(values: Overrides) -> None:
    """Derive recomputation from Megatron's kinds: here all blocks are recomputed, with the same
    result.
    """
    words = {values.pop(name, None) for name in ("recompute_granularity", "recompute_method")}
    if words != {None}:
        values["checkpoint_activations"] = True
    for word in sorted({"selective", "block"} & words):
        values.note(f"recomputation {word}: all blocks are recomputed, with the same result")


def _engine(values: Overrides) -> None:
    """Derive the engine: DeepSpeed if a file offloads to the CPU, always torch for a pipeline."""
    offloads = (values.get(f"zero_optimization.{name}") for name in _OFFLOADS)
    offloading = any(to not in (None, False, "none") for to in offloads)
    if offloading:
        values.setdefault("engine", "deepspeed")
    if values.default("engine") != "deepspeed":
        return
    stages = values["pipeline_model_parallel_size"]
    if stages > 1 and offloading:
        raise UsageError(
            f"{option('pipeline_model_parallel_size')} {stages} needs engine torch, which does not "
            "offload to the CPU: take 1 stage, or offload nothing"
        )
    if stages > 1:
        values["engine"] = "torch"
        values.note(
            f"engine torch, not deepspeed, trains the {stages} pipeline stages; the results are "
            "the same"
        )
    elif values.get("sequence_parallel"):
        values.note(
            f"{option('sequence_parallel')} is the torch engine's; the results are the same without"
        )


def _mlp(values: Overrides, neox: bool, like: str) -> None:
    """Derive activation, width and biases of the MLP, on which the programs do not agree."""
    is_named, fused = "bias_gelu_fusion" in values, values.pop("bias_gelu_fusion", None)
    kind = values.pop("mlp_type", "standard")
    if kind == "llama":  # GPT-NeoX before 2024-09: gated, no biases, width as given
        if values.default("activation") not in ("silu", "swiglu"):
            raise UsageError(
                f"{option('mlp_type')} llama with activation {values.default('activation')} is not "
                "supported: only silu"
            )
        values["activation"] = "swiglu"
        values.setdefault("use_bias_in_mlp", False)
    if values.pop("openai_gelu", False):
        values["activation"], fused = "gelu", True
    if values.pop("disable_bias_linear", False):
        values["add_bias_linear"], fused = False, False  # Megatron fuses gelu only with a bias
    names = ("use_bias_in_mlp", "use_bias_in_attn_linear")  # GPT-NeoX's, which must be equal
    if any(name in values for name in names):
        mlp, attention = (values.pop(name, True) for name in names)
        if mlp != attention:
            raise UsageError(
                f"{option('use_bias_in_mlp')} {mlp} with {option('use_bias_in_attn_linear')} "
                f"{attention} (True where it is not said) is not supported: say the same for both, "
                f"or give {option('add_bias_linear', False)}"
            )
        values["add_bias_linear"] = mlp
    activation = values.default("activation")
    if activation == "gelu" and (neox or fused is not None):
        values["activation"], form, how = (
            ("gelu", "tanh", "with") if fused else ("gelu_erf", "erf", "without")
        )
        owner, fusion = "GPT-NeoX" if neox else "Megatron", option("bias_gelu_fusion")
        values.note(f"gelu in its {form} form, as {owner} computes it {how} {fusion}")
    elif is_named:
        values.note(f"{option('bias_gelu_fusion')} does not concern activation {activation}")
    if activation == "swiglu" and like in ("megatron", "microsoft"):
        values.setdefault("ffn_hidden_size", int(values.default("hidden_size") * 8 / 3) // 64 * 64)
    _width(values, neox and activation == "swiglu", kind == "llama")


def _width(values: Overrides, derived: bool, llama: bool) -> None:
    """Derive ffn_hidden_size from GPT-NeoX's settings; with ``derived`` even if none of them is
    given.
    """
    hidden, factor = values.default("hidden_size"), values.pop("expansion_factor", None)
    size, multiple = values.pop("intermediate_size", None), values.pop("mlp_multiple_of", None)
    is_named = size is not None or factor is not None or multiple is not None
    if "ffn_hidden_size" in values:
        if is_named:
            raise UsageError(
                f"{option('ffn_hidden_size')} and {option('intermediate_size')} are given: give "
                "one of them"
            )
        return
    if not (is_named or derived or llama):
        return
    if factor is not None and not 0 < factor < 1e6:
        raise UsageError(f"{option('expansion_factor')} is {factor}, expected a positive number")
    whole = size or int((factor or 4) * hidden)
    gated, multiple = values.default("activation") == "swiglu", multiple or 1
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
    values["ffn_hidden_size"] = width
    if gated and not llama:
        name = option("ffn_hidden_size")
        values.note(f"{name} {width}: GPT-NeoX takes a third of {whole} for a gated MLP")


def _rounded(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _fill_in_batch(values: Overrides, world_size: int) -> None:
    """Derive the micro and global batch size that are not given. UsageError if they do not fit."""
    kinds = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
    values[kinds[1]] = values.get(kinds[1]) or 1  # GPT-NeoX writes 0
    tensor, stages = (max(values.get(kind, 1), 1) for kind in kinds)
    if world_size % (tensor * stages):
        raise UsageError(
            f"{world_size} processes do not divide into {option(kinds[0])} {tensor} x "
            f"{option(kinds[1])} {stages}"
        )
    ranks = world_size // (tensor * stages)
    batch, ramp = values.get("global_batch_size"), values.get("rampup_batch_size") or ()
    steps = values.pop("gradient_accumulation_steps", None)
    parts = [size // ranks for size in (batch or 0, *ramp[:2])]
    whole = parts[0] // steps if batch and steps else math.gcd(_MICRO_BATCH, *parts)
    micro = values.setdefault("micro_batch_size", max(whole, 1))
    step = max(micro, 1) * ranks
    batch = values.setdefault("global_batch_size", step * (steps or 1))
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
    """Dotted names as nested dictionaries."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        *blocks, last = name.split(".")
        inner = result
        for block in blocks:
            inner = inner.setdefault(block, {})
        inner[last] = value
    return result

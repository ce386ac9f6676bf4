"""Weights of a model of ``transformers``: config.json and safetensors."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from tokpack.checkpoints.arguments import pass_over
from tokpack.checkpoints.families import (
    GPT2,
    IGNORED,
    LLAMA,
    NEOX,
    QWEN2,
    QWEN3,
    SCALED_ROPE,
    Family,
)
from tokpack.configuration.config import FIELDS, Config
from tokpack.configuration.model import VOCABULARY, ModelConfig
from tokpack.configuration.setting import EXPECTED
from tokpack.display import brief
from tokpack.errors import FormatError, InputError, UsageError, option
from tokpack.files.foreign import read_object

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from torch import Tensor

CONFIG = "config.json"
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_FAMILIES = {one.model_type: one for one in (GPT2, NEOX, LLAMA, QWEN3, QWEN2)} | {"mistral": LLAMA}
_PREFIXES = ("transformer.", "gpt_neox.", "model.")  # left out where a model was saved headless
_ACTIVATIONS = (
    {
        "gelu_new": "gelu",
        "gelu_fast": "gelu",
        "gelu_pytorch_tanh": "gelu",
        "gelu": "gelu_erf",
        "gelu_python": "gelu_erf",
    },
) * 2 + ({"silu": "swiglu", "swish": "swiglu"},)
# The defaults of the classes, where config.json says nothing; sizes have none.
_DEFAULTS: tuple[dict[str, Any], ...] = (
    {"activation_function": "gelu_new", "tie_word_embeddings": True}
    | {"layer_norm_epsilon": 1e-5, "resid_pdrop": 0.1, "attn_pdrop": 0.1, "n_inner": None},
    {"hidden_act": "gelu", "tie_word_embeddings": False, "use_parallel_residual": True}
    | {"layer_norm_eps": 1e-5, "hidden_dropout": 0.0, "attention_dropout": 0.0},
    {"hidden_act": "silu", "tie_word_embeddings": False, "num_key_value_heads": None}
    | {"rms_norm_eps": 1e-6, "attention_dropout": 0.0},
)
_OURS: tuple[dict[str, Any], ...] = (
    {"position_embedding_type": "learned_absolute"},
    {"position_embedding_type": "rope"},
    {"position_embedding_type": "rope", "normalization": "RMSNorm", "add_bias_linear": False},
)
# Settings of which the models here can have only this value.
_ONLY: tuple[dict[str, Any], ...] = (
    {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}
    | {"add_cross_attention": False},
    {"attention_bias": True},
    {"attention_bias": False, "mlp_bias": False},
)
_ROPE = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_READ = {
    *("activation_function", "hidden_act", "tie_word_embeddings", "head_dim", "rope_scaling"),
    *("rope_parameters", "rope_theta", "sliding_window", "use_sliding_window", "model_type"),
    "quantization_config",
}
_LENGTH = 4096  # the longest seq_length that is taken from a model's positions


class HubWeights:
    """The weights of a folder with config.json, tensor by tensor.

    Rows of the vocabulary from ``vocab_size`` on are padding, and left out. ``notes`` are for the
    user. Unknown keys of config.json are refused, unless they are ``accepted``.
    UsageError for a model that cannot be computed here, FormatError for tensors that are broken,
    missing, or have no place.
    """

    tokenizer = None  # ``importing.describe_tokenizer`` finds it

    def __init__(
        self, folder: Path, vocab_size: int | None = None, accepted: Collection[str] = ()
    ) -> None:
        self.path = folder
        values = read_object(folder / CONFIG)
        self._family = _family(folder / CONFIG, values)
        sections = ["transformers", "gpt2"][: 2 if self._family == GPT2 else 1]
        read = _READ | {*_ONLY[self._family.column], *self._family.settings.values()} - {*accepted}
        self.accepted = pass_over(folder / CONFIG, values, sections, read, accepted)
        values = {key: value for key, value in values.items() if key not in self.accepted}
        settings, self.notes = _settings(folder / CONFIG, values, self._family)
        self._rows = settings["vocab_size"]
        if vocab_size is not None and vocab_size > self._rows:
            raise UsageError(
                f"{option('vocab_size')} is {vocab_size:,}, the model has {self._rows:,} rows: "
                "give no more"
            )
        try:
            config = Config(**{**settings, "vocab_size": vocab_size or self._rows})
        except UsageError as error:
            raise FormatError(f"{folder / CONFIG}: {error}") from None
        self._prefix = _PREFIXES[self._family.column]
        self._stored = {name.removeprefix(self._prefix): x for name, x in _open(folder).items()}
        if config.num_layers > len(self._stored):  # before anybody makes a list of them
            raise FormatError(
                f"{folder}: {len(self._stored):,} tensors are no {config.num_layers:,} layers, as "
                f"{CONFIG} has them"
            )
        self.model = ModelConfig.of(config, vocab_size or self._rows)
        self._check()

    def read(self, name: str) -> dict[str, Tensor]:
        """The whole fp32 tensor of one of our parameters, under the key ``parameter``."""
        parts = [self._stored[place].read() for place in self._places(name)]
        whole = self._family.join(self.model, name, parts)
        return {"parameter": whole[: self.model.vocab_size] if name in VOCABULARY else whole}

    def _places(self, name: str) -> list[str]:
        return [place.removeprefix(self._prefix) for place in self._family.places(name)]

    def _shapes(self, name: str) -> list[torch.Size]:
        """The shapes that a parameter has in the files."""
        rows, *rest = self.model.layout[name].shape
        shape = (self._rows if name in VOCABULARY else rows, *rest)
        try:
            whole = torch.empty(shape, device="meta")
        except RuntimeError:  # of a size that no integer holds
            sizes = "x".join(map(str, shape))
            raise FormatError(f"{self.path}: {CONFIG} makes {name} too large: {sizes}") from None
        return [part.shape for part in self._family.split(self.model, name, whole)]

    def _check(self) -> None:
        """Compare names and shapes with the model's. FormatError."""
        left = {name for name in self._stored if not IGNORED.search(name)}
        for name in self.model.layout:
            for place, shape in zip(self._places(name), self._shapes(name), strict=True):
                if place not in self._stored:
                    raise FormatError(f"{self.path}: the tensor {place} is missing")
                stored = self._stored[place]
                if stored.shape != shape:
                    raise FormatError(
                        f"{stored.path}: {stored.name} has the shape {list(stored.shape)}, "
                        f"{CONFIG} makes it {list(shape)}"
                    )
                left.discard(place)
        head, words = self._family.places("head.weight")[0], "embedding.word.weight"
        if head in left and not self.model.untie_embeddings_and_output_weights:
            word = self._stored[self._places(words)[0]]
            if not torch.equal(self._stored[head].read(), word.read()):
                raise FormatError(
                    f"{self._stored[head].path}: {head} is not the word embedding, to which "
                    f"{CONFIG} ties it: tie_word_embeddings false says that both count"
                )
            left.discard(head)
        if left:
            raise FormatError(
                f"{self.path}: a {self._family.architecture} has no place for {len(left)} of the "
                f"tensors: {', '.join(sorted(left)[:3])}"
            )


def _family(path: Path, values: dict[str, Any]) -> Family:
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in _FAMILIES:
        raise UsageError(
            f"{path}: model_type {brief(kind)} is not read: only {', '.join(_FAMILIES)}, which are "
            "the models that can be computed here"
        )
    if values.get("quantization_config"):
        raise UsageError(f"{path}: quantization_config: weights that are quantized are not read")
    return _FAMILIES[kind]


def _settings(
    path: Path, values: dict[str, Any], family: Family
) -> tuple[dict[str, Any], list[str]]:
    """Settings of Config that config.json says, and notes."""
    column = family.column
    only = _ONLY[column].items()
    wrong = [f"{key} {brief(values[key])}" for key, one in only if values.get(key, one) != one]
    if wrong:
        raise UsageError(f"{path}: {', '.join(wrong)}: the models here have none such")
    rope, scaled = _rope(path, values, family)
    values = _DEFAULTS[column] | {"initializer_range": 0.02} | values | rope
    qwen = {"qk_layernorm": family == QWEN3, "add_qkv_bias": family == QWEN2}
    settings = {**_OURS[column], **qwen, **scaled}
    for setting, name in family.settings.items():
        settings[setting] = _value(path, values, name, FIELDS[setting].kind, _DEFAULTS[column])
    act = "activation_function" if family == GPT2 else "hidden_act"
    word = values[act]
    if not isinstance(word, str) or word not in _ACTIVATIONS[column]:
        supported = ", ".join(_ACTIVATIONS[column])
        raise UsageError(f"{path}: {act} {brief(word)} is not supported: only {supported}")
    settings["activation"] = _ACTIVATIONS[column][word]
    tied = _value(path, values, "tie_word_embeddings", bool, {})
    settings["untie_embeddings_and_output_weights"] = not tied
    if family.is_llama:
        head = {"head_dim": values.get("head_dim", 128 if family == QWEN3 else None)}
        settings["kv_channels"] = _value(path, head, "head_dim", int, {"head_dim": None})
    notes = _window(path, values, settings)
    settings["seq_length"] = min(settings["max_position_embeddings"], _LENGTH)
    return settings, notes


def _value(
    path: Path, values: dict[str, Any], name: str, kind: type[Any], defaults: dict[str, Any]
) -> Any:
    """A value of config.json. FormatError where it is missing or of another type."""
    value = values.get(name)
    if value is None and name in defaults and defaults[name] is None:
        return None
    if type(value) is kind or (kind is float and type(value) is int):
        return kind(value)
    word = "missing" if name not in values else brief(value)
    raise FormatError(f"{path}: {name} is {word}, expected {EXPECTED[kind]}")


def _rope(
    path: Path, values: dict[str, Any], family: Family
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The base of rope and its share of a head, by the family's names; and our settings of scaling.

    UsageError for scaling that is not supported.
    """
    if family == GPT2:
        return {}, {}
    scaled: dict[str, Any] = {}
    rope: dict[str, Any] = {}
    base, share = (family.settings.get(one, "") for one in ("rotary_base", "rotary_percent"))
    settings = {base: values.get(base, 10000.0)}
    whole = values.get(share, 0.25) if share else 1.0
    for key in ("rope_scaling", "rope_parameters"):
        inner = values.get(key) or {}
        words = inner if isinstance(inner, dict) else {str(inner): None}
        for name in words.keys() & rope.keys():
            if words[name] != rope[name]:
                raise UsageError(
                    f"{path}: {name} is {brief(rope[name])} in rope_scaling and "
                    f"{brief(words[name])} in rope_parameters: change one of them"
                )
        rope |= words
        kind = words.get("rope_type", words.get("type", "default"))
        if words.items() >= SCALED_ROPE.items() and set(words) <= {*_ROPE, *SCALED_ROPE, "factor"}:
            factor = _value(path, words, "factor", float, {})
            scaled = {"use_rope_scaling": True, "rope_scaling_factor": factor}
        elif kind != "default" or not set(words) <= _ROPE:
            raise UsageError(
                f"{path}: {key} {brief(inner)} is not supported: only rope_type default, and "
                "llama3 as Llama 3.1 has it"
            )
        settings[base] = words.get("rope_theta", settings[base])
        whole = words.get("partial_rotary_factor", whole)
    if share:
        settings[share] = whole
    elif whole != 1:
        raise UsageError(f"{path}: partial_rotary_factor {brief(whole)} is not supported: only 1")
    return settings, scaled


def _window(path: Path, values: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """Limit the positions to a sliding window, within which it has no effect; the notes on that."""
    default = 4096 if values["model_type"] == "mistral" else None
    window, positions = values.get("sliding_window", default), settings["max_position_embeddings"]
    uses = values.get("use_sliding_window", values["model_type"] in ("mistral", "llama"))
    if window is None or uses is False:
        return []
    if type(window) is not int or window < 1:
        raise FormatError(f"{path}: sliding_window is {brief(window)}, expected {EXPECTED[int]}")
    if window >= positions:
        return []
    settings["max_position_embeddings"] = window
    return [
        f"{positions:,} positions became {window:,}: up to its sliding_window the model is the "
        "same without one"
    ]


class StoredTensor(NamedTuple):
    """A tensor in a file that is open."""

    path: Path
    name: str
    file: Any  # of safe_open

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.file.get_slice(self.name).get_shape())

    def read(self) -> Tensor:
        """The tensor as fp32. FormatError where it is of none of the types that weights have."""
        kind = self.file.get_slice(self.name).get_dtype()
        if kind not in ("F64", "F32", "F16", "BF16"):
            raise FormatError(f"{self.path}: {self.name} is {brief(kind)}, which is not read")
        tensor: Tensor = self.file.get_tensor(self.name)
        return tensor.float()


def _open(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of all files of a folder. InputError, FormatError."""
    if (folder / _WHOLE).exists():
        return _tensors(folder / _WHOLE)
    if not (folder / _INDEX).exists():
        pickles = sorted(name for name in os.listdir(folder) if name.endswith(".bin"))
        also = f", only {pickles[0]}, a pickle, which is never read" if pickles else ""
        raise InputError(
            f"{folder}: has no {_WHOLE}{also}: save the model with safe_serialization=True"
        )
    where = read_object(folder / _INDEX).get("weight_map")
    if not isinstance(where, dict) or not all(map(_is_name, where.values())):
        raise FormatError(f"{folder / _INDEX}: its weight_map has to give the file of each tensor")
    tensors: dict[str, StoredTensor] = {}
    for name in sorted(set(where.values())):
        for key, stored in _tensors(folder / name).items():
            if key in tensors:
                raise FormatError(f"{stored.path}: {key} is in {tensors[key].path.name} too")
            tensors[key] = stored
    for key, name in where.items():
        if key not in tensors or tensors[key].path.name != name:
            raise FormatError(f"{folder / name}: has no tensor {key}, which {_INDEX} says it has")
    return tensors


def _tensors(path: Path) -> dict[str, StoredTensor]:
    """All tensors of a file by name; none is read yet. FormatError for a file that is broken."""
    try:
        if not path.is_file():
            raise FormatError(f"{path}: cannot be read: no such file")
        file = safe_open(path, "pt")
        names: list[str] = file.keys()  # type: ignore[no-untyped-call]
        return {name: StoredTensor(path, name, file) for name in names}
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error}") from None
    except SafetensorError as error:
        size = f"{path.stat().st_size:,} bytes"
        raise FormatError(f"{path}: no safetensors file, or cut off ({size}): {error}") from None


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and os.path.basename(value) == value not in ("", ".", "..")

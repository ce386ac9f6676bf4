"""Weights of a model of ``transformers``: config.json and safetensors."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open

from tokpack.display import brief
from tokpack.errors import FormatError, InputError, UsageError, option
from tokpack.option import EXPECTED
from tokpack.storage.disk import read_object

from ..config.config import FIELDS, Config
from ..config.model import LLAMA_3_POSITIONS, VOCABULARY, ModelConfig

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torch import Tensor


# Names of modules and settings in other programs: ``transformers``, and Megatron's family.


class Weights(Protocol):
    """The weights of a model from any source: ``read`` returns them whole, as fp32."""

    @property
    def model(self) -> ModelConfig: ...
    @property
    def tokenizer(self) -> dict[str, Any] | None:
        """The tokenizer as a manifest describes it, or None."""

    def read(self, name: str) -> dict[str, Tensor]:
        """One of our parameters, under the key ``parameter``."""


class Family(NamedTuple):
    """A class of ``transformers`` whose models tokpack can compute too."""

    model_type: str  # in config.json
    architecture: str  # the class
    column: int  # the column in MODULES and SETTINGS

    @property
    def is_llama(self) -> bool:
        """Whether its modules and settings have Llama's names."""
        return self.column == LLAMA.column

    @property
    def settings(self) -> dict[str, str]:
        """The settings of ours that it has, with their names in its config.json."""
        return {ours: names[self.column] for ours, names in SETTINGS.items() if names[self.column]}

    def name_of(self, module: str) -> str:
        """The name of one of our modules in this family; "" if it has no such module."""
        return MODULES[module][self.column] if module in MODULES else ""

    def places(self, name: str) -> list[str]:
        """The names of one of our parameters in this family, which may store it in several
        parts.
        """
        module, _, kind = name.rpartition(".")
        block = ""
        if module.startswith("blocks."):
            _, number, module = module.split(".", 2)
            block = f"{self.name_of('blocks')}.{number}."
        target, *parts = self.name_of(module).split(",")
        return [f"{block}{target.format(part)}.{kind}" for part in parts or [""]]

    def split(self, model: ModelConfig, name: str, tensor: Tensor) -> list[Tensor]:
        """The parts into which this family splits one of our tensors, with rows in its order."""
        rest, module = tensor.shape[1:], module_of(name)
        parts = [tensor]
        if module == "attention.qkv" and self != NEOX:
            heads = tensor.view(model.num_query_groups, -1, model.head_width, *rest)
            parts = [heads[:, :-2], heads[:, -2], heads[:, -1]]
        elif module == "mlp.up" and self.is_llama:
            parts = list(tensor.view(-1, 2, *rest).unbind(1))
        parts = [part.reshape(-1, *rest) for part in parts]
        if self == GPT2 and module == "attention.qkv":
            parts = [torch.cat(parts)]
        return [part.t() for part in parts] if self._is_transposed(name) else parts

    def join(self, model: ModelConfig, name: str, parts: list[Tensor]) -> Tensor:
        """The reverse of ``split``."""
        if self._is_transposed(name):
            parts = [part.t() for part in parts]
        rest, module = parts[0].shape[1:], module_of(name)
        if module == "attention.qkv" and self != NEOX:
            parts = list(parts[0].chunk(3)) if len(parts) == 1 else parts
            heads = (model.num_query_groups, -1, model.head_width, *rest)
            return torch.cat([part.reshape(heads) for part in parts], 1).reshape(-1, *rest)
        return torch.stack(parts, 1).flatten(0, 1) if len(parts) == 2 else parts[0]  # gate and up

    def _is_transposed(self, name: str) -> bool:
        """Whether it stores this weight as [inputs, outputs]."""
        linear = module_of(name).startswith(("attention.", "mlp."))
        return self == GPT2 and linear and name.endswith(".weight")


GPT2 = Family("gpt2", "GPT2LMHeadModel", 0)
NEOX = Family("gpt_neox", "GPTNeoXForCausalLM", 1)
LLAMA = Family("llama", "LlamaForCausalLM", 2)
QWEN3 = Family("qwen3", "Qwen3ForCausalLM", 2)
QWEN2 = Family("qwen2", "Qwen2ForCausalLM", 2)
ACTIVATIONS = {"gelu": "gelu_pytorch_tanh", "gelu_erf": "gelu", "swiglu": "silu"}


def _columns(text: str) -> dict[str, tuple[str, ...]]:
    """The rows of a table, by their first words; "-" is nothing."""
    rows = (line.split() for line in text.strip().splitlines())
    return {ours: tuple("" if name == "-" else name for name in names) for ours, *names in rows}


# Our modules, and their names in GPT-2, GPT-NeoX and Llama, a part after a comma; Qwen has those
# of Llama.
MODULES = _columns("""
    blocks              transformer.h    gpt_neox.layers            model.layers
    embedding.word      transformer.wte  gpt_neox.embed_in          model.embed_tokens
    embedding.position  transformer.wpe  -                          -
    attention_norm      ln_1             input_layernorm            input_layernorm
    attention.qkv       attn.c_attn      attention.query_key_value  self_attn.{}_proj,q,k,v
    attention.q_norm    -                -                          self_attn.q_norm
    attention.k_norm    -                -                          self_attn.k_norm
    attention.out       attn.c_proj      attention.dense            self_attn.o_proj
    mlp_norm            ln_2             post_attention_layernorm   post_attention_layernorm
    mlp.up              mlp.c_fc         mlp.dense_h_to_4h          mlp.{}_proj,gate,up
    mlp.down            mlp.c_proj       mlp.dense_4h_to_h          mlp.down_proj
    norm                transformer.ln_f gpt_neox.final_layer_norm  model.norm
    head                lm_head          embed_out                  lm_head
""")
# The scaled rope of Llama 3.1 and its successors; only the factor differs between them.
SCALED_ROPE = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": LLAMA_3_POSITIONS,
}
# Our settings, and their names in config.json of GPT-2, GPT-NeoX and Llama.
SETTINGS = _columns("""
    vocab_size               vocab_size          vocab_size               vocab_size
    hidden_size              n_embd              hidden_size              hidden_size
    num_layers               n_layer             num_hidden_layers        num_hidden_layers
    num_attention_heads      n_head              num_attention_heads      num_attention_heads
    num_query_groups         -                   -                        num_key_value_heads
    ffn_hidden_size          n_inner             intermediate_size        intermediate_size
    max_position_embeddings  n_positions         max_position_embeddings  max_position_embeddings
    layernorm_epsilon        layer_norm_epsilon  layer_norm_eps           rms_norm_eps
    hidden_dropout           resid_pdrop         hidden_dropout           -
    attention_dropout        attn_pdrop          attention_dropout        attention_dropout
    init_method_std          initializer_range   initializer_range        initializer_range
    parallel_residual        -                   use_parallel_residual    -
    rotary_percent           -                   rotary_pct               -
    rotary_base              -                   rotary_emb_base          rope_theta
""")
# Our modules, and their names in Megatron and its descendants. No name has two meanings there.
MEGATRON = {"": "norm"} | {
    theirs: ours
    for ours, names in {
        "norm": "norm final_norm final_layernorm",
        "embedding.word": "word_embeddings",
        "embedding.norm": "word_embeddings.norm",
        "embedding.position": "position_embeddings",
        "attention_norm": "input_norm input_layernorm",
        "attention.qkv": "attention.query_key_value self_attention.query_key_value "
        "self_attention.linear_qkv",
        "attention.out": "attention.dense self_attention.dense self_attention.linear_proj",
        "mlp_norm": "post_attention_norm post_attention_layernorm pre_mlp_layernorm",
        "mlp.up": "mlp.dense_h_to_4h mlp.linear1 mlp.linear_fc1",
        "mlp.down": "mlp.dense_4h_to_h mlp.linear2 mlp.linear_fc2",
        "head": "final_linear output_layer word_embeddings_for_head",
    }.items()
    for theirs in names.split()
}
# Buffers that some releases of these programs store beside the weights; they are not imported.
IGNORED = re.compile(r"rotary_emb|inv_freq|masked_bias|_extra_state|(attention|attn)\.bias$")


def module_of(name: str) -> str:
    """The module that a parameter belongs to, without the number of its block."""
    module = name.rpartition(".")[0]
    return module.split(".", 2)[2] if module.startswith("blocks.") else module


# Which arguments of another program's model an import ignores, and which it refuses.
#
# An argument that nobody knows may change what the model computes, and the weights would import
# without an error. So arguments.txt lists what changes nothing; all else is refused, unless it is
# off or the user accepts it.

_SHOWN = 8  # refused arguments in a message


def pass_over(
    where: Path | str,
    values: Mapping[str, Any],
    sections: Collection[str],
    read: Collection[str],
    accepted: Collection[str],
) -> dict[str, str]:
    """The ``accepted`` arguments among ``values``, with their values as text.

    Arguments in ``read`` are not looked at: the import itself reads them. ``sections`` name the
    sections of arguments.txt with arguments that change nothing. Any other argument that is not off
    raises UsageError, whose message begins with ``where``.
    """
    wrong = {
        name: brief(value)
        for name, value in values.items()
        if name not in read and not _is_off(value) and not _changes_nothing(name, values, sections)
    }
    taken = {name: wrong.pop(name) for name in [*wrong] if name in accepted}
    if wrong:
        shown = [f"{name} {value}" for name, value in list(wrong.items())[:_SHOWN]]
        more = f" and {len(wrong) - _SHOWN} others" if len(wrong) > _SHOWN else ""
        raise UsageError(
            f"{where}: {', '.join(shown)}{more}: not supported, or not known here; "
            f"{option('accept_argument', next(iter(wrong)))} imports the weights without it"
        )
    return taken


def _is_off(value: Any) -> bool:
    """Whether a value means that the argument asks for nothing."""
    plain = isinstance(value, (bool, int, float, str, list, tuple, dict, set))
    return value is None or (plain and not value)


def _changes_nothing(name: str, values: Mapping[str, Any], sections: Collection[str]) -> bool:
    for section in sections:
        names = _table()[section]
        starts = tuple(one[:-1] for one in names if one.endswith("*"))
        allowed = names.get(name, [] if name.startswith(starts) else None)
        if allowed == [] or (allowed and _is_one(values[name], allowed, values)):
            return True
    return False


def _is_one(value: Any, allowed: list[str], values: Mapping[str, Any]) -> bool:
    """Whether a value, or each item of a list, is among the ``allowed`` ones."""
    known = [str(values.get(word[1:])) if word.startswith("@") else word for word in allowed]
    if isinstance(value, (list, tuple)) and str(value) not in known:
        return bool(value) and all(_is_one(one, allowed, values) for one in value)
    is_number = isinstance(value, (int, float))
    return str(value) in known or (is_number and value in map(_number, known))


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


@cache
def _table() -> dict[str, dict[str, list[str]]]:
    """The argument names of each section of arguments.txt, each with the values that it may have;
    [] allows all.
    """
    table: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in Path(__file__).with_name("arguments.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            for word in line.split():
                name, _, allowed = word.partition("=")
                table[section][name] = allowed.split("|") if allowed else []
        elif not line.startswith("#") and line:
            section = line.partition(" | ")[0]
            table.setdefault(section, {})
    return table


CONFIG = "config.json"
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_FAMILIES = {one.model_type: one for one in (GPT2, NEOX, LLAMA, QWEN3, QWEN2)} | {"mistral": LLAMA}
_PREFIXES = ("transformer.", "gpt_neox.", "model.")  # absent if saved without a head
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
    {
        "activation_function": "gelu_new",
        "tie_word_embeddings": True,
        "layer_norm_epsilon": 1e-5,
        "resid_pdrop": 0.1,
        "attn_pdrop": 0.1,
    },
    {
        "hidden_act": "gelu",
        "tie_word_embeddings": False,
        "use_parallel_residual": True,
        "layer_norm_eps": 1e-5,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    },
    {
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
        "attention_dropout": 0.0,
    },
)
_OPTIONAL = ("n_inner", "num_key_value_heads", "head_dim")  # which may be null, or absent
_OURS: tuple[dict[str, Any], ...] = (
    {"position_embedding_type": "learned_absolute"},
    {"position_embedding_type": "rope"},
    {"position_embedding_type": "rope", "normalization": "RMSNorm", "add_bias_linear": False},
)
# Settings for which the models here support only this value.
_ONLY: tuple[dict[str, Any], ...] = (
    {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    {"attention_bias": True},
    {"attention_bias": False, "mlp_bias": False},
)
_ROPE = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_READ = {
    "activation_function",
    "hidden_act",
    "tie_word_embeddings",
    "head_dim",
    "rope_scaling",
    "rope_parameters",
    "rope_theta",
    "sliding_window",
    "use_sliding_window",
    "model_type",
    "quantization_config",
}
_LENGTH = 4096  # the longest seq_length that is taken from a model's positions


class HubWeights:
    """The weights of a folder with config.json, read tensor by tensor.

    Rows of the vocabulary from ``vocab_size`` on are padding and left out. ``notes`` are for the
    user. Unknown keys of config.json are refused, unless they are ``accepted``. UsageError for a
    model that cannot be computed here, FormatError for tensors that are broken, missing, or have no
    place in the model.
    """

    tokenizer = None  # ``importing.describe_tokenizer`` finds it

    def __init__(
        self, folder: Path, vocab_size: int | None = None, accepted: Collection[str] = ()
    ) -> None:
        self.path, file = folder, folder / CONFIG
        values = read_object(file)
        kind = values.get("model_type")
        if not isinstance(kind, str) or kind not in _FAMILIES:
            raise UsageError(
                f"{file}: model_type {brief(kind)} is not read: only "
                f"{', '.join(_FAMILIES)}, which are the models that can be computed here"
            )
        if values.get("quantization_config"):
            raise UsageError(
                f"{file}: quantization_config: weights that are quantized are not read"
            )
        self._family = _FAMILIES[kind]
        sections = ["transformers", "gpt2"][: 2 if self._family == GPT2 else 1]
        read = _READ | {*_ONLY[self._family.column], *self._family.settings.values()} - {*accepted}
        self.accepted = pass_over(file, values, sections, read, accepted)
        values = {key: value for key, value in values.items() if key not in self.accepted}
        settings, self.notes = _settings(file, values, self._family)
        self._rows = settings["vocab_size"]
        if vocab_size is not None and vocab_size > self._rows:
            raise UsageError(
                f"{option('vocab_size')} is {vocab_size:,}, the model has {self._rows:,} rows: "
                "give no more"
            )
        try:
            config = Config(**{**settings, "vocab_size": vocab_size or self._rows})
        except UsageError as error:
            raise FormatError(f"{file}: {error}") from None
        self._prefix = _PREFIXES[self._family.column]
        self._stored = {name.removeprefix(self._prefix): x for name, x in _open(folder).items()}
        if config.num_layers > len(self._stored):  # before code makes a list of that length
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
        """The shapes of a parameter's parts in the files."""
        rows, *rest = self.model.layout[name].shape
        shape = (self._rows if name in VOCABULARY else rows, *rest)
        try:
            whole = torch.empty(shape, device="meta")
        except RuntimeError:  # a size too large for an integer
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


def _settings(
    path: Path, values: dict[str, Any], family: Family
) -> tuple[dict[str, Any], list[str]]:
    """The settings of Config that follow from config.json, and notes."""
    column = family.column
    only = _ONLY[column].items()
    wrong = [f"{key} {brief(values[key])}" for key, one in only if values.get(key, one) != one]
    if wrong:
        raise UsageError(f"{path}: {', '.join(wrong)}: the models here do not support this")
    rope, scaled = _rope(path, values, family)
    values = _DEFAULTS[column] | {"initializer_range": 0.02} | values | rope
    qwen = {"qk_layernorm": family == QWEN3, "add_qkv_bias": family == QWEN2}
    settings = {**_OURS[column], **qwen, **scaled}
    for setting, name in family.settings.items():
        settings[setting] = _value(path, values, name, FIELDS[setting].kind)
    act = "activation_function" if family == GPT2 else "hidden_act"
    word = values[act]
    if not isinstance(word, str) or word not in _ACTIVATIONS[column]:
        supported = ", ".join(_ACTIVATIONS[column])
        raise UsageError(f"{path}: {act} {brief(word)} is not supported: only {supported}")
    settings["activation"] = _ACTIVATIONS[column][word]
    tied = _value(path, values, "tie_word_embeddings", bool)
    settings["untie_embeddings_and_output_weights"] = not tied
    if family.is_llama:
        head = {"head_dim": 128} if family == QWEN3 else {}
        settings["kv_channels"] = _value(path, head | values, "head_dim", int)
    notes = _window(path, values, settings)
    settings["seq_length"] = min(settings["max_position_embeddings"], _LENGTH)
    return settings, notes


def _value(path: Path, values: dict[str, Any], name: str, kind: type[Any]) -> Any:
    """A value of config.json. FormatError if it is missing or has another type."""
    value = values.get(name)
    if value is None and name in _OPTIONAL:
        return None
    if type(value) is kind or (kind is float and type(value) is int):
        return kind(value)
    word = "missing" if name not in values else brief(value)
    raise FormatError(f"{path}: {name} is {word}, expected {EXPECTED[kind]}")


def _rope(
    path: Path, values: dict[str, Any], family: Family
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The base of rope and its share of a head, by the family's names; and our settings of its
    scaling.

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
            factor = _value(path, words, "factor", float)
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
    """The notes on a sliding window, after limiting positions to its length: so far it has no
    effect.
    """
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
    file: Any  # from safe_open

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.file.get_slice(self.name).get_shape())

    def read(self) -> Tensor:
        """The tensor as fp32. FormatError if its type is not one of the types of weights."""
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

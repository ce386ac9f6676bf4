"""Weights of GPT-NeoX, Megatron-LM and Megatron-DeepSpeed, read safely from the files of their
ranks.

GPT-NeoX has layer_XX-model_TT-model_states.pt, one file for each layer of a pipeline. The others
have mp_rank_TT or mp_rank_TT_PPP, with all layers of a stage. TT is the rank of tensor parallelism.
The name of a tensor says what it is: it is a name of Megatron's older layers, or of Megatron Core.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pickle import UnpicklingError
from types import NoneType
from typing import TYPE_CHECKING, Any

import torch

from tokpack.display import brief
from tokpack.errors import FormatError, UsageError, option
from tokpack.tokenizers import count_ids

from ..config.flags import UNSPLIT, resolve
from ..config.model import VOCABULARY, ModelConfig
from .folder import LAYER_FILE
from .huggingface import IGNORED, MEGATRON, pass_over

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    Files = dict[tuple[int, int], Path]  # by (stage or pipeline layer, tensor rank)

_RANK = re.compile(r"mp_rank_(\d\d)(?:_(\d{3}))?(_model_states\.pt)?")
_FILES = ("model_optim_rng.pt", "model_rng.pt")
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
# Transformer Engine puts a norm inside the linear layer that follows it.
_FUSED = {"self_attention.linear_qkv": "attention_norm", "mlp.linear_fc1": "mlp_norm"}
_KINDS = {"weight": "weight", "scale": "weight", "bias": "bias"}
_OUTSIDE = re.compile(
    r"^(module\.)*(language_model\.)?(embedding|transformer|encoder|decoder)\.|^(module\.)*(language_model\.)"
)
# The stored arguments that decide the model: settings with a value, and switches.
_SETTINGS = """
    num_layers hidden_size ffn_hidden_size num_attention_heads kv_channels seq_length
    max_position_embeddings make_vocab_size_divisible_by position_embedding_type rotary_percent
    rotary_base rope_theta rope_scaling_factor normalization layernorm_epsilon norm_epsilon
    init_method_std"""
_FLAGS = """
    untie_embeddings_and_output_weights swiglu openai_gelu use_rotary_position_embeddings
    embed_layernorm add_qkv_bias use_rope_scaling"""
_SWITCHES = [*_FLAGS.split(), "group_query_attention", "add_bias_linear", "bias_gelu_fusion"]
_READ = {*_SETTINGS.split(), *_SWITCHES, "num_query_groups"}
_FLAG_OF = {"rope_theta": "rotary_base"}  # of Microsoft's fork
_LEGACY = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"  # files of PyTorch before 1.6 begin with this number


def find_files(folder: Path) -> Files:
    """The files of a folder: layer files, else files of ranks; empty if it is not such a
    checkpoint.
    """
    layers: Files = {}
    ranks: Files = {}
    for entry in folder.iterdir():
        if match := LAYER_FILE.fullmatch(entry.name):
            layers[int(match[1]), int(match[2])] = entry
        elif match := _RANK.fullmatch(entry.name):
            names = [entry] if match[3] else [entry / name for name in _FILES]
            for path in filter(lambda path: path.is_file(), names):
                ranks[int(match[2] or 0), int(match[1])] = path
    return layers or ranks


def open_ranks(
    folder: Path,
    files: Files,
    config: str | None,
    vocab_size: int | None,
    accepted: Collection[str] = (),
) -> RankWeights:
    """The weights in these files. ``config``, a file of flags, describes the model, or the files
    do.

    Layer files do not describe it. The vocabulary in them is padded. Its size is ``vocab_size``,
    else the size in ``config`` or of its vocab_file if that exists; otherwise all rows count.
    Unknown arguments are refused, unless they are ``accepted``. UsageError for another model.
    """
    first = files[min(files)]
    arguments: dict[str, Any] = {}
    if not LAYER_FILE.fullmatch(first.name):
        args: Any = load_file(first).get("args")
        args = args if isinstance(args, dict) else getattr(args, "__dict__", {})
        arguments = {str(name): value for name, value in args.items()}
    elif config is None:
        raise UsageError(
            f"{folder}: layer files do not describe their model: add {option('config')}"
        )
    passed = pass_over(first, arguments, ("megatron",), _READ, accepted)
    if config is not None:
        unknown: dict[str, Any] = {}

        def is_passed(name: str, value: Any, is_known: bool) -> bool:
            if name in accepted or not is_known:
                unknown[name] = value
            return name in unknown

        settings = resolve([config, *UNSPLIT], without=is_passed).config
        passed |= pass_over(config, unknown, ("megatron", "neox"), (), accepted)
    else:
        try:
            settings = resolve([*_flags(arguments), *UNSPLIT]).config
        except UsageError as error:
            raise UsageError(f"{first}: {error.args[0]}") from None
    ids = vocab_size or (settings.vocab_size if config is not None else None)
    if not ids and settings.vocab_file and os.path.exists(settings.vocab_file):
        ids = count_ids(settings.vocab_file)
    return RankWeights(folder, files, ModelConfig.of(settings, ids or 0), passed)


class RankWeights:
    """The weights of a model, joined over tensor ranks and pipeline stages.

    ``model`` is the model that they must fit; with a vocabulary of 0 all rows count. ``accepted``
    has the unknown arguments that the user accepts. FormatError for files that are missing or hold
    more than tensors, UsageError for weights of another model.
    """

    tokenizer = None  # such files do not name it
    notes: tuple[str, ...] = ()  # for the user of an import

    def __init__(
        self,
        folder: Path,
        files: Files,
        model: ModelConfig,
        accepted: Mapping[str, str] | None = None,
    ) -> None:
        self.path, self.accepted = folder, accepted or {}
        self._parts = _by_name(folder, files, model)
        rows = sum(part.shape[0] for part in self._named("embedding.word.weight"))
        self.model = replace(model, vocab_size=model.vocab_size or rows)
        self._check()

    def read(self, name: str) -> dict[str, Tensor]:
        """The whole tensor of a parameter as fp32, under the key ``parameter``."""
        return {"parameter": self._join(name, self._named(name))}

    def _named(self, name: str) -> list[Tensor]:
        if name not in self._parts:
            raise FormatError(f"{self.path}: no file has the tensor of {name}")
        return self._parts[name]

    def _join(self, name: str, parts: list[Tensor]) -> Tensor:
        dim = self.model.layout[name].split
        if dim is not None:
            whole = torch.cat(parts, dim).float()
            return whole[: self.model.vocab_size] if name in VOCABULARY else whole
        whole = torch.stack(parts).float().sum(0)
        # With a parallel residual each rank adds its own bias, and then the ranks are summed.
        added = self.model.parallel_residual and name.endswith((".out.bias", ".down.bias"))
        return whole if added else whole / len(parts)

    def _check(self) -> None:
        """Compare every tensor's shape without reading it."""
        blocks = {name.split(".")[1] for name in self._parts if name.startswith("blocks.")}
        if len(blocks) != self.model.num_layers:
            raise UsageError(
                f"{self.path}: of another model: {option('num_layers')} is {len(blocks)} there, "
                f"{self.model.num_layers} here"
            )
        expected = self.model.layout  # a name for each layer, whose number was checked before
        spare = [n for n in self._parts if n not in expected]
        if "head.weight" in spare and self._is_tied():
            spare.remove("head.weight")
        if "head.weight" in spare:
            raise UsageError(
                f"{self.path}: the files have a separate head (final_linear), the model here "
                f"has none: set {option('untie_embeddings_and_output_weights')} (no-weight-tying "
                "in NeoX's YAML)"
            )
        if spare:
            raise UsageError(f"{self.path}: the model here has no place for {', '.join(spare)}")
        for name, (shape, _) in expected.items():
            there = self._join(name, [part.to("meta") for part in self._named(name)]).shape
            if there != shape:
                raise UsageError(
                    f"{self.path}: the weights are of another model: {name} is {list(there)} "
                    f"there, {list(shape)} here"
                )

    def _is_tied(self) -> bool:
        """Whether the head equals the word embedding, apart from padding."""
        left = self.model.vocab_size
        pairs = zip(self._named("head.weight"), self._named("embedding.word.weight"), strict=True)
        for head, words in pairs:
            if not torch.equal(head[:left].float(), words[:left].float()):
                return False
            left = max(left - len(words), 0)
        return True


def _by_name(folder: Path, files: Files, model: ModelConfig) -> dict[str, list[Tensor]]:
    """The parts of each tensor by tensor rank, under its global name. Maps the files."""
    by_name: dict[str, list[Tensor]] = {}
    before, ranks = 0, 1 + max(rank for _, rank in files)  # blocks of earlier stages
    for stage in sorted({stage for stage, _ in files}):
        there = sorted(rank for one, rank in files if one == stage)
        if there != list(range(ranks)):
            raise FormatError(
                f"{folder}: layer or stage {stage} has files of the ranks {there}, expected 0 to "
                f"{ranks - 1}"
            )
        blocks = set[str]()
        for rank in range(ranks):
            path = files[stage, rank]
            tensors, of_layer = dict(_tensors(path)), bool(LAYER_FILE.fullmatch(path.name))
            if of_layer and model.num_query_groups != model.num_attention_heads:
                raise UsageError(f"{path}: grouped queries of layer files are not read")
            in_block = of_layer and any("layernorm" in key for key in tensors)
            for key, part in tensors.items():
                name = _name(path, f"layers.0.{key}" if in_block else key, before)
                gated = model.activation == "swiglu" and ".mlp.up." in name
                parts = by_name.setdefault(name, [])
                if len(parts) == rank:  # else an earlier stage had it too
                    parts.append(_in_order(part, gate_first=not of_layer) if gated else part)
                blocks.update([name.split(".")[1]] if name.startswith("blocks.") else ())
        before += len(blocks)
    return by_name


def _in_order(part: Tensor, gate_first: bool) -> Tensor:
    """The rows of gate and up alternating, as they are here; Megatron has all rows of gate first.

    GPT-NeoX has all rows of gate last.
    """
    halves = part.chunk(2)
    return torch.stack(halves if gate_first else halves[::-1], 1).flatten(0, 1)


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a file, by name: the keys of nested dictionaries joined by dots."""
    values = load_file(path)
    if "model0" in values:
        raise UsageError(f"{path}: interleaved stages are not read: save without them")
    of_layer = LAYER_FILE.fullmatch(path.name)
    model = values if of_layer else values.get("model", values.get("module"))
    if not isinstance(model, dict):
        raise FormatError(f"{path}: has no model")
    stack: list[tuple[str, Any]] = [("", model)]
    while stack:
        prefix, inner = stack.pop()
        for key, value in inner.items():
            if isinstance(value, torch.Tensor):
                if not IGNORED.search(str(key)):
                    yield f"{prefix}{key}", value
            elif of_layer:
                raise FormatError(f"{path}: is not read: it holds more than named tensors")
            elif isinstance(value, dict):
                stack.append((f"{prefix}{key}.", value))


def _name(path: Path, key: str, before: int) -> str:
    """Our name of a tensor; ``before`` blocks are in earlier stages. FormatError if it has none."""
    short = _OUTSIDE.sub("", key)
    match = _LAYER.fullmatch(short)
    module, _, kind = (match[2] if match else short).rpartition(".")
    if kind.startswith("layer_norm_") and module in _FUSED:
        ours, kind = _FUSED[module], kind.removeprefix("layer_norm_")
    else:
        ours = MEGATRON.get(module, "")
    if not ours or kind not in _KINDS:
        raise FormatError(f"{path}: the tensor {key} has no place in the models here")
    name = f"{ours}.{_KINDS[kind]}"
    return f"blocks.{before + int(match[1])}.{name}" if match else name


def _flags(values: Mapping[str, Any]) -> list[str]:
    """The flags for the arguments in a file. UsageError if it has none."""
    if not values.get("num_layers"):
        raise UsageError(f"it does not describe its model: add {option('config')}")
    for name in _SWITCHES:
        if not isinstance(values.get(name), (bool, NoneType)):
            raise UsageError(f"{name} is {brief(values[name])}, expected true or false")
    flags = []
    for name in _SETTINGS.split():
        if values.get(name) is not None:
            flags += [f"--{_FLAG_OF.get(name, name)}", str(values[name])]
    flags += [f"--{name}" for name in _FLAGS.split() if values.get(name)]
    if values.get("group_query_attention"):
        flags += ["--num_query_groups", str(values.get("num_query_groups"))]
    if values.get("add_bias_linear") is False:
        flags.append("--disable_bias_linear")
    elif "bias_gelu_fusion" in values and not values.get("swiglu"):
        fused = values["bias_gelu_fusion"]
        flags.append("--bias_gelu_fusion" if fused else "--no_bias_gelu_fusion")
    return flags


class _Inert:
    """A stand-in for objects in a file that are not needed: none of their code runs."""

    def __init__(self, *_: object) -> None: ...
    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):  # the values of an argparse.Namespace
            self.__dict__.update(state)


# Megatron stores its arguments and numpy's random state beside the weights. Among the arguments are
# values of Megatron's own enums, listed here. None of them changes what the model computes.
_INERT: list[Any] = [
    (_Inert, name)
    for name in (
        "argparse.Namespace",
        "builtins.getattr",  # by which Python 3.11.0 to 3.11.3 pickle a value of an enum
        "megatron.core.enums.ModelType",
        "megatron.core.transformer.enums.AttnBackend",
        "megatron.core.transformer.enums.CudaGraphModule",
        "megatron.core.transformer.enums.CudaGraphScope",
        "megatron.model.enums.ModelType",
        "numpy.ndarray",
        "numpy.dtype",
        "numpy.core.multiarray._reconstruct",
        "numpy._core.multiarray._reconstruct",
    )
]


def load_file(path: Path) -> dict[str, Any]:
    """The dictionary of tensors and plain values that ``torch.save`` wrote; the file is mapped.

    No code that the file names is run. FormatError if it holds anything else, UsageError for a
    release of Megatron that has queries, keys and values in another order.
    """
    try:
        with path.open("rb") as file:
            head = file.read(32)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    if _LEGACY in head:
        raise FormatError(
            f"{path}: is not read: it has the form from before PyTorch 1.6; write it again with "
            "torch.save(torch.load(FILE, weights_only=True), FILE)"
        )
    if not head.startswith(b"PK"):
        raise FormatError(f"{path}: is not read: torch.save did not write it, or it is damaged")
    try:
        with torch.serialization.safe_globals(_INERT):
            part = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except UnpicklingError as error:
        name = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f": it holds {name[1]}, which would be unpickled" if name else ""
        raise FormatError(f"{path}: is not read: it is no file of tensors alone{what}") from None
    except (RuntimeError, OSError, EOFError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise FormatError(f"{path}: cannot be read: {reason}") from None
    if not isinstance(part, dict):
        raise FormatError(f"{path}: is not read: it holds more than named tensors")
    version = part.get("checkpoint_version", 3.0)
    if not isinstance(version, (int, float)) or version < 2:
        raise UsageError(
            f"{path}: checkpoint_version {brief(version)} is not read: before 2 Megatron had "
            "queries, keys and values in another order; load and save it with a newer Megatron"
        )
    return part

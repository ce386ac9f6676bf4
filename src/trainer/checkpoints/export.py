"""A checkpoint -> a folder that ``transformers`` loads: GPT-2, GPT-NeoX, Llama or Qwen."""

from __future__ import annotations

import json
import logging
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from tokpack.errors import InputError, OutputError, Remark, TokenizerError, UsageError, option
from tokpack.progress import ProgressStage
from tokpack.quantities import counted
from tokpack.storage.disk import cannot_write, check_not_inputs, whole_folder
from tokpack.tokenizers import Frame, chat_files, files_of, tokenizer_of

from .files import DTYPES, Checkpoint, write_tensors
from .folder import earlier, find
from .huggingface import (
    ACTIVATIONS,
    GPT2,
    LLAMA,
    NEOX,
    QWEN2,
    QWEN3,
    SCALED_ROPE,
    Family,
    module_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Unpack

    from torch import Tensor

    from tokpack.progress import Show
    from tokpack.tokenizers import Tokenizer, TokenizerFiles

    from ..config.model import ModelConfig
    from .huggingface import Weights

KIND = "exported model"
_log = logging.getLogger(__name__)


class AverageWeights:
    """The mean of the weights of several checkpoints of a run; everything else is the last
    checkpoint's.
    """

    def __init__(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Open them. UsageError if they are of different models."""
        last = checkpoints[-1]
        for one in checkpoints:
            if one.model.layout != last.model.layout:
                raise UsageError(f"{one.path}: is of another model than {last.path}")
        self.model, self.tokenizer, self._checkpoints = last.model, last.tokenizer, checkpoints

    def read(self, name: str) -> dict[str, Tensor]:
        """The mean of a parameter, as fp32, under the key ``parameter``."""
        whole = sum(one.read(name)["parameter"].double() for one in self._checkpoints)
        assert isinstance(whole, torch.Tensor)
        return {"parameter": (whole / len(self._checkpoints)).float()}


def open_weights(folder: str | os.PathLike[str], average: int = 1) -> Checkpoint | AverageWeights:
    """The weights of the latest checkpoint of a folder, or the ``average`` of that many, all
    verified.

    InputError if there is no checkpoint, FormatError for a broken one, UsageError if there are too
    few.
    """
    path = find(folder)
    if path is None:
        raise InputError(f"{folder}: there is no checkpoint")
    paths = [*earlier(path), path]
    if len(paths) < average:
        raise UsageError(
            f"{folder}: has {counted(len(paths), 'checkpoint')}, fewer than {option('average')} "
            f"{average}: {option('keep_checkpoints')} of a run says how many it keeps"
        )
    weights = [Checkpoint(one) for one in paths[-average:]]
    for checkpoint in weights:
        checkpoint.verify()
    return weights[0] if average == 1 else AverageWeights(weights)


def open_checkpoint(
    folder: str | os.PathLike[str], average: int = 1, **options: Unpack[TokenizerFiles]
) -> tuple[Checkpoint | AverageWeights, Tokenizer | TokenizerError]:
    """The weights as open_weights returns them, with the given tokenizer or the one that the
    checkpoint names.

    If the tokenizer that the checkpoint names is not found, the error is returned in its place.
    """
    weights = open_weights(folder, average)
    try:
        return weights, tokenizer_of(weights.tokenizer, **options)
    except TokenizerError as error:
        if any(options.values()):
            raise
        return weights, error


def export(
    weights: Weights,
    output: str | os.PathLike[str],
    *,
    tokenizer: Tokenizer | None = None,
    dtype: str = "fp32",
    max_shard_size: int = 5_000_000_000,
    overwrite: bool = False,
    inputs: Iterable[str] = (),
    progress: Show | bool | None = None,
) -> str:
    """The class of ``transformers`` that loads the folder ``output``, which is written whole or not
    at all.

    The vocabulary is written without padding. ``tokenizer``'s files are written beside the model if
    transformers has a tokenizer that gives the same ids; if it has none, a warning says so.
    ``max_shard_size`` is the size of a file of weights, in bytes. ``progress`` is told how many
    parameters are written. UsageError for a model that no class of ``transformers`` computes, or if
    one of ``inputs``, the files that were read, lies in ``output``; OutputError if ``output``
    exists and may not be replaced.
    """
    if dtype not in DTYPES:
        raise UsageError(f"{option('dtype')} is {dtype!r}, expected one of {', '.join(DTYPES)}")
    model, kind, target = weights.model, DTYPES[dtype], Path(os.path.realpath(output))
    family = family_of(model)
    if target.exists() and not overwrite:
        raise OutputError(
            f"{target} exists: choose another output, or replace it with "
            f"{option('overwrite', True)}"
        )
    if target.is_dir():
        check_not_inputs(map(str, target.iterdir()), inputs)
    eod = None if tokenizer is None else tokenizer.eod_id
    bos, end = next(iter(Frame.of(weights.tokenizer).before), eod), None
    files: dict[str, bytes] = {}
    if tokenizer is not None:
        settings, templates = chat_files(tokenizer)
        if settings is not None and settings.eos is not None:
            end = tokenizer.token_to_id(settings.eos)
        try:
            chat = settings, templates
            files = files_of(tokenizer, chat, model.max_position_embeddings, bos)
            if settings is None:
                _warn_of_template(output, weights.tokenizer)
        except TokenizerError as error:
            _log.warning("%s has no tokenizer: %s", output, error)
    # Generation also stops at the end of a turn, which may not be the end of a document.
    ends = {"bos_token_id": bos, "eos_token_id": eod if end in (None, eod) else [end, eod]}
    config = {**config_of(model, family), "dtype": str(kind).removeprefix("torch."), **ends}
    with cannot_write(str(target)):
        work = whole_folder.begin(target, KIND)
        stage = ProgressStage(progress, "export", model.parameters, "parameters")
        _write_weights(work, weights, family, kind, limit=max_shard_size, stage=stage)
        _write_json(work / "config.json", config)
        _write_json(work / "generation_config.json", ends)
        for name, content in files.items():
            (work / name).parent.mkdir(exist_ok=True)
            (work / name).write_bytes(content)
        whole_folder.finish(target, KIND)
    return family.architecture


def _warn_of_template(output: Any, described: Mapping[str, Any] | None) -> None:
    """Warn if the original folder of the tokenizer has a chat template, which copies of its files
    lack.
    """
    paths = [str(one.get("path")) for one in (described or {}).get("files", ())]
    for folder in dict.fromkeys(map(os.path.dirname, paths)):
        if os.path.isfile(os.path.join(folder, "chat_template.jinja")):
            _log.warning(
                Remark(
                    f"{output} has no chat template: export with {option('tokenizer', folder)}, "
                    "where there is one"
                )
            )


def family_of(model: ModelConfig) -> Family:
    """The class of ``transformers`` that computes the same model. UsageError if there is none."""
    rotary, parallel = model.position_embedding_type == "rope", model.parallel_residual
    gelu = model.normalization == "LayerNorm" and model.activation != "swiglu"
    swiglu = model.normalization == "RMSNorm" and model.activation == "swiglu"
    grouped = model.num_query_groups != model.num_attention_heads
    modules = {module_of(name) for name in model.layout} - {"embedding.norm"}
    normed = "attention.q_norm" in modules
    whole = rotary and model.rotary_percent == 1
    family = None
    if gelu and model.add_bias_linear and not grouped and (rotary or not parallel):
        family = NEOX if rotary else GPT2
    elif swiglu and whole and not model.add_bias_linear and not parallel:
        family = QWEN3 if normed else QWEN2 if model.add_qkv_bias else LLAMA
    if (model.kv_channels and family in (GPT2, NEOX)) or (normed and model.add_qkv_bias):
        family = None
    names = "position_embedding_type rotary_percent normalization activation add_bias_linear "
    names += "parallel_residual num_query_groups num_attention_heads kv_channels add_qkv_bias"
    words = [f"{name} {getattr(model, name)}" for name in names.split()]
    if family is not None:
        absent = [one for one in sorted(modules) if not family.name_of(one)]
        if not absent:
            return family
        words = [f"{family.architecture} has no {' and no '.join(absent)}"]
    raise UsageError(
        f"no class of transformers computes this model: {', '.join(words)}. GPT-2 has learned "
        "positions, LayerNorm, gelu, biases and a sequential residual; GPT-NeoX rotary positions, "
        "LayerNorm, gelu and biases; Llama fully rotary positions, RMSNorm, swiglu, no biases and "
        f"a sequential residual, Qwen2 the same with {option('add_qkv_bias')}, and Qwen3 with "
        f"{option('qk_layernorm')}; {option('kv_channels')} is for the last three"
    )


def config_of(model: ModelConfig, family: Family) -> dict[str, Any]:
    """The values of config.json, under the names of both older and newer releases."""
    values = {name: getattr(model, setting) for setting, name in family.settings.items()}
    activation = ACTIVATIONS[model.activation]
    if family == GPT2:
        values |= {"activation_function": activation, "embd_pdrop": model.hidden_dropout}
    else:
        rope = {"rope_theta": model.rotary_base, "partial_rotary_factor": model.rotary_percent}
        values |= {"hidden_act": activation, "rope_parameters": {"rope_type": "default", **rope}}
        if model.use_rope_scaling:
            scaling = {**SCALED_ROPE, "factor": model.rope_scaling_factor}
            values |= {"rope_parameters": {**rope, **scaling}, "rope_scaling": scaling}
    if family == QWEN3 or model.kv_channels:
        values |= {"head_dim": model.head_width}
    # A norm after the word embedding is folded into it, so it no longer equals the head.
    tied = not (model.untie_embeddings_and_output_weights or model.embed_layernorm)
    names = {"architectures": [family.architecture], "model_type": family.model_type}
    return {**names, "tie_word_embeddings": tied, **values}


def _write_weights(
    folder: Path,
    weights: Weights,
    family: Family,
    dtype: torch.dtype,
    *,
    limit: int,
    stage: ProgressStage,
) -> None:
    """Write model.safetensors; or, if that is larger than ``limit`` bytes, several files and their
    index.
    """
    shards: list[list[str]] = [[]]
    size = total = 0
    for name, one in weights.model.layout.items():
        count = math.prod(one.shape) * dtype.itemsize
        if shards[-1] and size + count > limit:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += count
        total += count
    where: dict[str, str] = {}
    last = len(shards)
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{last:05d}.safetensors" if last > 1 else "model.safetensors"
        tensors = {
            key: tensor.to(dtype).contiguous()
            for name in names
            for key, tensor in _translated(weights, family, name)
        }
        write_tensors(folder / file, tensors)
        stage.add(sum(math.prod(weights.model.layout[name].shape) for name in names))
        where |= dict.fromkeys(tensors, file)
    if last > 1:
        index = {"metadata": {"total_size": total}, "weight_map": where}
        _write_json(folder / "model.safetensors.index.json", index)


def _translated(weights: Weights, family: Family, name: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors, by name, into which a family puts one of our parameters.

    A norm after the word embedding is applied to it.
    """
    model, tensor = weights.model, weights.read(name)["parameter"]
    module = module_of(name)
    if module == "embedding.norm":
        return
    if module == "embedding.word" and model.embed_layernorm:
        if not model.untie_embeddings_and_output_weights:
            yield family.places("head.weight")[0], tensor
        scale = weights.read("embedding.norm.weight")["parameter"]
        if model.normalization == "RMSNorm":
            tensor = functional.rms_norm(tensor, scale.shape, scale, model.layernorm_epsilon)
        else:
            bias = weights.read("embedding.norm.bias")["parameter"]
            epsilon = model.layernorm_epsilon
            tensor = functional.layer_norm(tensor, scale.shape, scale, bias, epsilon)
    yield from zip(family.places(name), family.split(model, name, tensor), strict=True)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n")

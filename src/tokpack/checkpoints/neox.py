"""Weights of GPT-NeoX, read safely: layer_XX-model_YY-model_states.pt, slim or full.

XX counts the layers of a DeepSpeed pipeline, YY the ranks of tensor parallelism. Programs count
layers differently, so what a layer is follows from the names of its tensors.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch

from tokpack.configuration.flags import UNSPLIT, resolve
from tokpack.configuration.model import VOCABULARY, ModelConfig
from tokpack.errors import FormatError, UsageError, option
from tokpack.tokenizers.ids import count_ids

from .families import IGNORED, MEGATRON
from .folder import LAYER_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

_KINDS = {"weight": "weight", "scale": "weight", "bias": "bias"}
_LEGACY = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"  # files of PyTorch before 1.6 begin with this number


class NeoxWeights:
    """The weights of a folder, joined over the ranks of tensor parallelism.

    ``model`` is the model that they must be of; with a vocabulary of 0 all rows count. FormatError
    for files that are missing or hold more than tensors, UsageError for weights of another model.
    """

    tokenizer = None  # layer files do not name it
    notes: tuple[str, ...] = ()  # for the user, of an import

    def __init__(
        self, folder: Path, model: ModelConfig, parts: dict[str, list[Tensor]] | None = None
    ) -> None:
        self.path = folder
        self._parts = _by_name(folder) if parts is None else parts
        rows = sum(part.shape[0] for part in self._named("embedding.word.weight"))
        self.model = replace(model, vocab_size=model.vocab_size or rows)
        self._check()

    def read(self, name: str) -> dict[str, Tensor]:
        """The whole tensor of a parameter as fp32, under the key ``parameter``."""
        return {"parameter": self._join(name, self._named(name))}

    def _named(self, name: str) -> list[Tensor]:
        if name not in self._parts:
            raise FormatError(f"{self.path}: no layer file has the tensor of {name}")
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
        expected = self.model.layout
        blocks = {name.split(".")[1] for name in self._parts if name.startswith("blocks.")}
        if len(blocks) != self.model.num_layers:
            raise UsageError(
                f"{self.path}: of another model: {option('num_layers')} is {len(blocks)} there, "
                f"{self.model.num_layers} here"
            )
        spare = [n for n in self._parts if n not in expected]
        if "head.weight" in spare and self._tied():
            spare.remove("head.weight")
        if "head.weight" in spare:
            raise UsageError(
                f"{self.path}: the layer files have a head of their own (final_linear), the model "
                f"here has none: set {option('untie_embeddings_and_output_weights')} "
                "(no-weight-tying in NeoX's YAML)"
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

    def _tied(self) -> bool:
        """Whether the head is the word embedding, padding aside."""
        left = self.model.vocab_size
        pairs = zip(self._named("head.weight"), self._named("embedding.word.weight"), strict=True)
        for head, words in pairs:
            if not torch.equal(head[:left].float(), words[:left].float()):
                return False
            left = max(left - len(words), 0)
        return True


def open_layer_files(path: Path, config: str | None, vocab_size: int | None) -> NeoxWeights:
    """Open the layer files of the model that NeoX's YAML ``config`` describes.

    Their vocabulary is padded. Its size is the YAML's vocab_size, else ``vocab_size``, else that of
    the YAML's vocab_file if it exists, else all rows count. UsageError for another model.
    """
    if config is None:
        raise UsageError(f"{path}: layer files do not say which model they are of: add --config")
    settings, _ = resolve([config, *UNSPLIT])
    ids = settings.vocab_size or vocab_size
    if not ids and settings.vocab_file and os.path.exists(settings.vocab_file):
        ids = count_ids(settings.vocab_file)
    return NeoxWeights(path, ModelConfig.of(settings, ids or 0))


def _by_name(folder: Path) -> dict[str, list[Tensor]]:
    """Global name -> the parts of its tensor, by rank of tensor parallelism. Maps the files."""
    layers: dict[int, dict[int, Path]] = {}
    for path in folder.iterdir():
        if match := LAYER_FILE.fullmatch(path.name):
            layers.setdefault(int(match[1]), {})[int(match[2])] = path
    ranks = max(len(files) for files in layers.values())
    found: dict[str, list[Tensor]] = {}
    block = 0
    for number, files in sorted(layers.items()):
        if sorted(files) != list(range(ranks)):
            raise FormatError(
                f"{folder}: layer {number} has files of the ranks {sorted(files)}, expected 0 to "
                f"{ranks - 1}"
            )
        parts = [_load(files[rank]) for rank in range(ranks)]
        in_block = any("layernorm" in key for key in parts[0])
        for key in parts[0]:
            if IGNORED.search(key):
                continue
            module, _, kind = key.rpartition(".")
            if module not in MEGATRON or kind not in _KINDS:
                raise FormatError(f"{files[0]}: the tensor {key} has no place in GPT-2 or GPT-NeoX")
            name = f"{MEGATRON[module]}.{_KINDS[kind]}"
            name = f"blocks.{block}.{name}" if in_block else name
            found.setdefault(name, [part[key] for part in parts])
        block += in_block
    return found


def _load(path: Path) -> dict[str, Tensor]:
    part = load_file(path)
    if not all(isinstance(value, torch.Tensor) for value in part.values()):
        raise FormatError(f"{path}: is not read: it holds more than named tensors")
    return part


class _Inert:
    """Takes the place of objects of a file that are not needed: none of their code is run."""

    def __init__(self, *_: object) -> None: ...
    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):  # the values of an argparse.Namespace
            self.__dict__.update(state)


# Megatron stores its arguments and numpy's random state beside the weights.
_INERT: list[Any] = [
    (_Inert, name)
    for name in (
        "argparse.Namespace",
        "numpy.ndarray",
        "numpy.dtype",
        "numpy.core.multiarray._reconstruct",
        "numpy._core.multiarray._reconstruct",
    )
]


def load_file(path: Path) -> dict[str, Any]:
    """The dictionary of tensors and plain values that ``torch.save`` wrote; maps the file.

    No code that the file names is run. FormatError where it holds anything else.
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
    return part

"""The format of a checkpoint: whole fp32 tensors under global names, one file a layer.

step_00000100/embedding.safetensors, layer_000.safetensors, ..., norm, head
step_00000100/state.json   counters, model, tokenizer, size and checksum of each file
"""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch
import xxhash
from safetensors import SafetensorError, safe_open

from tokpack.dataset.manifest import FileDigest, digest_file
from tokpack.display import brief
from tokpack.errors import FormatError, UsageError, option
from tokpack.storage.disk import cannot_write, decode, read_object, sync_file

from ..config.config import Config
from ..config.model import ModelConfig, room_of
from .folder import STATE, earlier

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from torch import Tensor


_NAMES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
VERSION = 1


@dataclass(frozen=True)
class RunState:
    """All of a checkpoint but its tensors, as JSON values: how far the run is, model and data."""

    step: int
    consumed_samples: int
    data_state: dict[str, Any]
    config: dict[str, Any]
    model: dict[str, Any]  # the ModelConfig, by asdict
    tokenizer: dict[str, Any] | None = None  # as the manifest of the data describes it
    accepted: dict[str, Any] | None = None  # unknown arguments that an import was told to accept
    scalars: dict[str, Any] = field(default_factory=dict)  # the engine's, besides tensors
    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # the digest of each file


def file_of(name: str) -> str:
    """The name of the file that holds a parameter."""
    room, _, number = room_of(name).partition(".")
    return f"layer_{int(number):03d}.safetensors" if number else f"{room}.safetensors"


def key_of(name: str, kind: str) -> str:
    """The key, in its file, of a parameter or of a tensor of its optimizer state."""
    return name if kind == "parameter" else f"{name}:{kind}"


def checksum_of(values: dict[str, Any]) -> str:
    """The checksum of state.json, over everything else in it."""
    return xxhash.xxh3_128_hexdigest(json.dumps(values, sort_keys=True).encode())


def differences(there: dict[str, Any], here: dict[str, Any], names: str) -> str:
    """The settings, among ``names``, in which a checkpoint and a run differ; "" if there are
    none.
    """
    pairs = ((name, there.get(name), here[name]) for name in names.split())
    return "; ".join(f"{option(name)} is {a} there, {b} here" for name, a, b in pairs if a != b)


def state_text(state: RunState, files: dict[str, FileDigest]) -> str:
    """The text of state.json for a checkpoint of these ``files``."""
    values = {"tokpack_checkpoint": VERSION, **asdict(state), "files": files}
    return json.dumps({**values, "checksum": checksum_of(values)}, indent=1)


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file, durably. OutputError.

    The bytes are those that the safetensors library writes. Its own function (0.8) is not used: it
    writes to another file beside this one, which only this user may read, and its errors do not
    tell a full disk from a broken one.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, x in sorted(tensors.items()):
        begin, end = end, end + x.nbytes
        shape = list(x.shape)
        header[name] = {"dtype": _NAMES[x.dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with cannot_write(str(path)):
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for _, tensor in sorted(tensors.items()):
                file.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
        sync_file(str(path))


class Checkpoint:
    """A checkpoint, open for reading. FormatError if ``path`` is no checkpoint, or a newer one."""

    def __init__(self, path: Path) -> None:
        self.path, name, before = path, path / STATE, earlier(path)
        last = f"{option('load')} {before[-1]}" if before else ""
        self._advice = f"; to go on from the one before: {last}" if before else ""
        try:
            values = read_object(name, missing=FormatError)
        except FormatError as error:
            raise FormatError(f"{error}{self._advice}") from None
        for key in ("checksum", "tokpack_checkpoint"):
            if key not in values:
                raise FormatError(f"{name}: has no {key}{self._advice}")
        checksum, version = values.pop("checksum"), values["tokpack_checkpoint"]
        if version != VERSION:
            raise FormatError(f"{name}: version is {brief(version)}, this tokpack knows {VERSION}")
        if checksum != checksum_of(values):
            raise FormatError(f"{name}: is broken: its checksum is wrong{self._advice}")
        self.state = decode(RunState, values, str(name))
        if unknown := set(self.state.model) - {one.name for one in fields(ModelConfig)}:
            raise FormatError(
                f"{name}: its model has {', '.join(sorted(unknown))}, which this tokpack does not "
                "know: upgrade tokpack"
            )
        required = {one.name for one in fields(ModelConfig) if one.default is MISSING}
        if lacking := required - set(self.state.model):
            raise FormatError(f"{name}: its model lacks {', '.join(sorted(lacking))}")
        try:
            config = Config.from_dict(self.state.model)
        except UsageError as error:
            raise FormatError(f"{name}: its model: {error}") from None
        self.model = ModelConfig.of(config, config.vocab_size or 0)
        self.tokenizer = self.state.tokenizer
        # Numbers that no run has are refused: other code would count up to them.
        made = self.state.scalars.get("steps", 0)
        step, samples = self.state.step, self.state.consumed_samples
        if type(made) is not int or not made <= step <= samples:
            raise FormatError(
                f"{name}: step {step:,}, {brief(made)} steps of the optimizer and {samples:,} "
                "samples consumed: no run has these together"
            )
        layers, files = self.model.num_layers, len(self.state.files)
        if layers > files:
            raise FormatError(f"{name}: {files:,} files do not hold {layers:,} layers")

    def verify(self, names: Iterable[str] | None = None) -> None:
        """Compare files with their sizes and checksums. FormatError names the broken file."""
        for name in self.state.files if names is None else names:
            expected, path = self.state.files[name], self.path / name
            digest = digest_file(path) if path.exists() else None
            if digest != expected:
                raise FormatError(
                    f"{path}: is {'broken' if digest else 'missing'}: found {digest}, expected "
                    f"{expected}{self._advice}"
                )

    def read(self, name: str, kinds: Sequence[str] = ("parameter",)) -> dict[str, Tensor]:
        """The whole fp32 tensors of a parameter, by kind: the parameter itself, or its optimizer
        state.
        """
        path = self.path / file_of(name)
        try:
            with safe_open(path, "pt") as file:
                return {kind: file.get_tensor(key_of(name, kind)) for kind in kinds}
        except (SafetensorError, OSError) as error:
            raise FormatError(f"{path}: cannot read {name}: {error}") from None

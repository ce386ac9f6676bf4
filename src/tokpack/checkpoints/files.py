"""The format of a checkpoint: whole fp32 tensors under global names, one file a layer.

step_00000100/embedding.safetensors, layer_000.safetensors, ..., norm, head
step_00000100/state.json   counters, model, tokenizer, size and checksum of each file
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from tokpack.configuration.model import ModelConfig
from tokpack.display import brief
from tokpack.errors import FormatError
from tokpack.files.durable import cannot_write, sync_file
from tokpack.files.foreign import read_object
from tokpack.indexed.manifest import FileDigest, digest_file

from . import folder as folders
from .state import VERSION, RunState, checksum_of, file_of, key_of
from .tensor_file import header_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from torch import Tensor

_NAMES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file, durably. OutputError.

    The bytes are those of the library, which makes all of them in memory first, while no other
    thread may run.
    """
    ordered = sorted(tensors.items())
    text = header_of((name, _NAMES[x.dtype], x.shape, x.nbytes) for name, x in ordered)
    with cannot_write(str(path)):
        with path.open("wb") as file:
            file.write(text)
            for _, tensor in ordered:
                file.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
        sync_file(str(path))


class Checkpoint:
    """A checkpoint that is open for reading. FormatError where ``path`` is none, or a newer one.

    ``scalars`` is the engine's state besides tensors, ``files`` the digest of each file.
    """

    def __init__(self, path: Path) -> None:
        self.path, name, before = path, path / folders.STATE, folders.earlier(path)
        self._advice = f"; to go on from the one before: --load {before[-1]}" if before else ""
        try:
            values = read_object(name, missing=FormatError)
        except FormatError as error:
            raise FormatError(f"{error}{self._advice}") from None
        missing = [key for key in ("checksum", "tokpack_checkpoint") if key not in values]
        if missing:
            raise FormatError(f"{name}: has no {missing[0]}{self._advice}")
        checksum, version = values.pop("checksum"), values["tokpack_checkpoint"]
        if version != VERSION:
            raise FormatError(f"{name}: version is {brief(version)}, this tokpack knows {VERSION}")
        if checksum != checksum_of(values):
            raise FormatError(f"{name}: is broken: its checksum is wrong{self._advice}")
        unknown = set(values["model"]) - {field.name for field in fields(ModelConfig)}
        if unknown:
            raise FormatError(
                f"{name}: its model has {', '.join(sorted(unknown))}, which this tokpack does not "
                "know: upgrade tokpack"
            )
        self.scalars: dict[str, Any] = values["scalars"]
        self.files: dict[str, FileDigest] = values["files"]
        self.state = RunState(**{field.name: values[field.name] for field in fields(RunState)})
        self.model, self.tokenizer = ModelConfig(**self.state.model), self.state.tokenizer

    def verify(self, names: Iterable[str] | None = None) -> None:
        """Compare files with their sizes and checksums. FormatError names the broken one."""
        for name in self.files if names is None else names:
            expected, path = self.files[name], self.path / name
            found = digest_file(path) if path.exists() else None
            if found != expected:
                raise FormatError(
                    f"{path}: is {'broken' if found else 'missing'}: found {found}, expected "
                    f"{expected}{self._advice}"
                )

    def read(self, name: str, kinds: Sequence[str] = ("parameter",)) -> dict[str, Tensor]:
        """The whole fp32 tensors of a parameter: itself, or what the optimizer keeps of it."""
        path = self.path / file_of(name)
        try:
            with safe_open(path, "pt") as file:
                return {kind: file.get_tensor(key_of(name, kind)) for kind in kinds}
        except (SafetensorError, OSError) as error:
            raise FormatError(f"{path}: cannot read {name}: {error}") from None

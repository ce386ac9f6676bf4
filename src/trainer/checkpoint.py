"""Checkpoints that no engine owns: whole fp32 tensors under global names, one file a layer.

step_00000100/embedding.safetensors, layer_000.safetensors, ..., norm, head
step_00000100/state.json   counters, model, tokenizer, size and checksum of each file
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch.distributed as dist
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

from tokpack.encoding.folder import sync_file
from tokpack.encoding.lock import hold
from tokpack.errors import FormatError, InputError, TokpackError, UsageError
from tokpack.indexed.manifest import FileDigest, digest_file
from tokpack.indexed.output import writing

from . import folder as folders
from .model import KINDS, ModelConfig
from .neox_weights import NeoxWeights

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from .engine import Engine

    AnyPath = str | os.PathLike[str]

VERSION = 1
# What may differ between the model of a checkpoint and the one that loads it.
_FREE = "seq_length make_vocab_size_divisible_by hidden_dropout attention_dropout init_method_std"

T = TypeVar("T")
find = folders.find


@dataclass(frozen=True)
class RunState:
    """Where a run is, besides its tensors. Everything in it is JSON."""

    step: int
    consumed_samples: int
    data_state: dict[str, Any]
    config: dict[str, Any]
    model: dict[str, Any]  # asdict of the ModelConfig
    tokenizer: dict[str, Any] | None = None  # as the manifest of the data describes it


def gather(value: T) -> list[T]:
    """What each rank has, by rank; collective."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def agree(work: Callable[[], T]) -> T:
    """Do ``work`` on every rank; an error of one is raised on all, so that none waits for it."""
    failure: Exception | None = None
    try:
        result = work()
    except (TokpackError, OSError) as error:
        failure = error
    for found in gather(failure):
        if found is not None:
            raise found
    return result


def on_main(work: Callable[[], T]) -> T:
    """Do ``work`` on rank 0 and give its result, or its error, to all."""
    main = not dist.is_initialized() or dist.get_rank() == 0
    return cast("T", gather(agree(work if main else lambda: None))[0])


def claim(folder: AnyPath) -> None:
    """Keep other runs from saving to ``folder`` until this process ends; collective."""
    on_main(lambda: hold(Path(folder)))


def save(engine: Engine, folder: AnyPath, meta: RunState, *, keep: int = 0) -> None:
    """Save a run as ``folder``/step_X; collective.

    The checkpoint is complete or absent, whenever the run dies. Then all but the last ``keep`` go,
    none with 0. OutputError on every rank where it cannot be written.
    """
    target = Path(folder) / f"step_{meta.step:08d}"
    work = on_main(lambda: folders.begin(target))
    files: dict[str, FileDigest] = {}
    for written in gather(agree(lambda: _write_layers(engine, work))):
        files.update(written)
    values = {"tokpack_checkpoint": VERSION, **asdict(meta), "scalars": engine.scalars()}
    values["files"] = files
    text = json.dumps({**values, "checksum": _checksum(values)}, indent=1)
    on_main(lambda: folders.commit(target, text, keep))


def file_of(name: str) -> str:
    """The file that holds a parameter."""
    room, number, *_ = name.split(".")
    return f"layer_{int(number):03d}.safetensors" if room == "blocks" else f"{room}.safetensors"


def _key(name: str, kind: str) -> str:
    return name if kind == "parameter" else f"{name}:{kind}"


def _checksum(values: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(values, sort_keys=True).encode())


def _write_layers(engine: Engine, work: Path) -> dict[str, FileDigest]:
    """Write this rank's layers. All ranks take part to the end, also when a disk is full."""
    files: dict[str, FileDigest] = {}
    failure: TokpackError | None = None
    for file, parameters in groupby(engine.full_state(), lambda item: file_of(item[0])):
        tensors = {_key(name, kind): x for name, whole in parameters for kind, x in whole.items()}
        if tensors and failure is None:
            try:
                write_tensors(work / file, tensors)
                files[file] = digest_file(work / file)
            except TokpackError as error:
                failure = error
    if failure is not None:
        raise failure
    return files


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file, durably. OutputError."""
    with writing(str(path)):
        path.write_bytes(to_bytes(tensors, {"format": "pt"}))
        sync_file(str(path))


class Checkpoint:
    """A checkpoint that is open for reading. FormatError where ``path`` is none, or a newer one."""

    def __init__(self, path: Path) -> None:
        self.path, name, before = path, path / folders.STATE, folders.earlier(path)
        self._advice = f"; to go on from the one before: --load {before[-1]}" if before else ""
        try:
            values: dict[str, Any] = json.loads(name.read_bytes())
            checksum, version = values.pop("checksum"), values["tokpack_checkpoint"]
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise FormatError(f"{name}: cannot be read: {error!r}{self._advice}") from None
        if version != VERSION:
            raise FormatError(f"{name}: version is {version!r}, this tokpack knows {VERSION}")
        if checksum != _checksum(values):
            raise FormatError(f"{name}: is broken: its checksum is wrong{self._advice}")
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

    def read(self, name: str, kinds: Sequence[str] = KINDS[:1]) -> dict[str, Tensor]:
        """The whole fp32 tensors of a parameter: itself, and Adam's moments if they are asked."""
        path = self.path / file_of(name)
        try:
            with safe_open(path, "pt") as file:
                return {kind: file.get_tensor(_key(name, kind)) for kind in kinds}
        except (SafetensorError, OSError) as error:
            raise FormatError(f"{path}: cannot read {name}: {error}") from None


def load(
    engine: Engine, folder: AnyPath, model: ModelConfig, *, finetune: bool = False
) -> RunState | None:
    """Load the latest checkpoint of ``folder`` into an engine of any topology; collective.

    ``model`` is the engine's. With ``finetune`` only weights are taken; counters begin at 0.
    None where there is nothing yet. Raises, on every rank and before anything is loaded,
    FormatError for a broken file and UsageError for another model.
    """
    path = on_main(lambda: find(folder))
    if path is None:
        if finetune:
            raise InputError(f"{folder}: there is no checkpoint to finetune")
        return None
    weights = agree(lambda: _open(path, model, finetune=finetune))
    if finetune or isinstance(weights, NeoxWeights):
        engine.load_full_state(weights.read, optimizer=False)
        return RunState(0, 0, {}, {}, asdict(model))
    engine.load_full_state(lambda name: weights.read(name, KINDS), optimizer=True)
    engine.load_scalars(weights.scalars)
    return weights.state


def _open(path: Path, model: ModelConfig, *, finetune: bool) -> Checkpoint | NeoxWeights:
    """Open what is to be loaded, and check it: each rank some of the files."""
    if folders.is_neox(path):
        if not finetune:
            raise UsageError(f"{path}: layer files are weights without a run: add --finetune")
        return NeoxWeights(path, model)
    checkpoint = Checkpoint(path)
    _check_model(path, checkpoint.model, model)
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    checkpoint.verify(list(checkpoint.files)[rank::ranks])
    return checkpoint


def _check_model(path: Path, there: ModelConfig, here: ModelConfig) -> None:
    """UsageError with all settings in which two models differ."""
    free = _FREE.split()
    if here.position_embedding_type == "rope":
        free.append("max_position_embeddings")
    ours, theirs = asdict(here), asdict(there)
    different = [
        f"{name} is {value} there, {ours[name]} here"
        for name, value in theirs.items()
        if name not in free and value != ours[name]
    ]
    if different:
        raise UsageError(f"{path}: the checkpoint is of another model: {'; '.join(different)}")

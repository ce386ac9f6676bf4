"""Checkpoints that no engine owns: whole fp32 tensors under global names, one file a layer.

    SAVE/step_00000100/embedding.safetensors, layer_000.safetensors, ..., norm.safetensors
    SAVE/step_00000100/state.json  counters, model, checksums; the last file of a checkpoint
    SAVE/latest                    the name of the checkpoint to go on from
    SAVE/lock                      held by the run that saves here

A checkpoint in the making is ``step_X.unfinished``, one that goes away ``step_X.old``.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch.distributed as dist
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tokpack.encoding.folder import WorkFolder
from tokpack.encoding.lock import Lock
from tokpack.errors import FormatError, InputError, OutputError, TokpackError, UsageError
from tokpack.indexed.manifest import FileDigest, digest_file
from tokpack.indexed.output import writing
from tokpack.indexed.writer import replace_file

from .model import ModelConfig
from .neox_weights import NeoxWeights, is_neox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from .engine import Engine

VERSION = 1
KINDS = ("parameter", "exp_avg", "exp_avg_sq")
# What may differ between the model of a checkpoint and the one that loads it.
_FREE = "seq_length make_vocab_size_divisible_by hidden_dropout attention_dropout init_method_std"

_locks: dict[str, Lock] = {}  # of the folders that this process saves to, until it ends
T = TypeVar("T")


@dataclass(frozen=True)
class RunState:
    """Where a run is, besides its tensors. Everything in it is JSON."""

    step: int
    consumed_samples: int
    data_state: dict[str, Any]
    config: dict[str, Any]
    model: dict[str, Any]  # asdict of the ModelConfig
    tokenizer: dict[str, Any] | None = None  # as the manifest of the data describes it
    extra: dict[str, Any] = field(default_factory=dict)


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


def claim(folder: str | os.PathLike[str]) -> None:
    """Keep other runs from saving to ``folder`` until this process ends; collective.

    OutputError on every rank where another run has it.
    """
    on_main(lambda: _lock(Path(folder)))


def _lock(folder: Path) -> None:
    name = str(folder.resolve())
    if name not in _locks:
        _locks[name] = Lock(WorkFolder(name)).__enter__()
    _locks[name].beat()


@atexit.register
def _release() -> None:
    while _locks:
        _locks.popitem()[1].__exit__(None, None, None)


# Saving


def save(engine: Engine, folder: str | os.PathLike[str], meta: RunState, *, keep: int = 0) -> None:
    """Save a run as ``folder``/step_X; collective.

    The checkpoint is complete or absent, whenever the run dies. Then all but the last ``keep`` go,
    none with 0. OutputError on every rank where it cannot be written.
    """
    target = Path(folder) / f"step_{meta.step:08d}"
    work = _unfinished(target)
    on_main(lambda: _begin(work))
    files: dict[str, FileDigest] = {}
    for written in gather(agree(lambda: _write_layers(engine, work))):
        files.update(written)
    values = {"tokpack_checkpoint": VERSION, **asdict(meta), "scalars": engine.scalars()}
    on_main(lambda: _commit(work, target, values | {"files": files}, keep))


def file_of(name: str) -> str:
    """The file that holds a parameter."""
    room, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    return f"layer_{int(number):03d}.safetensors" if room == "blocks" else f"{room}.safetensors"


def _key(name: str, kind: str) -> str:
    return name if kind == "parameter" else f"{name}:{kind}"


def _unfinished(path: Path) -> Path:
    return path.with_name(path.name + ".unfinished")


def _begin(work: Path) -> None:
    with writing(str(work)):
        _lock(work.parent)
        latest = work.parent / _latest(work.parent)
        if not latest.exists() and _is_whole(_unfinished(latest)):  # killed while it was replaced
            _unfinished(latest).rename(latest)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()


def _write_layers(engine: Engine, work: Path) -> dict[str, FileDigest]:
    """Write this rank's layers. All ranks take part to the end, also when a disk is full."""
    files: dict[str, FileDigest] = {}
    failure: OutputError | None = None
    for file, parameters in groupby(engine.full_state(), lambda item: file_of(item[0])):
        tensors = {
            _key(name, kind): tensor.contiguous()
            for name, whole in parameters
            for kind, tensor in whole.items()
        }
        if tensors and failure is None:
            try:
                write_tensors(work / file, tensors)
                files[file] = digest_file(work / file)
            except OutputError as error:
                failure = error
    if failure is not None:
        raise failure
    return files


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a new safetensors file, durably and as readable as other files. OutputError."""
    with writing(str(path)):
        path.touch(exist_ok=False)
        mode = path.stat().st_mode
        try:
            save_file(tensors, path, {"format": "pt"})
        except SafetensorError as error:
            raise OutputError(f"{path}: cannot be written: {error}") from None
        path.chmod(mode)
        sync(path)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _commit(work: Path, target: Path, values: dict[str, Any], keep: int) -> None:
    with writing(str(target)):
        text = json.dumps({**values, "checksum": _checksum(values)}, indent=1)
        replace_file(work / "state.json", [text.encode()])
        if target.exists():
            _discard(target)
        work.rename(target)
        replace_file(target.parent / "latest", [f"{target.name}\n".encode()])
        # Later steps are what another run left: they stay.
        before = [path for path in _complete(target.parent) if _step(path) < _step(target)]
        for path in before[: max(len(before) + 1 - keep, 0)] if keep else []:
            _discard(path)
        for pattern in ("step_*.unfinished", "step_*.old"):
            for path in target.parent.glob(pattern):
                shutil.rmtree(path, ignore_errors=True)


def _checksum(values: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(values, sort_keys=True).encode())


def _discard(path: Path) -> None:
    old = path.with_name(path.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    path.rename(old)
    shutil.rmtree(old, ignore_errors=True)


# Loading


def _is_whole(path: Path) -> bool:
    return (path / "state.json").exists()


def _step(path: Path) -> int:
    """The step that a checkpoint's name says; -1 where it is no such name."""
    match = re.fullmatch(r"step_(\d+)", path.name)
    return int(match[1]) if match else -1


def _complete(folder: Path) -> list[Path]:
    """All checkpoints of a folder, by step."""
    found = [path for path in folder.glob("step_*") if _step(path) >= 0 and _is_whole(path)]
    return sorted(found, key=_step)


def _latest(folder: Path) -> str:
    try:
        return (folder / "latest").read_text().strip() or "?"
    except (FileNotFoundError, NotADirectoryError):
        return "?"


def find(folder: str | os.PathLike[str]) -> Path | None:
    """The checkpoint that ``folder`` is, or the latest in it; None where there is none yet.

    InputError for a folder that holds something else, FormatError where the latest is missing.
    """
    root = Path(folder)
    latest, complete = root / _latest(root), _complete(root)
    for path in (root, latest, _unfinished(latest)):
        if _is_whole(path) or is_neox(path):
            return path
    if latest.name != "?":
        raise FormatError(
            f"{root}/latest names {latest.name}, which is no checkpoint; there is "
            f"{', '.join(path.name for path in complete) or 'no other'}: load one by its own path"
        )
    if complete:
        return complete[-1]
    # A run that died before its first checkpoint left its lock, and perhaps a log.
    if root.exists() and not (root / "lock").exists() and (root.is_file() or any(root.iterdir())):
        raise InputError(f"{root}: neither a checkpoint nor empty: it has no state.json, no latest")
    return None


class Checkpoint:
    """A checkpoint that is open for reading. FormatError where ``path`` is none, or a newer one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        name = path / "state.json"
        try:
            values: dict[str, Any] = json.loads(name.read_bytes())
            version, checksum = values["tokpack_checkpoint"], values.pop("checksum")
            if version != VERSION:
                raise FormatError(f"{name}: version is {version!r}, this tokpack knows {VERSION}")
            if checksum != _checksum(values):
                raise FormatError(f"{name}: is broken: its checksum is wrong{self._advice()}")
            del values["tokpack_checkpoint"]
            self.scalars: dict[str, Any] = values.pop("scalars")
            self.files: dict[str, FileDigest] = values.pop("files")
            self.state = RunState(**values)
            self.model = ModelConfig(**self.state.model)
            self.tokenizer = self.state.tokenizer
        except FormatError:
            raise
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise FormatError(f"{name}: cannot be read: {error!r}{self._advice()}") from None

    def _advice(self) -> str:
        others = [path for path in _complete(self.path.parent) if _step(path) < _step(self.path)]
        return f"; to go on from the one before it: --load {others[-1]}" if others else ""

    def verify(self, names: Iterable[str] | None = None) -> None:
        """Compare files with their sizes and checksums. FormatError names the broken one."""
        for name in self.files if names is None else names:
            expected, path = self.files[name], self.path / name
            found = digest_file(path) if path.exists() else None
            if found != expected:
                raise FormatError(
                    f"{path}: is {'missing' if found is None else 'broken'}: found {found}, "
                    f"expected {expected}{self._advice()}"
                )

    def read(self, name: str, kinds: Sequence[str] = KINDS) -> dict[str, Tensor]:
        """The whole fp32 tensors of a parameter: itself and Adam's moments."""
        path = self.path / file_of(name)
        try:
            with safe_open(path, "pt") as file:
                return {kind: file.get_tensor(_key(name, kind)) for kind in kinds}
        except (SafetensorError, OSError) as error:
            raise FormatError(f"{path}: cannot read {name}: {error}") from None


def load(
    engine: Engine,
    folder: str | os.PathLike[str],
    model: ModelConfig,
    *,
    finetune: bool = False,
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
    fresh = RunState(0, 0, {}, {}, asdict(model))
    if is_neox(path):
        if not finetune:
            raise UsageError(f"{path}: layer files are weights without a run: add --finetune")
        weights = agree(lambda: NeoxWeights(path, model))
        engine.load_full_state(weights.read, optimizer=False)
        return fresh
    checkpoint = agree(lambda: Checkpoint(path))
    agree(lambda: _check_model(path, checkpoint.model, model))
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    agree(lambda: checkpoint.verify(list(checkpoint.files)[rank::ranks]))
    if finetune:
        engine.load_full_state(lambda name: checkpoint.read(name, KINDS[:1]), optimizer=False)
        return fresh
    engine.load_full_state(checkpoint.read, optimizer=True)
    engine.load_scalars(checkpoint.scalars)
    return checkpoint.state


def _check_model(path: Path, there: ModelConfig, here: ModelConfig) -> None:
    """UsageError with all settings in which two models differ."""
    free = _FREE.split()
    if here.position_embedding_type == "rope":
        free.append("max_position_embeddings")
    ours, theirs = asdict(here), asdict(there)
    different = [n for n in theirs if n not in free and theirs[n] != ours[n]]
    if different:
        table = "; ".join(
            f"{name} is {theirs[name]} there, {ours[name]} here" for name in different
        )
        raise UsageError(f"{path}: the checkpoint is of another model: {table}")

"""The format of a checkpoint: whole fp32 tensors under global names, one file a layer.

step_00000100/embedding.safetensors, layer_000.safetensors, ..., norm, head
step_00000100/state.json   counters, model, tokenizer, size and checksum of each file
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import xxhash
from safetensors import SafetensorError, safe_open

from tokpack.dataset.manifest import FileDigest, digest_file
from tokpack.display import brief
from tokpack.errors import FormatError, InputError, UsageError, option
from tokpack.storage.disk import whole_folder
from tokpack.storage.disk.durable import cannot_write, rename, replace_file, sync_file
from tokpack.storage.disk.foreign import decode, read_object
from tokpack.storage.disk.lock import hold
from tokpack.storage.disk.whole_folder import unfinished

from ..config.config import Config
from ..config.model import ModelConfig, room_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor


STATE = "state.json"
KIND = "checkpoint"
_LONGEST = 200  # of a name that is one
LAYER_FILE = re.compile(r"layer_(\d+)-model_(\d+)-model_states\.pt")  # of GPT-NeoX


def check_own(folder: str, load: str | None) -> None:
    """UsageError where a run that loads from ``load`` would mix ``folder`` with another's."""
    loaded = os.path.realpath(load) if load else ""
    if os.path.realpath(folder) in (loaded, os.path.dirname(loaded)):
        return
    if other := find(folder):
        raise UsageError(
            f"{option('save')}: {folder} holds {other.name} of another run: go on from it with "
            f"--load {folder}, or save to another folder"
        )


def foreign_folders(folder: Path) -> list[Path]:
    """Where another program may have its files: ``folder``, and the one that its latest names."""
    folders = [folder, _latest(folder)]
    try:
        number = (folder / "latest_checkpointed_iteration.txt").read_text().strip()
    except (OSError, ValueError):
        number = ""
    if number.isdecimal() and len(number) < _LONGEST:
        folders.append(folder / f"iter_{int(number):07d}")
    elif number == "release":
        folders.append(folder / number)
    return [path for path in folders if path.is_dir()]


def find(folder: str | os.PathLike[str]) -> Path | None:
    """The checkpoint that ``folder`` is, or the latest in it; None where there is none yet.

    InputError for a folder that holds something else, FormatError where the latest is missing.
    """
    root = Path(folder)
    latest = _latest(root)
    for path in (root, latest, unfinished(latest)):
        if (path / STATE).exists():
            return path
        if path.is_dir() and any(map(LAYER_FILE.fullmatch, os.listdir(path))):
            raise InputError(
                f"{path}: layer files of GPT-NeoX: make a checkpoint of them, with `tokpack model "
                f"import {path} --config FILE.yml -o BASE`"
            )
    whole = checkpoints(root)
    if name := _named(root):
        there = ", ".join(path.name for path in whole) or "no other"
        raise FormatError(
            f"{root}/latest names {name}, which is no checkpoint; there is {there}: load "
            "one by its own path"
        )
    # A run that died before its first checkpoint left its lock, and perhaps a log.
    used = root.is_file() or (root.is_dir() and any(root.iterdir()))
    if used and not whole and not (root / "lock").exists():
        raise InputError(f"{root}: neither a checkpoint nor empty: it has no {STATE}, no latest")
    return whole[-1] if whole else None


def checkpoints(folder: Path) -> list[Path]:
    """All whole checkpoints of a run, by step."""
    paths = folder.glob("step_" + 8 * "[0-9]")
    return sorted(path for path in paths if (path / STATE).exists())


def earlier(path: Path) -> list[Path]:
    """The whole checkpoints of the same folder from before ``path``, by step."""
    return [other for other in checkpoints(path.parent) if other.name < path.name]


def _named(folder: Path) -> str:
    """What the file ``latest`` says; "" where there is none."""
    try:
        # Bytes that are no UTF-8, and a NUL, are shown as they are, and name nothing.
        return (folder / "latest").read_text("utf-8", "backslashreplace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _latest(folder: Path) -> Path:
    """The checkpoint that ``latest`` names, whether it is there or not; never out of the folder."""
    name = _named(folder)
    is_name = name not in ("", "..") and name == Path(name).name and "\0" not in name
    is_name = is_name and len(name.encode()) < _LONGEST
    return folder / (name if is_name else "?")


def begin(target: Path) -> Path:
    """Make the empty folder in which the checkpoint ``target`` is made. OutputError."""
    with cannot_write(str(target)):
        hold(target.parent)
        latest = _latest(target.parent)
        if not latest.exists() and (unfinished(latest) / STATE).exists():  # killed in ``commit``
            rename(unfinished(latest), latest)
        return whole_folder.begin(target, KIND)


def abandon(target: Path) -> None:
    """Give back the space of a checkpoint that could not be completed."""
    if target.exists() or _latest(target.parent) != target:  # else it is the latest one, whole
        whole_folder.abandon(target, KIND)


def commit(target: Path, state: str, keep: int) -> None:
    """Complete a checkpoint, make it the latest, and remove all but the last ``keep``.

    With ``keep`` 0 none is removed. A folder that holds anything which is not of a checkpoint is
    never removed, nor are checkpoints of later steps, which another run has left. OutputError.
    """
    with cannot_write(str(target)):
        replace_file(unfinished(target) / STATE, [state.encode()])
        whole_folder.finish(target, KIND)
        replace_file(target.parent / "latest", [f"{target.name}\n".encode()])
        before = earlier(target)
        for path in before[: max(len(before) + 1 - keep, 0)] if keep else []:
            if whole_folder.is_ours(path, KIND):
                whole_folder.discard(path)
        whole_folder.discard_leftovers(target.parent, "step_" + 8 * "[0-9]", KIND)


_NAMES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
VERSION = 1


@dataclass(frozen=True)
class RunState:
    """How far a run is, and of what; everything but its tensors. All values are JSON."""

    step: int
    consumed_samples: int
    data_state: dict[str, Any]
    config: dict[str, Any]
    model: dict[str, Any]  # asdict of the ModelConfig
    tokenizer: dict[str, Any] | None = None  # as the manifest of the data describes it
    accepted: dict[str, Any] | None = None  # arguments that an import passed over, unknown


@dataclass(frozen=True)
class _Rest:
    """What state.json has besides: of the engine, and of its files."""

    scalars: dict[str, Any]
    files: dict[str, dict[str, Any]]


def file_of(name: str) -> str:
    """The file that holds a parameter."""
    room, _, number = room_of(name).partition(".")
    return f"layer_{int(number):03d}.safetensors" if number else f"{room}.safetensors"


def key_of(name: str, kind: str) -> str:
    """The key of a parameter, or of what an optimizer keeps of it, in its file."""
    return name if kind == "parameter" else f"{name}:{kind}"


def checksum_of(values: dict[str, Any]) -> str:
    """The checksum that state.json has of the rest of it."""
    return xxhash.xxh3_128_hexdigest(json.dumps(values, sort_keys=True).encode())


def differences(there: dict[str, Any], here: dict[str, Any], names: str) -> str:
    """Settings, of those ``names``, in which a checkpoint and a run differ; "" if in none."""
    pairs = ((name, there.get(name), here[name]) for name in names.split())
    return "; ".join(f"{option(name)} is {a} there, {b} here" for name, a, b in pairs if a != b)


def state_text(state: RunState, scalars: dict[str, Any], files: dict[str, FileDigest]) -> str:
    """What state.json holds."""
    values = {"tokpack_checkpoint": VERSION, **asdict(state), "scalars": scalars, "files": files}
    return json.dumps({**values, "checksum": checksum_of(values)}, indent=1)


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file, durably. OutputError.

    The bytes are those of the library. Its own function (0.8) writes another file beside this one,
    which only the user may read, and its errors do not tell a full disk from a broken one.
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
    """A checkpoint that is open for reading. FormatError where ``path`` is none, or a newer one.

    ``scalars`` is the engine's state besides tensors, ``files`` the digest of each file.
    """

    def __init__(self, path: Path) -> None:
        self.path, name, before = path, path / STATE, earlier(path)
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
        self.state = decode(RunState, values, str(name))
        unknown = set(self.state.model) - {field.name for field in fields(ModelConfig)}
        if unknown:
            raise FormatError(
                f"{name}: its model has {', '.join(sorted(unknown))}, which this tokpack does not "
                "know: upgrade tokpack"
            )
        lacking = {f.name for f in fields(ModelConfig) if f.default is MISSING} - {
            *self.state.model
        }
        if lacking:
            raise FormatError(f"{name}: its model lacks {', '.join(sorted(lacking))}")
        try:
            config = Config.from_dict(self.state.model)
        except UsageError as error:
            raise FormatError(f"{name}: its model: {error}") from None
        self.model = ModelConfig.of(config, config.vocab_size or 0)
        rest = decode(_Rest, values, str(name))
        self.scalars, self.files = rest.scalars, rest.files
        self.tokenizer = self.state.tokenizer
        self._check(name)

    def _check(self, name: Path) -> None:
        """FormatError for numbers that no run has, up to which others would count."""
        made, step, samples = (
            self.scalars.get("steps", 0),
            self.state.step,
            self.state.consumed_samples,
        )
        if type(made) is not int or not made <= step <= samples:
            raise FormatError(
                f"{name}: step {step:,}, {brief(made)} steps of the optimizer and {samples:,} "
                "samples consumed: no run has these together"
            )
        if self.model.num_layers > len(self.files):
            raise FormatError(
                f"{name}: {len(self.files):,} files do not hold {self.model.num_layers:,} layers"
            )

    def verify(self, names: Iterable[str] | None = None) -> None:
        """Compare files with their sizes and checksums. FormatError names the broken one."""
        for name in self.files if names is None else names:
            expected, path = self.files[name], self.path / name
            digest = digest_file(path) if path.exists() else None
            if digest != expected:
                raise FormatError(
                    f"{path}: is {'broken' if digest else 'missing'}: found {digest}, expected "
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

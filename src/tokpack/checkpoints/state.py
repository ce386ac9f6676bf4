"""The state.json of a checkpoint, and where its parameters lie. No torch here.

step_00000100/state.json   counters, model, tokenizer, size and checksum of each file
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import xxhash

from tokpack.errors import option

if TYPE_CHECKING:
    from tokpack.indexed.manifest import FileDigest

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


def file_of(name: str) -> str:
    """The file that holds a parameter."""
    room, number, *_ = name.split(".")
    return f"layer_{int(number):03d}.safetensors" if room == "blocks" else f"{room}.safetensors"


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

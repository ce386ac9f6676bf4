"""Safetensors files by numpy: a reader that checks all it reads, and a writer, tensor by tensor."""

from __future__ import annotations

import json
import math
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokpack.display import brief
from tokpack.errors import FormatError
from tokpack.files.durable import cannot_write, open_regular, sync_file
from tokpack.files.foreign import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

_LENGTH = 8  # bytes of the header's length
_MAX_HEADER = 100_000_000  # as the format has it
_KINDS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class TensorEntry(NamedTuple):
    """A tensor in a file."""

    path: Path
    name: str
    kind: str
    shape: tuple[int, ...]
    begin: int
    size: int

    def read(self) -> Floats:
        """The tensor as fp32. FormatError where it is of none of the types that weights have."""
        if self.kind not in _KINDS:
            raise FormatError(
                f"{self.path}: {self.name} is {brief(self.kind)}, which is not read: only "
                f"{', '.join(_KINDS)}"
            )
        with _cannot_read(self.path), open_regular(str(self.path)) as file:
            file.seek(self.begin)
            raw = np.fromfile(file, _KINDS[self.kind], math.prod(self.shape))
        if raw.size < math.prod(self.shape):
            raise FormatError(f"{self.path}: ends inside {self.name}")
        raw = raw.reshape(self.shape)
        if self.kind == "BF16":  # the upper half of an fp32
            wide = raw.astype("<u4")
            wide <<= 16
            return wide.view("<f4")
        with np.errstate(over="ignore"):  # too large a value becomes infinite, which is reported
            return raw.astype("<f4", copy=False)


def read_header(path: Path) -> dict[str, TensorEntry]:
    """All tensors of a file by name; none is read yet.

    InputError where it cannot be opened, FormatError for a file that is cut off or contradicts
    itself.
    """
    with _cannot_read(path), open_regular(str(path)) as file:
        total = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(_LENGTH), "little")
        if total < _LENGTH or length > min(total - _LENGTH, _MAX_HEADER):
            raise FormatError(
                f"{path}: no safetensors file, or cut off: its header shall have {length:,} bytes, "
                f"the file has {total:,}"
            )
        values = parse_json(file.read(length), path)
    if not isinstance(values, dict):
        raise FormatError(f"{path}: its header is {brief(values)}, expected names of tensors")
    values.pop("__metadata__", None)
    base = _LENGTH + length
    found = {name: _stored(path, name, entry, base, total) for name, entry in values.items()}
    end = max((one.begin + one.size for one in found.values()), default=base)
    if end != total:
        raise FormatError(f"{path}: has {total:,} bytes, its tensors end at {end:,}")
    return found


def _stored(path: Path, name: str, entry: Any, base: int, total: int) -> TensorEntry:
    """A tensor as the header has it. FormatError where it cannot be."""
    known = entry if isinstance(entry, dict) else {}
    kind, shape, offsets = (known.get(key, ()) for key in ("dtype", "shape", "data_offsets"))
    if not (isinstance(kind, str) and _are_counts(shape) and _are_counts(offsets, 2)):
        raise FormatError(
            f"{path}: {name} is {brief(entry)}, expected dtype, shape and data_offsets"
        )
    begin, end = offsets
    if not begin <= end <= total - base:
        raise FormatError(
            f"{path}: cut off: {name} shall lie at {base + begin:,} to {base + end:,}, the file "
            f"has {total:,} bytes"
        )
    if kind in _KINDS and (size := math.prod(shape) * np.dtype(_KINDS[kind]).itemsize) != (
        end - begin
    ):
        raise FormatError(
            f"{path}: {name} of shape {list(shape)} as {kind} takes {size:,} bytes, not "
            f"{end - begin:,}"
        )
    return TensorEntry(path, name, kind, tuple(shape), base + begin, end - begin)


def _are_counts(values: Any, size: int | None = None) -> bool:
    if not isinstance(values, list) or not all(type(n) is int and n >= 0 for n in values):
        return False
    return len(values) <= 32 and size in (None, len(values))


def header_of(tensors: Iterable[tuple[str, str, Sequence[int], int]]) -> bytes:
    """The header of a file with these tensors in a row: (name, type, shape, bytes)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, kind, shape, size in tensors:
        begin, end = end, end + size
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_LENGTH, "little") + text


def write_file(
    path: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[tuple[str, Floats]]
) -> None:
    """Write fp32 tensors as they come, in the order of ``shapes``, durably. OutputError."""
    rows = ((name, "F32", shape, 4 * math.prod(shape)) for name, shape in shapes.items())
    with cannot_write(path), open(path, "wb") as file:
        file.write(header_of(rows))
        for (name, shape), (key, tensor) in zip(shapes.items(), tensors, strict=True):
            assert (key, tensor.shape) == (name, shape)
            file.write(np.ascontiguousarray(tensor, "<f4").data)
        file.flush()
        sync_file(str(path))


@contextmanager
def _cannot_read(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror or error}") from None

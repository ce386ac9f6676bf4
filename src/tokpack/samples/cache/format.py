"""The files of an entry of a cache: NAME.ARRAY.npy for each array, and NAME.json.

The JSON, which is written last, has the kind and the settings of the arrays, and the XXH3-128 of
each of the other files.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from tokpack.errors import TokpackError
from tokpack.files.foreign import read_object
from tokpack.samples.identity import canonical_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy.typing as npt

    Write = Callable[[str, Iterable[bytes]], None]
    Verify = Callable[[str, str], None]

VERSION = 2
SUFFIX = ".json"


class CacheError(TokpackError):
    """A file does not hold what its name says; the message names it and says why. Internal."""


@dataclass(frozen=True)
class ChunkedArray:
    """One array that is made in parts: ``chunks`` are its rows, in order, and are read once."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunks: Iterable[npt.NDArray[Any]]

    @classmethod
    def of(cls, name: str, array: npt.NDArray[Any]) -> ChunkedArray:
        """An array that is in memory already."""
        return cls(name, array.dtype, array.shape, (array,))

    def array(self) -> npt.NDArray[Any]:
        """The whole array, in memory; a single chunk that is the whole is not copied."""
        chunks = iter(self.chunks)
        first = next(chunks, None)
        if first is not None and first.shape == self.shape:
            return first
        whole = np.empty(self.shape, self.dtype)
        filled = 0
        while first is not None:
            whole[filled : filled + len(first)] = first
            filled += len(first)
            first = next(chunks, None)
        return whole

    def npy(self) -> Iterator[bytes]:
        """The array as numpy.save writes it. ValueError where the chunks are not of the shape."""
        header, count = io.BytesIO(), 0
        descr = np.lib.format.dtype_to_descr(self.dtype)
        facts = {"descr": descr, "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(header, facts)
        yield header.getvalue()
        for chunk in self.chunks:
            count += chunk.size
            yield np.ascontiguousarray(chunk, self.dtype).data  # type: ignore[misc]
        if count != math.prod(self.shape):
            raise ValueError(f"{self.name}: its chunks are not of the shape {self.shape}")


def key(kind: str, settings: Mapping[str, Any]) -> str:
    """32 hexadecimal digits of everything that decides the arrays."""
    return xxhash.xxh3_128_hexdigest(canonical_json([kind, VERSION, settings]))


def array_path(path: str, name: str) -> str:
    """The file of an array of the entry ``path``."""
    return f"{path.removesuffix(SUFFIX)}.{name}.npy"


def write(
    path: str, kind: str, settings: Mapping[str, Any], parts: Iterable[ChunkedArray], put: Write
) -> None:
    """Write all files of an entry; ``put`` makes a file of chunks, whole or not at all."""
    sums = {}
    for part in parts:
        state = xxhash.xxh3_128()
        put(array_path(path, part.name), _summed(part.npy(), state))
        sums[part.name] = state.hexdigest()
    entry = {"kind": kind, "settings": settings, "arrays": sums}
    put(path, [canonical_json(entry | {"checksum": _checksum(entry)})])


def _checksum(entry: Mapping[str, Any]) -> str:
    """That of the JSON of an entry, without itself."""
    return xxhash.xxh3_128_hexdigest(canonical_json(entry))


def _summed(chunks: Iterable[bytes], state: xxhash.xxh3_128) -> Iterator[bytes]:
    for chunk in chunks:
        state.update(chunk)
        yield chunk


def read(
    path: str, kind: str, settings: Mapping[str, Any], verify: Verify
) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an entry, mapped, after ``verify`` has compared each file with its checksum.

    Raises CacheError, OSError, and what ``verify`` raises.
    """
    said = read_object(path, missing=CacheError, wrong=CacheError)
    if canonical_json([said.get(what) for what in ("kind", "settings")]) != canonical_json(
        [kind, settings]
    ):
        raise CacheError(f"{path}: is of other settings than its name says")
    if said.pop("checksum", None) != _checksum(said):
        raise CacheError(f"{path}: its checksum is wrong")
    arrays = {}
    try:
        for name, checksum in said["arrays"].items():
            verify(array_path(path, name), checksum)
            mapped = np.load(array_path(path, name), mmap_mode="r", allow_pickle=False)
            arrays[name] = np.asarray(mapped)
    except (AttributeError, KeyError, ValueError) as error:
        raise CacheError(f"{path}: its arrays cannot be read: {error}") from None
    return arrays

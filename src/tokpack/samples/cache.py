"""Arrays of orders, kept in a folder under names that follow from what determines them.

An entry is a file NAME.ARRAY.npy for each array, and NAME.json, renamed last, with the kind and
settings of the arrays and the XXH3-128 of the other files. The content of an entry is a function of
its name, so any process on any machine writes the same bytes, and no lock is needed for
correctness.
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from glob import escape, glob
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from tokpack.dataset import FINGERPRINT_VERSION, digest_file
from tokpack.errors import InputError, OutputError, TokpackError
from tokpack.storage.disk import UNFINISHED, AtomicFiles, read_object, rename, turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy.typing as npt

    Arrays = dict[str, npt.NDArray[Any]]


def canonical_json(value: Any) -> bytes:
    """The canonical text of a value: keys in order, no spaces, ASCII."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode()


def _digest(value: Any) -> str:
    """The XXH3-128 of the canonical text of a value, in hex."""
    return xxhash.xxh3_128_hexdigest(canonical_json(value))


def versioned(digits: str) -> str:
    """A fingerprint as in files and messages, with its version first."""
    return f"v{FINGERPRINT_VERSION}:{digits}"


def identify(value: Any) -> str:
    """The fingerprint of the samples that ``value`` decides."""
    return versioned(_digest(value))


VERSION = 2
_WAIT_SECONDS = 1800.0  # for another process that builds the same; then build it here too
_LEFT_SECONDS = 86400.0  # an older unfinished file was left by a crash

_log = logging.getLogger(__name__)
_logged: set[str] = set()
_verified: set[tuple[str, int, int, int]] = set()  # files verified by this process


class CacheError(TokpackError):
    """A file without the content that its name promises; the message says why. Internal."""


@dataclass(frozen=True)
class ChunkedArray:
    """An array made in parts: ``chunks`` are its rows, in order, and are read only once."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunks: Iterable[npt.NDArray[Any]]

    @classmethod
    def of(cls, name: str, array: npt.NDArray[Any]) -> ChunkedArray:
        """A ChunkedArray for an array in memory."""
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
        """The bytes that numpy.save would write. ValueError if the chunks do not fit the shape."""
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


@dataclass(frozen=True)
class CacheEntry:
    """An entry of a cache; ``path`` is None if it could not be written, and the arrays are in
    memory.
    """

    arrays: Arrays = field(repr=False)
    path: str | None
    built: bool  # by this call
    seconds: float

    @property
    def size(self) -> int:
        """The bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())


class IndexCache:
    """A folder of entries, each named by the key of its arrays.

    The key is the XXH3-128 of the canonical JSON of ``kind``, the format version and ``settings``,
    which contain the fingerprint of the data and every setting that affects the arrays. An entry
    with another key, or with a missing, truncated or damaged file, is never used: it is rebuilt and
    replaced, with a log message. A process compares the checksum of an array when it first opens
    its file, at some GB/s.

    Any number of processes may request the same at once. On a file system with locks one builds
    while the others wait; elsewhere each may build, and all write the same bytes. If no file can be
    written, that is no error: the arrays are built in memory, which is logged once.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.fspath(folder)

    def path(self, kind: str, settings: Mapping[str, Any]) -> str:
        """The path of the JSON for these arrays, which may not exist. If it does, all files do."""
        return os.path.join(self.folder, f"{kind}-{_digest([kind, VERSION, settings])}.json")

    def entry(
        self, kind: str, settings: Mapping[str, Any], build: Callable[[], Iterable[ChunkedArray]]
    ) -> CacheEntry:
        """The arrays of ``settings``, read-only and mapped; built and written if they do not exist.

        ``build`` returns them in parts, which are written as they are made; it may be called twice.
        Its errors are passed on, and leave no files behind.
        """
        began = time.perf_counter()
        path = self.path(kind, settings)
        arrays, built = _open(path, kind, settings), False
        if arrays is None:
            try:
                with _turn(path) as waited:
                    arrays = _open(path, kind, settings) if waited else None
                    if arrays is None:
                        _write(path, kind, settings, build())
                        arrays, built = _open(path, kind, settings), True
                if arrays is None:
                    raise OutputError(f"{path}: what was written cannot be read back")
            except (OSError, OutputError) as error:
                _log_once(
                    f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}; the "
                    "index is built in memory, by every process for itself: name a cache folder "
                    "that can be written",
                )
                arrays, built, path = {part.name: part.array() for part in build()}, True, ""
                for array in arrays.values():
                    array.flags.writeable = False
        return CacheEntry(arrays, path or None, built, time.perf_counter() - began)


def _array_path(path: str, name: str) -> str:
    return f"{path.removesuffix('.json')}.{name}.npy"


def _write(
    path: str, kind: str, settings: Mapping[str, Any], parts: Iterable[ChunkedArray]
) -> None:
    """Write all files of an entry, each whole or not at all; the JSON gets its name last.

    Old unfinished files of any entry are removed from the folder: those of living processes are
    recent.
    """
    for name in glob(f"{escape(os.path.dirname(path))}/*.????????{UNFINISHED}"):
        with suppress(OSError):
            if time.time() - os.stat(name).st_mtime > _LEFT_SECONDS:
                os.unlink(name)
    unique = os.urandom(4).hex()  # without locks, others may be writing the same entry
    sums, paths = {}, []
    with AtomicFiles() as files:
        for part in parts:
            state = xxhash.xxh3_128()
            paths.append(_array_path(path, part.name))
            files.write(f"{paths[-1]}.{unique}", _summed(part.npy(), state))
            sums[part.name] = state.hexdigest()
        facts = {"kind": kind, "settings": settings, "arrays": sums}
        paths.append(path)
        files.write(f"{path}.{unique}", [canonical_json(facts | {"checksum": _digest(facts)})])
        files.seal()
        for name in paths:
            rename(f"{name}.{unique}{UNFINISHED}", name)


def _summed(chunks: Iterable[bytes], state: xxhash.xxh3_128) -> Iterator[bytes]:
    for chunk in chunks:
        state.update(chunk)
        yield chunk


def _open(path: str, kind: str, settings: Mapping[str, Any]) -> Arrays | None:
    """The arrays of an entry, mapped and compared with their checksums; None if one is wrong."""
    if not os.path.lexists(path):
        return None
    try:
        facts = read_object(path, missing=CacheError, wrong=CacheError)
        here = canonical_json([facts.get("kind"), facts.get("settings")])
        if here != canonical_json([kind, settings]):
            raise CacheError(f"{path}: has other settings than its name says")
        if facts.pop("checksum", None) != _digest(facts):
            raise CacheError(f"{path}: its checksum is wrong")
        arrays = {}
        for name, checksum in facts["arrays"].items():
            file = _array_path(path, name)
            status = os.stat(file)
            identity = (file, status.st_ino, status.st_mtime_ns, status.st_size)
            if identity not in _verified:
                if digest_file(file)["xxh3_128"] != checksum:
                    raise CacheError(f"{file}: its checksum is wrong")
                _verified.add(identity)
            mapped = np.load(file, mmap_mode="r", allow_pickle=False)
            arrays[name] = np.asarray(mapped)
        return arrays
    except (CacheError, InputError, OSError, AttributeError, KeyError, ValueError) as error:
        _log_once(f"{path} is built again: {error}")
        return None


@contextmanager
def _turn(path: str) -> Iterator[bool]:
    """Wait while another process builds ``path``. Yields whether it may exist now."""
    folder, name = os.path.split(path)
    lock = os.path.join(folder, f".{name}.lock")
    with turn(lock, _WAIT_SECONDS) as waited:
        try:
            yield waited or os.path.exists(path)
        finally:
            with suppress(OSError):
                os.unlink(lock)


def _log_once(text: str) -> None:
    if text not in _logged:
        _logged.add(text)
        _log.warning("%s", text)

"""What a pass over a shard has found: a file with facts and arrays, made by a task of a cluster.

    magic            8 bytes
    length           uint64: bytes of the facts
    facts            JSON, with the dtype, shape and checksum of each array; blanks up to 64 bytes
    arrays           one after the other, as they lie in memory

The name of a result has a checksum of what was asked and of whom. So a result that exists is the
answer; whoever looks for another shard, or asks something else, looks for another name.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections import defaultdict
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt
import xxhash

from tokpack.dataset.dataset import MMapIndexedDataset
from tokpack.dataset.format import bin_path, idx_path
from tokpack.dataset.manifest import manifest_path
from tokpack.dataset.outputs import NewFiles
from tokpack.dataset.shards import piece_prefix
from tokpack.errors import FormatError, InputError
from tokpack.storage import (
    TakenError,
    exists,
    head,
    is_url,
    listed_files,
    open_file,
    shown,
    storage_of,
)
from tokpack.storage.disk import MAX_BYTES, Kind, parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tokpack.dataset.manifest import ShardRecord
    from tokpack.storage import ListedFile

    Array = npt.NDArray[Any]


_MAGIC = b"TOKPRES\0"
_HEAD = struct.Struct("<8sQ")
_BLOCK = 64
_FORMAT = 1


class Task(NamedTuple):
    """What makes the file ``result`` of ``facts``, which are JSON, by reading so many bytes."""

    result: str
    size: int
    facts: dict[str, Any]


class RunTasks(Protocol):
    """Makes the missing results of tasks, all of one kind, on other machines. WorkerError."""

    def __call__(self, kind: str, tasks: Sequence[Task]) -> None: ...


def everywhere(prefix: str) -> str:
    """A prefix as other processes can name it, whatever their folder."""
    return prefix if is_url(prefix) else os.path.abspath(prefix)


def result_path(prefix: str, kind: str, *asked: Any) -> str:
    """Where the answer lies to what is ``asked``, which is JSON, beside the dataset ``prefix``."""
    text = json.dumps([_FORMAT, *asked], sort_keys=True)
    return f"{prefix}.{kind}-{xxhash.xxh3_64_hexdigest(text.encode())}"


def begins_of(paths: Sequence[str]) -> list[str]:
    """For each folder, what the paths in it begin with."""
    folders = defaultdict(list)
    for path in paths:
        folders[path.rpartition("/")[0]].append(path)
    return [os.path.commonprefix(some) for some in folders.values()]  # noqa: RUF071, of names


def listed(paths: Sequence[str]) -> list[ListedFile | None]:
    """What listings tell of files, in however many folders: sizes, and times or versions."""
    there = listed_files(begins_of(paths))
    return [there.get(path) for path in paths]


def files_of(prefixes: Sequence[str]) -> list[list[str | None]]:
    """Of each dataset, what tells its files from any that may replace them, as JSON."""
    paths = [path(one) for one in prefixes for path in (bin_path, idx_path, manifest_path)]
    # An ETag where there is one, else the time.
    told = [one and f"{one.size} {getattr(one, 'etag', 0) or one.written}" for one in listed(paths)]
    return [told[begin : begin + 3] for begin in range(0, len(told), 3)]


def pieces_of(prefix: str, records: Sequence[ShardRecord]) -> list[tuple[str, int]]:
    """The prefix of each shard of a dataset, and the bytes of its .bin: 0 where no record says."""
    home = everywhere(prefix)
    return [(piece_prefix(home, one), one.bin_bytes) for one in records] or [(home, 0)]


def shard_tasks(kind: str, pieces: Sequence[tuple[str, int]], **asked: Any) -> list[Task]:
    """A task for each shard, by its prefix and size, to find what is ``asked`` of it."""
    tasks = []
    files = files_of([prefix for prefix, _ in pieces])
    for (prefix, size), some in zip(pieces, files, strict=True):
        facts = {"prefix": prefix, "files": some, **asked}
        tasks.append(Task(result_path(prefix, kind, facts), size, facts))
    return tasks


def forget(paths: Iterable[str]) -> None:
    """Remove results that are used up."""
    for path in paths:
        storage_of(path).delete(path)


def open_unchanged(prefix: str, files: Sequence[str | None]) -> MMapIndexedDataset:
    """The dataset of which ``files_of`` has told. InputError if another one is there by now."""
    dataset = MMapIndexedDataset(prefix)
    if files_of([prefix]) != [[*files]]:
        dataset.close()
        raise InputError(f"{shown(prefix)}: was replaced since the command began: run it again")
    return dataset


def _is_result(path: str) -> bool:
    return head(path, len(_MAGIC)) == _MAGIC


_RESULT = Kind("what a task has found", _is_result, kept=False, beside=True)


class NewResult(NewFiles):
    """A result in the making: a context, of which ``finish`` gives it its name.

    BusyError if another process on this machine makes it.
    """

    def __init__(self, path: str) -> None:
        super().__init__([(path, _RESULT)], (), overwrite=True)
        self._path = path

    def finish(self, facts: Mapping[str, Any], arrays: Sequence[Array] = ()) -> None:
        """Write all of it. OutputError."""
        parts = [np.ascontiguousarray(one).data for one in arrays]
        kinds = [
            [one.dtype.str, one.shape, xxhash.xxh3_64_hexdigest(part)]
            for one, part in zip(arrays, parts, strict=True)
        ]
        text = json.dumps({"facts": facts, "arrays": kinds}).encode()
        text += b" " * (-(_HEAD.size + len(text)) % _BLOCK)
        self.write(self._path, [_HEAD.pack(_MAGIC, len(text)), text, *cast("Any", parts)])
        try:
            self.publish()
        except TakenError:
            if not exists(self._path):  # what another has made meanwhile is the same
                raise


class Result:
    """A result that is there. InputError, FormatError."""

    def __init__(self, path: str) -> None:
        self._path = path
        with self._opened() as file:
            magic, size = _HEAD.unpack(file.read(_HEAD.size).ljust(_HEAD.size, b"\0"))
            values = parse_json(file.read(min(size, MAX_BYTES)), shown(path))
        try:
            self.facts: dict[str, Any] = dict(values["facts"])
            self._kinds = [
                (np.dtype(kind), tuple(map(int, shape)), str(checksum))
                for kind, shape, checksum in values["arrays"]
            ]
            sizes = [kind.itemsize * math.prod(shape) for kind, shape, _ in self._kinds]
            self._begins = _HEAD.size + size + np.cumsum([0, *sizes], dtype=np.int64)
        except (KeyError, TypeError, ValueError, OverflowError):
            magic = b""
        if magic != _MAGIC:
            raise self._is_damaged()

    def array(self, number: int) -> Array:
        """One of its arrays."""
        kind, shape, expected = self._kinds[number]
        try:
            out = np.empty(shape, kind)
        except (ValueError, MemoryError):
            raise self._is_damaged() from None
        view = out.reshape(-1).view(np.uint8).data
        with self._opened() as file:
            file.seek(int(self._begins[number]))
            while view and (count := cast("Any", file).readinto(view)):
                view = view[count:]
        if view or xxhash.xxh3_64_hexdigest(out.data) != expected:
            raise self._is_damaged()
        return out

    def _is_damaged(self) -> FormatError:
        return FormatError(f"{shown(self._path)}: is damaged: remove it, and run again")

    def _opened(self) -> Any:
        try:
            return closing(open_file(self._path))
        except OSError as error:
            raise InputError(f"{shown(self._path)}: {error.strerror or error}") from error

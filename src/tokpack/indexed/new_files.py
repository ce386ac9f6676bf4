"""The files that a command on datasets makes, on a disk or on a store: all of them, or none."""

from __future__ import annotations

import errno
import functools
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.errors import BusyError
from tokpack.files.durable import (
    BUFFER,
    UNFINISHED,
    AtomicFiles,
    Identity,
    cannot_write,
    make_parent,
    same_file,
)
from tokpack.files.lock import try_flock
from tokpack.files.outputs import check_not_inputs, remove_partial
from tokpack.indexed.format import idx_path
from tokpack.indexed.hub_card import write_hub_card
from tokpack.indexed.manifest import MANIFEST, TRACK_DTYPES, Manifest, manifest_path
from tokpack.indexed.outputs import dataset_outputs, same_data
from tokpack.indexed.selection import selection_path
from tokpack.indexed.table import dropped_path, table_path
from tokpack.indexed.track import track_path
from tokpack.stores import is_url
from tokpack.stores.outputs import NewObjects, check_unchanged, look
from tokpack.stores.scratch import ScratchFolder, remove_left
from tokpack.stores.upload import check_writable, compose, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import BinaryIO

    import numpy.typing as npt

    from tokpack.files.outputs import Output
    from tokpack.stores.ranges import Range

_SCRATCH_IN_MEMORY = 16 << 20
_NOT_A_LINK = getattr(os, "O_NOFOLLOW", 0)


class NewFiles(AtomicFiles):
    """New files, checked before and after the work that makes them; ``publish`` names them.

    ``outputs`` are the files that appear together, the one that makes them whole last; ``stale``
    those of an old output that go before. ``inputs`` are the files that the command reads. What is
    for a store is first written to a folder of this machine, which goes at the end. UsageError,
    OutputError as in ``look``; on a store also where nothing can be written. As a context it has
    the names for itself: BusyError where another run of this machine makes the same.
    """

    def __init__(
        self,
        outputs: Sequence[Output],
        inputs: Iterable[str],
        *,
        overwrite: bool,
        stale: Sequence[str] = (),
    ) -> None:
        super().__init__()
        read, paths = tuple(inputs), [path for path, _ in outputs]
        if is_url(paths[-1]):
            remove_left(paths[-1], [path for path, kind in outputs if kind is MANIFEST])
        else:
            check_not_inputs(paths, read)
            remove_partial(paths)
        self._outputs = outputs
        self._versions = look(outputs, read, overwrite=overwrite)
        self._stale = [path for path in stale if self._versions.get(path)]
        self._folder: ScratchFolder | None = None
        self._last: BinaryIO | None = None  # the last output, which is locked from the beginning
        if is_url(paths[-1]):
            check_writable(paths[-1] + UNFINISHED)
            self._folder = ScratchFolder(paths[-1])

    def __enter__(self) -> NewFiles:
        last = self._outputs[-1][0]
        if not self._folder:
            make_parent(last)
            with cannot_write(last):
                self._last = self._opened(last + UNFINISHED)
        return self

    def __exit__(self, *_: object) -> None:
        if self._last is not None:  # nothing was written to it
            self.create(self._outputs[-1][0])
        super().__exit__()
        if self._folder:
            self._folder.__exit__()

    def create(self, path: str) -> BinaryIO:
        here = self._here(path)
        make_parent(here)
        return super().create(here)

    def _opened(self, name: str) -> BinaryIO:
        """As of ``AtomicFiles``, locked until it is closed."""
        if self._last is not None and name == self._outputs[-1][0] + UNFINISHED:
            last, self._last = self._last, None
            return last
        while True:
            try:
                file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | _NOT_A_LINK, 0o666)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.EACCES):  # somebody else's file, or link
                    raise
                return super()._opened(name)
            locked = try_flock(file)
            if locked and same_file(name) == Identity.of(os.fstat(file))[:2]:
                os.ftruncate(file, 0)
                return open(file, "rb+", buffering=BUFFER)
            os.close(file)
            if locked is None:  # the file system has no locks
                return super()._opened(name)
            if not locked:
                raise BusyError(
                    f"another run is making {name.removesuffix(UNFINISHED)}: wait for it, or "
                    "choose another output"
                )

    def scratch(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array of zeros: in memory, or, where it is large, in a file without a name."""
        size = count * np.dtype(dtype).itemsize
        if size <= _SCRATCH_IN_MEMORY:
            return np.zeros(count, dtype)
        path = self._here(self._outputs[-1][0])
        make_parent(path)
        with (
            cannot_write(path),
            tempfile.TemporaryFile(dir=os.path.dirname(path) or ".") as file,
        ):
            if hasattr(os, "posix_fallocate"):  # a full disk would otherwise kill the process
                os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, dtype, "r+", shape=(count,))

    def publish(
        self,
        stale: Sequence[str] = (),
        joined: Mapping[str, Sequence[Range]] | None = None,
        on_bytes: Callable[[int], None] = lambda size: None,
    ) -> None:
        """Give the files their names, all or none, after removing old ones and ``stale``.

        ``joined`` has the ranges of which a store makes an object; ``on_bytes`` is called with the
        number of bytes each time that some are there.
        """
        if not self._folder:
            check_unchanged(self._versions)
            self.commit([*self._stale, *stale])
            return
        self.commit()
        check_unchanged(self._versions)
        with NewObjects(self._versions, self._are_made) as objects:
            for url in [*self._stale, *stale]:
                objects.remove(url)
            outputs = [
                (kind is MANIFEST, url)
                for url, kind in self._outputs
                if (joined and url in joined) or os.path.exists(self._here(url))
            ]
            # Manifests last: by them others know that a dataset is whole.
            for is_last, url in sorted(outputs):
                if is_last:
                    objects.write_last(url, Path(self._here(url)).read_bytes())
                    continue
                if joined and url in joined:
                    size = sum(one.size for one in joined[url])
                    put = functools.partial(compose, url, joined[url], on_bytes)
                else:
                    size = os.path.getsize(self._here(url))
                    put = functools.partial(send, self._here(url), url)
                objects.write(url, self._folder.noted(url, size, put))
            objects.check()
        for url, kind in self._outputs:
            if kind is MANIFEST and (manifest := Manifest.find(self._here(_prefix(url)))):
                write_hub_card(_prefix(url), manifest)

    def _here(self, path: str) -> str:
        """Where the file is written that will be ``path``."""
        return os.path.join(self._folder.name, os.path.basename(path)) if self._folder else path

    def _are_made(self) -> bool:
        """Whether datasets of the same bytes are there, in place of those that are to be sent."""
        prefixes = [_prefix(url) for url, kind in self._outputs if kind is MANIFEST]
        datasets = [(one, Manifest.find(self._here(one))) for one in prefixes]
        return bool(datasets) and all(
            manifest and same_data(one, manifest) for one, manifest in datasets
        )


def _prefix(manifest: str) -> str:
    return manifest.removesuffix(".json")


def new_datasets(
    prefixes: Sequence[str],
    inputs: Iterable[str],
    *,
    overwrite: bool,
    views: bool = False,
    tables: bool = False,
    tracks: Iterable[str] = (),
    beside: Sequence[Output] = (),
) -> NewFiles:
    """The files of datasets, with ``tables`` and ``tracks`` or not, or of ``views``, and others.

    What would say something wrong of a new dataset goes before the old one is replaced; tracks,
    tables and a selection go only where they are such. Tracks go first, since only the manifest
    tells that they are some; then it goes, so that it never tells of what is gone.
    """
    names = (manifest_path, idx_path, table_path, dropped_path, selection_path)
    outputs = [
        output
        for prefix in prefixes
        for output in dataset_outputs(prefix, table=tables, selection=views, tracks=tracks)
    ]
    return NewFiles(
        [*beside, *outputs],
        inputs,
        overwrite=overwrite,
        stale=[
            *(track_path(prefix, name) for prefix in prefixes for name in TRACK_DTYPES),
            *(name(prefix) for prefix in prefixes for name in names),
        ],
    )

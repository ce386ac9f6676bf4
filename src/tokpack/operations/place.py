"""Where outputs get their names: on a disk at once, or on a store, to which they are sent whole."""

from __future__ import annotations

import functools
import operator
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tokpack.files.durable import UNFINISHED, cannot_write
from tokpack.files.outputs import check_not_inputs, remove_partial
from tokpack.indexed.format import idx_path
from tokpack.indexed.manifest import MANIFEST, Manifest, manifest_path
from tokpack.indexed.outputs import dataset_outputs, same_data
from tokpack.indexed.trace import trace_path
from tokpack.stores import is_url
from tokpack.stores.compose import compose
from tokpack.stores.outputs import NewObjects, check_unchanged, look
from tokpack.stores.upload import check_writable, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tokpack.files.durable import AtomicFiles
    from tokpack.files.outputs import Output
    from tokpack.stores.ranges import Range


class OutputPlace:
    """The outputs of a command, checked before and after its work, on a disk or on a store.

    ``outputs`` are the files that appear together, the one that makes them whole last; ``stale``
    those of an old output that are removed before. ``inputs`` are the files that the command reads.
    UsageError, OutputError as in ``look``; on a store also where nothing can be written.
    A context: what is for a store is first written to a folder of this machine, which goes at the
    end.
    """

    def __init__(
        self,
        outputs: Sequence[Output],
        inputs: Iterable[str],
        *,
        overwrite: bool,
        stale: Sequence[str] = (),
    ) -> None:
        read, paths = tuple(inputs), [path for path, _ in outputs]
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if not is_url(paths[-1]):
            check_not_inputs(paths, read)
            remove_partial(paths)
        self._outputs = outputs
        self._versions = look(outputs, read, overwrite=overwrite)
        self._stale = [path for path in stale if self._versions.get(path)]
        if is_url(paths[-1]):
            check_writable(paths[-1] + UNFINISHED)
            self._folder = scratch_folder(paths[-1])

    def __enter__(self) -> OutputPlace:
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder:
            self._folder.cleanup()

    def here(self, path: str) -> str:
        """Where to write the file that will be ``path``, or the files of the prefix ``path``."""
        return os.path.join(self._folder.name, os.path.basename(path)) if self._folder else path

    def commit(
        self,
        staged: AtomicFiles,
        stale: Sequence[str] = (),
        joined: Mapping[str, Sequence[Range]] | None = None,
        told: Callable[[int], None] = lambda size: None,
    ) -> None:
        """Give new files their names, all or none, after removing old ones and ``stale``.

        ``joined`` has the ranges of which a store makes an object; ``told`` is called with the
        number of bytes each time that some are there.
        """
        if self._folder:
            staged.commit()
            self._send(stale, joined or {}, told)
            return
        check_unchanged(self._versions)
        staged.commit([*self._stale, *stale])

    def _send(
        self,
        stale: Sequence[str],
        joined: Mapping[str, Sequence[Range]],
        told: Callable[[int], None],
    ) -> None:
        check_unchanged(self._versions)
        with NewObjects(self._versions, self._are_made) as objects:
            for url in [*self._stale, *stale]:
                objects.remove(url)
            made = [
                (kind is MANIFEST, url)
                for url, kind in self._outputs
                if url in joined or os.path.exists(self.here(url))
            ]
            # Manifests last: by them others know that a dataset is whole.
            for is_last, url in sorted(made, key=operator.itemgetter(0)):
                if is_last:
                    objects.write_last(url, Path(self.here(url)).read_bytes())
                elif url in joined:
                    objects.write(url, functools.partial(compose, url, joined[url], told))
                else:
                    objects.write(url, functools.partial(send, self.here(url), url))
            objects.check()

    def _are_made(self) -> bool:
        """Whether datasets of the same bytes are there, in place of those that are to be sent."""
        prefixes = [url.removesuffix(".json") for url, kind in self._outputs if kind is MANIFEST]
        made = [(one, Manifest.find(self.here(one))) for one in prefixes]
        return bool(made) and all(manifest and same_data(one, manifest) for one, manifest in made)


def scratch_folder(path: str) -> tempfile.TemporaryDirectory[str]:
    """A new folder in $TMPDIR, else in the current folder, with a name that tells of ``path``.

    A context, at whose end it is removed. Raises OutputError.
    """
    where = os.environ.get("TMPDIR") or os.curdir
    with cannot_write(where):
        os.makedirs(where, exist_ok=True)
        return tempfile.TemporaryDirectory(
            prefix=f"tokpack-{os.path.basename(path)}-", dir=where, ignore_cleanup_errors=True
        )


def place_of_datasets(
    prefixes: Sequence[str], inputs: Iterable[str], *, overwrite: bool
) -> OutputPlace:
    """Where datasets shall be."""
    return OutputPlace(
        [output for prefix in prefixes for output in dataset_outputs(prefix)],
        inputs,
        overwrite=overwrite,
        stale=[path for prefix in prefixes for path in stale_files(prefix)],
    )


def stale_files(prefix: str) -> list[str]:
    """What goes before a dataset is replaced: all that would say something wrong of the new one.

    A trace goes that is an output, as ``dataset_outputs`` has it.
    """
    return [idx_path(prefix), manifest_path(prefix), trace_path(prefix)]

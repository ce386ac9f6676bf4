"""Where outputs get their names: on a disk at once, or on a store, to which they are sent whole."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tokpack.errors import OutputError, UsageError
from tokpack.files.durable import UNFINISHED, cannot_write
from tokpack.files.outputs import begin_outputs, check_outputs
from tokpack.indexed.format import idx_path
from tokpack.indexed.manifest import MANIFEST, manifest_path
from tokpack.indexed.outputs import dataset_outputs
from tokpack.indexed.trace import is_trace, trace_path
from tokpack.stores import exists, is_url, shown
from tokpack.stores.compose import compose
from tokpack.stores.upload import check_writable, create, remove, send
from tokpack.stores.urls import same_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tokpack.files.durable import Staged
    from tokpack.files.outputs import Output
    from tokpack.stores.ranges import Range


class OutputPlace:
    """The outputs of a command, checked before and after its work, on a disk or on a store.

    ``outputs`` gives the files that appear together, the one that makes them whole last; ``stale``
    those of an old output that are removed before. ``inputs`` are the files that the command reads.
    UsageError, OutputError as in ``check_outputs``; on a store also where nothing can be written.
    A context: what is for a store is first written to a folder of this machine, which goes at the
    end.
    """

    def __init__(
        self,
        outputs: Callable[[], Sequence[Output]],
        inputs: Iterable[str],
        *,
        overwrite: bool,
        stale: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._outputs, self._stale = outputs, stale
        self._inputs = tuple(inputs)
        self._overwrite = overwrite
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        last = outputs()[-1][0]
        if not is_url(last):
            begin_outputs(outputs(), self._inputs, overwrite=overwrite)
            return
        self._check_store(outputs())
        check_writable(last + UNFINISHED)
        self._folder = scratch_folder(last)

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
        staged: Staged,
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
        # Something may have come meanwhile.
        check_outputs(self._outputs(), self._inputs, overwrite=self._overwrite)
        staged.commit([*self._stale(), *stale])

    def _check_store(self, outputs: Sequence[Output]) -> None:
        """The rule of ``check_outputs`` for objects."""
        for url, kind in outputs:
            if url.startswith(("http://", "https://")):
                raise UsageError(f"{shown(url)}: nothing can be written to a web server")
            for name in self._inputs:
                if same_object(url, name):
                    other = "" if url == name else f" under the name {name}"
                    raise UsageError(
                        f"{url} is an input{other} and an output: choose another output"
                    )
            if not exists(url):
                continue
            if kind.beside and not (kind.made and kind.made(url)):
                raise OutputError(
                    f"{url}: exists and is not {kind.what}, so it is not overwritten: choose "
                    "another output"
                )
            if not self._overwrite:
                raise OutputError(
                    f"{url} exists: choose another output, or replace it with --overwrite "
                    "(overwrite=True)"
                )

    def _send(
        self,
        stale: Sequence[str],
        joined: Mapping[str, Sequence[Range]],
        told: Callable[[int], None],
    ) -> None:
        made = [
            (url, kind)
            for url, kind in self._outputs()
            if url in joined or os.path.exists(self.here(url))
        ]
        if self._overwrite:
            for url in [*self._stale(), *stale]:
                remove(url)
        sent: list[str] = []
        try:
            # Manifests last: by them others know that a dataset is whole.
            for url, kind in sorted(made, key=lambda output: output[1] is MANIFEST):
                sent.append(url)
                if url in joined:
                    compose(url, joined[url], told)
                elif kind is not MANIFEST:
                    send(self.here(url), url)
                elif not create(Path(self.here(url)).read_bytes(), url):
                    sent.clear()  # what has these names may be that run's
                    raise OutputError(f"{url}: another run has made it meanwhile")
        except BaseException:
            for url in sent:
                with suppress(OutputError):
                    remove(url)
            raise


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
        lambda: [output for prefix in prefixes for output in dataset_outputs(prefix)],
        inputs,
        overwrite=overwrite,
        stale=lambda: [path for prefix in prefixes for path in stale_files(prefix)],
    )


def stale_files(prefix: str) -> list[str]:
    """What goes before a dataset is replaced: all that would say something wrong of the new one."""
    trace = trace_path(prefix)
    traces = [trace] if is_trace(trace) else []
    return [idx_path(prefix), manifest_path(prefix), *traces]

"""A folder on this machine for files that a command sends to a store, or got from one."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import tempfile
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from tokpack.errors import BusyError, OutputError
from tokpack.storage import exists, stat
from tokpack.storage.disk import cannot_write, read_object, replace_json
from tokpack.storage.disk.lock import Lock, held
from tokpack.storage.objects.upload import abort
from tokpack.storage.outputs import remove

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tokpack.storage.objects.urls import StoredObject

_NOTE = "sent.json"  # in the folder: what was sent, by URL


class ScratchFolder:
    """A new folder in $TMPDIR, else in the current folder; a context, which removes it at its end.

    Its name is made from ``path``. So after a kill the next command for ``path`` finds it and
    removes it, by ``remove_left``. OutputError.
    """

    def __init__(self, path: str) -> None:
        where, name = os.path.split(scratch_path(path))
        with cannot_write(where):
            os.makedirs(where, exist_ok=True)
            self.name = tempfile.mkdtemp(prefix=f"{name}-", dir=where)
        self._lock = ExitStack()
        self._lock.enter_context(held(self.name))
        self._sent: dict[str, tuple[int, str, str]] = {}

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        with self._lock:
            shutil.rmtree(self.name, ignore_errors=True)

    def noted(
        self, url: str, size: int, put: Callable[..., StoredObject]
    ) -> Callable[..., StoredObject]:
        """``put``, but with notes in the folder of what it sends, which ``remove_left`` reads.

        ``size`` is that of the object. It is noted before it is sent, so there is no moment at
        which an object is on the store and not in a note.
        """

        def note(upload: str = "", etag: str = "") -> None:
            self._sent[url] = (size, upload, etag)
            replace_json(os.path.join(self.name, _NOTE), self._sent)

        def send(**more: Any) -> StoredObject:
            note()
            written = put(**more, begun=note)
            note(etag=written.etag)
            return written

        return send


def scratch_path(path: str, where: str | None = None) -> str:
    """The name of a folder for ``path``: in ``where``, else $TMPDIR, else the current folder."""
    number = hashlib.sha256(path.encode()).hexdigest()[:12]
    name = f"tokpack-{os.path.basename(path)}-{number}"
    return os.path.join(where or os.environ.get("TMPDIR") or os.curdir, name)


def remove_left(path: str, whole: Sequence[str] = ()) -> None:
    """Remove what killed commands for ``path`` have left, unless one of them still works.

    This removes their folders and uploads, and their objects if none of ``whole``, the last objects
    of an output, exists: with these the output is complete. Folders of other users stay, and so
    does what cannot be removed now.
    """
    for folder in glob.glob(glob.escape(scratch_path(path)) + "-*"):
        with suppress(BusyError, OutputError), Lock(folder):
            _remove_objects(os.path.join(folder, _NOTE), whole)
            shutil.rmtree(folder, ignore_errors=True)


def _remove_objects(note: str, whole: Sequence[str]) -> None:
    sent = read_object(note) if os.path.exists(note) else {}
    for url, (size, upload, etag) in sent.items():
        remove_sent(url, size, upload, etag, whole)


def remove_sent(url: str, size: int, upload: str, etag: str, whole: Iterable[str]) -> None:
    """Remove an object of ``size`` bytes that a killed command has begun to send.

    ``upload`` is aborted, if there was one. The object is removed if it is the one that was sent,
    and if none of ``whole``, the last objects of an output, exists. OutputError, InputError.
    """
    if upload:
        abort(url, upload)
    there = stat(url)
    # If the command was killed while it sent, only the size of the object is known, and another
    # machine may have made an equal one. Then that machine may have completed its output: so
    # ``whole`` is looked at after the object, not before.
    same = there and there.size == size and etag in ("", there.etag)
    if there and same and not any(map(exists, whole)):
        remove(url, there)

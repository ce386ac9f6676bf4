"""A folder of this machine in which a command makes what a store gets, or keeps what it gave."""

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
    """A new folder in $TMPDIR, else in the current folder, whose name tells of ``path``; a context.

    At its end it is removed; after a kill ``remove_left`` does that. OutputError.
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
        """``put``, which sends an object of ``size`` bytes, with a note for after a kill."""

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
    """A folder that tells of ``path``: in ``where``, else in $TMPDIR, else the current folder."""
    number = hashlib.sha256(path.encode()).hexdigest()[:12]
    name = f"tokpack-{os.path.basename(path)}-{number}"
    return os.path.join(where or os.environ.get("TMPDIR") or os.curdir, name)


def remove_left(path: str, whole: Sequence[str] = ()) -> None:
    """Remove what killed commands left that worked for ``path``, unless another still does.

    That is their folders, uploads, and objects, these where none of ``whole`` is there, the last
    objects of an output. What is another user's stays, as does what cannot be removed now.
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

    ``upload`` is abandoned, if it was one. The object goes where it is what was sent, and none of
    ``whole`` is there, the last objects of an output. OutputError, InputError.
    """
    if upload:
        abort(url, upload)
    there = stat(url)
    # Of what was being sent when it was killed only the size is known: another machine may have
    # made it, and its output is whole by now. So that is looked at behind the object.
    same = there and there.size == size and etag in ("", there.etag)
    if there and same and not any(map(exists, whole)):
        remove(url, there)

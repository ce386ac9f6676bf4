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
from tokpack.storage.disk import Lock, cannot_write, held, read_object, remove_file, replace_json
from tokpack.storage.files import exists
from tokpack.storage.objects import TakenError, abort, compose, objects
from tokpack.storage.outputs import remove

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokpack.storage.objects import Range, StoredObject


class ScratchFolder:
    """A new folder in $TMPDIR, else in the current folder; a context, which removes it at its end.

    Its name depends on ``path``, so that after a kill the next command for ``path`` can remove it,
    with ``remove_left``. OutputError.
    """

    def __init__(self, path: str) -> None:
        where, name = os.path.split(scratch_path(path))
        with cannot_write(where):
            os.makedirs(where, exist_ok=True)
            self.name = tempfile.mkdtemp(prefix=f"{name}-", dir=where)
        self._lock = ExitStack()
        self._lock.enter_context(held(self.name))
        self.note = SentNote(self.name)

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        with self._lock:
            shutil.rmtree(self.name, ignore_errors=True)


def scratch_path(path: str, where: str | None = None) -> str:
    """The name of a folder for ``path``: in ``where``, else $TMPDIR, else the current folder."""
    number = hashlib.sha256(path.encode()).hexdigest()[:12]
    name = f"tokpack-{os.path.basename(path)}-{number}"
    return os.path.join(where or os.environ.get("TMPDIR") or os.curdir, name)


def remove_left(path: str, whole: Sequence[str] = ()) -> None:
    """Remove what killed commands for ``path`` have left, unless one is still running.

    Removed are their folders and uploads, and their objects if none of ``whole``, the last objects
    of an output, exists: these would make it complete. Folders of other users stay, and so does
    what cannot be removed now.
    """
    for folder in glob.glob(glob.escape(scratch_path(path)) + "-*"):
        with suppress(BusyError, OutputError), Lock(folder):
            SentNote(folder).remove_objects(whole)
            shutil.rmtree(folder, ignore_errors=True)


class SentNote:
    """The note in a folder of the objects that a command sends from it: sent.json.

    An object is noted before it is sent, so that after a kill the next command knows every object
    that may be on the store.
    """

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, "sent.json")

    def send(self, url: str, ranges: Sequence[Range], **more: Any) -> StoredObject:
        """Note an object and make it, as ``compose`` does."""
        size = sum(one.size for one in ranges)

        def note(upload: str = "", etag: str = "") -> None:
            replace_json(self.path, self._read() | {url: (size, upload, etag)})

        note()
        try:
            written = compose(url, ranges, begun=note, **more)
        except TakenError:  # not our object: the next command must not remove it
            others = self._read()
            del others[url]
            replace_json(self.path, others)
            raise
        note(etag=written.etag)
        return written

    def remove_objects(self, whole: Iterable[str], *, only_uploads: bool = False) -> None:
        """Abort the uploads that were begun, and remove the objects and the note.

        Objects stay if one of ``whole``, the last objects of an output, exists: it is complete
        then. OutputError, InputError.
        """
        last = tuple(whole)
        for url, (size, upload, etag) in self._read().items():
            if upload:
                abort(url, upload)
            there = None if only_uploads else objects.stat(url)
            # If the command was killed while sending, only the object's size is known, and another
            # machine may have written one of equal size and then completed its output. So look at
            # ``whole`` after the object, not before.
            same = there and there.size == size and etag in ("", there.etag)
            if there and same and not any(map(exists, last)):
                remove(url, there)
        remove_file(self.path)

    def _read(self) -> dict[str, tuple[int, str, str]]:
        """By URL: the size, the unfinished upload, and the ETag once it was sent."""
        noted = read_object(self.path) if os.path.exists(self.path) else {}
        # Notes of old versions have no URLs: their objects stay, and are reported as existing.
        return {url: one for url, one in noted.items() if "://" in url}

"""The outputs that a request may replace, on disks and stores alike.

A request may replace a file that tokpack made and that it names as its output, but only in the
version that it looked at. ``look`` applies this rule and returns the version; functions that write
or remove take it, and fail if there is another version by then.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import filterfalse
from typing import TYPE_CHECKING

from tokpack.errors import OutputError, TokpackError, UsageError
from tokpack.storage.disk import check_not_inputs, check_outputs, check_replaceable
from tokpack.storage.files import Version, storage_of
from tokpack.storage.objects import StoredObject, TakenError, is_url, object_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tokpack.storage.disk import Output
    from tokpack.storage.objects import Range
    from tokpack.storage.scratch import SentNote


def look(
    outputs: Sequence[Output], inputs: Iterable[str], *, overwrite: bool, detail: str = ""
) -> dict[str, Version]:
    """The version of each output, all of which may be replaced, or None if it does not exist.

    Raises UsageError and OutputError as ``check_outputs`` does; ``outputs`` and ``inputs`` may be
    URLs, too.
    """
    read = tuple(inputs)
    paths = [output for output in outputs if not is_url(output[0])]
    versions = versions_of([path for path, _ in outputs])
    check_not_inputs(filter(is_url, versions), read)
    if paths:
        check_outputs(paths, read, overwrite=overwrite, detail=detail)
    written = {}
    for url in filter(is_url, versions):
        if url.startswith(("http://", "https://")):
            raise UsageError(f"{shown(url)}: nothing can be written to a web server")
        written[object_of(url)] = url
    for name in read if written else ():
        if output := written.get(object_of(name)):
            other = "" if output == name else f", under the name {shown(name)}"
            raise UsageError(
                f"{shown(output)} is an input and an output{other}: choose another output"
            )
    for path, kind in outputs:
        if is_url(path) and versions[path]:
            check_replaceable(path, kind, overwrite=overwrite, detail=detail)
    return versions


def versions_of(paths: Iterable[str]) -> dict[str, Version]:
    """The current version of each file or object. InputError if a store fails."""
    versions: dict[str, Version] = dict.fromkeys(paths)
    for names in (list(filter(is_url, versions)), [*filterfalse(is_url, versions)]):
        if names:
            versions.update(zip(names, storage_of(names[0]).stats(names), strict=True))
    return versions


def check_unchanged(versions: Mapping[str, Version]) -> None:
    """Raise TakenError if the version has changed since it was looked at. InputError."""
    for path, now in versions_of(versions).items():
        if not _same(now, versions[path]):
            raise TakenError(path, "exists" if now else "was removed")


def replace(path: str, content: bytes, version: Version) -> Version:
    """Write a small file as a whole, in place of ``version`` only. Returns its new version.

    TakenError if another version is there, OutputError if it cannot be written.
    """
    written = storage_of(path).put(path, content, version or "create")
    if written is None:
        raise TakenError(path)
    return written


def remove(path: str, version: Version) -> None:
    """Remove a file, if it exists. TakenError if it is not ``version``, OutputError."""
    if not storage_of(path).delete(path, version):
        raise TakenError(path)


class NewObjects:
    """Objects that a request writes one after the other; a context, which keeps all or none.

    A store cannot rename several objects at once, so they appear one by one, and the last one makes
    them an output. After an error, written objects are removed. Only the ``versions`` from ``look``
    are replaced or removed, if they are still there at the beginning. Each object is noted in
    ``note`` before it is sent. ``are_made`` tells whether another run has made the same objects
    meanwhile: then a TakenError is harmless. All methods raise OutputError and TakenError.
    """

    def __init__(
        self,
        versions: Mapping[str, Version],
        note: SentNote,
        are_made: Callable[[], bool] = lambda: False,
    ) -> None:
        self._versions, self._note, self._are_made = dict(versions), note, are_made
        self._written: dict[str, Version] = {}
        self._stay: set[str] = set()
        self._may_be_whole = False

    def __enter__(self) -> NewObjects:
        check_unchanged(self._versions)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if error is None or self._may_be_whole:
            return False
        with suppress(TokpackError):
            if self._are_made():
                return isinstance(error, TakenError)
        for url, version in self._written.items():
            if url not in self._stay:
                with suppress(TokpackError):
                    remove(url, version)
        return False

    def remove(self, url: str) -> None:
        """Remove an old object before anything new is written."""
        if self._versions.get(url):
            remove(url, self._versions[url])
            self._versions[url] = None

    def write(
        self,
        url: str,
        ranges: Sequence[Range],
        on_bytes: Callable[[int], None] = lambda size: None,
        *,
        stays: bool = False,
    ) -> None:
        """Make an object that consists of ``ranges``, in place of its version only.

        ``on_bytes`` is as in ``compose``. An object that ``stays`` is kept after an error: it will
        be made again, or another run relies on it. Any other object must be written by this run: if
        another run wrote the same bytes, it may still fail and remove them.
        """
        if stays:
            self._stay.add(url)
        check = (lambda: None) if stays else self._check_unwritten
        mode = self._versions.get(url) or "create"
        written = self._note.send(url, ranges, on_bytes=on_bytes, mode=mode, check=check)
        if not (written.ours or stays):
            raise TakenError(url)
        self._written[url] = written

    def _check_unwritten(self) -> None:
        """Raise TakenError if somebody has written one of the objects that are still to come.

        It is called just before an upload is completed, which may have taken hours.
        """
        left = {url: v for url, v in self._versions.items() if url not in self._written}
        check_unchanged(left)

    def check(self) -> None:
        """Raise TakenError if an object that was written here has changed."""
        check_unchanged(self._written)

    def are_there(self, urls: Iterable[str]) -> bool:
        """Whether at least one of these objects is still the one written here. InputError."""
        now = versions_of(url for url in urls if url in self._written)
        return any(version and _same(version, self._written[url]) for url, version in now.items())

    def write_last(self, url: str, content: bytes) -> None:
        """Write the object that makes the others an output, if they are still as written."""
        self.check()
        try:
            self._written[url] = replace(url, content, self._versions.get(url))
        except OutputError as error:
            # Without an answer, the store may have written the last object, or may still do so. It
            # would describe missing objects if the others were removed now: keep them.
            self._may_be_whole = getattr(error.__cause__, "may_be_done", False)
            raise


def _same(one: Version, other: Version) -> bool:
    if isinstance(one, StoredObject) and isinstance(other, StoredObject):
        return one.has_same_content(other)
    return one == other

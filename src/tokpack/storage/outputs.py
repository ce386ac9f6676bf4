"""What a request may replace, on disks and stores alike.

A file that tokpack made, that the request names as its output, in the version that was looked at.
``look`` is the rule; whoever writes hands on the version that it gave.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import filterfalse
from typing import TYPE_CHECKING

from tokpack.errors import OutputError, TokpackError, UsageError
from tokpack.storage import disk
from tokpack.storage.disk import check_not_inputs, check_outputs, check_replaceable
from tokpack.storage.files import Version, storage_of
from tokpack.storage.objects.upload import TakenError
from tokpack.storage.objects.urls import StoredObject, is_url, object_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tokpack.storage.disk import Output


def look(
    outputs: Sequence[Output], inputs: Iterable[str], *, overwrite: bool, detail: str = ""
) -> dict[str, Version]:
    """Refuse what the rule forbids; give the version of each output that may be replaced.

    As ``check_outputs``, where ``outputs`` and ``inputs`` may be URLs. UsageError, OutputError.
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
    """The version of each file or object that is there now. InputError where a store fails."""
    versions: dict[str, Version] = dict.fromkeys(paths)
    for names in (list(filter(is_url, versions)), [*filterfalse(is_url, versions)]):
        if names:
            versions.update(zip(names, storage_of(names[0]).stats(names), strict=True))
    return versions


def check_unchanged(versions: Mapping[str, Version]) -> None:
    """TakenError where something else is there than was looked at. InputError."""
    for path, now in versions_of(versions).items():
        if not _same(now, versions[path]):
            raise TakenError(path, "exists" if now else "was removed")


def replace(path: str, content: bytes, version: Version) -> Version:
    """Write a small file whole, in place of ``version`` alone; gives the one that is there then.

    OutputError, TakenError.
    """
    written = storage_of(path).put(path, content, version or "create")
    if written is None:
        raise TakenError(path)
    return written


def remove(path: str, version: Version) -> None:
    """Remove ``version`` of a file, which may be gone. OutputError, TakenError for another one."""
    if not storage_of(path).delete(path, version):
        raise TakenError(path)


class NewObjects:
    """Objects that a request writes one after the other: all of them, or none stays; a context.

    ``versions`` are those that ``look`` gave, the only ones that are replaced or removed.
    ``are_made`` tells whether another run has made the same of them meanwhile: then all is well,
    and what that run is in the way of is no error.
    All methods raise OutputError and TakenError.
    """

    def __init__(
        self, versions: Mapping[str, Version], are_made: Callable[[], bool] = lambda: False
    ) -> None:
        self._versions, self._are_made = dict(versions), are_made
        self._written: dict[str, Version] = {}
        self._stay: set[str] = set()
        self._may_be_whole = False

    def __enter__(self) -> NewObjects:
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
        """Remove what is to be replaced before anything new is written."""
        if self._versions.get(url):
            remove(url, self._versions[url])
            self._versions[url] = None

    def write(self, url: str, put: Callable[..., StoredObject], *, stays: bool = False) -> None:
        """Write an object by ``put``, a function as ``send``, which is told what it may replace.

        One that ``stays`` is not removed after an error: it is made again, or is another run's too.
        Any other has to be ours: another run that has written the same bytes may remove them.
        """
        version = self._versions.get(url)
        assert not isinstance(version, disk.Identity)
        if stays:
            self._stay.add(url)
        check = (lambda: None) if stays else self._check_unwritten
        written = put(mode=version or "create", check=check)
        if not (written.ours or stays):
            raise TakenError(url)
        self._written[url] = written

    def _check_unwritten(self) -> None:
        """See that nobody has made, in what may be hours, what is yet to be written."""
        left = {url: v for url, v in self._versions.items() if url not in self._written}
        check_unchanged(left)

    def check(self) -> None:
        """See that what was written still is there."""
        check_unchanged(self._written)

    def are_there(self, urls: Iterable[str]) -> bool:
        """Whether one of these objects still is the one that was written here. InputError."""
        now = versions_of(url for url in urls if url in self._written)
        return any(version and _same(version, self._written[url]) for url, version in now.items())

    def write_last(self, url: str, content: bytes) -> None:
        """Write the object that makes the others whole, if those still are what was written."""
        self.check()
        try:
            self._written[url] = replace(url, content, self._versions.get(url))
        except OutputError as error:
            # It may come yet, and must not tell of objects that are gone.
            self._may_be_whole = getattr(error.__cause__, "may_be_done", False)
            raise


def _same(one: Version, other: Version) -> bool:
    if isinstance(one, StoredObject) and isinstance(other, StoredObject):
        return one.has_same_content(other)
    return one == other

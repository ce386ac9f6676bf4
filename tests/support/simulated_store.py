"""A store in memory, with the rules of S3, for whole protocols and single requests."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tokpack.storage.objects.trouble import failure
from tokpack.storage.objects.urls import StoredObject, file_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokpack.storage.objects.urls import PutMode, Range

_KEPT = 6  # states that a stale listing may be of


class Content(NamedTuple):
    """An object; as on S3 the same bytes have the same ETag, their MD5."""

    data: bytes
    etag: str
    written: float


@dataclass
class Upload:
    """An upload in parts that is neither complete nor given up."""

    url: str
    parts: dict[int, Content] = field(default_factory=dict)


class S3Model:
    """What the store has; a request is done at once, or fails with the status that S3 answers."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.objects: dict[str, Content] = {}
        self.uploads: dict[str, Upload] = {}
        self.changed: Callable[[str], None] = lambda url: None
        self.age = 0  # how many changes ago what is listed was so
        self._now = now
        self._named = 0
        self._before: deque[dict[str, Content]] = deque(maxlen=_KEPT)

    def stat(self, url: str) -> StoredObject | None:
        one = self.objects.get(url)
        return one and StoredObject(url, len(one.data), one.etag, 0, "", one.written)

    def below(self, url: str) -> list[StoredObject]:
        begin = url.rstrip("/") + "/"
        state = self._before[-self.age] if 0 < self.age <= len(self._before) else self.objects
        return [
            StoredObject(name, len(one.data), one.etag, 0, "", one.written)
            for name, one in sorted(state.items())
            if name.startswith(begin)
        ]

    def level(self, url: str, begin: str = "") -> tuple[list[str], list[StoredObject]]:
        size = len(url.rstrip("/")) + 1
        found = self.below(url)
        names = {one.url[size:].partition("/")[0] for one in found if "/" in one.url[size:]}
        folders = [one[:size] + name for one in [url.rstrip("/") + "/"] for name in sorted(names)]
        names_of = [one for one in found if "/" not in one.url[size:]]
        return folders, [one for one in names_of if one.url.startswith(begin, size)]

    def read(self, source: StoredObject, begin: int, end: int) -> bytes:
        one = self.objects.get(source.url)
        if one is None:
            raise failure(source.url, 404, "NoSuchKey", "")
        if one.etag != source.etag:
            raise failure(source.url, 412, "PreconditionFailed", "")
        return one.data[begin:end]

    def put(self, url: str, content: bytes | Sequence[Range], mode: PutMode) -> StoredObject:
        self._check(url, mode)
        return self.place(url, bytes_of(content))

    def delete(self, url: str, version: StoredObject | None) -> None:
        self._check(url, version or "overwrite")
        if url in self.objects:
            self._before.append(dict(self.objects))
            del self.objects[url]
            self.changed(url)

    def begin(self, url: str) -> str:
        self._named += 1
        self.uploads[f"upload-{self._named}"] = Upload(url)
        return f"upload-{self._named}"

    def part(self, url: str, upload: str, number: int, content: bytes | Sequence[Range]) -> str:
        data = bytes_of(content)
        etag = f'"{_md5(data)}"'
        self._upload(url, upload).parts[number] = Content(data, etag, 0.0)
        return etag

    def copy_part(self, url: str, upload: str, number: int, one: Range) -> str:
        source, begin, end = one
        assert isinstance(source, StoredObject)
        return self.part(url, upload, number, self.read(source, begin, end))

    def complete(self, url: str, upload: str, etags: Sequence[str], mode: PutMode) -> str:
        parts = self._upload(url, upload).parts
        if [parts[n].etag for n in sorted(parts)] != list(etags):
            raise failure(url, 400, "InvalidPart", "InvalidPart")
        self._check(url, mode)
        data = b"".join(parts[n].data for n in sorted(parts))
        digests = b"".join(bytes.fromhex(etag.strip('"')) for etag in etags)
        del self.uploads[upload]
        return self.place(url, data, f'"{_md5(digests)}-{len(parts)}"').etag

    def abort(self, url: str, upload: str) -> None:
        self._upload(url, upload)
        del self.uploads[upload]

    def place(self, url: str, data: bytes, etag: str = "") -> StoredObject:
        """Write an object whatever is there."""
        self._before.append(dict(self.objects))
        self.objects[url] = Content(data, etag or f'"{_md5(data)}"', self._now())
        self.changed(url)
        stored = self.stat(url)
        assert stored
        return stored

    def _check(self, url: str, mode: PutMode) -> None:
        now = self.objects.get(url)
        if mode == "create" and now is not None:
            raise failure(url, 412, "PreconditionFailed", "")
        if isinstance(mode, StoredObject):
            if now is None:
                raise failure(url, 404, "NoSuchKey", "")
            if now.etag != mode.etag:
                raise failure(url, 412, "PreconditionFailed", "")

    def _upload(self, url: str, upload: str) -> Upload:
        one = self.uploads.get(upload)
        if one is None or one.url != url:
            raise failure(url, 404, "NoSuchUpload", "")
        return one


class Gated:
    """A Backend whose every request goes through ``gate``, which may do with it what it likes.

    That is called with the name of the operation, its URL, and the request as a function.
    """

    def __init__(self, model: S3Model, gate: Callable[[str, str, Callable[[], Any]], Any]) -> None:
        self._model, self._gate = model, gate

    def __getattr__(self, name: str) -> Callable[..., Any]:
        act = getattr(self._model, name)

        def request(first: str | StoredObject, *rest: Any) -> Any:
            url = first if isinstance(first, str) else first.url
            if name == "part":  # a late request has what was read for it when it was sent
                rest = (*rest[:-1], bytes_of(rest[-1]))
            return self._gate(name, url, partial(act, first, *rest))

        return request


def bytes_of(content: bytes | Sequence[Range]) -> bytes:
    """The bytes of ranges of files."""
    if isinstance(content, bytes):
        return content
    chunks = [file_chunks(one.source.path, *one[1:]) for one in content]  # type: ignore[union-attr]
    return b"".join(chunk for some in chunks for chunk in some)


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()

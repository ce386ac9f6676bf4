"""The interface of a backend, and the backend for a URL."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Protocol, cast

from tokpack.storage.objects.filesystems import FileSystems
from tokpack.storage.objects.object_store import ObjectStores
from tokpack.storage.objects.urls import place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokpack.storage.objects.urls import Chunks, PutMode, Range, StoredObject


class Backend(Protocol):
    """The requests that a kind of stores answers; they raise the errors of ``trouble``."""

    def stat(self, url: str) -> StoredObject | None: ...
    def below(self, url: str) -> Iterable[StoredObject]: ...
    def level(self, url: str, begin: str = "") -> tuple[list[str], list[StoredObject]]: ...
    def read(self, source: StoredObject, begin: int, end: int) -> Any: ...
    def put(self, url: str, content: bytes | Sequence[Range], mode: PutMode) -> StoredObject: ...
    def delete(self, url: str, version: StoredObject | None) -> None: ...

    # Only S3 has these, for uploads in parts.
    def begin(self, url: str) -> str: ...
    def part(self, url: str, upload: str, number: int, content: bytes | Sequence[Range]) -> str: ...
    def copy_part(self, url: str, upload: str, number: int, one: Range) -> str: ...
    def complete(self, url: str, upload: str, etags: Sequence[str], mode: PutMode) -> str: ...
    def abort(self, url: str, upload: str) -> None: ...

    # Only the Hugging Face hub has this.
    def create_repository(self, url: str) -> bool: ...


@functools.cache
def _of_kind(kind: str, chunks: Chunks) -> Backend:
    return cast("Backend", ObjectStores(chunks) if kind else FileSystems(chunks))


def backend_of(url: str, chunks: Chunks) -> Backend:
    """The backend for a URL in this process; ``chunks`` reads ranges of other objects."""
    return _of_kind(place_of(url).kind, chunks)

"""What a store is asked for, by whom: the interface, and the one that opens the store of a URL."""

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
    """One kind of stores, or all of them; failures are those of ``trouble``."""

    def stat(self, url: str) -> StoredObject | None: ...
    def below(self, url: str) -> Iterable[StoredObject]: ...
    def level(self, url: str) -> tuple[list[str], list[StoredObject]]: ...
    def read(self, source: StoredObject, begin: int, end: int) -> Any: ...
    def put(self, url: str, content: bytes | Sequence[Range], mode: PutMode) -> StoredObject: ...
    def delete(self, url: str, version: StoredObject | None) -> None: ...

    # Of S3 alone: uploads in parts.
    def begin(self, url: str) -> str: ...
    def part(self, url: str, upload: str, number: int, content: bytes | Sequence[Range]) -> str: ...
    def copy_part(self, url: str, upload: str, number: int, one: Range) -> str: ...
    def complete(self, url: str, upload: str, etags: Sequence[str], mode: PutMode) -> str: ...
    def abort(self, url: str, upload: str) -> None: ...

    # Of the hub alone.
    def create_repository(self, url: str) -> bool: ...


@functools.cache
def _of_kind(kind: str, chunks: Chunks) -> Backend:
    return cast("Backend", ObjectStores(chunks) if kind else FileSystems(chunks))


def backend_of(url: str, chunks: Chunks) -> Backend:
    """What opens the store of a URL in this process; ``chunks`` reads ranges of other objects."""
    return _of_kind(place_of(url).kind, chunks)

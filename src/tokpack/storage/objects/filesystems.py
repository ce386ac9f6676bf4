"""Objects on all other kinds of stores, hf:// among them, through the user's fsspec."""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from tokpack.errors import StoreError, TokpackError, UsageError
from tokpack.storage.objects.trouble import TransientError
from tokpack.storage.objects.urls import StoredObject, hub_repository, scrubbed, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokpack.storage.objects.urls import Chunks, PutMode, Range

_TAGS = ("ETag", "etag", "e_tag", "blob_id", "md5Hash", "content_md5", "generation")
_TRIED_AGAIN = (408, 409, 425, 429)  # answers such as a conflict of commits, too many requests
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified")


class FileSystems:
    """The backend for URLs that fsspec opens; ``chunks`` reads ranges of other objects."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks

    def stat(self, url: str) -> StoredObject | None:
        """The object of a URL, or None if there is none."""
        try:
            info = self._try(url, lambda system, path: _fresh(system).info(path))
        except FileNotFoundError:
            return None
        return _object(url, info) if info["type"] == "file" else None

    def below(self, url: str) -> list[StoredObject]:
        """All objects below a folder."""

        def listed(system: Any, path: str) -> list[tuple[str, Any]]:
            infos = _fresh(system).find(path, detail=True)
            return [(system.unstrip_protocol(name), info) for name, info in infos.items()]

        return [_object(name, info) for name, info in self._try(url, listed)]

    def level(self, url: str, begin: str = "") -> tuple[list[str], list[StoredObject]]:
        """The folders and the objects in a folder, whatever their names ``begin`` with."""

        def listed(system: Any, path: str) -> list[tuple[str, Any]]:
            infos = _fresh(system).ls(path, detail=True)
            return [(system.unstrip_protocol(one["name"]).rstrip("/"), one) for one in infos]

        try:
            pairs = self._try(url, listed)
        except (FileNotFoundError, NotADirectoryError):
            return [], []
        folders = [name for name, info in pairs if info["type"] == "directory"]
        return folders, [_object(name, info) for name, info in pairs if info["type"] == "file"]

    def read(self, source: StoredObject, begin: int, end: int) -> bytes:
        """Bytes [begin, end) of an object."""
        data: bytes = self._try(
            source.url, lambda system, path: system.cat_file(path, start=begin, end=end)
        )
        if len(data) != end - begin:
            raise TransientError(f"the answer has {len(data)} bytes instead of {end - begin}")
        return data

    def put(self, url: str, content: bytes | Sequence[Range], mode: PutMode) -> StoredObject:
        """Write an object from bytes or from ranges of others; ``mode`` must be "overwrite"."""
        message = {"commit_message": f"Write {PurePosixPath(url).name} with tokpack"}
        more = message if hub_repository(url) else {}

        def write(system: Any, path: str) -> None:
            with system.open(path, "wb", **more) as file:
                chunks = [content] if isinstance(content, bytes) else self._chunks(content)
                for chunk in chunks:
                    file.write(chunk)

        self._try(url, write)
        written = self.stat(url)
        if written is None:
            raise TransientError("an object that was just written is not there")
        return written

    def create_repository(self, url: str) -> bool:
        """Make a private repository on the hub if there is none. Returns whether it made it."""

        def create(system: Any, _: str) -> bool:
            from huggingface_hub import HfApi

            hub, name = HfApi(system.endpoint, system.token), hub_repository(url)
            is_new = not hub.repo_exists(name, repo_type="dataset")
            if is_new:
                hub.create_repo(name, repo_type="dataset", private=True, exist_ok=True)
            hub.auth_check(name, repo_type="dataset", write=True)
            return is_new

        return bool(self._try(url, create))

    def delete(self, url: str, version: StoredObject | None) -> None:
        """Remove an object."""
        self._try(url, lambda system, path: system.rm_file(path))

    def _try(self, url: str, act: Callable[[Any, str], Any]) -> Any:
        try:
            import fsspec
        except ImportError as error:
            raise UsageError(
                f"{shown(url)}: this needs a package: pip install 'tokpack[remote]'"
            ) from error
        try:
            system, path = fsspec.core.url_to_fs(url)
            return act(system, path)
        except (FileNotFoundError, NotADirectoryError, TokpackError):
            raise
        except (ValueError, ImportError) as error:  # an unknown scheme, or a missing package
            raise StoreError(f"{shown(url)}: {scrubbed(str(error))}") from error
        except PermissionError as error:
            raise StoreError(f"{shown(url)}: permission denied: {scrubbed(str(error))}") from error
        except OSError as error:
            status = getattr(getattr(error, "response", None), "status_code", 0)
            refused = 400 <= status < 500 and status not in _TRIED_AGAIN
            if refused or "offline mode is enabled" in str(error):  # as the hub's library says
                raise StoreError(f"{shown(url)}: {scrubbed(str(error))}") from error
            raise TransientError(scrubbed(str(error))) from error
        except Exception as error:  # whatever a file system throws
            raise StoreError(f"{shown(url)}: {scrubbed(str(error))}") from error


def _fresh(system: Any) -> Any:
    system.invalidate_cache()
    return system


def _object(url: str, info: Any) -> StoredObject:
    tag = next((str(info[name]) for name in _TAGS if info.get(name)), "")
    time = next((str(info[name]) for name in _TIMES if info.get(name)), "")
    if not tag and time:
        tag = hashlib.sha256(time.encode()).hexdigest()[:32]
    return StoredObject(url, int(info["size"] or 0), tag, 0)

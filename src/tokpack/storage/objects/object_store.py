"""Objects of s3, gs, az and https servers, through obstore.

obstore has its own threads, which do not survive a fork. So it is imported only on use, and
``access`` ensures that no process that may fork later gets here.
"""

from __future__ import annotations

import base64
import functools
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tokpack.errors import StoreError, UsageError
from tokpack.storage.objects import s3, urls
from tokpack.storage.objects.trouble import ChangedError, MissingError, TransientError, translated
from tokpack.storage.objects.urls import (
    StoredObject,
    azure_names,
    part_bytes,
    place_of,
    shown,
    url_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tokpack.storage.objects.urls import Chunks, Location, PutMode, Range

EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure", "http": "remote"}


class ObjectStores:
    """The backend for stores that obstore opens; ``chunks`` reads ranges of other objects.

    Its errors are those of ``trouble``.
    """

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks

    def stat(self, url: str) -> StoredObject | None:
        """The object of a URL, or None if there is none."""
        place = place_of(url)
        if not place.key:
            return None
        try:
            meta = self._try(url, lambda obs, store: obs.head(store, place.key))
        except MissingError:
            return None
        except StoreError:
            if place.kind != "http":
                raise
            # A URL may be signed for GET only: send that, and read just the head of the answer.
            meta = self._try(url, lambda obs, store: obs.get(store, place.key).meta)
        return _object(url, meta)

    def below(self, url: str) -> Iterator[StoredObject]:
        """All objects below a folder, in any order."""
        place = place_of(url)
        if place.kind == "s3":
            for page in s3.pages(url):
                yield from _objects_of(page, url)
            return
        listing: Any = self._try(url, lambda obs, store: obs.list(store, place.key.strip("/")))
        while chunk := self._try(url, lambda *_: next(listing, None)):
            for meta in chunk:
                yield _object(url_of(url, meta["path"]), meta)

    def level(self, url: str, begin: str = "") -> tuple[list[str], list[StoredObject]]:
        """The folders in a folder, as URLs without a slash at the end, and the objects in it.

        S3 lists only names that begin with ``begin``.
        """
        place = place_of(url)
        if place.kind == "s3":
            pages = list(s3.pages(url, begin, Delimiter="/"))
            prefixes = [one["Prefix"] for page in pages for one in page.get("CommonPrefixes", ())]
            folders = [url_of(url, prefix.rstrip("/")) for prefix in prefixes]
            return folders, [one for page in pages for one in _objects_of(page, url)]
        listed: Any = self._try(
            url, lambda obs, store: obs.list_with_delimiter(store, place.key.strip("/") or None)
        )
        objects = [_object(url_of(url, meta["path"]), meta) for meta in listed["objects"]]
        return [url_of(url, prefix) for prefix in listed["common_prefixes"]], objects

    def read(self, source: StoredObject, begin: int, end: int) -> Any:
        """Bytes [begin, end) of an object. ChangedError if it has been replaced."""
        key = place_of(source.url).key
        options: Any = {"range": (begin, end)}
        if source.etag and not source.etag.startswith("W/"):
            options["if_match"] = source.etag

        def get(obs: Any, store: Any) -> tuple[Any, Any]:
            result = obs.get(store, key, options=options)
            return result.meta, result.bytes()

        meta, data = self._try(source.url, get)
        if not _object(source.url, meta).has_same_content(source):
            raise ChangedError(source.url)
        if len(data) != end - begin:
            raise TransientError(f"the answer has {len(data)} bytes instead of {end - begin}")
        return data

    def put(self, url: str, content: bytes | Sequence[Range], mode: PutMode) -> StoredObject:
        """Write an object from bytes, or from ranges of others, which are sent in parts.

        For ranges, ``mode`` must be "overwrite". ChangedError if ``mode`` forbids the write.
        """
        key = place_of(url).key
        options: Any = {"mode": mode}
        if isinstance(mode, StoredObject):
            version = {"e_tag": mode.etag, "version": mode.generation}
            options["mode"] = {name: value for name, value in version.items() if value}
        body: Any = content
        if isinstance(content, bytes):
            size, options["use_multipart"] = len(content), False
        else:
            size, body = sum(one.size for one in content), self._chunks(content)
            options |= {"chunk_size": part_bytes(size), "max_concurrency": 4}
        done = self._try(url, lambda obs, store: obs.put(store, key, body, **options))
        return StoredObject(url, size, _quoted(done["e_tag"]), 0, done["version"] or "")

    def delete(self, url: str, version: StoredObject | None) -> None:
        """Remove an object; on S3 only if it is ``version``, unless that is None."""
        place = place_of(url)
        if version is None or place.kind != "s3":
            self._try(url, lambda obs, store: obs.delete(store, place.key))
            return
        s3.delete(url, version)

    begin = staticmethod(s3.begin)
    copy_part = staticmethod(s3.copy_part)
    complete = staticmethod(s3.complete)
    abort = staticmethod(s3.abort)

    def part(self, url: str, upload: str, number: int, content: bytes | Sequence[Range]) -> str:
        """Send a part of an upload, which is bytes or ranges of files. Returns its ETag."""
        body = content if isinstance(content, bytes) else b"".join(self._chunks(content))
        return s3.part(url, upload, number, body)

    def _try(self, url: str, act: Callable[[Any, Any], Any]) -> Any:
        """The result of ``act`` for obstore and the store of a URL; errors as those of trouble."""
        obstore, store = self._opened(url)
        try:
            return act(obstore, store)
        except Exception as error:
            raise translated(error, url) from error

    def _opened(self, url: str) -> tuple[Any, Any]:
        place = place_of(url)
        try:
            import obstore
        except ImportError as error:
            raise UsageError(
                f"{shown(url)}: this needs a package: pip install 'tokpack[{EXTRAS[place.kind]}]'"
            ) from error
        try:
            return obstore, _opened(place._replace(key=""))
        except (StoreError, UsageError):
            raise
        except Exception as error:
            raise translated(error, url) from error


def _objects_of(page: dict[str, Any], url: str) -> Iterator[StoredObject]:
    for one in page.get("Contents", ()):
        if not one["Key"].endswith("/"):
            written = one["LastModified"].timestamp()
            etag = _quoted(one.get("ETag"))
            yield StoredObject(url_of(url, one["Key"]), one["Size"], etag, 0, "", written)


def _object(url: str, meta: Any) -> StoredObject:
    etag = _quoted(meta["e_tag"])
    written = meta["last_modified"].timestamp()
    modified = 0 if etag else int(written) * 1_000_000_000
    return StoredObject(url, meta["size"], etag, modified, meta["version"] or "", written)


def _quoted(etag: str | None) -> str:
    return f'"{etag}"' if etag and '"' not in etag else etag or ""  # Azure lists them without


@functools.cache
def _opened(place: Location) -> Any:
    from obstore import store

    # No retries here: ``access`` does them, and knows when to give up.
    more: Any = {"client_options": _client_options(), "retry_config": {"max_retries": 0}}
    if place.kind == "s3":
        return store.S3Store(place.root, **more, **_of_profile())
    if place.kind == "gs":
        return store.GCSStore(place.root, **more)
    if place.kind == "az":
        container, account = azure_names(place.root)
        named: Any = {"account_name": account} if account else {}
        return store.AzureStore(container, **named, **more)
    scheme, _, rest = place.root.partition("://")
    user, at, host = rest.rpartition("@")
    if at:
        login = base64.b64encode(unquote(user).encode()).decode()
        more["client_options"]["default_headers"] = {"authorization": f"Basic {login}"}
    return store.HTTPStore(f"{scheme}://{host}", **more)


def _client_options() -> dict[str, Any]:
    patience = urls.patience_seconds()
    options: dict[str, Any] = {
        "allow_http": True,  # for an endpoint or a URL that says http itself
        "connect_timeout": timedelta(seconds=min(patience, 5.0)),
        "read_timeout": timedelta(seconds=patience),
        "timeout": timedelta(seconds=20 * patience),
    }
    if path := urls.certificates():
        try:
            with open(path, "rb") as file:
                options["root_certificate"] = file.read()
        except OSError as error:
            names = " or ".join(urls.CERTIFICATES)
            raise UsageError(f"{path}, which {names} names: {error.strerror}") from error
    return options


def _of_profile() -> dict[str, Any]:
    """Credentials, region and endpoint from the files in ~/.aws, unless variables set them.

    They are read by boto3, which also knows roles and single sign-on. Without boto3, obstore looks
    for the credentials of the machine.
    """
    if os.environ.get("AWS_ACCESS_KEY_ID") or os.environ.get("AWS_SKIP_SIGNATURE"):
        return {}
    try:
        import boto3.session
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        if os.environ.get("AWS_PROFILE"):
            raise UsageError(
                "AWS_PROFILE is set, and profiles need a package: pip install 'tokpack[s3]'"
            ) from error
        return {}
    try:
        session = boto3.session.Session(region_name=os.environ.get("AWS_REGION"))
        if session.get_credentials() is None:
            raise StoreError(
                "s3: no credentials were found: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or for a public bucket AWS_SKIP_SIGNATURE=true"
            )
        endpoint = session.client("s3", region_name=session.region_name or "us-east-1").meta
    except BotoCoreError as error:
        raise StoreError(f"s3: {error}: check AWS_PROFILE and ~/.aws/config") from error
    options: dict[str, Any] = {"credential_provider": Boto3CredentialProvider(session)}
    if "amazonaws.com" not in endpoint.endpoint_url:
        options["endpoint"] = endpoint.endpoint_url
    return options

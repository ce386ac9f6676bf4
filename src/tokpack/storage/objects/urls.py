"""URLs of objects: recognized, shown without secrets, and taken apart for a store."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from tokpack.errors import InputError, UsageError
from tokpack.storage.disk import Identity, cannot_read, identity, open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Chunks = Callable[[Sequence["Range"]], Iterator[bytes]]  # the bytes of ranges, in order


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::[A-Za-z][A-Za-z0-9+.-]*)*://", re.ASCII)
_KINDS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **dict.fromkeys(("az", "azure", "abfs", "abfss", "adl"), "az"),
    **dict.fromkeys(("http", "https"), "http"),
}
_ACCOUNT_HOST = re.compile(r"[\w-]+\.(dfs|blob)\.[\w.-]+")
_HUB_DATASET = re.compile(r"hf://(?!datasets/|buckets/)")
_HUB_OBJECT = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@[^/]+)?/.")
# Secrets in URLs in messages of libraries: a query, and a password before an @.
_QUERY = re.compile(r"(\w://[^\s\"'<>?]*)\?[^\s\"'<>),]*")
_PASSWORD = re.compile(r"(\w://)[^\s/@\"'<>]*:[^\s/@\"'<>]*@")


@dataclass(frozen=True)
class StoredObject:
    """One version of an object.

    ``etag`` is "" if the store has none; then ``modified_ns`` identifies the version, else it is 0.
    ``generation`` is GCS's version for conditional writes. ``written`` is the time of writing in
    seconds since the epoch by the store's clock, or 0 if unknown. ``ours`` is False in the result
    of a write that found the same bytes from another run.
    """

    url: str
    size: int
    etag: str
    modified_ns: int
    generation: str = field(default="", compare=False)
    written: float = field(default=0.0, compare=False)
    ours: bool = field(default=True, compare=False)

    def has_same_content(self, other: StoredObject) -> bool:
        """Whether both have the same size and ETag, or time if there are no ETags."""
        if self.size != other.size or bool(self.etag) != bool(other.etag):
            return False
        return self.etag == other.etag if self.etag else self.modified_ns == other.modified_ns


# What a write may replace: anything, nothing, or one version only.
PutMode = Literal["overwrite", "create"] | StoredObject


class Location(NamedTuple):
    """The place of an object: ``root`` is the bucket, container or host; ``key`` its name there.

    ``kind`` is s3, gs, az, http, or "" for fsspec; then ``root`` is "" and ``key`` the URL.
    """

    kind: str
    root: str
    key: str


def is_url(text: str) -> bool:
    """Whether a path is the URL of an object; ``hf://NAME`` is a dataset, not an object."""
    return "://" in text and _URL.match(text) is not None and not _HUB_DATASET.match(text)


def hub_repository(url: str) -> str:
    """The repository OWNER/NAME of datasets on the hub that has an object; "" if none has."""
    match = _HUB_OBJECT.match(url)
    return match[1] if match else ""


def shown(url: str) -> str:
    """A URL without secrets: without a password, and without the query of a signed URL."""
    scheme = url.partition("://")[0].lower()
    text = _PASSWORD.sub(r"\1", url)
    if _KINDS.get(scheme) == "http":
        text = re.sub(r"://[^/@]*@", "://", text).partition("#")[0].partition("?")[0]
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def scrubbed(text: str) -> str:
    """The message of a library on one line, without secrets in its URLs."""
    line = " ".join(text.partition("\n\nDebug source:")[0].split())
    return _PASSWORD.sub(r"\1", _QUERY.sub(r"\1", line))


def place_of(url: str) -> Location:
    """The place in a URL. InputError if it has no bucket, container or host, or is a chain.

    In an fsspec chain, ``a::b``, the content of b decides what is opened, even code.
    """
    scheme, _, rest = url.partition("://")
    kind = _KINDS.get(scheme.lower(), "")
    if not kind and "::" in url:
        raise InputError(
            f"{shown(url)}: chains of file systems are not supported: name the object itself"
        )
    if not kind:
        return Location("", "", url)
    if kind == "http":
        parts = urlsplit(url)
        query = f"?{parts.query}" if parts.query else ""
        root, key = f"{parts.scheme}://{parts.netloc}{query}", unquote(parts.path).lstrip("/")
    else:
        root, _, key = rest.partition("/")
        key = key.lstrip("/")  # as obstore has it
    if not (parts.netloc if kind == "http" else root):
        what = {"s3": "bucket", "gs": "bucket", "az": "container"}.get(kind, "host")
        raise InputError(f"{shown(url)}: the URL names no {what}: {scheme}://{what.upper()}/...")
    return Location(kind, root, key)


def object_of(url: str) -> Location:
    """The place of an object, equal for all of its URLs; for a path, its own place."""
    place = place_of(url)
    if place.kind != "az":
        return place
    container, account = azure_names(place.root)
    account = account or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    return place._replace(root=f"{container}@{account}")


def azure_names(root: str) -> tuple[str, str]:
    """The container and account of an az or abfs URL; "" for one that the environment sets."""
    container, at, host = root.partition("@")
    if at and _ACCOUNT_HOST.fullmatch(host):
        return container, host.partition(".")[0]
    return container, ""


def url_of(like: str, key: str) -> str:
    """The URL of ``key`` in the bucket or container of the URL ``like``."""
    scheme, _, rest = like.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}/{key}"


def etag_of_parts(etags: Sequence[str]) -> str:
    """The ETag of an object that was made from parts with these ETags; "-" if they are no MD5."""
    try:
        digests = b"".join(bytes.fromhex(etag.strip('"')) for etag in etags)
    except ValueError:
        return "-"
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(etags)}"


def matches(current: StoredObject | None, mode: PutMode) -> bool:
    """Whether ``mode`` allows a write in place of ``current``."""
    if current is None or isinstance(mode, str):
        return mode == "overwrite" or (current is None and mode == "create")
    return current.has_same_content(mode)


# Settings of all kinds of stores, from the environment.

CERTIFICATES = ("AWS_CA_BUNDLE", "SSL_CERT_FILE")


def certificates() -> str | None:
    """The path of a private server's certificate, or None if the environment names none."""
    return next(filter(None, map(os.environ.get, CERTIFICATES)), None)


def is_set(name: str) -> bool:
    """Whether a variable is set to one of the words that obstore takes for yes."""
    return os.environ.get(name, "").lower() in ("1", "true", "on", "yes", "y")


def patience_seconds() -> float:
    """How long a store may take to answer, in seconds: TOKPACK_STORE_TIMEOUT, or 30."""
    text = os.environ.get("TOKPACK_STORE_TIMEOUT", "") or "30"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise UsageError(f"TOKPACK_STORE_TIMEOUT is {text!r}, not a number of seconds")
    return seconds


# Ranges of objects and files, of which new objects are made.

PART_BYTES = 16 << 20  # of an upload
_MOST_PARTS = 9000
_CHUNK = 4 << 20


def part_bytes(size: int) -> int:
    """The size of the parts of an upload: S3 and others allow 10,000 parts."""
    return max(PART_BYTES, -(-size // _MOST_PARTS))


class LocalFile(NamedTuple):
    """A file and its version."""

    path: str
    identity: Identity

    def check_same(self) -> None:
        """Raise InputError if another file is at the path, or if this one has been written to."""
        if identity(self.path) != self.identity:
            raise InputError(f"{self.path}: was replaced while it was read: run again")


class Range(NamedTuple):
    """Bytes [begin, end) of an object, or of a file."""

    source: StoredObject | LocalFile
    begin: int
    end: int

    @classmethod
    def of_file(cls, path: str) -> Range:
        """A whole file, in its current version. FileNotFoundError."""
        path = os.path.abspath(path)
        version = Identity.of(os.stat(path))
        return cls(LocalFile(path, version), 0, version.size)

    @property
    def size(self) -> int:
        """The number of bytes in the range."""
        return self.end - self.begin


def file_chunks(path: str, begin: int, end: int) -> Iterator[bytes]:
    """Bytes [begin, end) of a file, a few MiB at a time. InputError if it is too short."""
    with cannot_read(path), open_regular(path) as file:
        file.seek(begin)
        while begin < end:
            chunk = file.read(min(_CHUNK, end - begin))
            if not chunk:
                raise InputError(f"{path}: ends at byte {begin}: it was cut off meanwhile")
            begin += len(chunk)
            yield chunk

"""Files that become objects: in parts where they are large, whole or not at all.

On S3 the parts go through boto3, which names an upload that is under way, so that one that was
abandoned can be aborted later; obstore does not. Other stores forget parts of what was never
completed.
"""

from __future__ import annotations

import base64
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from tokpack.errors import OutputError, StoreError
from tokpack.files.durable import identity
from tokpack.stores import access, objects, s3
from tokpack.stores.objects import matches
from tokpack.stores.ranges import LocalFile, Range
from tokpack.stores.s3 import GoneError, said
from tokpack.stores.trouble import ChangedError
from tokpack.stores.urls import StoredObject, place_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tokpack.stores.objects import PutMode

T = TypeVar("T")

_AT_ONCE = 4
_TRIES = 8


def send(
    path: str,
    url: str,
    mode: PutMode = "overwrite",
    begun: Callable[[str], None] = lambda upload: None,
) -> StoredObject:
    """Make an object of a file; what ``mode`` allows is replaced when the new one is complete.

    ``begun`` is told the name of a multipart upload, which ``abort`` takes. Raises OutputError,
    TakenError.
    """
    found = identity(os.path.abspath(path))
    assert found
    with cannot_write(url):
        if place_of(url).kind == "s3" and found.size > objects.PART_BYTES:
            return _send_parts(path, url, found.size, mode, begun)
        whole = Range(LocalFile(os.path.abspath(path), found), 0, found.size)
        return taken(url, access.join(url, [whole], mode))


def write(content: bytes, url: str, mode: PutMode = "overwrite") -> StoredObject:
    """Make an object, in place of what ``mode`` allows. Raises OutputError, TakenError."""
    with cannot_write(url):
        return taken(url, access.put(url, content, mode))


def create(content: bytes, url: str) -> bool:
    """Make an object that was not there. False where one of other content is. OutputError."""
    with cannot_write(url):
        return access.put(url, content, "create") is not None


def check_writable(url: str) -> None:
    """Write an object without bytes where there is none, and remove it. Raises OutputError."""
    with cannot_write(url):
        made = access.put(url, b"", "create") or access.stat(url)
    if made and not made.size:  # else it is another's, and the store has answered
        with suppress(StoreError):  # without the right to delete, the empty object stays
            access.delete(url, made)


def remove(url: str, version: StoredObject | None = None) -> None:
    """Remove an object, which may be gone; with ``version`` only that one. Raises OutputError,
    TakenError.
    """
    with cannot_write(url):
        found = access.stat(url)
        if found is None:
            return
        if version and not found.same_as(version):
            raise TakenError(url)
        if not access.delete(url, version):
            raise TakenError(url)


class TakenError(OutputError):
    """What is there is not what was looked at, or written."""

    def __init__(self, url: str, now: str = "exists") -> None:
        super().__init__(
            f"{shown(url)} {now}: choose another output, or run again when nothing else writes to "
            "it: another run has done so meanwhile"
        )


def taken(url: str, written: StoredObject | None) -> StoredObject:
    if written is None:
        raise TakenError(url)
    return written


def abort(url: str, upload: str) -> None:
    """Give up a multipart upload, which may be complete or gone. Raises OutputError."""
    place = place_of(url)
    with cannot_write(url), suppress(GoneError), said(url):
        s3.client(at_once=1, tries=_TRIES).abort_multipart_upload(
            Bucket=place.root, Key=place.key, UploadId=upload
        )


def _send_parts(
    path: str, url: str, size: int, mode: PutMode, begun: Callable[[str], None]
) -> StoredObject:
    length = objects.part_bytes(size)

    def part(client: Any, named: dict[str, Any], begin: int) -> str:
        with open(path, "rb") as file:
            file.seek(begin)
            return send_part(client, named, file.read(length), url)

    etag = in_parts(url, range(0, size, length), part, mode, begun=begun)
    return StoredObject(url, size, etag, 0)


def in_parts(
    url: str,
    parts: Sequence[T],
    make: Callable[[Any, dict[str, Any], T], str],
    mode: PutMode,
    *,
    begun: Callable[[str], None] = lambda upload: None,
    at_once: int = _AT_ONCE,
) -> str:
    """Make an object of S3 of parts, several ``at_once``; gives its ETag.

    ``make`` gets a client, the arguments that name a part, and what the part is; it gives its ETag.
    The upload is aborted after an error. Raises what ``make`` raises, StoreError, TakenError.
    """
    place = place_of(url)
    client = s3.client(at_once=at_once, tries=_TRIES)
    where = {"Bucket": place.root, "Key": place.key}
    upload = _begun(client, where, url)

    def part(number: int, what: T) -> dict[str, Any]:
        named = {**where, "UploadId": upload, "PartNumber": number}
        return {"PartNumber": number, "ETag": make(client, named, what)}

    pool = ThreadPoolExecutor(at_once)
    try:
        begun(upload)
        made = list(pool.map(part, range(1, len(parts) + 1), parts))
        if mode != "overwrite" and not matches(access.stat(url), mode):
            raise TakenError(url)  # some stores do not know of conditions
        return _completed(client, {**where, "UploadId": upload}, made, url, mode)
    except BaseException as error:
        pool.shutdown(cancel_futures=True)
        with suppress(OutputError):
            abort(url, upload)
        if isinstance(error, GoneError):
            raise TakenError(url) from error
        raise
    finally:
        pool.shutdown()


def _begun(client: Any, where: dict[str, str], url: str) -> str:
    """The name of a new upload; no other one, of which the answer was lost, stays."""
    before = _uploads(client, where)
    upload, tries = "", 1
    try:
        with said(url):
            created = client.create_multipart_upload(**where)
        tries += created["ResponseMetadata"].get("RetryAttempts", 0)
        upload = s3.value_of(created, "UploadId", url)
        return upload
    finally:
        if before is not None and (tries > 1 or not upload):
            for lost in (_uploads(client, where) or set()) - before - {upload}:
                with suppress(OutputError):
                    abort(url, lost)


def _uploads(client: Any, where: dict[str, str]) -> set[str] | None:
    """The uploads of an object that are under way; None where that cannot be told."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        listed = client.list_multipart_uploads(Bucket=where["Bucket"], Prefix=where["Key"])
    except (BotoCoreError, ClientError):
        return None
    return {one["UploadId"] for one in listed.get("Uploads", ()) if one["Key"] == where["Key"]}


def _completed(
    client: Any, named: dict[str, str], parts: list[dict[str, Any]], url: str, mode: PutMode
) -> str:
    """Complete an upload; the ETag of the object."""
    whole = {"MultipartUpload": {"Parts": parts}, **_condition(mode)}
    try:
        with said(url):
            answer = client.complete_multipart_upload(**named, **whole)
        return s3.value_of(answer, "ETag", url)
    except (GoneError, ChangedError):
        # The answer to the first try may be lost: what is there says whether it was done.
        found = access.stat(url)
        if found is None or found.etag.strip('"') != _etag_of([one["ETag"] for one in parts]):
            raise TakenError(url) from None
        return found.etag


def _condition(mode: PutMode) -> dict[str, str]:
    if isinstance(mode, StoredObject):
        return {"IfMatch": mode.etag}
    return {"IfNoneMatch": "*"} if mode == "create" else {}


def send_part(client: Any, named: dict[str, Any], body: bytes, url: str) -> str:
    """Send one part of an upload; its ETag."""
    digest = hashlib.md5(body, usedforsecurity=False).digest()
    with said(url):
        answer = client.upload_part(
            **named, Body=body, ContentMD5=base64.b64encode(digest).decode()
        )
    access.count_request(len(body))
    return s3.value_of(answer, "ETag", url)


def _etag_of(parts: Sequence[str]) -> str:
    """The ETag of an object that was made of parts with these; "" where they are no MD5."""
    try:
        digests = b"".join(bytes.fromhex(etag.strip('"')) for etag in parts)
    except ValueError:
        return ""
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(parts)}"


@contextmanager
def cannot_write(url: str) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise OutputError(f"cannot write {error}") from error

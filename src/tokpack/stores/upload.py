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
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tokpack.errors import OutputError, StoreError, UsageError
from tokpack.stores import access, objects
from tokpack.stores.trouble import changed, explained
from tokpack.stores.urls import place_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")

_AT_ONCE = 4
_TRIES = 8
_LONG_AGO = timedelta(minutes=5)  # for what was tried again


def send(path: str, url: str, begun: Callable[[str], None] = lambda upload: None) -> None:
    """Make an object of a file; any that is there is replaced when the new one is complete.

    ``begun`` is told the name of a multipart upload, which ``abort`` takes. Raises OutputError.
    """
    size = os.path.getsize(path)
    with cannot_write(url):
        if place_of(url).kind != "s3":
            access.put(url, Path(os.path.abspath(path)))
        elif size > objects.PART_BYTES:
            _send_parts(path, url, size, begun)
        else:
            access.put(url, Path(path).read_bytes())
    check_size(url, size)


def check_size(url: str, size: int) -> None:
    """OutputError where an object that was just written has another size."""
    with cannot_write(url):
        found = access.stat(url)
    if found is None or found.size != size:
        raise OutputError(
            f"{shown(url)} has {found.size if found else 'no'} bytes instead of {size}: does "
            "another run write to it?"
        )


def write(content: bytes, url: str) -> None:
    """Make an object, in place of any that is there. Raises OutputError."""
    with cannot_write(url):
        access.put(url, content)


def create(content: bytes, url: str) -> bool:
    """Make an object that was not there. False where one of other content is. OutputError."""
    with cannot_write(url):
        return access.put(url, content, new=True)


def check_writable(url: str) -> None:
    """Write an object without bytes, and remove it. Raises OutputError."""
    with cannot_write(url):
        access.put(url, b"")
    with suppress(StoreError):  # without the right to delete, the empty object stays
        access.delete(url)


def remove(url: str) -> None:
    """Remove an object, which may be gone. Raises OutputError."""
    with cannot_write(url):
        if access.stat(url) is not None:
            access.delete(url)


def abort(url: str, upload: str) -> None:
    """Give up a multipart upload, which may be complete or gone. Raises OutputError."""
    place = place_of(url)
    with cannot_write(url), suppress(_GoneError), said(url):
        _client().abort_multipart_upload(Bucket=place.root, Key=place.key, UploadId=upload)


class _GoneError(Exception):
    """There is no such upload, or no longer."""


def _send_parts(path: str, url: str, size: int, begun: Callable[[str], None]) -> None:
    length = objects.part_bytes(size)

    def part(client: Any, named: dict[str, Any], begin: int) -> str:
        with open(path, "rb") as file:
            file.seek(begin)
            return send_part(client, named, file.read(length), url)

    in_parts(url, range(0, size, length), part, begun=begun)


def in_parts(
    url: str,
    parts: Sequence[T],
    make: Callable[[Any, dict[str, Any], T], str],
    *,
    begun: Callable[[str], None] = lambda upload: None,
    at_once: int = _AT_ONCE,
) -> None:
    """Make an object of S3 of parts, several ``at_once``; the upload is aborted after an error.

    ``make`` gets a client, the arguments that name a part, and what the part is; it gives its ETag.
    Raises what it raises, StoreError, OutputError.
    """
    place = place_of(url)
    client = _client(at_once)
    where = {"Bucket": place.root, "Key": place.key}
    with said(url):
        created = client.create_multipart_upload(**where)
    upload: str = created["UploadId"]
    begun(upload)
    if created["ResponseMetadata"].get("RetryAttempts"):
        _abort_twin(client, where, upload)

    def part(number: int, what: T) -> dict[str, Any]:
        named = {**where, "UploadId": upload, "PartNumber": number}
        return {"PartNumber": number, "ETag": make(client, named, what)}

    pool = ThreadPoolExecutor(at_once)
    try:
        made = list(pool.map(part, range(1, len(parts) + 1), parts))
        try:
            with said(url):
                client.complete_multipart_upload(
                    **where, UploadId=upload, MultipartUpload={"Parts": made}
                )
        except _GoneError:
            # The answer to the first try was lost: what is there says whether it was done.
            found = access.stat(url)
            if found is None or found.etag.strip('"') != _etag_of([one["ETag"] for one in made]):
                raise OutputError(
                    f"{shown(url)}: the upload is gone: does another run write to it?"
                ) from None
    except BaseException:
        pool.shutdown(cancel_futures=True)
        with suppress(OutputError):
            abort(url, upload)
        raise
    pool.shutdown()


def send_part(client: Any, named: dict[str, Any], body: bytes, url: str) -> str:
    """Send one part of an upload; its ETag."""
    digest = hashlib.md5(body, usedforsecurity=False).digest()
    with said(url):
        answer = client.upload_part(
            **named, Body=body, ContentMD5=base64.b64encode(digest).decode()
        )
    access.count_request(len(body))
    etag: str = answer["ETag"]
    return etag


def _etag_of(parts: Sequence[str]) -> str:
    """The ETag of an object that was made of parts with these; "" where they are no MD5."""
    try:
        digests = b"".join(bytes.fromhex(etag.strip('"')) for etag in parts)
    except ValueError:
        return ""
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(parts)}"


def _abort_twin(client: Any, where: dict[str, str], own: str) -> None:
    """Abort an upload that was begun just before ``own``, with an answer that was lost."""
    from botocore.exceptions import BotoCoreError, ClientError

    with suppress(BotoCoreError, ClientError):  # who may not list them has to leave it
        listed = client.list_multipart_uploads(Bucket=where["Bucket"], Prefix=where["Key"])
        found = {one["UploadId"]: one for one in listed.get("Uploads", ())}
        for upload, one in found.items():
            age = found[own]["Initiated"] - one["Initiated"] if own in found else _LONG_AGO
            if upload != own and one["Key"] == where["Key"] and timedelta(0) <= age < _LONG_AGO:
                client.abort_multipart_upload(**where, UploadId=upload)


def _client(at_once: int = _AT_ONCE) -> Any:
    """A client of boto3 that sees the same settings as obstore."""
    try:
        import boto3.session
        from botocore import UNSIGNED
        from botocore.config import Config
    except ImportError as error:
        raise UsageError("to write to s3 needs a package: pip install 'tokpack[s3]'") from error
    endpoint = next(
        (
            os.environ[name]
            for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
            if os.environ.get(name)
        ),
        None,
    )
    patience = objects.patience_seconds()
    config = Config(
        connect_timeout=min(patience, 5.0),
        read_timeout=patience,
        retries={"total_max_attempts": _TRIES, "mode": "standard"},
        max_pool_connections=at_once,
        # What stores other than Amazon's do not know is not asked for; parts carry an MD5.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path"} if endpoint else None,
        signature_version=UNSIGNED if objects.is_set("AWS_SKIP_SIGNATURE") else None,
    )
    session = boto3.session.Session(region_name=os.environ.get("AWS_REGION"))
    client = session.client(
        "s3",
        endpoint_url=endpoint,
        region_name=session.region_name or "us-east-1",
        config=config,
        verify=objects.certificates(),
    )
    if payer := os.environ.get("AWS_REQUEST_PAYER"):
        client.meta.events.register(
            "before-sign.s3",
            lambda request, **_: request.headers.add_header("x-amz-request-payer", payer),
        )
    return client


@contextmanager
def said(url: str) -> Iterator[None]:
    """Failures of boto3 in our words."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in ("NoSuchUpload", "404"):
            raise _GoneError from error
        if code in ("PreconditionFailed", "NoSuchKey"):  # of an object that is copied from
            raise changed(url) from error
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        raise StoreError(f"{shown(url)}: {explained(status, code, str(error), url)}") from error
    except BotoCoreError as error:
        raise StoreError(f"{shown(url)}: {explained(0, '', str(error), url)}") from error


@contextmanager
def cannot_write(url: str) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise OutputError(f"cannot write {error}") from error

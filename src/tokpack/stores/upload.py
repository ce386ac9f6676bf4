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
from typing import TYPE_CHECKING, Any

from tokpack.errors import OutputError, StoreError, UsageError
from tokpack.stores import access, objects
from tokpack.stores.trouble import explained
from tokpack.stores.urls import place_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_AT_ONCE = 4
_TRIES = 8
_LONG_AGO = timedelta(minutes=5)  # for what was tried again


def send(path: str, url: str, begun: Callable[[str], None]) -> None:
    """Make an object of a file; any that is there is replaced when the new one is complete.

    ``begun`` is told the name of a multipart upload, which ``abort`` takes. Raises OutputError.
    """
    size = os.path.getsize(path)
    with _cannot_write(url):
        if place_of(url).kind != "s3":
            access.put(url, Path(os.path.abspath(path)))
        elif size > objects.PART_BYTES:
            _send_parts(path, url, size, begun)
        else:
            access.put(url, Path(path).read_bytes())
        found = access.stat(url)
    if found is None or found.size != size:
        raise OutputError(
            f"{shown(url)} has {found.size if found else 'no'} bytes instead of {size}: does "
            "another run write to it?"
        )


def write(content: bytes, url: str) -> None:
    """Make an object, in place of any that is there. Raises OutputError."""
    with _cannot_write(url):
        access.put(url, content)


def create(content: bytes, url: str) -> bool:
    """Make an object that was not there. False where one of other content is. OutputError."""
    with _cannot_write(url):
        return access.put(url, content, new=True)


def check_writable(url: str) -> None:
    """Write an object without bytes, and remove it. Raises OutputError."""
    with _cannot_write(url):
        access.put(url, b"")
    with suppress(StoreError):  # who may only write leaves it there
        access.delete(url)


def remove(url: str) -> None:
    """Remove an object, which may be gone. Raises OutputError."""
    with _cannot_write(url):
        if access.stat(url) is not None:
            access.delete(url)


def abort(url: str, upload: str) -> None:
    """Give up a multipart upload, which may be complete or gone. Raises OutputError."""
    place = place_of(url)
    with _cannot_write(url), suppress(_GoneError), _said(url):
        _client().abort_multipart_upload(Bucket=place.root, Key=place.key, UploadId=upload)


class _GoneError(Exception):
    """There is no such upload, or no longer."""


def _send_parts(path: str, url: str, size: int, begun: Callable[[str], None]) -> None:
    place = place_of(url)
    client = _client()
    where = {"Bucket": place.root, "Key": place.key}
    length = objects.part_bytes(size)
    with _said(url):
        created = client.create_multipart_upload(**where)
    upload: str = created["UploadId"]
    begun(upload)
    if created["ResponseMetadata"].get("RetryAttempts"):
        _abort_twin(client, where, upload)

    def part(number: int) -> tuple[dict[str, Any], bytes]:
        with open(path, "rb") as file:
            file.seek((number - 1) * length)
            body = file.read(length)
        digest = hashlib.md5(body, usedforsecurity=False).digest()
        with _said(url):
            answer = client.upload_part(
                **where,
                UploadId=upload,
                PartNumber=number,
                Body=body,
                ContentMD5=base64.b64encode(digest).decode(),
            )
        return {"PartNumber": number, "ETag": answer["ETag"]}, digest

    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        parts = list(pool.map(part, range(1, -(-size // length) + 1)))
        try:
            with _said(url):
                client.complete_multipart_upload(
                    **where, UploadId=upload, MultipartUpload={"Parts": [p for p, _ in parts]}
                )
        except _GoneError:
            # The answer to the first try was lost: what is there says whether it was done.
            etag = hashlib.md5(b"".join(d for _, d in parts), usedforsecurity=False).hexdigest()
            found = access.stat(url)
            if found is None or found.etag.strip('"') != f"{etag}-{len(parts)}":
                raise OutputError(
                    f"{shown(url)}: the upload is gone: does another run write to it?"
                ) from None
    except BaseException:
        pool.shutdown(cancel_futures=True)
        with suppress(OutputError):
            abort(url, upload)
        raise
    pool.shutdown()


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


def _client() -> Any:
    """A client of boto3 that sees the same settings as obstore."""
    try:
        import boto3.session
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
        max_pool_connections=_AT_ONCE,
        # What stores other than Amazon's do not know is not asked for; parts carry an MD5.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path"} if endpoint else None,
    )
    session = boto3.session.Session(region_name=os.environ.get("AWS_REGION"))
    return session.client(
        "s3",
        endpoint_url=endpoint,
        region_name=session.region_name or "us-east-1",
        config=config,
    )


@contextmanager
def _said(url: str) -> Iterator[None]:
    """Failures of boto3 in our words."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in ("NoSuchUpload", "404"):
            raise _GoneError from error
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        raise StoreError(f"{shown(url)}: {explained(status, code, str(error), url)}") from error
    except BotoCoreError as error:
        raise StoreError(f"{shown(url)}: {explained(0, '', str(error), url)}") from error


@contextmanager
def _cannot_write(url: str) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise OutputError(f"cannot write {error}") from error

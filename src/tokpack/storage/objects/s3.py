"""Requests to S3 through boto3, for what obstore cannot do.

These are listings that fail on an error instead of ending there, uploads that can be aborted later,
and deletes of one version. Requests are not retried here but in ``access``.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import threading
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from tokpack.errors import StoreError, UsageError
from tokpack.storage.objects import urls
from tokpack.storage.objects.trouble import endpoint, failure
from tokpack.storage.objects.urls import StoredObject, place_of, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.storage.objects.urls import PutMode, Range

_AT_ONCE = 32
_making = threading.Lock()


def _client() -> Any:
    """The client of this process. It takes long to make, so threads wait for the first one."""
    with _making:
        return _made_client()


@functools.cache
def _made_client() -> Any:
    """A client of boto3 with the same settings as obstore."""
    try:
        import boto3.session
        import botocore.session
        from botocore import UNSIGNED
        from botocore.config import Config
    except ImportError as error:
        raise UsageError("s3 needs a package: pip install 'tokpack[s3]'") from error
    address = endpoint("s3")[1] or None
    patience = urls.patience_seconds()
    config = Config(
        connect_timeout=min(patience, 5.0),
        read_timeout=patience,
        retries={"total_max_attempts": 1},
        max_pool_connections=_AT_ONCE,
        # Stores other than Amazon's may not support these checksums; each part has an MD5 instead.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path"} if address else None,
        signature_version=UNSIGNED if urls.is_set("AWS_SKIP_SIGNATURE") else None,
    )
    core = botocore.session.get_session()
    parsers = core.get_component("response_parser_factory")
    parsers.set_parser_defaults(timestamp_parser=_time)
    session = boto3.session.Session(region_name=os.environ.get("AWS_REGION"), botocore_session=core)
    client = session.client(
        "s3",
        endpoint_url=address,
        region_name=session.region_name or "us-east-1",
        config=config,
        verify=urls.certificates(),
    )
    if payer := os.environ.get("AWS_REQUEST_PAYER"):
        client.meta.events.register(
            "before-sign.s3",
            lambda request, **_: request.headers.add_header("x-amz-request-payer", payer),
        )
    return client


def _time(text: str) -> datetime:
    """A time in an answer. To parse them as botocore does takes most of the time of a listing."""
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):  # of another form than those of S3
        from botocore.utils import parse_timestamp

        return cast("datetime", parse_timestamp(text))


@contextmanager
def _translating(url: str) -> Iterator[None]:
    """Turn errors of boto3 into those of ``trouble``, as errors of obstore are."""
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    try:
        yield
    except exceptions.ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        raise failure(url, status, code, str(error)) from error
    except (exceptions.BotoCoreError, ResponseParserError) as error:
        broken = (exceptions.ConnectionError, exceptions.HTTPClientError, ResponseParserError)
        raise failure(url, 0, "", str(error), broken=isinstance(error, broken)) from error


def pages(url: str, begin: str = "", **more: str) -> Iterator[dict[str, Any]]:
    """The pages of a folder's listing, of names that begin with ``begin``.

    obstore takes an error with status 200 for the end.
    """
    place = place_of(url)
    prefix = f"{place.key.strip('/')}/".lstrip("/")
    with _translating(url):
        paginator = _client().get_paginator("list_objects_v2")
        yield from paginator.paginate(Bucket=place.root, Prefix=prefix + begin, **more)


def delete(url: str, version: StoredObject) -> None:
    """Remove an object. ChangedError if it is not ``version``."""
    with _translating(url):
        _client().delete_object(**_named(url), IfMatch=version.etag)


def begin(url: str) -> str:
    """The id of a new upload in parts."""
    with _translating(url):
        return _value(_client().create_multipart_upload(**_named(url)), "UploadId", url)


def part(url: str, upload: str, number: int, body: bytes) -> str:
    """Send a part. Returns its ETag. AbortedError if the upload does not exist any more."""
    digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
    with _translating(url):
        answer = _client().upload_part(
            **_named(url), UploadId=upload, PartNumber=number, Body=body, ContentMD5=digest
        )
    return _value(answer, "ETag", url)


def copy_part(url: str, upload: str, number: int, one: Range) -> str:
    """Let the store copy a part from an object, if that is unchanged. Returns the part's ETag."""
    source, begin, end = one
    assert isinstance(source, StoredObject)
    place = place_of(source.url)
    more: dict[str, Any] = {"CopySource": {"Bucket": place.root, "Key": place.key}}
    if source.etag:
        more["CopySourceIfMatch"] = source.etag
    if end - begin < source.size:
        more["CopySourceRange"] = f"bytes={begin}-{end - 1}"
    with _translating(source.url):
        answer = _client().upload_part_copy(
            **_named(url), UploadId=upload, PartNumber=number, **more
        )
    return _value(answer.get("CopyPartResult", {}), "ETag", source.url)


def complete(url: str, upload: str, etags: Sequence[str], mode: PutMode) -> str:
    """Make the object of an upload. Returns its ETag. ChangedError if ``mode`` forbids it."""
    parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
    condition = {"IfNoneMatch": "*"} if mode == "create" else {}
    if isinstance(mode, StoredObject):
        condition = {"IfMatch": mode.etag}
    with _translating(url):
        answer = _client().complete_multipart_upload(
            **_named(url), UploadId=upload, MultipartUpload={"Parts": parts}, **condition
        )
    return _value(answer, "ETag", url)


def abort(url: str, upload: str) -> None:
    """Abort an upload. AbortedError if it is complete, or does not exist any more."""
    with _translating(url):
        _client().abort_multipart_upload(**_named(url), UploadId=upload)


def _named(url: str) -> dict[str, str]:
    place = place_of(url)
    return {"Bucket": place.root, "Key": place.key}


def _value(answer: dict[str, Any], name: str, url: str) -> str:
    if not isinstance(value := answer.get(name), str):
        raise StoreError(f"{shown(url)}: the store's answer to an upload has no {name}")
    return value

"""What obstore does not do on S3, through boto3: uploads that have a name, conditional deletes."""

from __future__ import annotations

import base64
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from tokpack.errors import StoreError, UsageError
from tokpack.stores import settings
from tokpack.stores.trouble import (
    ChangedError,
    MissingError,
    TransientError,
    endpoint,
    failure,
)
from tokpack.stores.urls import StoredObject, place_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tokpack.stores.urls import PutMode

T = TypeVar("T")

TRIES = 8
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


def client(*, at_once: int, tries: int) -> Any:
    """A client of boto3 that sees the same settings as obstore."""
    try:
        import boto3.session
        from botocore import UNSIGNED
        from botocore.config import Config
    except ImportError as error:
        raise UsageError("s3 needs a package: pip install 'tokpack[s3]'") from error
    address = endpoint("s3")[1] or None
    patience = settings.patience_seconds()
    config = Config(
        connect_timeout=min(patience, 5.0),
        read_timeout=patience,
        retries={"total_max_attempts": tries, "mode": "standard"},
        max_pool_connections=at_once,
        # What stores other than Amazon's do not know is not asked for; parts carry an MD5.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path"} if address else None,
        signature_version=UNSIGNED if settings.is_set("AWS_SKIP_SIGNATURE") else None,
    )
    session = boto3.session.Session(region_name=os.environ.get("AWS_REGION"))
    client = session.client(
        "s3",
        endpoint_url=address,
        region_name=session.region_name or "us-east-1",
        config=config,
        verify=settings.certificates(),
    )

    def again(response: Any, attempts: int, **_: Any) -> float | None:
        """How long to wait before another try: boto3 does not try again after a conflict."""
        conflict = response is not None and response[0].status_code == 409 and attempts < tries
        return min(_FIRST_PAUSE * 2**attempts, _LONGEST_PAUSE) if conflict else None

    client.meta.events.register_first("needs-retry.s3", again)
    if payer := os.environ.get("AWS_REQUEST_PAYER"):
        client.meta.events.register(
            "before-sign.s3",
            lambda request, **_: request.headers.add_header("x-amz-request-payer", payer),
        )
    return client


@contextmanager
def translating(url: str) -> Iterator[None]:
    """Failures of boto3 as those of obstore: see ``trouble.failure``."""
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


class MultipartUpload:
    """An upload to S3 in parts, which becomes an object when it is complete; a context.

    ``begun`` is told the upload's name, by which ``abort`` finds it if this process is killed.
    It is aborted after an error. What raises, raises StoreError for what boto3 has tried in vain,
    or ChangedError, MissingError.
    """

    def __init__(self, url: str, at_once: int, begun: Callable[[str], None]) -> None:
        place = place_of(url)
        self.url, self._at_once = url, at_once
        self.client = client(at_once=at_once, tries=TRIES)
        self._object = {"Bucket": place.root, "Key": place.key}
        with lasting(url):
            created = self.client.create_multipart_upload(**self._object)
        self._name = {**self._object, "UploadId": _value(created, "UploadId", url)}
        self._begun = begun

    def __enter__(self) -> MultipartUpload:
        try:
            self._begun(self._name["UploadId"])
        except BaseException:
            self._abort()
            raise
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self._abort()

    def _abort(self) -> None:
        with suppress(StoreError):
            abort(self.url, self._name["UploadId"])

    def send(self, parts: Sequence[T], one: Callable[[MultipartUpload, int, T], str]) -> list[str]:
        """Let ``one`` send or copy each part, several at once; gives their ETags."""
        pool = ThreadPoolExecutor(self._at_once)
        try:
            return list(pool.map(lambda job: one(self, *job), enumerate(parts, 1)))
        finally:
            pool.shutdown(cancel_futures=True)

    def put(self, number: int, body: bytes) -> str:
        """Send a part; its ETag."""
        digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        try:
            with lasting(self.url):
                answer = self.client.upload_part(
                    **self._name, PartNumber=number, Body=body, ContentMD5=digest
                )
        except MissingError as error:  # somebody has aborted the upload
            raise ChangedError(self.url) from error
        return _value(answer, "ETag", self.url)

    def copy(self, number: int, source: StoredObject, begin: int, end: int) -> str:
        """Let the store copy a part from an object, if that is still the same; its ETag."""
        place = place_of(source.url)
        more: dict[str, Any] = {"CopySource": {"Bucket": place.root, "Key": place.key}}
        if source.etag:
            more["CopySourceIfMatch"] = source.etag
        if end - begin < source.size:
            more["CopySourceRange"] = f"bytes={begin}-{end - 1}"
        with lasting(source.url):
            answer = self.client.upload_part_copy(**self._name, PartNumber=number, **more)
        return _value(answer.get("CopyPartResult", {}), "ETag", source.url)

    def complete(
        self, etags: Sequence[str], mode: PutMode, stat: Callable[[str], StoredObject | None]
    ) -> str:
        """Make the object; its ETag. ChangedError where ``mode`` forbids that."""
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        condition = {"IfNoneMatch": "*"} if mode == "create" else {}
        if isinstance(mode, StoredObject):
            condition = {"IfMatch": mode.etag}
        try:
            with lasting(self.url):
                answer = self.client.complete_multipart_upload(
                    **self._name, MultipartUpload={"Parts": parts}, **condition
                )
            return _value(answer, "ETag", self.url)
        except (StoreError, MissingError, ChangedError) as error:
            # The answer to a try may be lost: what is there says whether it was done.
            with suppress(StoreError):
                written = stat(self.url)
                if written and written.etag.strip('"') == _etag_of(etags):
                    return written.etag
            if isinstance(error, MissingError):  # somebody has aborted the upload
                raise ChangedError(self.url) from error
            raise


def abort(url: str, upload: str) -> None:
    """Give up a multipart upload, which may be complete or gone. Raises StoreError."""
    place = place_of(url)
    with suppress(MissingError), lasting(url):
        client(at_once=1, tries=TRIES).abort_multipart_upload(
            Bucket=place.root, Key=place.key, UploadId=upload
        )


@contextmanager
def lasting(url: str) -> Iterator[None]:
    """As ``translating``, with StoreError where boto3 has tried often enough."""
    try:
        with translating(url):
            yield
    except TransientError as error:
        raise StoreError(f"{shown(url)}: {error}") from error


def _value(answer: dict[str, Any], name: str, url: str) -> str:
    if not isinstance(value := answer.get(name), str):
        raise StoreError(f"{shown(url)}: the store's answer to an upload has no {name}")
    return value


def _etag_of(parts: Sequence[str]) -> str:
    """The ETag of an object that was made of parts with these; "-" where they are no MD5."""
    try:
        digests = b"".join(bytes.fromhex(etag.strip('"')) for etag in parts)
    except ValueError:
        return "-"
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(parts)}"

"""What obstore does not do on S3, through boto3: uploads that have a name, conditional deletes."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tokpack.errors import StoreError, UsageError
from tokpack.stores import settings
from tokpack.stores.trouble import (
    PASSING,
    ChangedError,
    TransientError,
    explained,
    unanswered,
)
from tokpack.stores.urls import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


def client(*, at_once: int, tries: int) -> Any:
    """A client of boto3 that sees the same settings as obstore."""
    try:
        import boto3.session
        from botocore import UNSIGNED
        from botocore.config import Config
    except ImportError as error:
        raise UsageError("s3 needs a package: pip install 'tokpack[s3]'") from error
    endpoint = next(
        (
            os.environ[name]
            for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
            if os.environ.get(name)
        ),
        None,
    )
    patience = settings.patience_seconds()
    config = Config(
        connect_timeout=min(patience, 5.0),
        read_timeout=patience,
        retries={"total_max_attempts": tries, "mode": "standard"},
        max_pool_connections=at_once,
        # What stores other than Amazon's do not know is not asked for; parts carry an MD5.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path"} if endpoint else None,
        signature_version=UNSIGNED if settings.is_set("AWS_SKIP_SIGNATURE") else None,
    )
    session = boto3.session.Session(region_name=os.environ.get("AWS_REGION"))
    client = session.client(
        "s3",
        endpoint_url=endpoint,
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


class GoneError(Exception):
    """There is no such upload, or no longer."""


@contextmanager
def said(url: str, *, again: bool = False) -> Iterator[None]:
    """Failures of boto3 in our words: StoreError, ChangedError, GoneError.

    ``again``: TransientError for what may succeed the next time.
    """
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    try:
        yield
    except exceptions.ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in ("NoSuchUpload", "404"):
            raise GoneError from error
        if code in ("PreconditionFailed", "NoSuchKey"):
            raise ChangedError(url) from error
        if again and (status >= 500 or status in PASSING):
            raise TransientError(f"the store answers {status} {code}") from error
        text = f"{error} ({status} {code})"
        raise StoreError(f"{shown(url)}: {explained(status, code, text, url)}") from error
    except (exceptions.BotoCoreError, ResponseParserError) as error:
        broken = (exceptions.ConnectionError, exceptions.HTTPClientError, ResponseParserError)
        if again and isinstance(error, broken):
            raise unanswered(error, url) from error
        raise StoreError(f"{shown(url)}: {explained(0, '', str(error), url)}") from error


def value_of(answer: dict[str, Any], name: str, url: str) -> str:
    """A value that an answer has to have. StoreError where it has not."""
    if not isinstance(value := answer.get(name), str):
        raise StoreError(f"{shown(url)}: the store's answer to an upload has no {name}")
    return value

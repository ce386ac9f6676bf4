"""Errors of stores: what happened, in words, and the setting that is probably wrong."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tokpack.errors import OutputError, StoreError
from tokpack.storage.objects.urls import Location, place_of, scrubbed, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

_STATUS = re.compile(r"status code: (\d{3})([^:<]*)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
NO_BUCKET = "there is no bucket"
_NO_BUCKET_CODES = ("NoSuchBucket", "ContainerNotFound")
PASSING = (408, 409, 425, 429)  # 409: another request for the object was in progress
_MOST = 300
_CREDENTIALS = {
    "s3": "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or for a public bucket "
    "AWS_SKIP_SIGNATURE=true",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or for a public bucket GOOGLE_SKIP_SIGNATURE=true",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or "
    "for a public container AZURE_SKIP_SIGNATURE=true",
    "http": "the URL may have expired, or need a login",
    "": "the settings of its fsspec file system",
}
_ENDPOINT = {  # the first that is set counts; the second is suggested in messages
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_EXPIRED = ("ExpiredToken", "TokenRefreshRequired", "InvalidToken")
_NO_CONNECTION = (
    *("Connection refused", "tcp connect error", "dns error", "ConnectError"),
    "Could not connect",
)
_SLOW = ("TimedOut", "kind: Timeout", "timeout on endpoint")
_NO_CREDENTIALS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")


class TransientError(Exception):
    """A failure that may not occur again; the message is for people.

    ``silent``: there was no answer, as with a wrong setting. ``refused``: by the answer, nothing
    was done.
    """

    def __init__(self, text: str, *, silent: bool = False, refused: bool = False) -> None:
        super().__init__(text)
        self.silent, self.refused = silent, refused


class MissingError(Exception):
    """There is no such object; or no such bucket, or no store."""


class ChangedError(Exception):
    """The object is not in the version that the request named."""


class AbortedError(ChangedError):
    """The upload was aborted by somebody else."""


def changed(url: str) -> StoreError:
    return StoreError(
        f"{shown(url)} changed while it was read; run again when nothing writes to it"
    )


def not_found(url: str) -> StoreError:
    """The error for a 404 where no object was named: there is no bucket, or no store."""
    server, settings = _server(place_of(url))
    return StoreError(f"{shown(url)}: {server} answers 404 Not Found: {settings}")


def translated(error: Exception, url: str) -> Exception:
    """An error of obstore as one of those that ``failure`` returns."""
    kind, text = type(error).__name__, str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    number = int(status[1]) if status else 0
    if isinstance(error, FileNotFoundError):
        number = 404
    elif kind == "PreconditionError":
        number = 412
    reason = code[1] if code else status[2].strip() if status else ""
    return failure(url, number, reason, text, broken=kind == "GenericError" and "HTTP" in text)


def failure(url: str, number: int, code: str, text: str, *, broken: bool = False) -> Exception:
    """The error for a failed request: TransientError, MissingError, ChangedError or StoreError.

    ``number`` is the status of the answer, or 0 if there was none; then ``broken`` tells whether
    the connection failed. ``code`` is the store's own name of the error.
    """
    place = place_of(url)
    if number == 412 or code == "BlobAlreadyExists":  # this one comes with 409
        return ChangedError(url)
    if code == "NoSuchUpload":
        return AbortedError(url)
    if number == 404 and code not in _NO_BUCKET_CODES:
        return MissingError(url)
    if not any(host in text for host in _NO_CREDENTIALS):
        # 416: an answer broke off at its very end, and the library requested the (empty) rest.
        passes = (number >= 500 and number != 501) or number in PASSING
        if passes or (number == 416 and place.kind != "http"):
            return TransientError(
                f"the store answers {number} {code}", refused=number in (409, 429)
            )
        if broken and not number:
            return _no_answer(text, place)
    return StoreError(f"{shown(url)}: {_lasting(text, number, f'{number} {code}', place)}")


def _no_answer(text: str, place: Location) -> TransientError:
    """The error if no answer came: what failed, and which setting may be wrong."""
    server, settings = _server(place)
    if "certificate" in text:
        return TransientError(
            f"the certificate of {server} is not trusted: name it with SSL_CERT_FILE"
        )
    if any(sign in text for sign in _NO_CONNECTION):
        return TransientError(f"{server} does not answer: {settings}", silent=True)
    if any(sign in text for sign in _SLOW):
        return TransientError(f"{server} does not answer in time: {settings}", silent=True)
    return TransientError(f"{server} broke off the connection: {settings}")


def _lasting(text: str, number: int, answer: str, place: Location) -> str:
    """The message for an error that will not pass: what is wrong, and which setting."""
    settings = _CREDENTIALS[place.kind]
    reasons = (
        (
            any(host in text for host in _NO_CREDENTIALS),
            f"no credentials were found: set {settings}",
        ),
        ("Range request not supported" in text, "its server sends no ranges: download it first"),
        (
            "Account must be specified" in text,
            "set AZURE_STORAGE_ACCOUNT_NAME, or name the account in the URL: "
            "abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH",
        ),
        (
            any(code in answer for code in _NO_BUCKET_CODES),
            f"{NO_BUCKET} {place.root.rpartition('@')[2]!r}{_at(place)}",
        ),
        (
            "RequestTimeTooSkewed" in answer,
            f"the clock of this machine is not that of the store ({answer}): set it",
        ),
        (
            any(code in answer for code in _EXPIRED),
            f"the credentials have expired ({answer}): get new ones, and check {settings}",
        ),
        (
            # The answer to a HEAD request has no body with a reason.
            answer in ("400 Bad Request", "403 Forbidden")
            and place.kind == "s3"
            and bool(os.environ.get("AWS_SESSION_TOKEN")),
            f"permission denied ({answer}), or AWS_SESSION_TOKEN has expired: check {settings}",
        ),
        (
            number == 501,
            f"the store cannot do that ({answer}): it has no writes under a condition, it may be "
            "(If-None-Match, If-Match), which keep two runs apart",
        ),
        (number in (401, 403), f"permission denied ({answer}): check {settings}"),
        (
            number in (301, 307) or "without LOCATION" in text,
            "the bucket is in another region: set AWS_REGION to its region",
        ),
    )
    return next((reason for holds, reason in reasons if holds), scrubbed(text)[:_MOST])


def endpoint(kind: str) -> tuple[str, str]:
    """The variable that sets the endpoint of a kind of stores, and its value, "" if not set."""
    names = _ENDPOINT.get(kind, ())
    return next(((name, os.environ[name]) for name in names if os.environ.get(name)), ("", ""))


def _at(place: Location) -> str:
    name, value = endpoint(place.kind)
    return f" at {name}={shown(value)}" if name else ""


def _server(place: Location) -> tuple[str, str]:
    """A server in words, and which settings may be wrong."""
    names = _ENDPOINT.get(place.kind)
    if names:
        name = endpoint(place.kind)[0] or names[:2][-1]
        return f"the store{_at(place)}", f"check {name}, and HTTPS_PROXY"
    server = shown(place.root) if place.kind else "the store"
    return server, "check the address, and HTTPS_PROXY where there is a proxy"


@contextmanager
def cannot_write() -> Iterator[None]:
    """Raise OutputError if a store fails."""
    try:
        yield
    except StoreError as error:
        raise OutputError(f"cannot write {error}") from error

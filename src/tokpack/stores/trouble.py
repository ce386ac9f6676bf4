"""Errors of stores in words: what happened, and the setting that is probably wrong."""

from __future__ import annotations

import os
import re

from tokpack.errors import StoreError
from tokpack.stores.urls import Location, place_of, scrubbed, shown

_STATUS = re.compile(r"status code: (\d{3})([^:<]*)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_SILENT = "does not answer"
NO_BUCKET = "there is no bucket"
_NO_BUCKET_CODES = ("NoSuchBucket", "ContainerNotFound")
PASSING = (408, 409, 425, 429)  # 409: another request for the object was under way
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
_ENDPOINT = {
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
    """A failure that may not be there the next time; the message is for people.

    ``silent``: where nothing answered, which a wrong setting looks like.
    """

    def __init__(self, text: str, *, silent: bool = False) -> None:
        super().__init__(text)
        self.silent = silent


class MissingError(Exception):
    """There is no such object."""


class ChangedError(Exception):
    """The object is not the one that was found."""


def changed(url: str) -> StoreError:
    return StoreError(
        f"{shown(url)} changed while it was read; run again when nothing writes to it"
    )


def translated(error: Exception, url: str) -> Exception:
    """A failure of obstore as TransientError, MissingError, ChangedError, or StoreError."""
    text, place = str(error), place_of(url)
    code = _CODE.search(text)
    if isinstance(error, FileNotFoundError) and not (code and code[1] in _NO_BUCKET_CODES):
        return MissingError(url)
    status = _STATUS.search(text)
    number = int(status[1]) if status else 0
    exists = number == 412 or (code and code[1] == "BlobAlreadyExists")  # this one comes with 409
    if type(error).__name__ == "PreconditionError" or (number and exists):
        return ChangedError(url)
    said = f"{number} {code[1] if code else status[2].strip()}" if status else ""
    if not any(host in text for host in _NO_CREDENTIALS):
        why = _passing(type(error).__name__, text, number, said, place)
        if why:
            return TransientError(why, silent=_SILENT in why)
    return StoreError(f"{shown(url)}: {_lasting(text, number, said, place)}")


def explained(number: int, code: str, text: str, url: str) -> str:
    """A failure that is known by its status (0: there was no answer) and code, in words."""
    place = place_of(url)
    if not number:
        return f"{scrubbed(text)[:_MOST]} ({_settings_of_endpoint(place)})"
    return _lasting(text, number, f"{number} {code}", place)


def _passing(name: str, text: str, number: int, said: str, place: Location) -> str:
    """Why it may succeed the next time; "" where it will not."""
    if number:
        # 416: a body broke off at its very end, and the empty range behind it was asked for.
        passes = number >= 500 or number in PASSING or (number == 416 and place.kind != "http")
        return f"the store answers {said}" if passes else ""
    if name != "GenericError" or "HTTP error" not in text:
        return ""
    return _silence(text, place)


def unanswered(error: Exception, url: str) -> TransientError:
    """A failure of boto3 to which there was no answer, or half of one."""
    why = _silence(str(error), place_of(url))
    return TransientError(why, silent=_SILENT in why)


def _silence(text: str, place: Location) -> str:
    """What was wrong with the connection, and which setting may be."""
    if "certificate" in text:
        return f"the certificate of {_server(place)} is not trusted: name it with SSL_CERT_FILE"
    if any(sign in text for sign in _NO_CONNECTION):
        why = _SILENT
    else:
        slow = any(sign in text for sign in _SLOW)
        why = f"{_SILENT} in time" if slow else "broke off the connection"
    return f"{_server(place)} {why}: {_settings_of_endpoint(place)}"


def _lasting(text: str, number: int, said: str, place: Location) -> str:
    """What is wrong, and which setting says so."""
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
            any(code in said for code in _NO_BUCKET_CODES),
            f"{NO_BUCKET} {place.root.rpartition('@')[2]!r}{_at(place)}",
        ),
        (
            "RequestTimeTooSkewed" in said,
            f"the clock of this machine is not that of the store ({said}): set it",
        ),
        (
            any(code in said for code in _EXPIRED),
            f"the credentials have expired ({said}): get new ones, and check {settings}",
        ),
        (
            # The answer to a HEAD has no body that would say so.
            said in ("400 Bad Request", "403 Forbidden")
            and place.kind == "s3"
            and bool(os.environ.get("AWS_SESSION_TOKEN")),
            f"permission denied ({said}), or AWS_SESSION_TOKEN has expired: check {settings}",
        ),
        (number in (401, 403), f"permission denied ({said}): check {settings}"),
        (
            number in (301, 307) or "without LOCATION" in text,
            "the bucket is in another region: set AWS_REGION to its region",
        ),
    )
    return next((reason for holds, reason in reasons if holds), scrubbed(text)[:_MOST])


def _endpoint(place: Location) -> tuple[str, str]:
    """The variable that names the endpoint, and the endpoint; that is "" where none is set."""
    names = _ENDPOINT.get(place.kind, ())
    return next(((name, os.environ[name]) for name in names if os.environ.get(name)), ("", ""))


def _at(place: Location) -> str:
    name, value = _endpoint(place)
    return f" at {name}={shown(value)}" if name else ""


def _server(place: Location) -> str:
    if place.kind == "http":
        return shown(place.root)
    return f"the store{_at(place)}" if place.kind else "the store"


def _settings_of_endpoint(place: Location) -> str:
    names = _ENDPOINT.get(place.kind)
    if not names:
        return "check the address, and HTTPS_PROXY where there is a proxy"
    name = _endpoint(place)[0]
    return f"check {name or names[-1 if place.kind != 's3' else 1]}, and HTTPS_PROXY"

"""Objects of GCS that are composed of others, by the JSON interface; obstore has no call for it."""

from __future__ import annotations

import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from tokpack.errors import StoreError, UsageError
from tokpack.stores import access, settings
from tokpack.stores.trouble import explained
from tokpack.stores.urls import place_of, shown, url_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.stores.objects import PutMode
    from tokpack.stores.urls import StoredObject

MOST_SOURCES = 32  # of one call
_AT_ONCE = 16
_TRIES = 8
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_KEY_FILES = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")


class _Named(NamedTuple):
    key: str
    generation: str


def compose(url: str, sources: Sequence[StoredObject], mode: PutMode) -> None:
    """Make an object of others of its bucket, one after the other, each as it was found.

    Of more than 32 some are composed into objects beside it first, which go in the end. StoreError,
    UsageError.
    """
    place = place_of(url)
    session = _session()
    extra: list[str] = []

    def join(job: tuple[str, Sequence[_Named]], condition: str = "") -> _Named:
        key, named = job
        body = {
            "sourceObjects": [
                {"name": one.key, "objectPreconditions": {"ifGenerationMatch": one.generation}}
                for one in named
            ],
            "destination": {"contentType": "application/octet-stream"},
        }
        made = _call(session, "POST", url_of(url, key), f"/compose{condition}", json=body)
        return _Named(key, str(made.get("generation", "")))

    name = f"{place.key}.tokpack.{secrets.token_hex(8)}"  # of this run alone
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            named = list(pool.map(lambda one: _named(session, one), sources))
            access.check_same(*sources)  # a generation is that of what was found, or is gone
            while len(named) > MOST_SOURCES:
                groups = [
                    named[at : at + MOST_SOURCES] for at in range(0, len(named), MOST_SOURCES)
                ]
                keys = [f"{name}.{len(extra) + n}.tmp" for n in range(len(groups))]
                extra += keys
                named = list(pool.map(join, zip(keys, groups, strict=True)))
            join((place.key, named), _condition(mode))
        finally:
            with suppress(StoreError):
                list(pool.map(lambda key: access.delete(url_of(url, key)), extra))


def _condition(mode: PutMode) -> str:
    if mode == "overwrite":
        return ""
    return f"?ifGenerationMatch={0 if mode == 'create' else mode.generation}"


def _named(session: Any, found: StoredObject) -> _Named:
    """An object, with the generation that it has now."""
    generation = _call(session, "GET", found.url)["generation"]
    return _Named(place_of(found.url).key, str(generation))


def _call(session: Any, method: str, url: str, verb: str = "", **more: Any) -> Any:
    place = place_of(url)
    base = os.environ.get("GOOGLE_BASE_URL", "https://storage.googleapis.com").rstrip("/")
    address = f"{base}/storage/v1/b/{place.root}/o/{quote(place.key, safe='')}{verb}"
    patience = settings.patience_seconds()
    try:
        answer = session.request(method, address, timeout=(min(patience, 5.0), patience), **more)
    except Exception as error:  # of requests, of google.auth
        raise StoreError(f"{shown(url)}: {explained(0, '', str(error), url)}") from error
    access.count_request()
    if answer.status_code in (404, 412):
        raise StoreError(
            f"{shown(url)}: an object changed while it was read; run again when nothing writes to "
            "them"
        )
    if not answer.ok:
        status, text = answer.status_code, answer.text
        raise StoreError(f"{shown(url)}: {explained(status, answer.reason, text, url)}")
    return answer.json()


def _session() -> Any:
    """What speaks to GCS, with the credentials that obstore finds. UsageError, StoreError."""
    try:
        import google.auth
        import requests
        from google.auth.transport.requests import AuthorizedSession
        from requests.adapters import HTTPAdapter
        from urllib3 import Retry
    except ImportError as error:
        raise UsageError("to merge on gs needs a package: pip install 'tokpack[gcs]'") from error
    session: Any
    if settings.is_set("GOOGLE_SKIP_SIGNATURE"):
        session = requests.Session()
    else:
        path = next(filter(None, map(os.environ.get, _KEY_FILES)), None)
        try:
            if path:
                credentials, _ = google.auth.load_credentials_from_file(path, scopes=[_SCOPE])
            else:
                credentials, _ = google.auth.default(scopes=[_SCOPE])
        except google.auth.exceptions.GoogleAuthError as error:
            raise StoreError(f"gs: {error}: check GOOGLE_APPLICATION_CREDENTIALS") from error
        session = AuthorizedSession(credentials)
    again = Retry(
        _TRIES,
        backoff_factor=0.2,
        backoff_max=10,
        status_forcelist=[408, 429, 500, 502, 503, 504],
        allowed_methods=None,
        raise_on_status=False,
    )
    adapter = HTTPAdapter(max_retries=again, pool_maxsize=_AT_ONCE)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    if certificates := settings.certificates():
        session.verify = certificates
    return session

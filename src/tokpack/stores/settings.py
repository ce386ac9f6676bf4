"""Settings of all kinds of stores, from the environment."""

from __future__ import annotations

import os

from tokpack.errors import UsageError

CERTIFICATES = ("AWS_CA_BUNDLE", "SSL_CERT_FILE")


def certificates() -> str | None:
    """The file with the certificate of a private server, where the environment names one."""
    return next(filter(None, map(os.environ.get, CERTIFICATES)), None)


def is_set(name: str) -> bool:
    """Whether a variable says yes, in the words that obstore takes for it."""
    return os.environ.get(name, "").lower() in ("1", "true", "on", "yes", "y")


def patience_seconds() -> float:
    """How long a store may say nothing: TOKPACK_STORE_TIMEOUT, or 30 s."""
    text = os.environ.get("TOKPACK_STORE_TIMEOUT", "") or "30"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise UsageError(f"TOKPACK_STORE_TIMEOUT is {text!r}, not a number of seconds")
    return seconds

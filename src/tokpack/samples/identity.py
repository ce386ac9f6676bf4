"""What identifies samples: canonical JSON of all that decides them."""

from __future__ import annotations

import json
from typing import Any

import xxhash

from tokpack.indexed.fingerprint import FINGERPRINT_VERSION


def canonical_json(value: Any) -> bytes:
    """The one text of a value: keys in order, no spaces, ASCII."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode()


def versioned(digits: str) -> str:
    """A fingerprint as files and messages have it, which begins with its version."""
    return f"v{FINGERPRINT_VERSION}:{digits}"


def identify(value: Any) -> str:
    """The fingerprint of samples that ``value`` decides."""
    return versioned(xxhash.xxh3_128_hexdigest(canonical_json(value)))

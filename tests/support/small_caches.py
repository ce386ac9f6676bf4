"""Encoders with small caches in the tests' processes."""

from __future__ import annotations

from tokpack.tokenizers import check, native

CACHE_BYTES = 1 << 18


def use_small_caches() -> None:
    """Give the caches of words 256 KiB: the system takes 10 ms to clear what is usual.

    They forget words sooner then, which must not change any id.
    """
    native.CACHE_BYTES = check.CACHE_BYTES = CACHE_BYTES

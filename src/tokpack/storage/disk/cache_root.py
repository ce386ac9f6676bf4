"""The folder of the cache, for what can be downloaded or computed again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """The folder of the cache: $TOKPACK_CACHE, else ~/.cache/tokpack."""
    root = os.environ.get("TOKPACK_CACHE")
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokpack"
    return Path(root) if root else default

"""Where tokpack keeps what it can get again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """The folder: $TOKPACK_CACHE, else ~/.cache/tokpack."""
    root = os.environ.get("TOKPACK_CACHE")
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokpack"
    return Path(root) if root else default

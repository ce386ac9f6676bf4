"""What can be said of a dataset of which only the files are known."""

from __future__ import annotations

import os
from typing import Any


def plain_facts(name: str, documents: int, tokens: int, size: int) -> dict[str, Any]:
    """The manifest's keys for a dataset of which only the files are known."""
    source = {
        "name": os.path.basename(name),
        "size": size,
        "format": "dataset",
        "records": documents,
        "documents": documents,
        "tokens": tokens,
    }
    return {
        "tokenizer": {},
        "options": {},
        "inputs": [source],
        "records": documents,
        "documents": documents,
        "empty": 0,
        "rejected": 0,
        "text_bytes": 0,
    }

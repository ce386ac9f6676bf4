"""A short round of the long one that compares ids (``make torture``: every family)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from support.tiny_tokenizers import save, tiny
from torture import ids, texts

from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


def test_a_short_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal ids pass, and one id that is not equal is shown with all that repeats it."""
    monkeypatch.setattr(texts, "BYTES_OF_CORPUS", 1 << 18)
    subject = ids.beside_hugging_face(load_tokenizer(save(tmp_path, tiny())))
    assert ids.family("tiny", [subject], 5, 40_000, math.inf) >= 40_000
    assert (
        0 < ids.family("tiny", [subject], 5, 4_000_000, 0) < 4_000_000
    )  # a batch without any time
    library = subject.references["text"]["tokenizers"]
    subject.references = {"text": {"other": lambda documents: [*library(documents)[:-1], [7]]}}
    with pytest.raises(AssertionError, match=r"tiny, seed 5, batch 0, .*not the ids of other"):
        ids.family("tiny", [subject], 5, 4000, math.inf)

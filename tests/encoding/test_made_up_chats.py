"""A short round of datasets of made up conversations; torture.chat_datasets is the long one."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("transformers")

from torture.chat_datasets import check


def test_datasets_have_the_masks_of_their_conversations() -> None:
    counts = Counter(check(seed) for seed in range(500, 505))
    assert counts["no conversation"] < 3, counts

"""A short round of made up conversations and templates; torture.conversations is the long one."""

from __future__ import annotations

from collections import Counter

from torture.conversations import check

SEEDS = range(7000, 7025)


def test_what_an_assistant_says_is_trained_or_refused() -> None:
    counts = Counter(one for seed in SEEDS for one in check(seed))
    assert counts["equal"] > sum(counts.values()) / 3, counts

"""A short round of made up conversations, templates and records; the long ones are in torture."""

from __future__ import annotations

from collections import Counter

from torture import chat_forms, conversations

SEEDS = [*range(7000, 7010), 6311, 6419]


def test_what_an_assistant_says_is_trained_or_refused() -> None:
    counts = Counter(one for seed in SEEDS for one in conversations.check(seed))
    assert counts["equal"] > sum(counts.values()) / 3, counts


def test_every_form_of_records_is_what_its_messages_are() -> None:
    counts = Counter(one for seed in SEEDS for one in chat_forms.check(seed))
    forms = ("sharegpt", "alpaca", "completion", "pair", "whole pair", "hh-rlhf", "a dataset")
    assert all(counts[form] for form in forms), counts

"""The counts of records on their way to a dataset: names, words for people, and sums.

Progress and reports of a run have the fields of ChosenCounts, manifests have all; a dataset made of
others has their sums. To count something else, add a field to RecordCounts and count it in a batch
(``sources.base.DocumentBatch.counts``): pieces, manifests and sums follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def _count(words: str, rows: int) -> Any:
    """A field: its words for people, and +1 or -1, as each count adds or removes a row."""
    return field(default=0, metadata={"words": words, "rows": rows})


@dataclass(frozen=True, kw_only=True)
class ChosenCounts:
    """What ``where`` and ``map`` did to the rows of records.

    With conversations, ``mapped_out`` counts those that are not bad records but have no document,
    and ``mapped_in`` the documents of a record after its first, so that the sums still add up.
    """

    left_out: int = _count("left out by where", -1)
    mapped_out: int = _count("left out by map", -1)
    mapped_in: int = _count("added by map", +1)

    def chosen(self) -> list[str]:
        """The nonzero counts, as "3 left out by where"."""
        counted = ((getattr(self, one.name), one.metadata["words"]) for one in fields(ChosenCounts))
        return [f"{count:,} {words}" for count, words in counted if count]

    def ways_out(self) -> list[str]:
        """The ways in which rows were left out, as "left out by where"."""
        taken = (one for one in fields(ChosenCounts) if one.metadata["rows"] < 0)
        return [one.metadata["words"] for one in taken if getattr(self, one.name)]


@dataclass(frozen=True, kw_only=True)
class RecordCounts(ChosenCounts):
    """Other counts of records: ``truncated`` conversations were cut to a maximum length.

    ``nans`` records have NaN in a column that ``where`` compares.
    """

    truncated: int = 0
    nans: int = 0


@dataclass(frozen=True, kw_only=True)
class Counts(RecordCounts):
    """Findings in conversations, in the order of ``encoding.conversations.said``.

    What the template left out: ``messages_unwritten``, the thinking of ``thoughts_unwritten``
    trained answers, and the texts beside calls of ``contents_unwritten`` messages. Of the trained
    ``answers``, ``stops_untrained`` end without a trained end-of-turn token, and in
    ``headers_merged`` the first token also contains text before the trained span.
    ``frames_doubled`` documents have their BOS or EOD twice, from the template and from the
    request.
    """

    thoughts_unwritten: int = 0
    messages_unwritten: int = 0
    contents_unwritten: int = 0
    answers: int = 0
    stops_untrained: int = 0
    headers_merged: int = 0
    frames_doubled: int = 0


# The counts in every manifest (READ), and those that are left out if zero (FOUND).
READ = ("records", "documents", "sequences", "tokens", "empty", "rejected", "text_bytes")
CHOSEN, OF_RECORDS, FOUND = (
    tuple(one.name for one in fields(counts)) for counts in (ChosenCounts, RecordCounts, Counts)
)
OF_CONVERSATIONS = FOUND[len(OF_RECORDS) :]


def records_of(counts: Mapping[str, Any]) -> Any:
    """The number of records read, if each is counted once: integers, or arrays."""
    rows = counts["documents"] + counts["empty"] + counts["rejected"]
    for one in fields(ChosenCounts):
        rows = rows - one.metadata["rows"] * counts[one.name]
    return rows


def without_zeros(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts without the zeros of FOUND."""
    return {name: fact for name, fact in facts.items() if fact or name not in FOUND}


def added(counts: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of an input shared by several datasets, with one dataset's counts added."""
    names = (*READ, *FOUND, "special_tokens", "trained")
    return {**counts, **{key: counts.get(key, 0) + more[key] for key in names if key in more}}


def counts_last(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts with FOUND last, because a dataclass has the fields of its base first."""
    return dict(sorted(facts.items(), key=lambda item: item[0] in FOUND))

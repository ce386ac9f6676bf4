"""The counts of records on their way to a dataset: their names, their words, and how to sum them.

Progress and reports of a run have the fields of ChosenCounts, manifests all of them; a dataset made
of others has their sums. To count something more of records, add a field to RecordCounts and count
it in a batch (``sources.base.DocumentBatch.counts``): pieces, manifests and sums follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def _count(words: str, rows: int) -> Any:
    """A field: its words for people, and whether each adds a row to the records or takes one."""
    return field(default=0, metadata={"words": words, "rows": rows})


@dataclass(frozen=True, kw_only=True)
class ChosenCounts:
    """What ``where`` and ``map`` did to the rows of records.

    Of conversations ``mapped_out`` are those that have no document though they are no bad records,
    and ``mapped_in`` the documents of a record beside its first.
    """

    left_out: int = _count("left out by where", -1)
    mapped_out: int = _count("left out by map", -1)
    mapped_in: int = _count("added by map", +1)

    def chosen(self) -> list[str]:
        """What was done, each as "3 left out by where"."""
        counted = ((getattr(self, one.name), one.metadata["words"]) for one in fields(ChosenCounts))
        return [f"{count:,} {words}" for count, words in counted if count]

    def ways_out(self) -> list[str]:
        """How rows were left out, each as "left out by where"."""
        taken = (one for one in fields(ChosenCounts) if one.metadata["rows"] < 0)
        return [one.metadata["words"] for one in taken if getattr(self, one.name)]


@dataclass(frozen=True, kw_only=True)
class RecordCounts(ChosenCounts):
    """The counts of records besides bad ones: ``truncated`` conversations were cut to a length.

    ``nans`` records have NaN in a column that ``where`` compares.
    """

    truncated: int = 0
    nans: int = 0


@dataclass(frozen=True, kw_only=True)
class Counts(RecordCounts):
    """What was found in conversations, in the order of ``encoding.conversations.said``.

    The template leaves out ``messages_unwritten``, the thinking of ``thoughts_unwritten`` trained
    answers, and the texts of ``contents_unwritten`` messages beside their calls. Of ``answers``,
    the trained ones, ``stops_untrained`` end without a trained token that ends a turn; the first
    token of ``headers_merged`` trained spans is one with what is before them. ``frames_doubled``
    documents have their BOS or EOD twice, from the template and from the request.
    """

    thoughts_unwritten: int = 0
    messages_unwritten: int = 0
    contents_unwritten: int = 0
    answers: int = 0
    stops_untrained: int = 0
    headers_merged: int = 0
    frames_doubled: int = 0


# What every manifest says, and what it says where it is not zero.
READ = ("records", "documents", "sequences", "tokens", "empty", "rejected", "text_bytes")
CHOSEN, OF_RECORDS, FOUND = (
    tuple(one.name for one in fields(counts)) for counts in (ChosenCounts, RecordCounts, Counts)
)
OF_CONVERSATIONS = FOUND[len(OF_RECORDS) :]


def records_of(counts: Mapping[str, Any]) -> Any:
    """How many records must have been read, where each is counted once: integers, or arrays."""
    rows = counts["documents"] + counts["empty"] + counts["rejected"]
    for one in fields(ChosenCounts):
        rows = rows - one.metadata["rows"] * counts[one.name]
    return rows


def without_zeros(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts without those of FOUND that are zero."""
    return {name: fact for name, fact in facts.items() if fact or name not in FOUND}


def added(counts: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of an input that several datasets have parts of, after adding one dataset's
    counts.
    """
    names = (*READ, *FOUND, "special_tokens", "trained")
    return {**counts, **{key: counts.get(key, 0) + more[key] for key in names if key in more}}


def counts_last(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts with FOUND at their end: a dataclass has the fields of its base before its own."""
    return dict(sorted(facts.items(), key=lambda item: item[0] in FOUND))

"""Which columns of the records a run reads: those that it keeps, and those that it chooses by."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tokpack.encoding.conversations import pair_keys
from tokpack.encoding.kept import ALL, required

if TYPE_CHECKING:
    from tokpack.encoding.first_records import FirstInputs
    from tokpack.encoding.options import EncodeOptions
    from tokpack.encoding.plan import Plan


def with_columns(options: EncodeOptions, first: FirstInputs) -> EncodeOptions:
    """The options with the columns that ``keep="all"`` stands for in its place.

    UsageError where ``keep`` names a key that none of the first records has.
    """
    if options.map is None:  # which may make it
        keys = required(options.keep)
        if options.chat:  # of a pair each answer has its own
            answers = pair_keys(options.conversations, first.records)
            keys = list(dict.fromkeys(key.replace("{}", one) for key in keys for one in answers))
        first.check_columns("keep", keys)
    if ALL not in options.keep:
        return options
    from tokpack.encoding.keep_all import with_small_columns  # most runs need none of it

    return with_small_columns(options, first)


def as_planned(options: EncodeOptions, plan: Plan) -> EncodeOptions:
    """The options with the columns that a plan has in the place of ``keep="all"``."""
    if ALL not in options.keep:
        return options
    return replace(options, keep=tuple(plan.options.get("keep", ())), trace=True)


def settled(options: EncodeOptions, first: FirstInputs) -> dict[str, Any] | None:
    """The columns of the records, as ``settle`` has them; None where texts are enough."""
    if not options.where and options.map is None:
        return None
    from tokpack.encoding.columns import settle  # as above

    return settle(options, first)

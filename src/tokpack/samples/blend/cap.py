"""A blend none of whose datasets is seen too often: the others take over the rest."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from tokpack.errors import UsageError, option
from tokpack.samples.blend.plan import plan_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.samples.blend.plan import BlendPlan


def cap_epochs(plan: BlendPlan, most: float) -> BlendPlan:
    """The plan with weights by which training sees no dataset more than ``most`` times.

    What a dataset has less than was asked for, the others have more, in proportion to their shares.
    The new weights are shares of tokens, for this number of samples, which a longer run keeps:
    another cap is another plan. UsageError where all datasets together have too few tokens, and for
    a plan with a schedule.
    """
    train, spec = plan.train, plan.spec
    if not most > 0:
        raise UsageError(f"{option('cap_epochs')} is {most}, expected a number above 0")
    if train.changes:
        raise UsageError(
            f"{option('cap_epochs')} needs one set of weights, and this has a schedule"
        )
    usage, total = train.usage, train.samples
    room = [most * one.samples / one.epochs / total for one in usage]  # shares of all samples
    if math.fsum(room) < 1:
        raise UsageError(
            f"{option('cap_epochs')} is {most:g}, and {total:,} samples are "
            f"{total * spec.seq_length / train.tokens:.3g} epochs of all datasets: ask for at most "
            f"{int(total * math.fsum(room)):,} samples"
        )
    shares = iter(_shared([one.share for one in usage], room))
    missing = {portion.prefix for portion in train.missing}
    entries = []
    for entry in spec.datasets:
        is_missing = plan.opened[entry.prefix].path_prefix in missing
        entries.append(entry._replace(weight=1.0 if is_missing else next(shares)))
    weighted = replace(spec, datasets=tuple(entries), by="tokens", temperature=1.0)
    return plan_of(weighted.changed(samples=total))


def _shared(shares: Sequence[float], room: Sequence[float]) -> list[float]:
    """Shares that add up to 1, none above its room, those below it in their old proportions."""
    full: set[int] = set()
    while True:
        free = [number for number in range(len(shares)) if number not in full]
        left = 1 - math.fsum(room[number] for number in full)
        scale = left / math.fsum(shares[number] for number in free) if free else 0.0
        over = {number for number in free if shares[number] * scale > room[number]}
        if not over:
            return [
                room[number] if number in full else shares[number] * scale
                for number in range(len(shares))
            ]
        full |= over

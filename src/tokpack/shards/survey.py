"""How far a dataset in shards is: which are done, which are being made, which are left to make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tokpack.indexed import bin_path, idx_path, manifest_path
from tokpack.shards import storage
from tokpack.shards.report import reports

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tokpack.encoding.report import Report
    from tokpack.shards.plan import ShardPlan

ShardState = Literal["done", "running", "lost", "failed", "stopped", "open"]


@dataclass(frozen=True)
class Standing:
    """One shard: ``open`` where nobody has begun, ``lost`` where its maker has fallen silent."""

    number: int
    state: ShardState
    report: Report | None


def survey(plan: ShardPlan, prefix: str, before: Sequence[Standing] = ()) -> list[Standing]:
    """All shards of a plan, in order. A listing and the reports are all that is read. InputError.

    A shard is done when its files are there, the manifest among them, which is written last. The
    last report of a shard that ``before`` has as done is not read again.
    """
    there: dict[str, int] = {}
    for name in plan.whole(prefix).values():
        there |= storage.sizes(name)
    told = {one.number: one.report for one in before if _is_final(one)}
    unknown = [number for number in range(plan.shards) if number not in told]
    told |= dict(zip(unknown, reports(prefix, unknown), strict=True))
    return [
        Standing(number, _state(_is_done(plan, prefix, number, there), told[number]), told[number])
        for number in range(plan.shards)
    ]


def _is_final(one: Standing) -> bool:
    return one.state == "done" and one.report is not None and one.report.state == "done"


def _is_done(plan: ShardPlan, prefix: str, number: int, there: Mapping[str, int]) -> bool:
    return all(
        path(name) in there
        for name in plan.prefixes(prefix, number).values()
        for path in (manifest_path, bin_path, idx_path)
    )


def _state(done: bool, report: Report | None) -> ShardState:
    if done:
        return "done"
    if report is None:
        return "open"
    if report.state == "done":  # its files are gone
        return "open"
    return "lost" if report.is_lost else report.state


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as ``--shard`` and job arrays take them: 3,5-7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def missing(standings: Sequence[Standing]) -> list[int]:
    """The shards that somebody must make: neither done nor being made."""
    return [one.number for one in standings if one.state not in ("done", "running")]

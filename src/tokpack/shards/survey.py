"""How far a dataset in shards is: which are done, which are being made, which are left to make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tokpack.errors import FormatError
from tokpack.indexed import Manifest, bin_path, idx_path, manifest_path
from tokpack.shards import storage
from tokpack.shards.report import reports

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tokpack.encoding.report import Report
    from tokpack.shards.plan import ShardPlan

ShardState = Literal["done", "running", "lost", "failed", "stopped", "open", "other"]
_AT_ONCE = 64  # manifests


@dataclass(frozen=True)
class ShardStatus:
    """One shard: ``open`` where nobody has begun, ``lost`` where its maker has fallen silent,
    ``other`` where a dataset that is not of this plan has its name.
    """

    number: int
    state: ShardState
    report: Report | None


def survey(plan: ShardPlan, prefix: str, before: Sequence[ShardStatus] = ()) -> list[ShardStatus]:
    """All shards of a plan, in order. InputError.

    A shard is done when its files are there, the manifest among them, which is written last and
    names the plan. Of one that ``before`` has as done, neither manifest nor report is read again.
    """
    there: set[str] = set()
    for name in plan.whole(prefix).values():
        there |= storage.listed(name + "-").keys()
    told = {one.number: one.report for one in before if _is_final(one)}
    unknown = [number for number in range(plan.shards) if number not in told]
    told |= dict(zip(unknown, reports(prefix, unknown), strict=True))
    complete = {number for number in told if _is_complete(plan, prefix, number, there)}
    others = _others(plan, prefix, sorted(complete.intersection(unknown)))
    return [
        ShardStatus(
            number,
            "other" if number in others else _state(number in complete, told[number]),
            told[number],
        )
        for number in range(plan.shards)
    ]


def _is_final(one: ShardStatus) -> bool:
    return one.state == "done" and one.report is not None and one.report.state == "done"


def _others(plan: ShardPlan, prefix: str, numbers: Sequence[int]) -> set[int]:
    """The shards whose manifests are not of this plan."""
    wanted: list[tuple[str, dict[str, Any]]] = [
        (manifest_path(name), {"plan": plan.id, "shard": number, "key": key})
        for number in numbers
        for key, name in plan.prefixes(prefix, number).items()
    ]
    others = set()
    for begin in range(0, len(wanted), _AT_ONCE):
        some = wanted[begin : begin + _AT_ONCE]
        contents = storage.read_all([path for path, _ in some])
        for (path, options), content in zip(some, contents, strict=True):
            if not _has_options(path, content, options):
                others.add(options["shard"])
    return others


def _has_options(path: str, content: bytes | None, options: Mapping[str, Any]) -> bool:
    try:
        there = Manifest.from_json(content or b"", path).options
    except FormatError:
        return False
    return all(there.get(name) == value for name, value in options.items())


def _is_complete(plan: ShardPlan, prefix: str, number: int, there: set[str]) -> bool:
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


def missing(standings: Sequence[ShardStatus]) -> list[int]:
    """The shards that somebody must make: neither done nor being made."""
    return [one.number for one in standings if one.state not in ("done", "running")]

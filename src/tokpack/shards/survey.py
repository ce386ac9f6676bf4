"""How far a dataset in shards is: which are done, which are being made, which are left to make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tokpack.encoding.report import parse_report
from tokpack.indexed import bin_path, idx_path, manifest_path
from tokpack.shards.plan import plan_folder, report_path
from tokpack.stores.storage import small_files, storage_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokpack.encoding.report import Report
    from tokpack.shards.plan import ShardPlan

ShardState = Literal["done", "running", "lost", "failed", "stopped", "open"]


@dataclass(frozen=True)
class ShardStatus:
    """One shard: ``open`` where nobody has begun, ``lost`` where its maker has fallen silent."""

    number: int
    state: ShardState
    report: Report | None


def survey(plan: ShardPlan, prefix: str, before: Sequence[ShardStatus] = ()) -> list[ShardStatus]:
    """All shards of a plan, in order. InputError.

    A shard is done when its files are there, the manifest among them, which is written last; what
    is in it ``commit`` checks. A report is not read again that ``before`` has as the last one.
    """
    there: set[str] = set()
    for name in plan.whole(prefix).values():
        there |= storage_of(name).listed(name + "-").keys()
    ended = [one for one in before if one.report and one.report.state == "done"]
    reports = {one.number: one.report for one in ended}
    reports.update(_read_reports(prefix, [n for n in range(plan.shards) if n not in reports]))
    complete = (_is_complete(plan, prefix, number, there) for number in range(plan.shards))
    return [
        ShardStatus(number, _state(done, reports[number]), reports[number])
        for number, done in enumerate(complete)
    ]


def _read_reports(prefix: str, numbers: Sequence[int]) -> dict[int, Report | None]:
    """The reports of some shards; None where there is none that can be understood. InputError."""
    paths = [report_path(prefix, number) for number in numbers]
    there = storage_of(prefix).listed(plan_folder(prefix) + "/")
    contents = small_files(paths)
    return {
        number: parse_report(content, path, there[path].written if path in there else 0.0)
        for number, path, content in zip(numbers, paths, contents, strict=True)
    }


def _is_complete(plan: ShardPlan, prefix: str, number: int, there: set[str]) -> bool:
    return all(
        path(name) in there
        for name in plan.prefixes(prefix, number).values()
        for path in (manifest_path, bin_path, idx_path)
    )


def _state(done: bool, report: Report | None) -> ShardState:
    if done:
        return "done"
    if report is None or report.state == "done":  # then its files are gone
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


def missing(shards: Sequence[ShardStatus]) -> list[int]:
    """The shards that somebody must make: neither done nor being made."""
    return [one.number for one in shards if one.state not in ("done", "running")]

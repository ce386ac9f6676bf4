"""Pages of a dataset that is being made, by a run on this machine, or in shards."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tokpack.look.pages.site import pager, steps_around
from tokpack.look.plots import Html, html, none, section, table, tag, tiles
from tokpack.quantities import bytes_text, count_text, counted, percent, time_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokpack.encoding import Report, RunStatus
    from tokpack.look.pages.items import EncodeItem
    from tokpack.look.pages.site import Pages, Query
    from tokpack.shards import ShardPlan, ShardStatus

LISTED = 50  # shards or inputs of a page
REFRESH_SECONDS = 5
_ENDS = {
    "lost": "It no longer reports: it was killed, or its machine is gone. ",
    "stopped": "It was stopped. ",
    "failed": "It has failed. ",
}


def encode_page(site: Pages, number: int, item: EncodeItem, query: Query) -> Html:
    """The progress of a dataset; the page reloads itself during the run, unless told not to."""
    work, still = item.look(), query.number("still", 0)
    if work is None:
        parts, is_busy = [_made(site, item)], False
    elif isinstance(work, tuple):
        plan, statuses = work
        is_busy = any(one.state == "running" for one in statuses)
        parts = [_shards(site, number, plan, statuses, query)]
    else:
        is_busy = work.state in ("running", "starting")
        parts = [*_run(work), _inputs(site, number, work, query)]
    keep = {"from": query.text("from") or None}
    way = (
        site.link("reload this page automatically", number, "", **keep)
        if still
        else site.link("stop reloading this page", number, "", still=1, **keep)
    )
    return site.page(
        f"Making {item.name}",
        steps_around(way) if is_busy else "",
        *parts,
        item=number,
        refresh=REFRESH_SECONDS if is_busy and not still else None,
    )


def _made(site: Pages, item: EncodeItem) -> Html:
    """The page of a finished dataset: links to the result."""
    links = [tag("li", site.link(one.name, site.add(one))) for one in item.datasets()]
    if not links:
        return none("There is no run, plan or dataset with this name any more.")
    return html(tag("p", "It is finished."), tag("ul", *links))


def _run(run: RunStatus) -> Iterable[Html]:
    report, state = run.report, run.state
    if report is None or state == "starting":
        yield tag("p", "A run has started, and has not reported its progress yet.")
        return
    if state != "running":
        yield tag("p", _ENDS[state], run.advice.capitalize(), ".")
    if report.message:
        yield tag("p", report.message)
    if report.total:  # 0 for a stream
        yield _bar(report.done, report.total)
    yield tag("section", tiles(_facts(report, is_running=state == "running")))


def _facts(report: Report, *, is_running: bool) -> list[tuple[str, str]]:
    seconds, done, total = report.seconds, report.done, report.total
    rows = [
        ("by", f"process {report.pid} on {report.host}, {counted(report.workers, 'worker')}"),
        ("for", time_text(seconds)),
        ("heard of", f"{time_text(report.silent)} ago"),
        ("read", f"{bytes_text(done)} of {bytes_text(total)}, as stored" if total else "a stream"),
        ("text", bytes_text(report.text_bytes)),
        ("documents", f"{report.documents:,}"),
        ("tokens", f"{report.tokens:,}, {count_text(report.tokens / (seconds or 1))} per second"),
        ("bad records", f"{report.rejected:,}"),
        *([("records", ", ".join(report.chosen()))] if report.chosen() else []),
    ]
    if is_running:
        left = report.seconds_left
        rows[2:2] = [
            ("left", "not known" if left is None else f"about {time_text(left)}"),
            ("stage", ", slowest at: ".join(filter(None, (report.stage, report.bottleneck)))),
        ]
    return rows


def _bar(done: int, total: int) -> Html:
    done = min(done, total)
    bar = tag("progress", value=done, max=max(total, 1), aria_label="progress")
    return tag("p", bar, f" {percent(done, total)}", class_="making")


def _inputs(site: Pages, number: int, run: RunStatus, query: Query) -> Html:
    plan, first = run.plan, query.number("from", 0)
    if plan is None:
        return none("Its plan cannot be read.")
    rows = [
        [one.name, one.format, one.compression or "", bytes_text(one.size)]
        for one in plan.sources[first : first + LISTED]
    ]
    still = query.text("still") or None
    return section(
        counted(len(plan.sources), "input"),
        tag("p", f"tokenizer {plan.tokenizer.get('name')}, in {counted(len(plan.parts), 'part')}"),
        table(["input", "format", "packed", "stored"], rows),
        pager(first, LISTED, len(plan.sources), site.way(number, "", still=still)),
    )


def _shards(
    site: Pages, number: int, plan: ShardPlan, statuses: Sequence[ShardStatus], query: Query
) -> Html:
    first, states = query.number("from", 0), Counter(one.state for one in statuses)
    rows = [[f"{one.number:,}", one.state, *_told(one)] for one in statuses[first:][:LISTED]]
    head = ["shard", "", "read", "tokens", "for", "on", ""]
    still = query.text("still") or None
    words = ", ".join(f"{states[state]:,} {state}" for state in dict.fromkeys(states))
    if states["done"] == plan.shards:
        words += ": tokpack shards commit joins them into one dataset"
    return html(
        _bar(states["done"], plan.shards),
        tag("p", f"{counted(plan.shards, 'shard')} of {bytes_text(plan.size)} as stored: {words}"),
        tag("section", table(head, rows, "numbers narrow")),
        pager(first, LISTED, len(statuses), site.way(number, "", still=still)),
    )


def _told(one: ShardStatus) -> list[str]:
    report = one.report
    if report is None:
        return ["", count_text(one.tokens) if one.tokens else "", "", "", ""]
    return [
        percent(min(report.done, report.total), report.total) if report.total else "",
        count_text(report.tokens),
        time_text(report.seconds),
        report.host,
        report.message,
    ]

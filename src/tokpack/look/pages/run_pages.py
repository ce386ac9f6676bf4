"""The page of a training run: its steps as curves and as lines."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from itertools import count
from typing import TYPE_CHECKING, Any

from tokpack.display import shown
from tokpack.look.pages.site import choose, field
from tokpack.look.plots import (
    Curve,
    Html,
    curves_plot,
    html,
    key,
    none,
    number_text,
    section,
    table,
    tag,
    thinned,
    tiles,
)
from tokpack.quantities import count_text, time_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.look.pages.items import RunItem
    from tokpack.look.pages.site import Pages, Query
    from tokpack.look.plots import Point
    from tokpack.trainer.checkpoints.history import RunLog

LINES = 20  # of the log on a page
CURVES = {  # a number of a step: its title and its unit
    "loss": ("Loss", "nats per token"),
    "lr": ("Learning rate", ""),
    "grad_norm": ("Norm of the gradient", ""),
    "tokens_per_second": ("Throughput", "tokens per second"),
}
SMOOTHINGS = ("", "0.5", "0.8", "0.9", "0.95", "0.99", "0.998")
_MOST_POINTS = 1500  # of a curve in a browser, which requests more when zoomed in


class RunPoints:
    """A log: its steps, the planned number of steps, and the record of the last one, {} before the
    first.

    ``of`` has the points for each of CURVES, by series: "" is training, others are evaluations.
    """

    def __init__(self, log: RunLog) -> None:
        self.log, self.steps = log, sorted(log.steps)
        records = [(at, log.steps[at]) for at in self.steps]
        self.of: dict[str, dict[str, list[Point]]] = {
            name: {"": [(at, float(r[name])) for at, r in records if is_number(r.get(name))]}
            for name in CURVES
        }
        self.of["loss"] = log.losses()
        begin = log.begins[-1] if log.begins else {}
        entropy, end = begin.get("unigram_entropy"), begin.get("steps")
        self.unigram = entropy if is_number(entropy) else None
        self.end = end if isinstance(end, int) else None
        self.last = log.steps[self.steps[-1]] if self.steps else {}


def is_number(value: object) -> bool:
    """Whether a value in a log is a number that can be drawn."""
    return isinstance(value, (int, float)) and math.isfinite(value)


class _Choice:
    """The request of the form on a run's page: its run and others, two steps, and smoothing."""

    def __init__(self, site: Pages, number: int, query: Query) -> None:
        self.all: dict[int, Any] = {n: one for n, one in enumerate(site.items) if one.kind == "run"}
        numbers = dict.fromkeys((number, *query.numbers("with")))
        self.runs: dict[int, RunItem] = {n: self.all[n] for n in numbers if n in self.all}
        self.first, self.last = query.number("from", 0), query.number("to", 2**62)
        smooth = query.text("smooth")
        self.smooth = smooth if smooth in SMOOTHINGS else ""

    def of(self, name: str) -> Iterator[tuple[int, Curve]]:
        """The curves of one of CURVES, each with the number of its run.

        A run has the same colour in all plots; its evaluations have the colours after those of the
        runs.
        """
        weight = 0.0 if name == "lr" else float(self.smooth or 0)
        colours = count(len(self.runs))
        for series, (number, run) in enumerate(self.runs.items()):
            for evaluation, points in run.points.of[name].items():
                part = self._within(points)
                if evaluation:
                    yield number, Curve(f"{run.name} {evaluation}", part, next(colours), "dashed")
                elif weight:
                    yield number, Curve("", part, series, "faint")
                    yield number, Curve(run.name, self._within(smoothed(points, weight)), series)
                else:
                    yield number, Curve(run.name, part, series)

    def _within(self, points: Sequence[Point]) -> Sequence[Point]:
        begin = bisect_left(points, (self.first, -math.inf))
        return points[begin : bisect_right(points, (self.last, math.inf))]


def smoothed(points: Sequence[Point], weight: float) -> list[Point]:
    """The exponential mean of the values up to each point, corrected for its beginning at 0."""
    result, mean, mass = [], 0.0, 0.0
    for x, y in points:
        mean, mass = weight * mean + (1 - weight) * y, weight * mass + (1 - weight)
        result.append((x, mean / mass))
    return result


def run_page(site: Pages, number: int, item: RunItem, query: Query) -> Html:
    """A run: curves, and the lines of its log."""
    jump = site.form(number, "step", "go", field("step", "number", "", kind="number"))
    ways = tag("div", site.link("data", number, "blend"), jump, class_="ask")
    title = f"Run {item.name}"
    if not item.points.steps:
        return site.page(title, ways, none("No step in the log."), item=number)
    return site.page(
        title,
        tag("section", tiles(_facts(item))),
        ways,
        tag("div", curve_form(site, number, query), class_="ask"),
        curve_grid(site, number, item, query),
        _lines(site, number, item, query),
        item=number,
        drawn=True,
    )


def _facts(item: RunItem) -> Iterator[tuple[str, object]]:
    last, end = item.points.last, item.points.end
    step, pace = last["iteration"], last.get("seconds_per_step")
    yield "state", item.state
    yield "step", f"{step:,}" if end is None else f"{step:,} of {end:,}"
    for name, (title, _) in CURVES.items():
        if points := item.points.of[name][""]:
            yield title.lower(), number_text(points[-1][1])
    for name, points in item.points.of["loss"].items():
        if name:
            yield f"loss of {name}", number_text(points[-1][1])
    if isinstance(samples := last.get("consumed_samples"), int):
        yield "samples", count_text(samples)
    if item.state == "running" and isinstance(pace, float) and end is not None:
        yield "left", f"about {time_text(pace * (end - step))}"


def _lines(site: Pages, number: int, item: RunItem, query: Query) -> Html:
    """The last lines of the log in the part that is chosen."""
    first, last = query.number("from", 0), query.number("to", 2**62)
    steps = [at for at in item.points.steps if first <= at <= last][-LINES:]
    rows = [
        [
            site.link(f"{at:,}", number, "step", number=at),
            *(_figure(record.get(name)) for name in ("consumed_samples", "batch_size", *CURVES)),
        ]
        for at, record in ((at, item.points.log.steps[at]) for at in steps)
    ]
    head = ["step", "samples", "batch", "loss", "lr", "norm", "tokens/s"]
    return section("Log", table(head, rows, "numbers narrow"))


def _figure(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return number_text(value) if isinstance(value, float) else ""


def curves_json(site: Pages, number: int, item: RunItem, query: Query) -> dict[str, Any]:
    """The curves in the form that view.js draws, each with the address of its steps."""
    choice, answer = _Choice(site, number, query), {}
    for name in CURVES:
        answer[name] = [
            {
                "name": shown(curve.name),
                "series": curve.series,
                "kind": curve.kind,
                "x": [x for x, _ in points],
                "y": [float(f"{y:.6g}") for _, y in points],
                "step": site.address(run, "step", number=""),
            }
            for run, curve in choice.of(name)
            for points in (thinned(curve.points, _MOST_POINTS),)
        ]
    return {"curves": answer, "unigram": item.points.unigram}


def curve_grid(site: Pages, number: int, item: RunItem, query: Query) -> Html:
    """All curves as plots without a script, which view.js replaces."""
    choice, plots = _Choice(site, number, query), []
    for name, (title, unit) in CURVES.items():
        plot = curves_plot(title, unit, [curve for _, curve in choice.of(name)])
        plots.append(tag("div", plot, data_curve=name) if plot else "")
    data, live = site.address(number, "curves"), item.state == "running"
    return tag("div", *plots, class_="grid", id="curves", data_from=data, data_live=live)


def curve_form(site: Pages, number: int, query: Query) -> Html:
    """Chooses what the curves show."""
    choice = _Choice(site, number, query)
    names = {one: one or "none" for one in SMOOTHINGS}
    others = [
        tag(
            "label",
            tag("input", type="checkbox", name="with", value=n, checked=n in choice.runs),
            key(list(choice.runs).index(n), one.name) if n in choice.runs else one.name,
        )
        for n, one in choice.all.items()
        if n != number
    ]
    whole = tag("a", "all steps", href=site.address(number), id="all")
    fields = (
        field("from step", "from", choice.first or "", kind="number"),
        field("to", "to", choice.last if choice.last < 2**62 else "", kind="number"),
        choose("smoothing", "smooth", names, choice.smooth),
    )
    return html(site.form(number, "", "show", *fields, *others, name="choose"), whole)

"""Pages of a training run: how it went, and what its steps saw."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tokpack.errors import UsageError
from tokpack.quantities import counted
from tokpack.report.charts import curves_plot
from tokpack.report.html import Html, html, legend, none, section, table, tag
from tokpack.samples.look import find, look
from tokpack.view.site import field, pager, steps_around
from tokpack.view.tokens import brief, token_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.checkpoints.course import Record, RunHistory, RunLog
    from tokpack.configuration.schedule import Step
    from tokpack.samples.look import SamplePiece, SampleView
    from tokpack.view.items import BlendItem, DatasetItem, RunItem
    from tokpack.view.site import Pages, Query

LINES = 50  # of the log, and samples of a step, on a page
SHOWN = 2048  # tokens of a sample on a page
FOUND = 200  # samples of a document on a page
_DOTS = 60  # points of a plot that lead to their step
_CURVES = (
    ("loss", "Loss", "nats a token"),
    ("lr", "Learning rate", "learning rate"),
    ("tokens_per_second", "Throughput", "tokens a second"),
    ("grad_norm", "Norm of the gradient", "norm"),
)


def run_page(site: Pages, number: int, item: RunItem, query: Query) -> Html:
    """How a run went: curves, and the lines of its log."""
    log = item.log
    first, last = query.number("from", 0), query.number("to", 2**62)
    steps = [record for at, record in sorted(log.steps.items()) if first <= at <= last]
    jump = site.form(number, "step", "go", field("step", "number", "", kind="number"), " ")
    zoom = site.form(
        number,
        "",
        "show",
        field("from step", "from", first or "", kind="number"),
        " ",
        field("to", "to", last if last < 2**62 else "", kind="number"),
        " ",
    )
    ways = tag("div", site.link("data", number, "blend"), jump, zoom, class_="ask")
    if not steps:
        return site.page(f"Run {item.name}", ways, none("No step in the log."), item=number)
    end = log.begins[-1].get("steps", "?") if log.begins else "?"
    at = steps[-1]["iteration"]
    return site.page(
        f"Run {item.name}",
        ways,
        tag("p", f"step {at:,} of {end:,}" if isinstance(end, int) else f"step {at:,}"),
        *(_curve(site, number, log, steps, *curve) for curve in _CURVES),
        _lines(site, number, steps, query),
        item=number,
    )


def _curve(site: Pages, number: int, log: RunLog, steps: Sequence[Record], *curve: str) -> Html:
    name, title, unit = curve
    points = [(r["iteration"], float(r[name])) for r in steps if _is_number(r.get(name))]
    curves, keys = [points], [title.lower()]
    if name == "loss":
        low, high = steps[0]["iteration"], steps[-1]["iteration"]
        for one in dict.fromkeys(str(record.get("name")) for record in log.evaluations):
            keys.append(one)
            curves.append(
                [
                    (record["iteration"], float(record["loss"]))
                    for record in log.evaluations
                    if record.get("name") == one and low <= record["iteration"] <= high
                    if _is_number(record.get("loss"))
                ]
            )
    size = -(-len(points) // _DOTS) or 1
    tops = [max(points[i : i + size], key=lambda p: p[1]) for i in range(0, len(points), size)]
    links = [
        (float(x), y, site.address(number, "step", number=x), f"step {x:,}: {y:.5g}")
        for x, y in tops
    ]
    plot = curves_plot(curves, (title, "step", unit), links)
    named = [html(tag("i", class_=f"key s{i % 6}"), key) for i, key in enumerate(keys)]
    return tag("figure", legend(named), plot) if plot else html()


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _lines(site: Pages, number: int, steps: Sequence[Record], query: Query) -> Html:
    page = query.number("line", max(len(steps) - LINES, 0))
    keep = {name: query.text(name) or None for name in ("from", "to")}
    rows = [
        [
            site.link(f"{record['iteration']:,}", number, "step", number=record["iteration"]),
            *(_figure(record.get(name)) for name in ("consumed_samples", "batch_size")),
            *(_figure(record.get(name)) for name, *_ in _CURVES),
        ]
        for record in steps[page : page + LINES]
    ]
    head = ["step", "samples", "batch", "loss", "lr", "tokens/s", "norm"]
    lines = table(head, rows, "numbers narrow")
    return section(
        "Log", lines, pager(page, LINES, len(steps), site.way(number, "", **keep), "line")
    )


def _figure(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.5g}" if isinstance(value, float) else ""


def step_page(site: Pages, number: int, item: RunItem, query: Query) -> Html:
    """The samples that a step took."""
    course = item.course
    step = course.step(query.number("number"))
    rank = query.number("rank", step.ranks)  # none of them
    samples = [k for k in step.samples if rank >= step.ranks or step.place(k)[0] == rank]
    first = query.number("from", 0)
    rows = [_row(site, number, step, look(course.train, k)) for k in samples[first : first + LINES]]
    way = site.way(number, "step", number=step.number, rank=rank if rank < step.ranks else None)
    ranks = [way(f"rank {r}", rank=r) for r in range(step.ranks)] if step.ranks > 1 else []
    return site.page(
        f"Step {step.number:,} of {item.name}",
        tag("p", course.describe(step)),
        steps_around(
            way("step before", number=step.number - 1) if step.number > 1 else None,
            way("next step", number=step.number + 1) if step.number < len(course.steps) else None,
        ),
        steps_around(way("all ranks", rank=None), *ranks[:64]) if ranks else "",
        table(["sample", "rank", "micro batch", "dataset", "documents", "text"], rows, "texts"),
        pager(first, LINES, len(samples), way),
        item=number,
    )


def _row(site: Pages, number: int, step: Step, sample: SampleView) -> list[object]:
    rank, batch = step.place(sample.number)
    member = _dataset_of(site, sample)
    spelling = member.spelling if member else None
    return [
        site.link(f"{sample.number:,}", number, "sample", number=sample.number),
        rank,
        batch,
        sample.dataset.path_prefix,
        len(sample.pieces),
        brief(sample.arrays["tokens"][:64].tolist(), spelling),
    ]


def _dataset_of(site: Pages, sample: SampleView) -> DatasetItem | None:
    number = site.number_of(sample.dataset.path_prefix)
    return None if number is None else site.items[number]  # type: ignore[return-value]


def sample_page(site: Pages, number: int, item: BlendItem | RunItem, query: Query) -> Html:
    """A sample: its documents, and its tokens, some of them at a time."""
    try:
        sample = look(item.train, query.number("number"))
    except IndexError as error:
        raise UsageError(f"there is no {error}") from None
    course = item.course
    step = None if course is None else course.steps.taking(sample.number)
    first, with_ids = query.number("from", 0), min(query.number("ids", 1), 1)
    way = site.way(number, "sample", number=sample.number, ids=with_ids)
    length = len(sample.arrays["tokens"])
    epoch = "" if sample.epoch is None else f", epoch {sample.epoch}"
    return site.page(
        f"Sample {sample.number:,} of {item.name}",
        tag("p", f"sample {sample.dataset_sample:,} of {sample.dataset.path_prefix}{epoch}"),
        _place(site, number, step, sample),
        tag("p", *_marks(sample)),
        steps_around(
            way("sample before", number=sample.number - 1) if sample.number else None,
            way("next sample", number=sample.number + 1),
            way("without ids" if with_ids else "with ids", ids=1 - with_ids),
        ),
        *_pieces(site, number, sample, range(first, first + SHOWN), bool(with_ids)),
        pager(first, SHOWN, length, way),
        item=number,
    )


def _place(site: Pages, number: int, step: Step | None, sample: SampleView) -> Html:
    if step is None:
        return html()
    rank, batch = step.place(sample.number)
    link = site.link(f"step {step.number:,}", number, "step", number=step.number)
    return tag("p", "taken by ", link, f", rank {rank}, micro batch {batch}")


def _marks(sample: SampleView) -> Iterator[str]:
    length, missing = len(sample.arrays["tokens"]), sum(map(len, sample.no_loss))
    yield f"{length:,} tokens, {missing:,} of them without loss"
    if sample.filled < length:
        yield f", padding from {sample.filled:,} on"
    if sample.boundaries is not None:
        yield f", attention in {counted(len(sample.boundaries) - 1, 'part')}"


def _pieces(
    site: Pages, number: int, sample: SampleView, window: range, with_ids: bool
) -> Iterator[Html]:
    """The documents of a sample, as far as their tokens lie in the window."""
    member = _dataset_of(site, sample)
    silent = {i for one in sample.no_loss for i in one}
    for piece in sample.pieces:
        begin, end = max(piece.at, window.start), min(piece.at + piece.tokens, window.stop)
        if begin >= end:
            continue
        ids = sample.arrays["tokens"][begin:end].tolist()
        spelling = member.spelling if member else None
        yield tag("h2", *_heading(site, number, sample, piece), class_="piece")
        yield token_text(ids, spelling, begin, with_ids=with_ids, silent=silent)


def _heading(site: Pages, number: int, sample: SampleView, piece: SamplePiece) -> Iterator[object]:
    named, dataset = f"document {piece.document:,}", site.number_of(sample.dataset.path_prefix)
    member = _dataset_of(site, sample)
    if dataset is None or member is None:
        yield named
    else:
        query = {"number": piece.document, "from": piece.offset // 1000 * 1000}
        yield site.link(named, dataset, "document", **query)
    yield f": {counted(piece.tokens, 'token')} from {piece.offset:,} on, at {piece.at:,}"
    source, line = member.sources.find(piece.document) if member else ("", None)
    if source:
        yield f", {source}" + ("" if line is None else f":{line}")
    if dataset is not None and site.items[number].kind == "run":
        yield ", "
        yield site.link("when seen", number, "seen", dataset=dataset, document=piece.document)


def seen_page(site: Pages, number: int, item: RunItem, query: Query) -> Html:
    """The steps at which a document is seen."""
    dataset, document = query.number("dataset"), query.number("document")
    other = site.items[dataset] if dataset < len(site.items) else None
    if other is None or other.kind != "dataset":
        raise UsageError(f"item {dataset} is no dataset")
    course: RunHistory = item.course
    samples = find(course.train, other.name, document, course.steps.samples)
    rows = []
    for sample, _ in zip(samples, range(FOUND + 1), strict=False):
        step = course.steps.taking(sample)
        if step is None:
            continue
        rank, batch = step.place(sample)
        rows.append(
            [
                site.link(f"{step.number:,}", number, "step", number=step.number),
                site.link(f"{sample:,}", number, "sample", number=sample),
                rank,
                batch,
                "seen" if step.number <= course.made else "to come",
            ]
        )
    shown_document = site.link(
        f"document {document:,} of {other.name}", dataset, "document", number=document
    )
    return site.page(
        f"When document {document:,} of {other.name} is seen",
        tag("p", shown_document, f" in {item.name}"),
        table(["step", "sample", "rank", "micro batch", ""], rows[:FOUND], "numbers narrow")
        if rows
        else none("In no sample of the training."),
        tag("p", f"the first {FOUND}") if len(rows) > FOUND else "",
        item=number,
    )

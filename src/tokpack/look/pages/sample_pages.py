"""Pages of a step's samples, of one sample, and of the steps with a document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.errors import UsageError
from tokpack.look.page import blend_figures
from tokpack.look.pages.dataset_pages import brief, source_of, token_text
from tokpack.look.pages.site import field, pager, steps_around
from tokpack.look.plots import (
    Html,
    html,
    key,
    none,
    stack,
    table,
    tag,
    tiles,
)
from tokpack.quantities import counted
from tokpack.samples.look import find, look

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.look.pages.items import BlendItem, DatasetItem, RunItem
    from tokpack.look.pages.site import Pages, Query
    from tokpack.samples.blend import BlendPlan
    from tokpack.samples.look import SamplePiece, SampleView
    from tokpack.trainer.checkpoints.history import RunHistory
    from tokpack.trainer.config.schedule import Step


LINES = 50  # samples of a step on a page
SHOWN = 2048  # tokens of a sample on a page
FOUND = 200  # samples of a document on a page


def step_page(site: Pages, number: int, item: RunItem, query: Query) -> Html:
    """The samples that a step took."""
    history = item.history
    step = history.step(query.number("number"))
    rank = query.number("rank", step.ranks)  # none of them
    samples = [k for k in step.samples if rank >= step.ranks or step.place(k)[0] == rank]
    first = query.number("from", 0)
    rows = [
        _row(site, number, step, look(history.train, k)) for k in samples[first : first + LINES]
    ]
    head = ["sample", "rank", "micro batch", "dataset", "documents", "text"]
    way = site.way(number, "step", number=step.number, rank=rank if rank < step.ranks else None)
    ranks = [way(f"rank {r}", rank=r) for r in range(step.ranks)] if step.ranks > 1 else []
    return site.page(
        f"Step {step.number:,} of {item.name}",
        tag("p", history.describe(step)),
        steps_around(
            way("step before", number=step.number - 1) if step.number > 1 else None,
            way("next step", number=step.number + 1) if step.number < len(history.steps) else None,
        ),
        steps_around(way("all ranks", rank=None), *ranks[:64]) if ranks else "",
        tag("section", table(head, rows, "texts")),
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
    history = item.history
    step, place = None if history is None else history.steps.taking(sample.number), Html()
    if step is not None:
        rank, batch = step.place(sample.number)
        link = site.link(f"step {step.number:,}", number, "step", number=step.number)
        place = tag("p", "in ", link, f", rank {rank}, micro batch {batch}")
    first, with_ids = query.number("from", 0), min(query.number("ids", 1), 1)
    way = site.way(number, "sample", number=sample.number, ids=with_ids)
    length = len(sample.arrays["tokens"])
    pieces = enumerate(sample.pieces)
    parts = [(one.tokens / length, n, f"document {one.document:,}") for n, one in pieces]
    epoch = "" if sample.epoch is None else f", epoch {sample.epoch}"
    return site.page(
        f"Sample {sample.number:,} of {item.name}",
        tag("p", f"sample {sample.dataset_sample:,} of {sample.dataset.path_prefix}{epoch}"),
        place,
        tag("p", *_marks(sample)),
        steps_around(
            way("sample before", number=sample.number - 1) if sample.number else None,
            way("next sample", number=sample.number + 1),
            way("without ids" if with_ids else "with ids", ids=1 - with_ids),
        ),
        stack(parts),
        *_pieces(site, number, sample, range(first, first + SHOWN), bool(with_ids)),
        pager(first, SHOWN, length, way),
        item=number,
    )


def _marks(sample: SampleView) -> Iterator[str]:
    length, missing = len(sample.arrays["tokens"]), sum(map(len, sample.no_loss))
    yield f"{length:,} tokens, {missing:,} of them without loss (dotted)"
    if sample.is_masked:
        yield ", trained tokens underlined, the others grey"
    if sample.filled < length:
        yield f", padding from {sample.filled:,} on"
    if sample.boundaries is not None:
        yield f", attention in {counted(len(sample.boundaries) - 1, 'part')}"


def _pieces(
    site: Pages, number: int, sample: SampleView, window: range, with_ids: bool
) -> Iterator[Html]:
    """The documents of a sample with tokens in the window."""
    member = _dataset_of(site, sample)
    silent = {i for one in sample.no_loss for i in one}
    learned = {
        piece.at + i for piece in sample.pieces for one in sample.trained(piece) for i in one
    }
    for place, piece in enumerate(sample.pieces):
        begin, end = max(piece.at, window.start), min(piece.at + piece.tokens, window.stop)
        if begin < end:
            text = token_text(
                sample.arrays["tokens"][begin:end].tolist(),
                member.spelling if member else None,
                begin,
                with_ids=with_ids,
                silent=silent,
                trained=[i in learned for i in range(begin, end)] if sample.is_masked else None,
                series=place,
            )
            heading = html(*_heading(site, number, sample, piece))
            yield tag("section", tag("h2", key(place, heading)), text)


def _heading(site: Pages, number: int, sample: SampleView, piece: SamplePiece) -> Iterator[object]:
    named, dataset = f"document {piece.document:,}", site.number_of(sample.dataset.path_prefix)
    where = f": {counted(piece.tokens, 'token')} from {piece.offset:,} on, at {piece.at:,}"
    member = _dataset_of(site, sample)
    if dataset is None or member is None:
        yield named + where
        return
    query = {"number": piece.document, "from": piece.offset // 1000 * 1000}
    yield from (site.link(named, dataset, "document", **query), where)
    if source := source_of(site, dataset, member, piece.document):
        yield from (", ", source)
    if site.items[number].kind == "run":
        seen = {"dataset": dataset, "document": piece.document}
        yield from (", ", site.link("when seen", number, "seen", **seen))


def seen_page(site: Pages, number: int, item: RunItem, query: Query) -> Html:
    """The steps at which a document is seen."""
    dataset, document = query.number("dataset"), query.number("document")
    other = site.items[dataset] if dataset < len(site.items) else None
    if other is None or other.kind != "dataset":
        raise UsageError(f"item {dataset} is not a dataset")
    history: RunHistory = item.history
    samples = find(history.train, other.name, document, history.steps.samples)
    rows = []
    for sample, _ in zip(samples, range(FOUND + 1), strict=False):
        if (step := history.steps.taking(sample)) is not None:
            links = (
                site.link(f"{step.number:,}", number, "step", number=step.number),
                site.link(f"{sample:,}", number, "sample", number=sample),
            )
            state = "seen" if step.number <= history.steps_made else "to come"
            rows.append([*links, *step.place(sample), state])
    head, words = (
        ["step", "sample", "rank", "micro batch", ""],
        f"document {document:,} of {other.name}",
    )
    shown_document = site.link(words, dataset, "document", number=document)
    return site.page(
        f"When {words} is seen",
        tag("p", shown_document, f" in {item.name}"),
        tag("section", table(head, rows[:FOUND], "numbers narrow"))
        if rows
        else none("In no sample of this training run."),
        tag("p", f"the first {FOUND}") if len(rows) > FOUND else "",
        item=number,
    )


# Pages of a blend: what each dataset gives, how often it is seen, and when it repeats.

MAX_EPOCHS = 4.0


def blend_page(site: Pages, number: int, item: BlendItem | RunItem, query: Query) -> Html:
    """A blend and its plan."""
    plan = item.plan
    jump = site.form(number, "sample", "go", field("sample", "number", "", kind="number"), " ")
    notes = [tag("li", note) for note in plan.warnings(MAX_EPOCHS)]
    title = f"Blend {item.name}" if item.kind == "blend" else f"Data of run {item.name}"
    return site.page(
        title,
        tag("ul", *notes, class_="warnings") if notes else "",
        tag("div", site.link("first sample", number, "sample", number=0), jump, class_="ask"),
        _settings(plan),
        *(blend_figures(one, site.named) for one in plan.mixtures if one.portions),
        item=number,
    )


def _settings(plan: BlendPlan) -> Html:
    spec = plan.spec
    names = ("order", "seed", "seq_length", "split", "by", "temperature")
    values = {name: getattr(spec, name) for name in names}
    values |= {name: value for name, value in spec.options.items() if value}
    facts = ((name.replace("_", " "), v) for name, v in values.items() if v is not None)
    return tag("section", tiles(facts))

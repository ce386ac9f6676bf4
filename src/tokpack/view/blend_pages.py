"""Pages of a blend: what each dataset gives, how often it is seen, and when it begins anew."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from tokpack.quantities import percent
from tokpack.report.html import Html, html, key, section, table, tag, tiles
from tokpack.report.plot import bar
from tokpack.samples.blend.order import blend_order
from tokpack.view.site import field

if TYPE_CHECKING:
    from tokpack.samples.blend.mixture import Mixture
    from tokpack.samples.blend.plan import BlendPlan
    from tokpack.view.items import BlendItem, RunItem
    from tokpack.view.site import Pages, Query

MAX_EPOCHS = 4.0


def blend_page(site: Pages, number: int, item: BlendItem | RunItem, query: Query) -> Html:
    """What a blend comes to."""
    plan = item.plan
    jump = site.form(number, "sample", "go", field("sample", "number", "", kind="number"), " ")
    notes = [tag("li", note) for note in plan.warnings(MAX_EPOCHS)]
    title = f"Blend {item.name}" if item.kind == "blend" else f"Data of run {item.name}"
    return site.page(
        title,
        tag("ul", *notes, class_="warnings") if notes else "",
        tag("div", site.link("first sample", number, "sample", number=0), jump, class_="ask"),
        _settings(plan),
        *(_mixture(site, mixture) for mixture in plan.mixtures if mixture.portions),
        item=number,
    )


def _settings(plan: BlendPlan) -> Html:
    spec = plan.spec
    names = ("order", "seed", "seq_length", "split", "by", "temperature")
    values = {name: getattr(spec, name) for name in names}
    values |= {name: value for name, value in spec.options.items() if value}
    facts = ((name.replace("_", " "), v) for name, v in values.items() if v is not None)
    return tag("section", tiles(facts))


def _mixture(site: Pages, mixture: Mixture) -> Html:
    usage, ends = mixture.usage, _first_ends(mixture)
    largest = max((one.share for one in usage), default=1.0)
    rows = [
        [
            _named(site, index, portion.prefix),
            f"{portion.documents:,}",
            f"{portion.tokens:,}",
            "by size" if portion.weight is None else f"{portion.weight:.6g}",
            html(bar(share / largest, index), percent(share, 1)),
            f"{samples:,.0f}",
            f"{epochs:.2f}",
            "" if end is None else f"{end:,}",
        ]
        for index, ((portion, share, samples, epochs), end) in enumerate(
            zip(usage, ends, strict=True)
        )
    ]
    head = ["dataset", "documents", "tokens", "weight", "share", "samples", "epochs", "used up at"]
    tokens = mixture.samples * mixture.spec.seq_length
    return section(
        mixture.name,
        tag("p", f"{mixture.samples:,} samples, {tokens:,} tokens"),
        table(head, rows, "numbers"),
    )


def _named(site: Pages, index: int, prefix: str) -> Html:
    number = site.number_of(prefix)
    name = prefix if number is None else site.link(prefix, number)
    return key(index, name)


def _first_ends(mixture: Mixture) -> list[int | None]:
    """The sample at which each dataset begins its second epoch; None where it does not."""
    size, order = mixture.samples, blend_order(mixture.phases)
    lengths = [mixture.epoch_samples(portion) for portion in mixture.portions]
    counts = order.counts(size).tolist()
    return [
        bisect_left(range(size), length, key=lambda g, i=i: int(order.counts(g)[i]))  # type: ignore[misc]
        if counts[i] > length
        else None
        for i, length in enumerate(lengths)
    ]

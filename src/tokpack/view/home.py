"""The first page: all datasets, runs and blends, and how they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.errors import TokpackError
from tokpack.quantities import bytes_text, counted
from tokpack.report.charts import thinned
from tokpack.report.html import Html, html, legend, none, section, table, tag
from tokpack.report.plot import bar, sparkline, stack
from tokpack.view.items import BlendItem, DatasetItem, EncodeItem, RunItem

if TYPE_CHECKING:
    from tokpack.view.site import Pages

_SPARKS = 100  # losses of a sparkline


def home_page(site: Pages) -> Html:
    """What there is to look at."""
    items = list(enumerate(site.items))
    runs = [_run(site, number, item) for number, item in items if isinstance(item, RunItem)]
    data = [(number, item) for number, item in items if isinstance(item, DatasetItem)]
    most = max((item.dataset.token_count for _, item in data), default=1) or 1
    datasets = [[site.link(item.name, number), *_dataset(item, most)] for number, item in data]
    blends = [_blend(site, number, item) for number, item in items if isinstance(item, BlendItem)]
    making = [[site.link(item.name, n)] for n, item in items if isinstance(item, EncodeItem)]
    head = ["dataset", "tokens", "documents", "size", "tokenizer"]
    return site.page(
        "Datasets and runs",
        section("In the making", table([""], making)) if making else "",
        tag("div", *runs, *blends, class_="grid cards"),
        section("Datasets", table(head, datasets, "numbers texts")) if datasets else "",
    )


def _run(site: Pages, number: int, item: RunItem) -> Html:
    """How a run is."""
    title = tag("h2", "Run ", site.link(item.name, number))
    try:
        points, state = item.points, item.state
    except (TokpackError, OSError) as error:
        return tag("section", title, none(str(error)))
    losses, step, steps = points.of["loss"][""], points.last.get("iteration", 0), points.end
    position = f" step {step:,}" if steps is None else f" step {step:,} of {steps:,} "
    how = tag("b", state, class_=f"state {state}"), position, bar(step / steps) if steps else ""
    parts = [title, tag("p", *how)]
    if losses:  # without the first tenth, beside whose fall nothing else would be seen
        spark = thinned(losses[len(losses) // 10 :], _SPARKS)
        parts.append(sparkline([y for _, y in spark], "loss by step"))
        parts.append(tag("p", "loss ", tag("b", f"{losses[-1][1]:.4f}")))
    return tag("section", *parts)


def _dataset(item: DatasetItem, most: int) -> list[object]:
    data = item.dataset
    size = bytes_text(data.token_count * data.dtype.itemsize)
    tokens = html(bar(data.token_count / most), f"{data.token_count:,}")
    return [tokens, f"{data.documents:,}", size, item.tokenizer]


def _blend(site: Pages, number: int, item: BlendItem) -> Html:
    """What a blend asks for; its page says what that comes to."""
    entries = item.spec.datasets
    total = sum(entry.weight or 0.0 for entry in entries) or 1.0
    shares = [((e.weight or 0.0) / total, n, e.prefix) for n, e in enumerate(entries)]
    names = (e.prefix + ("" if e.weight is None else f" {e.weight:g}") for e in entries)
    words = f"{counted(len(entries), 'dataset')}, samples of {item.spec.seq_length:,} tokens"
    title = tag("h2", "Blend ", site.link(item.name, number))
    return tag("section", title, tag("p", words), stack(shares), legend(enumerate(names)))

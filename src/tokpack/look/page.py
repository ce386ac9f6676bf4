"""Figures of datasets as one self-contained page of HTML: to read, print and send."""

from __future__ import annotations

import math
from base64 import b64encode
from bisect import bisect_left
from hashlib import sha256
from importlib import resources
from typing import TYPE_CHECKING, Any

from tokpack.dataset.overview import measure
from tokpack.dataset.sources import shares_of
from tokpack.errors import TokpackError
from tokpack.look.facts import (
    SHARE,
    dataset_facts,
    duplicate_table,
    facts,
    labels,
    role_table,
    source_table,
    token_table,
    tokenizer_name,
    trained_table,
    warnings,
)
from tokpack.look.plots import (
    Html,
    bar,
    curves_plot,
    epochs_plot,
    html,
    key,
    length_plot,
    none,
    section,
    table,
    tag,
    tiles,
    zipf_plot,
)
from tokpack.quantities import bytes_text, percent
from tokpack.storage.disk import Kind, begins_with

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokpack.dataset import Manifest, MMapIndexedDataset
    from tokpack.dataset.overview import LengthStats
    from tokpack.look.facts import Table
    from tokpack.look.plots import Curve
    from tokpack.look.statistics import Stats
    from tokpack.samples import BlendedDataset, GPTDataset
    from tokpack.samples.blend import BlendPlan, Mixture

_HEAD = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    '<meta name="generator" content="tokpack {}">'
)
_MOST_TOKENS, _MOST_GROUPS, _MOST_SOURCES = 30, 10, 30


def page(datasets: Sequence[Stats], *, footer: str = "") -> str:
    """The report as HTML; ``footer`` is text for its end, such as the date."""
    names = labels(datasets)
    title = ("Datasets " if names[1:] else "Dataset ") + ", ".join(names)
    foot = tag("footer", footer) if footer else ""
    return _whole("stats", title, html(figures(datasets), foot))


def curves_page(title: str, unit: str, curves: Sequence[Curve]) -> str:
    """Curves of a training run as HTML."""
    return _whole("train", title, curves_plot(title, unit, curves))


def _whole(command: str, title: str, body: Html) -> str:
    """A page of a command. It loads nothing: no link, no font.

    All text is escaped, and the page forbids browsers to load anything, or to run scripts other
    than its own.
    """
    script = shared("tables.js")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return (
        f'{_HEAD.format(command)}<meta name="viewport" content="width=device-width, '
        'initial-scale=1"><meta http-equiv="Content-Security-Policy" '
        f"content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'\">"
        f"{tag('title', title)}<style>{shared('page.css')}</style></head>\n"
        f"<body>{tag('h1', title)}{body}<script>{script}</script></body></html>\n"
    )


def shared(name: str) -> str:
    """The style sheet, or the script, of all pages."""
    return resources.files("tokpack.look").joinpath(name).read_text(encoding="utf-8")


def figures(datasets: Sequence[Stats]) -> Html:
    """The figures and plots of datasets, side by side."""
    plots = tag("div", length_figures(labels(datasets), datasets), _tokens(datasets), class_="grid")
    sources = [source_table(stats.sources, _MOST_SOURCES) for stats in datasets]
    roles = [role_table(stats) for stats in datasets]
    texts = [trained_table(stats) for stats in datasets]
    copies = [duplicate_table(stats, _MOST_GROUPS) for stats in datasets]
    return html(
        _facts(datasets),
        plots,
        _tables("Sources", "Not known: the dataset has no manifest.", datasets, sources),
        _tables("Roles", "Not known.", datasets, roles) if any(roles) else "",
        _tables("Trained text", "All tokens are.", datasets, texts) if any(texts) else "",
        _tables("Duplicate documents", "No document occurs twice.", datasets, copies),
    )


def is_page(path: str, command: str = "stats") -> bool:
    """Whether a file is a page of a command."""
    return begins_with(path, _HEAD.format(command).encode())


PAGE_KIND = Kind("a page of tokpack stats", is_page, kept=False)


def _named(number: int, datasets: Sequence[Stats]) -> Html:
    """The title of figures about one of several datasets."""
    return tag("h3", key(number, labels(datasets)[number])) if len(datasets) > 1 else html()


def _facts(datasets: Sequence[Stats]) -> Html:
    columns = [facts(stats) for stats in datasets]
    notes = [
        tag("li", f"{name}: {line}")
        for name, stats in zip(labels(datasets), datasets, strict=True)
        for line in warnings(stats)
    ]
    alarm = tag("ul", *notes, class_="warnings") if notes else ""
    if len(datasets) == 1:
        return html(alarm, tag("section", tiles(columns[0].items())))
    rows = [["prefix", *(stats.prefix for stats in datasets)]]
    names = dict.fromkeys(name for column in columns for name in column)
    rows += [[name, *(column.get(name, "") for column in columns)] for name in names]
    return html(alarm, tag("section", table(["", *labels(datasets)], rows, "facts")))


def length_figures(named: Sequence[str], datasets: Sequence[Stats | LengthStats]) -> Html:
    """The lengths of documents in datasets with these names."""
    plot = length_plot(named, datasets)
    if not plot:
        return section("Lengths of documents", none("No documents."))
    filled = [
        (name, stats.lengths.rows())
        for name, stats in zip(named, datasets, strict=True)
        if stats.lengths
    ]
    rows = [
        [name, *(f"{value:,.{1 if key == 'mean' else 0}f}" for key, value in values)]
        for name, values in filled
    ]
    head = ["tokens in a document", *(key for key, _ in filled[0][1])]
    return section("Lengths of documents", plot, table(head, rows, "numbers"))


def _tables(
    title: str, none_words: str, datasets: Sequence[Stats], tables: Sequence[Table | None]
) -> Html:
    """A section with a table for each dataset."""
    parts = []
    for number, one in enumerate(tables):
        parts.append(_named(number, datasets))
        parts.append(html(tag("p", one.note), _table(one, number)) if one else none(none_words))
    return section(title, *parts)


def _table(one: Table, number: int) -> Html:
    """A table of a report, in the colour of dataset ``number``."""
    rows: list[list[object]] = [list(row) for row in one.rows]
    for row, share in zip(rows, one.bars, strict=False):
        row[SHARE] = html(bar(share, number), row[SHARE])
    if (column := one.texts) is not None:
        for row in rows:
            row[column] = tag("code", row[column]) if row[column] else ""
    return table(one.head, rows, f"numbers {one.kind}")


def _tokens(datasets: Sequence[Stats]) -> Html:
    plot = zipf_plot(labels(datasets), datasets)
    if not plot:
        return section("Frequency of tokens", none("No tokens."))
    parts = []
    for number, stats in enumerate(datasets):
        parts.append(_named(number, datasets))
        if one := token_table(stats, _MOST_TOKENS):
            words = tag("summary", f"The {len(one.rows)} most frequent")
            parts += [tag("p", f"{one.note}."), tag("details", words, _table(one, number))]
    return section("Frequency of tokens", plot, *parts)


def blend_figures(mixture: Mixture, named: Callable[[str], object] = str) -> Html:
    """A mixture of a blend; ``named`` turns a dataset's prefix into what is shown."""
    usage, ends = mixture.usage, _first_ends(mixture)
    rows = [
        [
            key(index, named(portion.prefix)),
            f"{portion.documents:,}",
            f"{portion.tokens:,}",
            "by size" if portion.weight is None else f"{portion.weight:.6g}",
            html(bar(share, index), percent(share, 1)),
            f"{samples:,.0f}",
            f"{epochs:.2f}",
            "" if end is None else f"{end:,}",
        ]
        for index, ((portion, share, samples, epochs), end) in enumerate(
            zip(usage, ends, strict=True)
        )
    ]
    share = "share" if mixture.spec.by == "tokens" else "share of samples"
    head = ["dataset", "documents", "tokens", "weight", share, "samples", "epochs", "used up at"]
    tokens = mixture.samples * mixture.spec.seq_length
    return section(
        mixture.name,
        tag("p", f"{mixture.samples:,} samples, {tokens:,} tokens"),
        table(head, rows, "numbers"),
        epochs_plot(
            mixture.phases,
            mixture.samples,
            [one.samples / one.epochs if one.epochs else math.inf for one in usage],
        ),
    )


def _first_ends(mixture: Mixture) -> list[int | None]:
    """The sample at which each dataset begins its second epoch; None if it does not."""
    from tokpack.samples.blend import blend_order  # needed only for blends

    size, order = mixture.samples, blend_order(mixture.phases)
    lengths = [mixture.epoch_samples(portion) for portion in mixture.portions]
    counts = order.counts(size).tolist()
    return [
        bisect_left(range(size), length, key=lambda g, i=i: int(order.counts(g)[i]))  # type: ignore[misc]
        if counts[i] > length
        else None
        for i, length in enumerate(lengths)
    ]


# HTML for notebooks: a table and a picture, in the style of the pages.

_CHEAP_SEQUENCES = 2_000_000  # lengths are read only up to this many
_NOTEBOOK = """
  & { padding: .7rem .7rem .1rem; border-radius: 10px; }
  h2 { font-weight: 700; }
  table, tr { background: none; color: inherit; }
  figure { max-width: 26rem; }
  .tiles { margin-bottom: .8rem; }
  .tiles dt, .tiles dd { float: none; width: auto; }
"""


def notebook(thing: object) -> str | None:
    """Stats, a manifest, a dataset, samples or a blend as HTML, or None if it cannot be drawn."""
    from tokpack.dataset import Manifest, MMapIndexedDataset
    from tokpack.look.statistics import Stats
    from tokpack.samples import BlendedDataset, GPTDataset
    from tokpack.samples.blend import BlendPlan, Blends

    kinds: dict[type, Callable[[Any], Html]] = {
        Stats: _stats_in_brief,
        Manifest: _manifest_in_brief,
        MMapIndexedDataset: _dataset_in_brief,
        GPTDataset: _samples_in_brief,
        BlendedDataset: _blend_in_brief,
        BlendPlan: _plan_in_brief,
        Blends: lambda blends: _plan_in_brief(blends.plan),
    }
    try:
        [brief] = [brief(thing) for kind, brief in kinds.items() if isinstance(thing, kind)]
    except (TokpackError, OSError, ValueError):  # closed or broken: its repr is shown
        return None
    sheet = shared("page.css").replace(":root", "&").replace("body {", "& {")
    wrapped = Html(f"<style>{'.tokpack' * 3} {{{sheet}{_NOTEBOOK}}}</style>")
    return tag("div", wrapped, brief, class_="tokpack")


def _stats_in_brief(stats: Stats) -> Html:
    return section(stats.prefix, tiles(facts(stats).items()), length_plot([stats.prefix], [stats]))


def _manifest_in_brief(manifest: Manifest) -> Html:
    known = {
        "documents": f"{manifest.documents:,}",
        "sequences": f"{manifest.sequences:,}",
        "tokens": f"{manifest.tokens:,}",
        "text": bytes_text(manifest.text_bytes),
        "ids as": manifest.dtype,
        "tokenizer": tokenizer_name(manifest.tokenizer),
        "made": f"{manifest.created[:16]} by tokpack {manifest.tokpack_version}",
    }
    sources = source_table(shares_of(manifest), _MOST_GROUPS)
    return section("Manifest", tiles(known.items()), _table(sources, 0) if sources else "")


def _dataset_in_brief(dataset: MMapIndexedDataset) -> Html:
    name, known = dataset.path_prefix, dataset_facts(dataset, tokenizer_name(dataset.tokenizer))
    is_cheap = len(dataset) <= _CHEAP_SEQUENCES and not dataset.on_store
    plot = length_plot([name], [measure(dataset)]) if is_cheap else ""
    return section(name, tiles(known.items()), plot)


def _samples_in_brief(samples: GPTDataset) -> Html:
    size, packed = len(samples), samples.packing_stats
    known = {
        "order": samples.order,
        "from tokens": f"{samples.tokens:,}",
        "samples an epoch": f"{samples.samples_per_epoch:,}",
        "epochs": f"{size / max(samples.samples_per_epoch, 1):.2f}",
    }
    if packed is not None:
        known["packed"] = f"{packed.fill:.2%} filled, {packed.cut:,} cut"
    title = f"{size:,} samples of {samples.seq_length:,} tokens"
    return html(section(title, tiles(known.items())), _dataset_in_brief(samples.dataset))


def _plan_in_brief(plan: BlendPlan) -> Html:
    return html(*(blend_figures(mixture) for mixture in plan.mixtures if mixture.portions))


def _blend_in_brief(blend: BlendedDataset) -> Html:
    names, size = [one.path_prefix for one in blend.datasets], len(blend)
    lengths = [getattr(one, "samples_per_epoch", len(one)) for one in blend.datasets]
    counts = blend.counts(size)
    rows = [
        [
            key(number, name),
            html(bar(count / size, number), percent(count, size)),
            f"{count:,}",
            f"{count / length:.2f}",
        ]
        for number, (name, count, length) in enumerate(zip(names, counts, lengths, strict=True))
    ]
    return section(
        f"{size:,} samples of {blend.seq_length:,} tokens",
        table(["dataset", "share", "samples", "epochs"], rows, "numbers"),
        epochs_plot(blend.schedule, size, lengths),
    )

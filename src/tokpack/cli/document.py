"""A dataset on one screen, and its documents."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tokpack.cli.figures import bold, dim, print_table, table
from tokpack.cli.terminal import put
from tokpack.cli.token_text import print_tokens
from tokpack.display import shown
from tokpack.indexed.manifest import LOSS_TRACKS
from tokpack.quantities import bytes_text, counted, percent
from tokpack.report.facts import source_table
from tokpack.report.sources import kept_values
from tokpack.report.text import turns_of

if TYPE_CHECKING:
    from tokpack.indexed import MMapIndexedDataset
    from tokpack.report import Overview, Sources, Spelling

_MOST_SOURCES = 8


def print_overview(facts: Overview) -> None:
    """Print what a dataset is."""
    tokenizer = facts.tokenizer
    rows = [
        ["documents", f"{facts.documents:,}"],
        ["tokens", f"{facts.tokens:,}, ids as {facts.dtype}"],
        ["tokenizer", _tokenizer(tokenizer)],
    ]
    if facts.sequences != facts.documents:
        rows.insert(1, ["sequences", f"{facts.sequences:,}"])
    if facts.multimodal:
        rows.append(["modes", "one for each sequence: it is multimodal"])
    if _loss_tracks(facts):
        rows.append(["trained", _trained(facts)])
    if facts.bytes_per_token is not None:
        how = " (measured on a sample)" if facts.measured else ""
        rows.append(["bytes a token", f"{facts.bytes_per_token:.2f}{how}"])
    if facts.text_bytes is not None:
        rows.append(["text", bytes_text(facts.text_bytes)])
    if facts.records is not None:
        rows.append(
            [
                "records read",
                f"{facts.records:,}: {facts.empty:,} without tokens, {facts.rejected:,} rejected"
                + _chosen(facts),
            ]
        )
    if facts.created:
        rows.append(["made", f"{facts.created} by tokpack {facts.version}"])
    if facts.columns:
        rows.append(["kept", ", ".join(f"{name} ({one})" for name, one in facts.columns.items())])
    sizes = [f"{os.path.basename(path)} {bytes_text(size)}" for path, size in facts.files.items()]
    rows.append(["files", ", ".join(sizes)])
    put(bold(shown(facts.prefix)))
    table([[key, shown(value)] for key, value in rows], left=(0, 1))
    if facts.lengths:
        values = facts.lengths.rows()
        put()
        put(bold("length of documents in tokens"))
        table([[key for key, _ in values], [f"{value:,.0f}" for _, value in values]], left=())
    print_table(source_table(facts.sources, _MOST_SOURCES))


def _loss_tracks(facts: Overview) -> list[str]:
    return [name for name in facts.tracks if name in LOSS_TRACKS]


def _trained(facts: Overview) -> str:
    """How many tokens are trained, and which tracks there are."""
    tracks = " and ".join(f"{name} ({facts.tracks[name]})" for name in _loss_tracks(facts))
    if facts.trained is None:
        return f"by {tracks}"
    return f"{facts.trained:,} tokens ({percent(facts.trained, facts.tokens)}), by {tracks}"


def _chosen(facts: Overview) -> str:
    """What ``where`` and ``map`` did; "" for nothing."""
    counts = {
        "left out by where": facts.left_out,
        "left out by map": facts.mapped_out,
        "added by map": facts.mapped_in,
    }
    return "".join(f", {count:,} {what}" for what, count in counts.items() if count)


def _tokenizer(tokenizer: dict[str, object]) -> str:
    if not tokenizer:
        return "not known: no manifest says it"
    words = [f"{tokenizer.get('name')} ({tokenizer.get('kind')})"]
    size, eod = tokenizer.get("vocab_size"), tokenizer.get("eod_id")
    if isinstance(size, int):
        words.append(f"vocabulary of {size:,}")
    words.append("no EOD" if eod is None else f"EOD {eod}")
    frame = tokenizer.get("frame")
    if isinstance(frame, dict):
        words.append(f"documents between {frame.get('before')} and {frame.get('after')}")
    return ", ".join(words)


def print_document(
    dataset: MMapIndexedDataset,
    sources: Sources,
    spelling: Spelling | None,
    number: int,
    shown_tokens: tuple[int, int],
) -> None:
    """Print a document: text above, ids below.

    ``shown_tokens`` are the first one, and how many (0: all).
    """
    tokens = dataset.document(number)
    begin, limit = shown_tokens
    end = min(len(tokens), begin + limit) if limit else len(tokens)
    about = [counted(len(tokens), "token")]
    first, stop = dataset.doc_idx[number : number + 2].tolist()
    if stop - first != 1:
        about.append(counted(stop - first, "sequence"))
    mask = None if dataset.mask is None else dataset.mask.document(number)
    if mask is not None:
        about.append(f"{int(mask.sum())} of them trained (marked *)")
    place = sources.find(number)
    if place.source:
        about.append(f"from {shown(str(place))}")
    put(f"{bold(f'document {number}')}: {', '.join(about)}")
    if values := kept_values(place.kept):
        put(dim(f"  {', '.join(values)}"))
    if begin:
        put(dim(f"  … {counted(begin, 'token')} before"))
    ids = tokens[begin:end].tolist()
    trained = None if mask is None else mask[begin:end].tolist()
    for role, first, stop in turns_of(dataset, number, begin, end):
        if role:
            put(dim(f"  {role}:"))
        part = None if trained is None else trained[first:stop]
        print_tokens(ids[first:stop], spelling, part)
    if end < len(tokens):
        put(dim(f"  … {counted(len(tokens) - end, 'token')} more; --max-tokens 0 shows all"))
    put()

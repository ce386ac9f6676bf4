"""The first samples of a blend as text."""

from __future__ import annotations

import textwrap
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokpack.cli.figures import bold, dim, width
from tokpack.cli.shown_dataset import MAX_TOKENS, load
from tokpack.cli.terminal import put
from tokpack.display import shown
from tokpack.report.facts import count

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from tokpack.report import Spelling
    from tokpack.samples import BlendedDataset, GPTDataset
    from tokpack.samples.blend.plan import BlendPlan

_LEAST = 8  # tokens


class Shown(NamedTuple):
    """A sample: where it comes from, and the tokens of each document in it."""

    number: int
    prefix: str
    own: int
    epoch: int | None  # None in the order of another program, which mixes epochs
    documents: list[list[int]]
    places: list[tuple[int, int]]  # of each: the sequence, and which token of it comes first


def print_samples(plan: BlendPlan, arguments: argparse.Namespace) -> None:
    """Print the first samples of a blend, with a line where each document begins."""
    limit = MAX_TOKENS if arguments.max_tokens is None else arguments.max_tokens
    spelling = _spelling(plan, arguments)
    for sample in _samples(plan, arguments.show):
        put()
        epoch = "" if sample.epoch is None else f", epoch {sample.epoch}"
        put(
            bold(f"sample {sample.number}")
            + f": sample {sample.own} of {shown(sample.prefix)}{epoch}, "
            + count(len(sample.documents), "document")
        )
        _print_documents(sample, spelling, limit)


def samples_json(plan: BlendPlan, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The first samples of a blend for machines."""
    spelling = _spelling(plan, arguments)
    return [
        {
            "sample": sample.number,
            "dataset": sample.prefix,
            "dataset_sample": sample.own,
            "epoch": sample.epoch,
            "documents": [
                {
                    "sequence": sequence,
                    "first": first,
                    **_document(ids, _limit(sample.documents, arguments.max_tokens), spelling),
                }
                for ids, (sequence, first) in zip(sample.documents, sample.places, strict=True)
            ],
        }
        for sample in _samples(plan, arguments.show)
    ]


def _spelling(plan: BlendPlan, arguments: argparse.Namespace) -> Spelling | None:
    known = [one for one in plan.datasets if one.tokenizer is not None]
    return load((known or plan.datasets)[0].path_prefix, arguments)[1]


def _samples(plan: BlendPlan, most: int) -> Iterator[Shown]:
    from tokpack.samples import BlendedDataset, open_blend

    how = {"document_boundaries": True, "eod_mask_loss": False, "reset_position_ids": False}
    how["reset_attention_mask"] = False
    only = {"allow_empty": True, "valid_samples": 0, "test_samples": 0}
    train = open_blend(plan, **how, **only).train
    for number in range(min(most, len(train))):
        dataset: GPTDataset | BlendedDataset = train
        own = number
        while isinstance(dataset, BlendedDataset):
            place, own = dataset.locate(own)
            dataset = dataset.datasets[place]
        epoch = own // dataset.samples_per_epoch if dataset.order == "stateless" else None
        documents = _documents(train[number])
        rows = [row for row in dataset.locate(own).tolist() if row[2]]
        places = [(sequence, first) for sequence, first, _ in rows[: len(documents)]]
        yield Shown(number, dataset.path_prefix, own, epoch, documents, places)


def _documents(sample: dict[str, Any]) -> list[list[int]]:
    tokens = sample["tokens"]
    counted = np.flatnonzero(sample["loss_mask"])
    filled = min(
        len(tokens), int(counted[-1]) + 2 if len(counted) else 1
    )  # what follows is padding
    edges = sorted({min(int(edge), filled) for edge in sample["cu_seqlens"]})
    return [tokens[begin:end].tolist() for begin, end in pairwise(edges)]


def _limit(documents: list[list[int]], most: int | None) -> int | None:
    """Tokens to show of each document, so that something of each is seen."""
    return max(most // len(documents), _LEAST) if most else None


def _document(ids: list[int], limit: int | None, spelling: Spelling | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"length": len(ids), "ids": ids[:limit]}
    if spelling:
        entry["text"] = spelling.text(ids[:limit]).decode("utf-8", "replace")
    return entry


def _print_documents(sample: Shown, spelling: Spelling | None, most: int) -> None:
    limit = _limit(sample.documents, most)
    for ids, (sequence, first) in zip(sample.documents, sample.places, strict=True):
        part = ids[:limit]
        begin = f" from token {first:,} on" if first else ""
        put(dim(f"  ── {count(len(ids), 'token')} of sequence {sequence}{begin}"))
        text = (
            spelling.text(part).decode("utf-8", "replace") if spelling else " ".join(map(str, part))
        )
        for line in text.rstrip("\n").split("\n"):
            for row in textwrap.wrap(shown(line), width() - 2) or [""]:
                put(f"  {row}".rstrip())
        if len(part) < len(ids):
            put(dim(f"  … {count(len(ids) - len(part), 'token')} more; --max-tokens 0 shows all"))

"""Samples as text, document by document, for people and for machines."""

from __future__ import annotations

import textwrap
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tokpack.cli.figures import bold, dim, green, width
from tokpack.cli.shown_dataset import MAX_TOKENS, load
from tokpack.cli.terminal import put
from tokpack.display import shown
from tokpack.quantities import counted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from tokpack.report import Spelling
    from tokpack.samples.blend.plan import BlendPlan
    from tokpack.samples.look import SamplePiece, SampleView

_LEAST = 8  # tokens


def print_samples(plan: BlendPlan, arguments: argparse.Namespace) -> None:
    """Print the first samples of a blend, with a line where each document begins."""
    limit = MAX_TOKENS if arguments.max_tokens is None else arguments.max_tokens
    spelling = spelling_of(plan, arguments)
    for sample in _first(plan, arguments.show):
        put()
        put(heading(sample))
        print_pieces(sample, spelling, limit, _of_sequence)


def samples_json(plan: BlendPlan, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The first samples of a blend for machines."""
    spelling = spelling_of(plan, arguments)
    return [
        {
            **sample_json(sample),
            "documents": [
                {
                    "sequence": piece.sequence,
                    "first": piece.first,
                    **piece_json(sample, piece, arguments.max_tokens, spelling),
                }
                for piece in sample.pieces
            ],
        }
        for sample in _first(plan, arguments.show)
    ]


def spelling_of(plan: BlendPlan, arguments: argparse.Namespace) -> Spelling | None:
    """The tokenizer of a plan's datasets, as flags or a manifest name it."""
    named = [one for one in plan.datasets if one.tokenizer is not None]
    return load((named or plan.datasets)[0].path_prefix, arguments)[1]


def _first(plan: BlendPlan, most: int) -> Iterator[SampleView]:
    from tokpack.samples import open_blend
    from tokpack.samples.look import look

    train = open_blend(
        plan,
        eod_mask_loss=False,
        reset_position_ids=False,
        reset_attention_mask=False,
        allow_empty=True,
        valid_samples=0,
        test_samples=0,
    ).train
    return (look(train, number) for number in range(min(most, len(train))))


def heading(sample: SampleView, more: str = "") -> str:
    """What a sample is, in a line."""
    epoch = "" if sample.epoch is None else f", epoch {sample.epoch}"
    return (
        bold(f"sample {sample.number}")
        + f"{more}: sample {sample.dataset_sample} of {shown(sample.dataset.path_prefix)}{epoch}, "
        + counted(len(sample.pieces), "document")
    )


def print_pieces(
    sample: SampleView,
    spelling: Spelling | None,
    most: int | None,
    of: Callable[[SamplePiece], str],
) -> None:
    """Print the documents of a sample, of ``most`` tokens in all (0: all; None: a line of each).

    ``of`` says what the tokens of a piece are of. Where a dataset says which tokens are trained, a
    bar stands before these.
    """
    for piece in sample.pieces:
        ids = sample.ids(piece)
        part = ids[: width() if most is None else _share(sample, most)]
        trained = sample.trained(piece) if sample.is_masked else []
        words = f", {sum(map(len, trained)):,} trained" if sample.is_masked else ""
        put(dim(f"  ── {counted(len(ids), 'token')} of {of(piece)}{words}"))
        if most is None:
            put(f"  {shown(_text(part, spelling), limit=width() - 2)}".rstrip())
            continue
        for run, is_trained in filter(itemgetter(0), _runs(part, trained)):
            margin = f"{green('▌')} " if is_trained else "  "
            for line in _text(run, spelling).rstrip("\n").split("\n"):
                for row in textwrap.wrap(shown(line), width() - 2) or [""]:
                    put(f"{margin}{row}".rstrip())
        if len(part) < len(ids):
            put(dim(f"  … {counted(len(ids) - len(part), 'token')} more; --max-tokens 0 shows all"))


def _runs(ids: list[int], trained: list[range]) -> Iterator[tuple[list[int], bool]]:
    """Tokens in a row that are all trained, or all not, and which of these."""
    begin = 0
    for one in trained:
        yield ids[begin : one.start], False
        yield ids[one.start : one.stop], True
        begin = one.stop
    yield ids[begin:], False


def origin(kind: str, number: int, first: int) -> str:
    """What tokens are of: a document or a sequence, from one of its tokens on."""
    return f"{kind} {number}" + (f" from token {first:,} on" if first else "")


def _of_sequence(piece: SamplePiece) -> str:
    return origin("sequence", piece.sequence, piece.first)


def sample_json(sample: SampleView) -> dict[str, Any]:
    """What a sample is, for machines."""
    return {
        "sample": sample.number,
        "dataset": sample.dataset.path_prefix,
        "dataset_sample": sample.dataset_sample,
        "epoch": sample.epoch,
    }


def piece_json(
    sample: SampleView, piece: SamplePiece, most: int | None, spelling: Spelling | None
) -> dict[str, Any]:
    """The tokens of a document in a sample, where ``most`` tokens are shown of all of them."""
    ids = sample.ids(piece)
    part = ids[: _share(sample, most)]
    entry: dict[str, Any] = {"length": len(ids), "ids": part}
    if sample.is_masked:
        entry["trained"] = [[one.start, one.stop] for one in sample.trained(piece)]
    return {**entry, "text": _text(part, spelling)} if spelling else entry


def _text(ids: list[int], spelling: Spelling | None) -> str:
    return spelling.text(ids).decode("utf-8", "replace") if spelling else " ".join(map(str, ids))


def _share(sample: SampleView, most: int | None) -> int | None:
    """Tokens to show of each document, so that something of each is seen."""
    return max(most // len(sample.pieces), _LEAST) if most else None

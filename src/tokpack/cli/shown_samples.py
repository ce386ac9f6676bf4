"""Samples of training on a terminal and as JSON: their documents, and the steps that take them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tokpack.cli.figures import bold, dim, width
from tokpack.cli.shown_dataset import MAX_TOKENS, load
from tokpack.cli.terminal import put, put_json
from tokpack.cli.token_text import print_text, text_of
from tokpack.display import shown
from tokpack.errors import UsageError
from tokpack.quantities import counted
from tokpack.report import Sources
from tokpack.samples.look import find, look

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from tokpack.checkpoints.run_history import RunHistory
    from tokpack.configuration.schedule import Step
    from tokpack.indexed import MMapIndexedDataset
    from tokpack.samples.blend.mixture import Portion
    from tokpack.samples.blend.plan import BlendPlan
    from tokpack.samples.look import SamplePiece, SampleView

_LEAST = 8  # tokens of a document
_MOST_LISTED = 12


def print_first(plan: BlendPlan, arguments: argparse.Namespace) -> None:
    """Print the first samples of a blend."""
    shows = _SamplePrinter(plan, arguments)
    for sample in _first(plan, arguments.show):
        limit = arguments.max_tokens
        shows.print(sample, "", MAX_TOKENS if limit is None else limit)


def first_as_json(plan: BlendPlan, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The first samples of a blend."""
    shows = _SamplePrinter(plan, arguments)
    return [shows.as_json(sample) for sample in _first(plan, arguments.show)]


def show_step(history: RunHistory, arguments: argparse.Namespace) -> None:
    """Print the samples of ``--step``, with ``--rank`` those of one rank. UsageError."""
    step, rank = history.step(arguments.step), arguments.rank
    if rank is not None and rank >= step.ranks:
        raise UsageError(f"--rank {rank}: step {step.number} has ranks 0 to {step.ranks - 1}")
    if not arguments.json:
        put(f"step {step.number:,} of {len(history.steps):,}: {history.describe(step)}")
    show_samples(history, arguments, [k for k in step.samples if rank in (None, step.place(k)[0])])


def show_samples(
    history: RunHistory, arguments: argparse.Namespace, numbers: Sequence[int]
) -> None:
    """Print samples, each with the step that takes it. UsageError."""
    shows = _SamplePrinter(history.plan, arguments)
    for number in numbers:
        try:
            sample = look(history.train, number)
        except IndexError as error:
            raise UsageError(f"there is no {error}") from None
        step = history.steps.taking(number)
        if arguments.json:
            put_json({**_place_json(step, number), **shows.as_json(sample)})
        else:
            shows.print(sample, f" ({_place(step, number)})", arguments.max_tokens)


def find_document(history: RunHistory, arguments: argparse.Namespace) -> None:
    """Print the samples, and their steps, that have tokens of ``--document``. UsageError."""
    portion, document = _document(history, arguments.document)
    dataset, prefix = portion.dataset, portion.prefix
    if not arguments.json:
        size = counted(len(dataset.document(document)), "token")
        source = _source_text(Sources(dataset), document)
        put(f"document {document} of {prefix}: {size}{source}")
    samples = 0
    for number in find(history.train, prefix, document, history.steps.samples):
        sample, step = look(history.train, number), history.steps.taking(number)
        pieces = [piece for piece in sample.pieces if piece.document == document]
        seen = step is not None and step.number <= history.steps_made
        samples += 1
        if arguments.json:
            values = {**_place_json(step, number), "sample": number, "seen": seen}
            parts = [{"first": p.offset, "at": p.at, "length": p.tokens} for p in pieces]
            put_json({**values, "epoch": sample.epoch, "parts": parts})
            continue
        when = "seen" if seen else "to come"
        tokens = ", ".join(
            f"tokens {p.offset:,} to {p.offset + p.tokens - 1:,} at {p.at:,}" for p in pieces
        )
        put(f"  sample {number} ({_place(step, number)}, {when}): {tokens or 'a label only'}")
    if not samples and not arguments.json:
        first, stop = dataset.doc_idx[document : document + 2].tolist()
        inside = portion.begin <= first and stop <= portion.end
        why = "" if inside else ": the split keeps it out of training"
        put(f"  in none of the {history.steps.samples:,} samples{why}")


def _first(plan: BlendPlan, most: int) -> Iterator[SampleView]:
    from tokpack.samples import open_blend

    train = open_blend(
        plan,
        eod_mask_loss=False,
        reset_position_ids=False,
        reset_attention_mask=False,
        allow_empty=True,
        valid_samples=0,
        test_samples=0,
    ).train
    return map(partial(look, train), range(min(most, len(train))))


class _SamplePrinter:
    """What is said of the samples of a plan: with their text, by the tokenizer of its datasets."""

    def __init__(self, plan: BlendPlan, arguments: argparse.Namespace) -> None:
        named = [one for one in plan.datasets if one.tokenizer is not None]
        self._spelling = load((named or plan.datasets)[0].path_prefix, arguments)[1]
        self._most: int | None = arguments.max_tokens
        self._sources: dict[str, Sources] = {}

    def print(self, sample: SampleView, place: str, most: int | None) -> None:
        """Print the documents of a sample, ``most`` tokens in all (0: all; None: a line of each).

        Where a dataset says which tokens are trained, these are marked.
        """
        epoch = "" if sample.epoch is None else f", epoch {sample.epoch}"
        put()
        put(
            f"{bold(f'sample {sample.number}')}{place}: sample {sample.dataset_sample} of "
            f"{shown(sample.dataset.path_prefix)}{epoch}, "
            + counted(len(sample.pieces), "document")
        )
        for line in _marks(sample):
            put(dim(f"  {line}"))
        sources = self._sources_of(sample.dataset)
        for piece in sample.pieces:
            ids = sample.ids(piece)
            part = ids[: width() if most is None else _share(sample, most)]
            trained = _mask(sample, piece) if sample.is_masked else None
            first = f" from token {piece.offset:,} on" if piece.offset else ""
            words = "" if trained is None else f", {sum(trained):,} trained"
            source = _source_text(sources, piece.document)
            what = f"document {piece.document}{first}{source}{words}"
            put(dim(f"  ── {counted(len(ids), 'token')} of {what}"))
            if most is None:
                text = text_of(part, self._spelling)
                put(f"  {shown(text, limit=width() - 2)}".rstrip())
                continue
            print_text(part, self._spelling, trained and trained[: len(part)])
            if more := len(ids) - len(part):
                put(dim(f"  … {counted(more, 'token')} more; --max-tokens 0 shows all"))

    def as_json(self, sample: SampleView) -> dict[str, Any]:
        """A sample for machines."""
        return {
            "sample": sample.number,
            "dataset": sample.dataset.path_prefix,
            "dataset_sample": sample.dataset_sample,
            "epoch": sample.epoch,
            "tokens": len(sample.arrays["tokens"]),
            "boundaries": sample.boundaries,
            "no_loss": [[one.start, one.stop] for one in sample.no_loss],
            "documents": [self._piece_as_json(sample, piece) for piece in sample.pieces],
        }

    def _piece_as_json(self, sample: SampleView, piece: SamplePiece) -> dict[str, Any]:
        ids = sample.ids(piece)
        part = ids[: _share(sample, self._most)]
        entry: dict[str, Any] = {
            "document": piece.document,
            "first": piece.offset,
            "sequence": piece.sequence,
            "at": piece.at,
            **vars(self._sources_of(sample.dataset).find(piece.document)),
            "length": len(ids),
            "ids": part,
        }
        if sample.is_masked:
            entry["trained"] = [[one.start, one.stop] for one in sample.trained(piece)]
        if self._spelling:
            entry["text"] = text_of(part, self._spelling)
        return entry

    def _sources_of(self, dataset: MMapIndexedDataset) -> Sources:
        return self._sources.setdefault(dataset.path_prefix, Sources(dataset))


def _mask(sample: SampleView, piece: SamplePiece) -> list[int]:
    """1 for each token of a piece that is trained, else 0."""
    places = {place for one in sample.trained(piece) for place in one}
    return [int(place in places) for place in range(piece.tokens)]


def _share(sample: SampleView, most: int | None) -> int | None:
    """Tokens to show of each document, so that something of each is seen."""
    return max(most // len(sample.pieces), _LEAST) if most else None


def _marks(sample: SampleView) -> Iterator[str]:
    """What else of a sample is not as in a running text of which all is learned."""
    length = len(sample.arrays["tokens"])
    if sample.filled < length:
        yield f"padding from {sample.filled:,} on"
    if sample.boundaries is not None:
        yield f"attention begins anew at {_listed(sample.boundaries[:-1])}"
    if sample.no_loss:
        places = [f"{r[0]}" if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in sample.no_loss]
        total = sum(map(len, sample.no_loss))
        yield f"no loss behind {total} of {length} tokens: {_listed(places)}"


def _listed(values: Sequence[object]) -> str:
    more = ", ..." if len(values) > _MOST_LISTED else ""
    return ", ".join(map(str, values[:_MOST_LISTED])) + more


def _source_text(sources: Sources, document: int) -> str:
    """Where a document came from, as far as it is known."""
    return "".join(f", {one}" for one in sources.find(document).words)


def _place(step: Step | None, sample: int) -> str:
    if step is None:
        return "no step takes it"
    rank, batch = step.place(sample)
    return f"step {step.number}, rank {rank}, micro batch {batch}"


def _place_json(step: Step | None, sample: int) -> dict[str, Any]:
    rank, batch = (None, None) if step is None else step.place(sample)
    return {"step": step and step.number, "rank": rank, "micro_batch": batch}


def _document(history: RunHistory, text: str) -> tuple[Portion, int]:
    """The training portion of the dataset that is named, and the number of its document."""
    name, colon, digits = text.rpartition(":")
    portions = {portion.prefix: portion for portion in history.plan.train.portions}
    matching = [
        p for prefix, p in portions.items() if f"/{prefix}".endswith(f"/{name}" if name else "")
    ]
    if not digits.isdecimal() or (not colon and len(portions) > 1):
        raise UsageError(f"--document {text!r} is not such as {next(iter(portions))}:17")
    if len(matching) != 1:
        some = _listed(list(portions))
        raise UsageError(f"--document {text}: {name} is not one of the datasets {some}")
    (portion,) = matching
    if int(digits) >= portion.dataset.documents:
        raise UsageError(
            f"--document {text}: {portion.prefix} has documents 0 to "
            f"{portion.dataset.documents - 1}"
        )
    return portion, int(digits)

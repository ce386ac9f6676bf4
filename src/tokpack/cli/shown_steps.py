"""What steps of a training run took, and the steps that took a document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokpack.cli import terminal
from tokpack.cli.figures import dim
from tokpack.cli.shown_samples import (
    heading,
    origin,
    piece_json,
    print_pieces,
    sample_json,
    spelling_of,
)
from tokpack.errors import UsageError
from tokpack.quantities import counted
from tokpack.report import Sources
from tokpack.samples.look import find, look

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from tokpack.checkpoints.course import RunHistory
    from tokpack.configuration.schedule import Step
    from tokpack.indexed import MMapIndexedDataset
    from tokpack.report import Spelling
    from tokpack.samples.blend.mixture import Portion
    from tokpack.samples.look import SamplePiece, SampleView

_MOST_LISTED = 12


def show_step(course: RunHistory, arguments: argparse.Namespace) -> None:
    """Print the samples of ``--step``, with ``--rank`` those of one rank. UsageError."""
    step, rank = course.step(arguments.step), arguments.rank
    if rank is not None and rank >= step.ranks:
        raise UsageError(f"--rank {rank}: step {step.number} has ranks 0 to {step.ranks - 1}")
    if not arguments.json:
        terminal.put(f"step {step.number:,} of {len(course.steps):,}: {course.describe(step)}")
    show_samples(course, arguments, [k for k in step.samples if rank in (None, step.place(k)[0])])


def show_samples(course: RunHistory, arguments: argparse.Namespace, numbers: Sequence[int]) -> None:
    """Print samples, each with the step that takes it. UsageError."""
    spelling, sources = spelling_of(course.plan, arguments), _Sources()
    for number in numbers:
        try:
            sample = look(course.train, number)
        except IndexError as error:
            raise UsageError(f"there is no {error}") from None
        step = course.steps.taking(number)
        if arguments.json:
            terminal.put_json(_as_json(sample, step, sources, spelling, arguments.max_tokens))
            continue

        def of(piece: SamplePiece, dataset: MMapIndexedDataset = sample.dataset) -> str:
            source = sources.text(dataset, piece.document)
            return origin("document", piece.document, piece.offset) + source

        terminal.put()
        terminal.put(heading(sample, f" ({_place(step, number)})"))
        for line in _marks(sample):
            terminal.put(dim(f"  {line}"))
        print_pieces(sample, spelling, arguments.max_tokens, of)


def _place(step: Step | None, sample: int) -> str:
    if step is None:
        return "no step takes it"
    rank, batch = step.place(sample)
    return f"step {step.number}, rank {rank}, micro batch {batch}"


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


def _as_json(
    sample: SampleView,
    step: Step | None,
    sources: _Sources,
    spelling: Spelling | None,
    most: int | None,
) -> dict[str, Any]:
    documents = []
    for piece in sample.pieces:
        source, line = sources.find(sample.dataset, piece.document)
        documents.append(
            {
                "document": piece.document,
                "first": piece.offset,
                "sequence": piece.sequence,
                "at": piece.at,
                "source": source,
                "line": line,
                **piece_json(sample, piece, most, spelling),
            }
        )
    return {
        **_place_json(step, sample.number),
        **sample_json(sample),
        "tokens": len(sample.arrays["tokens"]),
        "boundaries": sample.boundaries,
        "no_loss": [[one.start, one.stop] for one in sample.no_loss],
        "documents": documents,
    }


def _place_json(step: Step | None, sample: int) -> dict[str, Any]:
    rank, batch = (None, None) if step is None else step.place(sample)
    return {"step": step and step.number, "rank": rank, "micro_batch": batch}


def find_document(course: RunHistory, arguments: argparse.Namespace) -> None:
    """Print the samples, and their steps, that have tokens of ``--document``. UsageError."""
    portion, document = _document(course, arguments.document)
    prefix, sources = portion.prefix, _Sources()
    if not arguments.json:
        size = counted(len(portion.dataset.document(document)), "token")
        terminal.put(
            f"document {document} of {prefix}: {size}{sources.text(portion.dataset, document)}"
        )
    samples = 0
    for number in find(course.train, prefix, document, course.steps.samples):
        sample, step = look(course.train, number), course.steps.taking(number)
        pieces = [piece for piece in sample.pieces if piece.document == document]
        seen = step is not None and step.number <= course.made if course.log.begins else None
        samples += 1
        if arguments.json:
            values = {**_place_json(step, number), "sample": number, "seen": seen}
            parts = [{"first": p.offset, "at": p.at, "length": p.tokens} for p in pieces]
            terminal.put_json({**values, "epoch": sample.epoch, "parts": parts})
            continue
        when = {True: ", seen", False: ", to come", None: ""}[seen]
        tokens = ", ".join(
            f"tokens {p.offset:,} to {p.offset + p.tokens - 1:,} at {p.at:,}" for p in pieces
        )
        terminal.put(
            f"  sample {number} ({_place(step, number)}{when}): {tokens or 'a label only'}"
        )
    if not samples and not arguments.json:
        first, stop = portion.dataset.doc_idx[document : document + 2].tolist()
        inside = portion.begin <= first and stop <= portion.end
        why = "" if inside else ": the split keeps it out of training"
        terminal.put(f"  in none of the {course.steps.samples:,} samples{why}")


def _document(course: RunHistory, text: str) -> tuple[Portion, int]:
    """The training portion of the dataset that is named, and the number of its document."""
    name, colon, digits = text.rpartition(":")
    portions = {portion.prefix: portion for portion in course.plan.train.portions}
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


class _Sources:
    """Where documents of several datasets come from."""

    def __init__(self) -> None:
        self._known: dict[str, Sources] = {}

    def find(self, dataset: MMapIndexedDataset, document: int) -> tuple[str, int | None]:
        """The input and its line, as far as they are known."""
        sources = self._known.setdefault(dataset.path_prefix, Sources(dataset))
        return sources.find(document)

    def text(self, dataset: MMapIndexedDataset, document: int) -> str:
        """The same for the end of a line."""
        source, line = self.find(dataset, document)
        return f", {source}" + ("" if line is None else f":{line}") if source else ""

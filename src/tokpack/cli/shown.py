"""Tokens on a terminal, as a text, or one by one above their ids; trained ones are marked."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokpack.cli.figures import bold, dim, green, print_table, table, width, wrapped
from tokpack.cli.inputs import MAX_TOKENS, load
from tokpack.cli.summary import as_read, conversations, expected
from tokpack.cli.terminal import is_coloured, put, put_json
from tokpack.dataset import MMapIndexedDataset
from tokpack.dataset.manifest import LOSS_TRACKS
from tokpack.dataset.sources import Sources, kept_values
from tokpack.dataset.spelling import Spelling, TokenText, spelling_of, turns_of
from tokpack.display import shown
from tokpack.errors import UsageError
from tokpack.look.facts import source_table
from tokpack.quantities import bytes_text, counted, percent
from tokpack.samples.look import find, look

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from tokpack.dataset.overview import Overview
    from tokpack.encoding import EncodeOptions
    from tokpack.progress import Progress
    from tokpack.samples.blend import BlendPlan, Portion
    from tokpack.samples.look import SamplePiece, SampleView
    from tokpack.trainer.checkpoints.history import RunHistory
    from tokpack.trainer.config.schedule import Step


_COLOURS = ("\x1b[30;48;5;153m", "\x1b[30;48;5;223m")  # black on light blue, on light orange
_TRAINED = ("\x1b[30;48;5;120m", "\x1b[30;48;5;157m")  # on two greens
_UNTRAINED = ("\x1b[30;48;5;250m", "\x1b[30;48;5;254m")  # on two greys
_END = "\x1b[0m"
_ALL = "; --max-tokens 0 shows all"
_BLANK = "\N{OPEN BOX}"


def text_of(ids: Sequence[int], spelling: Spelling | None) -> str:
    """The text of tokens; without a tokenizer the ids."""
    return spelling.text(ids).decode("utf-8", "replace") if spelling else " ".join(map(str, ids))


def print_text(
    ids: Sequence[int], spelling: Spelling | None, trained: Sequence[int] | None = None
) -> None:
    """Print the text of tokens. ``trained`` is 1 for each trained one: these are green, or, without
    colours, in [[ ]].
    """
    mark = green if is_coloured() else "[[{}]]".format
    runs = []
    for is_trained, run in groupby(zip(ids, trained or [0] * len(ids), strict=True), itemgetter(1)):
        lines = [shown(line) for line in text_of([token for token, _ in run], spelling).split("\n")]
        runs.append("\n".join(mark(line) if is_trained and line else line for line in lines))
    text = ("" if spelling else " ").join(runs)
    for line in text.removesuffix("\n").split("\n"):
        for row in wrapped(line, width() - 2):
            put(f"  {row}")


def print_tokens(
    ids: Sequence[int], spelling: Spelling | None, trained: Sequence[int] | None = None
) -> None:
    """Print tokens in alternating colours, with their ids below; ``trained`` is 1 for trained
    ones.
    """
    for text, numbers in _rows(ids, spelling, trained, width() - 2):
        if text is not None:
            put(f"  {text}".rstrip())
        put(f"  {numbers}".rstrip())


def _rows(
    ids: Sequence[int], spelling: Spelling | None, trained: Sequence[int] | None, columns: int
) -> Iterator[tuple[str | None, str]]:
    """Rows of text over rows of ids, aligned, no wider than ``columns``.

    Until some token has a text there are only ids.
    """
    from rich.cells import cell_len

    spelled = spelling.whole(ids) if spelling else [TokenText((token,), "") for token in ids]
    text_row, id_row, used, at = "", "", 0, 0
    has_text, coloured = False, is_coloured()
    for count, one in enumerate(spelled):
        numbers, colours = "+".join(map(str, one.ids)), _COLOURS
        if trained is not None:
            is_trained = any(trained[at : at + len(one.ids)])
            numbers += "*" if is_trained else ""
            colours = _TRAINED if is_trained else _UNTRAINED
        at += len(one.ids)
        # A colour shows where a token ends. Without colours a bar does, and blanks are visible.
        text = shown(one.text) if coloured else shown(one.text).replace(" ", _BLANK)
        size = max(cell_len(text), cell_len(numbers)) + 1
        if used and used + size > columns:
            yield text_row if has_text else None, id_row
            text_row, id_row, used = "", "", 0
        has_text = has_text or bool(text)
        blank = " " * (size - 1 - cell_len(text))
        text_row += f"{colours[count % 2]}{text}{_END}{blank} " if coloured else f"{text}|{blank}"
        id_row += dim(numbers.ljust(size))
        used += size
        if one.text.endswith("\n"):
            yield text_row, id_row
            text_row, id_row, used = "", "", 0
    if used:
        yield text_row if has_text else None, id_row


_MOST_SOURCES = 8


def print_overview(facts: Overview) -> None:
    """Print what a dataset is."""
    tokenizer = facts.tokenizer
    rows = [
        ["documents", f"{facts.documents:,}"],
        ["tokens", f"{facts.tokens:,}, stored as {facts.dtype}"],
        ["tokenizer", _tokenizer(tokenizer)],
    ]
    if facts.sequences != facts.documents:
        rows.insert(1, ["sequences", f"{facts.sequences:,}"])
    if facts.multimodal:
        rows.append(["modes", "one for each sequence: it is multimodal"])
    if tracks := [f"{name} ({kind})" for name, kind in facts.tracks.items() if name in LOSS_TRACKS]:
        share = (
            ""
            if facts.trained is None
            else (f"{facts.trained:,} tokens ({percent(facts.trained, facts.tokens)}), ")
        )
        rows.append(["trained", f"{share}by {' and '.join(tracks)}"])
    if facts.bytes_per_token is not None:
        how = " (measured on a sample)" if facts.measured else ""
        rows.append(["bytes per token", f"{facts.bytes_per_token:.2f}{how}"])
    if facts.text_bytes is not None:
        rows.append(["text", bytes_text(facts.text_bytes)])
    if facts.records is not None:
        left_out = [f"{facts.empty:,} without tokens", f"{facts.rejected:,} rejected"]
        left_out += facts.chosen()
        rows.append(["records read", f"{facts.records:,}: {', '.join(left_out)}"])
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
    *,
    rest: str = _ALL,
) -> None:
    """Print a document: text above, ids below.

    ``shown_tokens`` are the number of the first token, and how many (0: all); ``rest`` follows the
    number of those that are left.
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
        put(dim(f"  … and {counted(len(tokens) - end, 'more token')}{rest}"))
    put()


_TRIED = 100  # records that are encoded to be shown
_CONVERSATIONS, _REJECTS = 3, 3  # that are shown
_MOST_TOKENS = 48  # that are shown of a document
_MOST_SECONDS, _MOST_TEXT = 2.0, 256 << 20  # of a run that is only measured


class _MeasuredError(Exception):
    """A run has done enough to tell its speed."""


def print_trial(options: EncodeOptions) -> None:
    """Print what the first documents become, and what to expect of all, for encode --dry-run.

    The first records are encoded, and a second run is stopped after two seconds, in a folder that
    is removed again. Raises as encode.
    """
    from tokpack.encoding import encode, rejects_path  # other commands need not load it

    limit = min(options.limit or _TRIED, _TRIED)
    steps: list[Progress] = []

    def measure(step: Progress) -> None:
        steps.append(step)
        if step.done and (step.seconds > _MOST_SECONDS or step.text_bytes > _MOST_TEXT):
            raise _MeasuredError

    with tempfile.TemporaryDirectory(prefix="tokpack-dry-run-") as folder:
        named: Any = {"output_names": {}, "overwrite": True, "scratch": None, "files": None}
        trial = replace(options, output=os.path.join(folder, "trial"), report_to=None, **named)
        first = replace(trial, limit=limit, workers=1)
        manifests = encode(first, progress=steps.append)
        table([*as_read(options, manifests), *conversations(manifests[0])], left=(0, 1))
        if manifests[0].rejected or manifests[0].reasons:
            _print_rejects(rejects_path(first))
        for prefix in first.output_names.values():
            dataset = MMapIndexedDataset(prefix)
            sources, spelling = Sources(dataset), spelling_of(dataset)
            for number in range(min(dataset.documents, _CONVERSATIONS if options.chat else 1)):
                put()
                if options.chat:
                    _print_conversation(dataset, sources, spelling, number)
                else:
                    print_document(dataset, sources, spelling, number, (0, _MOST_TOKENS), rest="")
        is_measured = options.limit == limit or manifests[0].records < limit
        if not is_measured and not any(one == "-" or Path(one).is_fifo() for one in options.inputs):
            steps.clear()
            with suppress(_MeasuredError):
                encode(replace(trial, output=os.path.join(folder, "all")), progress=measure)
            is_measured = True
        if is_measured:
            put()
            put(expected(options, steps, dataset.dtype.itemsize))
    put(dim("nothing was written: leave out --dry-run to encode"))


def _print_conversation(
    dataset: MMapIndexedDataset, sources: Sources, spelling: Spelling | None, number: int
) -> None:
    ids = dataset.document(number).tolist()
    assert dataset.mask is not None
    mask = dataset.mask.document(number).tolist()
    words = [counted(len(ids), "token"), f"{sum(mask):,} trained", *sources.find(number).words]
    put(bold(f"conversation {number + 1}: {', '.join(words)}"))
    print_text(ids, spelling, mask)


def _print_rejects(path: str) -> None:
    """Print the place and the reason of the first records that became no document."""
    with open(path, encoding="utf-8") as file:
        for one in map(json.loads, islice(file, _REJECTS)):
            put(f"  {one['source']}:{one['line']}: {one['reason']}")


_LEAST = 8  # tokens of a document
_MOST_LISTED = 12


def print_first(plan: BlendPlan, arguments: argparse.Namespace) -> None:
    """Print the first samples of a blend."""
    printer = _SamplePrinter(plan, arguments)
    most = MAX_TOKENS if arguments.max_tokens is None else arguments.max_tokens
    for sample in _first(plan, arguments.show):
        printer.print(sample, "", most)


def first_as_json(plan: BlendPlan, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The first samples of a blend."""
    return [*map(_SamplePrinter(plan, arguments).as_json, _first(plan, arguments.show))]


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
        words = [counted(len(dataset.document(document)), "token")]
        words += Sources(dataset).find(document).words
        put(f"document {document} of {prefix}: {', '.join(words)}")
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
        put(f"  not in any of the {history.steps.samples:,} samples{why}")


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
    """Prints samples of a plan, with their text by the tokenizer of its datasets."""

    def __init__(self, plan: BlendPlan, arguments: argparse.Namespace) -> None:
        named = [one for one in plan.datasets if one.tokenizer is not None]
        self._spelling = load((named or plan.datasets)[0].path_prefix, arguments)[1]
        self._most: int | None = arguments.max_tokens
        self._sources: dict[str, Sources] = {}

    def print(self, sample: SampleView, place: str, most: int | None) -> None:
        """Print the documents of a sample, ``most`` tokens in all (0: all; None: one line each).

        If a dataset tells which tokens are trained, these are marked.
        """
        epoch = "" if sample.epoch is None else f", epoch {sample.epoch}"
        put()
        put(
            f"{bold(f'sample {sample.number}')}{place}: sample {sample.dataset_sample} of "
            f"{shown(sample.dataset.path_prefix)}{epoch}, {counted(len(sample.pieces), 'document')}"
        )
        for line in _marks(sample):
            put(dim(f"  {line}"))
        sources = self._sources_of(sample.dataset)
        for piece in sample.pieces:
            ids = sample.ids(piece)
            part = ids[: width() if most is None else _share(sample, most)]
            trained = _mask(sample, piece) if sample.is_masked else None
            first = f" from token {piece.offset:,} on" if piece.offset else ""
            words = [f"document {piece.document}{first}", *sources.find(piece.document).words]
            words += [] if trained is None else [f"{sum(trained):,} trained"]
            put(dim(f"  ── {counted(len(ids), 'token')} of {', '.join(words)}"))
            if most is None:
                text = text_of(part, self._spelling)
                put(f"  {shown(text, limit=width() - 2)}".rstrip())
                continue
            print_text(part, self._spelling, trained and trained[: len(part)])
            if more := len(ids) - len(part):
                put(dim(f"  … and {counted(more, 'more token')}{_ALL}"))

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
    """The number of tokens to show of each document, so that each is shown; None for all."""
    return max(most // len(sample.pieces), _LEAST) if most else None


def _marks(sample: SampleView) -> Iterator[str]:
    """How a sample differs from a running text that is trained as a whole, in words."""
    length = len(sample.arrays["tokens"])
    if sample.filled < length:
        yield f"padding from {sample.filled:,} on"
    if sample.boundaries is not None:
        yield f"attention restarts at {_listed(sample.boundaries[:-1])}"
    if sample.no_loss:
        places = [f"{r[0]}" if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in sample.no_loss]
        total = sum(map(len, sample.no_loss))
        yield f"no loss at {total} of {length} positions: {_listed(places)}"


def _listed(values: Sequence[object]) -> str:
    more = ", ..." if len(values) > _MOST_LISTED else ""
    return ", ".join(map(str, values[:_MOST_LISTED])) + more


def _place(step: Step | None, sample: int) -> str:
    if step is None:
        return "in no step"
    rank, batch = step.place(sample)
    return f"step {step.number}, rank {rank}, micro batch {batch}"


def _place_json(step: Step | None, sample: int) -> dict[str, Any]:
    rank, batch = step.place(sample) if step else (None, None)
    return {"step": step and step.number, "rank": rank, "micro_batch": batch}


def _document(history: RunHistory, text: str) -> tuple[Portion, int]:
    """The training portion of the dataset that is named, and the number of its document."""
    name, colon, digits = text.rpartition(":")
    portions = {portion.prefix: portion for portion in history.plan.train.portions}
    matching = [
        p for prefix, p in portions.items() if f"/{prefix}".endswith(f"/{name}" if name else "")
    ]
    if not digits.isdecimal() or (not colon and len(portions) > 1):
        raise UsageError(f"--document {text!r} is not DATASET:D, such as {next(iter(portions))}:17")
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

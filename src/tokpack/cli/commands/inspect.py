"""``tokpack inspect``: what a dataset is, its documents token by token, and where they are from."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from tokpack.cli import terminal
from tokpack.cli.inputs import MAX_TOKENS, load, of_dataset
from tokpack.cli.parser import Group, Page, flags, keep_one, number
from tokpack.display import shown
from tokpack.errors import UsageError
from tokpack.quantities import time_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from tokpack.dataset import MMapIndexedDataset, Origin, Origins
    from tokpack.dataset.sources import Sources
    from tokpack.dataset.spelling import Spelling
    from tokpack.progress import Progress

MATCH_TOKENS = 48

PAGE = Page(
    "inspect",
    "Show what a dataset is, or its documents with their tokens.",
    (
        Group(
            "documents",
            flags(
                f"""
                --doc, --document N|A:B  show document N (-1 is the last), A to B-1, or a list
                                         1,7,20:30
                --sample N               show N documents, spread evenly
                --random [N]             show N random documents (1)
                --seed S                 seed of --random, to see the same ones again
                --source FILE:LINE...    show what became of these lines of inputs: a document, or
                                         why there is none
                --grep TEXT              show documents whose text contains TEXT
                --limit N                stop --grep after N documents, 0: never (10)
                --max-tokens N           tokens shown of a document, 0: all ({MAX_TOKENS}; --grep
                                         {MATCH_TOKENS}; --json all)
                """,
                doc={"action": "append"},
                random={"type": number(1), "nargs": "?", "const": 1},
                seed={"type": number(0)},
                limit={"type": number(0), "default": 10},
                max_tokens={"type": number(0)},
            ),
        ),
        *of_dataset(),
        Group(
            "output",
            flags(
                """
                --text   print only the text of the documents, all of it, without EOD and BOS
                --trace  print only FILE:LINE of the documents; for all, as TSV with their numbers
                --json   print JSON on stdout; with --trace one object per line
                """
            ),
        ),
        Group("of the former command trace", flags("--all  "), hidden=True),
    ),
    """\
INPUT is the PREFIX of a dataset's .bin and .idx, made by tokpack or by any other program; for
--source and --trace one that was encoded with --keep or --trace, or a view of such. Lines count
from 1; in a table they are rows, in a JSON array elements, in an archive records.

examples:
  tokpack inspect the-pile                    what it is, on one screen
  tokpack inspect the-pile --doc 17           the tokens of document 17, and their ids
  tokpack inspect the-pile --doc -3:          the last three
  tokpack inspect the-pile --random 5 --max-tokens 40
  tokpack inspect the-pile --doc 17 --text | wc -w
  tokpack inspect the-pile --grep 'Tlön' --limit 3
  tokpack inspect the-pile --source wiki.jsonl:123          the document of this line
  tokpack inspect the-pile --source wiki.jsonl:123 --trace  120, or rejected: malformed JSON: ...
  tokpack inspect the-pile --trace > documents.tsv          document, file, line
  tokpack inspect other --doc 0 --vocab-file vocab.json --merge-file merges.txt
""",
    usage="INPUT [flags]",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack inspect``."""
    if arguments.text:
        for other in ("--json", "--max-tokens", "--grep", "--trace"):
            keep_one(arguments, "--text", other)
    if arguments.trace:
        keep_one(arguments, "--trace", "--grep")
        return _trace(_origins(arguments), arguments)
    dataset, spelling = load(arguments.inputs[0], arguments)
    chosen = _chosen(dataset.documents, arguments)
    if arguments.grep is not None:
        return _grep(dataset, spelling, arguments)
    if arguments.source:
        chosen = _of_lines(_lines(_origins(arguments), arguments))
    if arguments.text:
        return _print_texts(dataset, spelling, chosen)
    if chosen is not None:
        places = ((document, 0) for document in chosen)
        _show(dataset, spelling, places, arguments, MAX_TOKENS)
        return 0
    from tokpack.dataset.overview import overview

    result = overview(dataset, spelling)
    if arguments.json:
        terminal.put_json(result)
    else:
        from tokpack.cli.shown import print_overview

        print_overview(result)
    return 0


def _chosen(count: int, arguments: argparse.Namespace) -> Iterable[int] | None:
    """The requested documents of ``count``, before any is read, or None if none are requested."""
    from tokpack.dataset.overview import random_documents, ranges, sample_documents

    if arguments.grep == "":
        raise UsageError("--grep needs a text")
    keep_one(arguments, "--doc", "--sample", "--random", "--source", "--grep")
    if arguments.seed is not None and not arguments.random:
        raise UsageError("--seed goes with --random")
    if not count and (arguments.doc or arguments.sample or arguments.random or arguments.grep):
        raise UsageError(f"{arguments.inputs[0]} has no documents")
    if arguments.doc:
        chosen = [part for text in arguments.doc for part in ranges(text, count)]
        return (document for part in chosen for document in part)
    if arguments.sample:
        return sample_documents(count, arguments.sample)
    if arguments.random:
        return random_documents(count, arguments.random, arguments.seed)
    return None


def _origins(arguments: argparse.Namespace) -> Origins:
    from tokpack.dataset import Origins

    return Origins(arguments.inputs[0], kept=arguments.json)


def _trace(origins: Origins, arguments: argparse.Namespace) -> int:
    """Print which lines documents came from, or which documents came from lines."""
    chosen = _chosen(len(origins), arguments)
    traced: Iterable[Origin] = origins
    if arguments.source:
        traced = _lines(origins, arguments)
    elif chosen is not None:
        traced = [origins[number] for number in chosen]
    for one in traced:
        if arguments.json:
            terminal.put_json(one)
        elif arguments.source:
            terminal.put(_outcome(one) if one.document is None else str(one.document))
        elif chosen is None:
            sys.stdout.write(f"{one.document}\t{shown(one.source)}\t{one.line or ''}\n")
        else:
            terminal.put(str(one))
    return 0


def _lines(origins: Origins, arguments: argparse.Namespace) -> list[Origin]:
    """What became of the lines of --source."""
    lines = []
    for text in arguments.source:
        source, _, line = text.rpartition(":")
        if not source or not line.isdecimal():
            raise UsageError(f"--source {text!r} is not FILE:LINE, such as wiki.jsonl:123")
        lines += origins.find(source, int(line))
    return lines


def _outcome(origin: Origin) -> str:
    """Why a line is no document."""
    words = {
        "empty": "empty, left out",
        "rejected": "rejected",
        "unselected": "not in the view",
        "nothing": "no record",
    }
    return words[origin.became] + (f": {origin.reason}" if origin.reason else "")


def _of_lines(lines: Iterable[Origin]) -> Iterator[int]:
    """The documents of lines; notes say why other lines have none."""
    for one in lines:
        if one.document is not None:
            yield one.document
        else:
            terminal.note(f"{one}: {_outcome(one)}")


def _print_texts(
    dataset: MMapIndexedDataset, spelling: Spelling | None, chosen: Iterable[int] | None
) -> int:
    from tokpack.dataset.spelling import document_text

    if chosen is None:
        raise UsageError("--text needs documents: choose them with --doc, --sample or --random")
    if spelling is None:
        raise UsageError("--text needs the tokenizer: give it with --tokenizer or --vocab-file")
    for document in chosen:
        text = document_text(dataset, spelling, document)
        terminal.put_text(text if text.endswith(b"\n") else text + b"\n")
    return 0


def _grep(
    dataset: MMapIndexedDataset, spelling: Spelling | None, arguments: argparse.Namespace
) -> int:
    from tokpack.dataset.overview import grep

    if spelling is None:
        raise UsageError("--grep needs the tokenizer: give it with --tokenizer or --vocab-file")
    began, searched, matches = time.monotonic(), 0, 0

    def progress(now: Progress) -> None:
        nonlocal searched
        searched = now.done

    def places() -> Iterator[tuple[int, int]]:
        nonlocal matches
        for match in grep(dataset, spelling, arguments.grep, progress=progress):
            matches += 1
            yield match.document, match.token
            if matches == arguments.limit:
                return

    _show(dataset, spelling, places(), arguments, MATCH_TOKENS)
    stopped = f"; stopped after --limit {arguments.limit}" if matches == arguments.limit else ""
    terminal.say(
        f"tokpack: found in {matches:,} of {searched:,} documents searched, of "
        f"{dataset.documents:,}, in {time_text(time.monotonic() - began)}{stopped}"
    )
    return 0


def _show(
    dataset: MMapIndexedDataset,
    spelling: Spelling | None,
    places: Iterable[tuple[int, int]],
    arguments: argparse.Namespace,
    most: int,
) -> None:
    """Print documents, each from a little before its token ``at``."""
    limit = arguments.max_tokens
    if limit is None:
        limit = 0 if arguments.json else most
    from tokpack.dataset.sources import Sources

    sources = Sources(dataset)
    if arguments.json:
        entries = [_as_json(dataset, sources, spelling, doc, limit) for doc, _ in places]
        terminal.put_json({"prefix": dataset.path_prefix, "documents": entries})
        return
    from tokpack.cli.shown import print_document

    for document, at in places:
        begin = max(0, at - limit // 4) if limit else 0
        print_document(dataset, sources, spelling, document, (begin, limit))
        sys.stdout.flush()


def _as_json(
    dataset: MMapIndexedDataset,
    sources: Sources,
    spelling: Spelling | None,
    number: int,
    limit: int,
) -> dict[str, Any]:
    from tokpack.dataset.spelling import turns_of

    ids = dataset.document(number)
    length, ids = len(ids), ids[: limit or None].tolist()
    place = sources.find(number)
    entry = {"document": number, "length": length, **vars(place), "ids": ids}
    turns = turns_of(dataset, number, 0, len(ids))
    if any(turn.role for turn in turns):
        entry["turns"] = [turn._asdict() for turn in turns]
    if spelling:
        entry["text"] = spelling.text(ids).decode("utf-8", "replace")
    return entry

"""``tokpack trace``: which input and line a document came from, and what became of a line."""

from __future__ import annotations

import sys
from itertools import chain
from typing import TYPE_CHECKING

from tokpack.cli import terminal
from tokpack.cli.parser import Group, Page, flags
from tokpack.display import shown
from tokpack.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from tokpack.indexed import Origin, Origins

PAGE = Page(
    "trace",
    "Say which input and line a document came from, and what became of a line of an input.",
    (
        Group(
            "flags",
            flags(
                """
                --doc, --document N|A:B...  print FILE:LINE of document N (-1 is the last), or of A
                                            to B-1
                --source FILE:LINE...       print the number of the document, or why there is none
                --all                       print all documents as TSV
                --json                      print JSON, an object a line
                """,
                doc={"default": []},
                source={"default": []},
            ),
        ),
    ),
    """\
INPUT is the PREFIX of a dataset that was encoded with --keep or --trace, or of a view of such.
Lines count from 1; in a table they are rows, in a JSON array elements, in an archive records.

examples:
  tokpack encode wiki.jsonl --trace
  tokpack trace wiki --doc 17                  wiki.jsonl:18
  tokpack trace wiki --doc 0:3                 the first three, a line each
  tokpack trace wiki --source wiki.jsonl:123   120, or: rejected: malformed JSON: ...
  tokpack trace wiki --all > documents.tsv     document, file, line
""",
    usage="INPUT [flags]",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack trace``."""
    if not (arguments.doc or arguments.source or arguments.all):
        raise UsageError("nothing asked: add --doc N, --source FILE:LINE, or --all")
    from tokpack.indexed import Origins
    from tokpack.report import ranges

    origins = Origins(arguments.inputs[0])
    chosen = [part for text in arguments.doc for part in ranges(text, len(origins))]
    documents = [origins[number] for part in chosen for number in part]
    lines = [origin for text in arguments.source for origin in _line(origins, text)]
    if arguments.json:
        for origin in chain(documents, lines, origins if arguments.all else ()):
            terminal.put_json(origin)
        return 0
    for line in (*map(str, documents), *map(_outcome, lines)):
        terminal.put(line)
    if arguments.all:
        sys.stdout.writelines(f"{o.document}\t{shown(o.source)}\t{o.line}\n" for o in origins)
    return 0


def _line(origins: Origins, text: str) -> list[Origin]:
    source, _, line = text.rpartition(":")
    if not source or not line.isdecimal():
        raise UsageError(f"--source {text!r} is not such as wiki.jsonl:123")
    return origins.find(source, int(line))


def _outcome(origin: Origin) -> str:
    if origin.document is not None:
        return str(origin.document)
    words = {
        "empty": "empty, left out",
        "rejected": "rejected",
        "unselected": "not in the view",
        "nothing": "no record",
    }
    return words[origin.became] + (f": {origin.reason}" if origin.reason else "")

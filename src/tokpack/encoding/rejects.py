"""The bad records of a piece, and of a run in the order of its inputs: a JSON object a line."""

from __future__ import annotations

import base64
import json
import os
from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tokpack.encoding.folder import open_own
from tokpack.encoding.piece import REJECTS, SOURCE_COLUMNS
from tokpack.errors import OutputError, worded
from tokpack.files.durable import cannot_write

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.encoding.piece import Pieces
    from tokpack.sources import BadRecord

_REJECTED, _LEFT_OUT = map(SOURCE_COLUMNS.index, ("rejected", "mapped_out"))
_MALFORMED = "malformed record"


def lines_of(bad: Sequence[BadRecord], left_out: Sequence[BadRecord] = ()) -> bytes:
    """Bad records, as they lie in the track of a piece; lines count from the piece's first.

    ``left_out`` are no bad ones, but conversations that no dataset has.
    """
    records = [_entry(record) for record in bad]
    records += [{**_entry(record), "left_out": True} for record in left_out]
    records.sort(key=itemgetter("line"))
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def _entry(record: BadRecord) -> dict[str, Any]:
    kind = {"kind": record.kind} if record.kind else {}
    reason = worded(record.reason)
    return {"line": record.line, "reason": reason, **kind, **_record_text(record.raw)}


def reject_lines(pieces: Pieces) -> Iterator[bytes]:
    """The file of all bad records of a run, line by line, in input order."""
    for source, record in _rejects(pieces):
        name = pieces.job.sources[source].name
        yield json.dumps({"source": name, **record}).encode() + b"\n"


def rejected_lines(pieces: Pieces) -> Iterator[tuple[int, int, str]]:
    """(input, line from 1, reason) of each bad record, in input order."""
    for source, record in _rejects(pieces):
        if "left_out" not in record:
            yield source, record["line"], record["reason"]


def reject_kinds(pieces: Pieces) -> Counter[str]:
    """How many conversations have no place in the dataset, by the kind of their reason."""
    return Counter(record.get("kind", _MALFORMED) for _, record in _rejects(pieces))


def _rejects(pieces: Pieces) -> Iterator[tuple[int, dict[str, Any]]]:
    """(input, bad record with its line in it, from 1), in input order."""
    path, is_chat = pieces.job.path(REJECTS), pieces.job.chat is not None
    with cannot_write(path), open(open_own(path, os.O_RDONLY), "rb") as file:
        for source, before, counts in pieces.rows():
            for _ in range(counts[_REJECTED] + (counts[_LEFT_OUT] if is_chat else 0)):
                try:
                    record = json.loads(file.readline())
                except ValueError:
                    raise OutputError(f"{path} is damaged; run again anew") from None
                yield source, {**record, "line": before + record["line"] + 1}


def _record_text(raw: bytes) -> dict[str, str]:
    try:
        return {"record": raw.decode("utf-8")}
    except UnicodeDecodeError:
        return {"record": raw.decode("utf-8", "replace"), "base64": base64.b64encode(raw).decode()}

"""Conversations on their way to arrays: rendered, encoded with their masks, cut to length."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokpack.chat import ConversationError
from tokpack.sources import BadRecord, Documents
from tokpack.sources.base import RAW_BYTES_KEPT
from tokpack.sources.records import joined, value_at
from tokpack.sources.values import json_text
from tokpack.tokenizers import MarkedIds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from tokpack.chat import Rendered
    from tokpack.chat.renderer import Renderer
    from tokpack.sources import DocumentBatch

TOO_LONG = "too long"
UNTRAINED = "nothing is trained"
CUT_OFF = "what is trained is cut off"
OTHER_OF_PAIR = "the other of its pair is left out"
_NO_TEXT = "a lone surrogate"


@dataclass
class Conversations(Documents):
    """Rendered conversations as documents: ``made`` has what the template made of each."""

    made: list[Rendered] = field(default_factory=list)

    def select(self, chosen: npt.NDArray[np.bool_]) -> Conversations:
        """Those that are chosen, bool [n]."""
        plain = super().select(chosen)
        kept = list(compress(self.made, chosen.tolist()))
        return Conversations(plain.data, plain.spans, plain.lines, plain.columns, kept)


class ConversationMaker:
    """Renders the records of batches: their rows become documents under ``key``.

    ``kept`` are the keys of values that documents keep.
    """

    def __init__(self, renderer: Renderer, key: str, kept: Sequence[str]) -> None:
        self._renderer = renderer
        self._key = key
        self._kept = kept

    def __call__(self, batches: Iterable[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The batches with documents; records that are no conversation are bad ones."""
        for batch in batches:
            self._make(batch)
            yield batch

    def _make(self, batch: DocumentBatch) -> None:
        rows = batch.rows
        made: list[Rendered] = []
        texts: list[bytes] = []
        lines: list[int] = []
        owners: list[Mapping[str, Any]] = []
        bad = []
        pairs = zip(rows.whole, rows.lines.tolist(), strict=True) if rows is not None else ()
        for record, line in pairs:
            try:
                rendered = self._renderer.render(record)
                encoded = [one.text.encode() for one in rendered]
            except ConversationError as error:
                bad.append(bad_record(record, line, error.reason, str(error)))
                continue
            except UnicodeEncodeError as error:
                where = f"{_NO_TEXT} at character {error.start} of the rendered text"
                bad.append(bad_record(record, line, _NO_TEXT, where))
                continue
            made += rendered
            texts += encoded
            lines += [line] * len(rendered)
            owners += [record] * len(rendered)
            batch.mapped_in += len(rendered) - 1
        documents = joined(texts, np.array(lines, np.int64))
        columns = {key: [value_at(record, key) for record in owners] for key in self._kept}
        plain = documents.data, documents.spans, documents.lines
        batch.documents = {self._key: Conversations(*plain, columns, made)}
        batch.bad = sorted([*batch.bad, *bad], key=lambda record: record.line)
        batch.rows = None


def bad_record(record: Any, line: int, kind: str, reason: str) -> BadRecord:
    """A record that is no document, with the beginning of it as JSON."""
    raw = json_text(record).encode("utf-8", "backslashreplace")[:RAW_BYTES_KEPT]
    return BadRecord(line, reason, raw, kind=kind)


class Fitted(NamedTuple):
    """Conversations that are short enough and have a trained token, and those that are left out.

    ``truncated`` of those that stay have lost tokens.
    """

    documents: Conversations
    encoded: MarkedIds
    left_out: list[BadRecord]
    truncated: int


def fit(
    documents: Conversations,
    encoded: MarkedIds,
    *,
    max_length: int | None,
    truncate: str,
    in_pairs: bool,
) -> Fitted:
    """Cut conversations to ``max_length`` tokens, or leave them out, and those without a mask.

    ``truncate`` says which: ``drop``, or where tokens go, ``left`` or ``right``. Of a pair, two
    documents one after the other, both are left out.
    """
    lengths = encoded.lengths.astype(np.int64)
    ends = np.cumsum(lengths)
    begins = ends - lengths
    too_long = np.zeros(len(lengths), np.bool_)
    if max_length is not None:
        too_long = lengths > max_length
        if truncate == "left":
            begins = np.maximum(begins, ends - max_length)
        elif truncate == "right":
            ends = np.minimum(ends, begins + max_length)
    before = np.concatenate(([0], np.cumsum(encoded.mask, dtype=np.int64)))
    untrained = before[ends] == before[begins]
    is_cut = too_long & (truncate != "drop")
    out = untrained | (too_long & ~is_cut)
    if in_pairs:
        out |= out.reshape(-1, 2)[:, ::-1].reshape(-1)
    if not out.any() and not is_cut.any():
        return Fitted(documents, encoded, [], 0)
    left_out = []
    for i in np.flatnonzero(out).tolist():
        if too_long[i] and not is_cut[i]:
            kind, reason = TOO_LONG, f"{TOO_LONG}: {lengths[i]} tokens, more than {max_length}"
        elif untrained[i]:
            kind = CUT_OFF if is_cut[i] else UNTRAINED
            reason = f"{kind}: {lengths[i]} tokens"
        else:
            kind = reason = OTHER_OF_PAIR
        text = documents.text(i)[:RAW_BYTES_KEPT]
        left_out.append(BadRecord(int(documents.lines[i]), reason, text, kind=kind))
    stays = ~out
    steps = np.zeros(len(encoded.ids) + 1, np.int32)
    np.add.at(steps, begins[stays], 1)
    np.add.at(steps, ends[stays], -1)
    tokens = np.cumsum(steps[:-1]) > 0
    special = np.searchsorted(np.flatnonzero(stays), encoded.special[stays[encoded.special]])
    kept = MarkedIds(
        encoded.ids[tokens],
        (ends - begins)[stays].astype(np.int32),
        encoded.mask[tokens],
        special,
    )
    return Fitted(documents.select(stays), kept, left_out, int((is_cut & stays).sum()))

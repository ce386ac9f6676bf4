"""Encode texts with marked spans: the ids, and which of them belong to the marked text."""

from __future__ import annotations

from functools import cached_property
from itertools import chain, pairwise, starmap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokpack import _core
from tokpack.errors import TokenizerError
from tokpack.tokenizers.check import library_of
from tokpack.tokenizers.frame import Frame
from tokpack.tokenizers.huggingface import HuggingFaceTokenizer, encode_with_offsets
from tokpack.tokenizers.native import CoreTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt
    import tokenizers

    from tokpack.tokenizers.base import Tokenizer

    Spans = Sequence[tuple[int, int]]
    Parts = Sequence[tuple[int, int]]  # (first character, kind) of each part
    Raw = tuple[Any, npt.NDArray[np.int64]]


_SHOWN = 100  # characters of a text, and ids, in a message


class MarkedIds(NamedTuple):
    """The ids of some texts, and which of them are marked.

    ``ids`` uint16 or int32 and ``mask`` uint8 (1: marked) are those of all texts, one after the
    other. ``lengths`` int32 are the tokens of each text with its frame, which is never marked.
    ``special`` int64 has the number of the text for each special token found. ``parts`` uint8 has
    the kind of the part in which each token begins, 0 in none. ``merged`` bool tells for each span
    whether it begins inside of a token.
    """

    ids: npt.NDArray[Any]
    lengths: npt.NDArray[np.int32]
    mask: npt.NDArray[np.uint8]
    special: npt.NDArray[np.int64]
    parts: npt.NDArray[np.uint8]
    merged: npt.NDArray[np.bool_]


class _TextPlaces(NamedTuple):
    """The library's result for texts: as MarkedIds, with ``places`` int32 [n, 2] in characters."""

    ids: npt.NDArray[Any]
    lengths: npt.NDArray[np.int32]
    places: npt.NDArray[np.int32]
    special: npt.NDArray[np.int64]


class MarkingEncoder:
    """Encodes texts with spans; special tokens in them are encoded as their ids.

    A token is marked if any part of it, even one byte of a character, is in a span. What a
    tokenizer puts before a text (the space of SentencePiece) belongs to the first character; white
    space that a special token takes along belongs to that token. Raises TokenizerError for a
    tokenizer without special tokens in texts.
    """

    def __init__(self, tokenizer: Tokenizer, *, dtype: str, frame: Frame | None = None) -> None:
        self._name = tokenizer.name
        self._frame = frame or Frame()
        self._dtype = tokenizer.check_dtype(dtype)
        self._core: _core.AnyEncoder | None = None
        self._tokenizer = tokenizer
        if isinstance(tokenizer, CoreTokenizer):
            self._core = tokenizer.core(dtype=dtype, special_tokens="encode")
        elif not isinstance(tokenizer, HuggingFaceTokenizer):
            raise TokenizerError(
                f"tokenizer {tokenizer.name} ({tokenizer.kind}) never encodes special tokens found "
                "in text, and chat templates write them as text: give the folder, or the name, of "
                "the model with its tokenizer.json"
            )

    def encode(
        self,
        texts: Sequence[str],
        spans: Sequence[Spans],
        raw: Raw | None = None,
        parts: Sequence[Parts] | None = None,
    ) -> MarkedIds:
        """The ids of texts, and for each whether it is in one of the spans of its text.

        ``spans`` are in characters, [begin, end), ascending and disjoint. ``parts`` of each text
        are (first character, kind), ascending, with kinds from 0 to 255. ``raw`` is the UTF-8 of
        the texts in one buffer with their places, int64 [n, 2], if the caller has it.
        DocumentsError for texts that the tokenizer's library cannot encode, UnencodableError if it
        takes too long.
        """
        if parts is None:
            parts = [()] * len(texts)
        if self._core is None:
            return self._of_library(texts, spans, parts)
        return self._of_core(texts, spans, raw or _raw(texts), parts)

    def check(self, texts: Sequence[str], spans: Sequence[Spans]) -> None:
        """Raise TokenizerError if the core marks other tokens than the library's offsets say.

        If the library does the work anyway, nothing is compared.
        """
        if self._core is None:
            return
        fast, slow = self.encode(texts, spans), self._placed(texts)
        masks = _marked(slow.places, slow.lengths, spans)
        rows = zip(_rows_of(fast.lengths), _rows_of(slow.lengths), strict=True)
        for text, marks, (left, right) in zip(texts, spans, rows, strict=True):
            ids, expected = fast.ids[left], slow.ids[right]
            mask, mask_there = fast.mask[left], masks[right]
            for name, one, other, is_equal in (
                ("ids", ids, expected, np.array_equal(ids, expected)),
                ("mask", mask, mask_there, _agree(mask, mask_there, slow.places[right])),
            ):
                if not is_equal:
                    shown = ", ".join(f"{row[:_SHOWN].tolist()}" for row in (one, other))
                    raise TokenizerError(
                        f"tokenizer {self._name} fails its self-check: of {text[:_SHOWN]!r} with "
                        f"the spans {list(marks)[:_SHOWN]} the native core and the Hugging Face "
                        f"library give different {name}: {shown}. This is a fault of tokpack: "
                        "please report it with this text"
                    )

    def _of_core(
        self, texts: Sequence[str], spans: Sequence[Spans], raw: Raw, parts: Sequence[Parts]
    ) -> MarkedIds:
        assert self._core is not None
        data, places = raw
        encoded = self._core.encode(
            data, places, self._frame.before, self._frame.after, offsets=True
        )
        sizes = (places[:, 1] - places[:, 0]).tolist()
        spans_of, parts_of = list(spans), list(parts)
        for i, (text, size) in enumerate(zip(texts, sizes, strict=True)):
            if size != len(text):
                ends = _in_bytes(text, chain.from_iterable(spans[i]))
                spans_of[i] = list(zip(ends[::2], ends[1::2], strict=True))
                begins = _in_bytes(text, (begin for begin, _ in parts[i]))
                parts_of[i] = [(at, kind) for at, (_, kind) in zip(begins, parts[i], strict=True)]
        mask, kinds, merged = _marks(encoded.offsets, encoded.lengths, spans_of, parts_of)
        unplaced = encoded.unplaced.tolist()
        if unplaced:
            # For tokens with normalized or unknown text, the library tells their places.
            again = self._of_library(
                *([column[i] for i in unplaced] for column in (texts, spans, parts))  # type: ignore[arg-type]
            )
            behind = np.cumsum(encoded.lengths, dtype=np.int64)
            at = 0
            for number, length in zip(unplaced, again.lengths.tolist(), strict=True):
                end = int(behind[number])
                tokens = slice(end - int(encoded.lengths[number]), end)
                if not np.array_equal(encoded.ids[tokens], again.ids[at : at + length]):
                    raise TokenizerError(
                        f"tokenizer {self._name}: the native core and the Hugging Face library "
                        f"give different ids for {texts[number][:80]!r}. This is a fault of "
                        "tokpack: please report it with this text"
                    )
                mask[tokens] = again.mask[at : at + length]
                kinds[tokens] = again.parts[at : at + length]
                at += length
            sizes = np.fromiter(map(len, spans), np.int64, len(spans))
            merged[np.repeat(np.isin(np.arange(len(texts)), unplaced), sizes)] = again.merged
        return MarkedIds(encoded.ids, encoded.lengths, mask, encoded.special, kinds, merged)

    def _of_library(
        self, texts: Sequence[str], spans: Sequence[Spans], parts: Sequence[Parts]
    ) -> MarkedIds:
        placed = self._placed(texts)
        mask, kinds, merged = _marks(placed.places, placed.lengths, spans, parts)
        return MarkedIds(placed.ids, placed.lengths, mask, placed.special, kinds, merged)

    def _placed(self, texts: Sequence[str]) -> _TextPlaces:
        library = self._library
        encodings = encode_with_offsets(library, list(texts))
        frame, special = self._frame, set(self._tokenizer.special_ids.values())
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        lengths, specials = [], []
        for number, (text, (text_ids, at)) in enumerate(zip(texts, encodings, strict=True)):
            before, after = (frame.before, frame.after) if text_ids else ((), ())
            ids += [*before, *text_ids, *after]
            offsets += [(0, 0)] * len(before) + at + [(len(text), len(text))] * len(after)
            lengths.append(len(before) + len(text_ids) + len(after))
            specials += [number] * sum(one in special for one in text_ids)
        places = np.array(offsets, np.int32).reshape(-1, 2)
        counted, special_in = np.array(lengths, np.int32), np.array(specials, np.int64)
        return _TextPlaces(np.array(ids, self._dtype), counted, places, special_in)

    @cached_property
    def _library(self) -> tokenizers.Tokenizer:
        return library_of(self._tokenizer)


def _rows_of(lengths: npt.NDArray[np.int32]) -> Iterator[slice]:
    """The slice of tokens of each text."""
    return starmap(slice, pairwise([0, *np.cumsum(lengths, dtype=np.int64).tolist()]))


def _flat(spans: Sequence[Spans]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """The spans of some texts, one after the other, and the number for each text."""
    rows = np.array([span for marks in spans for span in marks], np.int32).reshape(-1, 2)
    return rows, np.fromiter(map(len, spans), np.int64, len(spans))


def _marked(
    offsets: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32], spans: Sequence[Spans]
) -> npt.NDArray[np.uint8]:
    return _core.mark_tokens(offsets, lengths, *_flat(spans))


def _marks(
    offsets: npt.NDArray[np.int32],
    lengths: npt.NDArray[np.int32],
    spans: Sequence[Spans],
    parts: Sequence[Parts],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """The mask of tokens, their kinds, and for each span whether it begins inside of a token."""
    rows, counts = _flat(spans)
    mask = _core.mark_tokens(offsets, lengths, rows, counts)
    texts = np.arange(len(lengths), dtype=np.int64) << 32
    begins = np.repeat(texts, lengths) + offsets[:, 0]
    merged = np.zeros(len(rows), np.bool_)
    if len(begins):
        starts = np.repeat(texts, counts) + rows[:, 0]
        before = np.searchsorted(begins, starts) - 1  # the last token that begins before a span
        sizes = offsets[before, 1] - offsets[before, 0]
        merged = (before >= 0) & (begins[before] + sizes > starts)
    return mask, _kinds(begins, texts, parts), merged


def _agree(
    ours: npt.NDArray[np.uint8], theirs: npt.NDArray[np.uint8], places: npt.NDArray[np.int32]
) -> bool:
    """Whether the masks of a text are equal, as far as the library's places of tokens tell.

    A Unigram model has one place for all bytes of neighbouring characters that it does not know, so
    by the library's places all of them are marked if one is.
    """
    if np.array_equal(ours, theirs):
        return True
    differ = ours != theirs
    if (ours > theirs).any() or (np.diff(places[differ], axis=1) <= 1).any():
        return False
    begins = np.flatnonzero((np.diff(places, axis=0, prepend=-1) != 0).any(axis=1))
    return np.array_equal(np.maximum.reduceat(ours, begins), np.maximum.reduceat(theirs, begins))


def _kinds(
    begins: npt.NDArray[Any],
    texts: npt.NDArray[np.int64],
    parts: Sequence[Parts],
) -> npt.NDArray[np.uint8]:
    """The kind of the part in which each token begins; 0 before the first part of a text."""
    if not any(parts):
        return np.zeros(len(begins), np.uint8)
    flat = np.fromiter(chain.from_iterable(chain.from_iterable(parts)), np.int64).reshape(-1, 2)
    starts = np.repeat(texts, np.fromiter(map(len, parts), np.int64, len(parts))) + flat[:, 0]
    cuts, kinds = np.append(texts, starts), np.append(np.zeros_like(texts), flat[:, 1])
    order = np.argsort(cuts, kind="stable")
    first = np.searchsorted(begins, cuts[order])
    counts = np.diff(first, append=len(begins))
    return np.repeat(kinds[order].astype(np.uint8), counts)


def _raw(texts: Sequence[str]) -> Raw:
    """The UTF-8 of texts, one after the other, and their places in it."""
    raw = [text.encode() for text in texts]
    ends = np.cumsum(np.fromiter(map(len, raw), np.int64, len(raw)))
    return b"".join(raw), np.stack([np.append(0, ends[:-1])[: len(raw)], ends], axis=1)


def _in_bytes(text: str, places: Iterable[int]) -> list[int]:
    """Ascending places in a text, in characters, as places in its UTF-8."""
    sizes, at, size = [], 0, 0
    for place in places:
        size += len(text[at:place].encode())
        sizes.append(size)
        at = place
    return sizes

"""Fill in the middle: documents are rearranged so that a model learns to write what lies between.

The prefix, middle and suffix of a document come in the order prefix, suffix, middle, or suffix,
prefix, middle, each after a token that announces it. How a sample is rearranged is a function of
its number and of what decides the dataset's order, so it is the same in every worker and after
every resume.
"""

from __future__ import annotations

import threading
from dataclasses import MISSING, dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tokpack.samples.orders import Counts, Numbers, Rows
    from tokpack.tokenizers import Encoder, Tokenizer

    Ids = npt.NDArray[np.int64]

LEVELS = ("token", "character")

_FIM = 4  # the purpose of its random numbers; the orders have 0 to 3
_PERMUTE, _SUFFIX_FIRST, _FIRST_CUT, _SECOND_CUT = range(4)


@dataclass(frozen=True, kw_only=True)
class FIM:
    """How documents are rearranged. UsageError for a value that an option cannot have.

    In every sample each document, as far as it is in the sample and up to its EOD, is rearranged
    with probability ``rate``: cut at two random places, and then

        PSM: prefix_id, prefix, suffix_id, suffix, middle_id, middle
        SPM: prefix_id, suffix_id, suffix, middle_id, prefix, middle

    where SPM comes with probability ``spm_rate``. ``level`` "token" cuts between tokens,
    "character" between characters: ``tokenizer`` decodes the document, and encodes the three
    parts, so that a cut may lie within a token. A piece that is not UTF-8, because the sample
    begins or ends in a character, is cut between tokens.

    A sample keeps its length: excess tokens at its end are cut off, missing ones become ``pad_id``
    (or 0), whose labels do not count. ``split_id`` is a token between the files of a repository: a
    document with it is rearranged with probability ``rate``, and then each of its files by itself
    with probability ``fragment_rate``.
    """

    prefix_id: int
    middle_id: int
    suffix_id: int
    rate: float = 0.5
    spm_rate: float = 0.5
    fragment_rate: float = 0.5
    split_id: int | None = None
    pad_id: int | None = None
    level: str = "token"
    tokenizer: Tokenizer | None = None

    def __post_init__(self) -> None:
        for name in ("rate", "spm_rate", "fragment_rate"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0 <= value <= 1):
                raise UsageError(f"FIM: {name} is {value!r}, expected 0 to 1")
        ids = {name: getattr(self, name) for name in ("prefix_id", "middle_id", "suffix_id")}
        for name, value in (ids | {"split_id": self.split_id, "pad_id": self.pad_id}).items():
            if value is not None and not (isinstance(value, int) and 0 <= value < 2**31):
                raise UsageError(f"FIM: {name} is {value!r}, expected 0 to 2**31 - 1")
        if len(set(ids.values())) < len(ids):
            raise UsageError(f"FIM: {ids}: they must be three different tokens")
        if self.level not in LEVELS:
            raise UsageError(f"FIM: level is {self.level!r}, expected {' or '.join(LEVELS)}")
        if (self.tokenizer is None) == (self.level == "character"):
            raise UsageError(
                "FIM: level 'character' needs a tokenizer, as load_tokenizer gives it; level "
                "'token' needs none"
            )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> FIM:
        """The FIM from names and values, such as those of a file."""
        defaults = {field.name: field.default for field in fields(cls)}
        for name in values:
            if name not in defaults:
                raise UsageError(f"fim has no setting {name!r}; it has {', '.join(defaults)}")
        for name, default in defaults.items():
            if default is MISSING and name not in values:
                raise UsageError(f"fim needs {name}, a token id")
        return cls(**values)

    @property
    def identity(self) -> tuple[Any, ...]:
        """Everything that determines the tokens, as plain values."""
        tokenizer = None if self.tokenizer is None else self.tokenizer.fingerprint
        numbers = (self.prefix_id, self.middle_id, self.suffix_id, self.split_id, self.pad_id)
        rates = float(self.rate), float(self.spm_rate), float(self.fragment_rate)
        return *numbers, *rates, self.level, tokenizer


class FillInTheMiddle:
    """Applies a FIM to samples of ``capacity`` tokens; ``eod`` ends a document within a piece.

    ``key`` are integers, 0 to 2^64 - 1, for the dataset and the seed.
    """

    def __init__(self, fim: FIM, eod: int, capacity: int, key: tuple[int, ...]) -> None:
        self._fim = fim
        self._eod = eod
        self._capacity = capacity
        self._key = key
        self._pad = 0 if fim.pad_id is None else fim.pad_id
        self._local = threading.local()  # an encoder for each thread

    def __reduce__(self) -> tuple[type[FillInTheMiddle], tuple[Any, ...]]:
        return type(self), (self._fim, self._eod, self._capacity, self._key)

    def fill(
        self, text: Ids, rows: Rows, counts: Counts, places: npt.NDArray[np.int64], numbers: Numbers
    ) -> Rows:
        """Rearrange samples in place. Returns the rows, with their new numbers of tokens.

        Sample ``numbers[i]`` has ``counts[i]`` of the rows, and its tokens are the first of
        ``text[places[i]]``, int64 [B, S + 1].
        """
        rows = rows.copy()
        begins = np.cumsum(counts) - counts
        for begin, count, place, number in zip(begins, counts, places, numbers, strict=True):
            rows_here = rows[begin : begin + count]
            rows_here[:, 2] = self._rearrange(text[place], rows_here[:, 2], int(number))
        return rows

    def _rearrange(
        self, text: Ids, lengths: npt.NDArray[np.int64], number: int
    ) -> npt.NDArray[np.int64]:
        """Rearrange one sample, whose pieces have ``lengths`` tokens. Returns their new lengths."""
        draw = _Draw(_core.mix(*self._key, number, _FIM))
        ends = np.cumsum(lengths)
        pieces = [
            np.concatenate([*self._documents(text[end - length : end], draw)])
            for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)
        ]
        tokens = np.concatenate([np.empty(0, np.int64), *pieces])[: self._capacity]
        text[: self._capacity] = self._pad
        text[: len(tokens)] = tokens
        new_ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
        return np.diff(np.minimum(new_ends, self._capacity), prepend=0)

    def _documents(self, piece: Ids, draw: _Draw) -> Iterator[Ids]:
        """The rearranged documents of a piece, each followed by its EOD."""
        for document, eod in _split(piece, self._eod):
            yield from self._files(document, draw)
            yield eod

    def _files(self, document: Ids, draw: _Draw) -> Iterator[Ids]:
        if not len(document):
            return
        split = self._fim.split_id
        if split is None or split not in document:
            yield self._permute(document, self._fim.rate, draw)
            return
        chosen = draw.chance(self._fim.rate, _PERMUTE)
        draw.go_on()
        for file, end in _split(document, split):
            if chosen and len(file):
                yield self._permute(file, self._fim.fragment_rate, draw)
            else:
                yield file
            yield end

    def _permute(self, document: Ids, rate: float, draw: _Draw) -> Ids:
        fim = self._fim
        chosen = draw.chance(rate, _PERMUTE)
        if chosen:
            prefix, middle, suffix = self._cut(document, draw)
            names = [[fim.prefix_id], [fim.suffix_id], [fim.middle_id]]
            if draw.chance(fim.spm_rate, _SUFFIX_FIRST):
                parts = [names[0], names[1], suffix, names[2], prefix, middle]
            else:
                parts = [names[0], prefix, names[1], suffix, names[2], middle]
            document = np.concatenate([np.asarray(part, np.int64) for part in parts])
        draw.go_on()
        return document

    def _cut(self, document: Ids, draw: _Draw) -> list[Ids]:
        """The prefix, middle and suffix of a document."""
        tokenizer = self._fim.tokenizer
        if tokenizer is not None:
            data = tokenizer.decode_bytes(document.tolist())
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError:
                pass  # the sample begins or ends inside of a character
            else:
                return self._encode([text[a:b] for a, b in draw.thirds(len(text))])
        return [document[a:b] for a, b in draw.thirds(len(document))]

    def _encode(self, texts: list[str]) -> list[Ids]:
        data = [text.encode() for text in texts]
        edges = np.cumsum([0, *map(len, data)], dtype=np.int64)
        spans = np.stack([edges[:-1], edges[1:]], axis=1)
        encoder: Encoder | None = getattr(self._local, "encoder", None)
        if encoder is None:
            assert self._fim.tokenizer is not None
            # Special tokens were decoded to text, and become themselves again.
            encoder = self._fim.tokenizer.encoder(
                dtype="int32", append_eod=False, special_tokens="encode"
            )
            self._local.encoder = encoder
        encoded = encoder.encode(np.frombuffer(b"".join(data), np.uint8), spans)
        return np.split(encoded.ids.astype(np.int64), np.cumsum(encoded.lengths)[:-1])


@dataclass
class _Draw:
    """The random numbers of a sample: four for each document, each for one decision."""

    _key: int
    _document: int = 0

    def go_on(self) -> None:
        """Continue with the numbers of the next document."""
        self._document += 1

    def chance(self, rate: float, what: int) -> bool:
        """True with probability ``rate``, rounded to a multiple of 2^-64."""
        return self._number(what) < int(rate * 2.0**64)

    def thirds(self, length: int) -> list[tuple[int, int]]:
        """Begin and end of three parts of a given length, cut at random places."""
        cuts = sorted(self._number(what) * (length + 1) >> 64 for what in (_FIRST_CUT, _SECOND_CUT))
        return list(pairwise((0, *cuts, length)))

    def _number(self, what: int) -> int:
        return _core.mix(self._key, self._document, what)


def _split(tokens: Ids, at: int) -> Iterator[tuple[Ids, Ids]]:
    """The parts between the tokens ``at``, each with the token that ends it; the last has none."""
    begin = 0
    for end in np.flatnonzero(tokens == at).tolist():
        yield tokens[begin:end], tokens[end : end + 1]
        begin = end + 1
    yield tokens[begin:], tokens[:0]

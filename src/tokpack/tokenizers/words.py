"""A vocabulary of whole words: ``text.split()``, and an id for each."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import numpy as np

from tokpack.errors import TokenizerError
from tokpack.tokenizers.base import PackedIds, Tokenizer, UnencodableError, pack, texts_of
from tokpack.tokenizers.frame import Frame, find_eod, token_id
from tokpack.tokenizers.native import TokenBytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from tokpack.tokenizers.base import Encoder, IdType, SpecialMode


UNKNOWN = "<unk>"
EOD = "<|endoftext|>"


class WhitespaceTokenizer(Tokenizer):
    """Words between white space (as Python's ``str.split`` sees it), with ids from ``vocab``.

    A word that is not in the vocabulary becomes ``<unk>``, or an UnencodableError if the vocabulary
    has none. Special tokens are ``<unk>`` and the end-of-document token; with
    ``special_tokens="text"`` a word of the text that looks like one is an unknown word.
    """

    kind = "whitespace vocabulary"
    why_not_native = "it is a vocabulary of words"

    def __init__(
        self, name: str, vocab: Mapping[str, int], *, eod_token: str | int | None = None
    ) -> None:
        self.name = name
        self.vocab = dict(vocab)
        self.vocab_size = max(self.vocab.values()) + 1
        self.special_ids: dict[str, int] = {}
        self.eod_id = find_eod(self, eod_token)
        special = {UNKNOWN: self.vocab.get(UNKNOWN)}
        special.update({t: i for t, i in self.vocab.items() if i == self.eod_id})
        self.special_ids = {token: i for token, i in special.items() if i is not None}

    def _encoder(self, dtype: IdType, mode: SpecialMode, frame: Frame) -> Encoder:
        words = self.vocab
        if mode == "text":
            words = {word: i for word, i in words.items() if word not in self.special_ids}
        return WhitespaceEncoder(self, words, dtype=dtype, frame=frame)

    def token_to_id(self, token: str) -> int | None:
        return self.vocab.get(token)

    def _decode_bytes(self, ids: list[int]) -> bytes:
        words = {i: word for word, i in self.vocab.items()}
        for i in ids:
            if i not in words:
                raise self.no_such_id(i)
        return " ".join(words[i] for i in ids).encode()

    def _pieces_behind(self) -> Iterable[bytes]:
        words = {i: f" {word}".encode() for word, i in self.vocab.items()}
        return (words.get(i, b"") for i in range(self.vocab_size))

    def definition_digest(self) -> str:
        return hashlib.sha256(json.dumps(self.vocab, sort_keys=True).encode()).hexdigest()


class WhitespaceEncoder:
    """A word table with the settings of one run."""

    def __init__(
        self,
        tokenizer: WhitespaceTokenizer,
        words: Mapping[str, int],
        *,
        dtype: str,
        frame: Frame,
    ) -> None:
        self._name = tokenizer.name
        self._words = words
        self._special = frozenset(tokenizer.special_ids)
        self._unknown = tokenizer.vocab.get(UNKNOWN)
        self._dtype = dtype
        self._frame = frame

    def encode(self, data: npt.NDArray[np.uint8], spans: npt.NDArray[np.int64]) -> PackedIds:
        rows: list[list[int]] = []
        special: list[int] = []
        for document, text in enumerate(texts_of(data, spans)):
            words = text.split()
            rows.append(self._ids(words, document))
            if not self._special.isdisjoint(words):
                special.extend(document for word in words if word in self._special)
        special_rows = np.array(special, np.int64)
        return pack(rows, dtype=self._dtype, frame=self._frame, special=special_rows)

    def _ids(self, words: list[str], document: int) -> list[int]:
        table = self._words
        if self._unknown is not None:
            unknown = self._unknown
            return [table.get(word, unknown) for word in words]
        try:
            return [table[word] for word in words]
        except KeyError as error:
            raise UnencodableError(
                f"tokenizer {self._name}: the word {error.args[0][:80]!r} of document "
                f"{document + 1} of this block is not in the vocabulary, which has no {UNKNOWN} "
                "for such words: add one, or add the word",
                document,
            ) from None


def check_vocab(vocab: Mapping[str, int], where: str) -> None:
    """Raise TokenizerError for words that ``str.split`` can never return."""
    for word in vocab:
        if not word or word.split() != [word]:
            raise TokenizerError(
                f"{where}: {word!r} holds white space: this is not a vocabulary of words"
            )


NAME = "CharLevelTokenizer"
_IDS = 512  # as in GPT-NeoX; half of them are never used
_EOD = 0


class CharLevelTokenizer(Tokenizer):
    """GPT-NeoX's CharLevelTokenizer: UTF-8 bytes as ids, 0 after a document, no special tokens."""

    kind = "UTF-8 bytes"
    why_not_native = "its ids are the bytes themselves"
    special_tokens_default = "text"

    def __init__(self, eod_token: str | int | None = None) -> None:
        self.name = NAME
        self.arguments = {"tokenizer_type": NAME}
        self.vocab_size = _IDS
        self.special_ids = {}
        self.eod_id = _EOD if eod_token is None else token_id(self, eod_token, "EOD")

    def _encoder(self, dtype: IdType, mode: SpecialMode, frame: Frame) -> Encoder:
        return CharLevelEncoder(dtype, frame)

    def token_to_id(self, token: str) -> int | None:
        raw = token.encode("utf-8", "surrogatepass")
        return raw[0] if len(raw) == 1 else None

    def _decode_bytes(self, ids: list[int]) -> bytes:
        return bytes(token_id for token_id in ids if token_id < 256)

    def token_bytes(self) -> TokenBytes:
        return TokenBytes([bytes([byte]) for byte in range(256)])

    def definition_digest(self) -> str:
        return hashlib.sha256(f"{NAME} {_IDS}".encode()).hexdigest()


class CharLevelEncoder:
    """The settings of one run."""

    def __init__(self, dtype: str, frame: Frame) -> None:
        self._dtype = np.dtype(dtype)
        self._before = np.array(frame.before, self._dtype)
        self._after = np.array(frame.after, self._dtype)

    def encode(self, data: npt.NDArray[np.uint8], spans: npt.NDArray[np.int64]) -> PackedIds:
        lengths = spans[:, 1] - spans[:, 0]
        filled = spans[lengths > 0].tolist()
        pieces = [
            piece for begin, end in filled for piece in (self._before, data[begin:end], self._after)
        ]
        ids = np.concatenate(pieces, dtype=self._dtype) if pieces else np.empty(0, self._dtype)
        lengths = lengths + (lengths > 0) * (len(self._before) + len(self._after))
        return PackedIds(ids, lengths.astype(np.int32), np.empty(0, np.int64))

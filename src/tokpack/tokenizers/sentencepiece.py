"""SentencePiece models, in the native core if it can, else through their own library."""

from __future__ import annotations

import hashlib
from enum import IntEnum
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tokpack import _core
from tokpack.errors import TokenizerError, UsageError
from tokpack.storage.disk import read_object
from tokpack.tokenizers import native
from tokpack.tokenizers.base import SpecialFinder, TextEncoder, Tokenizer
from tokpack.tokenizers.frame import FRAMED_BY_HAND, Frame, find_eod
from tokpack.tokenizers.native import NativeEncoder

if TYPE_CHECKING:
    from tokpack.tokenizers.base import Encoder, IdType, SpecialMode


class PieceKind(IntEnum):
    """The type of a piece in the model file."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SPACE = "\u2581".encode()
_UNKNOWN_SURFACE = " \u2047 ".encode()


class SentencePieceTokenizer(Tokenizer):
    """A ``.model`` file; ``raw`` is its content.

    Text never becomes a control symbol such as ``</s>``, so special tokens inside of documents are
    always text.
    """

    kind = "SentencePiece"
    special_tokens_default = "text"

    def __init__(self, name: str, raw: bytes, *, eod_token: str | int | None = None) -> None:
        self.name = name
        self.raw = raw
        self.why_not_native = self.model.why_not_native
        self.native = not self.why_not_native
        if not self.native:
            self.library_model()
        self.vocab_size = len(self._pieces)
        self.special_ids = {
            piece.decode(errors="replace"): token_id
            for token_id, (piece, kind) in enumerate(self._pieces)
            if kind == PieceKind.CONTROL
        }
        self.eod_id = self._control(self.model.end_piece) if eod_token is None else None
        if self.eod_id is None:
            self.eod_id = find_eod(self, eod_token)

    @cached_property
    def model(self) -> _core.PieceModel:
        """The parsed model. TokenizerError."""
        try:
            return _core.PieceModel(self.raw)
        except ValueError as error:
            raise TokenizerError(
                f"tokenizer {self.name}: not a SentencePiece model: {error}"
            ) from None

    @cached_property
    def _pieces(self) -> list[tuple[bytes, int]]:
        return self.model.pieces

    def library_model(self) -> Any:
        """The library's processor for this model."""
        try:
            import sentencepiece
        except ImportError:
            why = f" ({self.why_not_native})" if self.why_not_native else ""
            raise TokenizerError(
                f"tokenizer {self.name} is a SentencePiece model that needs its library{why}: "
                "pip install 'tokpack[sentencepiece]'"
            ) from None
        model = sentencepiece.SentencePieceProcessor()
        try:
            model.LoadFromSerializedProto(self.raw)
        except Exception as error:
            raise TokenizerError(
                f"tokenizer {self.name}: not a SentencePiece model: {error}"
            ) from None
        return model

    def token_to_id(self, token: str) -> int | None:
        raw = token.encode("utf-8", "surrogatepass")
        ids = (
            token_id
            for token_id, (text, kind) in enumerate(self._pieces)
            if text == raw and kind != PieceKind.UNKNOWN
        )
        return next(ids, None)

    def special_frame(self) -> Frame:
        """The frame by the ``tokenizer_config.json`` beside the model: a model itself adds
        nothing.
        """
        path = Path(self.name)
        path = (path if path.is_dir() else path.parent) / "tokenizer_config.json"
        flags = read_object(path, wrong=TokenizerError) if path.is_file() else {}
        if not {"add_bos_token", "add_eos_token"} & set(flags):
            raise TokenizerError(
                f"tokenizer {self.name} does not say what goes around a text (no {path} with "
                f"add_bos_token and add_eos_token): {FRAMED_BY_HAND}"
            )
        begin, end = self._control(self.model.begin_piece), self._control(self.model.end_piece)
        before = (begin,) if flags.get("add_bos_token") else ()
        after = (end,) if flags.get("add_eos_token") else ()
        if None in (*before, *after):
            raise TokenizerError(f"{path}: it adds a token that the model {self.name} has not")
        return Frame(cast("tuple[int, ...]", before), cast("tuple[int, ...]", after))

    def _control(self, piece: bytes) -> int | None:
        """The id of a control symbol by its name in the model, or None."""
        return self.special_ids.get(piece.decode(errors="replace"))

    def __getstate__(self) -> dict[str, Any]:
        rebuilt = ("model", "_pieces")
        return {key: value for key, value in self.__dict__.items() if key not in rebuilt}

    def special_mode(self, special_tokens: str) -> SpecialMode:
        if special_tokens == "encode":
            raise UsageError(
                f"tokenizer {self.name} is a SentencePiece model, which never encodes special "
                "tokens found in text: use special tokens text or error"
            )
        return super().special_mode(special_tokens)

    def _encoder(self, dtype: IdType, mode: SpecialMode, frame: Frame) -> Encoder:
        if self.native:
            return NativeEncoder(self.core(dtype=dtype), frame)
        rows_of = partial(self.library_model().encode, out_type=int)
        return TextEncoder(rows_of, dtype, frame, SpecialFinder(self.special_ids))

    def core(
        self, *, dtype: str, level: _core.Level = "auto", cache_bytes: int | None = None
    ) -> _core.PieceEncoder:
        """The native object; ``level`` chooses the instruction set."""
        size = native.CACHE_BYTES if cache_bytes is None else cache_bytes
        return _core.PieceEncoder(
            self.model, dtype=self.check_dtype(dtype), cache_bytes=size, level=level
        )

    def _decode_bytes(self, ids: list[int]) -> bytes:
        """The text as the library gives it, but with bytes that are no character left as they
        are.
        """
        if self.model.denormalizes:
            return str(self.library_model().decode(ids)).encode()
        unknown = self.model.unknown_surface
        text = bytearray()
        begin = self.model.dummy_prefix or self.model.remove_extra_whitespace
        for token_id in ids:
            piece, kind = self._pieces[token_id]
            begin = begin and not text
            if kind == PieceKind.BYTE:
                text.append(int(piece[3:5], 16))
            elif kind == PieceKind.UNKNOWN:
                text += _UNKNOWN_SURFACE if unknown is None else unknown
            elif kind != PieceKind.CONTROL:
                # One space before the text was added by the model, and is removed. Further ones
                # belong to the text, unless the model removes extra ones.
                prefix = begin and piece.startswith(_SPACE)
                text += (piece[len(_SPACE) :] if prefix else piece).replace(_SPACE, b" ")
                begin = begin and not (prefix and not self.model.remove_extra_whitespace)
        return bytes(text)

    def definition_digest(self) -> str:
        return hashlib.sha256(self.raw).hexdigest()

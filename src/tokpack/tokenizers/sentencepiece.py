"""SentencePiece models, through their own library (the extra ``sentencepiece``)."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokpack.errors import TokenizerError, UsageError
from tokpack.files.foreign import read_object
from tokpack.tokenizers.base import SpecialFinder, Tokenizer, pack, texts_of
from tokpack.tokenizers.frame import Frame, find_eod

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    import numpy.typing as npt

    from tokpack.tokenizers.base import Encoder, PackedIds


class SentencePieceTokenizer(Tokenizer):
    """A ``.model`` file; ``raw`` is its content.

    The library never turns text into a control symbol such as ``</s>``, so special tokens inside
    documents are always text.
    """

    kind = "SentencePiece"
    special_tokens_default = "text"
    why_not_native = "it is a SentencePiece model"

    def __init__(self, name: str, raw: bytes, *, eod_token: str | int | None = None) -> None:
        self.name = name
        self.raw = raw
        model = self._model
        self.vocab_size = int(model.get_piece_size())
        self.special_ids = {
            str(model.id_to_piece(i)): i for i in range(self.vocab_size) if model.is_control(i)
        }
        self.eod_id = model.eos_id() if eod_token is None and model.eos_id() >= 0 else None
        if self.eod_id is None:
            self.eod_id = find_eod(self, eod_token)

    @cached_property
    def _model(self) -> Any:
        try:
            import sentencepiece
        except ImportError:
            raise TokenizerError(
                f"tokenizer {self.name} is a SentencePiece model: "
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
        token_id = int(self._model.piece_to_id(token))
        return None if token_id == self._model.unk_id() else token_id

    def special_frame(self) -> Frame:
        """As ``tokenizer_config.json`` beside the model says: a model itself adds nothing."""
        path = Path(self.name)
        path = (path if path.is_dir() else path.parent) / "tokenizer_config.json"
        flags = read_object(path, wrong=TokenizerError) if path.is_file() else {}
        if not {"add_bos_token", "add_eos_token"} & set(flags):
            raise TokenizerError(
                f"tokenizer {self.name} does not say what goes around a text (no {path} with "
                "add_bos_token and add_eos_token): leave out --add-special-tokens, and use "
                "--prepend-bos and --append-eod"
            )
        before = (self._model.bos_id(),) if flags.get("add_bos_token") else ()
        after = (self._model.eos_id(),) if flags.get("add_eos_token") else ()
        if -1 in (*before, *after):
            raise TokenizerError(f"{path}: it adds a token that the model {self.name} has not")
        return Frame(before, after)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_model"}

    def encoder(
        self,
        *,
        dtype: str,
        append_eod: bool = False,
        special_tokens: str = "auto",
        frame: Frame | None = None,
    ) -> Encoder:
        if special_tokens == "encode":
            raise UsageError(
                f"tokenizer {self.name} is a SentencePiece model, which never encodes special "
                "tokens found in text: use special tokens text or error"
            )
        self.special_mode(special_tokens)
        return SentencePieceEncoder(
            self._model,
            dtype=self.check_dtype(dtype),
            frame=self.framing(append_eod, frame),
            special=SpecialFinder(self.special_ids),
        )

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        known = list(map(int, ids))
        for token_id in known:
            if not 0 <= token_id < self.vocab_size:
                raise self.no_such_id(token_id)
        return str(self._model.decode(known)).encode()

    def definition_digest(self) -> str:
        return hashlib.sha256(self.raw).hexdigest()


class SentencePieceEncoder:
    """A model with the settings of one run."""

    def __init__(self, model: Any, *, dtype: str, frame: Frame, special: SpecialFinder) -> None:
        self._model = model
        self._dtype = dtype
        self._frame = frame
        self._special = special

    def encode(self, data: npt.NDArray[np.uint8], spans: npt.NDArray[np.int64]) -> PackedIds:
        rows = self._model.encode(texts_of(data, spans), out_type=int)
        special = self._special.find(data, spans)
        return pack(rows, dtype=self._dtype, frame=self._frame, special=special)

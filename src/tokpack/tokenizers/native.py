"""Tokenizers that the native core encodes."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack import _core
from tokpack.errors import TokenizerError
from tokpack.tokenizers import patterns
from tokpack.tokenizers.base import SpecialMode, Tokenizer
from tokpack.tokenizers.definition import ByteLevelSpec, decode_alphabet, to_json
from tokpack.tokenizers.folder import Definition
from tokpack.tokenizers.frame import Frame, find_eod
from tokpack.tokenizers.huggingface import HuggingFaceTokenizer, post_processed
from tokpack.tokenizers.tokenizer_json import core_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from tokpack.tokenizers.base import Encoder, IdType
    from tokpack.tokenizers.definition import BpeSpec, JsonSpec, NormalForm

    Spans = npt.NDArray[np.int64]


_IN_NO_TEXT = b"\xff"


class TokenBytes:
    """The bytes of each token by its id, or None for an unused id, for comparing documents with
    texts.

    A text is normalized into ``form``, if there is one, before it is encoded.
    """

    def __init__(self, table: Sequence[bytes | None], *, form: NormalForm = "") -> None:
        self._table = [_IN_NO_TEXT if token is None else token for token in table]
        self._bytes = b"".join(self._table)
        self._ends = np.fromiter(accumulate(map(len, self._table)), np.int64, len(self._table))
        self._form = form

    def unlike(
        self, ids: npt.NDArray[Any], spans: Spans, data: npt.NDArray[np.uint8], texts: Spans
    ) -> Spans:
        """The documents, ids [spans[i, 0], spans[i, 1]), that are not the text data[texts[i]]."""
        tokens = ids.view(np.uint32) if ids.dtype == np.int32 else ids
        same = _core.are_texts(tokens, spans, data.data, texts, self._bytes, self._ends)
        for i in np.flatnonzero(~same).tolist() if self._form else ():
            same[i] = self._is_equal(ids, spans[i], data, texts[i])
        return np.flatnonzero(~same)

    def _is_equal(
        self, ids: npt.NDArray[Any], span: Spans, data: npt.NDArray[np.uint8], text: Spans
    ) -> bool:
        """Whether a document equals a text after both are normalized."""
        some = ids[span[0] : span[1]].tolist()
        if some and not 0 <= min(some) <= max(some) < len(self._table):
            return False
        decoded = b"".join(map(self._table.__getitem__, some))
        both = (decoded, data[text[0] : text[1]].tobytes())
        texts = (t.decode("utf-8", "replace").encode() for t in both)
        one, other = (_core.normalize(self._form, t) for t in texts)
        return one == other


CACHE_BYTES = 64 << 20  # for the words whose ids an encoder remembers


class CoreTokenizer(Tokenizer):
    """A tokenizer that the native core encodes by its definition ``spec``.

    ``reference`` is the same for the Hugging Face library, for the self-check: one tokenizer.json,
    or vocab.json and merges.txt.
    """

    native = True
    spec: BpeSpec
    reference: tuple[bytes, ...]

    def reference_in(self, mode: SpecialMode) -> tuple[bytes, ...]:
        """The files with which the library gives the ids of a mode for special tokens."""
        return self.reference

    def token_to_id(self, token: str) -> int | None:
        return self.spec.id_of(token)

    def _encoder(self, dtype: IdType, mode: SpecialMode, frame: Frame) -> Encoder:
        return NativeEncoder(self.core(dtype=dtype, special_tokens=mode), frame)

    def core(
        self,
        *,
        dtype: str,
        special_tokens: str = "auto",
        level: _core.Level = "auto",
        cache_bytes: int | None = None,
    ) -> _core.AnyEncoder:
        """The native object; ``level`` chooses the instruction set.

        ``cache_bytes`` are those of the cache of words, CACHE_BYTES by default; an eighth more is
        for longer words. TokenizerError for a definition that the core refuses.
        """
        mode, width = self.special_mode(special_tokens), self.check_dtype(dtype)
        size = CACHE_BYTES if cache_bytes is None else cache_bytes
        try:
            return self._build_core(special_tokens=mode, dtype=width, level=level, cache_bytes=size)
        except ValueError as error:
            raise TokenizerError(f"tokenizer {self.name}: {error}") from None

    @abstractmethod
    def _build_core(self, **settings: Any) -> _core.AnyEncoder:
        """The native object for ``spec`` with the settings of one run. ValueError."""


def _added(spec: BpeSpec) -> list[tuple[bytes, int, bool, bool, bool, bool, bool]]:
    """The added tokens in the form that the core takes."""
    return [
        (t.content.encode(), t.id, t.special, t.normalized, t.lstrip, t.rstrip, t.single_word)
        for t in spec.added
    ]


def _byte_level(spec: ByteLevelSpec, settings: dict[str, Any]) -> _core.ByteLevelBPE:
    return _core.ByteLevelBPE(
        vocab=spec.vocab,
        merges=spec.merges,
        pattern=patterns.core_pattern(spec.pattern),
        added=_added(spec),
        form=spec.form,
        steps=core_steps(spec.steps),
        suffix=spec.suffix,
        ignore_merges=spec.ignore_merges,
        **settings,
    )


class NativeTokenizer(CoreTokenizer):
    """A byte-level BPE.

    Its ``reference`` is made from the definition if it was read from ranks. A tokenizer.json whose
    pattern has no name keeps the kind and fingerprint that it has when the library encodes.
    """

    kind = "byte-level BPE"
    spec: ByteLevelSpec

    def __init__(
        self,
        name: str,
        spec: ByteLevelSpec,
        *,
        reference: Definition | tuple[bytes, ...] = (),
        special_tokens_default: SpecialMode,
        eod_token: str | int | None = None,
    ) -> None:
        self.name = name
        self.spec = spec
        if spec.definition:
            self.kind = HuggingFaceTokenizer.kind
        self._read_from = reference  # None for ranks
        self.special_tokens_default = special_tokens_default
        self.special_ids = {t.content: t.id for t in spec.added if t.special}
        self.vocab_size = len(spec.vocab)
        self._decode_table = list(spec.vocab)
        for token in spec.added:
            self._decode_table[token.id] = token.content.encode()
        self.eod_id = find_eod(self, eod_token)

    @cached_property
    def reference(self) -> tuple[bytes, ...]:  # type: ignore[override]
        if isinstance(self._read_from, Definition):
            return (self._read_from.raw,)
        return self._read_from or (to_json(self.spec, self._pre_tokenizer()),)

    def _pre_tokenizer(self) -> dict[str, Any]:
        pattern = patterns.core_pattern(self.spec.pattern)
        steps = _core.pattern_steps(pattern) if isinstance(pattern, str) else pattern
        return patterns.with_steps(steps)

    def reference_in(self, mode: SpecialMode) -> tuple[bytes, ...]:
        if self._read_from or mode == "encode":
            return self.reference
        return (to_json(replace(self.spec, added=()), self._pre_tokenizer()),)

    def special_frame(self) -> Frame:
        if not isinstance(self._read_from, Definition):
            return Frame()  # GPT-2's files and ranks do not tell it
        return post_processed(self.reference[0], where=f"tokenizer {self.name}")

    def _build_core(self, **settings: Any) -> _core.ByteLevelBPE:
        return _byte_level(self.spec, settings)

    def _decode_bytes(self, ids: list[int]) -> bytes:
        pieces = []
        for token_id in ids:
            piece = self._decode_table[token_id]
            if piece is None:
                raise self.no_such_id(token_id)
            pieces.append(piece)
        return b"".join(pieces)

    def token_bytes(self) -> TokenBytes | None:
        if any(token.lstrip or token.rstrip for token in self.spec.added):
            return None  # white space that such a token has taken is in none of the tokens
        return TokenBytes(self._decode_table, form=self.spec.form)

    def _pieces_behind(self) -> Iterable[bytes]:
        return (piece or b"" for piece in self._decode_table)

    def definition_digest(self) -> str:
        return self.spec.definition or self.spec.digest


class JsonTokenizer(CoreTokenizer, HuggingFaceTokenizer):
    """A tokenizer.json that the native core encodes and the Hugging Face library decodes.

    It keeps the kind and fingerprint that it has when the library encodes, because the ids are the
    same.
    """

    spec: ByteLevelSpec | JsonSpec

    def __init__(
        self,
        name: str,
        definition: Definition,
        spec: ByteLevelSpec | JsonSpec,
        *,
        eod_token: str | int | None = None,
    ) -> None:
        self.name = name
        self._definition = definition
        self.why_not_native = ""
        self.spec = spec
        by_id = sorted(spec.added, key=lambda token: token.id)
        self.special_ids = {token.content: token.id for token in by_id if token.special}
        self.vocab_size = len(spec.vocab)
        self.eod_id = find_eod(self, eod_token)

    @property
    def raw(self) -> bytes:  # type: ignore[override]
        return self._definition.raw

    @property
    def reference(self) -> tuple[bytes, ...]:  # type: ignore[override]
        return (self.raw,)

    def definition_digest(self) -> str:
        return self.spec.definition

    def _build_core(self, **settings: Any) -> _core.AnyEncoder:
        spec = self.spec
        if isinstance(spec, ByteLevelSpec):
            return _byte_level(spec, settings)
        arguments = {**spec.arguments, **settings}
        if "steps" in arguments:
            arguments["steps"] = core_steps(arguments["steps"])
        if arguments.get("of_bytes"):
            affixes = decode_alphabet([arguments["prefix"], arguments["suffix"]])
            arguments["prefix"], arguments["suffix"] = affixes
        if spec.encoder.endswith("BPE"):
            arguments["merges"] = spec.merges
        encoder: type[Any] = getattr(_core, spec.encoder)
        core: _core.AnyEncoder = encoder(vocab=spec.vocab, added=_added(spec), **arguments)
        return core


class NativeEncoder:
    """An encoder of the native core with the frame of one run."""

    def __init__(self, core: _core.AnyEncoder, frame: Frame) -> None:
        self._core = core
        self._frame = frame

    def encode(self, data: npt.NDArray[np.uint8], spans: npt.NDArray[np.int64]) -> _core.Encoded:
        frame = self._frame
        return self._core.encode(data.data, spans, before=frame.before, after=frame.after)

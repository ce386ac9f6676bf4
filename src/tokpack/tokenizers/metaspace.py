"""A BPE over characters, or a Unigram, from a tokenizer.json, in the native core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack import _core
from tokpack.errors import TokenizerError
from tokpack.tokenizers.frame import Frame, find_eod
from tokpack.tokenizers.huggingface import HuggingFaceTokenizer
from tokpack.tokenizers.native import NativeEncoder
from tokpack.tokenizers.spec import UnigramSpec
from tokpack.tokenizers.spec_unigram import core_steps

if TYPE_CHECKING:
    from tokpack.tokenizers.base import Encoder, IdType, SpecialMode
    from tokpack.tokenizers.spec import MetaspaceSpec


class MetaspaceTokenizer(HuggingFaceTokenizer):
    """A tokenizer.json that the native core encodes; its library decodes.

    Kind and fingerprint are those of any tokenizer.json: the ids are the same.
    """

    native = True

    def __init__(
        self,
        name: str,
        raw: bytes,
        spec: MetaspaceSpec | UnigramSpec,
        *,
        eod_token: str | int | None = None,
    ) -> None:
        self.name = name
        self.raw = raw
        self.why_not_native = ""
        self.spec = spec
        by_id = sorted(spec.added, key=lambda token: token.id)
        self.special_ids = {token.content: token.id for token in by_id if token.special}
        self.vocab_size = len(spec.vocab)
        self.eod_id = find_eod(self, eod_token)

    @property
    def reference(self) -> tuple[bytes, ...]:
        """The same for the library, for the self-check."""
        return (self.raw,)

    def token_to_id(self, token: str) -> int | None:
        return self.spec.id_of(token)

    def definition_digest(self) -> str:
        return self.spec.definition

    def _encoder(self, dtype: IdType, mode: SpecialMode, frame: Frame) -> Encoder:
        return NativeEncoder(self.core(dtype=dtype, special_tokens=mode), frame)

    def core(
        self,
        *,
        dtype: str,
        special_tokens: str = "auto",
        level: _core.Level = "auto",
        cache_bytes: int = 64 << 20,
    ) -> _core.MetaspaceBPE | _core.MetaspaceUnigram:
        """The native object itself; ``level`` chooses the instruction set."""
        spec = self.spec
        added = [
            (t.content.encode(), t.id, t.special, t.normalized, t.lstrip, t.rstrip)
            for t in spec.added
        ]
        mode, width = self.special_mode(special_tokens), self.check_dtype(dtype)
        try:
            if isinstance(spec, UnigramSpec):
                return _core.MetaspaceUnigram(
                    vocab=spec.vocab,
                    scores=spec.scores,
                    byte_ids=spec.byte_ids,
                    unknown=spec.unknown,
                    steps=core_steps(spec.steps),
                    splits_white_space=spec.splits_white_space,
                    prefix=spec.prefix,
                    added=added,
                    special_tokens=mode,
                    dtype=width,
                    cache_bytes=cache_bytes,
                    level=level,
                )
            return _core.MetaspaceBPE(
                vocab=spec.vocab,
                merges=spec.merges,
                byte_ids=spec.byte_ids,
                unknown=spec.unknown,
                fuse_unknown=spec.fuse_unknown,
                ignore_merges=spec.ignore_merges,
                normalizes=spec.normalizes,
                prepends=spec.prepends,
                prefix=spec.prefix,
                cuts_at_spaces=spec.cuts_at_spaces,
                added=added,
                special_tokens=mode,
                dtype=width,
                cache_bytes=cache_bytes,
                level=level,
            )
        except ValueError as error:
            raise TokenizerError(f"tokenizer {self.name}: {error}") from None

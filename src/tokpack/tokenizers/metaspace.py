"""A BPE over characters, or a Unigram, from a tokenizer.json, in the native core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokpack import _core
from tokpack.tokenizers.frame import find_eod
from tokpack.tokenizers.huggingface import HuggingFaceTokenizer
from tokpack.tokenizers.native import CoreTokenizer
from tokpack.tokenizers.spec import UnigramSpec
from tokpack.tokenizers.spec_unigram import core_steps

if TYPE_CHECKING:
    from tokpack.tokenizers.spec import MetaspaceSpec


class MetaspaceTokenizer(CoreTokenizer, HuggingFaceTokenizer):
    """A tokenizer.json by which the native core encodes, and the Hugging Face library decodes.

    Kind and fingerprint are those that it has where the library encodes: the ids are the same.
    """

    spec: MetaspaceSpec | UnigramSpec

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
        self.reference = (raw,)
        self.spec = spec
        by_id = sorted(spec.added, key=lambda token: token.id)
        self.special_ids = {token.content: token.id for token in by_id if token.special}
        self.vocab_size = len(spec.vocab)
        self.eod_id = find_eod(self, eod_token)

    def definition_digest(self) -> str:
        return self.spec.definition

    def _build_core(self, **settings: Any) -> _core.MetaspaceBPE | _core.MetaspaceUnigram:
        spec = self.spec
        added = [
            (t.content.encode(), t.id, t.special, t.normalized, t.lstrip, t.rstrip)
            for t in spec.added
        ]
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
                **settings,
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
            **settings,
        )

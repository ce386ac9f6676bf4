"""Read a tokenizer.json of a WordPiece, as BERT's and those of models of embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from tokpack.tokenizers.huggingface import digest_of
from tokpack.tokenizers.spec import LONGEST, NotNativeError, WordPieceSpec
from tokpack.tokenizers.spec_json import added_tokens, check_ids, steps_of, texts_by_id
from tokpack.tokenizers.spec_normalizer import check_added, normalizer_steps

_MODEL_KEYS = {
    *("type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"),
}
_MOST_CUTS = 6


def is_wordpiece(definition: dict[str, Any]) -> bool:
    """Whether a parsed tokenizer.json is a WordPiece."""
    model = definition.get("model")
    return isinstance(model, dict) and model.get("type") == "WordPiece"


def wordpiece_spec(definition: dict[str, Any]) -> WordPieceSpec:
    """Turn such a file into a native definition, or raise NotNativeError.

    Truncation, padding and the post_processor are left out on purpose: a dataset holds plain ids.
    """
    model = definition["model"]
    if set(model) != _MODEL_KEYS:
        other = sorted(set(model) ^ _MODEL_KEYS)[0]
        raise NotNativeError(f"its model has, or has not, the setting '{other}'")
    vocab, prefix = check_ids(model["vocab"]), model["continuing_subword_prefix"]
    unknown, longest = vocab.get(model["unk_token"]), model["max_input_chars_per_word"]
    if unknown is None or not isinstance(prefix, str) or type(longest) is not int or longest < 0:
        raise NotNativeError("it has no token for unknown words, or a setting of another type")
    added = added_tokens(definition, vocab)
    check_added(added, definition.get("normalizer"))
    table = texts_by_id(vocab, added)
    if min(longest, max(len(token) for token in table if token is not None)) > LONGEST:
        raise NotNativeError("its vocabulary has a very long token")
    return WordPieceSpec(
        vocab=table,
        merges=np.empty((0, 3), np.int32),
        added=added,
        prefix=prefix,
        unknown=unknown,
        longest_word=longest,
        steps=normalizer_steps(definition.get("normalizer")),
        cuts=_cuts(definition.get("pre_tokenizer")),
        definition=digest_of(definition),
    )


def _cuts(node: Any) -> tuple[str, ...]:
    """The pre-tokenizers, as the core names them."""
    cuts = tuple(map(_cut, steps_of(node)))
    if not 0 < len(cuts) <= _MOST_CUTS:
        raise NotNativeError("it has no pre_tokenizer, or many")
    return cuts


def _cut(step: dict[str, Any]) -> str:
    kind = step.get("type")
    if kind in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit") and len(step) == 1:
        return str(kind)
    if step == {"type": "Punctuation", "behavior": "Isolated"}:
        return "Punctuation"
    if step == {"type": "Digits", "individual_digits": True}:
        return "Digits"
    if step == {"type": "Digits", "individual_digits": False}:
        return "Digits together"
    raise NotNativeError(f"its pre_tokenizer has the step {kind}")

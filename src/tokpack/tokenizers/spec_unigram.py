"""Read a tokenizer.json of a Unigram, as SentencePiece's models become one (T5, XLM-R, DeBERTa).

Where SentencePiece and the Hugging Face library differ, the latter is followed: its file it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.tokenizers.huggingface import digest_of
from tokpack.tokenizers.spec import LONGEST, MAX_ID, NotNativeError, UnigramSpec
from tokpack.tokenizers.spec_json import added_tokens, steps_of, texts_by_id
from tokpack.tokenizers.spec_metaspace import SPACE, byte_fallback, metaspace_settings
from tokpack.tokenizers.spec_normalizer import check_added, named, normalizer_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.tokenizers.spec import AddedToken, NormalizerStep
    from tokpack.tokenizers.spec_metaspace import Prefix

_MODEL_KEYS = {"type", "unk_id", "vocab", "byte_fallback"}
_SPACES = (("space runs", b""), ("replace", b" "))


def is_unigram(definition: dict[str, Any]) -> bool:
    """Whether a parsed tokenizer.json is a Unigram."""
    model = definition.get("model")
    return isinstance(model, dict) and model.get("type") == "Unigram"


def unigram_spec(definition: dict[str, Any]) -> UnigramSpec:
    """Turn such a file into a native definition, or raise NotNativeError.

    Truncation, padding and the post_processor are left out on purpose: a dataset holds plain ids.
    """
    model = definition["model"]
    unknown_settings = sorted(set(model) - _MODEL_KEYS)
    if unknown_settings:
        raise NotNativeError(f"its model has the unknown setting '{unknown_settings[0]}'")
    tokens, scores = _vocabulary(model.get("vocab"))
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) < len(tokens):
        raise NotNativeError("its vocabulary has a token twice")
    unknown = _unknown(model, vocab)
    prefix, splits = _pre_tokenizer(definition.get("pre_tokenizer"))
    steps = normalizer_steps(definition.get("normalizer"))
    added = added_tokens(definition, vocab)
    check_added(added, definition.get("normalizer"))
    if prefix == "first" and not _keeps_the_begin(steps, added):
        raise NotNativeError("its normalizer may remove the begin of a text, which gets a prefix")
    table = texts_by_id(vocab, added)
    if max(len(token) for token in table if token is not None) > LONGEST:
        raise NotNativeError("its vocabulary has a very long token")
    return UnigramSpec(
        vocab=table,
        merges=np.empty((0, 3), np.int32),
        added=added,
        scores=scores,
        unknown=unknown,
        byte_ids=byte_fallback(vocab) if model.get("byte_fallback") else [],
        steps=steps,
        splits_white_space=splits,
        prefix=prefix,
        definition=digest_of(definition),
    )


def _vocabulary(vocab: Any) -> tuple[list[str], list[float]]:
    """Tokens by id and their scores, as the library reads them."""
    if not isinstance(vocab, list) or not 0 < len(vocab) <= MAX_ID:
        raise NotNativeError("its model has no vocabulary")
    if not all(isinstance(row, list) and len(row) == 2 for row in vocab):
        raise NotNativeError("its vocabulary is not one of tokens and scores")
    tokens, numbers = zip(*vocab, strict=True)
    if set(map(type, tokens)) != {str} or set(map(type, numbers)) - {int, float}:
        raise NotNativeError("its vocabulary is not one of tokens and scores")
    scores = [_as_read_by_the_library(number) for number in numbers]
    if not all(-1e6 < score <= 0 for score in scores):
        raise NotNativeError("its vocabulary has a score above 0, or out of range")
    return list(tokens), scores


def _as_read_by_the_library(number: float) -> float:
    """A score as the library's JSON reader takes its shortest decimal form.

    It multiplies or divides the digits by a power of ten, and so may round twice.
    """
    digits, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = digits.partition(".")
    significand, power = int(whole + fraction), int(exponent or 0) - len(fraction)
    if significand >= 1 << 64 or abs(power) > 300:
        raise NotNativeError(f"its vocabulary has the score {number}")
    value = float(significand)
    value = value * float(f"1e{power}") if power >= 0 else value / float(f"1e{-power}")
    return -value if number < 0 else value


def _unknown(model: dict[str, Any], vocab: dict[str, int]) -> int:
    unknown = model.get("unk_id")
    if type(unknown) is not int or not 0 <= unknown < len(vocab):
        raise NotNativeError("it has no token for unknown characters")
    text = list(vocab)[unknown]
    if len(text) < 2 or SPACE in text or " " in text:
        raise NotNativeError("its token for unknown characters stands for text, too")
    if any(len(token) > len(text) and not token.replace(text, "") for token in vocab):
        raise NotNativeError("its token for unknown characters is in another one, several times")
    if SPACE not in vocab:
        raise NotNativeError("its vocabulary has no token for a space")
    return unknown


def _pre_tokenizer(node: Any) -> tuple[Prefix, bool]:
    """Which texts get a space in front, and whether white space is cut out."""
    steps = steps_of(node)
    splits = steps[:1] == [{"type": "WhitespaceSplit"}]
    if len(steps) != 1 + splits or steps[-1].get("type") != "Metaspace":
        raise NotNativeError("its pre_tokenizer is not one that the native core knows")
    prefix, cuts = metaspace_settings(steps[-1])
    if not cuts or (splits and prefix != "always"):
        raise NotNativeError("its pre_tokenizer is a Metaspace of settings that are not understood")
    return prefix, splits


def _keeps_the_begin(steps: Sequence[NormalizerStep], added: Sequence[AddedToken]) -> bool:
    """Whether the library puts the prefix of a document where the core does.

    That is certain where no step can remove the first characters of a document.
    """
    harmless = [
        *(named("strip right"), named("space runs", b"", b" ")),
        *(named(name, text, SPACE.encode()) for name, text in _SPACES),
    ]
    rules = [step for step in steps if step not in harmless]
    return all(step[0] == "rules" for step in rules) and not (
        rules and any(token.normalized for token in added)
    )

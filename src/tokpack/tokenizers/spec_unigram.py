"""Read a tokenizer.json of a Unigram, as SentencePiece's models become one (T5, XLM-R, DeBERTa).

Where SentencePiece and the Hugging Face library differ, the latter is followed: its file it is.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack import _core
from tokpack.tokenizers.huggingface import digest_of, load_library
from tokpack.tokenizers.spec import MAX_ID, NotNativeError, UnigramSpec
from tokpack.tokenizers.spec_json import added_tokens, texts_by_id
from tokpack.tokenizers.spec_metaspace import SPACE, byte_fallback, metaspace_settings, steps_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.tokenizers.spec import AddedToken, NormalizerStep
    from tokpack.tokenizers.spec_metaspace import Prefix

_MODEL_KEYS = {"type", "unk_id", "vocab", "byte_fallback"}
_BY_CHARACTER = {"NFD", "NFKD", "StripAccents", "Lowercase"}
_LONGEST = 512  # bytes of a token: a hostile one would take quadratic time
# All characters that these may change, without the line feed, which separates them in one call.
# Beyond these ranges there are only unassigned and private characters.
_RANGES = (range(0x0A), range(0x0B, 0xD800), range(0xE000, 0x32000), range(0xE0000, 0xE0200))
_SPACES = (("space runs", b""), ("replace", b" "))
_REGEX = {
    " {2,}": "space runs",
    r"\s{2,}|[\n\r\t]": "white space",
}
_PLAIN_REGEX = {r"\n": "\n", r"\t": "\t", r"\r": "\r"}


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
    steps = _steps(definition.get("normalizer"))
    _check_steps(steps)
    added = added_tokens(definition, vocab)
    _check_added(added, definition.get("normalizer"))
    if prefix == "first" and not _keeps_the_begin(steps, added):
        raise NotNativeError("its normalizer may remove the begin of a text, which gets a prefix")
    table = texts_by_id(vocab, added)
    if max(len(token) for token in table if token is not None) > _LONGEST:
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


def _steps(node: Any) -> tuple[NormalizerStep, ...]:
    """The normalizers as the core takes them: a name, and two texts."""
    steps: list[NormalizerStep] = []
    nodes = steps_of(node)
    while nodes:
        kind = nodes[0].get("type")
        by_character = []
        while nodes and nodes[0].get("type") in _BY_CHARACTER:
            by_character.append(nodes.pop(0))
        steps += _characters(by_character) if by_character else _step(nodes.pop(0), kind)
    return tuple(steps)


def core_steps(steps: Sequence[NormalizerStep]) -> list[tuple[str, bytes, bytes]]:
    """The steps as ``_core.MetaspaceUnigram`` takes them."""
    return [(name, base64.b64decode(a), base64.b64decode(b)) for name, a, b in steps]


def _check_steps(steps: Sequence[NormalizerStep]) -> None:
    """Refuse steps that the core refuses.

    The library takes them, and fails at the first text to which such a rule applies.
    """
    try:
        _core.MetaspaceUnigram(
            vocab=[b"<unk>"],
            scores=[0.0],
            byte_ids=[],
            unknown=0,
            steps=core_steps(steps),
            splits_white_space=False,
            prefix="never",
            added=[],
            special_tokens="text",
            cache_bytes=1,
        )
    except ValueError as error:
        raise NotNativeError(str(error)) from None


def _step(node: dict[str, Any], kind: Any) -> list[NormalizerStep]:
    settings = {key: value for key, value in node.items() if key != "type"}
    if kind == "Precompiled" and set(settings) == {"precompiled_charsmap"}:
        return [_named("rules", _charsmap(settings["precompiled_charsmap"]))]
    if kind == "Strip" and set(settings) == {"strip_left", "strip_right"}:
        sides = [side for side in ("left", "right") if settings[f"strip_{side}"] is True]
        return [_named(f"strip {side}") for side in sides]
    if kind == "Replace" and set(settings) == {"pattern", "content"}:
        return [_replace(**settings)]
    if kind == "NFC" and not settings:
        return [_named("nfc")]
    raise NotNativeError(f"its normalizer is {kind}")


def _charsmap(text: Any) -> bytes:
    try:
        rules = base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        rules = b""
    if not rules:
        raise NotNativeError("its normalization rules (precompiled_charsmap) are not base64")
    return rules


def _replace(pattern: Any, content: Any) -> NormalizerStep:
    kind, text = next(iter(pattern.items())) if isinstance(pattern, dict) else ("", None)
    if len(pattern) == 1 and isinstance(text, str) and text and isinstance(content, str):
        if kind == "Regex" and text in _REGEX:
            return _named(_REGEX[text], b"", content.encode())
        if kind == "Regex" and text in _PLAIN_REGEX:
            kind, text = "String", _PLAIN_REGEX[text]
        if kind == "String":
            return _named("replace", text.encode(), content.encode())
    raise NotNativeError(f"its normalizer replaces {text!r}, which is not understood")


def _characters(nodes: list[dict[str, Any]]) -> list[NormalizerStep]:
    """A step that replaces each character by what the library's normalizers make of it.

    That must not depend on its neighbours. A decomposition sorts the marks behind a character, so
    only one that is followed by the removal of marks can be taken.
    """
    kinds = [node.get("type") for node in nodes]
    decomposes = [i for i, kind in enumerate(kinds) if kind in ("NFD", "NFKD")]
    if any(set(node) != {"type"} for node in nodes) or (
        decomposes and "StripAccents" not in kinds[decomposes[-1] :]
    ):
        raise NotNativeError(f"its normalizer is {kinds[0]}")
    normalizer = _library_normalizer({"type": "Sequence", "normalizers": nodes})
    changeable = [chr(c) for characters in _RANGES for c in characters]
    becomes = normalizer.normalize_str("\n".join(changeable)).split("\n")
    changed = [(c, to) for c, to in zip(changeable, becomes, strict=True) if to != c]
    return [
        _named(
            "characters",
            "".join(c for c, _ in changed).encode(),
            "".join(to + "\0" for _, to in changed).encode(),
        )
    ]


def _named(name: str, first: bytes = b"", second: bytes = b"") -> NormalizerStep:
    return name, base64.b64encode(first).decode(), base64.b64encode(second).decode()


def _check_added(added: Sequence[AddedToken], normalizer: Any) -> None:
    """Refuse added tokens that the library may find otherwise than the core does.

    These are such as compete for the same white space, and such as are equal when normalized.
    """
    normalize = _library_normalizer(normalizer).normalize_str if normalizer else str
    strips = any(token.rstrip for token in added)
    normal = set()
    for token in added:
        text = normalize(token.content) if token.normalized else token.content
        if not text or (strips and text[0].isspace()):
            raise NotNativeError(f"its added token {token.content!r} takes in the text around it")
        if token.normalized and text in normal:
            raise NotNativeError(f"its added token {token.content!r} is there twice, normalized")
        if token.normalized:
            normal.add(text)


def _keeps_the_begin(steps: Sequence[NormalizerStep], added: Sequence[AddedToken]) -> bool:
    """Whether the library puts the prefix of a document where the core does.

    That is certain where no step can remove the first characters of a document.
    """
    harmless = [
        *(_named("strip right"), _named("space runs", b"", b" ")),
        *(_named(name, text, SPACE.encode()) for name, text in _SPACES),
    ]
    rules = [step for step in steps if step not in harmless]
    return all(step[0] == "rules" for step in rules) and not (
        rules and any(token.normalized for token in added)
    )


def _library_normalizer(node: Any) -> Any:
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]]}
    parts = ("pre_tokenizer", "post_processor", "decoder", "truncation", "padding")
    definition = {"version": "1.0", "added_tokens": [], "normalizer": node, "model": model}
    text = json.dumps({**definition, **dict.fromkeys(parts)})
    return load_library().Tokenizer.from_str(text).normalizer

"""Read the normalizers of a tokenizer.json as steps for the native core."""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any

from tokpack import _core
from tokpack.tokenizers.huggingface import load_library
from tokpack.tokenizers.spec import NotNativeError
from tokpack.tokenizers.spec_json import steps_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.tokenizers.spec import AddedToken, NormalizerStep

_FORMS = {"NFC", "NFD", "NFKC", "NFKD"}
_BY_CHARACTER = {"Lowercase", "Nmt", "StripAccents"}
_SEPARATOR = "0"  # of characters in one call: none of these changes it, or makes it
# All characters that these may change: the others are unassigned, private, ideographs or syllables.
_RANGES = (
    *(range(0x30), range(0x31, 0x3400), range(0xA000, 0xAC00)),
    *(range(0xF900, 0x20000), range(0xE0000, 0xE0200)),
)
_REGEX = {
    " {2,}": "space runs",
    r"\s{2,}|[\n\r\t]": "white space",
}
_PLAIN_REGEX = {r"\n": "\n", r"\t": "\t", r"\r": "\r"}
_BERT = ("clean_text", "handle_chinese_chars", "lowercase")


def normalizer_steps(node: Any) -> tuple[NormalizerStep, ...]:
    """The normalizers as the core takes them: a name, and two texts. NotNativeError."""
    steps: list[NormalizerStep] = []
    nodes = steps_of(node)
    while nodes:
        by_character = []
        while nodes and nodes[0].get("type") in _BY_CHARACTER:
            by_character.append(nodes.pop(0))
        steps += _characters(by_character) if by_character else _step(nodes.pop(0))
    try:
        _core.TextNormalizer(core_steps(steps))
    except ValueError as error:  # the library fails at the first text to which a rule applies
        raise NotNativeError(str(error)) from None
    return tuple(steps)


def core_steps(steps: Sequence[NormalizerStep]) -> list[tuple[str, bytes, bytes]]:
    """The steps as ``_core.TextNormalizer`` takes them."""
    return [(name, base64.b64decode(a), base64.b64decode(b)) for name, a, b in steps]


def _step(node: dict[str, Any]) -> list[NormalizerStep]:
    kind = node.get("type")
    settings = {key: value for key, value in node.items() if key != "type"}
    if kind == "Precompiled" and set(settings) == {"precompiled_charsmap"}:
        return [named("rules", _charsmap(settings["precompiled_charsmap"]))]
    if kind == "Strip" and set(settings) == {"strip_left", "strip_right"}:
        sides = [side for side in ("left", "right") if settings[f"strip_{side}"] is True]
        return [named(f"strip {side}") for side in sides]
    if kind == "Replace" and set(settings) == {"pattern", "content"}:
        return [_replace(**settings)]
    if kind == "BertNormalizer" and set(settings) == {*_BERT, "strip_accents"}:
        return _bert(**settings)
    if kind in _FORMS and not settings:
        return [named(kind)]
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
            return named(_REGEX[text], b"", content.encode())
        if kind == "Regex" and text in _PLAIN_REGEX:
            kind, text = "String", _PLAIN_REGEX[text]
        if kind == "String":
            return named("replace", text.encode(), content.encode())
    raise NotNativeError(f"its normalizer replaces {text!r}, which is not understood")


def _bert(
    *, clean_text: Any, handle_chinese_chars: Any, strip_accents: Any, lowercase: Any
) -> list[NormalizerStep]:
    if strip_accents is None:
        strip_accents = lowercase
    return [
        *([named("clean text")] if clean_text else []),
        *([named("ideographs")] if handle_chinese_chars else []),
        *([named("NFD"), named("bert marks")] if strip_accents else []),
        *(_characters([{"type": "Lowercase"}]) if lowercase else []),
    ]


def _characters(nodes: list[dict[str, Any]]) -> list[NormalizerStep]:
    """A step that replaces each character by what the library's normalizers make of it."""
    for node in nodes:
        if set(node) != {"type"}:
            raise NotNativeError(f"its normalizer is {node['type']}")
    normalizer = library_normalizer({"type": "Sequence", "normalizers": nodes})
    changeable = [chr(c) for characters in _RANGES for c in characters]
    becomes = normalizer.normalize_str(_SEPARATOR.join(changeable)).split(_SEPARATOR)
    changed = [(c, to) for c, to in zip(changeable, becomes, strict=True) if to != c]
    return [
        named(
            "characters",
            "".join(c for c, _ in changed).encode(),
            "".join(to + "\0" for _, to in changed).encode(),
        )
    ]


def named(name: str, first: bytes = b"", second: bytes = b"") -> NormalizerStep:
    """A step of the core, of a name and two texts."""
    return name, base64.b64encode(first).decode(), base64.b64encode(second).decode()


def check_added(added: Sequence[AddedToken], normalizer: Any) -> None:
    """Refuse added tokens that the library may find otherwise than the core does.

    These are such as compete for the same white space, and such as are equal when normalized.
    """
    normalize = library_normalizer(normalizer).normalize_str if normalizer else str
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


def library_normalizer(node: Any) -> Any:
    """A normalizer of the library's."""
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]]}
    parts = ("pre_tokenizer", "post_processor", "decoder", "truncation", "padding")
    definition = {"version": "1.0", "added_tokens": [], "normalizer": node, "model": model}
    text = json.dumps({**definition, **dict.fromkeys(parts)})
    return load_library().Tokenizer.from_str(text).normalizer

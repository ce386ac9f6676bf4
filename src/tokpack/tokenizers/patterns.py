"""Recognize the pre_tokenizer of a tokenizer.json as one of the native core's patterns."""

from __future__ import annotations

from typing import Any

from tokpack import _core

# What published files write, with the core's name for it. A Split is given by its expression, all
# others by type and flag. The expressions match every character, so "Isolated" and "Removed and
# inverted" cut the same pieces.
Step = tuple[str, object]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CL100K = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
)
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DEEPSEEK_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)
_BYTES = ("ByteLevel", False)

_KNOWN: dict[tuple[Step, ...], str] = {
    (("ByteLevel", True),): "gpt2",
    (("Split", _GPT2), _BYTES): "gpt2",
    (("Digits", True), ("ByteLevel", True)): "digits_gpt2",
    (("Split", _CL100K), _BYTES): "cl100k",
    (("Split", _QWEN2), _BYTES): "qwen2",
    (("Split", _O200K), _BYTES): "o200k",
    (
        ("Split", r"\p{N}{1,3}"),
        ("Split", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
        ("Split", _DEEPSEEK_WORDS),
        _BYTES,
    ): "deepseek",
    (_BYTES,): "none",
}


def _steps(node: dict[str, Any]) -> tuple[Step, ...] | None:
    """The steps of a pre_tokenizer in order; None when one of them is of no known form."""
    kind = node.get("type")
    if kind == "Sequence":
        nested = [_steps(child) for child in node.get("pretokenizers", [])]
        known = [steps for steps in nested if steps is not None]
        return tuple(s for steps in known for s in steps) if len(known) == len(nested) else None
    if kind == "ByteLevel" and not node.get("add_prefix_space", True):
        return (("ByteLevel", bool(node.get("use_regex", True))),)
    if kind == "Digits":
        return (("Digits", bool(node.get("individual_digits", False))),)
    if kind == "Split":
        pattern = node.get("pattern")
        expression = pattern.get("Regex") if isinstance(pattern, dict) else None
        how = (node.get("behavior"), bool(node.get("invert", False)))
        if isinstance(expression, str) and how in (("Isolated", False), ("Removed", True)):
            return (("Split", expression),)
    return None


def recognize(pre_tokenizer: dict[str, Any] | None) -> str | None:
    """The native core's pattern that cuts as this pre_tokenizer does, if it has one."""
    steps = _steps(pre_tokenizer) if isinstance(pre_tokenizer, dict) else None
    name = _KNOWN.get(steps) if steps else None
    return name if name in _core.patterns() else None

"""Patterns that cut text into words: those of the native core, and the expressions they stand for.

The pre_tokenizer of a tokenizer.json is recognized as one of the core's, a name or an expression
that a user gives becomes a pre_tokenizer.
"""

from __future__ import annotations

import re
from typing import Any

from tokpack import _core
from tokpack.display import brief, message, nearest
from tokpack.errors import UsageError
from tokpack.tokenizers.huggingface import load_library

# What published files write, with the core's name for it. A Split is given by its expression, all
# others by type and flag.
Step = tuple[str, object]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_PUNCTUATION}|{_SPACES}"
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_PUNCTUATION}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DEEPSEEK_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)
_BYTES = ("ByteLevel", False)

_KNOWN: dict[tuple[Step, ...], str] = {
    (("ByteLevel", True),): "gpt2",
    (("Isolated", _GPT2), _BYTES): "gpt2",
    (("Digits", True), ("ByteLevel", True)): "digits_gpt2",
    (("Isolated", _LLAMA3), _BYTES): "llama3",
    (("Isolated", _CL100K), _BYTES): "llama3",
    (("Isolated", _QWEN2), _BYTES): "qwen2",
    (("Isolated", _QWEN35), _BYTES): "qwen35",
    (("Isolated", _O200K), _BYTES): "o200k",
    (("Isolated", _TEKKEN), _BYTES): "tekken",
    (
        ("Isolated", r"\p{N}{1,3}"),
        ("Isolated", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
        ("Isolated", _DEEPSEEK_WORDS),
        _BYTES,
    ): "deepseek_v3",
    (_BYTES,): "none",
}

# What people call the core's patterns beside their own names, and Megatron-LM its TikTokenizer's.
_ALSO = {
    "cl100k": "llama3",
    "deepseek": "deepseek_v3",
    "p50k": "gpt2",
    "qwen": "qwen2",
    "r50k": "gpt2",
    "v2": "tekken",
}
_MEGATRON_V1 = r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"


def _steps(node: dict[str, Any]) -> tuple[Step, ...] | None:
    """The steps of a pre_tokenizer in order; None when one of them is of no known form."""
    kind = node.get("type")
    if kind == "Sequence":
        nested = [_steps(child) for child in node.get("pretokenizers", [])]
        complete = [steps for steps in nested if steps is not None]
        return (
            tuple(s for steps in complete for s in steps) if len(complete) == len(nested) else None
        )
    if kind == "ByteLevel" and not node.get("add_prefix_space", True):
        return (("ByteLevel", bool(node.get("use_regex", True))),)
    if kind == "Digits":
        return (("Digits", bool(node.get("individual_digits", False))),)
    if kind == "Split" and isinstance(node.get("pattern"), dict):
        expression = node["pattern"].get("Regex")
        how = (node.get("behavior"), bool(node.get("invert", False)))
        if isinstance(expression, str) and how in (("Isolated", False), ("Removed", True)):
            # Some files write line ends as themselves.
            escaped = expression.replace("\r", r"\r").replace("\n", r"\n")
            return ((str(how[0]), escaped),)
    return None


def recognize(pre_tokenizer: dict[str, Any] | None) -> str | None:
    """The native core's pattern that cuts as this pre_tokenizer does, if it has one."""
    steps = _steps(pre_tokenizer) if isinstance(pre_tokenizer, dict) else None
    if not steps:
        return None
    if len(steps) == 2 and steps[0][0] == "Removed":
        # A lone Split's known expressions match every character, so nothing is removed.
        steps = (("Isolated", steps[0][1]), steps[1])
    name = _KNOWN.get(steps)
    return name if name in _core.patterns() else None


def names() -> list[str]:
    """The names that ``pre_tokenizer_of`` takes."""
    return sorted({*_KNOWN.values(), *_ALSO, "v1"})


def pre_tokenizer_of(pattern: str) -> dict[str, Any]:
    """The pre_tokenizer that cuts as a pattern says: one of ``names()``, or an expression.

    Expressions are as tiktoken takes them, but that text which none matches stays, as a piece of
    its own. UsageError for one that cannot be compiled, and for an unknown name.
    """
    pattern = _MEGATRON_V1 if pattern == "v1" else pattern
    name = _ALSO.get(pattern, pattern)
    steps = next((steps for steps, form in _KNOWN.items() if form == name), None)
    if steps is None and re.fullmatch(r"[\w.-]*", pattern):
        hint = nearest(pattern, names())
        meant = f"did you mean {hint}" if hint else f"it is an expression, or one of {names()}"
        raise UsageError(f"the pattern {brief(pattern)} is unknown: {meant}")
    if steps is None:
        steps = (("Isolated", _for_oniguruma(pattern)), _BYTES)
        try:
            load_library().Regex(steps[0][1])
        except Exception as error:  # it has no class of its own
            raise UsageError(
                f"the pattern {brief(pattern)} cannot be compiled: {message(str(error))}"
            ) from None
    return {"type": "Sequence", "pretokenizers": [_node(step) for step in steps]}


# Of the letters behind a backslash, those that both engines read alike.
_ESCAPES = frozenset("pPsSdDwWbBnrtfvxAz")
# Words whose case both engines ignore alike. Elsewhere Oniguruma takes "ss" for a sharp s, "fi" for
# a ligature, and classes such as \p{Lu} for what they say.
_ANY_CASE = r"\(\?i:(?!(?i:[^)]*(?:ss|st|ff|fi|fl)))[A-Za-z'|\[\]]*\)"
_PIECE = re.compile(
    r"(?P<escaped>\\(?:x\{[0-9A-Fa-f]+\}|[pP](?:\{[^}]*\}|.)|.))"
    rf"|(?P<words>{_ANY_CASE})"
    r"|(?P<set>\[\^?\]?)|(?P<counted>\{\d+(?:,\d*)?\}\+)|(?P<flag>\(\?[a-z]*[im])"
    r"|(?P<difference>--|~~)|(?P<other>.)",
    re.DOTALL,
)


def _for_oniguruma(expression: str) -> str:
    """An expression of tiktoken's as the library's engine takes it, where ``$`` ends a line."""
    result = []
    depth = 0  # of sets in sets
    for piece in _PIECE.finditer(expression):
        text = piece[0]
        if piece.lastgroup == "escaped":
            text = _escape(expression, text)
        elif piece.lastgroup == "set":
            depth += 1
        elif depth and piece.lastgroup == "difference":
            raise UsageError(
                f"the pattern {brief(expression)} has {text} in a set, which takes sets from each "
                "other in tiktoken and is two characters here: write the set without, or \\- for a "
                "hyphen"
            )
        elif depth:
            depth -= text == "]"
        elif piece.lastgroup == "counted":
            raise UsageError(
                f"the pattern {brief(expression)} has {text}, which repeats there and is "
                f"possessive in tiktoken: write (?>X{text[:-1]}), or give the pattern's name with "
                "--pattern"
            )
        elif piece.lastgroup == "flag":
            raise UsageError(
                f"the pattern {brief(expression)} has the flag {text[-1]} in {text!r}, which means "
                "another thing here than in tiktoken: write it without"
            )
        elif text in ("^", "$"):
            text = r"\A" if text == "^" else r"\z"
        result.append(text)
    return "".join(result)


def _escape(expression: str, text: str) -> str:
    """A backslash and what belongs to it; ``\\pL`` is ``\\p{L}``."""
    letter = text[1]
    if text in ("\\p", "\\P"):
        raise UsageError(
            f"the pattern {brief(expression)} ends in {text}, without what it is to have"
        )
    if letter.isalnum() and letter not in _ESCAPES:
        raise UsageError(
            f"the pattern {brief(expression)} has {text}, which tiktoken does not know or reads in "
            "another way: write the characters themselves"
        )
    return f"{text[:2]}{{{text[2]}}}" if letter in "pP" and text[2] != "{" else text


def _node(step: Step) -> dict[str, Any]:
    kind, value = step
    if kind == "ByteLevel":
        return {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": value,
        }
    if kind == "Digits":
        return {"type": "Digits", "individual_digits": value}
    return {"type": "Split", "pattern": {"Regex": value}, "behavior": kind, "invert": False}

"""Patterns that cut text into words: their names, and the expressions that these stand for.

The steps of a tokenizer.json's pre_tokenizer are read for the native core; a name or an expression
of a user is turned into a pre_tokenizer.
"""

from __future__ import annotations

import functools
import json
import re
import string
from typing import Any, Literal, cast

from tokpack import _core
from tokpack.display import brief, nearest
from tokpack.errors import TokenizerError, UsageError, option
from tokpack.tokenizers.definition import NotNativeError
from tokpack.tokenizers.huggingface import assembled

_EMPTY_LOOP = "a repetition of what may be empty"  # in the words of the core
# A step for the core: a kind, a text and a flag. For a Split these are its behavior, its expression
# and whether it is inverted.
Step = tuple[str, str, bool]
Prefix = Literal["never", "first", "always"]

SPACE = "\u2581"  # what a Metaspace writes for a space
_METASPACE_KEYS = {"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"}
_BYTES: Step = ("ByteLevel", "", False)
# Other names of the core's patterns, among them Megatron-LM's names for its TikTokenizer.
_ALSO = {
    "cl100k": "llama3",
    "deepseek": "deepseek_v3",
    "p50k": "gpt2",
    "qwen": "qwen2",
    "r50k": "gpt2",
    "v2": "tekken",
}
_KIMI = (
    r"[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_MEGATRON_V1 = r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
# Patterns for which the core has no name.
_EXPRESSIONS = {"v1": _MEGATRON_V1, "kimi": _KIMI}


# The word characters of tiktoken's engine, which the library asks beside its own. In its own, six
# numbers below 256 are word characters only outside of sets, and two joiners are none.
_WORD = r"[\w\x{200C}\x{200D}]"
_SPACES: Step = ("Removed", r"\s", False)
# Pre-tokenizers without settings.
_CUTS: dict[str, list[Step]] = {
    "WhitespaceSplit": [_SPACES],
    "Whitespace": [("Removed", rf"{_WORD}+|[^\w\s\x{{200C}}\x{{200D}}]+", True)],
    "BertPreTokenizer": [_SPACES, ("Punctuation", "Isolated", False)],
    "UnicodeScripts": [("UnicodeScripts", "", False)],
}


def steps_of(node: Any) -> list[Step]:
    """The steps of a pre_tokenizer in order. NotNativeError."""
    kind = node.get("type") if isinstance(node, dict) else None
    if kind == "Sequence":
        return [step for child in node.get("pretokenizers", []) for step in steps_of(child)]
    if kind == "ByteLevel":
        prefix = "add_prefix_space" if node.get("add_prefix_space", True) else ""
        return [("ByteLevel", prefix, bool(node.get("use_regex", True)))]
    if kind == "Digits":
        return [("Digits", "", bool(node.get("individual_digits", False)))]
    if kind == "Metaspace":
        prefix, space, split = metaspace_settings(node)
        return [("Metaspace", f"{prefix} {space}", split)]
    if kind == "Punctuation":
        return [("Punctuation", str(node.get("behavior", "Isolated")), False)]
    if kind in _CUTS and len(node) == 1:
        return _CUTS[kind]
    if kind == "CharDelimiterSplit" and isinstance(node.get("delimiter"), str):
        return [("Removed", _literal(node["delimiter"]), False)]
    if kind == "FixedLength" and type(node.get("length")) is int:
        return [("Isolated", rf"[\s\S]{{1,{node['length']}}}", False)]
    if kind == "Split" and isinstance(node.get("pattern"), dict):
        expression, text = node["pattern"].get("Regex"), node["pattern"].get("String")
        if isinstance(text, str):
            expression = _literal(text)
        if isinstance(expression, str):
            return [(str(node.get("behavior")), expression, bool(node.get("invert", False)))]
    raise NotNativeError(f"its pre_tokenizer has {f'the step {kind}' if kind else 'no steps'}")


def metaspace_settings(metaspace: dict[str, Any]) -> tuple[Prefix, str, bool]:
    """Which texts a Metaspace puts a space before, what it writes for spaces, and whether it cuts
    words at them. NotNativeError.
    """
    scheme, split = metaspace.get("prepend_scheme", "always"), metaspace.get("split", True)
    space = metaspace.get("replacement")
    contradicts = metaspace.get("add_prefix_space") is False and scheme != "never"
    understood = (
        not set(metaspace) - _METASPACE_KEYS
        and isinstance(space, str)
        and len(space) == 1
        and scheme in ("never", "first", "always")
    )
    if not understood or contradicts or split not in (None, True, False):
        raise NotNativeError("its pre_tokenizer is a Metaspace of settings that are not understood")
    return cast("Prefix", scheme), cast("str", space), split is not False


def _literal(text: str) -> str:
    """The expression that matches a text."""
    return "".join(f"\\{c}" if c in string.punctuation else c for c in text)


def keeps_text(pattern: str) -> bool:
    """Whether words by a pattern of ``recognize`` are the text, in parts, with a space in front or
    without.
    """
    return is_name(pattern) or _core.Pretokenizer(core_pattern(pattern)).keeps_text


def recognize(pre_tokenizer: Any) -> str:
    """The pattern that cuts like this pre_tokenizer: a name, or else its steps as JSON.

    NotNativeError if the native core does not understand it.
    """
    return _recognized(tuple(steps_of(pre_tokenizer)))


def steps_of_characters(pre_tokenizer: Any) -> tuple[Step, ...]:
    """The steps of a pre_tokenizer without a ByteLevel. NotNativeError."""
    steps = tuple(steps_of(pre_tokenizer))
    if any(kind == "ByteLevel" for kind, _, _ in steps):
        raise NotNativeError("its pre_tokenizer has a ByteLevel, and its model is not of bytes")
    _recognized((*steps, _BYTES))
    return steps


@functools.lru_cache(maxsize=32)  # each call takes milliseconds
def _recognized(steps: tuple[Step, ...]) -> str:
    try:
        return _core.Pretokenizer(list(steps)).name or json.dumps(steps)
    except ValueError as error:
        raise NotNativeError(f"its pre_tokenizer has {error}") from None


def core_pattern(pattern: str) -> str | list[Step]:
    """A pattern of ``recognize`` in the form that the core takes."""
    if not pattern.startswith("["):
        return pattern
    return [(kind, text, flag) for kind, text, flag in json.loads(pattern)]


def is_name(pattern: str) -> bool:
    """Whether a pattern of ``recognize`` is a name."""
    return not pattern.startswith("[")


def names() -> list[str]:
    """The names that ``pre_tokenizer_of`` takes."""
    return sorted({*_core.patterns(), *_ALSO, *_EXPRESSIONS})


def pre_tokenizer_of(pattern: str) -> dict[str, Any]:
    """The pre_tokenizer for a pattern: one of ``names()``, or an expression.

    Expressions are those of tiktoken, except that text which they do not match is kept, as a piece
    of its own. UsageError if it cannot be compiled, and for an unknown name.
    """
    pattern = _EXPRESSIONS.get(pattern, pattern)
    name = _ALSO.get(pattern, pattern)
    if name in _core.patterns():
        return with_steps(_core.pattern_steps(name))
    if re.fullmatch(r"[\w.-]*", pattern):
        hint = nearest(pattern, names())
        meant = f"did you mean {hint}" if hint else f"it is an expression, or one of {names()}"
        raise UsageError(f"the pattern {brief(pattern)} is unknown: {meant}")
    expression = _for_oniguruma(pattern)
    steps: list[Step] = [("Isolated", expression, False), _BYTES]
    try:
        assembled("the library", pre_tokenizer=with_steps(steps))
    except TokenizerError as error:
        reason = re.sub(r".* read it: | at line 1 column \d+$", "", str(error))
        raise UsageError(f"the pattern {brief(pattern)} cannot be compiled: {reason}") from None
    if _repeats_nothing(steps):
        raise UsageError(
            f"the pattern {brief(pattern)} repeats what may be empty, as (a?)+ and (|a){{2,}} do, "
            "and tiktoken and this program may end such a loop at different places: write what is "
            "repeated so that it is never empty, as in a*"
        )
    return with_steps(steps)


def _repeats_nothing(steps: list[Step]) -> bool:
    try:
        _core.Pretokenizer(steps)
    except ValueError as error:
        return _EMPTY_LOOP in str(error)
    return False


def with_steps(steps: list[Step]) -> dict[str, Any]:
    """The pre_tokenizer with these steps."""
    return {"type": "Sequence", "pretokenizers": [_node(step) for step in steps]}


# The letters that mean the same in both engines after a backslash.
_ESCAPES = frozenset("pPsSdDwWbBnrtfvxAz")
_OTHER_PROPERTIES = ("word", "graph", "print")
_OF_WORDS = {
    r"\w": _WORD,
    r"\W": f"[^{_WORD}]",
    r"\b": f"(?:(?<={_WORD})(?!{_WORD})|(?<!{_WORD})(?={_WORD}))",
    r"\B": f"(?:(?<={_WORD})(?={_WORD})|(?<!{_WORD})(?!{_WORD}))",
}
# Words in which both engines ignore case in the same way. In others Oniguruma lets "ss" match a
# sharp s and "fi" a ligature, and takes classes such as \p{Lu} literally.
_ANY_CASE = r"\(\?i:(?!(?i:[^)]*(?:ss|st|ff|fi|fl)))[A-Za-z'|\[\]]*\)"
_PIECE = re.compile(
    r"(?P<escaped>\\(?:x\{[0-9A-Fa-f]+\}|[pP](?:\{[^}]*\}|.)|.))"
    rf"|(?P<words>{_ANY_CASE})"
    r"|(?P<named>\[(?=:\^?[a-z]+:\]))|(?P<set>\[\^?\]?)"
    r"|(?P<twice>(?:[?*+]|\{\d*,?\d*\})[?+]?\{\d*,?\d*\})|(?P<counted>\{\d+(?:,\d*)?\}\+)"
    r"|(?P<fixed>\{\d+\}\?)|(?P<flag>\(\?[a-z]*[im])|(?P<difference>--|~~)"
    r"|(?P<range>-(?=\[|&&))|(?P<other>.)",
    re.DOTALL,
)


# Constructs that mean something else in tiktoken, and the reason why they cannot be translated.
_OTHER_IN_SETS = {
    "named": "[: in a set, a class of ASCII in tiktoken, and of all characters here: write the "
    "characters themselves",
    "range": "- before [ or && in a set, where a range ends in tiktoken, and not here: put a "
    "backslash in front of one of the two",
    "difference": "{text} in a set, which takes sets from each other in tiktoken and is two "
    "characters here: write the set without, or \\- for a hyphen",
}
_OTHER = {
    "twice": "{text}, a repetition of a repetition here and characters that follow one in "
    "tiktoken: write (?:X) around what is repeated twice, or \\{{ for the character",
    "counted": "{text}, which repeats there and is possessive in tiktoken: write (?>X{count}), or "
    f"give the pattern's name with {option('pattern')}",
    "flag": "the flag {last} in {text!r}, which means another thing here than in tiktoken: write "
    "it without",
}


def _for_oniguruma(expression: str) -> str:
    """An expression of tiktoken's for the library's engine, where ``$`` ends a line."""
    result = []
    depth = 0  # of nested sets
    for piece in _PIECE.finditer(expression):
        text, kind = piece[0], piece.lastgroup or ""
        if reason := (_OTHER_IN_SETS if depth else _OTHER).get(kind):
            shown = reason.format(text=text, count=text[:-1], last=text[-1])
            raise UsageError(f"the pattern {brief(expression)} has {shown}")
        if kind == "escaped":
            text = _escape(expression, text)
            if not (depth and text in (r"\b", r"\B")):
                text = _OF_WORDS.get(text, text)
        elif kind in ("named", "set"):
            depth += 1
        elif depth:
            depth -= text == "]"
        elif kind == "fixed":
            text = f"{{{text[1:-2]},{text[1:-2]}}}?"  # the library reads X{2}? as (?:X{2})?
        elif text in ("^", "$"):
            text = r"\A" if text == "^" else r"\z"
        result.append(text)
    return "".join(result)


def _escape(expression: str, text: str) -> str:
    r"""A backslash and the characters that belong to it; ``\pL`` is written ``\p{L}``."""
    letter = text[1]
    if text in ("\\p", "\\P"):
        raise UsageError(
            f"the pattern {brief(expression)} ends in {text}, without what it is to have"
        )
    is_other = letter in "pP" and re.sub(r"[\W_]", "", text[2:]).lower() in _OTHER_PROPERTIES
    if (letter.isalnum() and letter not in _ESCAPES) or is_other:
        raise UsageError(
            f"the pattern {brief(expression)} has {text}, which tiktoken does not know or reads in "
            "another way: write the characters themselves"
        )
    return f"{text[:2]}{{{text[2]}}}" if letter in "pP" and text[2] != "{" else text


def _node(step: Step) -> dict[str, Any]:
    kind, text, flag = step
    if kind == "ByteLevel":
        return {
            "type": "ByteLevel",
            "add_prefix_space": bool(text),
            "trim_offsets": True,
            "use_regex": flag,
        }
    if kind == "Digits":
        return {"type": "Digits", "individual_digits": flag}
    if kind == "Punctuation":
        return {"type": "Punctuation", "behavior": text}
    if kind == "UnicodeScripts":
        return {"type": "UnicodeScripts"}
    if kind == "Metaspace":
        scheme, _, space = text.partition(" ")
        settings = {"replacement": space, "prepend_scheme": scheme, "split": flag}
        return {"type": "Metaspace", **settings}
    return {"type": "Split", "pattern": {"Regex": text}, "behavior": kind, "invert": flag}

"""Pre-tokenizers of published models that have no name in the core, as their files write them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from support.tokenizers_twin import EMPTY_MODEL

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

_C = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}"
_HEAD = r"[^\r\n\p{L}\p{N}]?"
_NO_HAN = r"&&[^\p{Han}]]"


def split(expression: str, behavior: str = "Isolated", *, invert: bool = False) -> dict[str, Any]:
    """A Split of a tokenizer.json."""
    pattern = {"Regex": expression}
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def byte_level(*, use_regex: bool = False, add_prefix_space: bool = False) -> dict[str, Any]:
    """A ByteLevel of a tokenizer.json."""
    flags = {"add_prefix_space": add_prefix_space, "use_regex": use_regex}
    return {"type": "ByteLevel", "trim_offsets": True, **flags}


def sequence(*steps: dict[str, Any] | str) -> dict[str, Any]:
    """Steps one after the other, then bytes; a text is the expression of a Split."""
    nodes = [split(step) if isinstance(step, str) else step for step in steps]
    return {"type": "Sequence", "pretokenizers": [*nodes, byte_level()]}


def _digits(individual: bool) -> dict[str, Any]:
    return {"type": "Digits", "individual_digits": individual}


def _cl100k(digits: str, contractions: str = _C + "|") -> str:
    return rf"{contractions}{_HEAD}\p{{L}}+|{digits}|{_SYMBOLS}|{_SPACES}"


_O200K = (
    rf"{_HEAD}{_UPPER}]*{_LOWER}]+{_C}?|{_HEAD}{_UPPER}]+{_LOWER}]*{_C}?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)

PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "kimi k2": sequence(
        rf"[\p{{Han}}]+|{_HEAD}{_UPPER}{_NO_HAN}*{_LOWER}{_NO_HAN}+{_C}?"
        rf"|{_HEAD}{_UPPER}{_NO_HAN}+{_LOWER}{_NO_HAN}*{_C}?|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
    ),
    "superbpe": sequence(r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "superbpe without numbers": sequence(r"(?=(\d{3})+(?!\d))"),
    "falcon": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Punctuation", "behavior": "Contiguous"},
            byte_level(use_regex=True),
            _digits(individual=False),
            split("[0-9][0-9][0-9]"),
        ],
    },
    "bloom": sequence(" ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"),
    "deepseek llm": sequence(
        "[\r\n]",
        "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
        "\u0295-\u02af\u0370-\u0373\u0386\u0388-\u038a\u03a3-\u03f5\u0400-\u0481\u048a-\u052f"
        "\u0531-\u0556\u10a0-\u10c5]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7fb]+",
        _digits(individual=True),
    ),
    "deepseek coder": sequence(
        "[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00]+", _digits(True)
    ),
    "digits in pairs": sequence(_cl100k(r"\p{N}{1,2}")),
    "digits from the right": sequence(r"\d{1,3}(?=(?:\d{3})*\b)", _O200K),
    "digits from the right, cl100k": sequence(r"(?=(\d{3})+(?!\d))", _cl100k(r"\p{N}{1,3}")),
    "olmo 3": sequence(_cl100k(r"\p{N}{1,3}", "")),
    "qwen without contractions": sequence(_cl100k(r"\p{N}", "")),
    "contractions as written": sequence(_cl100k(r"\p{N}+", "'s|'t|'re|'ve|'m|'ll|'d|")),
    "seed coder": sequence(
        rf"{_C}|{_HEAD}\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
    ),
    "minicpm 5": sequence(r"\p{N}{1,3}", _cl100k(r"\p{N}+")),
    "exaone": sequence(
        rf"{_C}|{_HEAD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "tiktoken's cl100k": sequence(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|(?>\p{N}{1,3})"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    ),
    "o200k as cl100k's digits": sequence(_O200K.replace("{1,3}", "{1,2}").replace("/", "")),
    "gpt2 of any case": sequence(
        rf"{_C}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
    ),
    "punctuation": sequence({"type": "Punctuation", "behavior": "MergedWithPrevious"}),
    "spaces with what follows": sequence(split(" ", "MergedWithNext"), _digits(individual=True)),
    "all but letters": sequence(split(r"\p{L}+", "Contiguous", invert=True)),
    "a text": sequence({**split(""), "pattern": {"String": "a.b"}}, r"\bs"),
}


def pre_tokenizer(node: dict[str, Any]) -> PreTokenizer:
    """The library's."""
    definition = {**EMPTY_MODEL, "pre_tokenizer": node, "decoder": None}
    model = {"type": "BPE", "vocab": {}, "merges": []}
    tokenizer: Any = Tokenizer.from_str(json.dumps({**definition, "model": model}))
    made: PreTokenizer = tokenizer.pre_tokenizer
    return made

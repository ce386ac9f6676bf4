"""Pre-tokenizers that have no name in the core: those of families.jsonl, and more of their kind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from support.families import families
from support.tokenizers_twin import EMPTY_MODEL
from tokpack.tokenizers.patterns import is_name, keeps_text, recognize

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

_C = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}"
_HEAD = r"[^\r\n\p{L}\p{N}]?"


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


def _has_no_name(node: dict[str, Any]) -> bool:
    """Whether the core has no name for it, and it leaves the text as it is."""
    pattern = recognize(node)
    return not is_name(pattern) and keeps_text(pattern) and "add_prefix_space" not in pattern


_PUBLISHED = {
    family.name: family.pre_tokenizer
    for family in families().values()
    if family.kind == "byte-level BPE" and family.pre_tokenizer
}
PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    **{name: node for name, node in _PUBLISHED.items() if _has_no_name(node)},
    "superbpe without numbers": sequence(r"(?=(\d{3})+(?!\d))"),
    "digits in pairs": sequence(_cl100k(r"\p{N}{1,2}")),
    "digits from the right, cl100k": sequence(r"(?=(\d{3})+(?!\d))", _cl100k(r"\p{N}{1,3}")),
    "olmo 3": sequence(_cl100k(r"\p{N}{1,3}", "")),
    "qwen without contractions": sequence(_cl100k(r"\p{N}", "")),
    "contractions as written": sequence(_cl100k(r"\p{N}+", "'s|'t|'re|'ve|'m|'ll|'d|")),
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

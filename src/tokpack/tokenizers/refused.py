"""What the Hugging Face library does, and no tokenizer of a dataset may do."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tokpack.errors import TokenizerError

if TYPE_CHECKING:
    import tokenizers

_PREFIXED = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')
_INSIDE = {bytes([byte]) for byte in range(0x80, 0xC0)}  # UTF-8's bytes within a character
_MOST_GROWTH = 1000  # times; NFKD makes 18 of one, and a mark for a space is 3 bytes


def check_merges(raw: bytes, where: str) -> None:
    """Refuse merges whose second half the library would cut inside a character. TokenizerError.

    It removes as many bytes as continuing_subword_prefix has. What is left is no UTF-8, and the
    message about that would end the process.
    """
    if not _PREFIXED.search(raw):
        return
    try:
        model = json.loads(raw)["model"]
        size = len(model["continuing_subword_prefix"].encode())
        pairs = [m.split(" ", 1) if isinstance(m, str) else m for m in model["merges"]]
        cut = [pair for pair in pairs if pair[1].encode()[size : size + 1] in _INSIDE]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return  # the library says what is wrong
    if cut:
        raise TokenizerError(
            f"{where}: the merge {cut[0]} does not fit continuing_subword_prefix "
            f"{model['continuing_subword_prefix']!r}"
        )


def check_same_ids(tokenizer: tokenizers.Tokenizer, where: str) -> None:
    """Refuse BPE dropout, with which a text has other ids each time. TokenizerError."""
    dropout = getattr(tokenizer.model, "dropout", None)
    if dropout:
        raise TokenizerError(
            f"{where}: its model leaves out merges at random (dropout is {dropout:.4g}), so no two "
            "runs would make the same dataset: set model.dropout to null in a copy of the file"
        )


def check_growth(tokenizer: tokenizers.Tokenizer, where: str) -> None:
    """Refuse steps that make a huge text of a small one. TokenizerError.

    The library aborts the process where there is not enough memory.
    """
    for what in ("normalizer", "decoder"):
        if step := getattr(tokenizer, what):
            growth = _growth(json.loads(step.__getstate__()))
            if growth > _MOST_GROWTH:
                raise TokenizerError(
                    f"{where}: its {what} may make a text {growth:.3g} times as long, more than "
                    f"{_MOST_GROWTH:,} times: it is broken, or meant to harm"
                )


def _growth(step: dict[str, Any]) -> float:
    """How many bytes replacements may make of one."""
    growth = 1.0
    for inner in step.get("normalizers") or step.get("decoders") or ():
        growth *= _growth(inner)
    if step.get("type") == "Replace":
        pattern, added = step["pattern"], len(step["content"].encode())
        literal = pattern.get("String", "")  # an expression may match between any two characters
        growth *= max(1, added / len(literal.encode())) if literal else 1 + added
    return growth

"""Vocabularies of ranks as JSON: Mistral's tekken.json, and the list of Megatron's TikTokenizer."""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING, Any, NamedTuple

from tokpack.display import brief
from tokpack.errors import TokenizerError

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_VOCAB_SIZE = 1 << 17
DEFAULT_SPECIAL_TOKENS = 1000
_KEYS = {"rank", "token_bytes", "token_str"}
_MEGATRON_SPECIAL = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
# Special tokens that a tekken.json before version 11 does not list.
_MISTRAL_SPECIAL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)


class Ranks(NamedTuple):
    """Tokens by rank; that of rank r has the id ``first_id + r``, below are special tokens.

    ``pattern`` is "" where the file does not say it.
    """

    tokens: list[bytes | None]
    first_id: int
    special: dict[str, int]
    pattern: str = ""


def is_tekken(definition: object) -> bool:
    """Whether a JSON value is a tekken.json."""
    return (
        isinstance(definition, dict)
        and isinstance(definition.get("config"), dict)
        and isinstance(definition.get("vocab"), list)
    )


def read_tekken(definition: dict[str, Any], path: Path) -> Ranks:
    """A tekken.json: its pattern, its special tokens, and as many tokens as its size says."""
    config = definition["config"]
    pattern = config.get("pattern")
    if not isinstance(pattern, str):
        raise TokenizerError(f"{path}: its config has no pattern")
    size = _count(config, "default_vocab_size", path)
    first = _count(config, "default_num_special_tokens", path)
    listed = definition.get("special_tokens")
    special = {token: i for i, token in enumerate(_MISTRAL_SPECIAL)}
    if listed is not None:
        special = _special(listed, path)
    if any(token_id >= first for token_id in special.values()):
        raise TokenizerError(
            f"{path}: has special tokens with ids from {first} on, where others are"
        )
    return Ranks(_tokens(definition["vocab"], size - first, path), first, special, pattern)


def read_list(definition: list[Any], path: Path, *, vocab_size: int, special_tokens: int) -> Ranks:
    """The list that Megatron's TikTokenizer reads; the first ids are special tokens."""
    if not len(_MEGATRON_SPECIAL) <= special_tokens < vocab_size:
        raise TokenizerError(
            f"{special_tokens} special tokens are not possible: at least {len(_MEGATRON_SPECIAL)}, "
            f"and fewer than the {vocab_size} ids of the vocabulary"
        )
    more = (f"<SPECIAL_{i}>" for i in range(len(_MEGATRON_SPECIAL), special_tokens))
    special = {token: i for i, token in enumerate((*_MEGATRON_SPECIAL, *more))}
    tokens = _tokens(definition, vocab_size - special_tokens, path)
    return Ranks(tokens, special_tokens, special)


def _count(config: dict[str, Any], key: str, path: Path) -> int:
    value = config.get(key)
    if type(value) is not int or value < 0:
        raise TokenizerError(f"{path}: {key} of its config is {brief(value)}, not a count")
    return value


def _special(listed: Any, path: Path) -> dict[str, int]:
    result: dict[str, int] = {}
    for number, token in enumerate(listed if isinstance(listed, list) else [listed]):
        entry = token if isinstance(token, dict) else {}
        text, rank = entry.get("token_str"), entry.get("rank")
        if not isinstance(text, str) or not text or type(rank) is not int or rank < 0:
            raise TokenizerError(f"{path}: special token {number} is {brief(token)}")
        if text in result or rank in result.values():
            raise TokenizerError(f"{path}: special token {number}, {text!r}, is there twice")
        result[text] = rank
    return result


def _tokens(vocab: list[Any], count: int, path: Path) -> list[bytes | None]:
    """The first ``count`` tokens, which must have the ranks 0, 1, 2, ..."""
    if not 0 < count <= len(vocab):
        raise TokenizerError(
            f"{path}: has {len(vocab)} tokens, and its vocabulary takes {count} beside special "
            "tokens; give the number of ids with --vocab-size"
        )
    tokens: dict[bytes, int] = {}
    for rank, entry in enumerate(vocab[:count]):
        if not isinstance(entry, dict) or not entry.keys() <= _KEYS or entry.get("rank") != rank:
            raise TokenizerError(f"{path}: token {rank} is {brief(entry)}, not of the rank {rank}")
        try:
            token = binascii.a2b_base64(entry["token_bytes"], strict_mode=True)
        except (KeyError, TypeError, ValueError):
            raise TokenizerError(f"{path}: token {rank} is {brief(entry)}, not base64") from None
        if not token or token in tokens:
            raise TokenizerError(f"{path}: token {rank}, {token!r}, is empty or there twice")
        tokens[token] = rank
    return list(tokens)

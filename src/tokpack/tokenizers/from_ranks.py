"""Tokenizers from ranks: tiktoken's files and names, tekken.json, Megatron's list."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tokpack.errors import UsageError
from tokpack.tokenizers import patterns, published, tekken
from tokpack.tokenizers.as_json import to_json
from tokpack.tokenizers.frame import EOD_NAMES
from tokpack.tokenizers.huggingface import HuggingFaceTokenizer
from tokpack.tokenizers.native import NativeTokenizer
from tokpack.tokenizers.ranks import by_rank, parse_ranks, spec_of_ranks

if TYPE_CHECKING:
    from pathlib import Path

    from tokpack.tokenizers.base import SpecialMode, Tokenizer, TokenizerOptions
    from tokpack.tokenizers.published import KnownVocabulary
    from tokpack.tokenizers.spec import ByteLevelSpec


def from_name(known: KnownVocabulary, choice: TokenizerOptions) -> Tokenizer:
    """An encoding of tiktoken's, from a file on this machine."""
    path, raw = published.read_published(known)
    return from_file(raw, path, known.name, choice, known)


def from_file(
    raw: bytes,
    path: Path,
    name: str,
    choice: TokenizerOptions,
    known: KnownVocabulary | None = None,
) -> Tokenizer:
    """A .tiktoken file: a ``known`` one, or what its content says. Any other needs its pattern.

    That one gets ``<|endoftext|>``, behind its last rank.
    """
    known = known or published.by_content(raw)
    ranks = parse_ranks(raw, path)
    if known is None and choice.pattern is None:
        raise UsageError(
            f"{path}: a vocabulary of {len(ranks):,} ranks does not say how text is cut into "
            f"words: add --pattern NAME or EXPRESSION; names are {', '.join(patterns.names())}"
        )
    special = known.special if known else {}
    tokens = by_rank(ranks, special, path)
    spec = spec_of_ranks(
        tokens,
        special or {EOD_NAMES[0]: len(tokens)},
        path,
        nfc=known is not None and known.nfc,
    )
    pattern = choice.pattern or (known.pattern if known else "")
    mode = known.mode if known else "text"
    tokenizer = _tokenizer(name, spec, pattern, mode, choice.eod_token)
    tokenizer.arguments = {"pattern": choice.pattern} if choice.pattern else {}
    return tokenizer


def from_tekken(
    definition: dict[str, Any], path: Path, name: str, choice: TokenizerOptions
) -> Tokenizer:
    """Mistral's tekken.json, whose tools leave special tokens in texts as text."""
    found = tekken.read_tekken(definition, path)
    spec = spec_of_ranks(found.tokens, found.special, path, first_id=found.first_id)
    return _tokenizer(name, spec, found.pattern, "text", choice.eod_token)


def from_list(
    definition: list[Any],
    path: Path,
    name: str,
    choice: TokenizerOptions,
    *,
    vocab_size: int | None,
    special_tokens: int | None,
) -> Tokenizer:
    """The list that Megatron-LM's TikTokenizer reads, with what it takes where nothing is said."""
    pattern = choice.pattern or "v2"
    size = vocab_size or tekken.DEFAULT_VOCAB_SIZE
    count = tekken.DEFAULT_SPECIAL_TOKENS if special_tokens is None else special_tokens
    found = tekken.read_list(definition, path, vocab_size=size, special_tokens=count)
    spec = spec_of_ranks(found.tokens, found.special, path, first_id=found.first_id)
    eod_token = "</s>" if choice.eod_token is None else choice.eod_token
    tokenizer = _tokenizer(name, spec, pattern, "encode", eod_token)
    tokenizer.arguments = {
        "tokenizer_type": "TikTokenizer",
        "pattern": pattern,
        "vocab_size": size,
        "special_tokens_count": count,
    }
    return tokenizer


def _tokenizer(
    name: str, spec: ByteLevelSpec, pattern: str, mode: SpecialMode, eod_token: str | int | None
) -> Tokenizer:
    """The native core where it has the pattern, else the Hugging Face library."""
    pre_tokenizer = patterns.pre_tokenizer_of(pattern)
    own = patterns.recognize(pre_tokenizer)
    if own:
        return NativeTokenizer(
            name, replace(spec, pattern=own), special_tokens_default=mode, eod_token=eod_token
        )
    tokenizer = HuggingFaceTokenizer(
        name,
        to_json(spec, pre_tokenizer),
        why_not_native="its pattern is not one that the native core knows",
        eod_token=eod_token,
    )
    tokenizer.special_tokens_default = mode
    return tokenizer

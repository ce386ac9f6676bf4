"""What a tokenizer is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokpack.tokenizers.frame import find_bos
from tokpack.tokenizers.huggingface import HuggingFaceTokenizer
from tokpack.tokenizers.native import NativeTokenizer
from tokpack.tokenizers.sentencepiece import SentencePieceTokenizer

if TYPE_CHECKING:
    from tokpack.tokenizers import Tokenizer


@dataclass(frozen=True)
class TokenizerFacts:
    """``unused`` ids below ``vocab_size`` stand for nothing. None: the kind has no such thing.

    ``pattern`` and ``normalizer`` are "" where the tokenizer has none. ``files`` are the names of
    those that it was read from, ``notes`` what to know of how they were read.
    """

    name: str
    files: tuple[str, ...]
    kind: str
    model: str  # what makes ids of a word
    native: bool
    why_not_native: str
    pattern: str | None
    normalizer: str | None
    vocab_size: int
    merges: int | None
    unused: int | None
    whole_words: bool  # a word that is a token becomes it without merging
    special: dict[str, int]
    special_in_text: str  # "text" or "encode", where nothing else is asked for
    eod: tuple[str, int] | None
    bos: tuple[str, int] | None
    sha256: str
    notes: tuple[str, ...]


def tokenizer_facts(tokenizer: Tokenizer) -> TokenizerFacts:
    """Look at a tokenizer; nothing is encoded."""
    model, pattern, normalizer, merges, unused, whole_words = _inside(tokenizer)
    eod = tokenizer.eod_id
    names = {token_id: text for text, token_id in tokenizer.special_ids.items()}
    bos = find_bos(tokenizer)
    return TokenizerFacts(
        name=tokenizer.name,
        files=tuple(tokenizer.files),
        kind=tokenizer.kind,
        model=model,
        native=tokenizer.native,
        why_not_native=tokenizer.why_not_native,
        pattern=pattern,
        normalizer=normalizer,
        vocab_size=tokenizer.vocab_size,
        merges=merges,
        unused=unused,
        whole_words=whole_words,
        special=dict(sorted(tokenizer.special_ids.items(), key=lambda item: item[1])),
        special_in_text=tokenizer.special_tokens_default,
        eod=None if eod is None else (names.get(eod) or tokenizer.decode([eod]), eod),
        bos=None if bos is None else (bos, tokenizer.special_ids[bos]),
        sha256=tokenizer.fingerprint,
        notes=tokenizer.notes,
    )


_Inside = tuple[str, str | None, str | None, int | None, int | None, bool]


def _inside(tokenizer: Tokenizer) -> _Inside:
    if isinstance(tokenizer, NativeTokenizer):
        spec = tokenizer.spec
        used = {token.id for token in spec.added}
        unused = sum(token is None and i not in used for i, token in enumerate(spec.vocab))
        merges = len(spec.merges)
        return "BPE", spec.pattern, spec.form, merges, unused, spec.ignore_merges
    if isinstance(tokenizer, HuggingFaceTokenizer):
        definition = json.loads(tokenizer.raw)
        model = definition["model"]
        merges = model.get("merges")
        return (
            _with_bytes(str(model.get("type", "")), bool(model.get("byte_fallback"))),
            _described(definition.get("pre_tokenizer"), "pretokenizers"),
            _described(definition.get("normalizer"), "normalizers"),
            len(merges) if isinstance(merges, list) else None,
            None,
            bool(model.get("ignore_merges", False)),
        )
    if isinstance(tokenizer, SentencePieceTokenizer):
        pieces = tokenizer.model
        steps = {
            "rules of the file": pieces.has_rules,
            "single spaces": pieces.remove_extra_whitespace,
            "a space before the text": pieces.dummy_prefix,
        }
        normalizer = ", ".join(step for step, done in steps.items() if done)
        return _with_bytes(pieces.type, pieces.byte_fallback), None, normalizer, None, None, False
    return "", None, None, None, None, False


def _with_bytes(model: str, byte_fallback: bool) -> str:
    return f"{model} with byte fallback" if byte_fallback else model


def _described(node: Any, children: str) -> str:
    """The types of the steps of a tokenizer.json, and the expressions that they split by."""
    if not isinstance(node, dict):
        return ""
    if node.get("type") == "Sequence":
        return ", ".join(filter(None, (_described(child, children) for child in node[children])))
    pattern = node.get("pattern")
    expression = pattern.get("Regex") if isinstance(pattern, dict) else None
    return f"{node.get('type')} {expression}" if expression else str(node.get("type"))

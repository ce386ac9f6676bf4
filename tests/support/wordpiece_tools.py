"""WordPiece tokenizers, as files."""

from __future__ import annotations

import argparse
import inspect
import json
from functools import cache
from typing import Any

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from support.tiny_tokenizers import with_ids

SPACE = "\u2581"
BERT: dict[str, Any] = {"type": "BertPreTokenizer"}
CUTS: dict[str, Any] = {
    "BERT's": BERT,
    "words": {"type": "Whitespace"},
    "white space": {"type": "WhitespaceSplit"},
    "some": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "WhitespaceSplit"},
            {"type": "Punctuation", "behavior": "Isolated"},
            {"type": "Digits", "individual_digits": True},
        ],
    },
    "digits": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": False},
            {"type": "Whitespace"},
        ],
    },
    "scripts": {"type": "UnicodeScripts"},
    "words of scripts": {
        "type": "Sequence",
        "pretokenizers": [
            *({"type": kind} for kind in ("Whitespace", "Punctuation", "UnicodeScripts")),
        ],
    },
    "Metaspace": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always"},
    "Metaspace and others": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first"},
            {"type": "Punctuation", "behavior": "Isolated"},
            {"type": "UnicodeScripts"},
            {"type": "Digits", "individual_digits": True},
        ],
    },
    "others and Metaspace": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "UnicodeScripts"},
            {"type": "Digits", "individual_digits": False},
            {
                "type": "Metaspace",
                "replacement": SPACE,
                "prepend_scheme": "always",
                "split": False,
            },
        ],
    },
}
PIECES = [
    *(" ", "  ", "the", " cat", "mat", "ING", "0", "12", ".", "'", "''", "``", "\n", "\t", "\r\n"),
    *("\0", "\x0b", "\x7f", "\x85", "\ufffd", "\u00a0", "\u200b", "\u200d", "\ufeff", "\ue000"),
    *("A", "\u00c5", "\u0130", "\u03a3", "\u00df", "\u1e9e", "\u00e9", "e\u0301", "\u0301"),
    *("\u0327\u0301", "\u0301\u0327", "\u302e", "\U0001d165\u0323\U0001d16d", "\u0f74\u0f71"),
    *("\u4e2d", "\u6587", "\u3042", "\u30ab\u3099", "\uac00", "\u1100\u1161", "\u0441", "\uff21"),
    *("\u2126", "\ufb01", "\u00bd", "\u0915\u093c", "\u0958", "\u0e33", "\u0e40", "\U0001f600"),
    *("\U00020000", "\U0002a6df", "\U000f0000", "\U0010ffff", "\u07fd", "\u0897", "\U00011938"),
    *(SPACE, "\u30fc", "\u30ab", "\u05d0", "\u0378", "\u1b00", SPACE + "the", "\u0640"),
    *("[UNK]", "[MASK]", "[CLS]", "[", "##", "#", "_", "-", "$", "^", "\u3002", "\u2019"),
]


def sequence(*steps: Any) -> dict[str, Any]:
    """A pre_tokenizer of these steps."""
    return {"type": "Sequence", "pretokenizers": list(steps)}


def definition(
    words: dict[str, None],
    normalizer: Any,
    pre_tokenizer: Any,
    tokens: Any = (),
    *,
    prefix: str = "##",
    longest: int = 100,
    **model: Any,
) -> dict[str, Any]:
    """A tokenizer.json; added tokens get the ids that they must have."""
    vocab = {word: number for number, word in enumerate(words)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": with_ids(vocab, tokens),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": prefix,
            "max_input_chars_per_word": longest,
            "vocab": vocab,
            **model,
        },
    }


def bert_normalizer(**settings: bool | None) -> dict[str, Any]:
    """BERT's, but for these settings."""
    return {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
        **settings,
    }


@cache
def _trained(lowercase: bool, texts: tuple[str, ...], size: int) -> str:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        limit_alphabet=4000,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        initial_alphabet=[c for piece in PIECES for c in piece],
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts, *PIECES * 3], trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    text: str = tokenizer.to_str()
    return text


def trained(*, lowercase: bool, texts: tuple[str, ...] = (), size: int = 3000) -> dict[str, Any]:
    """A vocabulary of these texts or Python's own sources, as BERT's tools make one."""
    sources = texts or tuple(map(inspect.getsource, (argparse, inspect)))
    made: dict[str, Any] = json.loads(_trained(lowercase, sources, size))
    return made

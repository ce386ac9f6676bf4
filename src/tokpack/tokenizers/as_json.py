"""A definition as the tokenizer.json that says the same to the Hugging Face library."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokpack.tokenizers.spec import encode_alphabet

if TYPE_CHECKING:
    from tokpack.tokenizers.spec import ByteLevelSpec


def to_json(spec: ByteLevelSpec, pre_tokenizer: dict[str, Any]) -> bytes:
    """A tokenizer.json of ``spec`` that cuts as ``pre_tokenizer`` does."""
    written = encode_alphabet(spec.vocab)
    vocab = {token: i for i, token in enumerate(written) if token is not None}
    # The library numbers a token outside the vocabulary itself, so special ones are in it too.
    vocab.update({token.content: token.id for token in spec.added})
    halves = spec.merges[:, 0].tolist(), spec.merges[:, 1].tolist()
    definition = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token.id,
                "content": token.content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": token.normalized,
                "special": token.special,
            }
            for token in sorted(spec.added, key=lambda token: token.id)
        ],
        "normalizer": {"type": "NFC"} if spec.nfc else None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": spec.ignore_merges,
            "vocab": vocab,
            "merges": [f"{written[a]} {written[b]}" for a, b in zip(*halves, strict=True)],
        },
    }
    return json.dumps(definition, ensure_ascii=False, separators=(",", ":")).encode()

"""Vocabularies of ranks as files: tiktoken's lines, Mistral's JSON, Megatron's list."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BYTES = [bytes([i]) for i in range(256)]
WORDS = [b"th", b"the", b" the", b"in", b"ing", b" in", b"  ", b"\xc3\xa9", b"12"]
OWN = [*BYTES, *WORDS]


def lines(tokens: Sequence[bytes]) -> bytes:
    """A .tiktoken file, ranks from 0 on."""
    return b"".join(
        base64.b64encode(token) + b" " + str(i).encode() + b"\n" for i, token in enumerate(tokens)
    )


def entries(tokens: Sequence[bytes]) -> list[dict[str, Any]]:
    """What tekken.json and Megatron's list have for each token."""
    return [
        {"rank": i, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for i, token in enumerate(tokens)
    ]


def save_lines(folder: Path, tokens: Sequence[bytes], name: str = "own.tiktoken") -> Path:
    path = folder / name
    path.write_bytes(lines(tokens))
    return path


def save_tekken(folder: Path, tokens: Sequence[bytes], pattern: str, **more: Any) -> Path:
    """A tekken.json with ten special tokens before the others, three of them named."""
    config = {
        "pattern": pattern,
        "num_vocab_tokens": len(tokens),
        "default_vocab_size": len(tokens) + 10,
        "default_num_special_tokens": 10,
        "version": "v11",
    }
    special = [
        {"rank": i, "token_str": text, "is_control": True}
        for i, text in enumerate(("<unk>", "<s>", "</s>"))
    ]
    definition = {"config": config, "vocab": entries(tokens), "special_tokens": special, **more}
    path = folder / "tekken.json"
    path.write_text(json.dumps(definition), encoding="utf-8")
    return path

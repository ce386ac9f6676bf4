"""Make the documents of this folder, two tokenizers, and their ids by Hugging Face's tokenizers.

    python tests/golden/documents/make.py

The texts are drawn from the words of a few alphabets, so they are nobody's. It ran once, with
tokenizers 0.23: other versions may train another vocabulary, and need not.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import tokenizers
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

HERE = Path(__file__).parent
DOCUMENTS = 300
ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "aäbcdeéfghiïjklmnoöpqrsßtuüvwxyz",
    "абвгдежзийклмнопрстуфхцчшщъыьэюя",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "अआइईउऊएऐओऔकखगघचछजझटठडढणतथदधन",
    "的一是不了人我在有他这为之大来以个中上们",
    "あいうえおかきくけこさしすせそタチツテト",
    "가나다라마바사아자차카타파하",
    "אבגדהוזחטיכלמנסעפצקרשת",
]
MARKS = [
    " ", " ", " ", " ", " ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", ", ", ". ", "! ",
    "? ", "'s ",
    "'ll ", "\u2019t ", "'RE ", " (", ") ", "--", " = ", ";\n    ", "://", "_", "@", "#",
    "…", " 7", " 42 ", "1999", " 3.14 ", "٣٤", "½", "e\u0301", "\u212b", "\u1100\u1161", "😀",
    "👨‍👩‍👧", "<|endoftext|>", "<|endof", "\u200b", "\ufeff", "\0",
]  # fmt: skip


def texts(draw: random.Random) -> list[str]:
    """Documents of a few made words each, one empty."""
    words = [
        ["".join(draw.choices(letters, k=draw.randint(1, 9))) for _ in range(60)]
        for letters in ALPHABETS
    ]
    found = [""]
    for number in range(1, DOCUMENTS):
        mine = words[0] + words[number % len(words)]
        pieces = [draw.choice(mine) + draw.choice(MARKS) for _ in range(draw.randint(1, 120))]
        found.append("".join(pieces) + " " * draw.randint(0, 3))
    return found


def train(documents: list[str], composed: bool) -> Tokenizer:
    """A byte-level BPE of 2,000 tokens, with NFC and spaces as tokens as GPT-NeoX's has, or not."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if composed:
        tokenizer.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        initial_alphabet=alphabet,
        special_tokens=[AddedToken("<|endoftext|>", special=True, normalized=False)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    if composed:
        spaces = [AddedToken(" " * n, normalized=True) for n in range(4, 1, -1)]
        tokenizer.add_tokens(spaces)
    return tokenizer


def main() -> None:
    documents = texts(random.Random(1))
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in documents]
    (HERE / "documents.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    expected: dict[str, object] = {"tokenizers": tokenizers.__version__}
    for name, composed in (("gpt2", False), ("neox", True)):
        tokenizer = train(documents, composed)
        tokenizer.save(str(HERE / f"{name}.json"), pretty=False)
        ids = [encoding.ids for encoding in tokenizer.encode_batch(documents)]
        expected[name] = ids
    (HERE / "expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

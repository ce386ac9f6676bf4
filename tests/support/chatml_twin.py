"""Conversations in ChatML by hand: their text, what of it is trained, and their tokens."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tokpack
from support.encoding_tools import EOD, document
from support.marking_twin import library_of, marked
from tokpack.dataset.verify import verify
from tokpack.errors import InputError
from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
HOSTILE = [
    *("", " ", "\n", "<|im_end|>", "<|im_start|>assistant\n", "a <|im_end|> b", EOD, "{{ 1 }}"),
    *(
        "\U0001f468\u200d\U0001f469",
        "e\u0301 \u00e9",
        "\u1112\u1161\u11ab",
        "\u202e\u0000",
        "\u0958",
    ),
]


def chat_tokenizer(folder: Path, plain: Path, **config: Any) -> Path:
    """A folder with a byte-level tokenizer of ChatML, whose NFC is that of many."""
    definition = json.loads(plain.read_text(encoding="utf-8"))
    definition["normalizer"] = {"type": "NFC"}
    known = max(definition["model"]["vocab"].values()) + 1
    for number, content in enumerate(("<|im_start|>", "<|im_end|>"), known):
        token = {"id": number, "content": content, "special": True, "normalized": False}
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        definition["added_tokens"].append({**token, **flags})
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    settings = {"chat_template": TEMPLATE, "eos_token": "<|im_end|>", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def conversation(rng: random.Random, words: int = 40) -> list[dict[str, str]]:
    """Messages of two who talk, sometimes with a system prompt; hostile now and then."""

    def text() -> str:
        return (
            rng.choice(HOSTILE) if rng.random() < 0.1 else document(rng, 1 + rng.randrange(words))
        )

    first = [{"role": "system", "content": text()}] if rng.random() < 0.3 else []
    turns = [
        {"role": role, "content": text()}
        for _ in range(1 + rng.randrange(3))
        for role in ("user", "assistant")
    ]
    return first + turns


def conversations(count: int, seed: int = 0, words: int = 40) -> list[dict[str, Any]]:
    """Records with messages."""
    rng = random.Random(seed)
    return [{"id": i, "messages": conversation(rng, words)} for i in range(count)]


def write_records(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    lines = [json.dumps(one, ensure_ascii=bool(i % 2)) for i, one in enumerate(records)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return path


def rendered(messages: Sequence[dict[str, str]]) -> tuple[str, list[tuple[int, int]]]:
    """The text of messages, and the characters that an assistant writes."""
    text, spans = "", []
    for message in messages:
        text += f"<|im_start|>{message['role']}\n"
        begin = len(text)
        text += f"{message['content']}<|im_end|>"
        if message["role"] == "assistant":
            spans.append((begin, len(text)))
        text += "\n"
    return text, spans


class ChatTwin:
    """What the library makes of conversations, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.library = library_of(load_tokenizer(folder))  # type: ignore[arg-type]

    def rows(self, chats: Sequence[Sequence[dict[str, str]]]) -> list[tuple[list[int], list[int]]]:
        """Ids and mask of each."""
        return [marked(self.library, *rendered(messages)) for messages in chats]

    def arrays(
        self, chats: Sequence[Sequence[dict[str, str]]]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], list[int]]:
        """Ids and mask of all, and how many tokens each has."""
        rows = self.rows(chats)
        ids = np.array([one for row, _ in rows for one in row], np.int32)
        mask = np.array([one for _, row in rows for one in row], np.uint8)
        return ids, mask, [len(row) for row, _ in rows]


class Chats:
    """A folder in which conversations are encoded and read back."""

    def __init__(self, folder: Path, tokenizer: Path, twin: ChatTwin) -> None:
        self.folder, self.tokenizer, self.twin = folder, tokenizer, twin
        self.output = folder / "out"

    def encode(self, inputs: Any, **options: Any) -> tokpack.Manifest:
        settings = {"tokenizer": str(self.tokenizer), "chat": True, "workers": 1, **options}
        if isinstance(inputs, list):
            inputs = write_records(self.folder / "in.jsonl", inputs)
        return tokpack.encode(inputs, self.output, **settings)

    def refused(self, inputs: Any, says: str, error: Any = InputError, **options: Any) -> None:
        with pytest.raises(error, match=says):
            self.encode(inputs, **options)

    def rows(self) -> list[tuple[list[int], list[int]]]:
        """Ids and mask of each document that is there."""
        data = tokpack.MMapIndexedDataset(self.output)
        return [(data[i].tolist(), data.mask[i].tolist()) for i in range(len(data))]

    def right(self, records: Sequence[dict[str, Any]]) -> None:
        """Check that the dataset has these conversations; verify must find no fault."""
        ids, mask, lengths = self.twin.arrays([one["messages"] for one in records])
        data = tokpack.MMapIndexedDataset(self.output)
        assert data.sizes.tolist() == lengths
        assert np.array_equal(np.concatenate([data[i] for i in range(len(data))]), ids)
        assert np.fromfile(f"{self.output}.mask", np.uint8).tolist() == mask.tolist()
        manifest = tokpack.Manifest.load(self.output)
        assert manifest.adds_up
        assert manifest.trained == mask.sum()
        verify(str(self.output))

    def rejects(self) -> list[dict[str, Any]]:
        text = (self.folder / "out.rejects.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]


RECORDS = conversations(60)

"""Helpers of the tokenizer tests: blocks of documents, native beside the Hugging Face library."""

from __future__ import annotations

import json
import pickle
import random
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

from tokpack import _core
from tokpack.tokenizers import Tokenizer, definition, load_tokenizer, self_check
from tokpack.tokenizers.check import reference
from tokpack.tokenizers.huggingface import HuggingFaceTokenizer, encode_batch
from tokpack.tokenizers.native import JsonTokenizer, NativeTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt
    import pytest
    from tokenizers import Tokenizer as HuggingFace

    from tokpack.tokenizers.base import Encoded

LEVELS = _core.simd_levels()
MODES = ("text", "encode")
EMPTY_MODEL = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
    "post_processor": None,
    "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
}


def block(texts: Sequence[str | bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Documents as (data, spans)."""
    raw = [text.encode() if isinstance(text, str) else text for text in texts]
    ends = np.cumsum([len(piece) for piece in raw], dtype=np.int64)
    sizes = np.array([len(piece) for piece in raw], np.int64)
    return np.frombuffer(b"".join(raw), np.uint8), np.stack([ends - sizes, ends], axis=1)


def rows(encoded: Encoded) -> list[list[int]]:
    """Ids of each document."""
    ends = np.cumsum(encoded.lengths, dtype=np.int64).tolist()
    return [encoded.ids[b:e].tolist() for b, e in zip([0, *ends[:-1]], ends, strict=True)]


def left_to_the_library(path: Path, reason: str) -> Tokenizer:
    """The tokenizer of a file, which the core does not encode for a ``reason``."""
    tokenizer = load_tokenizer(path)
    assert not tokenizer.native
    assert reason in tokenizer.why_not_native
    return tokenizer


def is_as_with_the_library(path: Path, tokens: Sequence[str], texts: Sequence[str]) -> None:
    """Compare all that a native tokenizer.json means with what it means to its library."""
    tokenizer = load_tokenizer(path)
    assert isinstance(tokenizer, JsonTokenizer)
    library = HuggingFaceTokenizer(str(path), path.read_bytes(), why_not_native="")
    library.files = {path.name: path}
    assert tokenizer.describe() == library.describe()
    for token in tokens:
        assert tokenizer.token_to_id(token) == library.token_to_id(token)
    for mode in ("text", "encode", "error", "auto"):
        settings: dict[str, Any] = {"dtype": "uint16", "special_tokens": mode, "append_eod": False}
        native = pickle.loads(pickle.dumps(tokenizer)).encoder(**settings).encode(*block(texts))
        slow = library.encoder(**settings).encode(*block(texts))
        assert rows(native) == rows(slow)
        assert native.special.tolist() == slow.special.tolist()
        assert native.ids.dtype == slow.ids.dtype
    assert self_check(tokenizer, *block(texts))
    ids = tokenizer.encode(texts[-1])
    assert tokenizer.decode(ids) == library.decode(ids) == texts[-1]


def loaded_and_kept(
    path: Path, cache: Path, reader: str, monkeypatch: pytest.MonkeyPatch
) -> list[JsonTokenizer]:
    """A tokenizer.json loaded twice, the second time without the function that reads its kind."""
    monkeypatch.setenv("TOKPACK_CACHE", str(cache))
    monkeypatch.delenv(definition.OFF, raising=False)
    monkeypatch.setattr(definition, "LEAST_BYTES", 1)
    first = load_tokenizer(path)
    monkeypatch.setattr(f"tokpack.tokenizers.load.{reader}", None)
    again = load_tokenizer(path)
    assert isinstance(first, JsonTokenizer)
    assert isinstance(again, JsonTokenizer)
    assert again.spec.chunks() == first.spec.chunks()
    return [first, again]


class Twin:
    """A native tokenizer beside the library's tokenizer from the same files."""

    def __init__(self, tokenizer: Any) -> None:
        native = (NativeTokenizer, JsonTokenizer)
        assert isinstance(tokenizer, native), getattr(tokenizer, "why_not_native", "")
        self.tokenizer = tokenizer
        self._cores: dict[tuple[str, str], _core.AnyEncoder] = {}
        self._slow: dict[str, HuggingFace] = {}

    def native(self, texts: Sequence[str], mode: str, level: str = "auto") -> list[list[int]]:
        key = (mode, level)
        if key not in self._cores:
            self._cores[key] = self.tokenizer.core(dtype="int32", special_tokens=mode, level=level)
        return rows(self._cores[key].encode(*block(texts)))

    def slow(self, texts: Sequence[str], mode: str) -> list[list[int]]:
        if mode not in self._slow:
            self._slow[mode] = reference(self.tokenizer, mode)
        return encode_batch(self._slow[mode], list(texts))

    def compare(self, texts: Sequence[str], *, modes: Sequence[str] = MODES) -> None:
        """Fail unless all levels give the library's ids for all texts."""
        for mode in modes:
            expected = self.slow(texts, mode)
            for level in LEVELS:
                actual = self.native(texts, mode, level)
                wrong = [i for i, ids in enumerate(actual) if ids != expected[i]]
                shown = [(texts[i][:200], actual[i][:30], expected[i][:30]) for i in wrong[:5]]
                assert not wrong, f"{len(wrong)} differ at {level}, {mode}: {shown}"


def made_of(pieces: Sequence[str], count: int, seed: str) -> list[str]:
    """Texts of up to 40 pieces in any order."""
    draw = random.Random(seed)
    return ["".join(draw.choices(pieces, k=draw.randrange(40))) for _ in range(count)]


def corpus(shared: Path, name: str, limit: int = sys.maxsize) -> list[str]:
    """Documents of a shared corpus, up to about ``limit`` bytes of JSON lines."""
    return [json.loads(line)["text"] for line in _lines(shared / "corpora" / name, limit)]


def _lines(path: Path, limit: int) -> Iterator[bytes]:
    with path.with_suffix(".jsonl.zst").open("rb") as file:
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(file)
        rest, seen = b"", 0
        while seen < limit and (chunk := reader.read(min(limit, 1 << 20))):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
            seen += len(chunk)


def ids(tokenizer: Tokenizer, texts: list[str], mode: str = "auto") -> list[list[int]]:
    """What a tokenizer makes of texts, without the token that ends them."""
    encoder = tokenizer.encoder(dtype="int32", append_eod=False, special_tokens=mode)
    return rows(encoder.encode(*block(texts)))

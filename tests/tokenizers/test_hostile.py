"""Tokenizers of others: many added tokens, tokens that overlap, a library that panics."""

from __future__ import annotations

import json
import random
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tokenizers
from support.rank_files import BYTES, save_lines
from support.tiny_tokenizers import added, tiny

import tokpack
from tokpack.errors import RecordError, TokenizerError
from tokpack.tokenizers import huggingface, train_bpe

if TYPE_CHECKING:
    from pathlib import Path

    from tokpack.tokenizers import Tokenizer

RUNS_AWAY = r"(?>.*x)|[\s\S]"  # which is left to the library, and reads to the end of the text


def write(path: Path, definition: dict[str, Any]) -> Path:
    path.write_text(json.dumps(definition))
    return path


def with_tokens(path: Path, *tokens: tuple[str, bool, bool]) -> Path:
    """A tokenizer.json with more added tokens: content, special, normalized."""
    definition = tiny()
    first = len(definition["model"]["vocab"])
    definition["added_tokens"] += [
        added(content, first + i, special=special, normalized=normalized)
        for i, (content, special, normalized) in enumerate(tokens)
    ]
    return write(path, definition)


def ids(tokenizer: Tokenizer, text: str, mode: str) -> list[int]:
    encoder = tokenizer.encoder(dtype="int32", append_eod=False, special_tokens=mode)
    data = np.frombuffer(text.encode(), np.uint8)
    return list(encoder.encode(data, np.array([[0, len(data)]])).ids.tolist())


def expected(path: Path, text: str, mode: str) -> list[int]:
    library = tokenizers.Tokenizer.from_file(str(path))
    library.encode_special_tokens = mode == "text"
    return list(library.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("mode", ["text", "encode"])
def test_special_tokens_that_overlap_others(mode: str, normalized: bool, tmp_path: Path) -> None:
    tokens = [("<|end|>", True), ("<|end", False), ("end|>x", False), ("|>", False)]
    path = with_tokens(tmp_path / "t.json", *((t, s, normalized) for t, s in tokens))
    tokenizer = tokpack.load_tokenizer(path)
    assert tokenizer.native
    for text in ("<|end|>", "<|end|>x", "a<|end <|end|> |>x", "<<|end|>|>", "end|>x<|end|>end|>x"):
        assert ids(tokenizer, text, mode) == expected(path, text, mode), text


def test_any_special_tokens_among_others(tmp_path: Path) -> None:
    rng = random.Random(7)
    parts = ["<", "|", "end", "|>", "x", "  ", " "]
    for _ in range(150):
        words = {"".join(rng.choices(parts, k=rng.randint(1, 4))) for _ in range(5)}
        chosen = [w for w in sorted(words) if w not in tiny()["model"]["vocab"]]
        flags = [(w, rng.random() < 0.5, rng.random() < 0.5) for w in chosen]
        path = with_tokens(tmp_path / "t.json", *flags)
        tokenizer = tokpack.load_tokenizer(path)
        text = "".join(rng.choices(parts + chosen, k=12))
        for mode in ("text", "encode"):
            assert ids(tokenizer, text, mode) == expected(path, text, mode), (text, flags)


def seconds_to_load(path: Path) -> float:
    began = time.process_time()
    tokenizer = tokpack.load_tokenizer(path)
    assert tokenizer.native
    ids(tokenizer, "a <|7|> b", "encode")
    return time.process_time() - began


def test_many_added_tokens_load_in_linear_time(tmp_path: Path) -> None:
    paths = [
        with_tokens(tmp_path / f"{count}.json", *((f"<|{i}|>", True, False) for i in range(count)))
        for count in (3_000, 30_000)
    ]
    few, many = map(seconds_to_load, paths)
    assert many < 40 * few + 2  # a hundred times as much with the square: 16 s and more


def panicking(path: Path) -> Path:
    """A tokenizer.json at which the library panics as soon as there is any text but `<eod>`."""
    definition = tiny()
    definition["pre_tokenizer"] = {"type": "FixedLength", "length": 0}
    return write(path, definition)


def failing(path: Path) -> Path:
    """One with which the library cannot encode the letter b."""
    model = {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0]], "byte_fallback": False}
    return write(path, {**tiny(), "model": model, "pre_tokenizer": None, "added_tokens": []})


@pytest.mark.parametrize(
    ("make", "good", "bad"), [(panicking, "<|endoftext|>", "ab"), (failing, "aa", "ab")]
)
def test_a_text_at_which_the_library_fails(make: Any, good: str, bad: str, tmp_path: Path) -> None:
    path = make(tmp_path / "t.json")
    source = tmp_path / "d.jsonl"
    texts = [good, good, bad, good, bad, good]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    options: dict[str, Any] = {"tokenizer": str(path), "append_eod": False, "workers": 1}
    with pytest.raises(RecordError, match=r"d\.jsonl:3"):
        tokpack.encode([str(source)], str(tmp_path / "fail"), **options)
    manifest = tokpack.encode([str(source)], str(tmp_path / "skip"), on_error="skip", **options)
    assert (manifest.records, manifest.documents, manifest.rejected) == (6, 4, 2)
    rejects = (tmp_path / "skip.rejects.jsonl").read_text().splitlines()
    found = [(record["line"], record["record"]) for record in map(json.loads, rejects)]
    assert found == [(3, bad), (5, bad)]


@pytest.mark.parametrize("pattern", [RUNS_AWAY, None])
def test_a_text_at_which_a_pattern_runs_away(
    pattern: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each match is short, and the sum of them grows with the square: no bad record, the end."""
    path = save_lines(tmp_path, BYTES)
    if pattern is None:
        split = {"Regex": RUNS_AWAY}
        steps = {"type": "Split", "pattern": split, "behavior": "Isolated", "invert": False}
        path = write(tmp_path / "t.json", {**tiny(), "pre_tokenizer": steps})
    source = tmp_path / "d.jsonl"
    texts = ["aa", "ab", "a" * 12_000, "b"]  # a second, of which the test waits for a part
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    monkeypatch.setattr(huggingface, "MOST_SECONDS", 0.05)
    what = "the tokenizers library" if pattern is None else r"the pattern '\(\?>\.\*x\)"
    with pytest.raises(RecordError, match=rf"d\.jsonl:3: {what}.*\b12,000 bytes\b") as caught:
        tokpack.encode(
            [str(source)],
            str(tmp_path / "out"),
            tokenizer=str(path),
            pattern=pattern,
            on_error="skip",
            workers=1,
        )
    assert ("another pattern" in str(caught.value)) == bool(pattern)


def test_a_training_at_which_a_pattern_runs_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TokenizerError, match=r"'\(a\+\)\+\$\|.*: .*retry-limit"):
        train_bpe(["b", "a" * 40 + "b"], vocab_size=300, pattern=r"(a+)+$|\s+")
    monkeypatch.setattr(huggingface, "MOST_SECONDS", 0.05)
    with pytest.raises(TokenizerError, match=r"\(number 2 .*\b17,000 bytes"):
        train_bpe(["b", "a" * 17_000], vocab_size=300, pattern=RUNS_AWAY)


def test_a_panic_while_a_tokenizer_is_loaded(tmp_path: Path) -> None:
    definition = tiny(continuing_subword_prefix="abcdef")
    with pytest.raises(TokenizerError):
        tokpack.load_tokenizer(write(tmp_path / "t.json", definition)).encoder(
            dtype="int32", append_eod=False
        )


def test_a_normalizer_that_multiplies_a_text(tmp_path: Path) -> None:
    """The library would abort the process, where there is not enough memory for a short text."""
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
    for kind, steps in (("normalizer", [step] * 3), ("decoder", [step] * 3)):
        definition = {**tiny(), kind: {"type": "Sequence", f"{kind}s": steps}}
        path = write(tmp_path / "t.json", definition)
        with pytest.raises(TokenizerError, match=rf"t\.json: .*\b{kind} .* 1e\+09 .* 1,000 "):
            tokpack.encode("README.md", tmp_path / "out", tokenizer=path, input_format="text")


def test_a_model_that_drops_merges(tmp_path: Path) -> None:
    """No two runs would have the same ids."""
    path = write(tmp_path / "t.json", tiny(dropout=0.3))
    with pytest.raises(TokenizerError, match=r"t\.json: .*dropout"):
        tokpack.encode("README.md", tmp_path / "out", tokenizer=path, input_format="text")

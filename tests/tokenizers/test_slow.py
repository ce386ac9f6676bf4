"""Tokenizers that are not native: words, SentencePiece, the Hugging Face library; training."""

from __future__ import annotations

import io
import json
import pickle
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import forked
from support.tiny_tokenizers import EOD, save, tiny
from support.tokenizers_twin import block, rows
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from tokpack.errors import InputError, TokenizerError, UsageError
from tokpack.tokenizers import (
    UnencodableError,
    load_tokenizer,
    self_check,
    train_bpe,
    train_whitespace_vocab,
)

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ["the cat sat on the mat", "a \u4e2d\u6587 mat\u00a0sat\n", "", "the the the"]


# Vocabularies of words.


def test_words(tmp_path: Path) -> None:
    path = save(tmp_path, {"<unk>": 0, EOD: 1, "cat": 2, "the": 3}, "vocab.json")
    tokenizer = load_tokenizer(vocab_file=path, tokenizer_type="Whitespace")
    assert (tokenizer.native, tokenizer.vocab_size, tokenizer.eod_id) == (False, 4, 1)
    encoder = pickle.loads(pickle.dumps(tokenizer)).encoder(dtype="uint16", append_eod=True)
    texts = ["  the\u00a0cat\u3000the \x1c\n", "", " \t ", "dog", f"the {EOD} <unk>"]
    encoded = encoder.encode(*block(texts))
    assert rows(encoded) == [[3, 2, 3, 1], [], [], [0, 1], [3, 1, 0, 1]]
    assert (encoded.ids.dtype, encoded.lengths.dtype) == (np.uint16, np.int32)
    assert encoded.special.tolist() == [4, 4]
    assert tokenizer.decode([3, 2, 1]) == f"the cat {EOD}"
    with pytest.raises(TokenizerError):
        tokenizer.decode([9])
    text = tokenizer.encoder(dtype="uint16", append_eod=False, special_tokens="text")
    assert rows(text.encode(*block([f"the {EOD}"]))) == [[3, 0]]


def test_a_word_that_a_vocabulary_cannot_express(tmp_path: Path) -> None:
    path = save(tmp_path, {EOD: 0, "cat": 1}, "vocab.json")
    encoder = load_tokenizer(vocab_file=path, tokenizer_type="whitespace").encoder(
        dtype="int32", append_eod=True
    )
    assert rows(encoder.encode(*block(["cat cat"]))) == [[1, 1, 0]]
    with pytest.raises(UnencodableError, match=r"'dog' of document 3 .*<unk>") as caught:
        encoder.encode(*block(["cat", "", "cat dog"]))
    assert pickle.loads(pickle.dumps(caught.value)).document == 2


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        ({"a b": 0}, r"\.json: 'a b' "),
        ({"": 0}, r"\.json: '' "),
        ({"a": 0, "b": 0}, "'a' and 'b' .*id 0$"),
        ({"a": 0.5}, r"'a' is 0\.5,"),
        ({}, r"\.json: .*empty"),
    ],
)
def test_vocabularies_of_words_that_are_wrong(
    tmp_path: Path, vocab: dict[str, Any], message: str
) -> None:
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(vocab_file=save(tmp_path, vocab), tokenizer_type="Whitespace")


def test_a_vocabulary_of_words_is_made_from_texts(tmp_path: Path) -> None:
    vocab = train_whitespace_vocab(iter(TEXTS))
    assert list(vocab) == ["<unk>", EOD, "the", "mat", "sat", "a", "cat", "on", "\u4e2d\u6587"]
    assert list(vocab.values()) == list(range(9))
    assert list(train_whitespace_vocab(TEXTS, vocab_size=4)) == ["<unk>", EOD, "the", "mat"]
    assert list(train_whitespace_vocab(TEXTS, min_count=3)) == ["<unk>", EOD, "the"]
    assert list(train_whitespace_vocab([f"x {EOD} <unk>"])) == ["<unk>", EOD, "x"]
    with pytest.raises(InputError, match=r"\b6 times\b"):
        train_whitespace_vocab(TEXTS, min_count=6)
    with pytest.raises(UsageError, match=r"\bvocabulary of 2\b"):
        train_whitespace_vocab(TEXTS, vocab_size=2)
    tokenizer = load_tokenizer(vocab_file=save(tmp_path, vocab), tokenizer_type="Whitespace")
    encoder = tokenizer.encoder(dtype="uint16", append_eod=True)
    assert 0 not in encoder.encode(*block(TEXTS)).ids


# Training a byte-level BPE.


def test_a_trained_bpe_is_native_and_round_trips(tmp_path: Path) -> None:
    texts = ["hello world, hello tokens " * 20, "\u00e9t\u00e9 \U0001f600\n\n  x"] * 3
    path = tmp_path / "tokenizer.json"
    path.write_text(train_bpe(iter(texts), vocab_size=300), encoding="utf-8")
    tokenizer = load_tokenizer(path)
    assert tokenizer.native
    assert tokenizer.vocab_size <= 300
    assert (tokenizer.eod_id, tokenizer.special_ids) == (0, {EOD: 0})
    encoder = tokenizer.encoder(dtype="uint16", append_eod=False)
    new = ["\x00\x7f\u07ff \uffff\U0010ffff never seen", *texts]
    encoded = rows(encoder.encode(*block(new)))
    assert [tokenizer.decode(ids) for ids in encoded] == new
    assert len(encoded[1]) < len(texts[0]) / 3
    with pytest.raises(UsageError, match=r"\bvocabulary of 256\b.*\b257$"):
        train_bpe(texts, vocab_size=256)


@pytest.mark.parametrize("pattern", ["cl100k", "o200k", "qwen2", "deepseek", "tekken", "gpt2"])
def test_a_bpe_of_another_pattern_is_native(tmp_path: Path, pattern: str) -> None:
    """It has the pattern's cuts: learned merges cross none of them, and the library agrees."""
    texts = ["I'll 1234567 x\n\ny camelCase HTTPServer \u4f60\u597d\uff01 a_b!?" * 5] * 4
    path = tmp_path / "tokenizer.json"
    special = ("<|end|>", "<|user|>", "</s>")
    path.write_text(train_bpe(texts, vocab_size=340, special_tokens=special, pattern=pattern))
    tokenizer = load_tokenizer(path)
    assert tokenizer.native
    assert tokenizer.special_ids == {"<|end|>": 0, "<|user|>": 1, "</s>": 2}
    assert tokenizer.eod_id == 2
    self_check(tokenizer, *block(texts))
    pieces = {tokenizer.decode([token]) for token in range(259, tokenizer.vocab_size)}
    merged = {"cl100k": 3, "o200k": 3, "deepseek": 3, "qwen2": 0, "tekken": 0, "gpt2": 7}
    assert max(sum(map(str.isdigit, piece)) for piece in pieces) == merged[pattern]


def test_threads_and_counts_of_a_training(tmp_path: Path) -> None:
    """One file for any number of threads; pairs that are rarer than asked for are not merged."""
    source = random.Random(7)
    words = ["".join(source.choices("abcdefg", k=source.randrange(1, 9))) for _ in range(500)]
    text = tmp_path / "text.txt"
    text.write_text("\n".join(" ".join(source.choices(words, k=100)) for _ in range(60)))
    made = []
    for workers in (1, 3):
        out = tmp_path / f"{workers}.json"
        flags = ["--size", "900", "--workers", str(workers), "--pattern", "llama3", "-q"]
        command = ["-m", "tokpack", "vocab", text, "-o", out, *flags]
        forked.run(command, check=True, capture_output=True)
        made.append(out.read_bytes())
    assert made[0] == made[1]
    texts = text.read_text().splitlines()
    often = json.loads(train_bpe(texts, vocab_size=900, min_count=300))["model"]["vocab"]
    assert 257 < len(often) < len(json.loads(made[0])["model"]["vocab"])
    with pytest.raises(UsageError, match=r"^special_tokens .*\['<a>', '<a>'\]"):
        train_bpe(texts, vocab_size=900, special_tokens=["<a>", "<a>"])
    with pytest.raises(UsageError, match=r"'\(a' .*parenthesis"):
        train_bpe(texts, vocab_size=900, pattern="(a")


# Tokenizers of the Hugging Face library.


@pytest.fixture(scope="module")
def wordpiece() -> str:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.BertNormalizer(lowercase=True), normalizers.ByteLevel()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=90, special_tokens=["[UNK]", "[CLS]", "</s>"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 5, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", 1)]
    )
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=10)
    text: str = tokenizer.to_str()
    return text


def test_any_tokenizer_json_gives_plain_ids(tmp_path: Path, wordpiece: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(wordpiece, encoding="utf-8")
    tokenizer = load_tokenizer(path)
    assert not tokenizer.native
    assert tokenizer.why_not_native == "its normalizer is ByteLevel"
    assert tokenizer.eod_id == 2
    library = Tokenizer.from_str(wordpiece)
    library.no_truncation()
    library.no_padding()
    expected = [library.encode(text, add_special_tokens=False).ids for text in TEXTS]
    encoder = pickle.loads(pickle.dumps(tokenizer)).encoder(dtype="uint16", append_eod=True)
    encoded = encoder.encode(*block(TEXTS))
    assert rows(encoded) == [[*ids, 2] if ids else [] for ids in expected]
    assert len(encoded.special) == 0
    # Many documents, more than one batch of the library.
    many = rows(encoder.encode(*block(TEXTS * 6000)))
    assert many == rows(encoded) * 6000
    with pytest.raises(TokenizerError):
        tokenizer.decode([9999])


def test_special_tokens_of_the_library(tmp_path: Path, wordpiece: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(wordpiece, encoding="utf-8")
    tokenizer = load_tokenizer(path)
    text = "cat</s>[CLS] mat"
    for mode, found in (("encode", True), ("auto", True), ("error", True), ("text", False)):
        encoder = tokenizer.encoder(dtype="int32", append_eod=False, special_tokens=mode)
        encoded = encoder.encode(*block(["cat", text]))
        assert ({1, 2} <= set(encoded.ids.tolist())) is found
        assert encoded.special.tolist() == [1, 1]


# SentencePiece models.


@pytest.fixture(scope="module")
def piece_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sentencepiece = pytest.importorskip("sentencepiece", reason="the extra is not installed")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20),
        model_writer=model,
        vocab_size=40,
        hard_vocab_limit=False,
        byte_fallback=False,
        minloglevel=2,
    )
    path = tmp_path_factory.mktemp("piece") / "tokenizer.model"
    path.write_bytes(model.getvalue())
    return path


def test_sentencepiece(piece_model: Path) -> None:
    import sentencepiece

    library = sentencepiece.SentencePieceProcessor(model_file=str(piece_model))
    for tokenizer in (
        load_tokenizer(piece_model),
        load_tokenizer(piece_model.parent),
        load_tokenizer(tokenizer_model=piece_model, tokenizer_type="Llama2Tokenizer"),
        load_tokenizer(vocab_file=piece_model, tokenizer_type="SentencePieceTokenizer"),
    ):
        assert tokenizer.vocab_size == library.get_piece_size()
        assert tokenizer.eod_id == library.eos_id()
        encoder = pickle.loads(pickle.dumps(tokenizer)).encoder(dtype="uint16", append_eod=True)
        encoded = encoder.encode(*block([*TEXTS, "cat</s>"]))
        plain = [library.encode(text) for text in [*TEXTS, "cat</s>"]]
        assert rows(encoded) == [[*ids, library.eos_id()] if ids else [] for ids in plain]
        assert encoded.special.tolist() == [4]
        assert tokenizer.decode(plain[0]) == TEXTS[0]
    assert load_tokenizer(piece_model, eod_token="<s>").eod_id == library.bos_id()
    with pytest.raises(UsageError, match=r"/tokenizer\.model .*\bspecial tokens text or error$"):
        tokenizer.encoder(dtype="uint16", append_eod=True, special_tokens="encode")


@pytest.mark.parametrize("name", ["tokenizer.model.v1", "bpe", "a.json"])
def test_a_model_is_known_by_its_content(piece_model: Path, tmp_path: Path, name: str) -> None:
    expected = load_tokenizer(piece_model).fingerprint
    (tmp_path / name).write_bytes(piece_model.read_bytes())
    assert load_tokenizer(tmp_path / name).fingerprint == expected
    if name == "tokenizer.model.v1":
        assert load_tokenizer(tmp_path).fingerprint == expected


def test_neox_ends_documents_with_a_piece_of_its_own(piece_model: Path, tmp_path: Path) -> None:
    import sentencepiece

    tokenizer = load_tokenizer(vocab_file=piece_model, tokenizer_type="SPMTokenizer")
    assert tokenizer.eod_id is None
    with pytest.raises(TokenizerError):
        tokenizer.encoder(dtype="uint16", append_eod=True)
    model = tmp_path / "neox.model"
    with model.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS * 20),
            model_writer=file,
            vocab_size=40,
            hard_vocab_limit=False,
            user_defined_symbols=["<|endoftext|>"],
            minloglevel=2,
        )
    found = load_tokenizer(vocab_file=model, tokenizer_type="SPMTokenizer")
    library = sentencepiece.SentencePieceProcessor(model_file=str(model))
    assert found.eod_id == library.piece_to_id("<|endoftext|>")
    again = load_tokenizer(found.name, **found.describe()["arguments"])
    assert again.fingerprint == found.fingerprint != load_tokenizer(model).fingerprint


def test_a_file_that_is_no_sentencepiece_model(piece_model: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.model").write_bytes(json.dumps(tiny()).encode())
    with pytest.raises(TokenizerError, match=r"bad\.model: .*\bSentencePiece\b"):
        load_tokenizer(tmp_path / "bad.model")


def test_a_library_that_can_do_less_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 1 of tokenizers only encodes and decodes."""
    monkeypatch.delattr(Tokenizer, "from_str")
    with pytest.raises(TokenizerError, match="tokenizers<1"):
        train_bpe(TEXTS, vocab_size=300)

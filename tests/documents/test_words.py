"""Words by which evaluation texts are found: the core's against the plain twin, and by tokens."""

from __future__ import annotations

import json
import unicodedata
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.words_twin import Word, items, words
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, trainers

from tokpack import _core
from tokpack.documents.decontamination import Words
from tokpack.tokenizers import load_tokenizer, train_bpe

if TYPE_CHECKING:
    from pathlib import Path

    from tokpack.tokenizers import Tokenizer

BASE = 0xD1342543DE82EF95
PARTS = [
    *("the", "The", "fox", "don't", "don\u2019t", "Stra\u00dfe", "STRASSE", "\u00e9", "e\u0301"),
    *("\ufb01", "\u2163", "\uff11\uff12", "\u4e2d", "\u65e5\u672c", "\u304b\u306a", "\u30fc"),
    *("\u0e44\u0e17\u0e22", "\ud55c\uad6d", "\u03c2", "\u03a3", "\u0130", "\u0131", "\u1fb3"),
    *(" ", "  ", "\n", "\t", "\u00a0", "\u3000", "\u200b", "\u00ad", "\0", "/", "|", "\u2014"),
    *(".", ",", "(", ")", "[", "]", ":", "-", "\u201c", "\u2026", "\u20ac", "\U0001f600", "*"),
    *("1", "12", "1234", "1.", "2)", "(3)", "a)", "b.", "1:", "[12]", "\u2474", "\uff0e"),
    *("<b>", "</p>", "<a href='x y'>", "<", ">", "<!--", f"<a {'x ' * 120}>", f"<a {'x ' * 140}>"),
    *("&amp;", "&nbsp;", "&#39;", "&#160;", "&#xe9;", "&", "&#x110000;", "&#55296;", "&lt", ";"),
    *("[a](http://x.y/z)", "](", "](a", "](a)b", "http://a.b/c", "x<y", "a&b;c", "]]"),
    *("\\n", "\\\\t", "\\u00e9", "\\ud83d", "\\u00", "\\", "\\theta", '\\"'),
]
# What is no UTF-8, or a part of it.
BYTES = [b"\xe4", b"\xb8", b"\xff", b"\xed\xa0\x80", b"\xf0\x9f", b"\xc0\x80", b"\xf4\x90\x80\x80"]


@cache
def is_known(character: str) -> bool:
    """Whether all tables of characters here have it, and as it is: they are of several Unicodes."""
    if unicodedata.category(character) == "Cn" or "\ud800" <= character <= "\udfff":
        return False
    parts = unicodedata.normalize("NFKD", character)
    if _core.normalize("NFKD", character.encode()).decode() != parts:
        return False
    return all(unicodedata.category(part) != "Cn" for part in parts.casefold())


texts = st.lists(
    st.sampled_from([*(part.encode() for part in PARTS), *BYTES])
    | st.text(st.characters(codec="utf-8").filter(is_known), max_size=4).map(str.encode)
    | st.just(b" "),
    max_size=40,
).map(b"".join)


def hashes(found: list[Word]) -> list[int]:
    values = []
    for word in found:
        value = 0
        for letter in word.letters:
            value = (value * BASE + ord(letter) + 1) % 2**32
        values.append(value)
    return values


@given(texts, st.sampled_from(["", "spaces", "nothing"]))
@settings(deadline=None, max_examples=300)
def test_words_are_those_of_the_twin(text: bytes, punctuation: str) -> None:
    found, are_characters, places = _core.words(text, punctuation)  # type: ignore[arg-type]
    expected = words(text, punctuation)
    assert found.tolist() == hashes(expected)
    assert are_characters.tolist() == [word.is_character for word in expected]
    for (begin, end), word in zip(places.tolist(), expected, strict=True):
        again = words(text[begin:end], punctuation or "nothing")
        assert "".join(one.letters for one in again)[: len(word.letters)] or not word.letters
        assert 0 <= begin < end <= len(text)


@pytest.mark.slow
@pytest.mark.parametrize("plane", range(4))
def test_every_character_is_what_the_twin_says(plane: int) -> None:
    for code in range(plane << 16, (plane + 1) << 16):
        character = chr(code)
        if not is_known(character):
            continue
        text = f"a{character}b 1{character} ".encode()
        assert _core.words(text)[0].tolist() == hashes(words(text)), (hex(code), items(character))


def test_what_words_are() -> None:
    same = [
        ("It's a well-known fact.", "ITS A WELLKNOWN FACT"),
        ("Straße, 3.14", "STRASSE 314"),
        ("café naïve ﬁn", "cafe\u0301 naive \uff26\uff29\uff2e"),
        ("1. one\n2) two\n(3) three\na) four\n12: five", "one two three four five"),
        ("<p>one <b class='x'>two</b></p>", "one two"),
        ("Tom &amp; &quot;Ann&quot;&nbsp;Lee", "tom ann lee"),
        ("see [the page](http://a.b/c?d), now", "see the page now"),
        ('"one\\ntwo \\u00e9"', "one two e"),
        ("first\u2014second/third", "first second third"),
        ("I\u0131\u0130i", "iiii"),
        ("東京、大阪。", "東京大阪"),
    ]
    for one, other in same:
        assert _core.words(one.encode())[0].tolist() == _core.words(other.encode())[0].tolist()
    for one, other in (("in 1984", "in 1985"), ("no", "now"), ("the cat", "thecat")):
        assert _core.words(one.encode())[0].tolist() != _core.words(other.encode())[0].tolist()
    mixed = _core.words("iPhone 15を買う 한국 말".encode())[1]
    assert mixed.tolist() == [False, False, True, True, True, False, False]


@st.composite
def vocabularies(draw: st.DrawFn) -> tuple[list[bytes], list[int]]:
    """Tokens of any bytes, and the ids of a document of them."""
    some = st.sampled_from([*(part.encode() for part in PARTS), *BYTES, b"\xb8\xad", b"\x99"])
    cut = texts.flatmap(lambda text: st.integers(0, len(text)).map(lambda at: text[at : at + 3]))
    pieces = draw(st.lists(st.lists(some | cut, max_size=2).map(b"".join), min_size=1, max_size=40))
    return pieces, draw(st.lists(st.integers(0, len(pieces) + 1), max_size=60))


@given(vocabularies())
@settings(deadline=None, max_examples=200)
def test_words_of_tokens_are_those_of_their_text(drawn: tuple[list[bytes], list[int]]) -> None:
    pieces, ids = drawn
    table = _core.TokenWords(b"".join(pieces), np.cumsum([len(piece) for piece in pieces]))
    parts = [(pieces[i] if i < len(pieces) else b"") or b"\n" for i in ids]
    expected, _, places = _core.words(b"".join(parts))
    ends = np.cumsum([len(part) for part in parts])
    for dtype in (np.uint16, np.uint32, np.uint64):
        tokens = np.array(ids, dtype)
        assert table.hashes(tokens).tolist() == expected.tolist()
        found, _, spans = table.words(tokens)
        assert found.tolist() == expected.tolist()
        assert spans[:, 0].tolist() == np.searchsorted(ends, places[:, 0], "right").tolist()
        assert (
            spans[:, 1].tolist() == (np.searchsorted(ends, places[:, 1] - 1, "right") + 1).tolist()
        )


def _library(model: models.Model, trainer: object, pretokenizer: object, decoder: object) -> str:
    library = Library(model)
    library.pre_tokenizer, library.decoder = pretokenizer, decoder  # type: ignore[assignment]
    library.train_from_iterator([*TEXTS * 5], trainer)
    return library.to_str()


TEXTS = [
    "The quick brown fox doesn't jump; it sleeps, eats and (mostly) sleeps: 12 hours a day.",
    "Un été à l'école, où l'on s'ennuie — déjà vu!",
    "東京は日本の首都です。中文也没有空格。",
    "Быстрая лиса 🦊 не прыгает…",
]
SPECIAL = ["<unk>", "<s>", "</s>"]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def _definitions() -> dict[str, str]:
    metaspace = pre_tokenizers.Metaspace(), decoders.Metaspace()
    falling_back = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    made = {
        "byte-level": train_bpe(TEXTS * 5, vocab_size=400),
        "unigram": _library(
            models.Unigram(),
            trainers.UnigramTrainer(vocab_size=200, special_tokens=SPECIAL, unk_token="<unk>"),
            *metaspace,
        ),
        "wordpiece": _library(
            models.WordPiece(unk_token="<unk>"),
            trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL),
            pre_tokenizers.BertPreTokenizer(),
            decoders.WordPiece(),
        ),
        "byte fallback": _library(
            models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True),
            trainers.BpeTrainer(
                vocab_size=420, special_tokens=[*SPECIAL, *BYTE_TOKENS], limit_alphabet=40
            ),
            pre_tokenizers.Metaspace(),
            falling_back,
        ),
    }
    falls_back = json.loads(made["byte fallback"])
    falls_back["added_tokens"] = falls_back["added_tokens"][: len(SPECIAL)]
    return made | {"byte fallback": json.dumps(falls_back)}


@pytest.mark.parametrize("kind", ["byte-level", "unigram", "wordpiece", "byte fallback"])
def test_words_of_a_tokenizer_are_those_of_the_text(tmp_path: Path, kind: str) -> None:
    """However it writes white space and bytes; WordPiece cuts words at punctuation."""
    path = tmp_path / "tokenizer.json"
    path.write_text(_definitions()[kind], encoding="utf-8")
    tokenizer = load_tokenizer(path)
    for text in TEXTS:
        found = _words_by_tokens(tokenizer, text)
        plain = _core.words(text.encode(), "spaces" if kind == "wordpiece" else "")[0].tolist()
        assert found == plain


def test_words_of_a_sentencepiece_model_are_those_of_the_text(tmp_path: Path) -> None:
    tools = pytest.importorskip("support.sentencepiece_tools")
    for name in ("llama", "gemma", "byte unigram"):
        path = tmp_path / f"{name}.model"
        path.write_bytes(tools.trained(name))
        tokenizer = load_tokenizer(path)
        for text in TEXTS:
            assert _words_by_tokens(tokenizer, text) == _core.words(text.encode())[0].tolist()


def test_words_of_a_vocabulary_are_those_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "words.json"
    path.write_text(json.dumps({"one": 0, "two": 1, "<unk>": 2, "<|endoftext|>": 3}))
    tokenizer = load_tokenizer(path, tokenizer_type="Whitespace")
    assert _words_by_tokens(tokenizer, "one two one") == _core.words(b"one two one")[0].tolist()


def _words_by_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    unit = Words(tokenizer)
    [form, *_] = unit.of_document(np.array(tokenizer.encode(text), np.uint32))
    return form.tokens.tolist()

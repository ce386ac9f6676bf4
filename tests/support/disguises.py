"""Made-up texts of several languages, and what copies of them look like in other documents."""

from __future__ import annotations

import html
import random
import re
import textwrap
import unicodedata
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Language(NamedTuple):
    """How words are made of syllables, sentences of words, and what stands at their ends."""

    syllables: str
    space: str = " "
    ends: str = ".?!"
    comma: str = ","
    before: tuple[str, ...] = ()  # what some words begin with
    cased: bool = True


def _joined(consonants: str, vowels: str) -> str:
    return " ".join(c + v for c in consonants.split() for v in vowels.split())


def _letters(*ranges: range) -> str:
    return " ".join(chr(code) for one in ranges for code in one)


_LATIN = "b c d f g k l m n p r s t v"
LANGUAGES = {
    "English": Language(
        _joined(f"{_LATIN} th st w", "a e i o u ea"), before=("don't-", "well-", "it's-")
    ),
    "German": Language(
        _joined(f"{_LATIN} sch z", "a e i o u \u00e4 \u00f6 \u00fc ei\u00df"), before=("un-",)
    ),
    "French": Language(
        _joined(f"{_LATIN} \u00e7", "a e \u00e9 \u00e8 i o u eau \u0153"),
        before=("l'", "qu'", "d\u2019"),
    ),
    "Spanish": Language(_joined(f"{_LATIN} \u00f1", "a e i o u \u00e1 \u00ed \u00f3")),
    "Russian": Language(
        _joined(
            _letters(range(0x431, 0x435), range(0x43A, 0x445)),
            "\u0430 \u0435 \u0438 \u043e \u0451 \u0439",
        )
    ),
    "Greek": Language(
        _joined(
            _letters(range(0x3BA, 0x3BE), range(0x3C0, 0x3C2)),
            "\u03b1 \u03b5 \u03ae \u03af \u03bf\u03c2 \u03cd",
        ),
        ends=".;!",
    ),
    "Turkish": Language(
        _joined(f"{_LATIN} \u00e7 \u011f \u015f", "a e \u0131 i o \u00f6 u \u00fc")
    ),
    "Arabic": Language(
        _joined(_letters(range(0x628, 0x635)), "\u0627 \u0648 \u064a \u064e \u0650"),
        ends=".\u061f!",
        comma="\u060c",
        cased=False,
    ),
    "Hindi": Language(
        _joined(_letters(range(0x915, 0x929)), "\u093e \u093f \u0941 \u0947 \u094b \u0902"),
        ends="\u0964?!",
        cased=False,
    ),
    "Korean": Language(_letters(range(0xAC00, 0xD7A3, 277)), cased=False),
    "Chinese": Language(
        _letters(range(0x4E00, 0x5400, 5)), "", "\u3002\uff1f\uff01", "\uff0c", cased=False
    ),
    "Japanese": Language(
        _letters(range(0x3042, 0x3082), range(0x30A2, 0x30E0), range(0x6000, 0x6100)),
        "",
        "\u3002\uff1f\uff01",
        "\u3001",
        cased=False,
    ),
    "Thai": Language(
        _joined(_letters(range(0xE01, 0xE2F)), "\u0e32 \u0e35 \u0e38 \u0e30 \u0e48\u0e32"),
        "",
        " ",
        "",
        cased=False,
    ),
}


class Writer:
    """Writes texts of a language, of its own words."""

    def __init__(self, language: str, seed: int) -> None:
        self.random = random.Random(f"{language} {seed}")
        self.language = LANGUAGES[language]
        syllables = self.language.syllables.split()
        self._words = [
            "".join(self.random.choices(syllables, k=self.random.choice((2, 3, 3, 4))))
            for _ in range(1500)
        ]
        self._weights = [1 / (rank + 3) for rank in range(len(self._words))]

    def words(self, count: int) -> list[str]:
        """Words as they follow each other, some of them joined to what often stands before."""
        words = self.random.choices(self._words, self._weights, k=count)
        for place in range(count) if self.language.before else ():
            if self.random.random() < 0.1:
                words[place] = self.random.choice(self.language.before) + words[place]
        return words

    def text(self, count: int) -> str:
        """Sentences of so many words."""
        words, sentences = self.words(count), []
        while words:
            length = self.random.randint(5, 14)
            some, words = words[:length], words[length:]
            if self.language.cased:
                some[0] = some[0].capitalize()
            if len(some) > 6 and self.random.random() < 0.5:
                some[3] += self.language.comma
            sentence = self.language.space.join(some) + self.random.choice(self.language.ends)
            sentences.append(sentence)
        return self.language.space.join(sentences)


def _sentences(text: str) -> list[str]:
    return [
        one.strip()
        for one in re.split("(?<=[.?!;\u3002\uff1f\uff01\u0964\u061f ])\\s+", text)
        if one.strip()
    ]


def _case(text: str, writer: Writer) -> str:
    return writer.random.choice((str.upper, str.title, str.lower, str.swapcase))(text)


def _line_breaks(text: str, writer: Writer) -> str:
    end = writer.random.choice(("\n", "\r\n", "\n\n", "\n\t", "\u2028"))
    if not writer.language.space:
        return end.join(text[i : i + 23] for i in range(0, len(text), 23))
    return end.join(textwrap.wrap(text, writer.random.randint(25, 60), break_on_hyphens=False))


def _quotes(text: str, writer: Writer) -> str:
    begin, end = writer.random.choice(
        (('"', '"'), ("\u201c", "\u201d"), ("\u00ab", "\u00bb"), ("\u201e", "\u201c"), ("'", "'"))
    )
    if writer.random.random() < 0.3:
        return "\n".join(f"> {sentence}" for sentence in _sentences(text))
    some = [f"{begin}{sentence}{end}" for sentence in _sentences(text)]
    return writer.language.space.join(some).replace("'s", "\u2019s")


def _punctuation(text: str, writer: Writer) -> str:
    how = writer.random.randrange(4)
    if how == 0:
        return "".join(c for c in text if unicodedata.category(c)[0] not in "PS")
    if how == 1:
        return re.sub(r"[^\w\s]", writer.random.choice(("", " ")), text)
    if how == 2:
        return text.replace("'", "\u2019").replace(",", " \u2014 ").replace(".", " ...")
    space = writer.language.space
    return text.replace(space, f",{space}") if space else re.sub(r"(\w{7})", "\\1\u3001", text)


def _markup(text: str, writer: Writer) -> str:
    how = writer.random.randrange(4)
    if how == 0:
        return "".join(f"<p>{html.escape(one)}</p>\n" for one in _sentences(text))
    words = (
        text.split(" ")
        if writer.language.space
        else [text[i : i + 9] for i in range(0, len(text), 9)]
    )
    for place in range(0, len(words), 4):
        word = words[place]
        words[place] = (
            f"<b>{word}</b>", f"**{word}**", f'<a href="http://a.b/{place}" class="x">{word}</a>',
        )[how - 1]  # fmt: skip
    return writer.language.space.join(words)


def _numbered(text: str, writer: Writer) -> str:
    form = writer.random.choice(("{}. ", "{}) ", "({}) ", "**{}.** ", "{}.\t"))
    form = form if form != "**{}.** " else "* {}. "
    some = [form.format(i) + one for i, one in enumerate(_sentences(text), 1)]
    return writer.random.choice(("\n", "\n\n", " ")).join(some)


def _unicode(text: str, writer: Writer) -> str:
    how = writer.random.randrange(4)
    if how == 0:
        return unicodedata.normalize("NFD", text)
    if how == 1:
        return unicodedata.normalize("NFKD", text).replace(" ", "\u00a0")
    if how == 2:
        wide = {code: code + 0xFEE0 for code in range(0x21, 0x7F)} | {0x20: 0x3000}
        return text.translate(wide)
    return re.sub(r"(\w{3})(\w)", "\\1\u00ad\\2", text).replace("fi", "\ufb01")


def _changed(text: str, writer: Writer) -> str:
    if writer.language.space:
        words = text.split(" ")
        words[19::20] = writer.words(len(words[19::20]))
        return " ".join(words)
    size = 62 if unicodedata.normalize("NFD", text).isalpha() else 84
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    return "".join(piece[:-2] + "".join(writer.words(1))[:2] for piece in pieces)


DISGUISES: dict[str, Callable[[str, Writer], str]] = {
    "case": _case,
    "line breaks": _line_breaks,
    "quotation marks": _quotes,
    "punctuation": _punctuation,
    "markup": _markup,
    "numbered lists": _numbered,
    "Unicode forms": _unicode,
    "changed words": _changed,
}


class Planted(NamedTuple):
    """Documents, and of which evaluation text each is a copy inside of others; None: of none."""

    texts: list[str]
    documents: list[str]
    copies: list[tuple[str, str] | None]  # language and disguise


def planted(each: int, seed: int = 0) -> Planted:
    """Evaluation texts of all languages, copies in all disguises, and as many other documents.

    Others have a run of few words with an evaluation text in common.
    """
    texts: list[str] = []
    documents: list[str] = []
    copies: list[tuple[str, str] | None] = []
    for language in LANGUAGES:
        writer = Writer(language, seed)
        space = writer.language.space or "\n"
        for disguise, hide in DISGUISES.items():
            for _ in range(each):
                text = writer.text(writer.random.randint(60, 120))
                parts = [writer.text(150), hide(text, writer), writer.text(150)]
                texts.append(text)
                documents.append(space.join(parts))
                copies.append((language, disguise))
                few = " ".join(text.split()[:9]) if writer.language.space else text[:35]
                documents.append(space.join([writer.text(150), few, writer.text(150)]))
                copies.append(None)
    return Planted(texts, documents, copies)

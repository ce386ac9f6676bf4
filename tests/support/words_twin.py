"""Words of text as evaluation sets are compared by, one character after the other."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import NamedTuple

DIVIDING = {*"/|\u2012\u2013\u2014\u2015\u2022\u2026\u2e3a\u2e3b"}
SPACE_ENTITIES = {b"nbsp", b"ensp", b"emsp", b"thinsp"}
# Scripts that are written without spaces, as the names of their letters begin.
WITHOUT_SPACES = (
    *(
        "CJK UNIFIED IDEOGRAPH",
        "CJK COMPATIBILITY IDEOGRAPH",
        "IDEOGRAPHIC ITERATION",
        "HANGZHOU NUMERAL",
    ),
    *(
        "IDEOGRAPHIC NUMBER",
        "IDEOGRAPHIC CLOSING",
        "VERTICAL IDEOGRAPHIC",
        "OLD CHINESE",
        "HIRAGANA",
        "HENTAIGANA",
        "KATAKANA",
        "BOPOMOFO",
        "THAI ",
        "LAO ",
    ),
    *("KHMER", "MYANMAR", "TIBETAN", "YI ", "TAI LE", "NEW TAI LUE", "TAI THAM", "TAI VIET"),
    *("BALINESE", "JAVANESE", "MASU MARK", "VERTICAL KANA", "YI SYLLABLE"),
)
MARKUP = re.compile(
    rb"(?P<tag><[A-Za-z/!][^<>]{0,253}>)"
    rb"|&(?P<entity>#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,7}|[A-Za-z][A-Za-z0-9]{0,31});"
    rb"|\]\([!-'*-~]{0,253}\)"
    rb"|\\(?P<space>[nrt])|\\u(?P<code>[0-9A-Fa-f]{4})"
)
LIST_MARK = re.compile(
    r"(?:[0-9]{1,3}[.)\]:]|[a-z][)\]:])[\0.)\]:]*"
)  # of letters and other characters
NOTHING = "\N{SOFT HYPHEN}"
CLOSING = (".", ")", "]", ":")

LETTER, CHARACTER, OTHER, SPACE = "letter", "character", "other", "space"


class Word(NamedTuple):
    """The letters of a word, and whether it is a character of a script without spaces."""

    letters: str
    is_character: bool


@cache
def items(character: str) -> list[tuple[str, str]]:
    """What a character is to words."""
    category = unicodedata.category(character)
    parts = unicodedata.normalize("NFKD", character)
    is_letter = len(parts) == 1 and unicodedata.category(parts)[0] in "LN"
    if category[0] in "PS" and not is_letter:
        if character in DIVIDING:
            return [(SPACE, "")]
        return [(OTHER, parts if parts in CLOSING else "\0")]
    found = []
    for one in unicodedata.normalize("NFKD", parts.casefold()):
        part = "i" if one == "\N{LATIN SMALL LETTER DOTLESS I}" else one
        kind = unicodedata.category(part)
        if kind[0] in "LN":
            alone = unicodedata.name(part, "").startswith(WITHOUT_SPACES)
            found.append((CHARACTER if alone else LETTER, part))
        elif kind[0] == "Z" or kind == "Cc":
            found.append((SPACE, ""))
        elif kind[0] in "PS":
            found.append((OTHER, part if part in CLOSING else "\0"))
    return found or [(OTHER, "\0")]


def is_punctuation(character: str) -> bool:
    """Whether it is punctuation, a symbol or a mark, and becomes no letter."""
    kinds = {kind for kind, _ in items(character)}
    category = unicodedata.category(character)[0]
    parts = unicodedata.normalize("NFKD", character)
    is_letter = len(parts) == 1 and unicodedata.category(parts)[0] in "LN"
    return (category in "PS" and not is_letter) or (category == "M" and kinds == {OTHER})


def words(text: bytes, punctuation: str = "") -> list[Word]:
    """The words of a text, in order."""
    if not punctuation:
        text = MARKUP.sub(_without_markup, text)
    characters = text.decode("utf-8", "surrogateescape")
    found: list[Word] = []
    letters, reduced = "", ""

    def finish() -> None:
        nonlocal letters, reduced
        if letters and not LIST_MARK.fullmatch(reduced):
            found.append(Word(letters, is_character=False))
        letters = reduced = ""

    for character in characters:
        if "\udc80" <= character <= "\udcff":
            finish()
            continue
        if punctuation and is_punctuation(character):
            if punctuation == "spaces":
                finish()
            reduced += "\0" if letters else ""
            continue
        for kind, part in items(character):
            if kind == SPACE:
                finish()
            elif kind == CHARACTER:
                finish()
                found.append(Word(part, is_character=True))
            else:
                reduced += part if letters or kind == LETTER else ""
                letters += part if kind == LETTER else ""
    finish()
    return found


def _without_markup(match: re.Match[bytes]) -> bytes:
    name = match["entity"]
    if match["tag"] or match["space"] or name in SPACE_ENTITIES:
        return b" "
    if not match["code"] and (name is None or not name.startswith(b"#")):
        return NOTHING.encode()
    if match["code"]:
        number = int(match["code"], 16)
    else:
        number = int(name[2:], 16) if name[1:2] in b"xX" else int(name[1:])
    is_one = number < 0x110000 and not 0xD800 <= number < 0xE000
    return (chr(number) if is_one else NOTHING).encode()

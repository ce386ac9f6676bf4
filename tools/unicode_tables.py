"""Write the tables of csrc/core/text/tables from the Unicode Character Database.

Run with ``pip install unicodedata2==16.0.0 regex==2026.11.15 tokenizers==0.23.3``: Unicode 16 is
what Oniguruma in the Hugging Face library (0.21 to 0.23) and tiktoken know, and ids must not depend
on the reader's Python. Scripts, and what is a digit or punctuation to its pretokenizers, that
library says itself. Its grapheme clusters are another crate's, which knows Unicode 17; this regex
knows 18.

The library's normal forms are another crate's, which knows Unicode 9. What a character normalizes
to never changes once it is assigned, so Unicode 9 is Unicode 16 without the characters that are
newer; which of them have a compatibility decomposition the library says itself.
"""

from __future__ import annotations

import sys
import unicodedata
from pathlib import Path

import regex
import unicodedata2
from tokenizers import Regex, normalizers, pre_tokenizers

UNICODE_VERSION = "16.0.0"
CLUSTER_VERSION = "17.0.0"
LIMIT = 0x110000
BLOCK = 128
TABLES = Path(__file__).resolve().parent.parent / "csrc" / "core" / "text" / "tables"

# The bits of tokpack::CharClass in csrc/core/text/unicode.hpp.
LETTER, NUMBER, SPACE, MARK, SYMBOL, UPPER, LOWER, NEWLINE = (1 << i for i in range(8))

# \s of the pattern engines: White_Space, which leaves out U+001C..1F, U+180E, U+200B and U+FEFF.
SPACES = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)}
SPACES |= {0x2028, 0x2029, 0x202F, 0x205F, 0x3000}

# Characters newer than Unicode 9 that have a combining class or a canonical decomposition.
# fmt: off
NEWER = (
    (0x07FD, 0x07FD), (0x0897, 0x089F), (0x08CA, 0x08D3), (0x09FE, 0x09FE), (0x0C3C, 0x0C3C),
    (0x0D3B, 0x0D3C), (0x0EBA, 0x0EBA), (0x1715, 0x1715), (0x1ABF, 0x1ACE), (0x1DF6, 0x1DFA),
    (0xA82C, 0xA82C), (0x105C9, 0x105C9), (0x105E4, 0x105E4), (0x10D24, 0x10D27),
    (0x10D69, 0x10D6D), (0x10EAB, 0x10EAC), (0x10EFD, 0x10EFF), (0x10F46, 0x10F50),
    (0x10F82, 0x10F85), (0x11070, 0x11070), (0x1133B, 0x1133B), (0x11383, 0x11383),
    (0x11385, 0x11385), (0x1138E, 0x1138E), (0x11391, 0x11391), (0x113C5, 0x113C5),
    (0x113C7, 0x113C8), (0x113CE, 0x113D0), (0x1145E, 0x1145E), (0x11839, 0x1183A),
    (0x11938, 0x11938), (0x1193D, 0x1193E), (0x11943, 0x11943), (0x119E0, 0x119E0),
    (0x11A34, 0x11A34), (0x11A47, 0x11A47), (0x11A99, 0x11A99), (0x11D42, 0x11D42),
    (0x11D44, 0x11D45), (0x11D97, 0x11D97), (0x11F41, 0x11F42), (0x16121, 0x16128),
    (0x1612F, 0x1612F), (0x16D68, 0x16D6A), (0x16FF0, 0x16FF1), (0x1E08F, 0x1E08F),
    (0x1E130, 0x1E136), (0x1E2AE, 0x1E2AE), (0x1E2EC, 0x1E2EF), (0x1E4EC, 0x1E4EF),
    (0x1E5EE, 0x1E5EF),
)
# fmt: on
# What Unicode 17 knows otherwise than 18: characters that it does not have, and pictographs.
# fmt: off
NOT_IN_17 = (
    (0x05C8, 0x05C9), (0x0B53, 0x0B54), (0x1ADE, 0x1ADF), (0x1AEC, 0x1AF0), (0x1CF5, 0x1CF6),
    (0x10ECB, 0x10ECF), (0x10EF0, 0x10EF9), (0x11A3A, 0x11A3A), (0x11B0A, 0x11B0A),
    (0x11DF0, 0x11DF1), (0x1D127, 0x1D128), (0x1D250, 0x1D252), (0x1D25B, 0x1D25C),
    (0x1D25F, 0x1D25F), (0x1D280, 0x1D281),
)
PICTOGRAPHS_OF_17 = ((0x1F1AE, 0x1F1AE), (0x1F7DA, 0x1F7DB), (0x1F7F1, 0x1F7FF))
# fmt: on
# In the order of tokpack::ClusterClass.
CLUSTER_CLASSES = (
    *(f"GCB={name}" for name in ("CR", "LF", "Control", "Extend", "ZWJ", "RI", "Prepend")),
    *(f"GCB={name}" for name in ("SpacingMark", "L", "V", "T", "LV", "LVT")),
    *("InCB=Consonant", "Extended_Pictographic"),
)
# In the order of their numbers in kCategoryRuns.
CATEGORIES = (
    *("Cc", "Cf", "Cn", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl"),
    *("No", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs"),
)
SCRIPTS = (
    *("Arabic", "Armenian", "Bengali", "Bopomofo", "Common", "Cyrillic", "Devanagari", "Ethiopic"),
    *("Georgian", "Greek", "Gujarati", "Gurmukhi", "Han", "Hangul", "Hebrew", "Hiragana"),
    *("Inherited", "Kannada", "Katakana", "Khmer", "Lao", "Latin", "Malayalam", "Mongolian"),
    *("Myanmar", "Oriya", "Sinhala", "Syriac", "Tamil", "Telugu", "Thaana", "Thai", "Tibetan"),
)
HANGUL = range(0xAC00, 0xD7A4)
JAMO_THAT_JOIN = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))

BY_CATEGORY = {"L": LETTER, "N": NUMBER, "M": MARK, "P": SYMBOL, "S": SYMBOL}
BY_CASE = {"Lu": UPPER, "Lt": UPPER, "Ll": LOWER}


def char_class(code_point: int) -> int:
    """The class bits of one code point."""
    category = unicodedata2.category(chr(code_point))
    bits = BY_CATEGORY.get(category[0], 0) | BY_CASE.get(category, 0)
    if code_point in SPACES:
        bits |= SPACE
    if code_point in (0x0A, 0x0D):
        bits |= NEWLINE
    return bits


def array(kind: str, name: str, values: list[int]) -> str:
    """A C++ definition, in lines of at most 100 columns."""
    lines = [""]
    for value in values:
        if len(lines[-1]) + len(str(value)) + 1 > 96:
            lines.append("")
        lines[-1] += f"{value},"
    body = "\n    ".join(lines)
    return f"const {kind} {name}[{len(values)}] = {{\n    {body}\n}};\n"


def two_level(values: list[int], index_name: str, blocks_name: str) -> str:
    """The values of all code points in two arrays: the number of each block, each block once."""
    seen: dict[tuple[int, ...], int] = {}
    index = []
    for begin in range(0, len(values), BLOCK):
        index.append(seen.setdefault(tuple(values[begin : begin + BLOCK]), len(seen)))
    if len(seen) > 256:
        raise SystemExit("more than 256 distinct blocks: the index needs a wider type")
    blocks = [value for one in seen for value in one]
    arrays = ((index_name, index), (blocks_name, blocks))
    return "\n".join(array("std::uint8_t", name, numbers) for name, numbers in arrays)


def write(name: str, *parts: str, version: str = UNICODE_VERSION) -> None:
    """Write a generated source file."""
    text = "\n".join(
        [
            f"// Made by tools/unicode_tables.py from Unicode {version}; do not edit.",
            "// clang-format off",
            *parts,
        ]
    )
    path = TABLES / name
    path.write_text(text, encoding="ascii")
    print(f"{path}: {len(text)} bytes", file=sys.stderr)


def write_classes() -> None:
    """The class of every code point."""
    write(
        "unicode_tables.cpp",
        '#include "core/text/unicode.hpp"\n\nnamespace tokpack::unicode {\n',
        two_level([char_class(c) for c in range(LIMIT)], "kClassIndex", "kClassBlocks"),
        "}  // namespace tokpack::unicode\n",
    )


def is_newer(code_point: int) -> bool:
    """Whether Unicode 9 does not know it."""
    return any(first <= code_point <= last for first, last in NEWER)


def combining_class(code_point: int) -> int:
    """Canonical combining class in Unicode 9."""
    return 0 if is_newer(code_point) else unicodedata2.combining(chr(code_point))


def decompositions() -> dict[int, str]:
    """Full canonical decompositions in Unicode 9, but for Hangul syllables."""
    found = {}
    for code_point in range(LIMIT):
        if code_point in HANGUL or is_newer(code_point):
            continue
        decomposed = unicodedata2.normalize("NFD", chr(code_point))
        if decomposed != chr(code_point):
            found[code_point] = decomposed
    return found


def compositions(decomposable: dict[int, str]) -> dict[tuple[int, int], int]:
    """Primary composites by their two halves, but for Hangul."""
    found = {}
    for code_point in decomposable:
        halves = unicodedata2.decomposition(chr(code_point)).split()
        if len(halves) == 2 and unicodedata2.normalize("NFC", chr(code_point)) == chr(code_point):
            found[int(halves[0], 16), int(halves[1], 16)] = code_point
    return found


def quick_check(decomposable: dict[int, str], seconds: set[int], form: str) -> list[int]:
    """NFC_Quick_Check or NFKC_Quick_Check of every code point: 0 yes, 1 maybe, 2 no."""
    values = [0] * LIMIT
    for code_point, decomposed in decomposable.items():
        if unicodedata2.normalize(form, chr(code_point)) != chr(code_point):
            values[code_point] = 2
        elif ord(decomposed[0]) in seconds:
            raise SystemExit(f"U+{code_point:04X} begins with a character that may compose")
    for code_point in seconds:
        values[code_point] = 1
    return values


def compatible_decompositions() -> dict[int, str]:
    """Full compatibility decompositions, where they are not the canonical ones."""
    nfd, nfkd = normalizers.NFD().normalize_str, normalizers.NFKD().normalize_str
    valid = (c for c in range(LIMIT) if not 0xD800 <= c < 0xE000)
    return {c: nfkd(chr(c)) for c in valid if nfkd(chr(c)) != nfd(chr(c))}


def decomposition_arrays(name: str, found: dict[int, str]) -> list[str]:
    """The definitions of a ``Decompositions``."""
    ends, pool = [0], ""
    for decomposed in found.values():
        pool += decomposed
        ends.append(len(pool))
    return [
        f"static {array('std::uint32_t', f'{name}From', list(found))}",
        f"static {array('std::uint16_t', f'{name}Begins', ends)}",
        f"static {array('std::uint32_t', f'{name}Text', [ord(c) for c in pool])}",
        f"const Decompositions {name} = {{{len(found)}, {name}From, {name}Begins, {name}Text}};\n",
    ]


def write_normal_forms() -> None:
    """What normalization needs to know of every code point."""
    canonical, compatible = decompositions(), compatible_decompositions()
    composable = dict(sorted(compositions(canonical).items()))
    seconds = {second for _, second in composable} | {*JAMO_THAT_JOIN}
    nfc = quick_check(canonical, seconds, "NFC")
    nfkc = quick_check(dict(sorted((canonical | compatible).items())), seconds, "NFKC")
    classes = sorted({combining_class(c) for c in range(LIMIT)})
    if len(classes) > 64:
        raise SystemExit("more than 64 combining classes: they need more than 6 bits")
    rank = {value: i for i, value in enumerate(classes)}
    bits = [rank[combining_class(c)] | nfc[c] << 6 for c in range(LIMIT)]
    other_bits = [
        nfkc[c] | (c in canonical or c in HANGUL) << 2 | (c in compatible) << 3
        for c in range(LIMIT)
    ]
    write(
        "normal_form_tables.cpp",
        '#include "core/text/normal_form_tables.hpp"\n\nnamespace tokpack::normal_form_tables {\n',
        two_level(bits, "kIndex", "kBlocks"),
        two_level(other_bits, "kOtherIndex", "kOtherBlocks"),
        array("std::uint8_t", "kCombiningClasses", classes),
        *decomposition_arrays("kCanonical", canonical),
        *decomposition_arrays("kCompatible", compatible),
        f"const std::size_t kCompositionCount = {len(composable)};\n",
        array("std::uint64_t", "kComposable", [a << 32 | b for a, b in composable]),
        array("std::uint32_t", "kCompositions", list(composable.values())),
        "}  // namespace tokpack::normal_form_tables\n",
    )


def cluster_classes() -> list[int]:
    """The bits of tokpack::ClusterClass of every code point: a value of Grapheme_Cluster_Break or
    a like one, and two of Indic_Conjunct_Break."""
    valid = "".join(chr(c) for c in range(LIMIT) if not 0xD800 <= c < 0xE000)
    values = [0] * LIMIT

    def mark(name: str, bits: int, kept: int) -> None:
        for character in regex.findall(rf"\p{{{name}}}", valid):
            values[ord(character)] = values[ord(character)] & kept | bits

    for number, name in reversed([*enumerate(CLUSTER_CLASSES, 1)]):
        mark(name, number, 0)
    mark("InCB=Linker", 0x30, 0xFF)
    mark("InCB=Extend", 0x20, 0xFF)
    for ranges, value in ((NOT_IN_17, 0), (PICTOGRAPHS_OF_17, len(CLUSTER_CLASSES))):
        for first, last in ranges:
            values[first : last + 1] = [value] * (last + 1 - first)
    return values


def write_clusters() -> None:
    """What grapheme clusters depend on, for every code point."""
    write(
        "grapheme_tables.cpp",
        '#include "core/text/graphemes.hpp"\n\nnamespace tokpack::grapheme_tables {\n',
        two_level(cluster_classes(), "kIndex", "kBlocks"),
        "}  // namespace tokpack::grapheme_tables\n",
        version=CLUSTER_VERSION,
    )


def runs(values: list[int]) -> list[tuple[int, int]]:
    """Where another value begins, and this value."""
    return [(c, value) for c, value in enumerate(values) if c == 0 or value != values[c - 1]]


def members(removing: pre_tokenizers.PreTokenizer) -> list[int]:
    """The code points that a pretokenizer removes, as a value 0 or 1 of each."""
    valid = "".join(chr(c) for c in range(LIMIT) if not 0xD800 <= c < 0xE000)
    kept = {c for piece, _ in removing.pre_tokenize_str(valid) for c in piece}
    return [int(not 0xD800 <= c < 0xE000 and chr(c) not in kept) for c in range(LIMIT)]


def scripts() -> list[int]:
    """The script of each code point, to the pretokenizer UnicodeScripts: 0 for any, else a number.

    It removes what is of any script before the first character of one, and cuts between two.
    """
    pieces = pre_tokenizers.UnicodeScripts().pre_tokenize_str
    valid = (chr(c) for c in range(LIMIT) if not 0xD800 <= c < 0xE000)
    values = [0] * LIMIT
    known: list[str] = []  # a character of each script
    for run, _ in pieces("".join(c for c in valid if pieces(c))):
        same = (i for i, one in enumerate(known) if len(pieces(one + run[0])) == 1)
        number = next(same, len(known))
        if number == len(known):
            known.append(run[0])
        for c in run:
            values[ord(c)] = number + 1
    return values


def write_sets() -> None:
    """Categories and other sets of code points, as ranges."""
    categories = runs([CATEGORIES.index(unicodedata2.category(chr(c))) for c in range(LIMIT)])
    of_scripts = runs(scripts())
    digits = pre_tokenizers.Digits(individual_digits=True)
    numeric = [0] * LIMIT
    for c in range(LIMIT):
        if not 0xD800 <= c < 0xE000:
            numeric[c] = int(len(digits.pre_tokenize_str(f"a{chr(c)}b")) == 3)
    sets = {
        "numeric": numeric,
        "punctuation": members(pre_tokenizers.Punctuation("removed")),
        "word": members(pre_tokenizers.Split(Regex(r"\w+"), "removed")),
    }
    changed = dict.fromkeys(("clean_text", "handle_chinese_chars", "lowercase"), False)
    for name, setting in (("bert_removed", "clean_text"), ("bert_marks", "strip_accents")):
        bert = normalizers.BertNormalizer(**{"strip_accents": False, **changed, setting: True})
        sets[name] = [
            int(not 0xD800 <= c < 0xE000 and not bert.normalize_str(chr(c))) for c in range(LIMIT)
        ]
    for script in SCRIPTS:
        split = pre_tokenizers.Split(Regex(rf"\p{{{script}}}+"), "removed")
        sets[script.lower()] = members(split)
    lines, borders = [], []
    for name, values in sets.items():
        begin = len(borders)
        borders += [c for c, _ in runs(values)[not values[0] :]]
        borders += [LIMIT] * ((len(borders) - begin) % 2)
        lines.append(f'    {{"{name}", {begin}, {len(borders)}}},\n')
    write(
        "code_point_tables.cpp",
        '#include "core/text/code_points.hpp"\n\nnamespace tokpack::code_point_tables {\n',
        array("std::uint32_t", "kCategoryRuns", [c << 8 | value for c, value in categories]),
        f"const std::size_t kCategoryRunCount = {len(categories)};\n",
        array("std::uint32_t", "kScriptRuns", [c << 8 | value for c, value in of_scripts]),
        f"const std::size_t kScriptRunCount = {len(of_scripts)};\n",
        array("std::uint32_t", "kBorders", borders),
        f"const NamedSet kNamedSets[{len(sets)}] = {{\n{''.join(lines)}}};\n",
        f"const std::size_t kNamedSetCount = {len(sets)};\n",
        "}  // namespace tokpack::code_point_tables\n",
    )


def write_folds() -> None:
    """What the case of a letter becomes where texts are compared, of letters in a normal form.

    It never changes once a letter is assigned, so any newer Python adds rows only.
    """
    valid = (chr(c) for c in range(LIMIT) if not 0xD800 <= c < 0xE000)
    plain = (c for c in valid if unicodedata.normalize("NFKD", c) == c)
    folds = {c: folded for c in plain if (folded := c.casefold()) != c}
    rows = [ord(c) << 42 | ord(one[0]) << 21 | ord(one[1:] or "\0") for c, one in folds.items()]
    write(
        "case_fold_tables.cpp",
        '#include "core/text/case_folds.hpp"\n\nnamespace tokpack {\n',
        f"const std::size_t kCaseFoldCount = {len(rows)};\n",
        array("std::uint64_t", "kCaseFolds", rows),
        "}  // namespace tokpack\n",
        version=unicodedata.unidata_version,
    )


def main() -> None:
    """Write every table."""
    write_folds()
    if unicodedata2.unidata_version != UNICODE_VERSION:
        raise SystemExit(f"unicodedata2 {UNICODE_VERSION} is needed")
    write_classes()
    write_sets()
    write_normal_forms()
    write_clusters()


if __name__ == "__main__":
    main()

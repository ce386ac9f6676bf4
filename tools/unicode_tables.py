"""Write csrc/core/unicode_tables.cpp from the Unicode Character Database.

Run with ``pip install unicodedata2==16.0.0``: Unicode 16 is what Oniguruma in the Hugging Face
library (0.21 to 0.23) and tiktoken know, and ids must not depend on the reader's Python.
"""

from __future__ import annotations

import sys
from pathlib import Path

import unicodedata2

UNICODE_VERSION = "16.0.0"
LIMIT = 0x110000
BLOCK = 128
CORE = Path(__file__).resolve().parent.parent / "csrc" / "core"

# The bits of tokpack::CharClass in csrc/core/unicode.hpp.
LETTER, NUMBER, SPACE, MARK, SYMBOL, UPPER, LOWER, NEWLINE = (1 << i for i in range(8))

# \s of the pattern engines: White_Space, which leaves out U+001C..1F, U+180E, U+200B and U+FEFF.
SPACES = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)}
SPACES |= {0x2028, 0x2029, 0x202F, 0x205F, 0x3000}

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


def two_level(values: list[int], block: int) -> tuple[list[int], list[int]]:
    """Cut values into blocks and store each distinct block once: (index of blocks, blocks)."""
    seen: dict[tuple[int, ...], int] = {}
    index = []
    for begin in range(0, len(values), block):
        index.append(seen.setdefault(tuple(values[begin : begin + block]), len(seen)))
    return index, [value for one in seen for value in one]


def array(kind: str, name: str, values: list[int]) -> str:
    """A C++ definition, in lines of at most 100 columns."""
    lines = [""]
    for value in values:
        if len(lines[-1]) + len(str(value)) + 1 > 96:
            lines.append("")
        lines[-1] += f"{value},"
    body = "\n    ".join(lines)
    return f"const {kind} {name}[{len(values)}] = {{\n    {body}\n}};\n"


def write(name: str, *parts: str) -> None:
    """Write a generated source file."""
    text = "\n".join(
        [
            f"// Made by tools/unicode_tables.py from Unicode {UNICODE_VERSION}; do not edit.",
            "// clang-format off",
            *parts,
        ]
    )
    path = CORE / name
    path.write_text(text, encoding="ascii")
    print(f"{path}: {len(text)} bytes", file=sys.stderr)


def write_classes() -> None:
    """The class of every code point."""
    index, blocks = two_level([char_class(c) for c in range(LIMIT)], BLOCK)
    if len(blocks) > 256 * BLOCK:
        raise SystemExit("more than 256 distinct blocks: the index needs a wider type")
    write(
        "unicode_tables.cpp",
        '#include "core/unicode.hpp"\n\nnamespace tokpack::unicode {\n',
        array("std::uint8_t", "kClassIndex", index),
        array("std::uint8_t", "kClassBlocks", blocks),
        "}  // namespace tokpack::unicode\n",
    )


def main() -> None:
    """Write every table."""
    if unicodedata2.unidata_version != UNICODE_VERSION:
        raise SystemExit(f"unicodedata2 {UNICODE_VERSION} is needed")
    write_classes()


if __name__ == "__main__":
    main()

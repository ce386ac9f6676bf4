"""UTF-8 validation and the lines of plain text, against Python's own."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokpack import _core

LEVELS = _core.simd_levels()


def is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def check(documents: list[bytes]) -> None:
    ends = np.cumsum([len(document) for document in documents], dtype=np.int64)
    spans = np.stack([ends - [len(document) for document in documents], ends], axis=1)
    expected = [i for i, document in enumerate(documents) if not is_utf8(document)]
    for level in LEVELS:
        assert _core.invalid_utf8(b"".join(documents), spans, level).tolist() == expected


def test_every_sequence_of_two_bytes_and_their_likes() -> None:
    check([bytes([a, b]) for a in range(256) for b in range(256)])
    edges = (0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF)
    leads = range(0xC0, 0x100)
    check([bytes([a, b, c]) for a in leads for b in edges for c in edges])
    check([bytes([a, b, c, d]) for a in leads for b in edges for c in edges for d in edges])


def test_every_character_of_unicode() -> None:
    chars = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
    check([chars.encode(), *(chars[i : i + 999].encode() for i in range(0, len(chars), 9999))])
    check([chr(c).encode("utf-8", "surrogatepass") for c in range(0xD700, 0xE100)])


def test_faults_at_every_place_of_a_register() -> None:
    good = ["é", "€", "😀", "\U0010ffff", "\ud7ff"]
    bad = [
        b"\x80",
        b"\xc3",
        b"\xe2\x82",
        b"\xf0\x9f\x98",
        b"\xed\xa0\x80",
        b"\xc1\xbf",
        b"\xf5\x80\x80\x80",
    ]
    for size in (*range(70), *range(120, 135)):
        check(
            [b"x" * size + piece.encode() + b"y" * after for piece in good for after in (0, 1, 70)]
        )
        check([b"x" * size + piece + b"y" * after for piece in bad for after in (0, 1, 70)])
        check(
            [
                "é".encode() * size + piece + "é".encode() * after
                for piece in bad
                for after in (0, 40)
            ]
        )


@given(st.text(max_size=300), st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_mutated_text(text: str, seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(text.encode())
    documents = [bytes(data)]
    for _ in range(6):
        if data:
            data[rng.randrange(len(data))] = rng.choice(
                [rng.randrange(256), rng.randrange(0x80, 0xC0)]
            )
        documents.append(bytes(data))
    check(documents)


def test_no_documents() -> None:
    assert _core.invalid_utf8(b"", np.empty((0, 2), dtype=np.int64)).shape == (0,)


@given(st.lists(st.sampled_from([b"\n", b"\r", b"a", "\u2028\x85".encode(), b"\x0b", b"x" * 100])))
@settings(deadline=None)
def test_lines_end_at_newlines_alone(pieces: list[bytes]) -> None:
    block = b"".join(pieces)
    expected = block.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    spans = _core.split_lines(block)
    assert spans.dtype == np.int64
    assert spans.shape == (len(expected), 2)
    assert [block[begin:end] for begin, end in spans.tolist()] == expected

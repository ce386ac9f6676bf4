"""The native JSON-lines extractor against Python's json, level by level."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.json_twin import extract_at_all_levels, oracle, write_value

from tokpack import _core

if TYPE_CHECKING:
    from pathlib import Path

# What a mutation puts in: everything that means something to a JSON parser, and some that does not.
PIECES = [
    *(bytes([byte]) for byte in b'"\\{}[]:,-+.0123456789eEtfnu/ \t\r\x00\x1f\x7fa'),
    *(
        b"\n",
        b"NaN",
        b"true",
        b"null",
        b"-Infinity",
        b'"text"',
        b'"text":"x",',
        b'"\\u0074ext":"y",',
    ),
    *(
        b"\\u00e9",
        b"\\ud83d",
        b"\\ude00",
        b"\\ud83d\\ude00",
        b"\\n",
        b"\\\\",
        b'\\"',
        b"\\x",
        b"\\u12",
    ),
    *("é€😀\u2028\ufeff"[i].encode() for i in range(5)),
    *(b"\xe2\x82", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\\\xe2\x82\xac"),
]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=90)
    | st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)
records = st.tuples(
    st.dictionaries(st.text(max_size=8).filter(lambda k: k != "text"), values, max_size=3),
    st.text(max_size=200),
    st.dictionaries(st.text(max_size=8).filter(lambda k: k != "text"), values, max_size=3),
).map(
    lambda parts: {
        **parts[0],
        "text": parts[1],
        **{k: v for k, v in parts[2].items() if k != "text"},
    }
)


@given(st.lists(records, max_size=5), st.integers(0, 2**32), st.booleans())
@settings(max_examples=60, deadline=None)
def test_well_formed_records_are_read_fast(
    objects: list[dict[str, object]], seed: int, ends_with_newline: bool
) -> None:
    rng = random.Random(seed)
    block = "\n".join(write_value(record, rng) for record in objects).encode()
    if ends_with_newline and block:
        block += b"\n"
    assert extract_at_all_levels(block) == [str(record["text"]).encode() for record in objects]


@given(st.lists(records, min_size=1, max_size=3), st.integers(0, 2**32), st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_mutated_records_are_never_read_wrong(
    objects: list[dict[str, object]], seed: int, mutations: int
) -> None:
    rng = random.Random(seed)
    block = bytearray("\n".join(write_value(record, rng) for record in objects).encode())
    for _ in range(mutations):
        begin = rng.randrange(len(block) + 1)
        end = min(len(block), begin + rng.choice([0, 0, 1, 1, 2, 5]))
        block[begin:end] = rng.choice([*PIECES, b"", bytes(block[end : end + 20])])
    extract_at_all_levels(bytes(block))


@given(st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_any_cut_of_a_block_is_read_right(seed: int) -> None:
    rng = random.Random(seed)
    record = {"a": [1.5, {"b": None}], "text": 'é"\\\n😀' * rng.randrange(12), "z": "\t"}
    line = write_value(record, rng).encode()
    for cut in range(len(line) + 1):
        assert (
            extract_at_all_levels(line[:cut])
            == [None if cut < len(line) else oracle(line, "text")][: cut > 0]
        )


@pytest.mark.parametrize("apart", ["", " ", "\n", "é", "x" * 57])
def test_every_character_escaped(apart: str) -> None:
    chars = [chr(code) for code in [*range(0xD800), *range(0xE000, 0x11000, 7), 0x10FFFF]]
    random.Random(1).shuffle(chars)
    text = apart.join(chars)
    line = json.dumps({"m": text, "text": text}).replace("\\u00e9", "é").encode()
    assert extract_at_all_levels(line) == [text.encode()]


@given(st.binary(max_size=80))
@settings(max_examples=100, deadline=None)
def test_arbitrary_bytes_inside_a_string(noise: bytes) -> None:
    extract_at_all_levels(b'{"text": "' + noise + b'"}\n{"text": "next"}')


@pytest.mark.parametrize(
    "piece",
    [
        *("\\n", '\\"', "\\\\", "\\/", "\\\\\\\\", '\\\\\\"', "\\u00e9", "\\u20AC", "\\u0000"),
        *("\\ud83d\\ude00", "\\uD83D\\uDE00\\u0041", "é", "€", "😀", "\x7f", "\u2028", "\\r\\n"),
    ],
)
def test_every_piece_at_every_place_of_a_register(piece: str) -> None:
    for size in (*range(70), *range(120, 135)):
        for after in (0, 1, 70):
            line = '{"text": "' + "x" * size + piece * 2 + "y" * after + '"}'
            assert None not in extract_at_all_levels(line.encode())
            # The same inside of a string that is skipped.
            line = '{"m": "' + "x" * size + piece * 2 + "y" * after + '", "text": "t"}'
            assert extract_at_all_levels(line.encode()) == [b"t"]


@pytest.mark.parametrize(
    "piece",
    [
        *(
            b"\x00",
            b"\x1f",
            b"\t",
            b"\r",
            b"\\x",
            b"\\U0041",
            b"\\",
            b"\\u12g4",
            b"\\u123",
            b"\\\x00",
        ),
        *(
            b"\xff",
            b"\xc3",
            b"\xe2\x82",
            b"\xc0\xaf",
            b"\xed\xa0\x80",
            b"\xf4\x90\x80\x80",
            b"\x80",
        ),
        # Seven bits of these look like a good escape.
        *(b"\\\xe2\x82\xac", b"\\\xdc\x80", b"\\\xee\x80\x80", b"\\\xf4\x80\x80\x80"),
    ],
)
def test_every_fault_at_every_place_of_a_register(piece: bytes) -> None:
    for size in (*range(70), *range(120, 135)):
        good = b'{"text": "next"}'
        for line in (
            b'{"text": "' + b"x" * size + piece + b'y"}',
            b'{"m": "' + b"x" * size + piece + b'y", "text": "t"}',
            b'{"text": "' + b"x" * size + piece,
        ):
            assert extract_at_all_levels(line + b"\n" + good) == [None, b"next"]


@pytest.mark.parametrize(
    "line",
    [
        *(
            '{"text": null}',
            '{"text": 1}',
            '{"text": ["a"]}',
            '{"text": {"text": "a"}}',
            "{}",
            "[]",
        ),
        *('{"a": "b"}', '"text"', "1", "null", '[{"text": "a"}]', '{"text": "a"', '{"text": "a"}}'),
        *('{"text": "a"} x', '{"text": "a"},', '{"text": "a",}', '{,"text": "a"}', "{'text': 'a'}"),
        *(
            '{"text" "a"}',
            '{"text": "a" "b": 1}',
            '{"text": "a", "text": "b"}',
            '{"text": "a", 1: 2}',
        ),
        *('{"text": 1, "text": "b"}', '{"t\\u0065xt": "a"}', '{"a\\n": 1, "text": "a"}'),
        *('\ufeff{"text": "a"}', '{"text": "\\ud83d"}', '{"text": "\\ude00\\ud83d"}'),
        *(
            '{"text": "\\ud83d\\u0041"}',
            '{"text": "\\ud83dx"}',
            '{"text": "\\ud83d\\ud83d\\ude00"}',
        ),
        *('{"a": NaN, "text": "a"}', '{"a": Infinity, "text": "a"}', '{"a": 01, "text": "a"}'),
        *('{"a": 1., "text": "a"}', '{"a": .5, "text": "a"}', '{"a": +1, "text": "a"}'),
        *('{"a": -, "text": "a"}', '{"a": 1e, "text": "a"}', '{"a": 1e+, "text": "a"}'),
        *('{"a": tru, "text": "a"}', '{"a": nulll, "text": "a"}', '{"a": True, "text": "a"}'),
        *('{"a": [1,], "text": "a"}', '{"a": [1 2], "text": "a"}', '{"a": {"b"}, "text": "a"}'),
        *('{"a": [}, "text": "a"}', '{"a": {"b":1,}, "text": "a"}', '{"a": , "text": "a"}'),
        '{"a": ' + "[" * 100 + "]" * 100 + ', "text": "a"}',
        '{"a": ' + "1" * 257 + ', "text": "a"}',
        "\u00a0",
        "\u2028",
        "\x0b",
    ],
)
def test_what_is_slow(line: str) -> None:
    good = '{"text": "next"}'
    assert extract_at_all_levels(f"{line}\n{good}\n".encode()) == [None, b"next"]
    assert extract_at_all_levels(line.encode()) == [None]


@pytest.mark.parametrize(
    "line",
    [
        *('{"text":""}', ' \t\r{ "text" : "a" } \t\r', '{"a": {"text": "no"}, "text": "a"}'),
        *('{"text": "a", "a": [{"text": "no"}]}', '{"tex": 1, "text": "a", "textt": 2}'),
        *('{"a": 1, "a": 2, "text": "a"}', '{"a": "\\ud83d", "text": "a"}', '{"": 0, "text": "a"}'),
        *('{"a": [-0, 0.5e-7, 1E+9, 123, true, false, null, [], {}], "text": "a"}',),
        '{"a": ' + "[" * 60 + "]" * 60 + ', "text": "a"}',
        '{"a": ' + "1" * 256 + ', "text": "a"}',
    ],
)
def test_what_is_not_slow(line: str) -> None:
    assert extract_at_all_levels(line.encode()) == [json.loads(line)["text"].encode()]


@pytest.mark.parametrize("key", ["", "é", "a b", "content", "x" * 100, "a'b", "日本"])
def test_keys(key: str) -> None:
    record = {"text": 1, key: "found", key + "x": 0, "": 5} if key else {"text": 1, "": "found"}
    block = (json.dumps(record, ensure_ascii=False) + "\n").encode() * 2
    assert extract_at_all_levels(block, key) == [b"found"] * 2


@pytest.mark.parametrize("key", ['a"b', "a\\b", "a\nb", 'text":"x","b', "\\u0074ext"])
def test_a_key_that_json_must_escape_makes_every_record_slow(key: str) -> None:
    block = json.dumps({key: "found"}).encode() + b'\n{"text":"x","b":"y"}'
    assert extract_at_all_levels(block, key) == [None, None]


def test_blank_lines_count_but_are_no_records() -> None:
    block = b'\n \t\r\n{"text": "a"}\r\n\n{"text": "b"}\n\r'
    assert extract_at_all_levels(block) == [b"a", b"b"]
    assert _core.JsonLines("text").extract(block).lines.tolist() == [2, 4]
    assert _core.JsonLines("text").extract(block).line_count == 6
    assert _core.JsonLines("text").extract(b"").line_count == 0


def test_results_are_read_only_and_outlive_later_calls() -> None:
    lines = _core.JsonLines("text")
    kept = [lines.extract(b'{"text": "%d"}\nx' % i) for i in range(8)]
    for i, result in enumerate(kept):
        assert result.data.tobytes() == b"%d" % i
        assert result.slow.tolist() == [[1, 14, 15]]
        for array in (result.data, result.spans, result.lines, result.slow):
            assert not array.flags.writeable
        assert (result.data.dtype, result.spans.dtype) == (np.uint8, np.int64)
    data = kept[3].data
    del kept, lines, result, array
    assert data.tobytes() == b"3"


def test_any_buffer_will_do() -> None:
    block = b'{"text": "a"}\n'
    for buffer in (bytearray(block), memoryview(block), np.frombuffer(block, np.uint8)):
        assert _core.JsonLines("text").extract(buffer).data.tobytes() == b"a"
    with pytest.raises(ValueError, match="contiguous"):
        _core.JsonLines("text").extract(np.frombuffer(block, np.uint8)[::2])


def test_one_extractor_serves_many_threads() -> None:
    lines = _core.JsonLines("text")
    blocks = [b'{"text": "%s"}\n' % (b"%d\\n" % i * 9999) for i in range(16)]

    def run(i: int) -> bool:
        return lines.extract(blocks[i]).data.tobytes() == b"%d\n" % i * 9999

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, [i % 16 for i in range(200)]))


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="sse9"):
        _core.JsonLines("text", "sse9")  # type: ignore[arg-type]


def test_edge_files(edge_files: Path) -> None:
    slow = {
        path.name: [
            i for i, text in enumerate(extract_at_all_levels(path.read_bytes())) if text is None
        ]
        for path in sorted(edge_files.glob("*.jsonl"))
    }
    good = {"blank.jsonl", "crlf.jsonl", "nested_key.jsonl", "noeol.jsonl", "ok.jsonl"}
    assert slow
    for name, found in slow.items():
        assert found == ([] if name in good else [50]), name


@pytest.mark.parametrize("name", ["owt", "nasty", "multi", "code", "english"])
def test_corpora_are_read_fast(data: Path, name: str) -> None:
    zstandard = pytest.importorskip("zstandard")
    with (data / "corpora" / f"{name}.jsonl.zst").open("rb") as file:
        reader = zstandard.ZstdDecompressor(max_window_size=2**31).stream_reader(file)
        block = reader.read(3 << 20)
    block = block[: block.rfind(b"\n") + 1]
    assert None not in extract_at_all_levels(block)

"""JSON that does not end where lines do: values over several lines, joined ones, and lists that lie
under a key. The documents are those of the same records as JSON lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.archives import tar
from support.encoding_tools import dataset, documents
from support.small_parts import in_small_parts
from support.sources_twin import (
    COMPRESS,
    WHOLE,
    in_segments,
    one_source,
    read_parts,
    read_whole,
    write,
)

import tokpack
from tokpack.documents import compare_with_inputs, verify_sample
from tokpack.errors import InputError, RecordError, UsageError
from tokpack.sources import discover, make_parts
from tokpack.sources.json_values import ends_where_lines_do, separate_values
from tokpack.sources.records import JsonLinesParser
from tokpack.sources.rows import WholeRecords, json_parser

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Record = dict[str, Any]
RECORDS: list[Record] = [
    {"text": f'{i} "}},{{" \u00e9\n\\', "n": i, "meta": {"tags": [1, {"x": "]"}]}}
    for i in range(200)
]
WANT = [record["text"].encode() for record in RECORDS]


def one_by_one(indent: int | None, between: str) -> Callable[[list[Record]], str]:
    return lambda records: "".join(json.dumps(one, indent=indent) + between for one in records)


LAYOUTS: dict[str, Callable[[list[Record]], str]] = {
    "over lines": one_by_one(2, "\n"),
    "over lines, joined": one_by_one(1, ""),
    "over lines, with commas": one_by_one(4, ",\n"),
    "over lines that end with CR": lambda records: one_by_one(2, "\n")(records).replace(
        "\n", "\r\n"
    ),
    "behind each other": one_by_one(None, ""),
    "behind each other, with blanks": one_by_one(None, "  "),
    "behind each other, with commas": one_by_one(None, ", "),
    "an array": json.dumps,
    "an array over lines": lambda records: json.dumps(records, indent=1),
    "arrays": lambda records: json.dumps(records[:7]) + json.dumps(records[7:], indent=1),
    "lines": one_by_one(None, "\n"),
    "lines with commas": one_by_one(None, ",\n"),
    "lines of two": lambda records: "\n".join(
        json.dumps(a) + json.dumps(b) for a, b in zip(records[::2], records[1::2], strict=True)
    ),
    "two files of lines": lambda records: (
        "\n".join(map(json.dumps, records[:90])) + "\n".join(map(json.dumps, records[90:]))
    ),
}


LINES = ("lines", "lines with commas", "lines of two", "two files of lines")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["a.json", "a.jsonl.gz", "a"])
def test_the_records_are_those_of_json_lines(layout: str, name: str, tmp_path: Path) -> None:
    raw = LAYOUTS[layout](RECORDS).encode()
    path = write(tmp_path, name, COMPRESS["gz"](raw) if name.endswith("gz") else raw)
    source = one_source(path)
    assert source.format == ("jsonl" if layout in LINES else "json")
    for parts in ([WHOLE], in_segments(1000)):
        got = read_parts(source, parts, block_bytes=300)
        assert got.texts == WANT
        assert not got.reasons
    assert read_whole(write(tmp_path, "b.tar", tar({"a.json": raw}))).texts == WANT


def test_a_byte_order_mark_and_white_space(tmp_path: Path) -> None:
    raw = b"\xef\xbb\xbf \n" + LAYOUTS["over lines"](RECORDS).encode()
    assert read_whole(write(tmp_path, "a.json", raw)).texts == WANT


@pytest.mark.parametrize("size", [1 << 12, 1 << 16, 1 << 18])
@pytest.mark.parametrize("layout", ["over lines", "behind each other", "an array", "lines"])
def test_records_that_are_longer_than_what_is_looked_at(
    size: int, layout: str, tmp_path: Path
) -> None:
    records = [{"text": "x" * size, "n": 1}, {"text": "y" * size, "z": [{"a": 1}]}]
    path = write(tmp_path, "a", LAYOUTS[layout](records).encode())
    assert read_whole(path).texts == [b"x" * size, b"y" * size]


@pytest.mark.parametrize(
    ("raw", "reasons"),
    [
        (b'{"text": "a\n{"text": "b"}\n', {0: "Unterminated string"}),
        (b'{"text":\n{"text": "b"}\n', {0: "Expecting value"}),
        (b'{"text": "a"} x\n{"text": "b"}\n', {0: "Extra data"}),
        (b'{"text": "a"}{"text"\n{"text": "b"}\n', {0: "Extra data"}),
        (b'{"text": "a"}{"text": "b"} 5\n{"text": "b"}\n', {0: "Extra data"}),
        (b'{"text": "b"}{"text": 5}{"no": 1}\n', {0: "'text' is a number, not a string"}),
    ],
)
def test_broken_lines_are_bad_records(raw: bytes, reasons: dict[int, str], tmp_path: Path) -> None:
    got = read_whole(write(tmp_path, "a.jsonl", raw), "jsonl")
    assert got.texts == [b"b"]
    for (line, reason), (want_line, want) in zip(got.reasons, reasons.items(), strict=False):
        assert line == want_line
        assert want in reason


def test_what_is_cut_off_is_told(tmp_path: Path) -> None:
    raw = LAYOUTS["over lines"](RECORDS[:2]).encode()
    for cut in range(raw.index(b"}\n{") + 4, len(raw) - 3, 7):
        with pytest.raises(InputError, match=r"a\.json: .* \d+ bytes"):
            read_whole(write(tmp_path, "a.json", raw[:cut]))


def test_advice_for_values_that_begin_later(tmp_path: Path, bpe: Path) -> None:
    raw = json.dumps(RECORDS[0]) + "\n" + json.dumps(RECORDS[1], indent=1)
    path = write(tmp_path, "a.jsonl", raw.encode())
    with pytest.raises(RecordError) as raised:
        tokpack.encode(path, tmp_path / "o", tokenizer=bpe)
    assert raised.value.line == 2
    assert "input_format='json'" in str(raised.value)
    assert read_whole(path, "json").texts == WANT[:2]


def test_errors_count_records(tmp_path: Path, bpe: Path) -> None:
    path = write(tmp_path, "a.json", json.dumps([{"text": "a"}, {"no": 1}], indent=1).encode())
    with pytest.raises(RecordError, match=r"a\.json, record number 2"):
        tokpack.encode(path, tmp_path / "o", tokenizer=bpe)


@pytest.mark.parametrize("indent", [None, 2])
def test_advice_for_records_in_a_list(indent: int | None, tmp_path: Path, bpe: Path) -> None:
    raw = json.dumps({"version": 1, "data": RECORDS}, indent=indent)
    with pytest.raises(RecordError, match="json_path='data'"):
        tokpack.encode(write(tmp_path, "a.json", raw.encode()), tmp_path / "o", tokenizer=bpe)


def paths_to(records: Any) -> dict[str, Any]:
    return {
        "data": {"version": 1, "skip": [{"data": [1]}], "data": records, "z": {"data": 5}},
        "a.b.c": {"a": {"x": [[]], "b": {"y": "{", "c": records}}, "b": {"c": 1}},
        "\u00e9 \U0001f600": {"\u00e9 \U0001f600": records},
    }


@pytest.mark.parametrize("path", paths_to(None))
@pytest.mark.parametrize("indent", [None, 2])
def test_the_list_under_a_key(path: str, indent: int | None, tmp_path: Path, bpe: Path) -> None:
    raw = json.dumps(paths_to(RECORDS)[path], indent=indent, ensure_ascii=False).encode()
    (source,) = discover([write(tmp_path, "a.json", raw)], json_path=path)
    assert read_parts(source, [WHOLE]).texts == WANT
    assert read_parts(source, in_segments(500), block_bytes=100).texts == WANT
    lines = write(tmp_path, "a.jsonl", LAYOUTS["lines"](RECORDS).encode())
    tokpack.encode(lines, tmp_path / "lines", tokenizer=bpe)
    manifest = tokpack.encode(
        source.path, tmp_path / "o", tokenizer=bpe, json_path=path, keep=["n"]
    )
    assert dataset(tmp_path / "o") == dataset(tmp_path / "lines")
    assert manifest.options["json_path"] == path
    assert compare_with_inputs(tmp_path / "o", source.path).is_conserved


@pytest.mark.parametrize(
    ("value", "path", "at"),
    [
        ({"data": RECORDS}, "nope", len(json.dumps({"data": RECORDS})) - 1),
        ({"data": {"a": 1}}, "data", 9),
        ({"data": None}, "data", 9),
        ({"data": [1]}, "data.x", 9),
        (RECORDS, "data", 0),
    ],
)
def test_keys_that_have_no_list(value: Any, path: str, at: int, tmp_path: Path) -> None:
    (source,) = discover([write(tmp_path, "a.json", json.dumps(value).encode())], json_path=path)
    with pytest.raises(InputError, match=rf"a\.json: json_path='{path}': .*\bbyte {at} "):
        read_parts(source, [WHOLE])


def test_a_key_of_json_alone(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", b"text\n")
    with pytest.raises(InputError, match="json_path"):
        discover([path], json_path="data")
    for json_path, input_format in (
        ("data", "jsonl"),
        ("data", "text"),
        ("", "auto"),
        ("a..b", "auto"),
    ):
        with pytest.raises(UsageError, match="json_path"):
            discover([path], json_path=json_path, input_format=input_format)
    with pytest.raises(UsageError, match="json_path"):
        tokpack.encode(iter(["a"]), tmp_path / "o", json_path="data")


@pytest.mark.parametrize("layout", ["over lines", "behind each other", "an array over lines"])
def test_any_number_of_workers(layout: str, tmp_path: Path, bpe: Path) -> None:
    records = [{"text": text, "n": i} for i, text in enumerate(documents(2000, words=60))]
    path = write(tmp_path, "a.json.gz", COMPRESS["gz"](LAYOUTS[layout](records).encode()))
    with in_small_parts(64 << 10):
        assert [part.kind for part in make_parts([one_source(path)], ways=3)] == ["stream"]
        for workers in (1, 3):
            out = tmp_path / f"o{workers}"
            tokpack.encode(path, out, tokenizer=bpe, workers=workers, keep=["n"])
    assert dataset(tmp_path / "o1") == dataset(tmp_path / "o3")
    tables = [(tmp_path / f"o{workers}.docs.parquet").read_bytes() for workers in (1, 3)]
    assert tables[0] == tables[1]


def test_documents_of_one_line_are_found_again(tmp_path: Path, bpe: Path) -> None:
    path = write(tmp_path, "a.jsonl", LAYOUTS["lines of two"](RECORDS).encode())
    tokpack.encode(path, tmp_path / "o", tokenizer=bpe, trace=True)
    assert not verify_sample(tmp_path / "o", 200, seed=1).wrong
    other = [{"text": "other" if one["n"] == 7 else one["text"]} for one in RECORDS]
    write(tmp_path, "a.jsonl", LAYOUTS["lines of two"](other).encode())
    assert verify_sample(tmp_path / "o", 200, seed=1).wrong == 1


@pytest.mark.parametrize("limit", range(1, 8))
def test_a_limit_within_a_line(limit: int, tmp_path: Path, bpe: Path) -> None:
    raw = b'{"text": "a"}{"text": "b"}{"text": "c"}\n{"text": "d"},{"text": 5}\n{"text": "e"}'
    path = write(tmp_path, "a.jsonl", raw)
    manifest = tokpack.encode(
        path, tmp_path / "o", tokenizer=bpe, limit=limit, on_error="skip", workers=1
    )
    assert manifest.records == min(limit, 6)
    assert manifest.rejected == (limit >= 5)
    assert manifest.documents == manifest.records - manifest.rejected


values = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a"\\{},[]: \n\u00e9', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
objects = st.dictionaries(
    st.sampled_from(["text", "n", "a.b"]) | st.text(max_size=3), values, max_size=4
)


@given(
    st.lists(
        st.tuples(st.lists(objects, min_size=1, max_size=4), st.sampled_from(["", " ", ", ", ","])),
        min_size=1,
        max_size=4,
    )
)
@example([([{"text": "a"}, {"text": 5}], "")])
@settings(max_examples=60, deadline=None)
def test_each_value_of_a_line_is_a_record(lines: list[tuple[list[Record], str]]) -> None:
    raw = "\n".join(gap.join(map(json.dumps, records)) for records, gap in lines).encode()
    numbers = [number for number, (records, _) in enumerate(lines) for _ in records]
    plain = "\n".join(json.dumps(one) for records, _ in lines for one in records).encode()
    one = JsonLinesParser(["text"], ["n"]).parse(memoryview(raw), 7)
    other = JsonLinesParser(["text"], ["n"]).parse(memoryview(plain), 0)
    docs, expected = one.documents["text"], other.documents["text"]
    assert [docs.text(i) for i in range(len(docs))] == [
        expected.text(i) for i in range(len(expected))
    ]
    assert docs.lines.tolist() == [7 + numbers[line] for line in expected.lines]
    assert [(bad.line, bad.reason) for bad in one.bad] == [
        (7 + numbers[bad.line], bad.reason) for bad in other.bad
    ]
    assert docs.columns["n"].to_pylist() == expected.columns["n"].to_pylist()
    assert (one.records, one.lines) == (other.records, len(lines))
    rows = json_parser(["text"], WholeRecords({})).parse(memoryview(raw), 0).first
    assert rows.whole == [one for records, _ in lines for one in records]
    assert rows.lines.tolist() == numbers


@given(
    st.lists(objects, min_size=1, max_size=4),
    st.sampled_from([None, 0, 1]),
    st.sampled_from(["\n", "", ",\n", " "]),
)
@settings(max_examples=60, deadline=None)
def test_what_lines_are(records: list[Record], indent: int | None, between: str) -> None:
    text = "".join(json.dumps(one, indent=indent) + between for one in records)
    first = json.dumps(records[0], indent=indent)
    ends = ends_where_lines_do(text.encode(), is_whole=True)
    is_one = len(records) == 1 or "\n" in text[len(first) :]
    assert ends == ("\n" not in first and is_one)


@given(st.lists(objects, min_size=1, max_size=4), st.sampled_from(["", " ", ",", " , "]))
def test_separated_values(records: list[Record], gap: str) -> None:
    line = gap.join(json.dumps(one, ensure_ascii=False) for one in records).encode()
    found = separate_values(line)
    assert found is not None
    assert list(map(json.loads, found)) == records
    for broken in (line + b" x", line + b"[]", line[:-1], line + b",,{}", b"\xff" + line):
        assert separate_values(broken) is None

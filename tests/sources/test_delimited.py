"""CSV and TSV: what Python's csv reads, whatever is in the values and however large blocks are."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.encoding_tools import byte_tokenizer
from support.sources_twin import COMPRESS, WHOLE, one_source, read_parts, read_whole, write

import tokpack
from tokpack.errors import InputError, RecordError
from tokpack.sources import WholeRecords, delimited, make_parts, read

pytest.importorskip("pyarrow")

if TYPE_CHECKING:
    from pathlib import Path

VALUES = st.text(st.sampled_from('a",\t\n\r é\u2028\\|'), max_size=8)
BROKEN = st.text(st.sampled_from("aé,\n\udce9\udcc3\udc80"), max_size=8)  # bytes that are no UTF-8


def rows_of(data: bytes, delimiter: str = ",") -> list[list[str]]:
    """The rows behind the header, as Python reads them; blank lines are none."""
    text = io.StringIO(data.decode(errors="surrogateescape"), newline="")
    return [row for row in csv.reader(text, delimiter=delimiter) if row][1:]


def table(rows: list[list[str]], delimiter: str = ",", end: str = "\r\n") -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter, lineterminator=end).writerows(rows)
    return file.getvalue().encode(errors="surrogateescape")


def wanted(row: list[str]) -> bytes | str:
    """The text of a row of two values, or what is wrong with it."""
    if len(row) != 2:
        return f"the row has {len(row)} values, not 2"
    text = row[1].encode(errors="surrogateescape")
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"invalid UTF-8 at byte {error.start}"
    return text


@given(
    st.lists(st.lists(VALUES | BROKEN, min_size=1, max_size=4), max_size=30),
    st.sampled_from([("csv", ","), ("tsv", "\t")]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([1 << 10, 1 << 20]),
)
def test_as_python_reads_them(tmp_path_factory, rows, kind, end: str, block: int) -> None:
    format_, delimiter = kind
    data = table([["id", "text"], *rows], delimiter, end)
    path = write(tmp_path_factory.mktemp("rows"), f"a.{format_}", data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "_BLOCK_BYTES", block)
        got = read_parts(one_source(path), [WHOLE], block_bytes=64)
    want = rows_of(data, delimiter)
    assert got.records == [(line, wanted(row)) for line, row in enumerate(want)]
    assert got.lines == len(want)


@pytest.mark.parametrize("compression", COMPRESS)
def test_rows_longer_than_a_block(
    compression: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delimited, "_BLOCK_BYTES", 256)
    monkeypatch.setattr(delimited, "_LARGEST_BLOCK", 1 << 20)
    rows = [["text", "id"], *([f"row {i}\n" * (i % 50), str(i)] for i in range(2000))]
    rows[1700:1700] = [["one value"], ["three", "values", ""], ['"long, ' * 30_000, ""]]
    data = table(rows)
    path = write(tmp_path, f"a.csv.{compression}".rstrip("."), COMPRESS[compression](data))
    source = one_source(path)
    assert (source.format, source.compression) == ("csv", compression)
    assert [part.kind for part in make_parts([source], ways=4)] == ["whole"]
    got = read_parts(source, [WHOLE])
    assert got.texts == [row[0].encode() for row in rows[1:] if len(row) == 2]
    assert [line for line, _ in got.reasons] == [1699, 1700]
    assert 0 < got.bytes_read <= source.size
    monkeypatch.setattr(delimited, "_LARGEST_BLOCK", 4096)
    with pytest.raises(InputError, match=r"a\.csv\S*: .*\brow 1699 .*\b4096 bytes"):
        read_parts(source, [WHOLE])


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (b"\xef\xbb\xbftext,id\n\n\na,1", [b"a"]),
        (b"id,text", []),
        (b"id,text\n", []),
        (b'text\n""\nNA\nnull\n\nnan', [b"", b"NA", b"null", b"nan"]),
        (b'text\n5" disk\n', [b'5" disk']),
        (b'"id","te""xt",text\n1,2,"a,b\nc"', [b"a,b\nc"]),
    ],
)
def test_rows(data: bytes, texts: list[bytes], tmp_path: Path) -> None:
    assert read_parts(one_source(write(tmp_path, "a.csv", data)), [WHOLE]).texts == texts


def test_a_ragged_row_that_is_not_utf8_is_a_bad_record(tmp_path: Path) -> None:
    """Also under a column whose name is not ASCII, and where a character is cut by a read."""
    data = "\ufefftéxt,id\nhéllo,1\n".encode() + b"b\xe9d,row,too,long\n" + "wörld,2\n".encode()
    path = write(tmp_path, "a.csv", data)
    (batch,) = read(one_source(path), WHOLE, ["téxt"], columns=["id"])
    documents = batch.documents["téxt"]
    assert [documents.text(n).decode() for n in range(2)] == ["héllo", "wörld"]
    assert documents.columns["id"].to_pylist() == ["1", "2"]
    assert [(one.line, one.reason, one.raw) for one in batch.bad] == [
        (1, "the row has 4 values, not 2", b"b\xe9d,row,too,long")
    ]


def test_bad_records(tmp_path: Path) -> None:
    data = b'id,text\n1,"\xff"\n2\n3,ok\n4,' + b"x" * 101 + b"\n5,a,b\n"
    got = read_parts(one_source(write(tmp_path, "a.csv", data)), [WHOLE], max_document_bytes=100)
    assert got.records == [
        (0, "invalid UTF-8 at byte 0"),
        (1, "the row has 1 values, not 2"),
        (2, b"ok"),
        (3, "a document of more than 100 bytes"),
        (4, "the row has 3 values, not 2"),
    ]


def test_a_ragged_row_at_the_end_has_no_columns_to_choose_by(tmp_path: Path) -> None:
    source = one_source(write(tmp_path, "a.csv", b"id,text\n1,a\n2\n"))
    first, last = read(source, WHOLE, ["text"], columns=WholeRecords({"id": "string"}, {}))
    assert first.first.columns["id"].to_pylist() == ["1"]
    assert first.first.whole.to_pylist() == [{"id": "1", "text": "a"}]
    assert (len(last.first), [one.line for one in last.bad]) == (0, [1])


def test_values_beside_the_texts(tmp_path: Path) -> None:
    data = b'id,text,score\n1,"a\nb",0.5\n2\n3,\xff,0.7\n4,d,\xe9\n'
    source = one_source(write(tmp_path, "a.csv", data))
    (batch,) = read(source, WHOLE, ["text"], columns=["score", "text", "other"])
    columns = batch.documents["text"].columns
    assert columns["score"].to_pylist() == ["0.5", "\ufffd"]
    assert columns["text"].to_pylist() == ["a\nb", "d"]
    assert "other" not in columns


def test_columns_become_datasets(tmp_path: Path) -> None:
    rows = [["title", "n", "text"], *([f"t{i}", str(i), f"text {i}\n"] for i in range(500))]
    tokenizer = byte_tokenizer(tmp_path / "tokenizer.json")
    options = {"keys": ["text", "title"], "tokenizer": tokenizer}
    write(tmp_path, "a.csv", table(rows[:1] + rows[1:251]))
    write(tmp_path, "b.tsv", table(rows[:1] + rows[251:], "\t"))
    write(tmp_path, "all", table(rows))
    folder = tokpack.encode(f"{tmp_path}/*.?sv", tmp_path / "folder", **options, workers=2)
    one = tokpack.encode(tmp_path / "all", tmp_path / "one", **options, input_format="csv")
    assert {key: one[key].bin for key in one} == {key: folder[key].bin for key in folder}
    write(tmp_path, "bad.csv", table([*rows, ["only one"]]))
    with pytest.raises(RecordError, match=r"bad\.csv, row number 501"):
        tokpack.encode(tmp_path / "bad.csv", tmp_path / "bad", **options)


def misquoted(text: str) -> int | None:
    """The line in which text follows a closing quote, as Python's csv finds it, or None."""
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        list(rows)
    except csv.Error as error:
        if "expected after" in str(error):
            return rows.line_num
    return None


@given(st.text(st.sampled_from('a",\n'), max_size=30), st.integers(1, 30))
def test_text_behind_a_closing_quote_however_the_file_is_cut(
    tmp_path_factory, text: str, size: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "quotes.csv"
    path.write_bytes(b"text\n")
    quotes, line = delimited._Quotes(one_source(str(path))), misquoted(text)
    pieces = (text[begin : begin + size].encode() for begin in range(0, len(text), size))
    if line is None:
        list(map(quotes.check, pieces))
    else:
        with pytest.raises(InputError, match=f"in line {line};"):
            list(map(quotes.check, pieces))


def test_text_behind_a_closing_quote_late_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"id,text\n" + b'1,"a ""b"""\n' * 900_000 + b'2,"c" d\n')
    with pytest.raises(InputError, match="line 900002;"):
        read_whole(str(path))

"""The core's columns of JSON texts are those that Python's json gives, or none."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokpack import _core

INTEGERS = st.integers(-(2**63), 2**63 - 1)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
STRINGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=100)
COLUMNS = st.one_of(
    *(
        st.lists(st.none() | values, max_size=20)
        for values in (st.booleans(), INTEGERS, DOUBLES, STRINGS)
    )
)
NUMBER = rb"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?"
TYPES = {bool: "bool", int: "int64", float: "double", str: "string"}


def read(texts: list[bytes], level: Any = "auto") -> tuple[str, list[Any]]:
    """Kind and values of a column, from its buffers and without Arrow."""
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    spans = np.stack([ends - [len(text) for text in texts], ends], 1).reshape(-1, 2)
    kind, nulls, validity, offsets, data = _core.json_column(
        b"".join(texts), spans.astype(np.int64), level
    )
    if kind == "mixed":
        return kind, []
    valid = np.unpackbits(validity, bitorder="little")[: len(texts)].astype(bool).tolist()
    assert nulls == len(texts) - sum(valid)
    if kind == "null":
        return kind, [None] * len(texts)
    if kind == "bool":
        values: list[Any] = np.unpackbits(data, bitorder="little").astype(bool).tolist()
    elif kind == "string":
        assert len(offsets) == len(texts) + 1
        assert offsets[-1] == len(data)
        values = [
            data[begin:end].tobytes().decode()
            for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        ]
    else:
        values = data.view(np.int64 if kind == "int64" else np.float64).tolist()
    return kind, [value if there else None for value, there in zip(values, valid, strict=False)]


def bits(values: list[Any]) -> list[Any]:
    """Values of which 0.0 and -0.0 are not equal."""
    return [struct.pack("d", one) if isinstance(one, float) else one for one in values]


@pytest.mark.parametrize("level", _core.simd_levels())
@settings(max_examples=100, deadline=None)
@given(values=COLUMNS, ascii_only=st.booleans(), empty=st.booleans())
def test_columns_of_one_kind(level: Any, values: list[Any], ascii_only: bool, empty: bool) -> None:
    texts = [
        b"" if value is None and empty else json.dumps(value, ensure_ascii=ascii_only).encode()
        for value in values
    ]
    kind, result = read(texts, level)
    types = {type(value) for value in values if value is not None}
    assert kind == (TYPES[types.pop()] if types else "null")
    assert bits(result) == bits(values)


@settings(max_examples=200, deadline=None)
@given(number=st.from_regex(NUMBER, fullmatch=True))
def test_any_spelling_of_a_number(number: bytes) -> None:
    kind, values = read([number])
    value = json.loads(number)
    if kind != "mixed":
        assert bits(values) == bits([value])
    else:  # only what is beyond the range of a type
        limit = 2.0**-1021 if isinstance(value, float) else 0
        assert abs(value) > 2**63 - 1 or abs(value) < limit


@pytest.mark.parametrize(
    "texts",
    [
        [b"1", b"1.5"],
        [b"1", b'"a"'],
        [b"true", b"1"],
        [b'"a"', b"true"],
        [b"null", b"[1]"],
        [b"{}"],
        [b"9223372036854775808"],
        [b"-9223372036854775809"],
        [b"1e999"],
        [b"01"],
        [b"-"],
        [b"1."],
        [b".5"],
        [b"1e"],
        [b"+1"],
        [b"0x10"],
        [b"NaN"],
        [b"-Infinity"],
        [b"inf"],
        [b"True"],
        [b"nul"],
        [b" 1"],
        [b"1 "],
        [b'"'],
        [b'"a'],
        [b'"a"b'],
        [b'"a" '],
        [b'"\\ud800"'],
        [b'"\\x"'],
        [b'"\n"'],
        [b'"\xff"'],
        [b'"\xc3', b'"\xa4"'],
        [b'"a\xc3"', b'"\xa4b"'],
    ],
)
def test_what_is_left_to_python(texts: list[bytes]) -> None:
    assert read(texts) == ("mixed", [])


@settings(max_examples=300, deadline=None)
@given(texts=st.lists(st.binary(max_size=80) | st.binary(max_size=8).map(b'"%s"'.__mod__)))
def test_hostile_bytes(texts: list[bytes]) -> None:
    kind, values = read(texts)
    if kind != "mixed":
        assert bits(values) == bits([json.loads(text) if text else None for text in texts])


def test_spans_that_are_not_inside_the_data() -> None:
    for span in ([-1, 0], [1, 0], [0, 3]):
        with pytest.raises(ValueError, match="span 0"):
            _core.json_column(b"12", np.array([span]))

"""A JSON array in chunks against Python's json on the whole of it."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokpack import _core

scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=20)
hard_text = st.text(alphabet='[]{},:"\\\n\r\t aé😀', max_size=40)
elements = st.lists(
    st.recursive(
        scalars | hard_text,
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(hard_text | st.text(), inner, max_size=4)
        ),
        max_leaves=10,
    ),
    max_size=6,
)


def feed(text: bytes, cuts: list[int]) -> tuple[bytes, bool]:
    array = _core.JsonArray()
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    out = [array.feed(text[a:b]) for a, b in pairwise(bounds)]
    assert all(len(o) <= b - a for o, a, b in zip(out, bounds[:-1], bounds[1:], strict=True))
    return b"".join(out), array.finished


@given(
    elements,
    st.sampled_from([None, 0, 1, "\t"]),
    st.booleans(),
    st.sampled_from(["", " ", "\n\r\n\t "]),
    st.lists(st.integers(0, 10**6), max_size=5),
)
@settings(max_examples=150, deadline=None)
def test_each_element_is_a_line(
    objects: list[object], indent: int | str | None, ascii_only: bool, space: str, cuts: list[int]
) -> None:
    text = space + json.dumps(objects, indent=indent, ensure_ascii=ascii_only) + space
    out, finished = feed(text.encode(), cuts)
    assert finished
    assert out.endswith(b"\n") or not objects
    lines = out.split(b"\n")[:-1]
    assert [json.loads(line) for line in lines] == objects


def test_every_single_cut_and_byte_by_byte() -> None:
    text = b'\n[ {"a": "x\\"]},[{\\\\", "b": [1, {"c": []}]} ,\n"\\\\", -1.5e3,\n[\n]\r\n] \n'
    expected = feed(text, [])
    assert [json.loads(line) for line in expected[0].split(b"\n")[:-1]] == json.loads(text)
    assert expected[1]
    for cut in range(len(text) + 1):
        assert feed(text, [cut]) == expected
    assert feed(text, list(range(len(text) + 1))) == expected


@pytest.mark.parametrize("size", [*range(20), 4095, 4096, 4097])
def test_strings_of_any_length(size: int) -> None:
    for tail in ("", "\\", '"', "é", "\n", "\x00"):
        objects = ["x" * size + tail, size]
        out, finished = feed(json.dumps(objects, ensure_ascii=False).encode(), [size // 2])
        assert finished
        assert [json.loads(line) for line in out.split(b"\n")[:-1]] == objects


@pytest.mark.parametrize("text", ["", "  ", "[", '["', "[1", "[1,", '["a\\', "[[]", '[{"a": "]"}'])
def test_an_array_that_is_cut_is_not_finished(text: str) -> None:
    assert not feed(text.encode(), [])[1]


@pytest.mark.parametrize(
    ("text", "reason", "position"),
    [
        ('{"text": "a"}', r"expected '\['", 0),
        ("\ufeff[]", r"expected '\['", 0),
        ("  1", r"expected '\['", 2),
        ("[] x", "expected nothing after the array", 3),
        ("[1]]", "expected nothing after the array", 3),
        ("[1],", "expected nothing after the array", 3),
        ("[,1]", "expected an element", 1),
        ("[1, ,2]", "expected an element", 4),
        ("[1,]", "expected an element", 3),
        ("[}", "unexpected '}'", 1),
        ('["a"}', "unexpected '}'", 4),
    ],
)
def test_errors_say_where(text: str, reason: str, position: int) -> None:
    data = text.encode()
    for cut in range(len(data) + 1):
        with pytest.raises(ValueError, match=f"{reason} at byte {position} of the JSON array"):
            feed(data, [cut])


def test_after_an_error_nothing_is_accepted() -> None:
    array = _core.JsonArray()
    for chunk in (b"x", b"[1]"):
        with pytest.raises(ValueError, match="expected '\\[' at byte 0"):
            array.feed(chunk)
    assert not array.finished


@pytest.mark.parametrize(
    "text",
    ['["a\nb", "c"]', '[{"a"\n:\n"x"\n y}, "c"]', '["\\\n", "c"]', "[nu\nll, 1]", "[1\n2, 1]"],
)
def test_a_malformed_element_stays_one_malformed_line(text: str) -> None:
    out, finished = feed(text.encode(), [])
    assert finished
    first, second, rest = out.split(b"\n")
    assert rest == b""
    with pytest.raises(json.JSONDecodeError):
        json.loads(first)
    json.loads(second)

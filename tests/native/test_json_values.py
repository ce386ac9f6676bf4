"""JSON values in chunks against Python's json on the whole of them."""

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


def feed(text: bytes, cuts: list[int], path: tuple[str, ...] = ()) -> tuple[bytes, bool]:
    values = _core.JsonValues(path)
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    out = [values.feed(text[a:b]) for a, b in pairwise(bounds)]
    assert all(len(o) <= 2 * (b - a) for o, a, b in zip(out, bounds[:-1], bounds[1:], strict=True))
    return b"".join(out), values.finished


def lines_of(out: bytes) -> list[object]:
    return [json.loads(line) for line in out.split(b"\n") if line]


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


@given(
    st.lists(st.dictionaries(st.text(max_size=3), hard_text | scalars, max_size=3), max_size=6),
    st.sampled_from([None, 0, 1]),
    st.lists(st.sampled_from(["", " ", "\n", ",\n", " ,", "\r\n\t"]), min_size=6, max_size=6),
    st.lists(st.integers(0, 10**6), max_size=5),
)
@settings(max_examples=150, deadline=None)
def test_values_that_follow_each_other(
    objects: list[object], indent: int | None, gaps: list[str], cuts: list[int]
) -> None:
    text = "".join(
        json.dumps(one, indent=indent) + gap for one, gap in zip(objects, gaps, strict=False)
    )
    out, finished = feed(text.encode(), cuts)
    assert finished
    assert lines_of(out) == objects
    assert out.count(b"\n") == len(objects)


keys = st.sampled_from(["a", "ab", "data", "dat", "datas", "\u00e9", '"', "\\"])
records = st.lists(st.dictionaries(keys, hard_text | scalars, max_size=3), max_size=4)
inner = st.dictionaries(keys, hard_text | scalars | records, max_size=4)


@given(
    inner,
    records,
    st.sampled_from([("data",), ("a", "data"), ("data", "data"), ("\u00e9", "a", "ab")]),
    st.tuples(st.sampled_from([None, 1]), st.integers(0, 4)),
    st.lists(st.integers(0, 10**6), max_size=5),
)
@settings(max_examples=200, deadline=None)
def test_the_array_under_a_path(
    around: dict[str, object],
    expected: list[object],
    path: tuple[str, ...],
    written: tuple[int | None, int],
    cuts: list[int],
) -> None:
    value: object = expected
    indent, at = written
    for key in reversed(path):
        items = [one for one in around.items() if one[0] != key]
        value = dict([*items[:at], (key, value), *items[at:]])
    text = json.dumps(value, indent=indent, ensure_ascii=False).encode()
    for times in (1, 2):
        out, finished = feed(text * times, cuts, path)
        assert finished
        assert lines_of(out) == expected * times


@pytest.mark.parametrize(
    ("text", "reason", "position"),
    [
        ("[1]", "expected an object", 0),
        ('{"b": 1}', "no such key in the object that ends", 7),
        ("{}", "no such key in the object that ends", 1),
        ('{"a": {"b": []}}', "no array under the key", 6),
        ('{"a": null}', "no array under the key", 6),
        ('{"a": [], "a": []}', "the key a second time", 15),
        ('{"\\u0061": []}', "no such key in the object that ends", 13),
        ('{"b": 1]', "unexpected ']'", 7),
        ('{"b" 1}', "expected ':'", 5),
        ("{b: 1}", "expected a key", 1),
        ('{"a": [] "b"', "expected ',' or '}'", 9),
    ],
)
def test_what_is_wrong_on_a_path(text: str, reason: str, position: int) -> None:
    for cut in range(len(text) + 1):
        with pytest.raises(ValueError, match=f"{reason} at byte {position} of the JSON$"):
            feed(text.encode(), [cut], ("a",))


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


@pytest.mark.parametrize(
    "text", ["{", '{"a": 1', '"a', "[", '["', "[1", "[1,", '["a\\', "[[]", '[{"a": "]"}']
)
def test_what_is_cut_is_not_finished(text: str) -> None:
    assert not feed(text.encode(), [])[1]


@pytest.mark.parametrize(
    ("text", "reason", "position"),
    [
        ("[1]]", "expected a value", 3),
        ("[1],,", "expected a value", 4),
        (", 1", "expected a value", 0),
        ("1, }", "expected a value", 3),
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
        with pytest.raises(ValueError, match=f"{reason} at byte {position} of the JSON$"):
            feed(data, [cut])


def test_after_an_error_nothing_is_accepted() -> None:
    values = _core.JsonValues()
    for chunk in (b",", b"[1]"):
        with pytest.raises(ValueError, match=r"\bbyte 0\b"):
            values.feed(chunk)


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

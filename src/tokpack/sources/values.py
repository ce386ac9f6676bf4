"""Columns of documents beside their texts: values of records, aligned with the documents.

A column is the JSON texts of its values where they lie in a block of lines, a list of Python
values, or a pyarrow Array; whatever is cheapest where it is read.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import ujson

from tokpack.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

_LONG_NUMBER = re.compile(rb"[0-9]{300}")
_MOST_DIGITS = 4000  # Python refuses to convert integers of more than 4300


@dataclass
class JsonValues:
    """JSON texts of a column.

    ``data`` are bytes that have them, ``spans`` int64 [n, 2] their begins and ends in it. One
    without a byte is no value: null.
    """

    data: Any
    spans: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.spans)

    def texts(self) -> list[bytes]:
        """The text of each value, ``null`` for none."""
        view = memoryview(self.data)
        begins, ends = self.spans.T.tolist()  # two lists, not one for each value
        return [bytes(view[begin:end]) or b"null" for begin, end in zip(begins, ends, strict=True)]

    def objects(self) -> list[Any]:
        """The values themselves, None for none; a text that is no JSON, or too long, as it is."""
        texts = self.texts()
        joined = b"[" + b",".join(texts) + b"]"
        try:
            if not _LONG_NUMBER.search(joined):  # which ujson takes for infinity
                values: list[Any] = ujson.loads(joined)
                return values
        except ValueError:  # what ujson does not read may be right
            pass
        return [_object(text) for text in texts]


def _object(text: bytes) -> Any:
    try:
        return json.loads(text, parse_int=int_or_digits)
    except (ValueError, RecursionError):
        return text.decode("utf-8", "replace")


def int_or_digits(digits: str) -> int | str:
    """An integer of JSON; of thousands of digits, for which Python has none, these."""
    return int(digits) if len(digits) < _MOST_DIGITS else digits


Values = Any  # JsonValues, a list of Python values, or a pyarrow Array


def json_text(value: Any) -> str:
    """The one JSON text of a value: without blanks, what JSON has no value for as its str().

    InputError for a list or mapping with an integer of thousands of digits.
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    except ValueError as error:
        if isinstance(value, int):
            return f"{Decimal(value):f}"
        raise InputError(f"a value that is to be kept has no JSON text: {error}") from error


def values_as_bytes(values: Values) -> bytes:
    """Values as bytes that tell them from others, however they lie in columns."""
    if isinstance(values, JsonValues):
        return b"\n".join(values.texts())
    objects = values if isinstance(values, list) else values.to_pylist()
    return "".join(json_text(value) + "\n" for value in objects).encode("utf-8", "replace")


def replaced(values: JsonValues, texts: Mapping[int, bytes]) -> JsonValues:
    """The values with the JSON texts of some of them, by index, in the place of what they were."""
    if not texts:
        return values
    data = bytes(values.data) + b"".join(texts.values())
    ends = len(values.data) + np.cumsum([len(text) for text in texts.values()])
    spans = values.spans.copy()
    for index, text, end in zip(texts, texts.values(), ends.tolist(), strict=True):
        spans[index] = end - len(text), end
    return JsonValues(data, spans)


def select_values(values: Values, chosen: npt.NDArray[np.bool_]) -> Values:
    """The values of the documents that are chosen, bool [n]."""
    if isinstance(values, JsonValues):
        return JsonValues(values.data, values.spans[chosen])
    if isinstance(values, list):
        return [
            value for value, is_chosen in zip(values, chosen.tolist(), strict=True) if is_chosen
        ]
    import pyarrow

    return values.filter(pyarrow.array(chosen))


def root_of(name: str, schema: Any) -> str:
    """The column that has the values ``name``: of that name, or for a.b the struct a; "" for none.

    The struct must have the field b.
    """
    if schema.get_field_index(name) >= 0:
        return name
    root, *inside = name.split(".")
    if not inside or schema.get_field_index(root) < 0:
        return ""
    kind = schema.field(root).type
    for part in inside:
        if not str(kind).startswith("struct") or kind.get_field_index(part) < 0:
            return ""
        kind = kind.field(part).type
    return root


def plain_values(batch: Any, name: str) -> Values:
    """The values ``name`` of a record batch as an array, numbers and texts in their widest types.

    These are bool, int64, double and large_string. Of other types are what has no wider one:
    uint64, times, decimals, lists, structs; a list of Python values where these have views of
    texts. ArrowInvalid where they are broken.
    """
    import pyarrow
    from pyarrow import compute, types

    root = root_of(name, batch.schema)
    array = batch.column(root)
    array.validate(full=True)
    if root != name:
        array = compute.struct_field(array, name.split(".")[1:])
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if types.is_integer(kind) and str(kind) != "uint64":
        return array.cast(pyarrow.int64())
    if types.is_floating(kind):
        return array.cast(pyarrow.float64())
    if str(kind) in ("string", "large_string", "string_view"):
        return array.cast(pyarrow.large_string())
    if "_view" in str(kind):  # inside of a struct or list, as polars has them: few kernels take it
        return array.to_pylist()
    return array

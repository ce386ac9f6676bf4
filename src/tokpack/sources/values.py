"""Columns of values beside the documents' texts: Arrow arrays, with a value for each document.

A table's column keeps its type. A column of JSON, or of Python values, is bool, int64, double,
string, large_string or null if all its values are of that kind. Otherwise it has their JSON texts,
as large_binary, a type that no other column has.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
import ujson
import xxhash

from tokpack._core import json_column
from tokpack.display import brief
from tokpack.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

Values = Any  # a pyarrow Array

_EXTENSION = b"ARROW:extension:name"
LONG_NUMBER = re.compile(rb"[0-9]{300}")  # ujson reads such a number as infinity
_MOST_DIGITS = 4000  # Python refuses to convert integers of more than 4300
_PYTHON_TYPES = {bool: "bool", int: "int64", float: "double", str: "large_string"}
# The dtypes of values, or of the offsets of texts.
_DTYPES: dict[str, Any] = {
    "bool": np.bool_,
    "int64": np.int64,
    "double": np.float64,
    "string": np.int32,
    "large_string": np.int64,
    "large_binary": np.int64,
}


def of_json(data: Any, spans: npt.NDArray[np.int64]) -> Values:
    """A column of the JSON texts at ``spans``, int64 [n, 2], in some bytes; an empty one is
    null.
    """
    kind, _, validity, offsets, values = json_column(data, spans)
    if kind == "mixed":
        view = memoryview(data)
        return of_objects(_parsed([bytes(view[begin:end]) for begin, end in spans.tolist()]))
    if kind == "null":
        return _array(kind, len(spans), None)
    return _array(kind, len(spans), validity, *([offsets] if kind == "string" else []), values)


def of_objects(values: Sequence[Any]) -> Values:
    """A column of Python values. InputError for a value without a JSON form."""
    types = set(map(type, values))
    has_nulls = type(None) in types
    types.discard(type(None))
    if not types:
        return _array("null", len(values), None)
    if len(types) == 1 and (kind := _PYTHON_TYPES.get(types.pop())):
        try:
            return _of_kind(values, kind, has_nulls)
        except (OverflowError, ValueError):
            pass  # an integer of more than 64 bits, or a lone surrogate
    plain = (one.item() if isinstance(one, np.generic) else one for one in values)
    return of_texts([None if one is None else as_text(one) for one in plain], "large_binary")


def of_texts(texts: Sequence[bytes | None], kind: str) -> Values:
    """A column of bytes, with None for null."""
    lengths = [len(text or b"") for text in texts]
    return _of_bytes(kind, lengths, b"".join(filter(None, texts)), _validity(texts))


# Make arrays from buffers: pyarrow.array would load pandas if installed, which takes a quarter of a
# second.


def _of_kind(values: Sequence[Any], kind: str, has_nulls: bool) -> Values:
    """A column of values of one Python type. OverflowError, ValueError."""
    validity = _validity(values) if has_nulls else None
    if has_nulls:
        none = "" if kind == "large_string" else 0
        values = [none if one is None else one for one in values]
    if kind == "large_string":
        text = "".join(values)
        if text.isascii():
            return _of_bytes(kind, list(map(len, values)), text.encode(), validity)
        encoded = [one.encode() for one in values]
        return _of_bytes(kind, list(map(len, encoded)), b"".join(encoded), validity)
    numbers = np.fromiter(values, _DTYPES[kind], len(values))
    data = np.packbits(numbers, bitorder="little") if kind == "bool" else numbers
    return _array(kind, len(values), validity, data)


def _of_bytes(kind: str, lengths: list[int], data: bytes, validity: Any) -> Values:
    ends = np.zeros(len(lengths) + 1, _DTYPES[kind])
    np.cumsum(lengths, out=ends[1:])
    return _array(kind, len(lengths), validity, ends, data)


def _validity(values: Sequence[Any]) -> npt.NDArray[np.uint8]:
    present = np.fromiter((one is not None for one in values), np.bool_, len(values))
    return np.packbits(present, bitorder="little")


def _array(kind: str, count: int, *buffers: Any) -> Values:
    import pyarrow

    kept = [None if one is None else pyarrow.py_buffer(one) for one in buffers]
    return pyarrow.Array.from_buffers(pyarrow.type_for_alias(kind), count, kept)


def is_json(values: Values) -> bool:
    """Whether a column has JSON texts."""
    return str(values.type) == "large_binary"


def objects_of(values: Values) -> list[Any]:
    """The values of a column as Python values."""
    objects: list[Any] = values.to_pylist()
    return _parsed([text or b"" for text in objects]) if is_json(values) else objects


def _parsed(texts: Sequence[bytes]) -> list[Any]:
    """The values of JSON texts, None for an empty one; invalid or too long ones unparsed."""
    joined = b"[" + b",".join(text or b"null" for text in texts) + b"]"
    try:
        if not LONG_NUMBER.search(joined):
            values: list[Any] = ujson.loads(joined)
            return values
    except ValueError:  # ujson refuses some valid JSON
        pass
    return [_object(text) if text else None for text in texts]


def _object(text: bytes) -> Any:
    try:
        return json.loads(text, parse_int=int_or_digits)
    except (ValueError, RecursionError):
        return text.decode("utf-8", "replace")


def int_or_digits(digits: str) -> int | str:
    """A JSON integer; as text if it has thousands of digits, which Python refuses."""
    return int(digits) if len(digits) < _MOST_DIGITS else digits


def json_text(value: Any) -> str:
    """The JSON text of a value, without blanks; values without a JSON form are written as str().

    InputError for a list or mapping with an integer of thousands of digits, or with keys that JSON
    does not allow.
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    except Exception as error:  # an integer of thousands of digits, or a tuple as a key
        if isinstance(value, int):
            return f"{Decimal(value):f}"
        raise InputError(f"a value in it has no JSON text: {error}") from error


def as_text(value: Any) -> bytes:
    """The JSON text of a value, UTF-8; a lone surrogate is written as an escape."""
    return json_text(value).encode("utf-8", "backslashreplace")


def is_table(value: object) -> bool:
    """Whether an object is a table: of pyarrow, or a DataFrame of pandas or polars."""
    is_frame = type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "columns")
    return is_frame or hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__")


def table_of(value: Any) -> Any:
    """A table, or a dict of columns, as a pyarrow Table. ArrowException, ValueError, TypeError."""
    import pyarrow

    if type(value).__module__.partition(".")[0] == "pandas":
        return pyarrow.Table.from_pandas(value, preserve_index=False)
    return pyarrow.table(value)


def type_at(name: str, schema: Any) -> Any:
    """The type of the values ``name`` of a table, or None if it has none.

    They are the column of this name, or for a.b the field b of structs in the column a.
    """
    if schema.get_field_index(name) >= 0:
        return schema.field(name).type
    root, *inside = name.split(".")
    if not inside or schema.get_field_index(root) < 0:
        return None
    kind = schema.field(root).type
    for part in inside:
        if not str(kind).startswith("struct") or kind.get_field_index(part) < 0:
            return None
        kind = kind.field(part).type
    return kind


def root_of(name: str, schema: Any) -> str:
    """The name of the column that has the values ``name``, see ``type_at``; "" for none."""
    if type_at(name, schema) is None:
        return ""
    return name if schema.get_field_index(name) >= 0 else name.partition(".")[0]


def column_of(table: Any, name: str) -> Values:
    """The values ``name`` of a table, see ``type_at``. ArrowInvalid if structs are damaged."""
    root = root_of(name, table.schema)
    array = table.column(root)
    if root == name:
        return array
    from pyarrow import compute

    array.validate(full=True)
    return compute.struct_field(array, name.split(".")[1:])


def of_table(batch: Any, name: str) -> Values:
    """The values ``name`` of a record batch, ``widened``. ArrowInvalid if they are damaged."""
    array = column_of(batch, name)
    array.validate(full=True)
    return widened(array)


def widened(array: Values) -> Values:
    """Numbers and texts in their widest types: bool, int64, double and large_string.

    Values without a wider type keep theirs: uint64, times, decimals, bytes, lists, structs.
    """
    import pyarrow
    from pyarrow import types

    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if types.is_integer(kind) and str(kind) != "uint64":
        return array.cast(pyarrow.int64())
    if types.is_floating(kind):
        return array.cast(pyarrow.float64())
    if str(kind) in ("string", "large_string", "string_view"):
        return array.cast(pyarrow.large_string())
    if str(kind) in ("large_binary", "binary_view"):
        return array.cast(pyarrow.binary())
    if "_view" in str(kind):  # from polars; few kernels support these types
        return pyarrow.array(array.to_pylist())
    return array


def python_values(array: Values, field: Any = None, *, nulls: bool = True) -> list[Any]:
    """The values of a column as Python values, the same that ``datasets`` returns.

    JSON of the type arrow.json is decoded, and a map becomes a mapping. Without ``nulls``, null
    fields of structs are left out: in Arrow, every struct has the fields of all.
    """
    values: list[Any] = array.to_pylist()
    turn = _turn(array.type, getattr(field, "metadata", None), nulls)
    return values if turn is None else [None if one is None else turn(one) for one in values]


def _turn(kind: Any, metadata: Any, nulls: bool) -> Callable[[Any], Any] | None:
    """A function that turns a value of pyarrow into the Python value; None if it is that
    already.
    """
    from pyarrow import types

    # If pyarrow does not know an extension yet, its name is in the metadata of the field.
    if str(kind) == "extension<arrow.json>" or (metadata or {}).get(_EXTENSION) == b"arrow.json":
        return _decoded
    if types.is_struct(kind):
        turns = {one.name: _turn(one.type, one.metadata, nulls) for one in kind}
        if not any(turns.values()):
            return None if nulls else _without_nulls
        return lambda struct: {
            name: value if value is None or (turn := turns[name]) is None else turn(value)
            for name, value in struct.items()
            if nulls or value is not None
        }
    if types.is_map(kind):
        item = _turn(kind.item_type, kind.item_field.metadata, nulls) or (lambda value: value)
        return lambda pairs: {key: None if one is None else item(one) for key, one in pairs}
    if hasattr(kind, "value_field"):
        each = _turn(kind.value_type, kind.value_field.metadata, nulls)
        return each and (lambda items: [None if one is None else each(one) for one in items])
    return None


def _without_nulls(struct: dict[str, Any]) -> dict[str, Any]:
    if None not in struct.values():
        return struct
    return {name: value for name, value in struct.items() if value is not None}


def _decoded(text: str) -> Any:
    try:
        return json.loads(text, parse_int=int_or_digits)
    except (ValueError, RecursionError):
        raise InputError(f"a value of the type arrow.json is not JSON: {brief(text)}") from None


def select_values(values: Values, chosen: npt.NDArray[np.bool_]) -> Values:
    """The values of the documents that are ``chosen``, bool [n]; for a RecordBatch its rows.

    They may be in a list, or None.
    """
    if isinstance(values, list | None):
        return values and list(compress(values, chosen.tolist()))
    import pyarrow

    return values.filter(pyarrow.array(chosen))


def compact(values: Values) -> Values:
    """A column in its own memory, because a pickle of a slice contains the whole column."""
    import pyarrow

    return pyarrow.concat_arrays([values])


def compact_rows(batch: Any) -> Any:
    """A RecordBatch whose columns have memory of their own."""
    import pyarrow

    return pyarrow.RecordBatch.from_arrays(list(map(compact, batch.columns)), schema=batch.schema)


def offsets_of(array: Any) -> Any:
    """The offsets of a column of text or bytes, [n + 1]. ValueError if they are wrong."""
    from pyarrow import types

    if len(array) == 0:
        return np.zeros(1, np.int64)
    long = types.is_large_string(array.type) or types.is_large_binary(array.type)
    offsets: Any = np.frombuffer(array.buffers()[1], np.int64 if long else np.int32)
    offsets = offsets[array.offset : array.offset + len(array) + 1]
    size = array.buffers()[2].size if array.buffers()[2] is not None else 0
    if offsets[0] < 0 or offsets[-1] > size or (offsets[1:] < offsets[:-1]).any():
        raise ValueError("a column has offsets beyond its text")
    return offsets


def _present(array: Values) -> npt.NDArray[np.uint8]:
    """1 for each value that is not null, uint8 [n]. ``to_numpy`` would load pandas."""
    if array.null_count in (0, len(array)):
        return np.full(len(array), array.null_count == 0, np.uint8)
    bits = np.frombuffer(array.buffers()[0], np.uint8)
    begin = array.offset
    return np.unpackbits(bits, bitorder="little")[begin : begin + len(array)]


class ContentHash:
    """XXH3-128 of columns, independent of chunks and memory layout."""

    def __init__(self) -> None:
        self._states: dict[str, xxhash.xxh3_128] = {}

    def add(self, name: str, array: Values) -> None:
        """Add the next values of a column."""
        from pyarrow import types

        kind = array.type
        if types.is_dictionary(kind):
            array, kind = array.dictionary_decode(), kind.value_type
        self.update(name, "valid", _present(array))
        array = array.drop_null() if array.null_count else array
        if str(kind) in ("string", "large_string", "binary", "large_binary"):
            offsets = offsets_of(array)
            text = array.buffers()[2] if len(array) else None
            within = memoryview(text or b"")[int(offsets[0]) : int(offsets[-1])]
            self.add_texts(name, np.diff(offsets), within)
        elif types.is_struct(kind):
            for field, inside in zip(kind, array.flatten(), strict=True):
                self.add(f"{name}.{field.name}", inside)
        elif types.is_list(kind) or types.is_large_list(kind):
            self.update(name, "lengths", np.array(array.value_lengths().to_pylist(), np.int64))
            self.add(f"{name}[]", array.flatten())
        elif types.is_primitive(kind) and not types.is_boolean(kind):
            width = kind.bit_width // 8
            begin = array.offset * width
            data = array.buffers()[1] if len(array) else None
            self.update(name, "", memoryview(data or b"")[begin : begin + len(array) * width])
        else:
            texts = b"".join(as_text(one) + b"\n" for one in array.to_pylist())
            self.update(name, "", texts)

    def add_texts(self, name: str, lengths: npt.NDArray[Any], texts: Any) -> None:
        """Add texts with these lengths, int [n], that follow each other in some bytes."""
        self.update(name, "lengths", lengths.astype(np.int64))
        self.update(name, "", texts)

    def update(self, name: str, part: str, data: Any) -> None:
        """Add bytes to a part of a column."""
        state = self._states.setdefault(f"{len(name)} {name} {part}", xxhash.xxh3_128())
        state.update(np.ascontiguousarray(data).data if isinstance(data, np.ndarray) else data)

    def digest(self) -> bytes:
        """The hash of all columns."""
        whole = xxhash.xxh3_128()
        for name, state in sorted(self._states.items()):
            whole.update(name.encode("utf-8", "surrogatepass") + state.digest())
        return whole.digest()

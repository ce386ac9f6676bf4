"""What ``tokpack.encode`` takes in Python, and what becomes of it: names of files, or a source.

A str, a path, and a list or tuple of them name files. A table or dataset is read where it is.
Anything else that can be iterated over gives documents. Nothing is imported here to know an object:
what is not loaded has none.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Protocol

import xxhash

from tokpack.display import brief
from tokpack.errors import InputError, UsageError, option
from tokpack.sources.base import Source
from tokpack.sources.columns import check_columns
from tokpack.sources.folders import matching
from tokpack.sources.iterables import DocumentReader
from tokpack.sources.rows import WholeRecords, no_column
from tokpack.sources.tables import dataset_source, table_source
from tokpack.sources.values import root_of, table_of
from tokpack.stores import is_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.sources.rows import Columns

_LOOKED_AT = 64  # of a list
_LONGEST_NAME, _WORDS = 255, 2  # characters of a name, and fewer words than of a text
_SUFFIX = re.compile(r"\.\w{1,8}\Z")
_LISTS = (list, tuple)
_NAMES = (str, os.PathLike)
_TAKEN = (
    "give names of files, an iterable of str or of mappings, a datasets.Dataset, a pyarrow Table, "
    "RecordBatchReader or Dataset, or a DataFrame"
)


class ArrowStream(Protocol):
    """An object that hands on its rows as Arrow: a pyarrow Table, a DataFrame of polars."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows, as the Arrow PyCapsule interface has it."""


def in_process(
    inputs: Any,
    keys: Sequence[str],
    resume_key: str | None = None,
    columns: Columns | None = (),
) -> Source | tuple[str, ...]:
    """The source that an object of this process is; the names, where it names files.

    ``columns`` are others whose values are wanted, as far as they are there (None: all), or whole
    records, for which ``keys`` need not be there. ``resume_key`` stands
    for the content of what can be read only once. UsageError for what is none of these, InputError
    where a table lacks a column of ``keys`` or has one of no text.
    """
    if isinstance(inputs, _NAMES):
        return _names([inputs])
    if callable(inputs) and hasattr(inputs, "__qualname__"):
        name = inputs.__qualname__
        raise UsageError(f"inputs is the function {name}: call it, as in encode({name}(), ...)")
    if isinstance(inputs, bytes) or hasattr(inputs, "read"):
        raise UsageError(f"inputs is {brief(inputs)}: {_TAKEN}")
    if isinstance(inputs, (set, frozenset)):
        raise UsageError("inputs is a set, which has no order: give a list, as of sorted(...)")
    if isinstance(inputs, _LISTS) and any(isinstance(one, _NAMES) for one in inputs or [""]):
        is_prose = _are_texts(inputs)
        return _stream("documents", inputs, resume_key) if is_prose else _names(inputs)
    return (
        _hugging_face(inputs, keys, resume_key, columns)
        or _arrow_files(inputs)
        or _table(inputs, keys, resume_key, columns)
        or _iterable(inputs, resume_key)
    )


def _names(inputs: Iterable[Any]) -> tuple[str, ...]:
    for one in inputs:
        if not isinstance(one, _NAMES):
            raise UsageError(
                f"a list of names of files has {brief(one)} in it; documents are given as "
                "iter([...])"
            )
    names = tuple(map(os.fspath, inputs))
    if names and not _may_be_name(names[0]):
        raise InputError(
            f"{brief(names[0])}: no such file or folder; a str names files: give a text as a list "
            "of one, or, where texts look like names, as iter([...])"
        )
    return names


def _are_texts(inputs: Sequence[Any]) -> bool:
    """Whether a list begins with texts, none of which can be the name of an input."""
    some = inputs[:_LOOKED_AT] or [""]
    return all(isinstance(one, str) and not _may_be_name(one) for one in some)


def _may_be_name(text: str) -> bool:
    """Whether a text names an input, or may be meant to: a word, or with a slash or a suffix."""
    if text.startswith("@"):
        return True
    if len(text) > _LONGEST_NAME or "\n" in text:
        return _is_input(text)
    is_like_one = len(text.split()) < _WORDS or "/" in text or _SUFFIX.search(text)
    parts = [text, *map(str.strip, text.split(","))]
    return bool(is_like_one or any(map(_is_input, parts)) or matching(text))


def _is_a(value: Any, module: str, *names: str) -> bool:
    """Whether it is an object of one of these classes of a module, if that is loaded."""
    loaded = sys.modules.get(module)
    classes = tuple(getattr(loaded, name) for name in names if hasattr(loaded, name))
    return isinstance(value, classes)


def _hugging_face(
    value: Any, keys: Sequence[str], resume_key: str | None, columns: Columns | None
) -> Source | None:
    if _is_a(value, "datasets", "DatasetDict", "IterableDatasetDict"):
        splits = ", ".join(map(repr, value))
        raise UsageError(f"a dict of datasets has several splits: name one of {splits}: data[...]")
    if _is_a(value, "datasets", "Dataset"):
        return dataset_source(value, keys, columns)
    if not _is_a(value, "datasets", "IterableDataset"):
        return None
    # Tables are a hundred times as fast, where the dataset has them; else it would make them.
    as_tables = bool(getattr(getattr(value, "_ex_iterable", None), "iter_arrow", None))
    documents = value.with_format("arrow").iter(batch_size=1000) if as_tables else value
    return _stream("datasets", documents, resume_key, as_tables=as_tables)


def _arrow_files(value: Any) -> tuple[str, ...]:
    """The files of a pyarrow Dataset that is nothing but these; () for any other object."""
    if not _is_a(value, "pyarrow.dataset", "FileSystemDataset") or value._scan_options:
        return ()
    is_local = _is_a(value.filesystem, "pyarrow.fs", "LocalFileSystem")
    is_read = _is_a(value.format, "pyarrow.dataset", "ParquetFileFormat", "IpcFileFormat")
    is_whole = is_local and is_read and all(map(_is_whole, value.get_fragments()))
    return tuple(value.files) if is_whole else ()


def _is_whole(fragment: Any) -> bool:
    """Whether a fragment of a pyarrow Dataset is not just some row groups of its file."""
    if not _is_a(fragment, "pyarrow.dataset", "ParquetFileFragment"):
        return True
    chosen = [group.id for group in fragment.row_groups]
    return chosen == list(range(fragment.metadata.num_row_groups))


def _table(
    value: Any, keys: Sequence[str], resume_key: str | None, columns: Columns | None
) -> Source | None:
    """A table, or a stream of tables; None for what is neither."""
    if _is_a(value, "polars", "LazyFrame"):
        raise UsageError("a LazyFrame has no rows yet: give what its collect() returns")
    if _is_a(value, "pyarrow", "Array", "ChunkedArray"):
        raise UsageError("inputs is a column of Arrow: give it as pyarrow.table({'text': column})")
    is_pandas, is_polars = (_is_a(value, name, "DataFrame") for name in ("pandas", "polars"))
    is_dataset = _is_a(value, "pyarrow.dataset", "Dataset")
    if not is_dataset and (
        not (hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__"))
        or len(getattr(value, "shape", (0, 0))) == 1  # one column, which is an iterable
    ):
        return None
    try:
        import pyarrow
    except ImportError as error:
        raise InputError("a table needs a package: pip install 'tokpack[parquet]'") from error
    is_whole = columns is None or isinstance(columns, WholeRecords)
    named = () if columns is None or isinstance(columns, WholeRecords) else columns
    all_names: Sequence[str] | None = None  # where only some are read
    if is_dataset:
        all_names = value.schema.names
        if not is_whole:
            check_columns("table", value.schema, keys)
        roots = (root_of(one, value.schema) for one in (*keys, *named))
        chosen = list(dict.fromkeys(filter(None, roots)))
        value = value.scanner(columns=None if is_whole else chosen).to_reader()
    if not hasattr(value, "__len__"):
        reader = pyarrow.RecordBatchReader.from_stream(value)
        return _stream("table", reader, resume_key, as_tables=True, names=all_names)
    if (is_pandas or is_polars) and not is_whole:
        all_names = list(map(str, value.columns))
        for key in keys:
            if not {key, key.partition(".")[0]} & {*value.columns}:
                raise no_column("table", key, all_names)
        asked_for = {name for one in (*keys, *named) for name in (one, one.partition(".")[0])}
        # Other columns need not become Arrow.
        value = value[[name for name in value.columns if name in asked_for]]
    try:
        table = table_of(value)
    except (pyarrow.ArrowException, ValueError, TypeError) as error:
        names = ", ".join(("of it",) if is_whole else keys)
        raise InputError(
            f"table: the columns {names} cannot become Arrow ({error}); as documents one "
            "by one, iter(table['text']), bad ones are named, or left out"
        ) from error
    return table_source(table, keys, columns=columns, names=all_names)


def _iterable(value: Any, resume_key: str | None) -> Source | tuple[str, ...]:
    if isinstance(value, Mapping):
        raise UsageError("inputs is a mapping, which is one document: give a list of them")
    if not isinstance(value, Iterable):
        raise UsageError(f"inputs is {brief(value)}: {_TAKEN}")
    documents = iter(value)
    begin = list(islice(documents, 1))
    first = begin[0] if begin else None
    documents = chain(begin, documents)
    if isinstance(first, os.PathLike):  # as of Path.glob
        return _names(list(documents))
    is_text = isinstance(first, str) and is_url(first) and len(first.split()) > 1
    if isinstance(first, str) and _is_input(first) and not is_text:
        raise UsageError(
            f"an iterable that is no list gives documents, and the first one is {brief(first)}, "
            "the name of an input: give names of files as a list, list(...), or documents as "
            "mappings, {'text': ...}"
        )
    return _stream("documents", documents, resume_key)


def _is_input(text: str) -> bool:
    try:
        return os.path.lexists(text) or ("\n" not in text and is_url(text))
    except (OSError, ValueError):  # no name of anything
        return False


def _stream(
    name: str,
    documents: Iterable[Any],
    resume_key: str | None,
    *,
    as_tables: bool = False,
    names: Sequence[str] | None = None,
) -> Source:
    if resume_key is not None and not (isinstance(resume_key, str) and resume_key):
        raise UsageError(f"{option('resume_key')} is {resume_key!r}; it is a name for the content")
    seen = "" if resume_key is None else xxhash.xxh3_128_hexdigest(resume_key.encode())
    reader = DocumentReader(name, documents, as_tables=as_tables, names=names)
    return Source(name, "", "documents", "", 0, 0, seen=seen, memory=reader)

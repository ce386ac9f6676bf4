"""Token ids as lists in a column: parquet, Hugging Face's Arrow, packs of Megatron-Bridge.

A row is a document. Beside the ids there may be a label for each, -100 if it is not trained, as in
``datasets`` for TRL and axolotl, and masks of TRL, which are not shifted either. A row of
Megatron-Bridge has several documents, and its mask is shifted.
"""

from __future__ import annotations

import bisect
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from tokpack.dataset.format import numbers_in, starts_of
from tokpack.errors import FormatError, InputError, UsageError, option
from tokpack.formats.foreign import ForeignDataset
from tokpack.formats.neox import IGNORED, shifted, tracks_of_labels, unshifted
from tokpack.sources import ArrowBatches, saved_files
from tokpack.storage.disk import cannot_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from tokpack.formats.export import Content


MAGIC = b"PAR1"
ARROW_FILE, ARROW_STREAM = b"ARROW1", b"\xff\xff\xff\xff"
NAMES = ("input_ids", "tokens", "token_ids", "ids")  # columns that hold ids, the likeliest first
MASKS = ("completion_mask", "assistant_masks", "assistant_mask")  # 1: trained
BRIDGE = {"input_ids", "loss_mask", "seq_start_id"}
ORDER = "tokpack_document"  # our own column: the number of each document, from 0
STATE = "state.json"
_ROWS = 1024  # read at once


def pyarrow() -> Any:
    """The library. UsageError where it is not installed."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise UsageError(
            'parquet and Arrow files need pyarrow: pip install "tokpack[parquet]"'
        ) from None
    return pyarrow


@dataclass(frozen=True)
class _File:
    """A file, or a folder of files, with columns."""

    path: str
    schema: Any
    rows: int
    read: Callable[[list[str]], Iterator[Any]]  # of some columns, as record batches

    def batches(self, names: list[str]) -> Iterator[tuple[int, Any]]:
        """Record batches with columns, each with the number of its first row. FormatError."""
        row = 0
        try:
            for batch in self.read(names):
                yield row, batch
                row += len(batch)
        except (OSError, ValueError, pyarrow().ArrowException) as error:
            raise _broken(self.path, f"row {row} or a later one is broken", error) from None

    @property
    def columns(self) -> list[str]:
        """The names of the columns of lists of integers."""
        types = pyarrow().types
        try:
            return [
                field.name
                for field in self.schema
                if hasattr(field.type, "value_type") and types.is_integer(field.type.value_type)
            ]
        except UnicodeDecodeError as error:
            raise FormatError(f"{self.path}: has a column with a broken name: {error}") from None


class _Part(NamedTuple):
    """Some documents: their lengths [d], and the values of each column, one per id."""

    lengths: npt.NDArray[Any]
    values: dict[str, npt.NDArray[Any]]


def open_parquet(path: str, column: str | None) -> ForeignDataset:
    """Open the lists of ids under ``column``, or under the only column that has such lists."""
    arrow = pyarrow()
    try:
        file = arrow.parquet.ParquetFile(path, page_checksum_verification=True)
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise _broken(path, "not a valid parquet file", error) from None
    if file.metadata.num_rows < 0:
        raise FormatError(f"{path}: not a valid parquet file: it has a negative number of rows")
    opened = _File(
        path,
        file.schema_arrow,
        file.metadata.num_rows,
        lambda names: file.iter_batches(batch_size=_ROWS, columns=names),
    )
    if column is None and BRIDGE.issubset(opened.columns):
        return _open_bridge(opened)
    return _open_rows(opened, column)


def is_arrow_folder(path: str) -> bool:
    """Whether a folder is one of ``save_to_disk``. UsageError for one that has several."""
    if os.path.exists(os.path.join(path, "dataset_dict.json")):
        raise UsageError(f"{path}: has several splits, each in a folder: name one of them")
    return os.path.exists(os.path.join(path, STATE))


def open_arrow(path: str, column: str | None) -> ForeignDataset:
    """Open an Arrow file or stream, or a folder that ``Dataset.save_to_disk`` made."""
    arrow = pyarrow()
    paths = saved_files(path)[1] if os.path.isdir(path) else [path]

    def batches() -> Iterator[Any]:
        for one in paths:
            with cannot_read(one), open(one, "rb") as file:
                yield from ArrowBatches(file)

    try:
        counts, schema = 0, None
        for batch in batches():
            if schema is not None and schema != batch.schema:
                raise FormatError(f"{path}: its files have different columns")
            batch.validate(full=True)  # nothing else checks the offsets of lists in a file
            counts, schema = counts + len(batch), batch.schema
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise _broken(path, "not a valid Arrow file", error) from None
    if schema is None:
        raise FormatError(f"{path}: has no rows")
    opened = _File(path, schema, counts, lambda names: (batch.select(names) for batch in batches()))
    return _open_rows(opened, column)


def _broken(path: str, what: str, error: Exception) -> FormatError | InputError:
    # Arrow reports many faults of files as an OSError without errno.
    if getattr(error, "errno", None):
        return InputError(f"{path}: cannot be read: {error}")
    return FormatError(f"{path}: {what}: {error}")


def _open_rows(file: _File, column: str | None) -> ForeignDataset:
    """One document per row, and the mask or labels in other columns."""
    name = _column(file, column)
    columns = file.columns
    masks = [one for one in MASKS if one in columns]
    padding = ["attention_mask"] if "attention_mask" in columns else []
    labels = ["labels"] if "labels" in columns else []

    def parts(*names: str) -> Iterator[_Part]:
        wanted = [name, *names, *padding]
        return (_without_padding(_part(file, wanted, *batch)) for batch in file.batches(wanted))

    def labelled() -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        for part in parts(*labels, *masks):
            ids = part.values[name]
            trained = part.values["labels"] if labels else ids.astype(np.int64)
            for mask in masks:
                trained = np.where(part.values[mask] == 0, IGNORED, trained)
            yield ids, trained

    note = "loss_mask is left out: without seq_start_id its alignment is not known"
    return _opened(
        file,
        name,
        file.rows,
        parts,
        notes=(note,) if "loss_mask" in columns else (),
        tracks=tracks_of_labels(file.path, labelled) if labels or masks else {},
    )


def _opened(
    file: _File, name: str, sequences: int, parts: Callable[[], Iterator[_Part]], **more: Any
) -> ForeignDataset:
    """The documents in ``parts``, which have their ids under ``name``."""
    return ForeignDataset(
        file.path,
        np.dtype(file.schema.field(name).type.value_type.to_pandas_dtype()),
        sequences,
        lambda: (part.lengths for part in parts()),
        lambda: (part.values[name] for part in parts()),
        both=lambda: ((part.lengths, part.values[name]) for part in parts()),
        **more,
    )


def _open_bridge(file: _File) -> ForeignDataset:
    """The documents of packed rows, with their mask, in their original order if known."""
    order = [ORDER] if ORDER in file.columns else []

    def packed(*names: str) -> Iterator[tuple[npt.NDArray[np.int64], _Part]]:
        """Documents, and their numbers."""
        for row, batch in file.batches(["input_ids", *names, "seq_start_id", *order]):
            part = _part(file, ["input_ids", *names], row, batch)
            begins = _begins(file, part.lengths, row, batch.column("seq_start_id"))
            lengths = np.diff(begins, append=int(part.lengths.sum()))
            for name in names:
                part.values[name] = unshifted(part.values[name], begins)
            numbers = _values(file.path, ORDER, row, batch.column(ORDER)) if order else begins
            if len(numbers) != len(begins):
                raise _no_order(file)
            yield numbers, _Part(lengths, part.values)

    def parts(*names: str) -> Iterator[_Part]:
        documents = packed(*names)
        return _in_order(file, documents) if order else (part for _, part in documents)

    sequences = sum(len(part.lengths) for _, part in packed())
    masks = {"mask": lambda: (part.values["loss_mask"] for part in parts("loss_mask"))}
    return _opened(file, "input_ids", sequences, parts, tracks=masks)


def _in_order(file: _File, parts: Iterator[tuple[npt.NDArray[np.int64], _Part]]) -> Iterator[_Part]:
    """The documents in order of their numbers, each as soon as it can be given. FormatError."""
    numbers, held, following = np.zeros(0, np.int64), list[_Part](), 0
    for more, part in parts:
        numbers, held = np.append(numbers, more), [*held, part]
        lengths = np.concatenate([one.lengths for one in held])
        values = {name: np.concatenate([one.values[name] for one in held]) for name in part.values}
        by_number = np.argsort(numbers, kind="stable")
        wanted = np.arange(following, following + len(numbers))
        ready = int(np.argmin(np.append(numbers[by_number] == wanted, False)))
        following += ready
        first, others = (
            _Part(
                lengths[chosen], {k: one[places_of(lengths, chosen)] for k, one in values.items()}
            )
            for chosen in (by_number[:ready], by_number[ready:])
        )
        yield first
        numbers, held = numbers[by_number[ready:]], [others]
    if numbers.size:
        raise _no_order(file)


def places_of(
    lengths: npt.NDArray[np.int64], chosen: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The places of some documents' tokens among those of all, which have these lengths."""
    return numbers_in((np.cumsum(lengths) - lengths)[chosen], lengths[chosen])


def _no_order(file: _File) -> FormatError:
    return FormatError(
        f"{file.path}: the column {ORDER} has to have each document's number, from 0, once; leave "
        "it out to have documents in the order of rows"
    )


def _begins(file: _File, lengths: npt.NDArray[Any], row: int, lists: Any) -> npt.NDArray[np.int64]:
    """The first id of each document in packed rows, counted through all rows. FormatError."""
    counts, starts = _lengths(file.path, "seq_start_id", row, lists), lists.flatten().to_numpy()
    rows = np.repeat(np.arange(len(lengths)), counts)
    first = np.diff(rows, prepend=-1) > 0
    steps = np.diff(starts, prepend=0)
    wrong = np.where(first, starts != 0, steps < 0) | (starts > lengths[rows])
    empty = np.flatnonzero((counts == 0) & (lengths > 0))
    if wrong.any() or empty.size:
        number = row + int(empty[0] if empty.size else rows[np.argmax(wrong)])
        raise FormatError(
            f"{file.path}: seq_start_id of row {number} must begin with 0 and ascend inside the row"
        )
    begins: npt.NDArray[np.int64] = starts_of(lengths)[rows] + starts
    return begins


def _column(file: _File, column: str | None) -> str:
    columns = file.columns
    if column is not None:
        if column not in columns:
            raise UsageError(
                f"{file.path}: no column {column!r} of lists of integers; it has {columns}"
            )
        return column
    likely = [name for name in NAMES if name in columns]
    if likely or len(columns) == 1:
        return str((likely or columns)[0])
    raise UsageError(
        f"{file.path}: "
        + (
            f"several columns hold lists of integers: name one of {columns} with {option('column')}"
            if columns
            else f"no column of lists of integers among {file.schema.names}"
        )
    )


def _part(file: _File, names: list[str], row: int, batch: Any) -> _Part:
    """The columns of a record batch, which begins with ``row``. FormatError if they differ."""
    lengths = _lengths(file.path, names[0], row, batch.column(names[0]))
    values = {}
    for name in names:
        column = batch.column(name)
        value_lengths = _lengths(file.path, name, row, column)
        if (wrong := np.flatnonzero(value_lengths != lengths)).size:
            raise FormatError(
                f"{file.path}: {name} of row {row + wrong[0]} has {value_lengths[wrong[0]]} "
                f"values, expected {lengths[wrong[0]]}, one for each of {names[0]}"
            )
        values[name] = _values(file.path, name, row, column)
    return _Part(lengths, values)


def _without_padding(part: _Part) -> _Part:
    """The part without ids with attention mask 0."""
    attention = part.values.pop("attention_mask", None)
    if attention is None or (attention != 0).all():
        return part
    kept = attention != 0
    lengths = np.diff(starts_of(kept)[starts_of(part.lengths)])
    return _Part(lengths, {name: values[kept] for name, values in part.values.items()})


def _lengths(path: str, name: str, row: int, lists: Any) -> npt.NDArray[Any]:
    if lists.null_count:
        number = row + lists.is_null().to_pylist().index(True)
        raise FormatError(f"{path}: {name} of row {number} is null, expected a list of integers")
    if not hasattr(lists, "value_lengths"):  # lists of one fixed size
        return np.full(len(lists), lists.type.list_size)
    lengths: npt.NDArray[Any] = lists.value_lengths().to_numpy(zero_copy_only=False)
    return lengths


def _values(path: str, name: str, row: int, lists: Any) -> npt.NDArray[Any]:
    values = lists.flatten()
    if values.null_count:
        raise FormatError(f"{path}: {name} has null among the ids in or after row {row}")
    numbers: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return numbers


# Documents as lists in columns: parquet, folders of Hugging Face's datasets, Megatron-Bridge.

_GROUP_IDS = 1 << 22  # ids of a row group that is written: 16 MiB of int32
_WINDOW_IDS = 1 << 24  # ids of the documents that are packed together
_BRIDGE_ROWS = 500  # of a row group of Megatron-Bridge
_DATA = "data-00000-of-00001.arrow"


class _Documents(NamedTuple):
    """Some whole documents: their lengths [d], ids and labels."""

    first: int
    lengths: npt.NDArray[np.int64]
    ids: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        return starts_of(self.lengths)


def _documents(content: Content, about: int) -> Iterator[_Documents]:
    """All documents, with about so many ids at a time. UsageError for one that is too long."""
    rows, begin, total = 0, 0, 0
    pending: list[tuple[npt.NDArray[Any], ...]] = [
        (np.zeros(0, content.dtype), np.zeros(0, np.int64))
    ]

    def take(end: int) -> _Documents:
        nonlocal rows, begin, pending
        lengths = np.diff(content.ends[rows:end], prepend=begin)
        count = int(lengths.sum())
        if count > np.iinfo(np.int32).max:
            raise UsageError(f"{content.name}: document {end - 1} has too many tokens for one row")
        ids, labels = (np.concatenate(parts) for parts in zip(*pending, strict=True))
        taken = _Documents(rows, lengths, ids[:count], labels[:count])
        rows, begin, pending = end, begin + count, [(ids[count:], labels[count:])]
        return taken

    for pair in content.labelled():
        pending.append(pair)
        total += len(pair[0])
        whole = int(np.searchsorted(content.ends, total, side="right"))
        if total - begin >= about and whole > rows:
            yield take(whole)
    if rows < len(content.ends):
        yield take(len(content.ends))


def _lists(values: npt.NDArray[Any], offsets: npt.NDArray[np.int64]) -> Any:
    arrow = pyarrow()
    return arrow.ListArray.from_arrays(offsets.astype(np.int32), arrow.array(values))


def _schema(**dtypes: np.dtype[Any] | str) -> Any:
    arrow = pyarrow()
    return arrow.schema(
        [
            (name, arrow.list_(arrow.from_numpy_dtype(np.dtype(dtype))))
            for name, dtype in dtypes.items()
        ]
    )


def write_parquet(files: list[BinaryIO], content: Content) -> list[str]:
    """Write a row with ``input_ids`` for each document, and ``labels`` if there is a mask."""
    arrow = pyarrow()
    labels = {"labels": "i8"} if content.is_masked else {}
    schema = _schema(input_ids=content.dtype, **labels)
    with arrow.parquet.ParquetWriter(files[0], schema) as writer:
        for part in _documents(content, _GROUP_IDS):
            columns = [_lists(values, part.offsets) for values in (part.ids, part.labels)]
            writer.write_table(arrow.table(columns[: len(schema)], schema=schema))
    return []


def arrow_paths(name: str) -> list[str]:
    """The files of a folder that ``datasets.Dataset.save_to_disk`` would make."""
    return [f"{name}/{file}" for file in (_DATA, "dataset_info.json", "state.json")]


def write_arrow(files: list[BinaryIO], content: Content) -> list[str]:
    """Write a folder of Hugging Face's datasets, with the columns that TRL and axolotl train on.

    As from ``datasets``: ``input_ids`` int32, ``attention_mask`` int8 and, if there is a mask,
    ``labels`` int64 with -100.
    """
    arrow = pyarrow()
    data, info, state = files
    labels = {"labels": "i8"} if content.is_masked else {}
    schema = _schema(input_ids="i4", attention_mask="i1", **labels)
    identity = xxhash.xxh3_64()
    with arrow.ipc.new_stream(data, schema) as writer:
        for part in _documents(content, _GROUP_IDS):
            values = (part.ids, np.ones(len(part.ids), np.int8), part.labels)[: len(schema)]
            for array in (part.lengths, *values):
                identity.update(np.ascontiguousarray(array).view(np.uint8).data)
            columns = [_lists(array, part.offsets) for array in values]
            writer.write_table(arrow.table(columns, schema=schema))
    info.write(b"{}")
    facts: dict[str, Any] = {
        "_data_files": [{"filename": _DATA}],
        "_fingerprint": identity.hexdigest(),  # by which datasets caches results of ``map``
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    state.write(json.dumps(facts, indent=2).encode())
    return []


def bridge_paths(name: str) -> list[str]:
    """The files of a packed dataset of Megatron-Bridge. UsageError for a name that it refuses."""
    if not name.endswith(".idx.parquet"):
        raise UsageError(
            f"{name}: Megatron-Bridge recognizes packed datasets by the name NAME.idx.parquet"
        )
    return [f"{name.removesuffix('.idx.parquet')}.metadata.json", name]


def write_bridge(files: list[BinaryIO], content: Content) -> list[str]:
    """Write documents packed into rows, best-fit, or one per row without ``seq_length``.

    Megatron-Bridge drops the last token of each document in a row, so a row has room for
    ``seq_length`` tokens besides these. A column of our own, which it ignores, has the number of
    each document. UsageError for a document that does not fit.
    """
    arrow = pyarrow()
    metadata, data = files
    lengths = np.diff(content.ends, prepend=0)
    most = int(lengths.max(initial=1)) - 1
    room = most if content.seq_length is None else content.seq_length
    if most > room:
        raise UsageError(
            f"{content.name}: document {int(lengths.argmax())} has {most + 1} tokens, more than "
            f"{room} plus its last: raise {option('seq_length')}, or encode with a length limit"
        )
    schema = _schema(input_ids="i4", loss_mask="i1", seq_start_id="i4", **{ORDER: "i8"})
    fills, most_in_row, lost, written = list[int](), 0, 0, 0
    with arrow.parquet.ParquetWriter(data, schema) as writer:
        for part in _documents(content, _WINDOW_IDS):
            begins = part.offsets[:-1]
            filled = part.lengths > 0
            lost += int((part.labels[begins[filled]] >= 0).sum())
            if content.seq_length is None:
                rows = [[number] for number in np.flatnonzero(filled).tolist()]
            else:
                rows = best_fit(part.lengths - 1, room)
            fills += [int(part.lengths[row].sum()) - len(row) for row in rows]
            most_in_row = max([most_in_row, *map(len, rows)])
            mask = shifted(part.labels >= 0, part.offsets[1:])
            numbers = written + np.cumsum(filled) - 1
            written += int(filled.sum())
            packed = np.array([number for row in rows for number in row], np.int64)
            starts, places = starts_of(part.lengths[packed]), places_of(part.lengths, packed)
            counts = starts_of([len(row) for row in rows])
            offsets = starts[counts]
            inside = starts[:-1] - np.repeat(offsets[:-1], np.diff(counts))
            columns = [
                _lists(part.ids[places], offsets),
                _lists(mask[places], offsets),
                _lists(inside.astype(np.int32), counts),
                _lists(numbers[packed], counts),
            ]
            table = arrow.table(columns, schema=schema)
            writer.write_table(table, row_group_size=_BRIDGE_ROWS)
    facts = {
        "dataset_max_seqlen": most,
        "max_samples_per_bin": most_in_row,
        "packing_factor": round(int((lengths > 0).sum()) / max(len(fills), 1), 2),
        "packing_efficiency": round(100 * sum(fills) / max(len(fills) * room, 1), 2),
        "pack_size": room,
        "min_packed_seqlen": min(fills, default=0),
    }
    metadata.write(json.dumps([facts]).encode())
    left_out = int((lengths == 0).sum())
    notes = [f"{left_out} documents without ids are left out"] if left_out else []
    if lost and content.is_masked:
        notes.append(
            f"{lost} documents begin with a trained token, which Megatron-Bridge never predicts"
        )
    return notes


def best_fit(sizes: npt.NDArray[np.int64], room: int) -> list[list[int]]:
    """Rows of item numbers: the largest item first, into the fullest row with room for it.

    ``sizes`` [n] are at most ``room``; negative ones are left out. Numbers ascend in a row, and
    rows by their first.
    """
    rows = list[list[int]]()
    by_room = dict[int, list[int]]()  # rows, by the room that is left
    rooms = list[int]()  # the keys of by_room, ascending
    for number in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[number])
        if size < 0:
            break
        at = bisect.bisect_left(rooms, size)
        if at == len(rooms):
            row, left = len(rows), room
            rows.append([])
        else:
            left = rooms[at]
            row = by_room[left].pop()
            if not by_room[left]:
                del by_room[left], rooms[at]
        rows[row].append(number)
        if left - size not in by_room:
            by_room[left - size] = []
            bisect.insort(rooms, left - size)
        by_room[left - size].append(row)
    return sorted(sorted(row) for row in rows)

"""Documents as lists in columns: parquet, folders of Hugging Face's datasets, Megatron-Bridge."""

from __future__ import annotations

import bisect
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from tokpack.errors import UsageError, option
from tokpack.operations.lists import ORDER, places_of, pyarrow
from tokpack.operations.masks import shifted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from tokpack.operations.export import Content

_GROUP_IDS = 1 << 22  # ids of a row group that is written: 16 MiB of int32
_WINDOW_IDS = 1 << 24  # ids of the documents that are packed together
_BRIDGE_ROWS = 500  # of a row group of Megatron-Bridge
_DATA = "data-00000-of-00001.arrow"


class _Documents(NamedTuple):
    """Some whole documents: their lengths [d] and, for each id, the label that stands for it."""

    first: int
    lengths: npt.NDArray[np.int64]
    ids: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.lengths)])


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
            raise UsageError(
                f"{content.name}: document {end - 1} has too many tokens for a row of a file of "
                "lists"
            )
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
    """Write a row with ``input_ids`` for each document, and ``labels`` where there is a mask."""
    arrow = pyarrow()
    dtypes = {"input_ids": content.dtype, "labels": np.dtype("<i8")}
    schema = _schema(**dict(list(dtypes.items())[: 1 + content.is_masked]))
    with arrow.parquet.ParquetWriter(files[0], schema) as writer:
        for part in _documents(content, _GROUP_IDS):
            columns = [_lists(values, part.offsets) for values in (part.ids, part.labels)]
            writer.write_table(arrow.table(columns[: len(schema)], schema=schema))
    return []


def arrow_paths(name: str) -> list[str]:
    """The files of a folder as ``datasets.Dataset.save_to_disk`` makes it."""
    return [f"{name}/{file}" for file in (_DATA, "dataset_info.json", "state.json")]


def write_arrow(files: list[BinaryIO], content: Content) -> list[str]:
    """Write a folder of Hugging Face's datasets, with the columns that TRL and axolotl train on.

    They are those that ``datasets`` makes of lists: ``input_ids`` int32, ``attention_mask`` int8
    and, where there is a mask, ``labels`` int64 with -100.
    """
    arrow = pyarrow()
    data, info, state = files
    names = {"input_ids": "i4", "attention_mask": "i1", "labels": "i8"}
    schema = _schema(**dict(list(names.items())[: 2 + content.is_masked]))
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
        "_fingerprint": identity.hexdigest(),  # by which datasets knows results of ``map`` again
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
            f"{name}: Megatron-Bridge knows packed datasets by their names: NAME.idx.parquet"
        )
    return [f"{name.removesuffix('.idx.parquet')}.metadata.json", name]


def write_bridge(files: list[BinaryIO], content: Content) -> list[str]:
    """Write documents packed into rows, best-fit, or one a row without ``seq_length``.

    Megatron-Bridge cuts the last token of each document in a row, so a row has room for
    ``seq_length`` tokens that are followed by another. A column of our own, which it passes over,
    has the number of each document. UsageError for a document that does not fit.
    """
    arrow = pyarrow()
    metadata, data = files
    lengths = content.document_lengths
    most = int(lengths.max(initial=1)) - 1
    room = most if content.seq_length is None else content.seq_length
    if most > room:
        raise UsageError(
            f"{content.name}: document {int(lengths.argmax())} has {most + 1} tokens, more than "
            f"{room} and its last: raise {option('seq_length')}, or encode with a length limit"
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
            packs = _packs(part, rows, (mask, numbers), schema)
            writer.write_table(packs, row_group_size=_BRIDGE_ROWS)
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


def _packs(
    part: _Documents,
    rows: list[list[int]],
    columns: tuple[npt.NDArray[np.int8], npt.NDArray[np.int64]],
    schema: Any,
) -> Any:
    """A table of rows, each with the documents whose numbers in ``part`` it lists.

    ``columns`` are the mask, and the numbers of documents among all.
    """
    (mask, order), numbers = columns, np.array([n for row in rows for n in row], np.int64)
    lengths = part.lengths[numbers]
    ends, places = np.cumsum(lengths), places_of(part.lengths, numbers)
    counts = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
    offsets = np.concatenate([[0], ends])[counts]
    starts = ends - lengths - np.repeat(offsets[:-1], np.diff(counts))
    lists = [
        _lists(part.ids[places], offsets),
        _lists(mask[places], offsets),
        _lists(starts.astype(np.int32), counts),
        _lists(order[numbers], counts),
    ]
    return pyarrow().table(lists, schema=schema)


def best_fit(sizes: npt.NDArray[np.int64], room: int) -> list[list[int]]:
    """Rows of numbers: the largest goes first, into the row with the least room that it fits in.

    ``sizes`` [n], at most ``room``; what is below 0 is left out. Numbers ascend in a row, and rows
    by their first.
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

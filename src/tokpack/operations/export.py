"""Write a dataset in other formats, whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokpack.errors import OutputError, UsageError
from tokpack.files.durable import AtomicFiles, cannot_write, make_folder_of
from tokpack.files.outputs import DATA
from tokpack.indexed.lengths import document_ends
from tokpack.operations.olmo import check_ends, olmo_paths, write_documents
from tokpack.operations.parquet import write_lists
from tokpack.operations.place import OutputPlace
from tokpack.progress import ProgressStage
from tokpack.stores import exists, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tokpack.indexed.dataset import MMapIndexedDataset
    from tokpack.progress import Show

_STEP = 1 << 20
_BOUNDS_LOST = (
    "the file does not tell where documents end: that is only seen by their EOD tokens, if they "
    "have them"
)


class Export(NamedTuple):
    """One format: the files of an output, the one it is known by last, and its dtypes."""

    paths: Callable[[str], list[str]]
    dtypes: tuple[str, ...]  # allowed; the first is chosen where the dataset's own is not among it


EXPORTS = {
    "datatrove": Export(
        lambda name: [f"{name}.metadata", f"{name}.index", name], ("uint32", "uint16")
    ),
    "olmo": Export(olmo_paths, ("uint32", "uint16")),
    "npy": Export(lambda name: [name], ("int32", "uint16", "uint8", "int64", "uint32")),
    "raw": Export(lambda name: [name], ("int32", "uint16", "uint8", "int64", "uint32")),
    "parquet": Export(lambda name: [name], ("int32", "uint16", "uint8", "int64", "uint32")),
}


def place_of_export(
    target: str, output: str, inputs: Iterable[str], *, overwrite: bool
) -> OutputPlace:
    """Where the files of an export shall be."""
    paths = EXPORTS[target].paths(output)
    mask = f"{output}.loss"
    if target == "datatrove" and exists(mask):
        raise OutputError(
            f"{shown(mask)} exists: it would be taken for the mask of the new dataset; remove it, "
            "or choose another output"
        )
    outputs = [(path, DATA) for path in paths]
    # What an old dataset is known by goes before a file of the new one comes.
    return OutputPlace(outputs, inputs, overwrite=overwrite, stale=paths[1:][-1:])


def export(
    dataset: MMapIndexedDataset,
    target: str,
    output: str,
    place: OutputPlace,
    *,
    asked: str | None = None,
    eod: int | None = None,
    tokenizer: str = "",
    progress: Show | None = None,
) -> tuple[np.dtype[Any], list[str]]:
    """Write ``dataset`` as ``target`` (a key of EXPORTS); its dtype, and notes for users.

    ``place`` is that of ``output``. The index has been verified. ``eod`` ends each document, where
    the format needs one. UsageError where an id does not fit, or where ``eod`` is missing or does
    not end a document, OutputError where a file cannot be written.
    """
    form = EXPORTS[target]
    dtype = _choose(dataset.dtype, form, asked, target)
    total = dataset.token_count
    notes: list[str] = []
    with AtomicFiles() as staged, cannot_write(output):
        make_folder_of(place.here(output))
        files = {path: staged.create(place.here(path)) for path in form.paths(output)}
        chunks = cast_chunks(dataset, dtype, total, progress)
        if target in ("datatrove", "olmo"):
            ends = document_ends(dataset.sizes, dataset.doc_idx)[1:]
        if target == "olmo":
            chunks = check_ends(chunks, ends, eod, dataset.path_prefix)
        ids = (np.ascontiguousarray(chunk).data for chunk in chunks)
        if target == "datatrove":
            files[output].writelines(ids)
            files[f"{output}.index"].write(ends.astype("<i8", copy=False).data)
            name = tokenizer or "Unknown Tokenizer"
            text = f"{name}|{dtype.itemsize}\n{total}\n{_metric(total)}"
            files[f"{output}.metadata"].write(text.encode())
        elif target == "olmo":
            files[output].writelines(ids)
            if left_out := write_documents(files[olmo_paths(output)[0]], ends):
                notes.append(f"{left_out} documents without ids are left out")
        elif target == "parquet":
            write_lists(files[output], dataset, lambda ids: cast(ids, dtype, 0, output), dtype)
        else:
            if target == "npy":
                files[output].write(_npy_header(dtype, total))
            files[output].writelines(ids)
            notes.append(_BOUNDS_LOST)
        place.commit(staged)
    several = len(dataset) != len(dataset.doc_idx) - 1
    if target in ("datatrove", "olmo", "parquet") and several:
        notes.append("the sequences of a document were joined: the format knows documents only")
    return dtype, notes


def cast(ids: npt.NDArray[Any], dtype: np.dtype[Any], first: int, name: str) -> npt.NDArray[Any]:
    """``ids`` as ``dtype``; UsageError names an id that does not fit. ``first`` is its number."""
    if not np.can_cast(ids.dtype, dtype):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        if int(ids.min()) < low or int(ids.max()) > high:
            at = next(n for n, i in enumerate(ids.tolist()) if not low <= i <= high)
            raise UsageError(
                f"{name}: token id {ids[at]} (token {first + at} of all) does not fit {dtype} "
                f"({low} to {high}): choose a wider type with --dtype"
            )
    return ids.astype(dtype, copy=False)


def cast_chunks(
    dataset: MMapIndexedDataset, dtype: np.dtype[Any], total: int, progress: Show | None
) -> Iterator[npt.NDArray[Any]]:
    """All ids of a dataset in order, a few MiB at a time."""
    done = 0
    stage = ProgressStage(progress, "convert", total, "tokens")
    for shard in dataset.shards():
        for start in range(0, len(shard.tokens), _STEP):
            chunk = shard.tokens[start : start + _STEP]
            yield cast(chunk, dtype, done, dataset.path_prefix)
            done += len(chunk)
            stage.add(len(chunk))


def _choose(own: np.dtype[Any], form: Export, asked: str | None, target: str) -> np.dtype[Any]:
    if asked is not None and asked not in form.dtypes:
        raise UsageError(f"{target} cannot hold {asked}: choose one of {', '.join(form.dtypes)}")
    name = asked or (str(own) if str(own) in form.dtypes else form.dtypes[0])
    return np.dtype(name).newbyteorder("<")


def _npy_header(dtype: np.dtype[Any], count: int) -> bytes:
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({count},), }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"  # the ids begin at a multiple of 64
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def _metric(count: float) -> str:
    """A number of tokens as datatrove writes it: 1.23 MT."""
    for unit in ("", "k", "M", "G", "T"):
        if count < 1000:
            return f"{count:.3g} {unit}T"
        count /= 1000
    return f"{count:.3g} PT"

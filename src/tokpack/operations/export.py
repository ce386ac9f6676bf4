"""Write a dataset in other formats, whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from tokpack.errors import UsageError
from tokpack.files.durable import Staged, cannot_write, make_folder_of
from tokpack.files.outputs import DATA
from tokpack.indexed.format import bin_path, idx_path
from tokpack.indexed.outputs import dataset_outputs
from tokpack.operations.parquet import write_lists
from tokpack.operations.place import OutputPlace, stale_files
from tokpack.operations.tntidx import lazy_index_chunks
from tokpack.progress import ProgressStage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tokpack.files.outputs import Output
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
    "lazy": Export(lambda name: [bin_path(name), idx_path(name)], ("int32",)),
    "datatrove": Export(
        lambda name: [f"{name}.metadata", f"{name}.index", name], ("uint32", "uint16")
    ),
    "npy": Export(lambda name: [name], ("int32", "uint16", "uint8", "int64", "uint32")),
    "raw": Export(lambda name: [name], ("int32", "uint16", "uint8", "int64", "uint32")),
    "parquet": Export(lambda name: [name], ("int32", "uint16", "uint8", "int64", "uint32")),
}


def place_of_export(
    target: str, output: str, inputs: Iterable[str], *, overwrite: bool
) -> OutputPlace:
    """Where the files of an export shall be."""
    paths = EXPORTS[target].paths(output)

    def outputs() -> list[Output]:
        if target == "lazy":
            *rest, manifest = dataset_outputs(output)
            return [manifest, *rest]
        return [(path, DATA) for path in paths]

    def stale() -> list[str]:
        # What an old dataset is known by goes before a file of the new one comes.
        return stale_files(output) if target == "lazy" else paths[1:][-1:]

    return OutputPlace(outputs, inputs, overwrite=overwrite, stale=stale)


def export(
    dataset: MMapIndexedDataset,
    target: str,
    output: str,
    place: OutputPlace,
    *,
    asked: str | None = None,
    tokenizer: str = "",
    progress: Show | None = None,
) -> tuple[np.dtype[Any], list[str]]:
    """Write ``dataset`` as ``target`` (a key of EXPORTS); its dtype, and notes for users.

    ``place`` is that of ``output``. The index has been verified. UsageError where an id does not
    fit, OutputError where a file cannot be written.
    """
    form = EXPORTS[target]
    dtype = _choose(dataset.dtype, form, asked, target)
    total = dataset.token_count
    notes: list[str] = []
    with Staged() as staged, cannot_write(output):
        make_folder_of(place.here(output))
        files = {path: staged.create(place.here(path)) for path in form.paths(output)}
        chunks = cast_chunks(dataset, dtype, total, progress)
        ids = (np.ascontiguousarray(chunk).data for chunk in chunks)
        if target == "lazy":
            files[bin_path(output)].writelines(ids)
            index = lazy_index_chunks(dtype, dataset.sizes, dataset.doc_idx)
            files[idx_path(output)].writelines(index)
        elif target == "datatrove":
            files[output].writelines(ids)
            _write_ends(files[f"{output}.index"], dataset)
            name = tokenizer or "Unknown Tokenizer"
            text = f"{name}|{dtype.itemsize}\n{total}\n{_metric(total)}"
            files[f"{output}.metadata"].write(text.encode())
        elif target == "parquet":
            write_lists(files[output], dataset, lambda ids: cast(ids, dtype, 0, output), dtype)
        else:
            if target == "npy":
                files[output].write(_npy_header(dtype, total))
            files[output].writelines(ids)
            notes.append(_BOUNDS_LOST)
        place.commit(staged)
    several = len(dataset) != len(dataset.doc_idx) - 1
    if target in ("datatrove", "parquet") and several:
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


def _write_ends(file: BinaryIO, dataset: MMapIndexedDataset) -> None:
    """The end of each document, in ids, as uint64."""
    done = 0
    doc_idx, sizes = dataset.doc_idx, dataset.sizes
    for start in range(0, len(doc_idx) - 1, _STEP):
        bounds = doc_idx[start : start + _STEP + 1]
        own = sizes[bounds[0] : bounds[-1]]
        sums = np.concatenate([[0], np.cumsum(own, dtype=np.int64)]) + done
        file.write(sums[bounds[1:] - bounds[0]].astype("<u8").tobytes())
        done = int(sums[-1])


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

"""Write a view: a manifest, and the list of its documents."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from tokpack.dataset import (
    are_pairs,
    selection_chunks,
    selection_dtype,
    selection_path,
    trained_ends,
)
from tokpack.dataset.format import bin_path, document_ends, document_lengths
from tokpack.dataset.manifest import (
    VIEW_VERSION,
    FileDigest,
    Manifest,
    manifest_path,
    plain_facts,
    plain_input,
    tracks_of_pieces,
    write_digested,
)
from tokpack.dataset.merge import merged_facts, relative_name, warn_of_distant
from tokpack.dataset.outputs import dataset_files, new_datasets
from tokpack.dataset.table import (
    OWN,
    TableReader,
    arrow_type,
    has_table,
    import_parquet,
    is_table,
    table_file,
    within,
)
from tokpack.documents.base import Base
from tokpack.errors import FormatError, InputError, UsageError
from tokpack.storage.disk import MAX_COUNT, Kind, cannot_write

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokpack.dataset import MMapIndexedDataset
    from tokpack.dataset.outputs import NewFiles
    from tokpack.storage import PathLike
    from tokpack.storage.disk import Output

    Int64s = npt.NDArray[np.int64]


_STEP = 1 << 16  # documents that are handled at a time


class ViewSpec(NamedTuple):
    """A view to be written: the numbers of its documents, and how they were chosen.

    ``documents`` are integers [n], in view order, perhaps with repeats; they number the documents
    of all datasets consecutively. ``made_by`` is JSON, for people.
    """

    output: str
    documents: npt.NDArray[np.integer[Any]]
    made_by: Mapping[str, Any]


def write_view(
    output: PathLike,
    datasets: Sequence[MMapIndexedDataset],
    documents: npt.NDArray[np.integer[Any]],
    *,
    made_by: Mapping[str, Any],
    overwrite: bool = False,
) -> Manifest:
    """Write a view of ``documents``, integers [n], of ``datasets``. Returns its manifest.

    Documents are numbered consecutively through all datasets; the view has them in the order of
    ``documents``, perhaps with repeats. Datasets may be virtual, or views: then the new view lists
    documents of the datasets under them. ``made_by`` is kept in the manifest's options. Nothing is
    copied. UsageError for datasets that do not fit together, and for numbers out of range;
    FormatError if a dataset is broken; OutputError if the output exists.
    """
    spec = ViewSpec(os.fspath(output), documents, made_by)
    with NewViews([spec.output], datasets, overwrite=overwrite) as new:
        manifest = new.write(spec)
        new.publish()
    return manifest


class NewViews:
    """New views of the same datasets, which appear together; a context.

    Datasets and outputs are checked immediately, as by ``write_view``, before the caller starts its
    work. ``files`` are the new files: the views' and those ``beside`` them; ``read`` are other
    input files.
    """

    def __init__(
        self,
        outputs: Sequence[str],
        datasets: Sequence[MMapIndexedDataset],
        *,
        overwrite: bool,
        beside: Sequence[Output] = (),
        read: Sequence[str] = (),
    ) -> None:
        files = [file for dataset in datasets for file in dataset_files(dataset.path_prefix)]
        self._outputs, self._datasets = outputs, datasets
        self.files = new_datasets(
            outputs, [*files, *read], overwrite=overwrite, views=True, beside=beside
        ).__enter__()
        try:
            self.base = Base(datasets)
        except BaseException:
            self.files.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.files.__exit__()

    def write(self, spec: ViewSpec) -> Manifest:
        """Write one of the views, not yet under its name. Returns its manifest."""
        output, base, counts = spec.output, self.base, _Counts(self.base)
        numbers = _numbers(spec, base, counts)
        tokens = sum(counts.tokens)
        if max(tokens, counts.sequences) > MAX_COUNT:
            raise UsageError(f"{output}: has more tokens than one dataset can have")
        chunks = selection_chunks(numbers, int(base.starts[-1]))
        selection = write_digested(selection_path(output), chunks, self.files.write)
        facts = merged_facts(base.inputs)
        width, dtype = base.inputs[0].dtype.itemsize, str(base.inputs[0].dtype)
        options = {key: value for key, value in facts["options"].items() if key != "merged"}
        manifest = Manifest.new(
            plain_facts(output, len(numbers), tokens, tokens * width),
            tokenizer=facts["tokenizer"],
            options={**options, **spec.made_by},
            inputs=[
                plain_input(one.name, documents, some, some * width)
                for one, documents, some in zip(
                    base.inputs, counts.documents, counts.tokens, strict=True
                )
            ],
            sequences=counts.sequences,
            tokens=tokens,
            text_bytes=_text_bytes(base, numbers),
            dtype=dtype,
            bin=FileDigest(bytes=tokens * width, xxh3_128=""),
            idx=FileDigest(bytes=0, xxh3_128=""),
            pieces=tuple(
                base.record(one, relative_name(output, one.prefix)) for one in base.records
            ),
            tracks=tracks_of_pieces(base.records, tokens),
            trained=counts.trained,
            pairs=base.pairs and are_pairs(numbers),
            selection=selection,
            format_version=VIEW_VERSION,
        )
        self.files.write(manifest_path(output), manifest.chunks())
        return manifest

    def publish(self) -> None:
        """Give all files their names. InputError if a dataset was replaced meanwhile."""
        for dataset in self._datasets:
            for shard in dataset.shards():
                shard.check_current("selected")
        self.files.publish(stale=[bin_path(output) for output in self._outputs])
        for output in self._outputs:
            warn_of_distant(manifest_path(output), [record.prefix for record in self.base.records])


class _Counts:
    """The counts of a view, taken as its documents are written."""

    def __init__(self, base: Base) -> None:
        self.documents = [0] * len(base.datasets)
        self.tokens = [0] * len(base.datasets)
        self.sequences = 0
        self.trained: int | None = 0 if any(one.tracks for one in base.datasets) else None
        self._trained = [_trained(one) for one in base.datasets]
        self._lengths = [document_lengths(one.sizes, one.doc_idx) for one in base.datasets]
        self._doc_idx = [
            None if lengths is one.sizes else one.doc_idx
            for one, lengths in zip(base.datasets, self._lengths, strict=True)
        ]

    def add(self, dataset: int, documents: Int64s) -> None:
        """Count documents of a dataset."""
        self.documents[dataset] += len(documents)
        tokens = int(self._lengths[dataset][documents].sum(dtype=np.int64))
        self.tokens[dataset] += tokens
        if self.trained is not None:
            trained = self._trained[dataset]
            self.trained += tokens if trained is None else int(trained[documents].sum())
        bounds = self._doc_idx[dataset]
        if bounds is None:
            self.sequences += len(documents)
        else:
            self.sequences += int((bounds[documents + 1] - bounds[documents]).sum())


def _trained(dataset: MMapIndexedDataset) -> Int64s | None:
    """Trained tokens of each document: int64 [documents]; None if no track tells it."""
    if not dataset.tracks:
        return None
    ends = document_ends(dataset.sizes, dataset.doc_idx)
    counts: Int64s = np.diff(trained_ends(dataset.shards(), dataset.tracks, ends))
    return counts


def _text_bytes(base: Base, numbers: npt.NDArray[Any]) -> int:
    """The bytes of text of base documents, by their tables; 0 if unknown."""
    total = 0
    try:
        if not all(has_table(record.prefix) for record in base.records):
            return 0
        if (numbers[1:] < numbers[:-1]).any():
            numbers = np.sort(numbers)
        for number, record in enumerate(base.records):
            begin, end = base.starts[number : number + 2].tolist()
            inside = within(numbers, begin, end)
            table = TableReader(table_file(record.prefix))
            if not table.has(f"{OWN}bytes"):
                return 0
            for sizes, rows in table.of_rows(f"{OWN}bytes", inside - begin if begin else inside):
                if sizes.null_count:
                    return 0
                total += int(sizes.to_numpy()[rows].sum())
    except (UsageError, InputError, FormatError, OSError, ValueError):  # a view needs no tables
        return 0
    return total


def _numbers(spec: ViewSpec, base: Base, counts: _Counts) -> npt.NDArray[Any]:
    """The base numbers of a view's documents, in the dtype for the file. UsageError."""
    if spec.documents.ndim != 1 or spec.documents.dtype.kind not in "iu":
        raise UsageError(
            f"documents must be integers in one dimension, not {spec.documents.dtype} "
            f"{spec.documents.shape}"
        )
    total = int(base.firsts[-1])
    numbers = np.empty(len(spec.documents), selection_dtype(int(base.starts[-1])))
    for begin in range(0, len(spec.documents), _STEP):
        documents = spec.documents[begin : begin + _STEP]
        wrong = np.flatnonzero((documents < 0) | (documents >= total))
        if len(wrong):
            raise UsageError(
                f"{spec.output}: there is no document {documents[wrong[0]]}: the datasets have "
                f"{total}"
            )
        documents = documents.astype(np.int64)
        datasets = np.searchsorted(base.firsts[1:], documents, side="right")
        part = numbers[begin : begin + _STEP]
        for dataset in np.flatnonzero(np.bincount(datasets)).tolist():
            here = datasets == dataset
            inside = documents[here] - base.firsts[dataset]
            counts.add(dataset, inside)
            part[here] = base.numbers(dataset, inside)
    return numbers


# Tables about documents of several datasets: copies, or matched spans.

_MARK = b"tokpack.about_documents"  # a key of the footer's metadata
_ROWS = 1 << 16


def is_about_documents(path: str) -> bool:
    """Whether a file is a table of copies or of matched spans, so that it may be replaced."""
    return is_table(path, _MARK)


BESIDE_VIEW = Kind("a table of tokpack", is_about_documents, beside=True)
NAMED_TABLE = Kind("a table of tokpack", is_about_documents)


class NewTable:
    """A new parquet file with columns from numpy arrays.

    ``columns`` have types, int64 or string, or a list of texts, to which arrays are indices.
    ``made_by`` is kept in the footer. Raises OutputError.
    """

    def __init__(
        self,
        path: str,
        files: NewFiles,
        columns: Mapping[str, str | Sequence[str]],
        made_by: Mapping[str, Any],
    ) -> None:
        self._arrow = arrow = import_parquet()
        self._path, self._columns = path, columns
        names = arrow.dictionary(arrow.int32(), arrow.string())
        kinds = [arrow_type(one) if isinstance(one, str) else names for one in columns.values()]
        metadata = {_MARK: json.dumps(made_by).encode()}
        self._schema = arrow.schema(list(zip(columns, kinds, strict=True)), metadata=metadata)
        file = files.create(path)
        with cannot_write(path):
            self._writer = arrow.parquet.ParquetWriter(file, self._schema)

    def append(self, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Append rows: an array for each column, in its order."""
        count = len(next(iter(columns.values())))
        for begin in range(0, count, _ROWS):
            arrays = []
            for name, values in columns.items():
                kind = self._columns[name]
                part = np.ascontiguousarray(values[begin : begin + _ROWS])
                if isinstance(kind, str):
                    arrays.append(self._arrow.array(part, arrow_type(kind)))
                else:
                    indices = self._arrow.array(part.astype(np.int32))
                    texts = self._arrow.array(list(kind), self._arrow.string())
                    arrays.append(self._arrow.DictionaryArray.from_arrays(indices, texts))
            batch = self._arrow.RecordBatch.from_arrays(arrays, schema=self._schema)
            with cannot_write(self._path):
                self._writer.write_batch(batch)

    def close(self) -> None:
        """Write the footer."""
        with cannot_write(self._path):
            self._writer.close()

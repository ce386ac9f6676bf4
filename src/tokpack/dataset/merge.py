"""Make one dataset from several: their files are joined, or only a manifest lists them."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokpack.dataset.dataset import MMapIndexedDataset
from tokpack.dataset.format import bin_path, prefixes_of
from tokpack.dataset.manifest import (
    LOSS_TRACKS,
    TRACK_DTYPES,
    TRACKS,
    FileDigest,
    Manifest,
    ShardRecord,
    check_tokenizers,
    facts_of_pieces,
    is_trusted,
    manifest_path,
    plain_facts,
    summed,
    trust_setting,
    write_digested,
)
from tokpack.dataset.outputs import NewFiles, dataset_files, new_datasets
from tokpack.dataset.shards import check_manifest
from tokpack.dataset.table import (
    COLUMNS,
    OWN,
    ROW_GROUP,
    DocumentTable,
    TableReader,
    dropped_path,
    dropped_schema,
    has_table,
    import_parquet,
    table_chunks,
    table_metadata,
    table_path,
    table_schema,
)
from tokpack.dataset.view import open_files
from tokpack.dataset.writer import JoinedDataset, NewDataset
from tokpack.errors import FormatError, InputError, UsageError, option
from tokpack.progress import ProgressStage, with_bar
from tokpack.sources import widest_type
from tokpack.storage import exists, is_url, near, paths_of
from tokpack.storage.disk import MAX_COUNT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tokpack.progress import Show
    from tokpack.storage import Identity, PathLike


_log = logging.getLogger(__name__)


class Tables:
    """The tables of several datasets as one, in order; for a view, the rows that it lists.

    ``kept`` are the kept columns with their types, as from ``encode``; a column that a dataset
    lacks is null there.
    """

    def __init__(self, prefixes: Sequence[str]) -> None:
        """InputError if a table is missing, FormatError if one is of another dataset."""
        self._parts = [DocumentTable(prefix) for prefix in prefixes]
        self._ends = [0, *accumulate(map(len, self._parts))]
        self.kept = _kept(reader for part in self._parts for reader in part)
        # A view has no table of records left out.
        shards = [one for part in self._parts if part.numbers is None for one in part.prefixes]
        self._dropped = [dropped_path(one) for one in shards if Manifest.load(one).dropped]

    def __len__(self) -> int:
        return self._ends[-1]

    def write(
        self, prefix: str, new: NewFiles, binary: FileDigest, rows: tuple[int, int]
    ) -> FileDigest:
        """Write the table of the dataset ``prefix`` from rows [begin, end)."""
        schema = table_schema(self.kept)
        chunks = table_chunks(schema, self._tables(*rows, schema), table_metadata(binary))
        return write_digested(table_path(prefix), chunks, new.write)

    def write_dropped(
        self, prefix: str, new: NewFiles, binary: FileDigest, rows: int
    ) -> FileDigest | None:
        """Write the table of all records left out. Returns None if ``rows`` do not include them."""
        readers = [TableReader(near(path), path) for path in self._dropped if exists(path)]
        if not rows or sum(map(len, readers)) != rows:
            return None
        schema = dropped_schema()
        tables = (_fitted(table, schema) for one in readers for table in _in_order(one))
        chunks = table_chunks(schema, tables, table_metadata(binary))
        return write_digested(dropped_path(prefix), chunks, new.write)

    def _tables(self, begin: int, end: int, schema: Any) -> Iterator[Any]:
        own = len(COLUMNS)
        columns = [*(OWN + name for name in COLUMNS), *schema.names[own:]]

        def fitted(table: Any) -> Any:
            names = [*schema.names[:own], *table.column_names[own:]]
            return _fitted(table.rename_columns(names), schema)

        for part, first, last in zip(self._parts, self._ends, self._ends[1:], strict=False):
            stop = min(end, last)
            for at in range(max(begin, first), stop, ROW_GROUP):
                documents = np.arange(at - first, min(at + ROW_GROUP, stop) - first)
                yield part.take(documents, columns, fitted)


def tables_of(prefixes: Sequence[str]) -> Tables | None:
    """The tables of some datasets, or None if one has none; a warning says so if others have."""
    without = [prefix for prefix in prefixes if not has_table(prefix)]
    if not without:
        try:
            return Tables(prefixes)
        except InputError as error:  # a dataset is usable without its table
            _log.warning("%s; the new dataset has no table of documents", error)
    elif len(without) < len(prefixes):
        _log.warning(
            "%s has no table of documents, so the new dataset has none", ", ".join(without[:3])
        )
    return None


def all_tables(
    tables: Tables | None, prefix: str, new: NewFiles, binary: FileDigest, facts: Mapping[str, Any]
) -> dict[str, FileDigest]:
    """Write both tables of a dataset with all rows. Returns their digests for the manifest."""
    if tables is None:
        return {}
    empty = facts["empty"] if facts["options"].get("empty") == "document" else 0
    if len(tables) != facts["documents"] + empty:  # not all index empty documents
        _log.warning(
            "%s: has no table, because its inputs count empty documents differently", prefix
        )
        return {}
    digests = {"table": tables.write(prefix, new, binary, (0, len(tables)))}
    left_out = facts["empty"] + facts["rejected"] - empty
    if dropped := tables.write_dropped(prefix, new, binary, left_out):
        digests["dropped"] = dropped
    return digests


def _in_order(reader: TableReader) -> Iterator[Any]:
    """All rows of a table, some at a time."""
    for begin in range(0, len(reader), ROW_GROUP):
        numbers = np.arange(begin, min(begin + ROW_GROUP, len(reader)))
        yield reader.take(numbers, tuple(reader.schema.names))


def _kept(readers: Iterable[TableReader]) -> dict[str, str]:
    """The kept columns of several tables, in order of appearance, with their types."""
    types: dict[str, set[str]] = {}
    for reader in readers:
        for name in reader.kept:
            kinds = types.setdefault(name, set())
            kinds |= set() if reader.is_null(name) else {str(reader.schema.field(name).type)}
    return {name: widest_type(kinds) for name, kinds in types.items()}


def _fitted(table: Any, schema: Any) -> Any:
    """A table with the columns of a schema; the names of inputs are strings in it."""
    arrow = import_parquet()
    there = table.column_names
    columns = [
        _turned(table[one.name], one.type)
        if one.name in there
        else arrow.nulls(table.num_rows, one.type)
        for one in schema
    ]
    return arrow.table(columns, names=schema.names)


def _turned(column: Any, goal: Any) -> Any:
    arrow = import_parquet()
    if arrow.types.is_dictionary(goal):
        return column.cast(arrow.string())
    if column.type == goal:
        return column
    if column.null_count == len(column):
        return arrow.nulls(len(column), goal)
    if str(goal) == "double":
        return column.cast(goal, safe=False)
    # If the column is a string elsewhere, numbers become their JSON text.
    texts = [None if value is None else json.dumps(value) for value in column.to_pylist()]
    return arrow.array(texts, goal)


class InputShard(NamedTuple):
    """One .bin with its .idx, as they were at the start of the command."""

    record: ShardRecord  # with the full prefix
    identity: Identity
    digest: FileDigest | None  # of the .bin, by its manifest
    multimodal: bool | None  # None if it has no sequence


@dataclass(frozen=True)
class MergeInput:
    """A dataset to merge, as its shards."""

    name: str  # as the user has written it
    dtype: np.dtype[Any]
    shards: list[InputShard]
    manifest: Manifest | None
    pairs: bool  # whether its documents are pairs

    @property
    def is_view(self) -> bool:
        """Whether it lists documents of other datasets."""
        return self.manifest is not None and self.manifest.selection is not None

    def total(self, what: str) -> int:
        """The sum of a number over the records of its shards."""
        return sum(getattr(shard.record, what) for shard in self.shards)


@with_bar
def merge(
    inputs: PathLike | Iterable[PathLike],
    output: PathLike,
    *,
    virtual: bool = False,
    overwrite: bool = False,
    progress: Show | bool | None = None,
) -> Manifest:
    """Join datasets, in order, into the dataset ``output``. Returns its manifest.

    ``inputs`` are prefixes (or files) of datasets with the same dtype and, if their manifests say
    it, the same tokenizer. Every entry of their indices is checked. Tables of documents are joined
    if all have one. The output has every track of any input; for inputs without it all tokens
    count, with a warning. ``virtual`` copies nothing and writes only ``output``.json, which lists
    the inputs. ``progress`` is told the written bytes of the .bin. UsageError if the datasets do
    not fit together, FormatError if one is broken, OutputError if the output exists or cannot be
    written.
    """
    output = os.fspath(output)
    prefixes = prefixes_of(paths_of(inputs))
    if not prefixes:
        raise UsageError("nothing to merge: name the datasets by their prefixes")
    files = [file for prefix in prefixes for file in dataset_files(prefix)]
    tables = None if virtual else tables_of(prefixes)
    tracks = () if virtual else tracks_of(prefixes)
    outputs = new_datasets(
        [output], files, overwrite=overwrite, tables=tables is not None, tracks=tracks
    )
    with outputs as new:
        datasets = [_inspect(prefix) for prefix in prefixes]
        check_same(datasets)
        if virtual:
            return _write_virtual(datasets, output, new)
        shards = [shard for dataset in datasets for shard in dataset.shards]
        records = [shard.record for shard in shards]
        stage = ProgressStage(progress, "merge", sum(record.bin_bytes for record in records))
        # A store can join whole objects, but not single documents of a view.
        joins = is_url(output) and not any(dataset.is_view for dataset in datasets)
        out = (JoinedDataset if joins else NewDataset)(output, new, tracks)
        lengths = new.scratch(sum(record.sequences for record in records), np.int32)
        doc_idx = new.scratch(sum(record.documents for record in records) + 1, np.int64)
        multimodal = any(shard.multimodal for shard in shards)
        modes = new.scratch(len(lengths), np.int8) if multimodal else None
        sequence = document = 0
        for record, identity, digest, _ in shards:
            shard = open_files(record.prefix).only
            if shard is None or shard.identity != identity:
                raise FormatError(f"{record.prefix}: changed while it was merged; run again")
            rows = slice(sequence, sequence + record.sequences)
            lengths[rows] = shard.index.lengths
            if modes is not None and shard.index.modes is not None:
                modes[rows] = shard.index.modes
            entries = doc_idx[document + 1 : document + 1 + record.documents]
            entries[:] = shard.index.doc_idx[1:]
            entries += sequence
            out.join(shard, digest, stage.add)
            sequence += record.sequences
            document += record.documents
        facts = merged_facts(datasets)
        manifest = out.complete(
            datasets[0].dtype,
            lengths,
            doc_idx,
            facts,
            modes,
            tables=lambda binary: all_tables(tables, output, new, binary, facts),
        )
        new.publish(on_bytes=stage.add)
        return manifest


def tracks_of(prefixes: Iterable[str]) -> tuple[str, ...]:
    """The tracks of any of the datasets."""
    manifests = [Manifest.find(prefix) for prefix in prefixes]
    return tuple(
        name for name in TRACK_DTYPES if any(one and name in one.tracks for one in manifests)
    )


def _inspect(prefix: str) -> MergeInput:
    with MMapIndexedDataset(prefix, verify=True) as dataset:
        shards = []
        for shard in dataset.shards():
            manifest = Manifest.find(shard.prefix) if dataset.records else dataset.manifest
            if manifest:
                check_manifest(manifest, shard)
            # A view has no .bin, so no checksum of one.
            digest = manifest.bin if manifest and dataset.view is None else None
            multimodal = shard.index.header.multimodal if len(shard) else None
            record = ShardRecord.of(shard, manifest)
            shards.append(InputShard(record, shard.identity, digest, multimodal))
        return MergeInput(prefix, dataset.dtype, shards, dataset.manifest, dataset.pairs)


def check_same(inputs: Sequence[MergeInput]) -> None:
    """Raise UsageError for datasets that cannot be mixed, according to their manifests.

    Warns of unknown tokenizers, and which datasets lack a track of others, and how their tokens
    count then.
    """
    kinds = {shard.multimodal: dataset.name for dataset in inputs for shard in dataset.shards}
    if True in kinds and False in kinds:
        raise UsageError(
            f"{kinds[True]} is multimodal, with a mode for each sequence, {kinds[False]} is not: "
            "merge each kind separately"
        )
    in_pairs = {dataset.pairs: dataset.name for dataset in inputs}
    if len(in_pairs) > 1:
        raise UsageError(
            f"{in_pairs[True]} has pairs of a preferred and a rejected answer, which stay "
            f"together, but {in_pairs[False]} has none: process each kind separately"
        )
    known = [(i.name, i.manifest) for i in inputs if i.manifest]
    tokenizers = [(name, one.tokenizer) for name, one in known if one.tokenizer.get("sha256")]
    check_tokenizers(tokenizers)
    widest = max((dataset.dtype for dataset in inputs), key=lambda dtype: dtype.itemsize)
    for dataset in inputs:
        if dataset.dtype != widest:
            raise UsageError(
                f"{dataset.name} has ids of {dataset.dtype}, others of {widest}: convert them to "
                f"one dtype with `tokpack convert {dataset.name} NEW --dtype {widest}`"
            )
    framed = [(name, one.frame) for name, one in known if one.frame]
    for name, (before, after) in framed:
        first_name, (first_before, first_after) = framed[0]
        if (before, after) != (first_before, first_after):
            raise UsageError(
                f"{first_name} has the ids {first_before} before documents and {first_after} after "
                f"them, {name} has {before} and {after}: encode one again with the EOD and BOS of "
                "the other"
            )
    named = {name for name, _ in tokenizers}
    unknown = [i.name for i in inputs if i.name not in named]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        _log.warning(
            "no manifest names the tokenizer of %s%s, so it was not checked", unknown[0], more
        )
    shards = [shard.record for dataset in inputs for shard in dataset.shards]
    for name in LOSS_TRACKS:
        without = [one.prefix for one in shards if one.tokens and name not in one.tracks]
        if 0 < len(without) < len(shards):
            more = f" and {len(without) - 1} more" if len(without) > 1 else ""
            _log.warning("%s%s: has no %s, so %s", without[0], more, name, TRACKS[name].absent)


def _write_virtual(inputs: list[MergeInput], output: str, new: NewFiles) -> Manifest:
    for dataset in inputs:
        if dataset.is_view:
            raise UsageError(
                f"{dataset.name} is a view, which a virtual dataset cannot contain: leave out "
                f"{option('virtual', True)} to copy its documents, or make a view of all datasets "
                "with `tokpack select`"
            )
    shards = [shard.record for dataset in inputs for shard in dataset.shards]
    records = [replace(one, prefix=relative_name(output, one.prefix)) for one in shards]
    totals = {what: sum(one.total(what) for one in inputs) for what in ("sequences", "tokens")}
    for what, total in totals.items():
        if total > MAX_COUNT:
            raise UsageError(f"{total} {what} are more than one dataset can have")
    facts = merged_facts(inputs) | totals | facts_of_pieces(records)
    manifest = Manifest.new(facts, dtype=str(inputs[0].dtype))
    path = manifest_path(output)
    new.write(path, manifest.chunks())
    new.publish(stale=[bin_path(output)])
    warn_of_distant(path, [one.prefix for one in shards])
    return manifest


def warn_of_distant(path: str, prefixes: Sequence[str]) -> None:
    """Warn if a manifest names datasets outside its folder, which readers will not trust."""
    if far := [prefix for prefix in prefixes if not is_trusted(path, prefix)]:
        _log.warning(
            "%s lists %s, which is outside its folder, so commands will not open it: write it to a "
            "folder above both, or set %s",
            path,
            far[0],
            trust_setting(far),
        )


def relative_name(output: str, prefix: str) -> str:
    """The name of a dataset in the manifest of ``output``: relative to its folder, if possible."""
    if is_url(output):
        if not is_url(prefix):
            raise UsageError(
                f"{prefix}: is on a disk, and a dataset on a store cannot refer to it: copy it to "
                f"the store, or merge without {option('virtual', True)}"
            )
        return prefix.removeprefix(output.rpartition("/")[0] + "/")
    if is_url(prefix):
        return prefix
    return os.path.relpath(prefix, os.path.dirname(os.path.abspath(output)))


def merged_facts(inputs: Sequence[MergeInput]) -> dict[str, Any]:
    """The facts of several manifests as one: inputs concatenated, counts summed."""
    manifests = [dataset.manifest or _plain_manifest(dataset) for dataset in inputs]
    options = dict(manifests[0].options)
    for manifest in manifests[1:]:  # keep only what is equal in all
        options = {k: v for k, v in options.items() if manifest.options.get(k) == v}
    named = [m.tokenizer for m in manifests if m.tokenizer.get("sha256")]
    tokenizer = dict(named[0] if named else manifests[0].tokenizer)
    if any(m.frame != manifests[0].frame for m in manifests):
        tokenizer.pop("frame", None)  # unknown for some manifests
    return {
        "tokenizer": tokenizer,
        "options": {**options, "merged": [os.path.basename(dataset.name) for dataset in inputs]},
        "inputs": [entry for manifest in manifests for entry in manifest.inputs],
        **summed(manifests),
        "pairs": inputs[0].pairs,
    }


def _plain_manifest(dataset: MergeInput) -> Manifest:
    """A manifest for a dataset without one: nothing is known about its text."""
    documents, tokens, size = (dataset.total(what) for what in ("documents", "tokens", "bin_bytes"))
    return Manifest.new(
        plain_facts(dataset.name, documents, tokens, size),
        dtype=str(dataset.dtype),
        sequences=0,
        tokens=tokens,
        bin=FileDigest(bytes=size, xxh3_128=""),
        idx=FileDigest(bytes=0, xxh3_128=""),
    )

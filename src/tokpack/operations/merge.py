"""Make one dataset of several: their files joined, or only a manifest that lists them."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokpack import __version__
from tokpack.errors import FormatError, UsageError
from tokpack.files.decode import MAX_COUNT
from tokpack.indexed.dataset import MMapIndexedDataset
from tokpack.indexed.digests import FileDigest, checksum_of
from tokpack.indexed.format import bin_path
from tokpack.indexed.manifest import (
    CHOSEN_COUNTS,
    TRACK_DTYPES,
    Manifest,
    facts_of_pieces,
    manifest_path,
    now,
    summed_roles,
)
from tokpack.indexed.new_dataset import JoinedDataset, NewDataset
from tokpack.indexed.new_files import NewFiles, new_datasets
from tokpack.indexed.outputs import dataset_files
from tokpack.indexed.plain import plain_facts
from tokpack.indexed.prefix import prefixes_of
from tokpack.indexed.records import ShardRecord
from tokpack.indexed.shards import check_manifest
from tokpack.indexed.trust import is_trusted, trust_setting
from tokpack.indexed.view import open_files
from tokpack.operations.tables import all_tables, tables_of
from tokpack.progress import ProgressStage, with_bar
from tokpack.stores import is_url, paths_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokpack.operations.tables import Tables
    from tokpack.progress import Show
    from tokpack.stores import Identity
    from tokpack.stores.storage import PathLike

_log = logging.getLogger(__name__)
_COUNTS_AS = {
    "mask": "all of its tokens are trained",
    "weights": "all of its tokens weigh 1",
    "labels": "its tokens are their own labels",
}
_COUNTS = ("records", "documents", "empty", "rejected", "text_bytes")


class InputShard(NamedTuple):
    """One .bin with its .idx, as it was when the command began."""

    record: ShardRecord  # with the full prefix
    identity: Identity
    digest: FileDigest | None  # of the .bin, as its manifest says
    multimodal: bool | None  # None where it has no sequence


@dataclass(frozen=True)
class MergeInput:
    """One dataset that is to be merged, a virtual one as its shards."""

    name: str  # as the user gave it
    dtype: np.dtype[Any]
    shards: list[InputShard]
    manifest: Manifest | None
    pairs: bool  # as the dataset says

    @property
    def is_view(self) -> bool:
        """Whether it lists documents of other datasets."""
        return self.manifest is not None and self.manifest.selection is not None

    def total(self, what: str) -> int:
        """The sum of a number that each shard's record has."""
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
    """Join datasets, in order, into the dataset ``output``, documents and all.

    ``inputs`` are prefixes (or files) of datasets of one dtype and, as far as their manifests tell,
    one tokenizer; every entry of their indices is checked. Their tables of documents are joined
    where all have one. Of tracks it has all that any has: where one is missing, every token counts,
    which is said. ``virtual`` copies nothing and writes
    only ``output``.json, which lists them. ``progress`` is told the bytes of the .bin that are
    written. UsageError where the datasets do not belong together, FormatError where one is broken,
    OutputError where the output is taken or cannot be written.
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
        tell_of_tracks(datasets)
        if virtual:
            _check_no_view(datasets)
            return _write_virtual(datasets, output, new)
        return _write(datasets, output, new, tables, tracks, progress=progress)


def tracks_of(prefixes: Iterable[str]) -> tuple[str, ...]:
    """The tracks that any of some datasets has."""
    manifests = [Manifest.find(prefix) for prefix in prefixes]
    return tuple(
        name for name in TRACK_DTYPES if any(one and name in one.tracks for one in manifests)
    )


def tell_of_tracks(inputs: Sequence[MergeInput]) -> None:
    """Say which datasets have no track that others have, and what becomes of their tokens."""
    shards = [shard.record for dataset in inputs for shard in dataset.shards]
    for name, counts in _COUNTS_AS.items():
        without = [one.prefix for one in shards if one.tokens and name not in one.tracks]
        if 0 < len(without) < len(shards):
            more = f" and {len(without) - 1} more" if len(without) > 1 else ""
            _log.warning("%s%s: has no %s, so %s", without[0], more, name, counts)


def _inspect(prefix: str) -> MergeInput:
    with MMapIndexedDataset(prefix, verify=True) as dataset:
        shards = []
        for shard in dataset.shards():
            manifest = Manifest.find(shard.prefix) if dataset.records else dataset.manifest
            if manifest:
                check_manifest(manifest, shard)
            # The bytes of a view are nowhere, so it has no checksum of them.
            digest = manifest.bin if manifest and dataset.view is None else None
            tracks = manifest.track_sums if manifest else {}
            record = ShardRecord.of(
                shard, shard.prefix, checksum_of(digest) if digest else "", tracks=tracks
            )
            multimodal = shard.index.header.multimodal if len(shard) else None
            shards.append(InputShard(record, shard.identity, digest, multimodal))
        return MergeInput(prefix, dataset.dtype, shards, dataset.manifest, dataset.pairs)


def check_same(inputs: Sequence[MergeInput]) -> None:
    """UsageError for datasets whose ids cannot stand in one, as far as their manifests tell."""
    kinds = {shard.multimodal: dataset.name for dataset in inputs for shard in dataset.shards}
    if True in kinds and False in kinds:
        raise UsageError(
            f"{kinds[True]} is multimodal, with a mode for each sequence, {kinds[False]} is not: "
            "merge each kind for itself"
        )
    in_pairs = {dataset.pairs: dataset.name for dataset in inputs}
    if len(in_pairs) > 1:
        raise UsageError(
            f"{in_pairs[True]} has pairs of a preferred and a rejected answer, which stay "
            f"together, {in_pairs[False]} has none by its manifest: take each kind for itself"
        )
    tokenizers = [(i.name, i.manifest.tokenizer) for i in inputs if i.manifest]
    tokenizers = [(name, tokenizer) for name, tokenizer in tokenizers if tokenizer.get("sha256")]
    for name, tokenizer in tokenizers:
        if tokenizer["sha256"] != tokenizers[0][1]["sha256"]:
            raise UsageError(
                f"{tokenizers[0][0]} was made with the tokenizer {_described(tokenizers[0][1])}, "
                f"{name} with {_described(tokenizer)}: their ids mean "
                "different things; encode one again"
            )
    widest = max((dataset.dtype for dataset in inputs), key=lambda dtype: dtype.itemsize)
    for dataset in inputs:
        if dataset.dtype != widest:
            raise UsageError(
                f"{dataset.name} has ids of {dataset.dtype}, others of {widest}: bring them to one "
                f"dtype with `tokpack convert {dataset.name} NEW --dtype {widest}`"
            )
    framed = [(i.name, i.manifest.frame) for i in inputs if i.manifest and i.manifest.frame]
    for name, frame in framed:
        if frame != framed[0][1]:
            raise UsageError(
                f"{framed[0][0]} has documents between the ids {_sides(framed[0][1])}, {name} "
                f"between {_sides(frame)}: encode one again with the EOD and BOS of the other"
            )
    named = {name for name, _ in tokenizers}
    unknown = [i.name for i in inputs if i.name not in named]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        _log.warning(
            "no manifest tells the tokenizer of %s%s, so it was not checked", unknown[0], more
        )


def _described(tokenizer: dict[str, Any]) -> str:
    name, eod = tokenizer.get("name", "unknown"), tokenizer.get("eod_id")
    return f"{name} ({tokenizer['sha256'][:12]}, EOD {eod})"


def _sides(frame: tuple[list[int], list[int]]) -> str:
    return f"{frame[0]} and {frame[1]}"


def _write(
    inputs: list[MergeInput],
    output: str,
    new: NewFiles,
    tables: Tables | None,
    tracks: Sequence[str],
    *,
    progress: Show | bool | None,
) -> Manifest:
    shards = [shard for dataset in inputs for shard in dataset.shards]
    records = [shard.record for shard in shards]
    stage = ProgressStage(progress, "merge", sum(record.bin_bytes for record in records))
    # A store can join whole objects, but not the documents that a view lists.
    joins = is_url(output) and not any(dataset.is_view for dataset in inputs)
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
    facts = merged_facts(inputs)
    manifest = out.complete(
        inputs[0].dtype,
        lengths,
        doc_idx,
        facts,
        modes,
        tables=lambda binary: all_tables(tables, output, new, binary, facts),
    )
    joined = {bin_path(output): out.ranges} if isinstance(out, JoinedDataset) else {}
    new.publish(joined=joined, on_bytes=stage.add)
    return manifest


def _check_no_view(inputs: list[MergeInput]) -> None:
    for dataset in inputs:
        if dataset.is_view:
            raise UsageError(
                f"{dataset.name} is a view, which a virtual dataset cannot list: leave out "
                "--virtual to write its documents out, or make a view of all with `tokpack select`"
            )


def _write_virtual(inputs: list[MergeInput], output: str, new: NewFiles) -> Manifest:
    prefixes = [shard.record.prefix for dataset in inputs for shard in dataset.shards]
    records = tuple(
        replace(shard.record, prefix=relative_name(output, shard.record.prefix))
        for dataset in inputs
        for shard in dataset.shards
    )
    counts = ("sequences", "tokens")
    totals: dict[str, Any] = {what: sum(one.total(what) for one in inputs) for what in counts}
    for what, total in totals.items():
        if total > MAX_COUNT:
            raise UsageError(f"{total} {what} are more than one dataset can have")
    manifest = Manifest(
        tokpack_version=__version__,
        created=now(),
        dtype=str(inputs[0].dtype),
        trained=merged_trained(inputs),
        **totals,
        **facts_of_pieces(records),
        **merged_facts(inputs),
    )
    path = manifest_path(output)
    new.write(path, manifest.chunks())
    new.publish(stale=[bin_path(output)])
    warn_of_distant(path, prefixes)
    return manifest


def warn_of_distant(path: str, prefixes: Sequence[str]) -> None:
    """Say what to do where a manifest names datasets that are not opened because it does."""
    if far := [prefix for prefix in prefixes if not is_trusted(path, prefix)]:
        _log.warning(
            "%s lists %s, outside of its own folder; so that commands open it, write it to a "
            "folder above both, or set %s",
            path,
            far[0],
            trust_setting(far),
        )


def relative_name(output: str, prefix: str) -> str:
    """How the manifest of ``output`` names a dataset: where it can, from its own folder."""
    if is_url(output):
        if not is_url(prefix):
            raise UsageError(
                f"{prefix}: lies on a disk, where a dataset on a store cannot find it: copy it to "
                "the store, or merge without --virtual"
            )
        return prefix.removeprefix(output.rpartition("/")[0] + "/")
    if is_url(prefix):
        return prefix
    return os.path.relpath(prefix, os.path.dirname(os.path.abspath(output)))


def merged_facts(inputs: Sequence[MergeInput]) -> dict[str, Any]:
    """What the manifests say, put together: inputs one after the other, counts summed."""
    manifests = [dataset.manifest or _plain_manifest(dataset) for dataset in inputs]
    options = dict(manifests[0].options)
    for manifest in manifests[1:]:  # what all agree on
        options = {k: v for k, v in options.items() if manifest.options.get(k) == v}
    named = [m.tokenizer for m in manifests if m.tokenizer.get("sha256")]
    tokenizer = dict(named[0] if named else manifests[0].tokenizer)
    if any(m.frame != manifests[0].frame for m in manifests):
        tokenizer.pop("frame", None)  # of some it is not known
    return {
        "tokenizer": tokenizer,
        "options": {**options, "merged": [os.path.basename(dataset.name) for dataset in inputs]},
        "inputs": [entry for manifest in manifests for entry in manifest.inputs],
        **{
            key: sum(getattr(manifest, key) for manifest in manifests)
            for key in (*_COUNTS, *CHOSEN_COUNTS)
        },
        "roles": summed_roles(manifests) if all(one.roles for one in manifests) else {},
        "pairs": inputs[0].pairs,
    }


def merged_trained(inputs: Sequence[MergeInput]) -> int | None:
    """How many tokens are trained of all; None where no dataset says it of its own."""
    counts = [None if one.manifest is None else one.manifest.trained for one in inputs]
    if all(count is None for count in counts):
        return None
    pairs = zip(inputs, counts, strict=True)
    return sum(one.total("tokens") if count is None else count for one, count in pairs)


def _plain_manifest(dataset: MergeInput) -> Manifest:
    """What can be said of a dataset without a manifest: its text is not known."""
    documents, tokens, size = (dataset.total(what) for what in ("documents", "tokens", "bin_bytes"))
    return Manifest(
        tokpack_version=__version__,
        created=now(),
        dtype=str(dataset.dtype),
        sequences=0,
        tokens=tokens,
        bin=FileDigest(bytes=size, xxh3_128=""),
        idx=FileDigest(bytes=0, xxh3_128=""),
        **plain_facts(dataset.name, documents, tokens, size),
    )

"""Make one dataset of several: their files joined, or only a manifest that lists them."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokpack import __version__
from tokpack.errors import FormatError, UsageError
from tokpack.files.durable import AtomicFiles, make_folder_of
from tokpack.indexed.dataset import MMapIndexedDataset
from tokpack.indexed.format import bin_path
from tokpack.indexed.manifest import FileDigest, Manifest, checksum_of, manifest_path, now
from tokpack.indexed.outputs import dataset_files
from tokpack.indexed.prefix import prefixes_of
from tokpack.indexed.records import MAX_TOTAL, ShardRecord
from tokpack.indexed.shard import open_shard
from tokpack.indexed.trust import is_trusted, trust_setting
from tokpack.operations.output import JoinedDataset, NewDataset
from tokpack.operations.place import OutputPlace, place_of_datasets
from tokpack.progress import ProgressStage
from tokpack.stores import is_url, paths_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokpack.progress import Show
    from tokpack.stores import Identity
    from tokpack.stores.anywhere import PathLike

_log = logging.getLogger(__name__)
_COUNTS = ("records", "documents", "empty", "rejected", "text_bytes")


class _FoundShard(NamedTuple):
    """One .bin with its .idx, as it was found."""

    record: ShardRecord  # with the full prefix
    identity: Identity
    digest: FileDigest | None  # of the .bin, as its manifest says
    multimodal: bool | None  # None where it has no sequence


@dataclass(frozen=True)
class _Input:
    """One dataset that is to be merged, a virtual one taken apart, as it was found."""

    name: str  # as the user gave it
    dtype: np.dtype[Any]
    shards: list[_FoundShard]
    manifest: Manifest | None

    @property
    def records(self) -> list[ShardRecord]:
        return [shard.record for shard in self.shards]

    @property
    def tokens(self) -> int:
        return sum(record.tokens for record in self.records)

    @property
    def bytes(self) -> int:
        return sum(record.bin_bytes for record in self.records)


def merge(
    inputs: PathLike | Iterable[PathLike],
    output: PathLike,
    *,
    virtual: bool = False,
    overwrite: bool = False,
    progress: Show | None = None,
) -> Manifest:
    """Join datasets, in order, into the dataset ``output``, documents and all.

    ``inputs`` are prefixes (or files) of datasets of one dtype and, as far as their manifests tell,
    one tokenizer; every entry of their indices is checked. ``virtual`` copies nothing and writes
    only ``output``.json, which lists them. ``progress`` is told the bytes of the .bin that are
    written. UsageError where the datasets do not belong together, FormatError where one is broken,
    OutputError where the output is taken or cannot be written.
    """
    output = os.fspath(output)
    prefixes = prefixes_of(paths_of(inputs))
    if not prefixes:
        raise UsageError("nothing to merge: name the datasets by their prefixes")
    files = [file for prefix in prefixes for file in dataset_files(prefix)]
    with place_of_datasets([output], files, overwrite=overwrite) as place:
        found = [_inspect(prefix) for prefix in prefixes]
        _check_same(found)
        if virtual:
            return _write_virtual(found, output, place)
        return _write(found, output, place, progress=progress)


def _inspect(prefix: str) -> _Input:
    with MMapIndexedDataset(prefix, verify=True) as dataset:
        manifest = dataset.manifest
        found = _Input(prefix, dataset.dtype, [], manifest)
        for shard in dataset.shards():
            own = Manifest.find(shard.prefix) if dataset.records else manifest
            record = ShardRecord.of(shard, shard.prefix, checksum_of(own.bin) if own else "")
            if own:
                _check_counts(
                    manifest_path(shard.prefix),
                    {"bytes of the .bin": (own.bin["bytes"], record.bin_bytes)},
                )
            digest = own.bin if own else None
            multimodal = shard.index.header.multimodal if len(shard) else None
            found.shards.append(_FoundShard(record, shard.identity, digest, multimodal))
    if manifest:
        _check_manifest(found, manifest)
    return found


def _check_manifest(found: _Input, manifest: Manifest) -> None:
    counts = {
        "dtype": (manifest.dtype, str(found.dtype)),
        "sequences": (manifest.sequences, sum(record.sequences for record in found.records)),
        "tokens": (manifest.tokens, found.tokens),
        "bytes of the .bin": (manifest.bin["bytes"], found.bytes),
    }
    _check_counts(manifest_path(found.name), counts)


def _check_counts(name: str, counts: dict[str, tuple[object, object]]) -> None:
    """FormatError where the manifest ``name`` says another thing than is there."""
    for what, (said, there) in counts.items():
        if said != there:
            raise FormatError(
                f"{name}: {what} is {said}, but the dataset has {there}: they "
                "do not belong together; remove the manifest if the dataset is right"
            )


def _check_same(inputs: list[_Input]) -> None:
    kinds = {shard.multimodal: found.name for found in inputs for shard in found.shards}
    if True in kinds and False in kinds:
        raise UsageError(
            f"{kinds[True]} is multimodal, with a mode for each sequence, {kinds[False]} is not: "
            "merge each kind for itself"
        )
    known = [(i.name, i.manifest.tokenizer) for i in inputs if i.manifest]
    known = [(name, tokenizer) for name, tokenizer in known if tokenizer.get("sha256")]
    for name, tokenizer in known:
        if tokenizer["sha256"] != known[0][1]["sha256"]:
            raise UsageError(
                f"{known[0][0]} was made with the tokenizer {_described(known[0][1])}, {name} with "
                f"{_described(tokenizer)}: their ids mean different things; encode one again"
            )
    widest = max((found.dtype for found in inputs), key=lambda dtype: dtype.itemsize)
    for found in inputs:
        if found.dtype != widest:
            raise UsageError(
                f"{found.name} has ids of {found.dtype}, others of {widest}: bring them to one "
                f"dtype with `tokpack convert {found.name} NEW --dtype {widest}`"
            )
    framed = [(i.name, i.manifest.frame) for i in inputs if i.manifest and i.manifest.frame]
    for name, frame in framed:
        if frame != framed[0][1]:
            raise UsageError(
                f"{framed[0][0]} has documents between the ids {_sides(framed[0][1])}, {name} "
                f"between {_sides(frame)}: encode one again with the EOD and BOS of the other"
            )
    named = {name for name, _ in known}
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
    inputs: list[_Input], output: str, place: OutputPlace, *, progress: Show | None
) -> Manifest:
    shards = [shard for found in inputs for shard in found.shards]
    records = [shard.record for shard in shards]
    stage = ProgressStage(progress, "merge", sum(record.bin_bytes for record in records))
    with AtomicFiles() as staged:
        out = (JoinedDataset if is_url(output) else NewDataset)(place.here(output), staged)
        lengths = out.scratch(sum(record.sequences for record in records), np.int32)
        doc_idx = out.scratch(sum(record.documents for record in records) + 1, np.int64)
        multimodal = any(shard.multimodal for shard in shards)
        modes = out.scratch(len(lengths), np.int8) if multimodal else None
        sequence = document = 0
        for record, identity, digest, _ in shards:
            shard = open_shard(record.prefix)
            if shard.identity != identity:
                raise FormatError(f"{record.prefix}: changed while it was merged; run again")
            lengths[sequence : sequence + record.sequences] = shard.index.lengths
            if modes is not None and shard.index.modes is not None:
                modes[sequence : sequence + record.sequences] = shard.index.modes
            own = doc_idx[document + 1 : document + 1 + record.documents]
            own[:] = shard.index.doc_idx[1:]
            own += sequence
            if isinstance(out, JoinedDataset):
                out.join(shard, digest)
            else:
                out.copy(shard, 0, record.bin_bytes, "merged", stage.add)
            sequence += record.sequences
            document += record.documents
        manifest = out.complete(inputs[0].dtype, lengths, doc_idx, _facts(inputs), modes)
        joined = {bin_path(output): out.ranges} if isinstance(out, JoinedDataset) else {}
        place.commit(staged, joined=joined, told=stage.add)
        return manifest


def _write_virtual(inputs: list[_Input], output: str, place: OutputPlace) -> Manifest:
    records = tuple(
        replace(record, prefix=_beside(output, record.prefix))
        for found in inputs
        for record in found.records
    )
    totals = {what: sum(getattr(r, what) for r in records) for what in ("sequences", "tokens")}
    for what, total in totals.items():
        if total > MAX_TOTAL:
            raise UsageError(f"{total} {what} are more than one dataset can have")
    manifest = Manifest(
        tokpack_version=__version__,
        created=now(),
        dtype=str(inputs[0].dtype),
        bin=FileDigest(bytes=sum(record.bin_bytes for record in records), xxh3_128=""),
        idx=FileDigest(bytes=sum(record.idx_bytes for record in records), xxh3_128=""),
        pieces=records,
        **totals,
        **_facts(inputs),
    )
    path = place.here(manifest_path(output))
    make_folder_of(path)
    with AtomicFiles() as staged:
        staged.write(path, manifest.chunks())
        place.commit(staged, stale=[bin_path(output)])
    _warn_of_far_pieces(manifest_path(output), inputs)
    return manifest


def _warn_of_far_pieces(path: str, inputs: list[_Input]) -> None:
    pieces = [record.prefix for found in inputs for record in found.records]
    far = [piece for piece in pieces if not is_trusted(path, piece)]
    if far:
        _log.warning(
            "%s lists %s, outside of its own folder; so that commands open it, merge to a folder "
            "above both, or set %s",
            path,
            far[0],
            trust_setting(far),
        )


def _beside(output: str, prefix: str) -> str:
    """How the manifest of ``output`` names a dataset: where it can, from its own folder."""
    if is_url(output):
        if not is_url(prefix):
            raise UsageError(
                f"{prefix}: lies on a disk, where a dataset on a store cannot find it: leave out "
                "--virtual, or copy it to the store"
            )
        return prefix.removeprefix(output.rpartition("/")[0] + "/")
    if is_url(prefix):
        return prefix
    return os.path.relpath(prefix, os.path.dirname(os.path.abspath(output)))


def _facts(inputs: list[_Input]) -> dict[str, Any]:
    """What the manifests say, put together: inputs one after the other, counts summed."""
    manifests = [found.manifest or _plain_manifest(found) for found in inputs]
    options = dict(manifests[0].options)
    for manifest in manifests[1:]:  # what all agree on
        options = {k: v for k, v in options.items() if manifest.options.get(k) == v}
    named = [m.tokenizer for m in manifests if m.tokenizer.get("sha256")]
    tokenizer = dict(named[0] if named else manifests[0].tokenizer)
    if any(m.frame != manifests[0].frame for m in manifests):
        tokenizer.pop("frame", None)  # of some it is not known
    return {
        "tokenizer": tokenizer,
        "options": {**options, "merged": [os.path.basename(found.name) for found in inputs]},
        "inputs": [entry for manifest in manifests for entry in manifest.inputs],
        **{key: sum(getattr(manifest, key) for manifest in manifests) for key in _COUNTS},
    }


def _plain_manifest(found: _Input) -> Manifest:
    """What can be said of a dataset without a manifest: its text is not known."""
    documents = sum(record.documents for record in found.records)
    return Manifest(
        tokpack_version=__version__,
        created=now(),
        dtype=str(found.dtype),
        sequences=0,
        tokens=found.tokens,
        bin=FileDigest(bytes=found.bytes, xxh3_128=""),
        idx=FileDigest(bytes=0, xxh3_128=""),
        **plain_facts(found.name, documents, found.tokens, found.bytes),
    )


def plain_facts(name: str, documents: int, tokens: int, size: int) -> dict[str, Any]:
    """The manifest's keys for a dataset of which only the files are known."""
    source = {
        "name": os.path.basename(name),
        "size": size,
        "format": "dataset",
        "records": documents,
        "documents": documents,
        "tokens": tokens,
    }
    return {
        "tokenizer": {},
        "options": {},
        "inputs": [source],
        "records": documents,
        "documents": documents,
        "empty": 0,
        "rejected": 0,
        "text_bytes": 0,
    }

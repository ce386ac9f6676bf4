"""Make one dataset of several: their files joined, or only a manifest that lists them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack import __version__
from tokpack.errors import FormatError, UsageError
from tokpack.files.durable import Staged, cannot_write, make_folder_of
from tokpack.indexed.format import bin_path, idx_path
from tokpack.indexed.manifest import FileDigest, Manifest, is_manifest, manifest_path
from tokpack.indexed.outputs import dataset_files
from tokpack.indexed.reader import MMapIndexedDataset
from tokpack.indexed.virtual import MAX_TOTAL, Piece, measure, parts_of, pieces_json
from tokpack.operations.output import Output, Place, now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    Progress = Callable[[int, int], None]  # bytes done, bytes in all

FINGERPRINT = "sha256"  # of a manifest's tokenizer: over all that decides ids
_COUNTS = ("records", "documents", "empty", "rejected", "text_bytes")
_SUFFIXES = (".bin", ".idx", ".json")


@dataclass(frozen=True)
class _Input:
    """One dataset that is to be merged, a virtual one taken apart, as it was found."""

    name: str  # as the user gave it
    dtype: np.dtype[Any]
    pieces: list[Piece]  # with full prefixes
    manifest: Manifest | None

    @property
    def tokens(self) -> int:
        return sum(piece.tokens for piece in self.pieces)

    @property
    def bytes(self) -> int:
        return sum(piece.bin_bytes for piece in self.pieces)


def prefixes_of(names: Sequence[str]) -> list[str]:
    """Prefixes from names: a dataset given by several of its files, as globs do, counts once."""
    found: dict[str, str] = {}
    prefixes = []
    for name in names:
        stem, suffix = os.path.splitext(name)
        if suffix not in _SUFFIXES or os.path.exists(idx_path(name)):
            stem, suffix = name, ""
        if found.setdefault(stem, suffix) == suffix:  # the same name again is meant
            prefixes.append(stem)
    return prefixes


def manifest_of(prefix: str) -> Manifest | None:
    """The manifest of a dataset; None where it has none. FormatError where it is broken."""
    return Manifest.load(prefix) if is_manifest(manifest_path(prefix)) else None


def merge(
    names: Sequence[str],
    output: str,
    *,
    virtual: bool = False,
    overwrite: bool = False,
    progress: Progress = lambda done, total: None,
    note: Callable[[str], None] = lambda text: None,
) -> Manifest:
    """Join datasets, in order, into the dataset ``output``, documents and all.

    ``names`` are prefixes (or files) of datasets of one dtype and, as far as their manifests tell,
    one tokenizer; every entry of their indices is checked. ``virtual`` copies nothing and writes
    only ``output``.json, which lists them. ``note`` hears what a user may want to know. UsageError
    where they do not belong together, FormatError where one is broken, OutputError where the output
    is taken or cannot be written.
    """
    prefixes = prefixes_of(names)
    if not prefixes:
        raise UsageError("nothing to merge: name the datasets by their prefixes")
    files = [file for prefix in prefixes for file in dataset_files(prefix)]
    place = Place([output], files, overwrite=overwrite)
    inputs = [_inspect(prefix) for prefix in prefixes]
    _check_same(inputs, note)
    if virtual:
        return _write_virtual(inputs, place)
    return _write(inputs, place, progress=progress)


def _inspect(prefix: str) -> _Input:
    with MMapIndexedDataset(prefix, verify=True) as dataset:
        manifest = manifest_of(prefix)
        pieces = []
        for part in parts_of(dataset):
            own = manifest if part is dataset else manifest_of(part.path_prefix)
            digest = own.bin["xxh3_128"] if own else ""
            pieces.append(measure(part, part.path_prefix, digest))
        found = _Input(prefix, dataset.dtype, pieces, manifest)
    if manifest:
        _check_manifest(found, manifest)
    return found


def _check_manifest(found: _Input, manifest: Manifest) -> None:
    counts = {
        "dtype": (manifest.dtype, str(found.dtype)),
        "sequences": (manifest.sequences, sum(piece.sequences for piece in found.pieces)),
        "tokens": (manifest.tokens, found.tokens),
        "bytes of the .bin": (manifest.bin["bytes"], found.bytes),
    }
    for what, (said, there) in counts.items():
        if said != there:
            raise FormatError(
                f"{manifest_path(found.name)}: {what} is {said}, but the dataset has {there}: they "
                "do not belong together; remove the manifest if the dataset is right"
            )


def _check_same(inputs: list[_Input], note: Callable[[str], None]) -> None:
    first = inputs[0]
    for other in inputs:
        if other.dtype != first.dtype:
            raise UsageError(
                f"{first.name} has ids of {first.dtype}, {other.name} of {other.dtype}: bring them "
                f"to one dtype with `tokpack convert {other.name} NEW --dtype {first.dtype}`"
            )
    known = [(i.name, i.manifest.tokenizer) for i in inputs if i.manifest]
    known = [(name, tokenizer) for name, tokenizer in known if tokenizer.get("sha256")]
    for name, tokenizer in known:
        if tokenizer["sha256"] != known[0][1]["sha256"]:
            raise UsageError(
                f"{known[0][0]} was made with the tokenizer {_described(known[0][1])}, {name} with "
                f"{_described(tokenizer)}: their ids mean different things; encode one again"
            )
    named = {name for name, _ in known}
    unknown = [i.name for i in inputs if i.name not in named]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        note(f"no manifest tells the tokenizer of {unknown[0]}{more}, so it was not checked")


def _described(tokenizer: dict[str, Any]) -> str:
    return f"{tokenizer.get('name', 'unknown')} ({tokenizer['sha256'][:12]})"


def _write(inputs: list[_Input], place: Place, *, progress: Progress) -> Manifest:
    pieces = [piece for found in inputs for piece in found.pieces]
    total = sum(piece.bin_bytes for piece in pieces)
    done = 0

    def told(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    with Staged() as staged:
        out = Output(place.prefixes[0], staged)
        lengths = out.scratch(sum(piece.sequences for piece in pieces), np.int32)
        doc_idx = out.scratch(sum(piece.documents for piece in pieces) + 1, np.int64)
        sequence = document = 0
        for piece in pieces:
            with MMapIndexedDataset(piece.prefix) as part:
                if measure(part, piece.prefix, piece.xxh3_128) != piece:
                    raise FormatError(f"{piece.prefix}: changed while it was merged; run again")
                _append(part, lengths, doc_idx, sequence, document)
            out.copy(bin_path(piece.prefix), 0, piece.bin_bytes, told)
            sequence += piece.sequences
            document += piece.documents
        manifest = out.complete(inputs[0].dtype, lengths, doc_idx, _facts(inputs))
        place.commit(staged)
        return manifest


def _append(
    part: MMapIndexedDataset,
    lengths: npt.NDArray[Any],
    doc_idx: npt.NDArray[Any],
    sequence: int,
    document: int,
) -> None:
    sizes, entries = part.sizes, part.doc_idx
    lengths[sequence : sequence + len(sizes)] = sizes
    own = doc_idx[document + 1 : document + len(entries)]
    own[:] = entries[1:]
    own += sequence


def _write_virtual(inputs: list[_Input], place: Place) -> Manifest:
    output = place.prefixes[0]
    folder = os.path.dirname(os.path.abspath(output))
    pieces = [
        Piece(**{**vars(piece), "prefix": os.path.relpath(piece.prefix, folder)})
        for found in inputs
        for piece in found.pieces
    ]
    totals = {what: sum(getattr(p, what) for p in pieces) for what in ("sequences", "tokens")}
    for what, total in totals.items():
        if total > MAX_TOTAL:
            raise UsageError(f"{total} {what} are more than one dataset can have")
    manifest = Manifest(
        tokpack_version=__version__,
        created=now(),
        dtype=str(inputs[0].dtype),
        bin=FileDigest(bytes=sum(piece.bin_bytes for piece in pieces), xxh3_128=""),
        idx=FileDigest(bytes=sum(piece.idx_bytes for piece in pieces), xxh3_128=""),
        **totals,
        **_facts(inputs),
    )
    path = manifest_path(output)
    make_folder_of(path)
    with Staged() as staged:
        file = staged.create(path)
        with cannot_write(path):
            file.write(pieces_json(manifest, pieces).encode())
        place.commit(staged, stale=[bin_path(output)])
    return manifest


def _facts(inputs: list[_Input]) -> dict[str, Any]:
    """What the manifests say, put together: inputs one after the other, counts summed."""
    manifests = [found.manifest or _plain_manifest(found) for found in inputs]
    options = dict(manifests[0].options)
    for manifest in manifests[1:]:  # what all agree on
        options = {k: v for k, v in options.items() if manifest.options.get(k) == v}
    named = [m.tokenizer for m in manifests if m.tokenizer.get("sha256")]
    return {
        "tokenizer": named[0] if named else manifests[0].tokenizer,
        "options": {**options, "merged": [os.path.basename(found.name) for found in inputs]},
        "inputs": [entry for manifest in manifests for entry in manifest.inputs],
        **{key: sum(getattr(manifest, key) for manifest in manifests) for key in _COUNTS},
    }


def _plain_manifest(found: _Input) -> Manifest:
    """What can be said of a dataset without a manifest: its text is not known."""
    documents = sum(piece.documents for piece in found.pieces)
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

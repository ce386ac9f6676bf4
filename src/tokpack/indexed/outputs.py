"""A dataset as what a run reads and what it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.errors import FormatError, InputError
from tokpack.files.outputs import DATA, Kind, Output
from tokpack.indexed.format import bin_path, idx_path
from tokpack.indexed.manifest import MANIFEST, TRACK_DTYPES, Manifest, manifest_path
from tokpack.indexed.selection import is_selection, selection_path
from tokpack.indexed.shards import is_virtual, piece_prefix
from tokpack.indexed.table import dropped_path, is_table, table_path
from tokpack.indexed.track import is_track, own_tracks, track_path
from tokpack.stores import identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TABLE = Kind("a table of documents", is_table, beside=True)
TRACK = Kind("a track of this dataset", is_track, beside=True)
SELECTION = Kind("a selection", is_selection, beside=True)


def dataset_outputs(
    prefix: str, *, tracks: Iterable[str] = (), table: bool = False, selection: bool = False
) -> list[Output]:
    """The files that a new dataset ``prefix`` replaces; it has ``tracks``, with ``table`` tables.

    A track, a table, or the selection of a view, that is there goes even when the new dataset has
    none; a file of that name which is none stays then. With ``selection`` it is a view.
    """
    new = [track_path(prefix, name) for name in tracks]
    beside = [(path, TRACK) for path in dict.fromkeys([*new, *own_tracks(prefix)])]
    paths = (table_path(prefix), dropped_path(prefix))
    tables = [(path, TABLE) for path in paths if table or is_table(path)]
    path = selection_path(prefix)
    tables += [(path, SELECTION)] if selection or is_selection(path) else []
    data = [(bin_path(prefix), DATA), (idx_path(prefix), DATA)]
    return [*beside, *tables, *data, (manifest_path(prefix), MANIFEST)]


def dataset_files(prefix: str) -> list[str]:
    """The files that reading the dataset ``prefix`` may read: also its pieces', its tokenizer's.

    Raises FormatError for a virtual dataset that is broken.
    """
    prefixes = [prefix]
    if is_virtual(prefix):
        pieces = Manifest.load(prefix).pieces or ()
        prefixes += [piece_prefix(prefix, piece) for piece in pieces]
    names = (bin_path, idx_path, manifest_path, table_path, dropped_path, selection_path)
    files = [str(name(one)) for one in prefixes for name in names]
    files += [track_path(one, name) for one in prefixes for name in TRACK_DTYPES]
    return [*files, *(file for one in prefixes for file in _tokenizer_files(one))]


def _tokenizer_files(prefix: str) -> list[str]:
    """The files that the manifest says of its tokenizer."""
    try:
        files = Manifest.load(prefix).tokenizer.get("files") or ()
    except (InputError, FormatError):
        return []
    return [file["path"] for file in files]


def same_data(prefix: str, manifest: Manifest) -> bool:
    """Whether the dataset that is there has the data that ``manifest`` tells of, by its own
    manifest and the sizes of its files. InputError where a store does not answer.
    """
    return describes_same_data(prefix, manifest) and all(
        (one := identity(path)) and one.size == size for path, size in sizes(prefix, manifest)
    )


def describes_same_data(prefix: str, manifest: Manifest) -> bool:
    """Whether the manifest that is there is of the same data, which may have been removed."""
    try:
        there = Manifest.load(prefix)
    except (InputError, FormatError):
        return False
    names = ("bin", "idx", "tracks", "table", "pieces", "selection")
    return all(getattr(there, name) == getattr(manifest, name) for name in names)


def sizes(prefix: str, manifest: Manifest, *, tables: bool = True) -> Iterator[tuple[str, int]]:
    """The files of a dataset, or of its pieces, with the sizes that manifests tell.

    Without ``tables`` those are left out that a dataset can do without. InputError, FormatError
    where the manifest of a piece cannot be read.
    """
    if manifest.selection:
        yield selection_path(prefix), manifest.selection["bytes"]
        return
    if manifest.pieces is not None:
        for record in manifest.pieces:
            piece = piece_prefix(prefix, record)
            yield bin_path(piece), record.bin_bytes
            yield idx_path(piece), record.idx_bytes
            if (its_manifest := Manifest.find(piece)) is not None and its_manifest.pieces is None:
                yield from _beside(piece, its_manifest, tables=tables)
        return
    yield bin_path(prefix), manifest.bin["bytes"]
    yield idx_path(prefix), manifest.idx["bytes"]
    yield from _beside(prefix, manifest, tables=tables)


def _beside(prefix: str, manifest: Manifest, *, tables: bool) -> Iterator[tuple[str, int]]:
    """The tracks and the tables of a dataset, with their sizes."""
    for name, digest in manifest.tracks.items():
        yield track_path(prefix, name), digest["bytes"]
    if tables and manifest.table:
        yield table_path(prefix), manifest.table["bytes"]
    if tables and manifest.dropped:
        yield dropped_path(prefix), manifest.dropped["bytes"]

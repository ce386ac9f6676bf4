"""A dataset as what a run reads and what it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.errors import FormatError, InputError
from tokpack.files.outputs import DATA, Kind, Output
from tokpack.indexed.format import bin_path, idx_path
from tokpack.indexed.manifest import MANIFEST, Manifest, manifest_path
from tokpack.indexed.selection import is_selection, selection_path
from tokpack.indexed.shards import is_virtual, piece_prefix
from tokpack.indexed.table import dropped_path, is_table, table_path
from tokpack.indexed.track import is_track
from tokpack.stores import identity

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = Kind("a table of documents", is_table, beside=True)
TRACK = Kind("a track of this dataset", is_track, beside=True)
SELECTION = Kind("a selection", is_selection, beside=True)


def dataset_outputs(prefix: str, *, table: bool = False, selection: bool = False) -> list[Output]:
    """The files that a new dataset ``prefix`` replaces; with ``table`` it has tables itself.

    A table, or the selection of a view, that is there goes even when the new dataset has none; a
    file of that name which is none stays then. With ``selection`` it is a view.
    """
    paths = (table_path(prefix), dropped_path(prefix))
    tables = [(path, TABLE) for path in paths if table or is_table(path)]
    path = selection_path(prefix)
    tables += [(path, SELECTION)] if selection or is_selection(path) else []
    data = [(bin_path(prefix), DATA), (idx_path(prefix), DATA)]
    return [*tables, *data, (manifest_path(prefix), MANIFEST)]


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
    return [*files, *(file for one in prefixes for file in _tokenizer_files(one))]


def _tokenizer_files(prefix: str) -> list[str]:
    """The files that the manifest says of its tokenizer."""
    try:
        files = Manifest.load(prefix).tokenizer.get("files")
    except (InputError, FormatError):
        return []
    entries = (
        [entry for entry in files if isinstance(entry, dict)] if isinstance(files, list) else []
    )
    return [path for entry in entries if isinstance(path := entry.get("path"), str)]


def same_data(prefix: str, manifest: Manifest) -> bool:
    """Whether the dataset that is there has the data that ``manifest`` tells of, by its own
    manifest and the sizes of its files. InputError where a store does not answer.
    """
    try:
        there = Manifest.load(prefix)
    except (InputError, FormatError):
        return False
    files = [(one.bin, one.idx, one.table, one.pieces, one.selection) for one in (there, manifest)]
    return files[0] == files[1] and _are_there(prefix, there)


def _are_there(prefix: str, manifest: Manifest) -> bool:
    return all(
        (one := identity(path)) and one.size == size for path, size in sizes(prefix, manifest)
    )


def sizes(prefix: str, manifest: Manifest) -> Iterator[tuple[str, int]]:
    """The files of a dataset, or of its pieces, with the sizes that its manifest tells."""
    if manifest.selection:
        yield selection_path(prefix), manifest.selection["bytes"]
        return
    if manifest.pieces is not None:
        for record in manifest.pieces:
            own = piece_prefix(prefix, record)
            yield bin_path(own), record.bin_bytes
            yield idx_path(own), record.idx_bytes
        return
    yield bin_path(prefix), manifest.bin["bytes"]
    yield idx_path(prefix), manifest.idx["bytes"]
    if manifest.table:
        yield table_path(prefix), manifest.table["bytes"]

"""The files of a dataset, as inputs and as outputs of a command."""

from __future__ import annotations

import errno
import logging
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokpack.dataset.format import bin_path, idx_path
from tokpack.dataset.manifest import MANIFEST, TRACK_DTYPES, Manifest, manifest_path
from tokpack.dataset.shards import is_virtual, piece_prefix
from tokpack.dataset.table import dropped_path, is_table, table_path
from tokpack.dataset.track import is_track, own_tracks, track_path
from tokpack.dataset.view import is_selection, selection_path
from tokpack.errors import BusyError, FormatError, InputError, TokpackError, UsageError
from tokpack.quantities import bytes_text
from tokpack.storage import (
    NewObjects,
    Range,
    ScratchFolder,
    check_unchanged,
    check_writable,
    hub_repository,
    identity,
    is_url,
    look,
    remove_left,
    storage_of,
)
from tokpack.storage.disk import (
    BUFFER,
    DATA,
    UNFINISHED,
    AtomicFiles,
    Identity,
    Kind,
    Output,
    cannot_write,
    check_not_inputs,
    make_parent,
    remove_file,
    remove_partial,
    same_file,
    try_flock,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import BinaryIO

    import numpy.typing as npt


TABLE = Kind("a table of documents", is_table, beside=True)
TRACK = Kind("a track of this dataset", is_track, beside=True)
SELECTION = Kind("a selection", is_selection, beside=True)


def dataset_outputs(
    prefix: str, *, tracks: Iterable[str] = (), table: bool = False, selection: bool = False
) -> list[Output]:
    """The outputs of a new dataset ``prefix`` that has ``tracks``, and tables with ``table``.

    An old track, table or selection is replaced even if the new dataset has none; a foreign file
    with such a name stays. With ``selection`` the new dataset is a view. UsageError for a folder.
    """
    if os.path.basename(prefix) in ("", ".", ".."):
        raise UsageError(f"output {prefix!r} is a folder: add a name for the dataset")
    new = [track_path(prefix, name) for name in tracks]
    beside = [(path, TRACK) for path in dict.fromkeys([*new, *own_tracks(prefix)])]
    paths = (table_path(prefix), dropped_path(prefix))
    tables = [(path, TABLE) for path in paths if table or is_table(path)]
    path = selection_path(prefix)
    tables += [(path, SELECTION)] if selection or is_selection(path) else []
    data = [(bin_path(prefix), DATA), (idx_path(prefix), DATA)]
    return [*beside, *tables, *data, (manifest_path(prefix), MANIFEST)]


def dataset_files(prefix: str) -> list[str]:
    """The files that reading a dataset may read, including those of pieces and tokenizers.

    Raises FormatError for a broken virtual dataset.
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
    """The files of the tokenizer that the manifest names."""
    try:
        files = Manifest.load(prefix).tokenizer.get("files") or ()
    except (InputError, FormatError):
        return []
    return [file["path"] for file in files]


def same_data(prefix: str, manifest: Manifest) -> bool:
    """Whether the existing dataset has the data that ``manifest`` describes.

    Its own manifest and file sizes are compared. InputError if a store does not
    answer.
    """
    return describes_same_data(prefix, manifest) and all(
        (one := identity(path)) and one.size == size for path, size in sizes(prefix, manifest)
    )


def describes_same_data(prefix: str, manifest: Manifest) -> bool:
    """Whether the existing manifest describes the same data, which may be gone."""
    try:
        there = Manifest.load(prefix)
    except (InputError, FormatError):
        return False
    names = ("bin", "idx", "tracks", "table", "pieces", "selection")
    return all(getattr(there, name) == getattr(manifest, name) for name in names)


def sizes(prefix: str, manifest: Manifest, *, tables: bool = True) -> Iterator[tuple[str, int]]:
    """The files of a dataset, or of its pieces, with the sizes in their manifests.

    Without ``tables``, files that a dataset does not need are left out. InputError or FormatError
    if the manifest of a piece cannot be read.
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
    """The tracks and tables of a dataset, with their sizes."""
    for name, digest in manifest.tracks.items():
        yield track_path(prefix, name), digest["bytes"]
    if tables and manifest.table:
        yield table_path(prefix), manifest.table["bytes"]
    if tables and manifest.dropped:
        yield dropped_path(prefix), manifest.dropped["bytes"]


# The card of a repository on the hub is its README.md. Each dataset has a section between two
# comments, made from its manifest. Text around the sections stays, and a README.md without any is
# not changed.

_MOST_BYTES = 1 << 20  # of a README.md
_logger = logging.getLogger(__name__)

# Without "viewer: false" the hub would take the manifests, which are JSON, for the data.
_HEAD = """\
---
viewer: false
tags:
- tokpack
- megatron
task_categories:
- text-generation
---

# {name}

Tokens for training language models, in the .bin/.idx format of Megatron-LM, made by tokpack.
Each dataset is a prefix, whose .json has its inputs, options and checksums.

    hf download {repository} --repo-type dataset --local-dir .
"""

_SECTION = """\
<!-- tokpack {prefix} -->
## {prefix}

| | |
|---|---|
| documents | {documents:,} |
| tokens | {tokens:,}, as {dtype} |
| text | {text} |
| tokenizer | {tokenizer}, {kind}, sha256 {sha256} |

    from tokpack import MMapIndexedDataset
    MMapIndexedDataset("{url}")
<!-- /tokpack {prefix} -->
"""


def write_hub_card(url: str, manifest: Manifest) -> None:
    """Describe the dataset ``url`` in the card of its repository, if it is on the hub.

    The dataset does not need it, so errors are only logged.
    """
    repository = hub_repository(url)
    if not repository:
        return
    root, _, inside = url.partition(repository)
    revision, _, prefix = inside.partition("/")
    path = f"{root}{repository}{revision}/README.md"
    storage = storage_of(path)
    try:
        (content,) = storage.contents([path], _MOST_BYTES)
        old = None if content is None else content.decode()
        new = with_section(old, repository, prefix, section(url, prefix, manifest))
        if new != old:
            storage.put(path, new.encode(), "overwrite")
    except (TokpackError, UnicodeDecodeError) as error:
        _logger.warning("%s: %s was not added to the card: %s", path, prefix, error)


def section(url: str, prefix: str, manifest: Manifest) -> str:
    """The section of one dataset in the card."""
    tokenizer = manifest.tokenizer
    name = str(tokenizer.get("name") or "unknown").replace("\\", "/").rpartition("/")[2]
    return _SECTION.format(
        prefix=prefix,
        url=url,
        documents=manifest.documents,
        tokens=manifest.tokens,
        dtype=manifest.dtype,
        text=bytes_text(manifest.text_bytes),
        tokenizer=name,
        kind=tokenizer.get("kind") or tokenizer.get("type") or "of a kind that is not known",
        sha256=tokenizer.get("sha256") or "unknown",
    )


def with_section(card: str | None, repository: str, prefix: str, text: str) -> str:
    """A card with the section ``text``, in place of the former one, or at its end."""
    if card is None:
        name = repository.partition("/")[2]
        return f"{_HEAD.format(name=name, repository=repository)}\n{text}"
    of_it = re.compile(
        rf"<!-- tokpack {re.escape(prefix)} -->.*?<!-- /tokpack {re.escape(prefix)} -->\n?", re.S
    )
    if of_it.search(card):
        return of_it.sub(lambda _: text, card, count=1)
    return f"{card.rstrip()}\n\n{text}" if "<!-- tokpack " in card else card


_SCRATCH_IN_MEMORY = 16 << 20
_NOT_A_LINK = getattr(os, "O_NOFOLLOW", 0)


class NewFiles(AtomicFiles):
    """The files that a command on datasets makes, on a disk or a store: all of them, or none.

    They are checked before and after the work, and ``publish`` gives them their names. ``outputs``
    appear together; the last one completes them. ``stale`` are files of an old output to be removed
    before. ``inputs`` are the files that the command reads. Files for a store are first written to
    a folder on this machine, which is removed at the end. UsageError and OutputError as in
    ``look``; for a store also if nothing can be written. As a context it locks the names: BusyError
    if another run on this machine makes the same files.
    """

    def __init__(
        self,
        outputs: Sequence[Output],
        inputs: Iterable[str],
        *,
        overwrite: bool,
        stale: Sequence[str] = (),
    ) -> None:
        super().__init__()
        read, paths = tuple(inputs), [path for path, _ in outputs]
        if is_url(paths[-1]):
            remove_left(paths[-1], [path for path, kind in outputs if kind is MANIFEST])
        else:
            check_not_inputs(paths, read)
            remove_partial(paths)
        self.joined: dict[str, list[Range]] = {}  # from which a store makes an object, by URL
        self._outputs = outputs
        self._versions = look(outputs, read, overwrite=overwrite)
        self._stale = [path for path in stale if self._versions.get(path)]
        self._folder: ScratchFolder | None = None
        self._last: BinaryIO | None = None  # the last output, locked from the start
        self._lock = -1  # a second descriptor, which keeps it locked until all are renamed
        if is_url(paths[-1]):
            check_writable(paths[-1] + UNFINISHED)
            self._folder = ScratchFolder(paths[-1])

    def __enter__(self) -> Self:
        last = self._outputs[-1][0]
        if not self._folder:
            make_parent(last)
            with cannot_write(last):
                self._last = self._opened(last + UNFINISHED)
                self._lock = os.dup(self._last.fileno())
        return self

    def __exit__(self, *_: object) -> None:
        if self._last is not None:  # unused: remove it like other unfinished files
            self.create(self._outputs[-1][0])
        super().__exit__()
        if self._lock >= 0:
            os.close(self._lock)
        if self._folder:
            self._folder.__exit__()

    def create(self, path: str) -> BinaryIO:
        here = self._here(path)
        make_parent(here)
        return super().create(here)

    def _opened(self, name: str) -> BinaryIO:
        """A new unfinished file, as in ``AtomicFiles``, that stays locked until it is closed.

        The unfinished file is the lock: a second run for the same name fails here, not after hours
        of work. An unlocked one was left by a killed run, or is sealed and about to be renamed by
        its run. So it is removed and never written to: a live run notices the removal when it
        commits.
        """
        if self._last is not None and name == self._outputs[-1][0] + UNFINISHED:
            last, self._last = self._last, None
            return last
        while True:
            is_new = not os.path.lexists(name)
            flags = os.O_CREAT | os.O_EXCL if is_new else 0
            try:
                file = os.open(name, os.O_RDWR | flags | os.O_CLOEXEC | _NOT_A_LINK, 0o666)
            except OSError as error:
                if error.errno == (errno.EEXIST if is_new else errno.ENOENT):
                    continue  # another run was quicker
                if error.errno not in (errno.ELOOP, errno.EACCES):  # a link, or a file of others
                    raise
                return super()._opened(name)
            locked = try_flock(file)
            # It must still have this name: the last run may have renamed it meanwhile.
            if locked and same_file(name) == Identity.of(os.fstat(file))[:2]:
                if is_new:
                    return open(file, "rb+", buffering=BUFFER)
                remove_file(name)
            os.close(file)
            if locked is None:  # the file system has no locks
                return super()._opened(name)
            if not locked:
                raise BusyError(
                    f"another run is making {name.removesuffix(UNFINISHED)}: wait for it, or "
                    "choose another output"
                )

    def scratch(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array of zeros, in memory or, if it is large, in a file without a name."""
        size = count * np.dtype(dtype).itemsize
        if size <= _SCRATCH_IN_MEMORY:
            return np.zeros(count, dtype)
        path = self._here(self._outputs[-1][0])
        make_parent(path)
        with (
            cannot_write(path),
            tempfile.TemporaryFile(dir=os.path.dirname(path) or ".") as file,
        ):
            # Reserve its space first: on a full disk, writing to a map kills the process.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, dtype, "r+", shape=(count,))

    def publish(
        self,
        stale: Sequence[str] = (),
        on_bytes: Callable[[int], None] = lambda size: None,
    ) -> None:
        """Give the files their names, all or none, after removing old ones and ``stale``.

        ``on_bytes`` is called with the number of bytes of each send of a file that is ``joined``.
        """
        if not self._folder:
            check_unchanged(self._versions)
            self.commit([*self._stale, *stale])
            return
        self.commit()
        with NewObjects(self._versions, self._folder.note, self._are_made) as objects:
            for url in [*self._stale, *stale]:
                objects.remove(url)
            outputs = [
                (kind is MANIFEST, url)
                for url, kind in self._outputs
                if url in self.joined or os.path.exists(self._here(url))
            ]
            # Manifests last: a dataset with a manifest counts as complete.
            for is_last, url in sorted(outputs):
                here = self._here(url)
                if is_last:
                    objects.write_last(url, Path(here).read_bytes())
                elif url in self.joined:
                    objects.write(url, self.joined[url], on_bytes)
                else:
                    objects.write(url, [Range.of_file(here)])
            objects.check()
        for prefix, manifest in self._datasets():
            if manifest:
                write_hub_card(prefix, manifest)

    def _here(self, path: str) -> str:
        """The path at which the file is written that will become ``path``."""
        return os.path.join(self._folder.name, os.path.basename(path)) if self._folder else path

    def _are_made(self) -> bool:
        """Whether datasets with the same bytes exist already under these names."""
        datasets = self._datasets()
        return bool(datasets) and all(
            manifest and same_data(one, manifest) for one, manifest in datasets
        )

    def _datasets(self) -> list[tuple[str, Manifest | None]]:
        """The prefix of each new dataset, and the manifest that was written for it."""
        prefixes = [url.removesuffix(".json") for url, kind in self._outputs if kind is MANIFEST]
        return [(one, Manifest.find(self._here(one))) for one in prefixes]


def new_datasets(
    prefixes: Sequence[str],
    inputs: Iterable[str],
    *,
    overwrite: bool,
    views: bool = False,
    tables: bool = False,
    tracks: Iterable[str] = (),
    beside: Sequence[Output] = (),
) -> NewFiles:
    """The new files of datasets, with ``tables`` and ``tracks``, or of ``views``, and those
    ``beside``.

    Old files that would misdescribe a new dataset are removed first; tracks, tables and selections
    only if they really are. Tracks are removed before the manifest, because only it shows that they
    are tracks; then the manifest, before the files that it describes.
    """
    names = (manifest_path, idx_path, table_path, dropped_path, selection_path)
    outputs = [
        output
        for prefix in prefixes
        for output in dataset_outputs(prefix, table=tables, selection=views, tracks=tracks)
    ]
    return NewFiles(
        [*beside, *outputs],
        inputs,
        overwrite=overwrite,
        stale=[
            *(track_path(prefix, name) for prefix in prefixes for name in TRACK_DTYPES),
            *(name(prefix) for prefix in prefixes for name in names),
        ],
    )

"""Exact copies of documents, by the 128-bit hash of their tokens."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.documents.passes import scan_documents
from tokpack.indexed.document_table import DocumentTable
from tokpack.indexed.lengths import document_ends
from tokpack.indexed.table import has_table, token_digests
from tokpack.machine import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tokpack.indexed import MMapIndexedDataset

Int64s = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]

_PART = 1 << 22  # documents sorted at a time, of 24 bytes each


def token_hashes(
    dataset: MMapIndexedDataset,
    out: Keys,
    *,
    ends: Int64s | None = None,
    threads: int,
    on_bytes: Callable[[int], None],
    sums: dict[str, str],
) -> None:
    """Write XXH3-128 of each document's tokens to ``out``, uint64 [documents, 2].

    In [documents, 1] only the upper halves are written.
    They are hashed as int32, little endian, whatever the dtype of the dataset, and read from the
    table of its documents where there is one; else ``ends`` are the tokens before each document,
    which are counted where they are not given. ``on_bytes`` is told how many bytes are done,
    ``sums`` are those of ``scan_documents``.
    """
    width = out.shape[1]
    if has_table(dataset.path_prefix):
        table = DocumentTable(dataset.path_prefix)
        if table.numbers is None:
            _read_hashes(table, out)
        else:
            base = np.empty((table.ends[-1], width), np.uint64)
            _read_hashes(table, base)
            out[:] = base[table.numbers]
        on_bytes(dataset.token_count * dataset.dtype.itemsize)
        return
    if ends is None:
        ends = document_ends(dataset.sizes, dataset.doc_idx)

    def look(first: int, tokens: npt.NDArray[Any], spans: Int64s) -> None:
        out[first : first + len(spans)] = _halves(token_digests(tokens, spans))[:, :width]

    for size, _ in scan_documents(dataset, ends, look, threads=threads, sums=sums):
        on_bytes(size)


def joined_keys(keys: Keys, together: int) -> Keys:
    """A key for so many documents in a row, of theirs: uint64 [documents / together, 2]."""
    data = np.ascontiguousarray(keys).view(np.uint8).ravel()
    ends = np.arange(0, len(data) + 1, 16 * together)
    digests = _core.text_digests(data.data, np.stack([ends[:-1], ends[1:]], axis=1))
    return digests.view(np.uint64)


def equal_documents(keys: Keys, *, threads: int) -> Iterator[Int64s]:
    """Pairs of documents with equal keys, [pairs, 2]: the first of each key and each of the others.

    Keys are of one number or of two, uint64 [documents] or [documents, 2].
    """
    yield from pairs_of_parts(keys, neighbours=False, threads=threads)


def pairs_of_parts(keys: Keys, *, neighbours: bool, threads: int) -> Iterator[Int64s]:
    """``_core.equal_pairs`` of all keys, a share of them at a time in each thread, in order."""
    parts = -(-max(len(keys), 1) // _PART)
    threads = min(threads or usable_cores(), parts)
    with ThreadPoolExecutor(threads) as pool:
        for begin in range(0, parts, threads):
            numbers = range(begin, min(begin + threads, parts))
            yield from pool.map(
                lambda part: _core.equal_pairs(keys, part, parts, neighbours), numbers
            )


def _read_hashes(table: DocumentTable, out: Keys) -> None:
    """Write the hashes of all rows of a table, or of those under a view."""
    at = 0
    for reader in table:
        for column in reader.column("tokens_xxh3"):
            begin, count = 16 * column.offset, 16 * len(column)
            keys = _halves(column.buffers()[1][begin : begin + count])
            out[at : at + len(column)] = keys[:, : out.shape[1]]
            at += len(column)


def _halves(digests: Any) -> npt.NDArray[Any]:
    """The upper and the lower half of each digest: big endian uint64 [n, 2]."""
    return np.frombuffer(digests, ">u8").reshape(-1, 2)

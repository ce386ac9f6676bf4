"""The keys of documents, by which copies are found: hashes of tokens, and of signatures' bands.

They are computed here, or on a cluster by a task for each shard, which keeps them beside it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.dataset import trained_ends
from tokpack.dataset.format import document_ends
from tokpack.dataset.results import (
    NewResult,
    Result,
    Task,
    everywhere,
    listed,
    open_unchanged,
    shard_tasks,
)
from tokpack.dataset.table import OWN, DocumentTable, has_table, token_digests
from tokpack.documents.base import scan_documents, trained_tracks
from tokpack.machine import usable_cores
from tokpack.progress import ProgressStage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tokpack.dataset import MMapIndexedDataset
    from tokpack.documents.base import Base
    from tokpack.progress import Show


Int64s = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]

_PART = 1 << 22  # documents that are sorted at a time, with 24 bytes each, or more
_MOST_PARTS = 64  # each reads all keys


def token_hashes(
    dataset: MMapIndexedDataset,
    out: Keys,
    *,
    threads: int,
    on_bytes: Callable[[int], None],
    sums: dict[str, str],
) -> None:
    """Write XXH3-128 of each document's tokens to ``out``, uint64 [documents, 2].

    If ``out`` is [documents, 1] only the upper halves are written. Tokens are hashed as int32,
    little endian, whatever the dtype of the dataset. The hashes are read from the table of its
    documents, if there is one. ``on_bytes`` is told how many bytes are done, ``sums`` are those of
    ``scan_documents``.
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

    def look(first: int, tokens: npt.NDArray[Any], spans: Int64s) -> None:
        out[first : first + len(spans)] = _halves(token_digests(tokens, spans))[:, :width]

    for _ in scan_documents(dataset, look, on_bytes, threads=threads, sums=sums):
        pass


def pairs_of_parts(keys: Keys, *, neighbours: bool, threads: int) -> Iterator[Int64s]:
    """Pairs of documents with equal keys, [pairs, 2]: the first of each key with each of the
    others, and with ``neighbours`` as ``_core.equal_pairs`` says.

    A key is one number or two: uint64 [documents] or [documents, 2]. Each thread takes a share at a
    time; pairs come in order.
    """
    parts = min(-(-max(len(keys), 1) // _PART), _MOST_PARTS)
    threads = min(threads or usable_cores(), parts)
    with ThreadPoolExecutor(threads) as pool:
        for begin in range(0, parts, threads):
            numbers = range(begin, min(begin + threads, parts))
            yield from pool.map(
                lambda part: _core.equal_pairs(keys, part, parts, neighbours), numbers
            )


def _read_hashes(table: DocumentTable, out: Keys) -> None:
    """Write the hashes in all rows of a table."""
    at = 0
    for reader in table:
        for column in reader.column(f"{OWN}tokens_xxh3"):
            begin, count = 16 * column.offset, 16 * len(column)
            keys = _halves(column.buffers()[1][begin : begin + count])
            out[at : at + len(column)] = keys[:, : out.shape[1]]
            at += len(column)


def _halves(digests: Any) -> npt.NDArray[Any]:
    """The upper and the lower half of each digest: big endian uint64 [n, 2]."""
    return np.frombuffer(digests, ">u8").reshape(-1, 2)


def band_hashes(
    dataset: MMapIndexedDataset,
    chosen: Int64s,
    out: Keys,
    *,
    rules: Mapping[str, Any],
    pairs: bool,
    threads: int,
    on_bytes: Callable[[int], None],
) -> None:
    """Write the hashes of the bands of the documents ``chosen`` to ``out``, uint64 [bands, chosen].

    ``rules`` are those of ``NearRules``. The two of a pair share the rows of a band: each has half
    of them. So pairs meet with the probability that documents do which are as alike, and do not
    meet only because they have the same preferred answer, as many may.
    """
    together = 2 if pairs else 1

    def look(first: int, tokens: Any, spans: Int64s) -> None:
        low, high = np.searchsorted(chosen, (first, first + len(spans)))
        here, into = chosen[low:high], out[:, low:high]
        for i in range(together):
            which = np.flatnonzero(here % 2 == i) if pairs else slice(None)
            rows = max((rules["rows"] + together - 1 - i) // together, 1)
            into[:, which] = _core.band_hashes(
                tokens, spans[here[which] - first], rules["ngram"], rules["bands"], rows
            ).T

    tracks = trained_tracks(dataset) if rules["on"] == "trained" else ()
    for _ in scan_documents(dataset, look, on_bytes, threads=threads, tracks=tracks):
        pass


def have_trained(dataset: MMapIndexedDataset) -> npt.NDArray[np.bool_]:
    """Whether each document has a trained token: bool [documents]."""
    ends, tracks = document_ends(dataset.sizes, dataset.doc_idx), trained_tracks(dataset)
    return np.diff(trained_ends(dataset.shards(), tracks, ends) if tracks else ends) > 0


class KeptKeys:
    """The keys of all documents of a view's datasets, kept beside the shards that these lie in.

    ``rules`` are those of ``NearRules`` that decide the hashes of bands; None: of tokens alone.
    """

    def __init__(self, base: Base, rules: Mapping[str, Any] | None) -> None:
        self._base = base
        asked = None if rules is None else {**rules, "pairs": base.pairs}
        pieces = [(everywhere(record.prefix), record.bin_bytes) for record in base.records]
        self.tasks = shard_tasks("keys", pieces, rules=asked)

    @property
    def are_there(self) -> bool:
        """Whether every shard has its keys."""
        return None not in listed([task.result for task in self.tasks])

    def checksums(self) -> dict[str, str]:
        """Those of .bin files that no manifest tells, by their prefixes; see ``scan_documents``."""
        pairs = zip(self._base.datasets, self._base.inputs, strict=True)
        read = {
            shard.record.prefix
            for one, inner in pairs
            if one.view is None
            for shard in inner.shards
        }
        records = zip(self._base.records, self.tasks, strict=True)
        told = [(record.prefix, Result(task.result).facts["sum"]) for record, task in records]
        return {prefix: checksum for prefix, checksum in told if checksum and prefix in read}

    def column(self, number: int) -> Keys:
        """Number 0 is the hashes of tokens, uint64 [documents, 2], then come those of each band,
        uint64 [documents], and where trained tokens are compared whether there are any.
        """
        base = self._base
        shape = (int(base.starts[-1]), *([] if number else [2]))
        whole = np.empty(shape, np.uint64)
        for place, task in enumerate(self.tasks):
            whole[base.starts[place] : base.starts[place + 1]] = Result(task.result).array(number)
        if not any(dataset.view for dataset in base.datasets) and base.firsts[-1] == len(whole):
            return whole
        numbers = (
            base.numbers(place, np.arange(dataset.documents))
            for place, dataset in enumerate(base.datasets)
        )
        return np.concatenate([whole[some] for some in numbers])


def keys_task(task: Task, threads: int, progress: Show) -> None:
    """Compute the keys of a shard, and keep them."""
    prefix, files, rules = (task.facts[name] for name in ("prefix", "files", "rules"))
    with NewResult(task.result) as new, open_unchanged(prefix, files) as dataset:
        dataset.validate()
        count, sums = dataset.documents, dict[str, str]()
        stage = ProgressStage(progress, "keys", task.size * (1 if rules is None else 2))
        hashes = new.scratch(2 * count, np.uint64).reshape(count, 2)
        token_hashes(dataset, hashes, threads=threads, on_bytes=stage.add, sums=sums)
        arrays = [hashes]
        if rules is not None:
            bands = new.scratch(rules["bands"] * count, np.uint64).reshape(rules["bands"], count)
            band_hashes(
                dataset,
                np.arange(count),
                bands,
                rules=rules,
                pairs=rules["pairs"],
                threads=threads,
                on_bytes=stage.add,
            )
            arrays += [*bands]
            if rules["on"] == "trained":
                arrays.append(have_trained(dataset).astype(np.uint64))
        new.finish({"sum": sums.get(dataset.path_prefix, "")}, arrays)

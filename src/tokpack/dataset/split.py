"""Cut a dataset into datasets of consecutive documents."""

from __future__ import annotations

import itertools
import logging
import os
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.dataset.dataset import MMapIndexedDataset
from tokpack.dataset.format import document_ends
from tokpack.dataset.manifest import checksum_of, is_manifest, manifest_path, plain_facts
from tokpack.dataset.merge import tables_of
from tokpack.dataset.outputs import dataset_files, new_datasets
from tokpack.dataset.writer import NewDataset
from tokpack.errors import UsageError, option
from tokpack.progress import ProgressStage, with_bar

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tokpack.dataset.manifest import FileDigest, Manifest
    from tokpack.dataset.merge import Tables
    from tokpack.dataset.outputs import NewFiles
    from tokpack.progress import Show
    from tokpack.storage import PathLike

SHARE_NAMES = ("train", "valid", "test")

_log = logging.getLogger(__name__)


@with_bar
def split(
    input: PathLike,  # noqa: A002  as it is called on the command line
    output: PathLike,
    *,
    documents: int | None = None,
    tokens: int | None = None,
    parts: int | None = None,
    shares: Sequence[float] | None = None,
    overwrite: bool = False,
    progress: Show | bool | None = None,
) -> list[tuple[str, Manifest]]:
    """Cut a dataset into OUTPUT_00000, OUTPUT_00001, ...; documents, and pairs of them, stay whole.

    Exactly one option says how: at most ``documents`` or ``tokens`` in each (a longer document gets
    a dataset of its own), ``parts`` of similar size in tokens, or ``shares`` of the documents, such
    as (969, 30, 1): three are named OUTPUT_train, _valid and _test, and a share of 0 makes no
    dataset. Returns each prefix with its manifest. Either all datasets appear or none. ``progress``
    is told the written bytes of the .bin. UsageError if a dataset would have no document,
    FormatError if the dataset is broken, OutputError if an output exists.
    """
    prefix, output = os.fspath(input), os.fspath(output)
    _check_request(documents=documents, tokens=tokens, parts=parts, shares=shares)
    with MMapIndexedDataset(prefix, verify=True) as dataset:
        ends = document_ends(dataset.sizes, dataset.doc_idx)
        together, kind = (2, "pairs") if dataset.pairs else (1, "documents")
        cuts = ends[::together]
        count = len(cuts) - 1
        if count == 0:
            raise UsageError(f"{prefix}: has no documents to split")
        if documents is not None:
            if documents < together:
                raise UsageError(
                    f"{prefix}: has pairs of documents: give {option('documents', 2)} or more"
                )
            bounds = [*range(0, count, documents // together), count]
        elif tokens is not None:
            bounds = _by_tokens(cuts, tokens)
        elif parts is not None:
            bounds = _by_parts(cuts, parts, prefix, kind)
        else:
            bounds = _by_shares(shares or (), count, prefix, kind)
        bounds = [together * bound for bound in bounds]
        in_three = shares is not None and len(shares) == len(SHARE_NAMES)
        parted = list(pairwise(bounds))
        suffixes = SHARE_NAMES if in_three else [f"{n:05d}" for n in range(len(parted))]
        outputs = [  # a share of 0 makes none
            (f"{output}_{name}", cut)
            for name, cut in zip(suffixes, parted, strict=True)
            if cut[0] < cut[1]
        ]
        names = [name for name, _ in outputs]
        stage = ProgressStage(progress, "split", int(ends[-1]) * dataset.dtype.itemsize)
        results = []
        files = dataset_files(dataset.path_prefix)
        tables = tables_of([dataset.path_prefix])
        tracks = tuple(dataset.tracks)
        new_files = new_datasets(
            names, files, overwrite=overwrite, tables=tables is not None, tracks=tracks
        )
        with new_files as new:
            for name, cut in outputs:
                out = NewDataset(name, new, tracks)
                part = _write(dataset, out, cut, ends, stage, new=new, tables=tables)
                results.append((name, part))
            new.publish()
    if overwrite and not in_three:
        _tell_of_others(output, len(bounds) - 1)
    return results


def _tell_of_others(output: str, parts: int) -> None:
    """Warn of datasets with higher numbers, probably left by an earlier split."""
    names = (f"{output}_{number:05d}" for number in itertools.count(parts))
    others = list(itertools.takewhile(lambda name: is_manifest(manifest_path(name)), names))
    if others:
        _log.warning(
            "%s%s: probably left by an earlier split into more parts, not part of this one; remove "
            "it if %s_* should not match it",
            others[0],
            f" to {others[-1]}" if len(others) > 1 else "",
            output,
        )


def _check_request(**ways: Any) -> None:
    chosen = {name: value for name, value in ways.items() if value is not None}
    if len(chosen) != 1:
        raise UsageError(
            f"say how to cut, in one way: {option('documents')} N, {option('tokens')} N, "
            f"{option('parts')} K or {option('shares')} A,B,C"
        )
    [(name, value)] = chosen.items()
    if name == "shares":
        if not all(0 <= share < float("inf") for share in value) or not sum(value):
            raise UsageError(f"shares are {value}, expected numbers of 0 or more, not all 0")
    elif value < 1:
        raise UsageError(f"{name} is {value}, expected 1 or more")


def _by_tokens(ends: npt.NDArray[np.int64], most: int) -> list[int]:
    bounds = [0]
    while bounds[-1] < len(ends) - 1:
        begin = bounds[-1]
        end = int(np.searchsorted(ends, ends[begin] + most, side="right")) - 1
        bounds.append(max(end, begin + 1))
    return bounds


def _by_parts(ends: npt.NDArray[np.int64], parts: int, prefix: str, kind: str) -> list[int]:
    count = len(ends) - 1
    if parts > count:
        raise UsageError(f"{prefix}: {count} {kind} cannot fill {parts} datasets")
    bounds = [0]
    for number in range(1, parts):
        goal = int(ends[-1]) * number // parts
        right = int(np.searchsorted(ends, goal))
        left = max(right - 1, 0)
        near = left if goal - ends[left] < ends[right] - goal else right
        # At least one document for this dataset, and one for each of the rest.
        bounds.append(min(max(near, bounds[-1] + 1), count - (parts - number)))
    return [*bounds, count]


def _by_shares(shares: Sequence[float], count: int, prefix: str, kind: str) -> list[int]:
    bounds = [round(sum(shares[:i]) / sum(shares) * count) for i in range(len(shares) + 1)]
    for share, (begin, end) in zip(shares, pairwise(bounds), strict=True):
        if share and begin == end:
            raise UsageError(
                f"{prefix}: the share {share:g} of {sum(shares):g} gives none of {count} {kind}: "
                "choose a larger share, or 0 for no dataset"
            )
    return bounds


def _write(
    dataset: MMapIndexedDataset,
    out: NewDataset,
    documents: tuple[int, int],
    ends: npt.NDArray[np.int64],
    stage: ProgressStage,
    *,
    new: NewFiles,
    tables: Tables | None,
) -> Manifest:
    begin, end = documents
    first, last = int(dataset.doc_idx[begin]), int(dataset.doc_idx[end])
    itemsize = dataset.dtype.itemsize
    start, stop = int(ends[begin]) * itemsize, int(ends[end]) * itemsize
    done = 0
    for shard in dataset.shards():
        size = shard.tokens.nbytes
        low, high = max(start - done, 0), min(stop - done, size)
        if low < high:
            out.copy(shard, low, high, "split", stage.add)
        done += size
    # Say which documents of which dataset: the inputs of a part are unknown.
    size = stop - start
    facts = plain_facts(dataset.path_prefix, end - begin, size // itemsize, size)
    facts["inputs"][0]["first_document"] = begin
    if manifest := dataset.manifest:
        facts["inputs"][0]["checksum"] = checksum_of(manifest.bin)
        options = {**manifest.options, "split": [begin, end]}
        facts |= {"tokenizer": manifest.tokenizer, "options": options, "pairs": dataset.pairs}
    doc_idx = dataset.doc_idx[begin : end + 1] - first
    modes = None if dataset.modes is None else dataset.modes[first:last]
    sizes = dataset.sizes[first:last]

    def rows(binary: FileDigest) -> dict[str, FileDigest]:  # those left out belong to no part
        if tables is None:
            return {}
        return {"table": tables.write(out.prefix, new, binary, documents)}

    return out.complete(dataset.dtype, sizes, doc_idx, facts, modes, tables=rows)

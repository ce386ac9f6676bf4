"""Index files of other programs, under the names that their jobs look for.

A name contains the program's request, mostly as an MD5. The program trusts a file with the right
name: the data, ``add_extra_token`` and ``drop_last`` are not part of any name.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.dataset.outputs import dataset_files
from tokpack.errors import UsageError, option
from tokpack.samples.cache import ChunkedArray
from tokpack.samples.megatron.orders import (
    blend_request,
    build_parts,
    megatron_blend,
    megatron_index_key,
    normalise,
)
from tokpack.samples.orders import OrderInput, flavour_named
from tokpack.samples.settings import PARTS, parse_split, split_bounds
from tokpack.storage.disk import make_parent, write_output

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tokpack.dataset import MMapIndexedDataset
    from tokpack.samples.megatron.orders import IndexKey

CORE = ("megatron", "megatron-0.10", "megatron-0.9", "megatron-0.4")
WRITABLE = (*CORE, "neox", "bigscience", "microsoft")

_OLD_NAMES = {
    "document_index": "doc_idx",
    "sample_index": "sample_idx",
    "shuffle_index": "shuffle_idx",
    "dataset_index": "index",
    "dataset_sample_index": "sample_index",
}


@dataclass(frozen=True, kw_only=True)
class IndexRequest:
    """The request of a program for its datasets.

    ``paths`` are the datasets' prefixes exactly as given to the program; ``weights`` those of its
    blend, or None. ``samples`` are the numbers requested for training, validation and test, None
    for one epoch. ``split`` is its split string. ``tokenizer`` is the ``unique_identifiers`` of
    Megatron-core's tokenizer. ``order`` is the program, one of WRITABLE.
    """

    paths: tuple[str, ...]
    weights: tuple[float, ...] | None
    samples: tuple[int | None, ...]
    seq_length: int
    seed: int
    split: str
    tokenizer: Mapping[str, Any] | None = None
    order: str = "megatron"
    surplus: float = 0.005
    add_extra_token: bool = True
    drop_last: bool = True  # in validation; elsewhere the programs always do so
    fused: bool = False  # build the blend as on ARM processors, see megatron_blend

    def __post_init__(self) -> None:
        if self.order not in WRITABLE:
            raise UsageError(
                f"order {self.order!r}: the names of its files are not known; use one of "
                f"{', '.join(WRITABLE)}"
            )
        if self.order in ("neox", "bigscience") and (self.weights or len(self.paths) > 1):
            raise UsageError(
                f"{self.order} writes no files of blends: name one dataset, without a weight"
            )
        if self.order == "microsoft" and self.weights is None and len(self.paths) > 1:
            raise UsageError("microsoft needs weights for a blend: give each dataset one")
        if self.order in CORE and self.order != "megatron-0.4" and self.tokenizer is None:
            raise UsageError(
                "the names of Megatron-core's files depend on its tokenizer: give its "
                f"unique_identifiers with {option('tokenizer_ids')}; they are in the "
                "description.txt files of your runs"
            )
        if len(self.samples) != len(PARTS):
            raise UsageError(
                "samples must be three numbers, of train, valid and test; None for one epoch"
            )


@dataclass(frozen=True)
class IndexFiles:
    """The files of one dataset or blend; ``entries`` are its samples."""

    name: str
    paths: tuple[str, ...]
    entries: int
    size: int
    seconds: float


def write_index_files(
    folder: str | os.PathLike[str],
    request: IndexRequest,
    datasets: Sequence[MMapIndexedDataset],
    *,
    overwrite: bool = False,
    inputs: Iterable[str] = (),
) -> Iterator[IndexFiles]:
    """Write the files that the program will look for, one dataset or blend at a time.

    ``datasets`` are those of ``request.paths``, opened. ``folder`` is the program's cache folder;
    NeoX and BigScience have none, and look for files beside the dataset, by the last part of its
    name. A file appears whole or not at all, the description last. An existing file with other
    bytes is replaced only with ``overwrite``; inputs, which are the datasets' files and ``inputs``,
    never are. UsageError for a request that leaves nothing, OutputError.
    """
    files = [file for dataset in datasets for file in dataset_files(dataset.path_prefix)]
    read = (*inputs, *files)
    for place, bounds in enumerate(split_bounds(request.split)):
        if bounds is not None:
            yield from _Writer(os.fspath(folder), request, datasets, place, read, overwrite).write()


@dataclass(frozen=True)
class _Writer:
    """Writes the files of one of PARTS, and replaces others as ``write_index_files`` says."""

    _folder: str
    _request: IndexRequest
    _datasets: Sequence[MMapIndexedDataset]
    _place: int  # its number in PARTS
    _inputs: tuple[str, ...]
    _overwrite: bool

    @property
    def _part(self) -> str:
        return PARTS[self._place]

    def write(self) -> Iterator[IndexFiles]:
        """Write the files of one dataset after the other, and then of their blend."""
        request, total = self._request, self._request.samples[self._place]
        if request.weights is None and len(request.paths) == 1:
            yield self._dataset(0, total)[1]
            return
        counts: list[int | None] = [None] * len(request.paths)
        if request.weights is not None:
            if total is None:
                raise UsageError(f"{self._part}: a blend with weights needs a number of samples")
            blend = blend_request(request.weights, total, request.order, surplus=request.surplus)
            counts = [*blend.samples]
        keys = []
        for number, count in enumerate(counts):
            key, files = self._dataset(number, count)
            keys.append(key)
            yield files
        lengths = [key.samples for key in keys]
        if request.weights is not None:
            weights, size = blend.weights.tolist(), blend.size
        else:
            weights, size = lengths, None if total is None else min(total, sum(lengths))
        yield self._blend(keys, counts, weights, size)

    def _dataset(self, number: int, count: int | None) -> tuple[IndexKey, IndexFiles]:
        request, dataset = self._request, self._datasets[number]
        rules = flavour_named(request.order)
        limits = parse_split(request.split, len(dataset), rules.split_rule)[self._place]
        if limits is None:
            raise UsageError(
                f"{request.paths[number]}: split {request.split!r} leaves nothing for "
                f"{self._part}; the program would loop forever"
            )
        length, extra = request.seq_length, int(request.add_extra_token)
        data = OrderInput(dataset.sizes, *limits, length, extra, request.seed, dataset.fingerprint)
        keep_last = self._part == "valid" and not request.drop_last
        key = megatron_index_key(data, count, flavour=request.order, drop_last=not keep_last)
        parts, began = build_parts(key), time.perf_counter()
        if request.order in CORE:
            paths = self._write_core(self._core_key(number, count), parts)
        elif request.order == "microsoft":
            text = self._microsoft_text(number, count, key.epochs)
            paths = self._write_old(_md5(text), parts, text)
        else:
            packing = "_packedpi" if request.order == "neox" else ""
            start = f"{os.path.basename(request.paths[number])}_{self._part}_indexmap_{count}ns"
            start += f"_{length}sl_{request.seed}s{packing}"
            paths = self._write_old(start, parts)
        name = f"{request.paths[number]} {self._part}"
        return key, _index_files(name, paths, key.samples, began)

    def _blend(
        self,
        keys: Sequence[IndexKey],
        counts: Sequence[int | None],
        weights: Sequence[float],
        size: int | None,
    ) -> IndexFiles:
        request, began = self._request, time.perf_counter()
        datasets, samples = megatron_blend(weights, size, request.order, fused=request.fused)
        _check_counts(datasets, [key.samples for key in keys], request)
        arrays = [
            ChunkedArray.of("dataset_index", datasets),
            ChunkedArray.of("dataset_sample_index", samples),
        ]
        if request.order == "microsoft":
            texts = [
                self._microsoft_text(number, count, key.epochs)
                for number, (key, count) in enumerate(zip(keys, counts, strict=True))
            ]
            text = "\n\n".join(["Blendable dataset", "Datasets:\n" + texts[0], *texts[1:], ""])
            text += f"Weights: {normalise(weights)}\nSize: {size}\n"
            paths = self._write_old(_md5(text), arrays, text)
        else:
            key = {
                "class": "BlendedDataset",
                "datasets": [self._core_key(n, count) for n, count in enumerate(counts)],
                "split": self._part,
                "weights": list(weights) if size is None else normalise(weights).tolist(),
                "size": size,
            }
            if request.order in ("megatron-0.10", "megatron-0.9"):
                key["renormalize_blend_weights"] = False
            if request.order == "megatron-0.4":
                del key["split"]
            paths = self._write_core(key, arrays)
        return _index_files(f"blend {self._part}", paths, len(samples), began)

    def _core_key(self, number: int, count: int | None) -> dict[str, Any]:
        """Megatron-core's description of a dataset, in its order."""
        request = self._request
        old = request.order == "megatron-0.4"
        key: dict[str, Any] = {
            "class": "GPTDataset",
            "path_prefix" if old else "dataset_path": request.paths[number],
            "num_samples": count,
            "index_split": self._part,
        }
        shape = {"random_seed": request.seed, "sequence_length": request.seq_length}
        if old:
            return {**key, "split": request.split, **shape}
        return {
            **key,
            **shape,
            "split": request.split,
            "split_matrix": split_bounds(request.split),
            "tokenizer": dict(request.tokenizer or {}),
        }

    def _microsoft_text(self, number: int, count: int | None, epochs: int) -> str:
        request = self._request
        return (
            "GPT Dataset\n\n"
            f"Data prefix {request.paths[number]}\n"
            f"Dataset name {self._part}\n"
            f"Number of samples {count}\n"
            f"Number of epochs {epochs}\n"
            f"Sequence length {request.seq_length}\n"
            f"Random seed {request.seed}\n"
            f"Split {request.split}\n"
        )

    def _write_core(self, key: Mapping[str, Any], parts: Iterable[ChunkedArray]) -> list[str]:
        text = json.dumps(key, indent=4)
        start = f"{_md5(text)}-{key['class']}-{self._part}-"
        files = ((f"{start}{part.name}.npy", part.npy()) for part in parts)
        return self._put(chain(files, [(f"{start}description.txt", [text.encode()])]))

    def _write_old(
        self,
        start: str,
        parts: Iterable[ChunkedArray],
        text: str | None = None,
    ) -> list[str]:
        files = ((f"{start}_{_OLD_NAMES[part.name]}.npy", part.npy()) for part in parts)
        description = [] if text is None else [(f"{start}.dsc", [text.encode()])]
        return self._put(chain(files, description))

    def _put(self, files: Iterable[tuple[str, Iterable[bytes]]]) -> list[str]:
        paths = []
        for name, chunks in files:
            paths.append(os.path.join(self._folder, name))
            make_parent(paths[-1])
            write_output(paths[-1], chunks, self._inputs, overwrite=self._overwrite)
        return paths


def _check_counts(datasets: Any, samples: Sequence[int], request: IndexRequest) -> None:
    """Raise UsageError if a blend needs more of a dataset than it has; the program stops too."""
    taken = np.bincount(datasets, minlength=len(samples)).tolist()
    for path, count, had in zip(request.paths, taken, samples, strict=True):
        if count > had:
            raise UsageError(
                f"{path}: the blend needs {count} samples of it, but it has {had}: raise surplus, "
                f"now {request.surplus}, here and in the program"
            )


def _index_files(name: str, paths: Sequence[str], entries: int, began: float) -> IndexFiles:
    size = sum(os.path.getsize(path) for path in paths)
    return IndexFiles(name, tuple(paths), entries, size, time.perf_counter() - began)


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()

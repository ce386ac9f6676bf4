"""``MMapIndexedDataset``: datasets opened for reading."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from functools import cached_property, partial
from operator import index as as_integer
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from tokpack.dataset.described import DatasetTokenizer
from tokpack.dataset.format import bin_path, idx_path, prefix_of
from tokpack.dataset.manifest import manifest_path
from tokpack.dataset.shards import (
    Shards,
    check_digest,
    fingerprint,
    frozen,
    is_virtual,
    piece_prefix,
)
from tokpack.dataset.table import DocumentTable, has_table
from tokpack.dataset.view import ViewIndex, are_pairs, open_files
from tokpack.display import drawn
from tokpack.errors import FormatError, UsageError
from tokpack.storage import is_file, is_url

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from tokpack.dataset.format import LengthSums
    from tokpack.dataset.manifest import Manifest, ShardRecord
    from tokpack.dataset.shards import Shard


Values = npt.NDArray[Any]


class Sequences(ABC):
    """The sequences and documents of a dataset or of a track, by number.

    Values are one-dimensional read-only arrays of ``dtype``.
    """

    @property
    @abstractmethod
    def path_prefix(self) -> str:
        """The name of the dataset."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values, little endian."""

    @property
    @abstractmethod
    def doc_idx(self) -> npt.NDArray[np.int64]:
        """First sequence of each document, then S: int64 [documents + 1]."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of sequences."""

    @abstractmethod
    def _at(self, number: int) -> Values:
        """Sequence ``number``, in [0, S)."""

    @overload
    def __getitem__(self, idx: SupportsIndex) -> Values: ...
    @overload
    def __getitem__(self, idx: slice) -> list[Values]: ...
    def __getitem__(self, idx: SupportsIndex | slice) -> Values | list[Values]:
        if isinstance(idx, slice):
            return [self._at(number) for number in range(*idx.indices(len(self)))]
        return self._at(self._position(idx))

    def __iter__(self) -> Iterator[Values]:
        return (self._at(number) for number in range(len(self)))

    def get(self, idx: SupportsIndex, offset: int = 0, length: int | None = None) -> Values:
        """``length`` values of sequence ``idx`` from number ``offset`` on; without ``length`` all
        the rest.

        IndexError if they do not lie inside the sequence.
        """
        values = self._at(self._position(idx))
        begin = as_integer(offset)
        end = len(values) if length is None else begin + as_integer(length)
        if not 0 <= begin <= end <= len(values):
            raise IndexError(
                f"{self.path_prefix}: tokens {begin} to {end} of sequence {idx}, "
                f"which has {len(values)} tokens"
            )
        return values[begin:end]

    def document(self, number: int) -> Values:
        """The values of document ``number``, in [0, documents): of all its sequences, joined.

        They are copied only if it has several sequences. IndexError if there is no such document,
        FormatError for a broken index.
        """
        bounds = self.doc_idx
        if not 0 <= number < len(bounds) - 1:
            raise IndexError(f"{self.path_prefix}: document {number} of {len(bounds) - 1}")
        first, last = bounds.item(number), bounds.item(number + 1)
        if not 0 <= first <= last <= len(self):
            raise FormatError(
                f"{self.path_prefix}.idx: document {number} is sequences {first} to {last} "
                f"of {len(self)}"
            )
        if last - first == 1:
            return self[first]
        sequences = self[first:last]
        return np.concatenate(sequences) if sequences else np.empty(0, self.dtype)

    def _position(self, idx: SupportsIndex) -> int:
        number = as_integer(idx)
        count = len(self)
        if not -count <= number < count:
            raise IndexError(f"{self.path_prefix}: sequence {number} of {count}")
        return number % count


class DatasetTrack(Sequences):
    """A track of a dataset: ``track[i]`` has a value for each token of ``dataset[i]``.

    Slices, ``get`` and ``document`` work as for the dataset. In a shard without this track every
    token counts: mask and weight are 1, the label is the token itself.
    """

    def __init__(
        self, dataset: Sequences, dtype: np.dtype[Any], read: Callable[[int], Values]
    ) -> None:
        self._dataset, self._dtype, self._read = dataset, dtype, read

    @property
    def path_prefix(self) -> str:
        """The name of the dataset."""
        return self._dataset.path_prefix

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self._dtype

    @property
    def doc_idx(self) -> npt.NDArray[np.int64]:
        """The ``doc_idx`` of the dataset."""
        return self._dataset.doc_idx

    def __len__(self) -> int:
        return len(self._dataset)

    def _at(self, number: int) -> Values:
        return self._read(number)


Tokens = npt.NDArray[Any]

_log = logging.getLogger(__name__)


class MMapIndexedDataset(Sequences):
    """The sequences of a Megatron dataset, as read-only arrays in the page cache.

    ``path_prefix`` is the dataset's name, with or without ``.bin`` or ``.idx``.
    ``ds[i]`` is sequence i, ``ds[a:b:step]`` a list of sequences, ``ds.get(i, offset, length)`` a
    piece of one: one-dimensional arrays of ``ds.dtype``, not copied, valid as long as they are
    referenced, even after the dataset is closed or deleted.

    Opening takes constant time: it checks the header, the sizes of both files and the ends of the
    index. Every access checks its own entry. ``verify=True``, or ``validate()``, checks all
    entries. A broken file is a FormatError, a missing one an InputError, an index out of range an
    IndexError. The dataset may be used in threads and after a fork; a pickle contains only the
    path. If it is replaced while it is opened, you get the whole old one or the whole new one.

    A virtual dataset (`tokpack merge --virtual`) is opened by its prefix and read like any other.
    Opening takes as long as reading its manifest. Its pieces, the ``shards``, are opened on demand,
    and at most OPEN_SHARDS stay open, besides those with referenced arrays. FormatError names a
    piece that has changed. ``sizes`` and ``doc_idx`` open all pieces once and take 4 bytes per
    sequence and 8 per document; ``tokens`` and ``pointers`` do not exist.

    A dataset on a store, ``s3://bucket/pile``, is read like any other, too: its .idx is copied into
    a cache and mapped; ranges of the .bin are read on demand, into new arrays.
    ``tokens`` does not exist. A .bin that is replaced meanwhile is an InputError.

    Results from a pass over the lengths (``fingerprint``, ``tokens_in``) or from the manifest are
    computed on first use, and kept. ``skip_warmup`` is accepted for users of fairseq, and ignored:
    nothing is ever read ahead.
    """

    def __init__(
        self,
        path_prefix: str | os.PathLike[str],
        skip_warmup: bool = True,
        *,
        verify: bool = False,
    ) -> None:
        self._prefix = prefix_of(path_prefix)
        self._open_shards: Shards | None = open_files(self._prefix)
        if verify:
            self.validate()

    @staticmethod
    def exists(path_prefix: str | os.PathLike[str]) -> bool:
        """Whether both files of the dataset exist, or the manifest of a virtual one."""
        prefix = prefix_of(path_prefix)
        files = is_file(idx_path(prefix)) and is_file(bin_path(prefix))
        return files or is_virtual(prefix)

    def __len__(self) -> int:
        """Number of sequences."""
        return self._shards.sequences

    def __iter__(self) -> Iterator[Tokens]:
        shards = self.shards()  # so that iteration continues after close()
        return (sequence for shard in shards for sequence in shard)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the token ids, little endian."""
        return self._shards.dtype

    @property
    def tokens(self) -> Tokens:
        """All tokens, one sequence after the other: a read-only view of the .bin.

        UsageError if the dataset is virtual, a view, or on a store: there is no single file here.
        """
        tokens = self._only("tokens").tokens
        if not isinstance(tokens, np.ndarray):
            raise UsageError(f"{self._prefix}: its tokens are on a store: read sequences instead")
        return tokens

    @property
    def pointers(self) -> npt.NDArray[np.int64]:
        """First byte of each sequence in the .bin: int64 [S], a read-only view, not aligned.

        UsageError if the dataset is virtual, or a view.
        """
        return self._only("pointers").index.pointers

    @cached_property
    def sizes(self) -> npt.NDArray[np.int32]:
        """Tokens in each sequence: int32 [S], read-only, a view of the file if there is one."""
        only = self._shards.only
        return self._shards.lengths() if only is None else only.index.lengths

    @cached_property
    def doc_idx(self) -> npt.NDArray[np.int64]:
        """First sequence of each document, then S: int64 [documents + 1], read-only.

        It need not be aligned; ``np.require(ds.doc_idx, requirements="A")`` copies if needed.
        """
        only = self._shards.only
        return self._shards.doc_idx() if only is None else only.index.doc_idx

    @cached_property
    def modes(self) -> npt.NDArray[np.int8] | None:
        """Mode of each sequence of a multimodal dataset: int8 [S], read-only; None for text."""
        shards = [shard.index for shard in self.shards() if len(shard)]
        if not any(index.header.multimodal for index in shards):
            return None
        modes = [np.zeros(len(i.lengths), np.int8) if i.modes is None else i.modes for i in shards]
        return modes[0] if len(modes) == 1 else frozen(np.concatenate(modes))

    @property
    def sequence_lengths(self) -> npt.NDArray[np.int32]:
        """Megatron-core's name for ``sizes``."""
        return self.sizes

    @property
    def document_indices(self) -> npt.NDArray[np.int64]:
        """Megatron-core's name for ``doc_idx``."""
        return self.doc_idx

    @property
    def supports_prefetch(self) -> bool:
        """False: the page cache does it."""
        return False

    @property
    def on_store(self) -> bool:
        """Whether some of its tokens are on a store."""
        return is_url(self._prefix) or any(is_url(one.prefix) for one in self.under.records)

    @property
    def path_prefix(self) -> str:
        """The dataset's name, without ``.bin`` and ``.idx``."""
        return self._prefix

    def shards(self) -> Iterator[Shard]:
        """The shards of the dataset in order, each opened on demand."""
        return iter(self._shards)

    def shard(self, number: int) -> Shard:
        """Shard ``number``, opened."""
        return self._shards.open(number)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """First sequence of each shard, then S: int64 [shards + 1]."""
        return self._shards.starts

    @property
    def records(self) -> tuple[ShardRecord, ...]:
        """The records of a virtual dataset's shards in its manifest; () for any other dataset."""
        return self._shards.records

    @property
    def view(self) -> ViewIndex | None:
        """The index of a view, or None for any other dataset."""
        only = self._shards.only
        return only.index if only is not None and isinstance(only.index, ViewIndex) else None

    @property
    def under(self) -> Shards:
        """The shards that have its documents: for a view those of the datasets that it lists."""
        return self._shards if self.view is None else self.view.base

    @property
    def documents(self) -> int:
        """Number of documents; ``table`` has a row for each."""
        only = self._shards.only
        return (len(self.doc_idx) if only is None else only.index.header.entries) - 1

    @property
    def token_count(self) -> int:
        """Number of tokens."""
        return sum(self._shards.token_counts)

    def tokens_in(self, begin: int, end: int) -> int:
        """Number of tokens in the sequences [begin, end), by the index."""
        return self.length_sums.total(begin, end)

    @property
    def length_sums(self) -> LengthSums:
        """Sums of ``sizes`` over any range of sequences."""
        return self._identified[1]

    @property
    def fingerprint(self) -> int:
        """64 bits that identify the documents: by every length, and tokens at three places.

        They do not depend on names, the number of .bin files, or the dtype. FINGERPRINT_VERSION is
        the version of their definition.
        """
        return self._identified[0]

    @cached_property
    def manifest(self) -> Manifest | None:
        """The manifest of the dataset, or None if it has none, or if that file is something else.

        FormatError if it is broken or of a newer version, InputError if it cannot be read, or if
        the dataset was replaced since it was opened.
        """
        shards = self._shards
        if shards.only is None or self.view is not None:
            return shards.manifest
        return shards.only.manifest

    @cached_property
    def pairs(self) -> bool:
        """Whether documents 2i and 2i + 1 are the two answers of one record, by its manifest.

        Earlier versions could separate pairs when they merged, split or selected documents. Their
        datasets have pairs only if the lines in the table, or the numbers of a view, prove it.
        FormatError if the manifest says that there are pairs, but the number of documents is odd.
        """
        manifest = self.manifest
        if manifest is None or not (manifest.pairs or manifest.options.get("pairs")):
            return False
        if manifest.pairs and self.documents % 2:
            raise FormatError(
                f"{manifest_path(self._prefix)}: says pairs, but there are {self.documents} "
                "documents: the files do not belong together"
            )
        if manifest.pairs:
            return True
        records = self.under.records
        if not records:
            return has_table(self._prefix) and DocumentTable(self._prefix).in_pairs
        parts = [MMapIndexedDataset(piece_prefix(self._prefix, record)) for record in records]
        whole = self.view is None or are_pairs(self.view.numbers)
        return whole and all(part.pairs for part in parts)

    def check_pairs(self, what: str) -> None:
        """Raise UsageError if there are no pairs, which ``what`` needs.

        Only warns if no manifest says how the dataset was made, as for those of other programs.
        """
        if self.pairs:
            return
        options = {} if self.manifest is None else self.manifest.options
        if not options:
            _log.warning(
                "%s: no manifest says that it has pairs; documents 2i and 2i + 1 are taken for one",
                self._prefix,
            )
            return
        why = "its manifest says that it has none"
        if options.get("pairs"):
            why = (
                "an earlier version of tokpack made it from pairs, and may have separated them: "
                "make it again from the encoded datasets"
            )
        raise UsageError(
            f"{self._prefix}: {what} needs pairs, as `tokpack encode --chat --pairs` makes them: "
            f"{why}"
        )

    @property
    def tracks(self) -> dict[str, np.dtype[Any]]:
        """The tracks of the dataset and their dtypes: mask, weights, labels, roles."""
        return {} if self.manifest is None else self.manifest.track_dtypes

    def track(self, name: str) -> DatasetTrack:
        """A track, which is read like the dataset itself. UsageError if there is none.

        Reading it raises InputError if its file is missing, FormatError if that does not have one
        value for each token.
        """
        if name not in self.tracks:
            raise UsageError(
                f"{self._prefix}: has no {name}; it has {', '.join(self.tracks) or 'no tracks'}"
            )
        return DatasetTrack(self, self.tracks[name], partial(self._at, track=name))

    @property
    def mask(self) -> DatasetTrack | None:
        """The mask: uint8, 1 for each trained token; None if no track says what is trained."""
        return self.track("mask") if "mask" in self.tracks else None

    @property
    def tokenizer(self) -> DatasetTokenizer | None:
        """The tokenizer that made the dataset: a mapping, with ``encode`` and ``decode``.

        None if there is no manifest.
        """
        return None if self.manifest is None else DatasetTokenizer(self.manifest.tokenizer, self)

    @cached_property
    def spelling(self) -> Any:
        """A ``Spelling`` of the manifest's tokenizer. TokenizerError if it is not found."""
        from tokpack.dataset.spelling import spelling_of

        return spelling_of(self)

    def text(self, number: SupportsIndex) -> str:
        """The text of document ``number``, decoded by the tokenizer that made the dataset.

        Tokens around documents (EOD, BOS) are left out; bytes that are no character become U+FFFD.
        A tokenizer that normalizes may not return every letter of the original. IndexError if there
        is no such document, TokenizerError if the tokenizer is not found.
        """
        count, wanted = self.documents, as_integer(number)
        if not -count <= wanted < count:
            raise IndexError(f"{self._prefix}: document {wanted} of {count}")
        from tokpack.dataset.spelling import document_text

        text = document_text(self, self.spelling, wanted % count)
        return text.decode("utf-8", "replace")

    def table(self, columns: Sequence[str] | None = None) -> Any:
        """A ``pyarrow.Table`` with a row for each document, in order; only ``columns`` are read.

        They are source, line, bytes, tokens, text_xxh3, tokens_xxh3 and the kept ones. A virtual
        dataset has the rows of its shards, a view those of its documents. InputError if there is no
        table, UsageError for an unknown column, FormatError for a table that is broken or of
        another dataset.
        """
        for _ in () if self.view is None else self.view.base:  # raises if one has changed
            pass
        return DocumentTable(self._prefix).read(columns)

    def describe(self) -> dict[str, Any]:
        """The output of `tokpack inspect --json` as a dict: counts, tokenizer, lengths, inputs.

        It reads the whole index. FormatError if an entry of it is broken.
        """
        from tokpack.dataset.overview import describe

        return describe(self)

    def validate(self) -> None:
        """Check every entry of the index, about 5 ns each; FormatError names the first bad one."""
        records = self.records
        for number, shard in enumerate(self.shards()):
            shard.validate()
            if records:
                check_digest(self._prefix, shard, records[number])

    def close(self) -> None:
        """Close the files. Arrays from them stay valid, and keep their file mapped."""
        self._open_shards = None
        for kept in ("sizes", "doc_idx", "_identified", "modes"):
            self.__dict__.pop(kept, None)

    def __enter__(self) -> MMapIndexedDataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[MMapIndexedDataset], tuple[str]]:
        return type(self), (self._prefix,)

    def __repr__(self) -> str:
        if self._open_shards is None:
            return f"MMapIndexedDataset({self._prefix!r}, closed)"
        virtual = self._open_shards.only is None
        pieces = f"{len(self.records)} pieces, " if virtual else ""
        pieces = "view, " if self.view is not None else pieces
        return f"MMapIndexedDataset({self._prefix!r}, {pieces}{len(self)} sequences, {self.dtype})"

    _repr_html_ = drawn

    @property
    def _shards(self) -> Shards:
        if self._open_shards is None:
            raise ValueError(f"{self._prefix}: the dataset is closed")
        return self._open_shards

    def _only(self, what: str) -> Shard:
        only = self._shards.only
        if only is not None and self.view is None:
            return only
        kind = f"virtual dataset, whose {what} lie in {len(self.records)} files"
        if self.view is not None:
            kind = f"view, whose {what} lie in {len(self.view.base.records)} datasets"
        raise UsageError(
            f"{self._prefix}: a {kind}: read sequences, or make one dataset of it with "
            "`tokpack merge`"
        )

    @cached_property
    def _identified(self) -> tuple[int, LengthSums]:
        """The fingerprint and the sums, from one pass over the lengths."""
        return fingerprint(self.sizes, self.token_count, self._shards.tokens_from)

    def _at(self, number: int, track: str | None = None) -> Tokens:
        shards = self._shards
        if shards.only is not None:
            return shards.only.sequence(number, track)
        place = int(np.searchsorted(shards.starts, number, side="right")) - 1
        return shards.open(place).sequence(number - int(shards.starts[place]), track)

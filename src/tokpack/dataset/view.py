"""Views: lists of documents of other datasets, read as if they were one .bin and .idx."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from tokpack.dataset.format import (
    Index,
    IndexHeader,
    LengthSums,
    bin_path,
    by_part,
    counts_up,
    numbers_in,
    sequence_span,
    starts_of,
    storage_dtype,
)
from tokpack.dataset.manifest import TRACK_DTYPES, Manifest, check_size, checksum_of, manifest_path
from tokpack.dataset.mapped import Fetch, LazyTokens, Span, StoredTokens, as_integers, map_file
from tokpack.dataset.shards import (
    Shard,
    Shards,
    check_digest,
    frozen,
    is_virtual,
    only_shard,
    open_shard,
    recorded_shards,
)
from tokpack.dataset.track import FilledTrack
from tokpack.errors import FormatError, InputError
from tokpack.storage import head, identity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.dataset.manifest import FileDigest
    from tokpack.dataset.mapped import Tokens

    Int64s = npt.NDArray[np.int64]


_STEP = 1 << 20  # tokens that are handled at a time


class ViewTokens(LazyTokens):
    """The tokens of a view, one sequence after the other, or their values in a ``track``.

    There is no such array: slices are gathered from the datasets.
    """

    def __init__(self, index: ViewIndex, tokens: int, track: str | None = None) -> None:
        self.dtype = index.header.dtype if track is None else TRACK_DTYPES[track]
        self._index, self._track = index, track
        self._count = tokens

    @property
    def nbytes(self) -> int:
        """Bytes of all tokens."""
        return self._count * self.dtype.itemsize

    def __getitem__(self, which: slice) -> Tokens:
        begin, end, step = which.indices(self._count)
        _ = self._index.lengths  # FormatError if the view does not have so many
        out = np.empty(max(end - begin, 0), self.dtype)
        done = 0
        for rows in self._rows(begin, end):
            ends = np.cumsum(rows[:, 2])
            count = int(ends[-1])
            part = out[done : done + count]
            self._index.gather(rows, ends - rows[:, 2], part, self._track)
            done += count
        return frozen(out[::step])

    def _rows(self, begin: int, end: int) -> Iterator[Int64s]:
        """The rows that contain tokens [begin, end), some at a time."""
        lengths, sums = self._index.lengths, self._index.sums
        sequence = sums.ending_within(begin)
        offset = begin - sums.total(0, sequence)
        while begin < end:
            part = lengths[sequence : sequence + _STEP].astype(np.int64)
            part[0] -= offset
            ends = np.cumsum(part)
            most = min(end - begin, _STEP)
            count = min(int(np.searchsorted(ends, most)) + 1, len(ends))
            rows = np.zeros((count, 3), np.int64)
            rows[:, 0] = np.arange(sequence, sequence + count)
            rows[0, 1] = offset
            rows[:, 2] = np.diff(np.minimum(ends[:count], most), prepend=0)
            yield rows
            begin += int(rows[:, 2].sum())
            sequence += count
            offset = 0
            if left := int(ends[count - 1]) - int(rows[:, 2].sum()):
                sequence -= 1
                offset = int(lengths[sequence]) - left


Numbers = npt.NDArray[np.unsignedinteger[Any]]

MAGIC = b"TOKPSEL\0"
VERSION = 1
_HEADER = struct.Struct("<8sII")  # magic, version, bytes of a number
HEADER_BYTES = _HEADER.size
_ADVICE = "a view is a manifest with its selection: copy both, or select again"


def selection_path(prefix: str) -> str:
    """The path of PREFIX.selection, with the numbers of a view's documents in order."""
    return prefix + ".selection"


def is_selection(path: str) -> bool:
    """Whether a file begins like a selection; False also if it cannot be read."""
    return head(path, len(MAGIC)) == MAGIC


def selection_dtype(documents: int) -> np.dtype[Any]:
    """The dtype in which numbers of so many documents are stored."""
    return np.dtype("<u4") if documents <= 1 << 32 else np.dtype("<u8")


def selection_chunks(numbers: npt.NDArray[Any], documents: int) -> Iterator[bytes]:
    """The bytes of a selection; ``numbers`` are integers [n], each less than ``documents``."""
    dtype = selection_dtype(documents)
    yield _HEADER.pack(MAGIC, VERSION, dtype.itemsize)
    for begin in range(0, len(numbers), _STEP):
        yield numbers[begin : begin + _STEP].astype(dtype).tobytes()


def are_pairs(numbers: npt.NDArray[np.integer[Any]]) -> bool:
    """Whether numbers, integers [n], are pairs: 2i followed by 2i + 1."""
    first, second = numbers[::2], numbers[1::2]
    if len(first) != len(second):
        return False
    return not (first & 1).any() and bool((first + 1 == second).all())


def map_selection(prefix: str, digest: FileDigest, documents: int) -> tuple[bytes, Numbers]:
    """The header and the numbers of a selection, mapped: unsigned integers [documents].

    FormatError if the file does not have the size in the manifest, or has another header;
    InputError if it is missing. The numbers are not read.
    """
    path = selection_path(prefix)
    buffer, _ = map_file(path, advice=_ADVICE)
    size = len(buffer)
    check_size(path, size, digest)
    header = bytes(buffer[:HEADER_BYTES])
    magic, version, width = _HEADER.unpack(header.ljust(HEADER_BYTES, b"\0"))
    if magic != MAGIC:
        raise FormatError(f"{path}: magic is {magic!r}, expected {MAGIC!r}: not a selection")
    if version != VERSION:
        raise FormatError(
            f"{path}: version is {version}, this tokpack knows {VERSION}: upgrade tokpack"
        )
    if width not in (4, 8) or size != HEADER_BYTES + width * documents:
        raise FormatError(
            f"{path}: {size} bytes with {width} for a number, expected {documents} numbers of "
            "4 or 8 bytes, as the manifest says: the files do not belong together"
        )
    return header, np.frombuffer(buffer, np.dtype(f"<u{width}"), documents, HEADER_BYTES)


def open_files(prefix: str) -> Shards:
    """The shards of the dataset ``prefix``, which for a view is itself. InputError, FormatError."""
    if not is_virtual(prefix):
        return only_shard(open_shard(prefix))
    path = manifest_path(prefix)
    # A writer that replaces a view removes its manifest first and writes the new one last. So if
    # the manifest is the same before and after, the files opened in between belong to it.
    while True:
        before = identity(path)
        manifest = Manifest.load(prefix)
        if manifest.selection is None:
            return recorded_shards(prefix, manifest)
        there = identity(path)
        if there is None:
            raise InputError(f"{prefix}: was removed while it was opened")
        header, numbers = map_selection(prefix, manifest.selection, manifest.documents)
        base = recorded_shards(prefix, manifest, check=True)
        index = ViewIndex(prefix, manifest, base, header, numbers)
        shard = ViewShard(prefix, index, ViewTokens(index, manifest.tokens), there)
        if before == identity(path):
            break
    return only_shard(shard, manifest)


class ViewIndex(Index):
    """The index that a view would have if its documents were copied.

    ``numbers``, unsigned integers [D], are its documents, numbered through all datasets in
    ``base``. Results of a pass over the numbers are computed on first use; that also checks the
    numbers and their checksum.
    """

    def __init__(
        self, prefix: str, manifest: Manifest, base: Shards, header: bytes, numbers: Numbers
    ) -> None:
        dtype, entries = storage_dtype(manifest.dtype), len(numbers) + 1
        self.__dict__.update(  # an Index is frozen
            name=selection_path(prefix),
            header=IndexHeader(dtype, manifest.sequences, entries, multimodal=False),
            base=base,
            numbers=numbers,
            _head=header,
            manifest=manifest,
            document_starts=starts_of([record.documents for record in base.records]),
        )

    base: Shards
    numbers: Numbers
    document_starts: Int64s  # first document of each base shard, then their number
    _head: bytes
    manifest: Manifest

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of each sequence: int32 [S]."""
        return self._entries[0]

    @cached_property
    def doc_idx(self) -> Int64s:
        """First sequence of each document, and S at the end: int64 [D + 1]."""
        entries = self._entries[1]
        return frozen(np.arange(len(self.numbers) + 1) if entries is None else entries)

    @property
    def pointers(self) -> Int64s:
        """Bytes before each sequence, if the documents were copied: int64 [S], a new array."""
        lengths = self.lengths.astype(np.int64)
        return (np.cumsum(lengths) - lengths) * self.header.dtype.itemsize

    @property
    def modes(self) -> None:
        """None: a view has only text."""

    @cached_property
    def sums(self) -> LengthSums:
        """Sums of ``lengths``."""
        return LengthSums.of(self.lengths)

    def base_rows(self, rows: Int64s) -> Int64s:
        """Rows (sequence, first token, number of tokens) with the sequence numbers of the base."""
        base_rows = rows.copy()
        base_rows[:, 0] = self.base_sequences(rows[:, 0])
        return base_rows

    def base_sequences(self, sequences: Int64s) -> Int64s:
        """The numbers in the base of some sequences of the view: int64 [n].

        IndexError for a sequence that the view does not have.
        """
        if len(sequences) and int(sequences.min()) < 0:
            raise IndexError(f"sequence {sequences.min()}")
        if self.is_simple:
            return self.numbers[sequences].astype(np.int64)
        documents = np.searchsorted(self.doc_idx, sequences, side="right") - 1
        firsts, _ = self._spans(self.numbers[documents])
        return firsts + sequences - self.doc_idx[documents]

    def gather(self, rows: Int64s, targets: Int64s, out: Tokens, track: str | None = None) -> None:
        """Write the tokens of rows to ``out``, or their values in a track.

        Those of row i are written from ``targets[i]`` on. ``rows``, int64 [n, 3], are (sequence of
        the view, first token, number of tokens). FormatError if the base does not have them.
        """
        base_rows = self.base_rows(rows)
        text = np.empty((1, len(out)), np.int64)
        spans: list[Span] = []
        for number, here, numbers in self._by_shard(base_rows[:, 0], self.base.starts):
            shard, part = self.base.open(number), np.ascontiguousarray(base_rows[here])
            part[:, 0] = numbers
            values = shard.values(track)
            if isinstance(values, LazyTokens):
                for place, begin, count in _spans_of(shard, part, np.arange(len(rows))[here]):
                    if isinstance(values, StoredTokens):
                        spans.append(Span(place, values, begin, count))
                    else:
                        at = targets[place]
                        text[0, at : at + count] = as_integers(values[begin : begin + count])
                continue
            wrong = shard.token_file(track).gather(part, np.ascontiguousarray(targets[here]), text)
            if wrong >= 0:
                sequence_span(shard.index, int(part[wrong, 0]), shard.tokens.nbytes)
                raise FormatError(f"{self.name}: tokens of it are not in {bin_path(shard.prefix)}")
        if spans:
            for row, tokens in Fetch(spans).take():
                text[0, targets[row] : targets[row] + len(tokens)] = as_integers(tokens)
        out[:] = text[0].astype(as_integers(out).dtype).view(out.dtype)

    @cached_property
    def is_simple(self) -> bool:
        """Whether every document of the base is one sequence, so that their numbers are equal."""
        for shard in self.base:
            index = shard.index
            if index.header.sequences != index.header.entries - 1:
                return False
            if not counts_up(index.doc_idx):
                return False
        return True

    @cached_property
    def _entries(self) -> tuple[npt.NDArray[np.int32], Int64s | None]:
        """``lengths`` and ``doc_idx``, from one pass that checks everything; None if ``doc_idx``
        counts up.
        """
        state = xxhash.xxh3_128(self._head)
        doc_idx = None if self.is_simple else np.zeros(len(self.numbers) + 1, np.int64)
        # Counts in the manifest may be wrong, so allocate memory by the numbers themselves.
        parts: list[npt.NDArray[np.int32]] = []
        at = tokens = 0
        for begin in range(0, len(self.numbers), _STEP):
            numbers = self.numbers[begin : begin + _STEP]
            state.update(numbers.data)
            sequences = self._checked(numbers, begin)
            if doc_idx is not None:
                firsts, counts = self._spans(sequences)
                ends = np.cumsum(counts)
                doc_idx[begin + 1 : begin + 1 + len(ends)] = at + ends
                sequences = numbers_in(firsts, counts)
            part = np.empty(len(sequences), np.int32)
            parts.append(part)
            for number, here, in_shard in self._by_shard(sequences, self.base.starts):
                part[here] = self.base.open(number).index.lengths[in_shard]
            if len(part) and int(part.min()) < 0:
                raise FormatError(f"{self.name}: lists a sequence with a negative length")
            at += len(part)
            tokens += int(part.sum(dtype=np.int64))
        recorded = checksum_of(self.manifest.selection or {"bytes": 0})
        if state.hexdigest() != recorded:
            raise FormatError(
                f"{self.name}: xxh3_128 is {state.hexdigest()}, expected {recorded}, as the "
                "manifest says: its bytes have changed; select again"
            )
        if at != self.header.sequences:
            raise self._differs("sequences", at, self.header.sequences)
        if tokens != self.manifest.tokens:
            raise self._differs("tokens", tokens, self.manifest.tokens)
        return frozen(_concatenated(parts)), doc_idx

    def _differs(self, what: str, now: int, then: int) -> FormatError:
        path = manifest_path(self.name.removesuffix(".selection"))
        return FormatError(
            f"{path}: {what} are {then}, but the documents that {self.name} lists have {now}: a "
            "dataset has changed, or the files do not belong together; select again"
        )

    def _checked(self, numbers: Numbers, begin: int) -> Int64s:
        """Numbers of documents from ``begin`` on, as int64. FormatError if the base has no such
        document.
        """
        total = int(self.document_starts[-1])
        if int(numbers.max()) >= total:
            place = int(np.argmax(numbers >= total))
            raise FormatError(
                f"{self.name}: number {begin + place} is document {numbers[place]}, of {total}: "
                "its bytes have changed, or the files do not belong together"
            )
        return numbers.astype(np.int64)

    def _spans(self, documents: npt.NDArray[Any]) -> tuple[Int64s, Int64s]:
        """The first sequence of each document of the base, and its number of sequences.
        FormatError.
        """
        firsts = np.empty(len(documents), np.int64)
        counts = np.empty(len(documents), np.int64)
        numbers = self._checked(documents, 0) if len(documents) else documents.astype(np.int64)
        for number, here, in_shard in self._by_shard(numbers, self.document_starts):
            shard = self.base.open(number)
            first, behind = shard.index.doc_idx[in_shard], shard.index.doc_idx[in_shard + 1]
            wrong = np.flatnonzero((first < 0) | (behind < first) | (behind > len(shard)))
            if len(wrong):
                raise FormatError(
                    f"{shard.index.name}: document {in_shard[wrong[0]]} is sequences "
                    f"{first[wrong[0]]} to {behind[wrong[0]]} of {len(shard)}"
                )
            firsts[here], counts[here] = self.base.starts[number] + first, behind - first
        return firsts, counts

    def _by_shard(self, numbers: Int64s, starts: Int64s) -> Iterator[tuple[int, Int64s, Int64s]]:
        """For each shard with some of ``numbers``: its number, the places of these, and their
        numbers in it.
        """
        if len(numbers) and not starts[0] <= numbers.min() <= numbers.max() < starts[-1]:
            raise FormatError(f"{self.name}: lists what its datasets do not have")
        return by_part(starts, numbers)


@dataclass(frozen=True, eq=False)
class ViewShard(Shard):
    """A view as the only shard of a dataset. ``identity`` is that of its manifest."""

    index: ViewIndex
    tokens: ViewTokens

    def sequence(self, number: int, track: str | None = None) -> Tokens:
        """Sequence ``number``, in [0, S): an array of the dataset that has it, not copied."""
        [sequence] = self.index.base_sequences(np.array([number])).tolist()
        base = self.index.base
        if not 0 <= sequence < base.sequences:
            raise FormatError(
                f"{self.index.name}: sequence {number} of the view is sequence {sequence} of "
                f"{base.sequences}: its bytes have changed; select again"
            )
        place = int(np.searchsorted(base.starts, sequence, side="right")) - 1
        return base.open(place).sequence(sequence - int(base.starts[place]), track)

    @property
    def manifest(self) -> Manifest:
        """The manifest of the view."""
        return self.index.manifest

    def track(self, name: str) -> Tokens | LazyTokens:
        """The values of a track, gathered like the tokens."""
        if name not in self.tracks:
            return FilledTrack(self.tokens, name)
        return ViewTokens(self.index, len(self.tokens), name)

    def validate(self) -> None:
        """Check every entry of the selection, and of the indices of the base. FormatError."""
        base = self.index.base
        for shard, record in zip(base, base.records, strict=True):
            shard.validate()
            check_digest(self.prefix, shard, record)
        _ = self.index.lengths

    @property
    def is_current(self) -> bool:
        """Whether the name of the view still means these files."""
        return identity(manifest_path(self.prefix)) == self.identity


def _concatenated(parts: list[npt.NDArray[np.int32]]) -> npt.NDArray[np.int32]:
    """The parts as one array; each is freed once it is copied, to save memory."""
    whole = np.empty(sum(map(len, parts)), np.int32)
    end = len(whole)
    while parts:
        part = parts.pop()
        whole[end - len(part) : end] = part
        end -= len(part)
    return whole


def numbers_of_view(prefix: str) -> Numbers:
    """The numbers of a view's documents in its datasets. FormatError if any has changed."""
    shard = open_files(prefix).only
    assert isinstance(shard, ViewShard)
    _ = shard.index.lengths  # checks the numbers and their checksum
    return shard.index.numbers


def _spans_of(shard: Shard, rows: Int64s, places: Int64s) -> Iterator[tuple[int, int, int]]:
    """For each row: its place, its first token in the .bin and its number of tokens.
    FormatError.
    """
    for place, (sequence, first, count) in zip(places.tolist(), rows.tolist(), strict=True):
        begin, length = sequence_span(shard.index, sequence, shard.tokens.nbytes)
        if not first + count <= length:
            raise FormatError(f"{shard.index.name}: sequence {sequence} has {length} tokens")
        yield place, begin + first, count

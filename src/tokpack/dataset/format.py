"""The ``.bin/.idx`` format, described in docs/format.md: the only module that knows its bytes.

Nothing in a file is trusted. Sizes are computed with Python integers, which cannot overflow, and
compared with the size of the file before anything after the header is read.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.errors import FormatError, UsageError
from tokpack.storage import exists, is_url, shown
from tokpack.storage.disk import pointer_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


STEP = 1 << 20  # sequences between two sums


@dataclass(frozen=True, eq=False)
class LengthSums:
    """Sums of ``lengths`` (int32 [S]): before every STEP-th of them, and of all at the end.

    So the sum over any range of sequences needs at most two times STEP lengths.
    """

    lengths: npt.NDArray[np.int32]
    before: npt.NDArray[np.int64]

    @classmethod
    def of(
        cls,
        lengths: npt.NDArray[np.int32],
        look: Callable[[npt.NDArray[np.int32]], object] = lambda chunk: None,
    ) -> LengthSums:
        """Read all lengths once, in constant memory; ``look`` is called with STEP of them at a
        time.
        """
        sums = [0]
        for start in range(0, len(lengths), STEP):
            chunk = np.ascontiguousarray(lengths[start : start + STEP], "<i4")
            look(chunk)
            sums.append(sums[-1] + int(chunk.sum(dtype=np.int64)))
            release(lengths)
        return cls(lengths, np.array(sums, np.int64))

    def total(self, begin: int, end: int) -> int:
        """The tokens of the sequences [begin, end)."""
        return self._tokens_before(end) - self._tokens_before(begin) if begin < end else 0

    def ending_within(self, tokens: int) -> int:
        """The number of leading sequences that end within this many tokens."""
        step = int(np.searchsorted(self.before[1:], tokens, side="right"))
        start = min(step * STEP, len(self.lengths))
        ends = np.cumsum(self.lengths[start : start + STEP], dtype=np.int64)
        return start + int(np.searchsorted(ends, tokens - self.before[step], side="right"))

    def _tokens_before(self, number: int) -> int:
        step = number // STEP
        rest = self.lengths[step * STEP : number]
        return int(self.before[step]) + int(rest.sum(dtype=np.int64))


def starts_of(counts: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """The sums of ``counts`` [n] before each, then of all: int64 [n + 1]."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def by_part(
    starts: Sequence[int] | npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]
) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """``numbers`` by part, where a part goes from one of ``starts`` to the next.

    Yields for each part with any: its number, the places of its numbers among all, and these
    counted from its start.
    """
    parts = np.searchsorted(starts, numbers, side="right") - 1
    if len(parts) and parts.min() == parts.max():  # the usual case
        yield int(parts[0]), np.arange(len(parts)), numbers - starts[parts[0]]
        return
    for part in np.unique(parts).tolist():
        here = np.flatnonzero(parts == part)
        yield part, here, numbers[here] - starts[part]


def numbers_in(
    firsts: npt.NDArray[np.int64], counts: npt.NDArray[np.integer[Any]]
) -> npt.NDArray[np.int64]:
    """The numbers in ranges, one range after the other; each has a first number and a count."""
    before = np.cumsum(counts, dtype=np.int64) - counts
    numbers: npt.NDArray[np.int64] = np.repeat(firsts - before, counts)
    numbers += np.arange(len(numbers))
    return numbers


def document_ends(
    lengths: npt.NDArray[np.int32], doc_idx: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Tokens before each document, and of all documents at the end: int64 [documents + 1]."""
    ends = np.zeros(len(doc_idx), np.int64)
    done, at = 0, 0
    for begin in range(0, max(len(lengths), 1), STEP):
        sums = starts_of(lengths[begin : begin + STEP])
        stop = int(np.searchsorted(doc_idx, begin + len(sums) - 1, side="right"))
        inside = doc_idx[at:stop] - begin
        ends[at:stop] = done + sums[inside]
        done += int(sums[-1])
        at = stop
    return ends


def document_lengths(
    lengths: npt.NDArray[np.int32], doc_idx: npt.NDArray[np.int64]
) -> npt.NDArray[np.signedinteger[Any]]:
    """Tokens of each document, [documents]; ``lengths`` itself if each document is one sequence."""
    if len(lengths) == len(doc_idx) - 1 and counts_up(doc_idx):
        return lengths
    return np.diff(document_ends(lengths, doc_idx))


def counts_up(doc_idx: npt.NDArray[np.int64]) -> bool:
    """Whether the entries are 0, 1, 2, ...: each document is one sequence."""
    for begin in range(0, len(doc_idx), STEP):
        part = doc_idx[begin : begin + STEP]
        if not np.array_equal(part, np.arange(begin, begin + len(part))):
            return False
        release(doc_idx)
    return True


def release(array: npt.NDArray[Any]) -> None:
    """Release the memory of a mapped file's pages; they are loaded again on demand."""
    base: Any = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.obj if isinstance(base, memoryview) else base.base
    # Only for read-only maps of files: other memory would lose its content.
    if isinstance(base, mmap.mmap) and memoryview(base).readonly and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED)


MAGIC = b"MMIDIDX\0\0"
VERSION = 1
MAX_LENGTH = 2**31 - 1  # tokens in one sequence: lengths are int32
HEADER_BYTES = 34

_HEADER = struct.Struct("<9sQBQQ")  # magic, version, dtype code, sequences, document entries
_FAIRSEQ_HEADER = struct.Struct("<9sQBQ")  # the same without documents
_LENGTH = np.dtype("<i4")
_MODE = np.dtype("<i1")
_OFFSET = np.dtype("<i8")
_MAX_OFFSET = 2**63 - 1
_CHUNK = 1 << 18  # entries handled at a time: 2 MiB of offsets

DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    8: np.dtype("<u2"),
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
_FLOAT_CODES = (6, 7)
_FOREIGN = {
    b"TNTIDX\0\0": "this is the older 'lazy' or 'cached' format of fairseq and Megatron, which "
    "tokpack does not read; encode the text again, or convert it with that program",
    b"HUFFIDX\0\0": "this is fairseq's Huffman-coded format; encode the text again",
}


def bin_path(prefix: str) -> str:
    """The path of the tokens of the dataset ``prefix``."""
    return prefix + ".bin"


def idx_path(prefix: str) -> str:
    """The path of the index of the dataset ``prefix``."""
    return prefix + ".idx"


def best_fitting_dtype(vocab_size: int | None = None) -> np.dtype[Any]:
    """The dtype that Megatron chooses: uint16 for less than 65500 tokens, else int32."""
    small = vocab_size is not None and vocab_size < 65500
    return np.dtype("<u2") if small else np.dtype("<i4")


def storage_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """``dtype`` as it is stored, little endian. UsageError if the format has no code for it."""
    stored: np.dtype[Any] = np.dtype(dtype).newbyteorder("<")
    if stored not in CODES:
        raise UsageError(
            f"token ids cannot be stored as {np.dtype(dtype)}: "
            f"use one of {', '.join(str(code) for code in CODES)}"
        )
    return stored


@dataclass(frozen=True)
class IndexHeader:
    """The content of the first 34 bytes of an index, checked against the size of the file."""

    dtype: np.dtype[Any]
    sequences: int
    entries: int  # of the document index: documents + 1
    multimodal: bool  # one mode byte per sequence follows


def parse_header(head: bytes, size: int, name: str) -> IndexHeader:
    """Parse the first HEADER_BYTES of the index ``name``, a file of ``size`` bytes."""
    if pointer := pointer_in(bytes(head)):
        raise FormatError(f"{name}: this is {pointer}")
    for magic, advice in _FOREIGN.items():
        if head.startswith(magic):
            raise FormatError(f"{name}: magic is {magic!r}, expected {MAGIC!r}: {advice}")
    if not head.startswith(MAGIC[: len(head)]):
        begin = bytes(head[: len(MAGIC)])
        raise FormatError(f"{name}: magic is {begin!r}, expected {MAGIC!r}: not a dataset index")
    if size < _FAIRSEQ_HEADER.size or len(head) < min(size, HEADER_BYTES):
        raise FormatError(f"{name}: the header is cut off: {size} bytes, expected {HEADER_BYTES}")
    _, version, code, sequences = _FAIRSEQ_HEADER.unpack_from(head)
    if version != VERSION:
        raise FormatError(
            f"{name}: version is {version}, expected {VERSION}: "
            "written by a newer program, or not an index"
        )
    if size == _FAIRSEQ_HEADER.size + 12 * sequences:
        raise FormatError(
            f"{name}: {size} bytes for {sequences} sequences leave no room for a document index: "
            "cut off, or fairseq's format, which tokpack does not read; encode the text again"
        )
    if size < HEADER_BYTES:
        raise FormatError(f"{name}: the header is cut off: {size} bytes, expected {HEADER_BYTES}")
    entries: int = _HEADER.unpack_from(head)[4]
    if code in _FLOAT_CODES:
        raise FormatError(
            f"{name}: dtype code is {code}, a floating-point type: programs disagree whether 6 and "
            "7 mean float32 or float64, and token ids are integers"
        )
    if code not in DTYPES:
        codes = ", ".join(f"{number} {dtype}" for number, dtype in DTYPES.items())
        raise FormatError(f"{name}: dtype code is {code}, expected one of {codes}")
    expected = HEADER_BYTES + 12 * sequences + 8 * entries
    if size not in (expected, expected + sequences):
        raise FormatError(
            f"{name}: file size is {size} bytes, expected {expected} for {sequences} sequences and "
            f"{entries} document entries: {'cut off' if size < expected else 'too long'}, "
            "or the header is wrong"
        )
    if entries == 0:
        raise FormatError(f"{name}: document entries are 0, expected 1 or more")
    return IndexHeader(DTYPES[code], sequences, entries, multimodal=size != expected)


@dataclass(frozen=True)
class Index:
    """The arrays of an index: views of its buffer, not copies, and not aligned.

    lengths   int32 [S]  tokens of each sequence
    pointers  int64 [S]  byte of the .bin where each sequence begins
    doc_idx   int64 [D]  first sequence of each document, and S at the end
    modes     int8 [S]   mode of each sequence; None if the dataset is not multimodal
    """

    name: str
    header: IndexHeader
    lengths: npt.NDArray[np.int32]
    pointers: npt.NDArray[np.int64]
    doc_idx: npt.NDArray[np.int64]
    modes: npt.NDArray[np.int8] | None


def view_index(buffer: bytes | mmap.mmap, header: IndexHeader, name: str) -> Index:
    """The arrays of an index as views of the bytes of the whole file."""
    count = header.sequences
    lengths = np.frombuffer(buffer, _LENGTH, count, HEADER_BYTES)
    pointers = np.frombuffer(buffer, _OFFSET, count, HEADER_BYTES + 4 * count)
    doc_idx = np.frombuffer(buffer, _OFFSET, header.entries, HEADER_BYTES + 12 * count)
    modes = None
    if header.multimodal:
        modes = np.frombuffer(buffer, _MODE, count, HEADER_BYTES + 12 * count + doc_idx.nbytes)
    return Index(name, header, lengths, pointers, doc_idx, modes)


def sequence_span(index: Index, number: int, bin_bytes: int) -> tuple[int, int]:
    """The first token of sequence ``number`` in the .bin, and its length in tokens.

    ``number`` is in [0, S). The span is compared with its neighbour's and with ``bin_bytes``, so
    that a broken index cannot give the bytes of another sequence.
    """
    itemsize = index.header.dtype.itemsize
    begin: int = index.pointers.item(number)
    length: int = index.lengths.item(number)
    following = number + 1
    end: int = index.pointers.item(following) if following < index.header.sequences else bin_bytes
    if length < 0 or begin < 0 or begin % itemsize or end > bin_bytes:
        raise _broken_span(index, number, bin_bytes)
    if begin + length * itemsize != end:
        raise _broken_span(index, number, bin_bytes)
    return begin // itemsize, length


def _broken_span(index: Index, number: int, bin_bytes: int) -> FormatError:
    itemsize = index.header.dtype.itemsize
    begin = index.pointers.item(number)
    length = index.lengths.item(number)
    what = f"{_pointer_fact(index, number)} and length {length}"
    if length < 0:
        return FormatError(f"{what}, expected a length of 0 or more")
    if begin < 0 or begin % itemsize:
        return FormatError(f"{what}, expected a pointer that is a multiple of {itemsize}")
    end = begin + length * itemsize
    if number + 1 < index.header.sequences and end <= bin_bytes:
        following = index.pointers.item(number + 1)
        return FormatError(f"{what} and ends at byte {end}, but the next begins at {following}")
    return FormatError(
        f"{what} and ends at byte {end}, expected {bin_bytes}, the size of the .bin: "
        "the files do not belong together, or one is cut off"
    )


def _pointer_fact(index: Index, number: int) -> str:
    byte = HEADER_BYTES + 4 * index.header.sequences + 8 * number
    pointer = index.pointers.item(number)
    return f"{index.name}: byte {byte}: sequence {number} has pointer {pointer}"


def _entry_fact(index: Index, number: int) -> str:
    byte = HEADER_BYTES + 12 * index.header.sequences + 8 * number
    entry = index.doc_idx.item(number)
    return f"{index.name}: byte {byte}: document entry {number} is {entry}"


def check_ends(index: Index, bin_bytes: int) -> None:
    """Check what needs only constant time: both ends of each array, and the size of the .bin."""
    sequences = index.header.sequences
    first, last = index.doc_idx.item(0), index.doc_idx.item(index.header.entries - 1)
    if first != 0:
        raise FormatError(f"{_entry_fact(index, 0)}, expected 0")
    if last != sequences:
        raise FormatError(
            f"{_entry_fact(index, index.header.entries - 1)}, the last one, expected {sequences}, "
            "the number of sequences: GPT-NeoX forgets documents when it merges; "
            "`tokpack merge` keeps them"
        )
    if sequences == 0:
        if bin_bytes:
            raise FormatError(
                f"{index.name}: 0 sequences, but the .bin has {bin_bytes} bytes, expected 0"
            )
        return
    pointer = index.pointers.item(0)
    if pointer != 0:
        raise FormatError(f"{_pointer_fact(index, 0)}, expected 0")
    itemsize = index.header.dtype.itemsize
    missing = index.header.entries - 1  # one EOD per document
    end = index.pointers.item(sequences - 1) + index.lengths.item(sequences - 1) * itemsize
    if bin_bytes == end + missing * itemsize and missing:
        raise FormatError(
            f"{index.name}: the sequences end at byte {end}, expected {bin_bytes}, the size of the "
            f".bin: one token for each of {missing} documents is left out, as Microsoft's "
            "Megatron-DeepSpeed does with --append-eod: encode the text again"
        )
    sequence_span(index, 0, bin_bytes)
    sequence_span(index, sequences - 1, bin_bytes)


def check_all(index: Index, bin_bytes: int) -> None:
    """Check every entry: lengths, pointers and documents; O(S + D) time, constant memory."""
    check_ends(index, bin_bytes)
    itemsize = index.header.dtype.itemsize
    begin = 0
    for start in range(0, index.header.sequences, _CHUNK):
        lengths = index.lengths[start : start + _CHUNK]
        negative = np.flatnonzero(lengths < 0)
        if negative.size:
            raise _broken_span(index, start + int(negative[0]), bin_bytes)
        expected, begin = _pointers(lengths, itemsize, begin)
        wrong = np.flatnonzero(index.pointers[start : start + _CHUNK] != expected)
        if wrong.size:
            number = start + int(wrong[0])
            raise FormatError(
                f"{_pointer_fact(index, number)}, expected {int(expected[wrong[0]])}, "
                "the bytes of all sequences before it"
            )
        if begin > bin_bytes:  # checked before offsets can overflow 63 bits
            raise _broken_span(index, min(start + _CHUNK, index.header.sequences) - 1, bin_bytes)
        release(index.lengths)
    descent = first_descent(index.doc_idx)
    if descent is not None:
        floor = index.doc_idx.item(descent - 1)
        raise FormatError(f"{_entry_fact(index, descent)}, expected {floor} or more")


def _pointers(
    lengths: npt.NDArray[Any], itemsize: int, begin: int
) -> tuple[npt.NDArray[np.int64], int]:
    """The pointers of some sequences, the first at byte ``begin``, and their end."""
    wide = lengths.astype(np.int64)
    ends = np.cumsum(wide)
    return (ends - wide) * itemsize + begin, begin + int(ends[-1]) * itemsize


def first_descent(doc_idx: npt.NDArray[Any]) -> int | None:
    """The number of the first entry that is less than the one before it, or None."""
    for start in range(0, len(doc_idx), _CHUNK):
        chunk = doc_idx[start : start + _CHUNK + 1]
        descents = np.flatnonzero(chunk[1:] < chunk[:-1])
        if descents.size:
            return start + int(descents[0]) + 1
        release(doc_idx)
    return None


def index_chunks(
    dtype: npt.DTypeLike,
    lengths: npt.NDArray[Any],
    doc_idx: npt.NDArray[Any],
    modes: npt.NDArray[np.int8] | None = None,
) -> Iterator[bytes]:
    """The bytes of the index file, a few MiB at a time.

    ``lengths`` are integers [S], the tokens of each sequence; ``doc_idx`` integers [D], from 0 to S
    and never descending; ``modes`` int8 [S], for a multimodal dataset. UsageError, before the first
    chunk, for anything else.
    """
    stored = storage_dtype(dtype)
    _check_arrays(stored, lengths, doc_idx)
    if modes is not None and (modes.dtype, modes.shape) != (_MODE, lengths.shape):
        raise UsageError(
            f"modes must be one int8 for each of {len(lengths)} sequences, not {modes.dtype} "
            f"{modes.shape}"
        )
    yield _HEADER.pack(MAGIC, VERSION, CODES[stored], len(lengths), len(doc_idx))
    for start in range(0, len(lengths), _CHUNK):
        yield lengths[start : start + _CHUNK].astype(_LENGTH).tobytes()
    begin = 0
    for start in range(0, len(lengths), _CHUNK):
        pointers, begin = _pointers(lengths[start : start + _CHUNK], stored.itemsize, begin)
        yield pointers.astype(_OFFSET, copy=False).tobytes()
    for start in range(0, len(doc_idx), _CHUNK):
        yield doc_idx[start : start + _CHUNK].astype(_OFFSET).tobytes()
    if modes is not None:
        yield modes.tobytes()


def _check_arrays(
    dtype: np.dtype[Any], lengths: npt.NDArray[Any], doc_idx: npt.NDArray[Any]
) -> None:
    for what, array in (("lengths", lengths), ("doc_idx", doc_idx)):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise UsageError(
                f"{what} must be integers in one dimension, not {array.dtype} {array.shape}"
            )
    if len(lengths):
        for number in (int(lengths.argmin()), int(lengths.argmax())):
            length = int(lengths[number])
            if not 0 <= length <= MAX_LENGTH:
                raise UsageError(f"sequence {number} has {length} tokens, not 0 to {MAX_LENGTH}")
        end = int(lengths.sum(dtype=np.int64)) * dtype.itemsize
        if not 0 <= end <= _MAX_OFFSET:
            raise UsageError(f"the sequences have {end} bytes, more than {_MAX_OFFSET}")
    if not len(doc_idx) or doc_idx[0] != 0 or doc_idx[-1] != len(lengths):
        ends = [int(entry) for entry in (*doc_idx[:1], *doc_idx[-1:])]
        raise UsageError(f"doc_idx must go from 0 to {len(lengths)}, its ends are {ends}")
    descent = first_descent(doc_idx)
    if descent is not None:
        raise UsageError(f"doc_idx descends at entry {descent}")


SUFFIXES = (
    ".bin",
    ".idx",
    ".json",
    ".selection",
    ".docs.parquet",
    ".dropped.parquet",
    ".mask",
    ".weights",
    ".labels",
)


def prefix_of(name: str | os.PathLike[str]) -> str:
    """The prefix of a dataset, from the prefix itself or the name of one of its files.

    UsageError for a URL with a password or a query: these are for one file only, and messages must
    not show them.
    """
    prefix = os.fsdecode(name)
    if is_url(prefix) and shown(prefix) != prefix:
        raise UsageError(
            f"{shown(prefix)}: a dataset is several objects: its URL takes no password and no query"
        )
    suffix = next((suffix for suffix in SUFFIXES if prefix.endswith(suffix)), "")
    stem = prefix.removesuffix(suffix)
    if not suffix or not os.path.basename(stem) or _has(prefix, ".bin", ".idx"):
        return prefix
    virtual = _has(prefix, ".json") and not _has(stem, ".bin", ".idx", ".json")
    return prefix if virtual else stem


def prefixes_of(names: Sequence[str]) -> list[str]:
    """Prefixes from names; a dataset named by several of its files, as by a glob, counts once."""
    suffixes: dict[str, str] = {}
    prefixes = []
    for name in names:
        prefix = prefix_of(name)
        suffix = name.removeprefix(prefix)
        if suffixes.setdefault(prefix, suffix) == suffix:  # the same name twice counts twice
            prefixes.append(prefix)
    return prefixes


def _has(prefix: str, *suffixes: str) -> bool:
    return any(exists(prefix + suffix) for suffix in suffixes)

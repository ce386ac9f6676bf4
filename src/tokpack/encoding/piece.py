"""What a run works on: parts, and the pieces that they become.

A part becomes one piece, a stream becomes one for each segment. A piece is a set of raw streams,
its *tracks*. For each key: token ids; tokens of each sequence (int32); sequences of each document
(int32), unless always one; for a table of documents, its rows (``table.ROW``), the lines of
documents without tokens (int64, counted as in Documents) and kept values as Arrow streams
(``kept``); and values for each token, for the tracks of the dataset (``dataset.track``). For all
keys together: the bad records, as JSON lines.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokpack.counts import OF_RECORDS
from tokpack.encoding.kept import KINDS
from tokpack.encoding.makers import SAID_COLUMNS
from tokpack.encoding.plan import RANGES
from tokpack.sources import block_checksums, line_base

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from tokpack.encoding.folder import WorkFolder
    from tokpack.encoding.options import EncodeOptions
    from tokpack.encoding.plan import Plan
    from tokpack.encoding.setup import TokenizerSetup
    from tokpack.sources import Columns, Part, Source

REJECTS = "rejects"  # the last track

# The columns of counts: those of a source, then those of each key.
SOURCE_COLUMNS = (
    *("records", "lines", "rejected", "bytes_read", "text_bytes"),
    *OF_RECORDS,
    *SAID_COLUMNS,
)
RECORDS, LINES, REJECTED = range(3)  # the first of SOURCE_COLUMNS
# documents with a token, sequences, tokens, documents without, special tokens found in documents,
# and UTF-8 bytes of documents as read; behind them for each kept column values of each of KINDS.
KEY_COLUMNS = ("documents", "sequences", "tokens", "empty", "special", "key_bytes")

JOINED = "joined"  # where all pieces end up; with a number, if there are several files
SPILL = "spill-"  # where a piece waits, followed by its part and segment
_SPILL_NAME = re.compile(rf"{SPILL}[0-9]+-[0-9]+")

PieceId = tuple[int, int]  # (part, segment)


def joined_names(files: int) -> tuple[str, ...]:
    """The names of the joined files of a run with ``files`` .bin files."""
    return (JOINED,) if files == 1 else tuple(f"{JOINED}-{number}" for number in range(files))


@dataclass(frozen=True)
class Job:
    """What workers need to know about a run; picklable."""

    folder: WorkFolder
    sources: tuple[Source, ...]
    parts: tuple[Part, ...]
    setup: TokenizerSetup
    options: EncodeOptions
    files: tuple[int, ...] = (0,)  # the first part of each .bin file
    name: str = JOINED  # the name of a single joined file in the work folder
    types: Mapping[str, Any] | None = None  # of columns other than texts
    chat: Mapping[str, Any] | None = None  # the plan's entries for conversations

    def file_of(self, number: int) -> int:
        """The number of the joined file that a part belongs to."""
        return bisect_right(self.files, number) - 1

    @functools.cached_property
    def joined(self) -> tuple[str, ...]:
        """The names of the joined files in the work folder, without the tracks' names."""
        count = len(self.files)
        return (self.name,) if count == 1 else joined_names(count)

    def path(self, track: str) -> str:
        """The path of a track of the one joined file."""
        return self.folder(f"{self.name}.{track}")

    def file(self, number: int, plan: Plan) -> Job:
        """The job of file ``number`` alone, with ``plan`` as the plan of that file."""
        if len(self.files) == 1:
            return self
        name = self.joined[number]
        return replace(self, sources=plan.sources, parts=plan.parts, files=(0,), name=name)

    @functools.cached_property
    def columns_read(self) -> Columns:
        """The columns that are read, besides texts or instead of them."""
        if self.types is None and not self.options.chat:
            return tuple(self.options.kept.values())
        from tokpack.encoding.columns import columns_read

        return columns_read(self.options, self.types)

    @property
    def has_document_track(self) -> bool:
        """Whether a document can be other than exactly one sequence."""
        return self.options.split_sentences or self.options.empty == "document"

    @functools.cached_property
    def tracks(self) -> tuple[str, ...]:
        """The names of the raw streams of a piece: key by key, then the bad records."""
        kinds = ["ids", "lengths"]
        if self.has_document_track:
            kinds.append("documents")
        if self.options.has_table:
            kinds += ["rows", "empties"]
        if self.options.kept:
            kinds.append("kept")
        kinds += self.options.token_tracks
        keys = self.options.keys
        return (*(self.folder.track(key, kind) for key in keys for kind in kinds), REJECTS)

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the counts for each source of a piece."""
        of_key = KEY_COLUMNS + KINDS * len(self.options.kept)
        return SOURCE_COLUMNS + of_key * len(self.options.keys)

    def columns_of_key(self, key: int) -> slice:
        """The columns of the counts of key number ``key``: KEY_COLUMNS, and then KINDS."""
        width = len(KEY_COLUMNS) + len(KINDS) * len(self.options.kept)
        begin = len(SOURCE_COLUMNS) + key * width
        return slice(begin, begin + width)

    def key_column(self, key: int, name: str) -> int:
        """The column of a count of key number ``key``."""
        begin: int = self.columns_of_key(key).start
        return begin + KEY_COLUMNS.index(name)

    @functools.cached_property
    def reject_columns(self) -> list[int]:
        """The counts of records that are listed in the file of rejects."""
        listed = ("rejected",) if self.chat is None else ("rejected", "mapped_out")
        return [SOURCE_COLUMNS.index(name) for name in listed]

    @functools.cached_property
    def parts_of(self) -> dict[int, range]:
        """The numbers of the parts of each source."""
        ranges: dict[int, range] = {}
        for number, part in enumerate(self.parts):
            for source in part.sources:
                first = ranges.get(source, range(number, number)).start
                ranges[source] = range(first, number + 1)
        return ranges

    @functools.cached_property
    def lines_before(self) -> int:
        """The lines of the first source before the first part, which are in another shard."""
        part = self.parts[0]
        cut = part.kind in RANGES and part.begin > 0
        return line_base(self.sources[part.source], part) if cut else 0

    def blocks_from(self, number: int) -> int:
        """The offset in the source of the first block that a part hashes.

        A byte range hashes its own blocks; other parts share the blocks of their source evenly.
        """
        part = self.parts[number]
        if part.kind == "bytes":
            return part.begin
        numbers = self.parts_of[part.source]
        return self.sources[part.source].size * (number - numbers.start) // len(numbers)

    def is_of_frames(self, number: int) -> bool:
        """Whether a part has some frames of a source, and other shards have the rest.

        Then no block checksums of the source are known, because no shard reads all of it.
        """
        numbers = self.parts_of[self.parts[number].source]
        first, last = self.parts[numbers.start], self.parts[numbers.stop - 1]
        size = self.sources[first.source].size
        return first.kind == "frames" and (first.begin > 0 or last.end < size)

    def block_checksums(self, number: int, source: int) -> str:
        """The checksums of a part's blocks of one source, from ``blocks_from`` on. InputError.

        For a byte range these are all blocks that it depends on.
        """
        part, stored = self.parts[number], self.sources[source]
        begin, end, is_range = self.blocks_from(number), part.end, part.kind == "bytes"
        if not is_range:
            last = number + 1 == self.parts_of[source].stop
            end = stored.size if last else self.blocks_from(number + 1)
        return block_checksums(stored, begin, end, to_newline=is_range)

    def describe(self, number: int) -> str:
        """A part in words, for messages."""
        part = self.parts[number]
        name = self.sources[part.source].name
        if part.kind == "files":
            return f"{name} and {part.end - part.begin - 1} files behind it"
        if part.kind in ("whole", "stream"):
            return name
        return f"{name} ({part.kind} {part.begin} to {part.end})"


class Stored(NamedTuple):
    """The files and offsets of a piece's tracks.

    The names of the files in the work folder begin with ``place``. ``begins`` are the offsets of
    the tracks in them, ``sums`` the checksums of their blocks, as in ``storage.disk.blocks``.
    """

    place: str
    begins: tuple[int, ...]
    sums: tuple[bytes, ...]

    @property
    def is_joined(self) -> bool:
        """Whether the piece is in its place in a joined file, not in a spill."""
        return self.place.startswith(JOINED)


@dataclass(slots=True, eq=False)
class Piece:
    """What is known about an encoded piece."""

    number: int  # of the part
    segment: int
    counts: npt.NDArray[np.int64]  # [sources, columns]: Job.columns
    sizes: tuple[int, ...]  # bytes of each track
    blocks: list[str | None]  # checksums of each source: Job.block_checksums; None: not known
    stored: Stored | None = None  # None: in the memory of its worker

    @property
    def id(self) -> PieceId:
        """The part and the segment."""
        return self.number, self.segment

    @classmethod
    def empty(cls, job: Job, number: int, segment: int = 0) -> Piece:
        """A piece without documents."""
        sources = len(job.parts[number].sources)
        counts = np.zeros((sources, len(job.columns)), np.int64)
        return cls(number, segment, counts, (0,) * len(job.tracks), [None] * sources)

    def total(self, column: int) -> int:
        """The sum of a count over the sources."""
        return int(self.counts[:, column].sum())

    def to_json(self) -> dict[str, Any]:
        """A form that ``json`` can write."""
        value = {name: getattr(self, name) for name in self.__slots__}
        value["counts"] = self.counts.tolist()
        if self.stored is not None:
            value["stored"] = [*self.stored[:2], [sums.hex() for sums in self.stored.sums]]
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any], job: Job) -> Piece:
        """The piece from ``to_json``. ValueError or another error if it does not fit the job."""
        place, begins, sums = value["stored"]
        stored = Stored(str(place), tuple(begins), tuple(bytes.fromhex(text) for text in sums))
        rows = value["counts"]
        if not all(type(count) is int for row in rows for count in row):
            raise ValueError("counts that are none")
        counts = np.array(rows, np.int64)
        piece = cls(**{**value, "counts": counts, "sizes": tuple(value["sizes"]), "stored": stored})
        part = job.parts[piece.number]
        # All counts are there, and none is negative.
        if not (
            all(
                type(number) is int and number >= 0
                for number in (piece.segment, *piece.sizes, *begins)
            )
            and counts.shape == (len(part.sources), len(job.columns))
            and (counts >= 0).all()
            and {len(piece.sizes), len(begins), len(sums)} == {len(job.tracks)}
            and len(piece.blocks) == len(part.sources)
            and (piece.segment == 0 or part.kind == "stream")
            and (
                stored.place == job.joined[job.file_of(piece.number)]
                or _SPILL_NAME.fullmatch(stored.place)
            )
        ):
            raise ValueError("counts and sizes that do not fit")
        return piece


@dataclass
class Pieces:
    """All pieces of a run, or of one of its files, in input order.

    ``lines`` are the lines of the first source before the first part, if known.
    """

    job: Job
    by_id: dict[PieceId, Piece] = field(default_factory=dict)
    lines: int | None = None

    def __iter__(self) -> Iterator[Piece]:
        return (self.by_id[key] for key in sorted(self.by_id))

    def rows(self) -> Iterator[tuple[int, int, Sequence[int]]]:
        """(source, lines before in it, counts) for every source of every piece.

        The documents and bad records of a track are in this order.
        """
        at, before = -1, 0
        for piece in self:
            sources = self.job.parts[piece.number].sources
            for source, counts in zip(sources, piece.counts.tolist(), strict=True):
                if source != at:
                    at, before = source, 0 if source else self.lines_before
                yield source, before, counts
                before += counts[LINES]

    @property
    def lines_before(self) -> int:
        """Lines of the first source before the first part."""
        return self.job.lines_before if self.lines is None else self.lines

    def by_file(self, plan: Plan) -> Iterator[tuple[Plan, Pieces]]:
        """The plan and pieces of each file, numbered as in a run of its own."""
        if len(plan.files) == 1:
            yield plan, self
            return
        lines, at = 0, -1  # lines of the source ``at`` in earlier files
        pieces = iter(self)
        piece = next(pieces, None)
        for number, begin in enumerate(plan.files):
            file_plan = plan.file(number)
            first = plan.parts[begin].source
            file = Pieces(self.job.file(number, file_plan), lines=lines if first == at else 0)
            end = begin + len(file_plan.parts)
            while piece is not None and piece.number < end:
                rebased = replace(piece, number=piece.number - begin)
                file.by_id[rebased.id] = rebased
                piece = next(pieces, None)
            yield file_plan, file
            last = file.by_source()[-1, LINES].item()
            lines = last + (file.lines_before if len(file_plan.sources) == 1 else 0)
            at = plan.parts[end - 1].sources[-1]

    def by_source(self) -> npt.NDArray[np.int64]:
        """The counts of every source: int64 [sources, columns]."""
        sums = np.zeros((len(self.job.sources), len(self.job.columns)), np.int64)
        for piece in self.by_id.values():
            sources = self.job.parts[piece.number].sources
            sums[sources.start : sources.stop] += piece.counts
        return sums

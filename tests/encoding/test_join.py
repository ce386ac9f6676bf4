"""The join against plain concatenation: any order of news, any number of restarts."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import tokpack
from tokpack.encoding import EncodeOptions, join
from tokpack.encoding.folder import WorkFolder
from tokpack.encoding.piece import Job, Piece
from tokpack.files import copying
from tokpack.progress import Advance
from tokpack.sources import Part
from tokpack.tokenizers import Frame

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACKS = ("text.ids", "text.lengths")


class Case:
    """Parts of one segment, and groups of stripes, with random bytes in each segment."""

    def __init__(self, folder: Path, groups: list[int], rng: random.Random) -> None:
        self.rng = rng
        self.parts: list[Part] = []
        self.expected = [b"", b""]
        self.extents: list[list[tuple[int, ...]]] = []
        self.content: list[list[bytes]] = []
        for source, size in enumerate(groups):
            self._add_group(source, size)
        (folder / "w").mkdir()
        self.folder = WorkFolder(str(folder / "w"))
        options = EncodeOptions(inputs=("x",), output=str(folder / "out"))
        self.job = Job(self.folder, (), tuple(self.parts), None, Frame(), "uint16", options)  # type: ignore[arg-type]
        assert self.job.tracks == TRACKS
        self.pieces = [self.piece(number) for number in range(len(self.parts))]

    def _add_group(self, source: int, size: int) -> None:
        stripes = self.rng.randrange(1, 8) if size > 1 else 1
        first = len(self.parts)
        kind = "stripes" if size > 1 else "whole"
        self.parts += [Part(source, kind, i, size, 1) for i in range(size)]
        self.content += [[b"", b""] for _ in range(size)]
        extents: list[list[tuple[int, ...]]] = [[] for _ in range(size)]
        for stripe in range(stripes):
            if size > 1 and self.rng.random() < 0.3:
                continue  # no document begins in this stripe
            own = self.content[first + stripe % size]
            for track in range(2):
                data = self.rng.randbytes(self.rng.randrange(40))
                own[track] += data
                self.expected[track] += data
            extents[stripe % size].append((stripe, len(own[0]), len(own[1])))
        self.extents += extents

    def piece(self, number: int) -> Piece:
        """A piece and its files, as a worker leaves them."""
        piece = Piece.nothing(number, self.job)
        piece.extents = self.extents[number]
        piece.checksums = [xxhash.xxh3_64_hexdigest(data) for data in self.content[number]]
        for track, data in zip(TRACKS, self.content[piece.number], strict=True):
            Path(self.folder.piece(piece.number, track)).write_bytes(data)
        self.folder.write_json(f"{piece.number:06d}.json", piece.to_json(), sync=False)
        return piece

    def news(self, piece: Piece) -> Iterator[Advance | Piece]:
        """What a worker says about a piece: extents, the last of them not yet at its end."""
        told, begin = 0, (0, 0)
        for index, (segment, *ends) in enumerate(piece.extents):
            if self.rng.random() < 0.5:
                middle = [self.rng.randint(b, e) for b, e in zip(begin, ends, strict=True)]
                fresh = (*piece.extents[told:index], (segment, *middle))
                told = index
                yield Advance(piece.number, 0, 0, 0, 0, 0, (0, 0, 0), fresh)
            begin = (ends[0], ends[1])
        yield piece

    def shuffled_news(self, numbers: list[int]) -> Iterator[Advance | Piece]:
        """The news of several pieces, those of each in order."""
        streams = [self.news(self.pieces[number]) for number in numbers]
        while streams:
            stream = self.rng.choice(streams)
            said = next(stream, None)
            if said is None:
                streams.remove(stream)
            else:
                yield said


def joiner_of(case: Case) -> tuple[join.Joiner, int]:
    joiner = join.Joiner(case.job, lambda: None)
    joined = joiner.resume(dict(enumerate(case.pieces)))
    joiner.start()
    return joiner, joined


def tell(joiner: join.Joiner, said: Advance | Piece) -> None:
    if isinstance(said, Piece):
        joiner.finished(said)
    else:
        joiner.advanced(said)


@pytest.fixture(autouse=True)
def always_durable() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join, "SYNC_SECONDS", 0.0)
        patch.setattr(join, "_HASH_BYTES", 7)
        yield


@settings(max_examples=40, deadline=None)
@given(
    groups=st.lists(st.sampled_from([1, 1, 2, 3]), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
    restarts=st.integers(0, 3),
)
def test_joined_is_concatenated(groups: list[int], seed: int, restarts: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        case = Case(Path(name), groups, random.Random(seed))
        for _ in range(restarts):
            joiner, joined = joiner_of(case)
            news = list(case.shuffled_news(list(range(joined, len(case.parts)))))
            for said in news[: case.rng.randrange(len(news) + 1)]:
                tell(joiner, said)
            joiner.stop()
        joiner, joined = joiner_of(case)
        for said in case.shuffled_news(list(range(joined, len(case.parts)))):
            tell(joiner, said)
        digests = joiner.finish()
        joiner.stop()
        files = [Path(case.folder.joined(track)) for track in TRACKS]
        assert [file.read_bytes() for file in files] == case.expected
        assert digests == {
            track: xxhash.xxh3_128_hexdigest(data)
            for track, data in zip(TRACKS, case.expected, strict=True)
        }
        left = {path.name for path in Path(case.folder.path).glob("[0-9]*.*")}
        assert left == {f"{number:06d}.json" for number in range(len(case.parts))}


def test_a_missing_piece_is_an_error(tmp_path: Path) -> None:
    case = Case(tmp_path, [1, 1, 1], random.Random(0))
    joiner, _ = joiner_of(case)
    joiner.finished(case.pieces[0])
    joiner.finished(case.pieces[2])
    with pytest.raises(tokpack.OutputError, match="pieces are missing"):
        joiner.finish()
    joiner.stop()


def journaled(tmp_path: Path) -> Case:
    """Three pieces that are joined, and the journal of it."""
    case = Case(tmp_path, [1, 1, 1], random.Random(1))
    joiner, joined = joiner_of(case)
    assert joined == 0
    for piece in case.pieces:
        joiner.finished(piece)
    joiner.finish()
    joiner.stop()
    assert case.folder.read_json("journal.json") == {"groups": 3}
    assert all(case.expected)
    return case


def resumed(case: Case, known: set[int]) -> int:
    again = join.Joiner(case.job, lambda: None)
    joined = again.resume({number: case.pieces[number] for number in known})
    again.stop()
    return joined


def test_a_journal_is_believed_as_far_as_the_descriptions_go(tmp_path: Path) -> None:
    case = journaled(tmp_path)
    assert resumed(case, {0, 1, 2}) == 3
    assert resumed(case, {0, 2}) == 1  # the description of part 1 is lost
    assert resumed(case, {0, 1, 2}) == 1  # its bytes are gone
    assert case.folder.read_json("journal.json") == {"groups": 1}


@pytest.mark.parametrize("track", range(2))
@pytest.mark.parametrize("how", ["flipped", "short"])
def test_a_joined_file_is_believed_as_far_as_it_is_as_written(
    tmp_path: Path, how: str, track: int
) -> None:
    case = journaled(tmp_path)
    path = Path(case.folder.joined(TRACKS[track]))
    data = bytearray(path.read_bytes())
    at = len(case.content[0][track])  # the first byte of part 1
    assert len(case.content[1][track])
    data[at] ^= 1
    path.write_bytes(data if how == "flipped" else data[:at])
    assert resumed(case, {0, 1, 2}) == 1
    assert path.read_bytes() == case.content[0][track]


def test_a_piece_that_is_not_what_its_worker_wrote_ends_the_run(tmp_path: Path) -> None:
    case = Case(tmp_path, [1, 1], random.Random(1))
    damaged = Path(case.folder.piece(1, TRACKS[1]))
    damaged.write_bytes(bytes(damaged.stat().st_size))
    joiner, _ = joiner_of(case)
    for piece in case.pieces:
        joiner.finished(piece)
    with pytest.raises(tokpack.OutputError, match=r"lengths: the bytes of part 1 are not those"):
        joiner.finish()
    joiner.stop()
    assert case.folder.read_json("000001.json") is None  # so it is made again


@pytest.mark.parametrize("kernel", [True, False])
def test_copy_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: bool) -> None:
    if not kernel:
        monkeypatch.delattr("os.copy_file_range", raising=False)
    data = random.Random(0).randbytes(3_000_000)
    (tmp_path / "a").write_bytes(data)
    (tmp_path / "b").write_bytes(b"begin")
    with (tmp_path / "a").open("rb") as source, (tmp_path / "b").open("r+b") as target:
        copying.copy_range(source.fileno(), target.fileno(), 1000, 2_500_000, 5)
        with pytest.raises(OSError, match="shorter than it was"):
            copying.copy_range(source.fileno(), target.fileno(), 2_999_000, 3_000_001, 0)
    assert (tmp_path / "b").read_bytes()[1000:] == (b"begin" + data[1000:2_500_000])[1000:]


def test_news_that_come_while_it_looks_are_not_missed(tmp_path: Path) -> None:
    case = Case(tmp_path, [1, 1], random.Random(2))
    looked, told = threading.Event(), threading.Event()

    def beat() -> None:  # called by the joiner between looking for pieces and deciding what to do
        if not looked.is_set():
            looked.set()
            told.wait(100)

    joiner = join.Joiner(case.job, beat)
    joiner.resume({})
    joiner.start()
    assert looked.wait(100)
    for piece in case.pieces:
        joiner.finished(piece)
    closer = threading.Thread(target=joiner._close)
    closer.start()
    while not joiner._closing:
        time.sleep(0.001)
    told.set()
    closer.join()
    joiner.finish()
    joiner.stop()
    files = [Path(case.folder.joined(track)) for track in TRACKS]
    assert [file.read_bytes() for file in files] == case.expected

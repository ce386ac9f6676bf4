"""Coordinator and workers in random order, killed at random, what they leave damaged at random."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support.encoding_tools import documents, twin
from support.faults import flip
from support.simulated_run import FOREVER, Simulation, patched

from tokpack.encoding.coordinator import NAME, EncodePart, Segment
from tokpack.encoding.folder import WorkFolder
from tokpack.encoding.options import EncodeOptions
from tokpack.encoding.piece import JOINED, SPILL, Job
from tokpack.encoding.plan import divided
from tokpack.encoding.setup import TokenizerSetup
from tokpack.errors import RecordError
from tokpack.sources import Part, discover, make_parts
from tokpack.tokenizers import Tokenizer, frame_of, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

SEEDS = int(os.environ.get("SIMULATIONS", "12"))
FIRST = int(os.environ.get("FIRST_SIMULATION", "0"))


@pytest.fixture(scope="module")
def tokenizer(bpe: Path) -> Tokenizer:
    return load_tokenizer(str(bpe))


def make_texts(folder: Path, rng: random.Random) -> tuple[list[Path], list[str]]:
    """Files of lines, some of them streams, and their texts; now and then a bad record."""
    paths, texts = [], []
    for number in range(rng.randint(1, 7)):
        own = documents(rng.choice((0, 1, 7, 40)), words=rng.choice((3, 30)), seed=rng.random())
        if rng.random() < 0.2:
            own.append("a long one " * 2000)
        lines = [json.dumps({"text": text}) for text in own]
        texts += own
        for _ in range(rng.choice((0, 0, 2))):
            lines.insert(rng.randrange(len(lines) + 1), '{"text": "cut off')
        data = "".join(f"{line}\n" for line in lines).encode()
        path = folder / f"{number}.jsonl{rng.choice(('', '.gz', '.gz'))}"
        path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
        paths.append(path)
    return paths, texts


def make_job(
    folder: Path, paths: Sequence[Path], tokenizer: Tokenizer, rng: random.Random, limit: int | None
) -> Job:
    sources = tuple(discover([str(path) for path in paths]))
    smallest = rng.choice((200, 1000, 5000))
    parts = make_parts(sources, ways=rng.randint(1, 4), smallest_bytes=smallest)
    frame = frame_of(
        tokenizer, append_eod=True, prepend_bos=False, bos_token=None, add_special_tokens=False
    )
    options = EncodeOptions(
        tuple(map(str, paths)),
        str(folder / "out"),
        on_error="skip",
        trace=True,
        limit=limit,
        max_document_bytes=rng.choice((5000, 1 << 30)),
    )
    work = WorkFolder(str(folder / "out.unfinished"))
    work.make()
    files = divided(parts, rng.choice((1, 1, 2, 3, 100)))
    setup = TokenizerSetup(tokenizer, frame, "uint16")
    return Job(work, sources, tuple(parts), setup, options, files)


def undisturbed(job: Job, folder: Path) -> list[bytes]:
    """The one joined file of one worker that does all in order."""
    work = WorkFolder(str(folder / "undisturbed"))
    work.make()
    alone = Simulation(replace(job, folder=work, files=(0,)), 0)
    assert alone.run(1)
    return alone.content


@pytest.mark.promises
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_any_order(
    tmp_path: Path,
    tokenizer: Tokenizer,
    bpe: Path,
    caplog: pytest.LogCaptureFixture,
    seed: int,
) -> None:
    rng = random.Random(seed)
    paths, texts = make_texts(tmp_path, rng)
    limit = rng.choice((None, None, None, 1, 25, 1000))
    job = make_job(tmp_path, paths, tokenizer, rng, limit)
    damages = rng.random() < 0.5
    with patched(rng):
        expected = undisturbed(job, tmp_path)
        if limit is None and job.options.max_document_bytes > 5000:
            assert expected[0] == twin(bpe, texts)[0]
        simulation = Simulation(job, seed)
        stops, touched = 0, list[int]()
        while not simulation.run(
            1 if limit is not None else rng.choice((1, 2, 3, 8)),
            rng.choice((3, 30, 100, 300)) << stops // 3,
            touched,
        ):
            stops += 1
            touched = [rng.randrange(len(paths))] if rng.random() < 0.2 else []
            for source in touched:
                simulation.touch(source)
            if damages:
                damage(Path(job.folder.path), rng)
        assert simulation.content == expected
        if not damages:
            assert "damaged" not in caplog.text
        if not stops:
            assert simulation.written[JOINED] == sum(map(len, expected))


@pytest.mark.promises
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_the_first_bad_record_in_any_order(tmp_path: Path, tokenizer: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    paths, _ = make_texts(tmp_path, rng)
    with paths[-1].open("ab") as file:
        file.write(gzip.compress(b"bad") if paths[-1].suffix == ".gz" else b"bad")
    job = make_job(tmp_path, paths, tokenizer, rng, None)
    options = replace(job.options, on_error="fail", max_document_bytes=1 << 30)
    simulation = Simulation(replace(job, options=options, files=(0,)), seed)
    runs = ((rng.choice((1, 2, 3, 8)), steps) for steps in (30, 100, FOREVER))
    with patched(rng), pytest.raises(RecordError) as caught:
        any(itertools.starmap(simulation.run, runs))
    assert (caught.value.source, caught.value.line) == first_bad(paths)


@pytest.mark.parametrize("seed", [51, *range(FIRST, FIRST + SEEDS)])
def test_the_first_bad_record_of_a_file(tmp_path: Path, tokenizer: Tokenizer, seed: int) -> None:
    """It ends the run without waiting for the files before.

    Heavy parts begin before others, so a bad record may be found before what lies before it is
    read, in several files at once.
    """
    rng = random.Random(seed)
    paths, bad = [tmp_path / f"{name}.jsonl" for name in "abcdef"], []
    for path, lines in zip(paths, ((), (), (3, 5), (), (), (2, 4)), strict=True):
        texts = [json.dumps({"text": text}) for text in documents(30, words=30)]
        for line in lines:
            texts[line - 1] = "bad"
        path.write_text("".join(f"{text}\n" for text in texts))
        bad += [(str(path), line) for line in lines[:1]]
    job = make_job(tmp_path, paths, tokenizer, rng, None)
    options = replace(job.options, on_error="fail", max_document_bytes=1 << 30)
    weights = rng.choice(((1, 1, 1, 1, 1, 1), (1, 1, 10, 1, 1, 10)))
    parts = tuple(Part(n, "whole", 0, 0, weight) for n, weight in enumerate(weights))
    simulation = Simulation(replace(job, options=options, parts=parts, files=(0, 3)), seed)
    with patched(rng), pytest.raises(RecordError) as caught:
        simulation.run(rng.choice((1, 2, 3, 8)))
    assert (caught.value.source, caught.value.line) in bad


def first_bad(paths: Sequence[Path]) -> tuple[str, int]:
    """The first line that is cut off or no JSON at all, and its file."""
    for path in paths:
        content = path.read_bytes()
        lines = gzip.decompress(content) if path.suffix == ".gz" else content
        for number, line in enumerate(lines.splitlines(), 1):
            if not line.endswith(b"}"):
                return str(path), number
    raise AssertionError("none is bad")


def damage(folder: Path, rng: random.Random) -> None:
    """What a power loss, or worse, does to the files."""
    for path in sorted(folder.iterdir()):
        if rng.random() < 0.6 or not path.name.startswith((JOINED, SPILL, "journal")):
            continue
        size = path.stat().st_size
        how = rng.choice(("cut", "flip", "zero", "remove"))
        if how == "remove" and path.name.startswith(SPILL):
            path.unlink()
        elif how == "cut":
            os.truncate(path, rng.randint(size // 2, size))
        elif how == "zero":
            os.truncate(path, rng.randint(size // 2, size))
            os.truncate(path, size)
        elif size:
            flip(path, rng.randrange(size))


def test_a_stream_with_gaps(
    tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    """What a stopped run has of a stream stays where it is, when what lies between is made."""
    rng = random.Random(1)
    texts = documents(60, words=20)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps({"text": t}) + "\n" for t in texts).encode()))
    job = make_job(tmp_path, [path], tokenizer, rng, None)
    with patched(rng):
        simulation = Simulation(job, 1)
        assert simulation.run(1)
        expected = simulation.content
        journal = Path(job.folder(NAME))
        lines = journal.read_bytes().splitlines(keepends=True)
        assert len(lines) > 6
        for gaps in ({0, 3}, {1, 2, 4}):
            journal.write_bytes(b"".join(line for line in lines if segment_of(line) not in gaps))
            assert simulation.run(1)
            assert simulation.content == expected
    assert not caplog.records


@pytest.mark.parametrize("seed", range(3))
def test_segments_of_streams_are_shared_when_no_parts_are_left(
    tmp_path: Path, tokenizer: Tokenizer, seed: int
) -> None:
    """Not before. Two wait for each worker who reads none, who has one task in advance until then.

    Behind a stream nothing waits: it may be long.
    """
    rng, workers = random.Random(seed), 4
    names = [f"{number}.jsonl{'.gz' * (number < 2)}" for number in range(14)]
    for name in names:
        count = 200 if name.endswith("gz") else 20
        lines = [json.dumps({"text": text}) + "\n" for text in documents(count, words=20)]
        content = "".join(lines).encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if "gz" in name else content)
    job = make_job(tmp_path, [tmp_path / name for name in names], tokenizer, rng, None)
    kinds = ["stream"] * 2 + ["whole"] * 12
    parts = tuple(Part(number, kind, 0, 3000, 1) for number, kind in enumerate(kinds))
    simulation = Simulation(replace(job, parts=parts, files=(0,)), seed)
    shared, ahead, feed = [0], [0], simulation._feed

    def watched(threads: Any) -> None:
        own, left = simulation.coordinator, len(simulation.coordinator._queue)
        before = [list(tasks) for tasks in own._tasks]
        feed(threads)
        granted, reading = sum(map(len, own._granted)), 0
        assert not (granted and own._queue)
        for tasks, old in zip(own._tasks, before, strict=True):
            assert len(tasks) <= 2
            new = [task for task in list(tasks)[len(old) :] if isinstance(task, EncodePart)]
            if len(tasks) == 2 and new:
                ahead.append(left)
                assert left > 2 * workers
            reading += bool(tasks) and own._is_stream(tasks[0])
            assert not any(own._is_stream(task) for task in list(tasks)[:-1])
        done = [task for tasks in own._tasks for task in tasks if isinstance(task, Segment)]
        shared.append(len(done))
        if not own._queue and reading == 2:
            assert granted + len(own._segments) + len(done) <= 2 * (workers - 1)

    simulation._feed = watched  # type: ignore[method-assign]
    with patched(rng):
        assert simulation.run(workers)
    assert max(shared) > 0
    assert max(ahead) > 2 * workers


def test_an_iterable_is_read_no_further_than_workers_need(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    """Nor once a record was bad."""
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    job = make_job(tmp_path, [tmp_path / "a.jsonl"], tokenizer, random.Random(1), None)
    simulation = Simulation(job, 1)
    assert simulation.run(1)
    own: Any = simulation.coordinator
    given = SimpleNamespace(read=lambda: 5, ended=False)
    for segments, failed, reads in (([], {}, True), ([1], {}, False), ([], {(0, 0): 1}, False)):
        own._feed, own._segments, own._failed = given, deque(segments), failed
        assert own.read_documents() == reads
        assert list(own._segments) == (segments or [5] * reads)


def segment_of(line: bytes) -> int | None:
    """The segment whose piece a line of the journal is about."""
    entry = json.loads(line[16:])
    return entry["piece"]["segment"] if "piece" in entry else None


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stream_of_nothing(tmp_path: Path, tokenizer: Tokenizer, workers: int) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b""))
    job = make_job(tmp_path, [path], tokenizer, random.Random(1), None)
    stream = (Part(0, "stream", 0, 1000, 1),)
    simulation = Simulation(replace(job, parts=stream, files=(0,)), 1)
    with patched(random.Random(1)):
        assert simulation.run(workers)
        assert simulation.run(workers)
    assert not any(simulation.content)

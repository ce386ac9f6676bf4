"""Nothing stale is called complete, and nothing in a work folder is believed unproved."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import xxhash
import zstandard
from support.encoding_tools import dataset, documents, twin
from support.faults import flip
from support.stopped_runs import STOP_AT_END, Place, finish_script

import tokpack
from tokpack.encoding import commit, plan
from tokpack.sources import Source
from tokpack.sources.parts import make_parts
from tokpack.storage.disk import blocks

# -- inputs that change -------------------------------------------------------------------------


@pytest.mark.promises
def test_an_edited_input_is_not_complete(place: Place) -> None:
    place.encode()
    before = place.output.with_suffix(".bin").stat().st_mtime_ns
    place.encode()
    place.touch()  # another time, the same content
    place.encode()
    assert place.output.with_suffix(".bin").stat().st_mtime_ns == before
    place.edit(0.2, 0.4)
    with pytest.raises(tokpack.OutputError, match=r"a\.jsonl"):
        place.encode()
    place.encode(overwrite=True)
    place.right()


def test_the_content_of_an_input_does_not_depend_on_its_parts(place: Place) -> None:
    whole = place.encode().inputs[0]["content"]
    place.stop_at_part(3, overwrite=True)
    parts = place.encode().inputs[0]["content"]
    assert whole == parts
    assert len(whole) == 32


def test_the_content_of_an_input_is_that_of_all_its_blocks(
    tmp_path: Path, bpe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it is cut, and whichever inputs come before it."""
    lines = [json.dumps({"text": text}).encode() + b"\n" for text in documents(200, words=30)]
    raw, kinds = b"".join(lines), set[str]()
    frames = b"".join(zstandard.compress(b"".join(lines[n : n + 20])) for n in range(0, 200, 20))
    inputs = [
        (tmp_path / name, content)
        for n in range(2)
        for name, content in (
            (f"{n}a.jsonl", raw),
            (f"{n}b.jsonl.zst", frames),
            (f"{n}c.jsonl.gz", gzip.compress(raw)),
            (f"{n}d.jsonl", lines[0]),
            (f"{n}e.jsonl", lines[1]),
        )
    ]
    for path, content in inputs:
        path.write_bytes(content)

    def parts(*arguments: Any, **more: Any) -> Any:
        found = make_parts(*arguments, **{**more, "smallest_bytes": 4 << 10})
        kinds.update(part.kind for part in found)
        return found

    monkeypatch.setattr(plan, "make_parts", parts)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1 << 10)
    paths = [str(path) for path, _ in inputs]
    manifest = tokpack.encode(paths, tmp_path / "out", tokenizer=bpe, workers=2)
    assert kinds == {"bytes", "frames", "stream", "whole"}
    for entry, (_, content) in zip(manifest.inputs, inputs, strict=True):
        each = (content[at : at + 1024] for at in range(0, len(content), 1024))
        sums = b"".join(xxhash.xxh3_64_digest(block) for block in each)
        assert entry["content"] == xxhash.xxh3_128_hexdigest(sums)


def test_parts_that_saw_two_contents_are_an_error() -> None:
    """Of the block that they share."""
    source = Source("a.jsonl", "a.jsonl", "jsonl", "", 2 * blocks.BLOCK_BYTES, 0)
    job: Any = SimpleNamespace(folder=SimpleNamespace(path="work"))
    first, second = "1" * 16, "2" * 16
    whole = commit._content_of(source, [(0, first + second)], job)
    assert commit._content_of(source, [(0, first + second), (9, first + second)], job) == whole
    assert commit._content_of(source, [(0, first), (blocks.BLOCK_BYTES, second)], job) == whole
    assert commit._content_of(source, [(0, first), (9, None)], job) is None
    assert commit._content_of(source, [(0, first)], job) is None
    with pytest.raises(tokpack.InputError, match=r"a\.jsonl changed"):
        commit._content_of(source, [(0, first + second), (9, second)], job)


def test_a_manifest_without_times(place: Place) -> None:
    """Of an earlier version: an input that is older than the dataset is taken for the same."""
    os.utime(place.source, (1, 1))
    place.encode()
    path = place.output.with_suffix(".json")
    manifest = json.loads(path.read_text())
    for name in ("mtime_ns", "content"):
        del manifest["inputs"][0][name]
    path.write_text(json.dumps(manifest))
    place.encode()
    os.utime(place.source)
    with pytest.raises(tokpack.OutputError, match=r"out\.bin .*a\.jsonl, .*\btime\b"):
        place.encode()


def test_the_first_records_of_an_input_that_may_have_changed(place: Place) -> None:
    """Of an input that was not read to its end nothing is known but its time."""
    place.encode(limit=10)
    place.encode(limit=10)
    place.touch()
    with pytest.raises(tokpack.OutputError, match=r"out\.bin .*a\.jsonl, .*\btime\b"):
        place.encode(limit=10)


def test_an_input_that_was_edited_while_its_run_was_stopped(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.stop_at_part()
    place.edit(0.2, 0.25)  # of a part that is done
    files = len(os.listdir("/dev/fd"))
    place.encode()
    assert len(os.listdir("/dev/fd")) == files
    assert "a.jsonl has changed: it and what follows" in caplog.text
    place.right()


def test_what_comes_before_an_edited_input_is_kept(place: Place) -> None:
    other = str(shutil.copy2(place.source, place.folder / "c.jsonl"))
    place.stop_at_part(6, inputs=[other, str(place.source)])
    place.edit(0.7, 0.8)
    began: list[int] = []
    place.encode(
        inputs=[other, str(place.source)], progress=lambda now: began.append(now.documents)
    )
    assert began[0] > 100
    assert dataset(place.output) == twin(place.tokenizer, place.texts + place.edited)


@pytest.mark.parametrize("edited", [False, True])
def test_what_is_the_same_in_a_copied_input_is_kept(place: Place, edited: bool) -> None:
    """Whoever copies inputs to another disk before each run gives them another time."""
    place.stop_at_part(6)
    if edited:
        place.edit(0.7, 0.8)
    else:
        place.touch()
    began: list[int] = []
    place.encode(progress=lambda now: began.append(now.documents))
    assert began[0] > 100
    place.right()


@pytest.mark.parametrize("edited", [False, True])
def test_what_follows_a_part_that_was_not_stored(place: Place, edited: bool) -> None:
    """Its size was known, so what follows it was joined; nobody knows what it was made of."""
    place.stop_at_part(5)
    parts = json.loads((place.work / "plan.json").read_text())["parts"]
    size = place.source.stat().st_size
    lost = next(n for n, part in enumerate(parts) if part["begin"] > size / 5)
    assert 0 < lost < 4
    journal = place.work / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    entries = [json.loads(line[16:]).get("piece", {}).get("number") for line in lines]
    kept = [line for line, number in zip(lines, entries, strict=True) if number != lost]
    journal.write_bytes(b"".join(kept))
    if edited:
        begin, end = (parts[lost][name] / size for name in ("begin", "end"))
        place.edit((begin + end) / 2, end - (end - begin) / 4, b"q7#")  # more tokens
    else:
        place.touch()
    began: list[int] = []
    place.encode(progress=lambda now: began.append(now.documents))
    assert began[0] > 0
    place.right()


def test_a_stream_whose_time_changed(place: Place) -> None:
    """A stream that is read as a whole is compared as a whole, or read again."""
    packed = gzip.compress(place.source.read_bytes(), 0)
    stream = place.folder / "b.jsonl.gz"
    stream.write_bytes(packed)
    other = str(shutil.copy2(place.source, place.folder / "c.jsonl"))
    inputs = [str(stream), str(place.source), other]
    place.stop_at_part(2, inputs=inputs)  # which no other test has
    os.utime(stream, (5, 5))
    place.encode(inputs=inputs)
    assert dataset(place.output) == twin(place.tokenizer, place.texts * 3)
    os.utime(stream, (6, 6))
    place.encode(inputs=inputs)
    with stream.open("r+b") as file:
        file.seek(len(packed) // 4)
        file.write(b"\0\0\0\0")
    with pytest.raises(tokpack.OutputError, match=r"b\.jsonl\.gz"):
        place.encode(inputs=inputs)


# -- what is found in a work folder -------------------------------------------------------------


@pytest.mark.parametrize("track", ["ids", "lengths", "rows"])
@pytest.mark.parametrize("at", [0.0, 0.5, 0.999])
def test_a_flipped_bit_in_what_is_joined(place: Place, track: str, at: float) -> None:
    place.stop(STOP_AT_END, trace=True)
    flip(place.work / f"joined.text.{track}", at)
    place.encode(trace=True)
    place.right()


def test_a_flipped_bit_after_some_parts(place: Place) -> None:
    place.stop_at_part()
    flip(place.work / "joined.text.ids")
    place.encode()
    place.right()


def edited_plan(place: Place, change: Any) -> None:
    path = place.work / "plan.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value["parts"].pop(1),
        lambda value: value["parts"].reverse(),
        lambda value: value["parts"][0].update(end=1000),
        lambda value: value["inputs"][0].update(size=7),
        lambda value: value.update(parts="all"),
        lambda value: value.clear(),
    ],
)
def test_a_damaged_plan_is_refused(place: Place, change: Any) -> None:
    place.stop_at_part()
    edited_plan(place, change)
    with pytest.raises(tokpack.ResumeError, match=r"plan\.json"):
        place.encode()
    place.encode(overwrite=True)
    place.right()


def test_what_a_run_returns_is_what_it_wrote(place: Place) -> None:
    assert place.encode(trace=True) == tokpack.Manifest.load(place.output)


WRONG = ["[]", "null", '{"groups": 99}', "[" * 50_000, "9" * 5000]


@pytest.mark.parametrize("text", WRONG)
@pytest.mark.parametrize("name", ["journal.jsonl", "commit.json"])
def test_json_of_the_wrong_kind(place: Place, name: str, text: str) -> None:
    place.stop_at_part()
    (place.work / name).write_text(text)
    place.encode()
    place.right()


def sealed(value: Any) -> bytes:
    """A line of the journal, with the right checksum."""
    text = json.dumps(value).encode()
    return xxhash.xxh3_64_hexdigest(text).encode() + text + b"\n"


@pytest.mark.parametrize(
    "entry",
    [
        7,
        {},
        {"piece": 5},
        {"stream": {"number": "x", "segments": 1, "blocks": None}},
        {"stream": {"number": 99, "segments": 1, "blocks": None}},
    ],
)
def test_a_journal_that_only_looks_right(place: Place, entry: Any) -> None:
    place.stop_at_part()
    path = place.work / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], sealed(entry), *lines[2:]]))
    place.encode()
    place.right()


@pytest.mark.parametrize(
    "change",
    [
        {"counts": "x"},
        {"counts": [[-1]]},
        {"counts": []},
        {"counts": [[1.5] + [0] * 30]},
        {"sizes": [1, 2, 3]},
        {"sizes": [-1, 0, 0]},
        {"sizes": [0, 0]},
        {"number": 2},
        {"number": 99},
        {"segment": 1},
        {"blocks": []},
        {"stored": None},
        {"stored": ["joined", [0, 0, 0], ["00", "00", "00"]]},
        {"stored": ["../joined", [0, 0, 0], ["", "", ""]]},
        {"stored": ["joined", [0.0, 0, 0], ["", "", ""]]},
        {"more": 1},
    ],
)
def test_a_piece_that_only_looks_right(place: Place, change: dict[str, Any]) -> None:
    place.stop_at_part()
    path = place.work / "journal.jsonl"
    entries = [json.loads(line[16:]) for line in path.read_bytes().splitlines()]
    at = next(n for n, entry in enumerate(entries) if "piece" in entry)
    entries[at]["piece"].update(change)
    path.write_bytes(b"".join(map(sealed, entries)))
    place.encode()
    place.right()


@pytest.mark.parametrize("damage", ["flip", "cut", "lost", "text"])
def test_damaged_bad_records_are_made_again(place: Place, damage: str) -> None:
    with place.source.open("ab") as file:
        file.write(b'{"text": 1}\n' * 5)
    lines = place.source.read_bytes().splitlines(keepends=True)
    place.source.write_bytes(b"".join(lines[-5:] + lines[:-5]))
    place.stop_at_part(on_error="skip")
    path = place.work / "joined.rejects"
    if damage == "flip":
        flip(path)
    elif damage == "cut":
        os.truncate(path, path.stat().st_size - 20)
    elif damage == "text":
        path.write_bytes(b"\n" * 5)
    else:
        path.unlink()
    manifest = place.encode(on_error="skip")
    assert manifest.rejected == 5
    rejects = Path(f"{place.output}.rejects.jsonl").read_text().splitlines()
    assert [json.loads(line)["line"] for line in rejects] == [1, 2, 3, 4, 5]
    place.verify()


@pytest.mark.promises
def test_verify_proves_the_run(place: Place) -> None:
    """The checksum of the manifest is that of what was encoded, not of what is found at the end."""
    script = """
import tokpack.encoding.run as run
def late(job, *more, real=run.stage):
    with open(job.path("text.ids"), "r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    return real(job, *more)
run.stage = late
"""
    finish_script(place, script)
    with pytest.raises(tokpack.TokpackError):
        place.verify()

"""tokpack.encode against its slow twin: the same bytes however the work is cut and shared."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zstandard
from support import cli_tools, forked
from support.archives import dat, tar
from support.encoding_tools import (
    DRIVER,
    dataset,
    digests,
    documents,
    idx_and_bin,
    twin,
    word_tokenizer,
    write_jsonl,
)

import tokpack
from tokpack.encoding import worker
from tokpack.encoding.coordinator import SumBlocks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tokpack.encoding.coordinator import Task, TaskDone
    from tokpack.progress import Progress

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, 1),
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".bz2": lambda data: bz2.compress(data, 1),
    ".zst": zstandard.ZstdCompressor(level=1).compress,
}


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory, bpe: Path) -> tuple[Path, tuple[bytes, bytes]]:
    """A file that is large enough to be cut, and its dataset."""
    texts = documents(900, words=160)
    path = write_jsonl(tmp_path_factory.mktemp("big") / "big.jsonl", texts)
    tokpack.encode(str(path), str(path.with_suffix("")), tokenizer=str(bpe), workers=1)
    # The twin would take long for all of it: it vouches for the beginning and the end.
    begin = twin(bpe, texts[:300])[0]
    end = twin(bpe, texts[-300:])[0]
    made = dataset(path.with_suffix(""))
    assert made[0].startswith(begin)
    assert made[0].endswith(end)
    return path, made


# How a stream is shared does not depend on what decodes it, and these two take long.
@pytest.mark.promises
@pytest.mark.parametrize(
    ("suffix", "workers"),
    [("", 2), ("", 3), (".gz", 3), (".zst", 2), (".xz", 2), (".bz2", 3)],
)
@pytest.mark.usefixtures("small_parts")
def test_same_bytes_for_any_split(
    tmp_path: Path, big: tuple[Path, tuple[bytes, bytes]], bpe: Path, suffix: str, workers: int
) -> None:
    path, expected = big
    packed = tmp_path / f"packed.jsonl{suffix}"
    packed.write_bytes(COMPRESSORS[suffix](path.read_bytes()))
    shown: list[Progress] = []
    output = tmp_path / "out"
    tokpack.encode(
        str(packed), str(output), tokenizer=str(bpe), workers=workers, progress=shown.append
    )
    assert dataset(output) == expected
    if suffix in ("", ".zst", ".gz"):  # decompressing the others in every worker costs too much
        assert {progress.workers for progress in shown} >= {workers}
    assert shown[-1].text_bytes == path.stat().st_size
    assert shown[-1].documents == tokpack.Manifest.load(output).documents > 800
    assert shown[-1].done == shown[-1].total == packed.stat().st_size
    assert [progress.done for progress in shown] == sorted(p.done for p in shown)
    assert not (tmp_path / "out.unfinished").exists()


@pytest.mark.promises
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_several_files_keep_their_order(tmp_path: Path, bpe: Path, workers: int) -> None:
    texts = documents(300, words=20)
    for number in range(6):
        write_jsonl(tmp_path / f"{number}.jsonl", texts[50 * number : 50 * number + 50])
    output = tmp_path / "out"
    manifest = tokpack.encode(
        [str(tmp_path / "*.jsonl")], str(output), tokenizer=str(bpe), workers=workers
    )
    assert dataset(output) == twin(bpe, texts)
    assert [entry["records"] for entry in manifest.inputs] == [50] * 6
    assert manifest.empty == texts.count("") > 0
    assert manifest.records == 300 == manifest.documents + manifest.empty
    assert manifest.tokens * 2 == manifest.bin["bytes"]
    assert manifest.text_bytes == sum(len(text.encode()) for text in texts)
    assert tokpack.Manifest.load(output) == manifest


@pytest.mark.parametrize(("name", "workers"), [("owt", 2), ("nasty", 3)])
def test_real_corpora_gpt2(tmp_path: Path, data: Path, name: str, workers: int) -> None:
    expected = json.loads((data / "corpora" / "expected.json").read_text())[f"{name}.gpt2"]
    manifest = tokpack.encode(
        str(data / "corpora" / f"{name}.jsonl.zst"),
        str(tmp_path / "out"),
        vocab_file=str(data / "tokenizers" / "gpt2-vocab.json"),
        merge_file=str(data / "tokenizers" / "gpt2-merges.txt"),
        workers=workers,
    )
    assert digests(tmp_path / "out") == {"bin": expected["bin"], "idx": expected["idx"]}
    assert (manifest.records, manifest.empty) == (expected["docs"], expected["empty"])
    assert manifest.tokens == expected["tokens"]


@pytest.mark.parametrize(("name", "tokenizer"), [("english", "gpt2"), ("multi", "neox20b")])
def test_larger_real_corpora(tmp_path: Path, data: Path, name: str, tokenizer: str) -> None:
    key = f"{name}.{tokenizer}"
    expected = json.loads((data / "corpora" / "expected.json").read_text())[key]
    files = {"tokenizer": str(data / "tokenizers" / "20B_tokenizer.json")}
    if tokenizer == "gpt2":
        files = {
            "vocab_file": str(data / "tokenizers" / "gpt2-vocab.json"),
            "merge_file": str(data / "tokenizers" / "gpt2-merges.txt"),
        }
    tokpack.encode(
        str(data / "corpora" / f"{name}.jsonl.zst"),
        str(tmp_path / "out"),
        workers=2,
        **files,
    )
    assert digests(tmp_path / "out") == {"bin": expected["bin"], "idx": expected["idx"]}


def test_a_slow_tokenizer_gives_the_same(tmp_path: Path) -> None:
    words = word_tokenizer(tmp_path / "tokenizer.json")
    texts = documents(400, words=40)
    source = write_jsonl(tmp_path / "a.jsonl", texts)
    tokpack.encode(str(source), str(tmp_path / "out"), tokenizer=str(words), workers=2)
    assert dataset(tmp_path / "out") == twin(words, texts)


def test_dtype_can_be_chosen(tmp_path: Path, bpe: Path) -> None:
    texts = documents(20)
    source = write_jsonl(tmp_path / "a.jsonl", texts)
    tokpack.encode(str(source), str(tmp_path / "out"), tokenizer=str(bpe), dtype="int32")
    assert dataset(tmp_path / "out") == twin(bpe, texts, dtype="int32")


@pytest.mark.promises
@pytest.mark.parametrize("workers", [1, 2])
def test_several_keys_are_different_datasets(tmp_path: Path, bpe: Path, workers: int) -> None:
    texts, titles = documents(100), documents(100, words=4, seed=9)
    source = tmp_path / "a.jsonl"
    records = ({"title": a, "text": b} for a, b in zip(titles, texts, strict=True))
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    manifests = tokpack.encode(
        [str(source), str(source)],
        str(tmp_path / "out"),
        tokenizer=str(bpe),
        keys=["text", "title"],
        workers=workers,
    )
    assert dataset(tmp_path / "out_text") == twin(bpe, 2 * texts)
    assert dataset(tmp_path / "out_title") == twin(bpe, 2 * titles)
    assert {key: manifest.options["key"] for key, manifest in manifests.items()} == {
        "text": "text",
        "title": "title",
    }
    assert not (tmp_path / "out.bin").exists()


def test_standard_input(tmp_path: Path, bpe: Path) -> None:
    texts = documents(200)
    source = write_jsonl(tmp_path / "a.jsonl", texts)
    options = {"inputs": "-", "output": str(tmp_path / "out"), "tokenizer": str(bpe)}
    for _ in range(2):  # a pipe is never "already encoded"
        with source.open("rb") as file:
            forked.run(
                ["-c", DRIVER, json.dumps({**options, "overwrite": True})],
                stdin=file,
                check=True,
                stdout=subprocess.DEVNULL,
            )
        assert dataset(tmp_path / "out") == twin(bpe, texts)
    with pytest.raises(tokpack.UsageError):
        tokpack.encode("-", tokenizer=str(bpe))


def test_the_dataset_is_readable(tmp_path: Path, bpe: Path) -> None:
    texts = documents(50)
    source = write_jsonl(tmp_path / "a.jsonl", texts)
    manifest = tokpack.encode(str(source), str(tmp_path / "out"), tokenizer=str(bpe))
    data = tokpack.MMapIndexedDataset(str(tmp_path / "out"))
    model = tokpack.load_tokenizer(str(bpe))
    assert [model.decode(document[:-1]) for document in data] == [t for t in texts if t]
    assert {int(document[-1]) for document in data} == {manifest.tokenizer["eod_id"]}


def test_sentences_have_their_own_sequences() -> None:
    from tokpack.encoding.makers import join_sentences
    from tokpack.tokenizers import Frame

    ids = np.arange(10, dtype=np.uint16)
    lengths = np.array([2, 0, 3, 0, 4, 1, 0], np.int32)
    per_document = np.array([3, 1, 0, 2, 1])
    joined, sequences, documents_ = join_sentences(ids, lengths, per_document, Frame((), (99,)))
    assert joined.tolist() == [0, 1, 2, 3, 4, 99, 5, 6, 7, 8, 9, 99]
    assert sequences.tolist() == [2, 4, 4, 2]
    assert documents_.tolist() == [2, 0, 0, 2, 0]
    joined, sequences, _ = join_sentences(ids, lengths, per_document, Frame())
    assert joined.tolist() == ids.tolist()
    assert sequences.tolist() == [2, 3, 4, 1]
    joined, sequences, _ = join_sentences(ids, lengths, per_document, Frame((7, 8), (99,)))
    assert joined.tolist() == [7, 8, 0, 1, 2, 3, 4, 99, 7, 8, 5, 6, 7, 8, 9, 99]
    assert sequences.tolist() == [4, 4, 6, 2]


def test_python_counts_as_the_twin_says() -> None:
    """The twin itself, by hand: two documents of two tokens, one of them without sequence."""
    tokens, index = idx_and_bin([[1, 2], [3]], [2, 1], [0, 1, 1, 2], "uint16")
    assert tokens == b"\1\0\2\0\3\0"
    assert len(index) == 34 + 12 * 2 + 8 * 4


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", ["a.txt", "a.json", "a.parquet"])
def test_other_formats(tmp_path: Path, bpe: Path, name: str, workers: int) -> None:
    texts = [text.replace("\n", " ") for text in documents(400)]
    source = tmp_path / name
    if name == "a.txt":
        source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    elif name == "a.json":
        source.write_text(json.dumps([{"text": text} for text in texts], indent=1))
    else:
        parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
        table = pytest.importorskip("pyarrow").table({"text": texts})
        parquet.write_table(table, source, row_group_size=90)
    manifest = tokpack.encode(
        [str(source), str(source)], str(tmp_path / "out"), tokenizer=str(bpe), workers=workers
    )
    assert dataset(tmp_path / "out") == twin(bpe, 2 * texts)
    assert manifest.records == 800


def test_small_files_are_opened_twice(tmp_path: Path, bpe: Path) -> None:
    """Once to see what they are, once to read them: each is a round trip on a network's disk."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(30):
        write_jsonl(folder / f"{number}.jsonl", documents(3))
    script = (
        "import sys\n"
        "opened = []\n"
        "sys.addaudithook(lambda event, of: event == 'open' and opened.append(str(of[0])))\n"
        + DRIVER
        + "print(sum(path.endswith('.jsonl') for path in opened))\n"
    )
    options = {"inputs": str(folder), "output": str(tmp_path / "out"), "tokenizer": str(bpe)}
    options |= {"workers": 1}
    command = ["-c", script, json.dumps(options)]
    out = forked.run(command, capture_output=True, text=True, check=True).stdout
    assert 60 <= int(out.split()[-1]) < 90  # with those of the self-check, and the journal


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("workers", [1, 2])
def test_memory_does_not_grow_with_the_input(tmp_path: Path, bpe: Path, workers: int) -> None:
    """Peak memory of the parent and the largest worker: few blocks, many, and one long line.

    How many blocks are in memory at a time depends on how fast each process is. Memory for a line
    does not: it is measured by the difference between two long ones.
    """
    script = DRIVER + (
        "import resource\n"
        "status = open('/proc/self/status').read()\n"
        "print(int(status.partition('VmHWM:')[2].split()[0]) // 1024)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)\n"
    )
    once = write_jsonl(tmp_path / "once.jsonl", documents(1_500, words=160)).read_bytes()
    few, many = tmp_path / "few.jsonl", tmp_path / "many.jsonl"
    few.write_bytes(8 * once)  # enough to be cut
    many.write_bytes(60 * once)
    text = 500 * " ".join(documents(250, words=30))
    long = write_jsonl(tmp_path / "long.jsonl", [text])
    longer = write_jsonl(tmp_path / "longer.jsonl", [3 * text])
    peaks = []
    for source in (few, many, long, longer):
        options = {
            "inputs": str(source),
            "output": str(source.with_suffix("")),
            "tokenizer": str(bpe),
            "workers": workers,
        }
        command = [sys.executable, "-c", script, json.dumps(options)]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        peaks.append([int(line) for line in out.split("\n")[-3:-1]])
    assert max(peaks[1]) < 250
    more = (longer.stat().st_size - long.stat().st_size) >> 20
    assert more > 48
    for few_blocks, many_blocks, one_line, one_longer in zip(*peaks, strict=True):
        assert many_blocks < few_blocks + 80
        # The line, its text, its ids: only once, and its ids go to files at once.
        assert one_longer < one_line + 3.4 * more


def test_stages_come_in_order_however_long_placing_takes(
    tmp_path: Path, bpe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    do = worker.Worker._do

    def slow(own: worker.Worker, task: Task) -> TaskDone:
        if isinstance(task, SumBlocks):
            time.sleep(0.3)  # longer than from one progress to the next
            own._attend()
        return do(own, task)

    monkeypatch.setattr(worker.Worker, "_do", slow)
    path = write_jsonl(tmp_path / "a.jsonl", documents(50, words=20))
    stages: list[str] = []
    tokpack.encode(
        str(path),
        str(tmp_path / "out"),
        tokenizer=str(bpe),
        workers=1,
        progress=lambda progress: stages.append(progress.stage),
    )
    assert stages == sorted(stages, key=["encode", "place", "sync"].index)
    assert stages[-1] == "sync"


@pytest.mark.parametrize("name", ["tar", "tar.gz", "dat"])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_archive_on_the_standard_input(
    tmp_path: Path, bpe: Path, name: str, workers: int
) -> None:
    texts = [text for text in documents(400) if text]
    content = tar({f"{number}.txt": text.encode() for number, text in enumerate(texts)})
    if name == "dat":
        content = dat(text.encode() for text in texts)
    path = tmp_path / f"x.{name}"
    path.write_bytes(gzip.compress(content) if name == "tar.gz" else content)
    form = ["--input-format", "archive"] if name == "dat" else []  # it has no magic number
    with path.open("rb") as file:
        done = cli_tools.tokpack(
            *("encode", "-", "-o", tmp_path / "out", "--tokenizer", bpe, *form),
            *("--workers", workers),
            stdin=file,
        )
    assert done.returncode == 0, done.stderr
    assert dataset(tmp_path / "out") == twin(bpe, texts)

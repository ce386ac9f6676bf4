"""Outputs of commands on documents: two at once, changed datasets, little memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import forked
from support.documents import plain
from support.indexed_twin import write_plainly

import tokpack
from tokpack import MMapIndexedDataset
from tokpack.dataset.outputs import NewFiles
from tokpack.dataset.verify import verify
from tokpack.documents.keys import token_hashes
from tokpack.errors import BusyError, FormatError, OutputError
from tokpack.storage.disk import DATA

if TYPE_CHECKING:
    from pathlib import Path


def write(prefix: Path, documents: list[list[int]], letter: str = "H") -> Path:
    write_plainly(prefix, plain([[one] for one in documents], letter))
    return prefix


@pytest.mark.parametrize(
    "command",
    [
        "dedup a -o out --near 0.8",
        "select a --random 0.5 -o out",
        "decontaminate a --against b --unit tokens -o out",
        "merge a b -o out",
    ],
)
def test_of_two_at_once_one_makes_all(tmp_path: Path, command: str) -> None:
    """The other one says that it is made."""
    documents = np.random.default_rng(1).integers(0, 50_000, (300, 100)).tolist()
    write(tmp_path / "a", documents)
    write(tmp_path / "b", documents[::20])
    for _ in range(2):
        both = [
            forked.Process(
                ["-m", "tokpack", *command.split(), "-q"],
                cwd=tmp_path,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        said = [one.communicate(timeout=60)[1] for one in both]
        codes = [one.returncode for one in both]
        assert sorted(codes)[0] == 0, said
        for code, words in zip(codes, said, strict=True):
            assert code == 0 or "another run" in words or "exists" in words
        verify(tmp_path / "out")
        left = [name for name in os.listdir(tmp_path) if name.startswith("out")]
        assert not [name for name in left if "tokpack" in name]
        for name in left:
            (tmp_path / name).unlink()


def test_an_output_in_the_making_is_refused_at_once(tmp_path: Path) -> None:
    write(tmp_path / "a", [[1, 2, 3]])
    last = f"{tmp_path}/out.json"
    with NewFiles([(last, tokpack.dataset.outputs.MANIFEST)], [], overwrite=False):
        for command in (tokpack.select, tokpack.dedup, tokpack.merge):
            with pytest.raises(BusyError, match=r"out\.json"):
                command(tmp_path / "a", tmp_path / "out")
    tokpack.select(tmp_path / "a", tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["a.bin", "a.idx", "out.json", "out.selection"]


def test_files_that_are_sealed_are_not_written_to_by_another_run(tmp_path: Path) -> None:
    """Between the moment in which all are complete and their names nobody else may begin."""
    names = [str(tmp_path / name) for name in ("out.bin", "out.idx", "other.idx")]
    outputs = [(names[0], DATA), (names[1], DATA)]
    with NewFiles(outputs, [], overwrite=False) as files:
        for path in names[:2]:
            files.write(path, [b"mine"])
        files.seal()
        with pytest.raises(BusyError), NewFiles(outputs, [], overwrite=False):
            pass
        files.publish()
    assert [(tmp_path / name).read_bytes() for name in ("out.bin", "out.idx")] == [b"mine"] * 2
    with NewFiles(outputs, [], overwrite=True) as files:  # and one with another last file
        for path in names[:2]:
            files.write(path, [b"again"])
        files.seal()
        others = [(names[0], DATA), (names[2], DATA)]
        with NewFiles(others, [], overwrite=True) as theirs:
            theirs.write(names[0], [b"theirs"])
            with pytest.raises(OutputError, match=r"out\.bin\.tokpack\.tmp"):
                files.publish()
    assert (tmp_path / "out.bin").read_bytes() == b"mine"


def test_what_a_killed_run_has_left_is_in_nobodys_way(tmp_path: Path) -> None:
    write(tmp_path / "a", [[1, 2, 3]])
    for name in ("out.json", "out.selection"):
        (tmp_path / f"{name}.tokpack.tmp").write_bytes(b"x" * 5000)
    tokpack.select(tmp_path / "a", tmp_path / "out")
    assert MMapIndexedDataset(tmp_path / "out").documents == 1
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path / "b.json.tokpack.tmp").symlink_to(tmp_path / "mine")
    tokpack.select(tmp_path / "a", tmp_path / "b")
    assert MMapIndexedDataset(tmp_path / "b")[0].tolist() == [1, 2, 3]
    assert (tmp_path / "mine").read_bytes() == b"mine"


def test_of_threads_one_makes_all(tmp_path: Path) -> None:
    write(tmp_path / "a", np.arange(50_000).reshape(-1, 10).tolist())
    failed: list[Exception] = []

    def run() -> None:
        try:
            tokpack.dedup(tmp_path / "a", tmp_path / "out")
        except OutputError as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(failed) == 3
    assert MMapIndexedDataset(tmp_path / "out").documents == 5_000


READING: dict[str, Any] = {
    "dedup": lambda a, o: tokpack.dedup(a, o),  # noqa: PLW0108  alike
    "dedup near": lambda a, o: tokpack.dedup(a, o, near=0.9),
    "random": lambda a, o: tokpack.select(a, o, random=0.9),
    "decontaminate": lambda a, o: tokpack.decontaminate(
        a, o, against=f"{a}-evals", unit="tokens", shortest=3
    ),
    "virtual": lambda a, o: (
        tokpack.merge([a, a], f"{o}-1", virtual=True),
        tokpack.dedup(f"{o}-1", o),
    ),
}


@pytest.mark.parametrize("command", READING)
def test_a_view_knows_the_tokens_that_were_read(tmp_path: Path, command: str) -> None:
    """Also of a dataset without a manifest, and where no probe sees the change."""
    documents = np.random.default_rng(2).integers(0, 50_000, (3_000, 100))
    write(tmp_path / "a", documents.tolist())
    write(tmp_path / "a-evals", [[1, 2, 3]])
    READING[command](tmp_path / "a", tmp_path / "out")
    assert not any("cannot be detected" in one for one in verify(tmp_path / "out").unchecked)
    tokpack.select(tmp_path / "out", tmp_path / "again")
    documents[800:820] += 1  # between the beginning, the middle and the end
    write(tmp_path / "a", documents.tolist())
    for name in ("out", "again"):
        with pytest.raises(FormatError, match=r"a\.bin"):
            verify(tmp_path / name)


def test_a_view_of_what_was_not_read_says_so(tmp_path: Path) -> None:
    write(tmp_path / "a", [[1, 2, 3], [4, 5]])
    tokpack.select(tmp_path / "a", tmp_path / "out", first=1)
    [said] = [one for one in verify(tmp_path / "out").unchecked if "checksums" in one]
    assert "cannot be detected" in said


def test_a_view_goes_with_a_manifest_that_comes_later(tmp_path: Path, bpe: Path) -> None:
    tokenizer = tokpack.load_tokenizer(bpe)
    write(
        tmp_path / "a",
        [[*tokenizer.encode(text), tokenizer.eod_id or 0] for text in ("one", "two")],
    )
    tokpack.dedup(tmp_path / "a", tmp_path / "out")
    tokpack.adopt(tmp_path / "a", tokenizer=bpe)
    verify(tmp_path / "out")
    assert MMapIndexedDataset(tmp_path / "out").documents == 2


def test_ids_of_64_bits_are_compared_whole(tmp_path: Path) -> None:
    """They may differ by 2^32, and those of fewer bits have the hashes of int32."""
    documents = [[1, 2, 5], [1, 2, 2**32 + 5], [1, 2, -5], [1, 2, 2**32 - 5], [1, 2, 5], [2**32, 2]]
    write(tmp_path / "a", documents, "q")
    report = tokpack.dedup(tmp_path / "a", tmp_path / "out")
    assert report.datasets[0].exact.documents == 1
    kept = MMapIndexedDataset(tmp_path / "out")
    assert [kept.document(i).tolist() for i in range(5)] == [*documents[:4], documents[5]]
    near = tokpack.dedup(tmp_path / "a", tmp_path / "near", near=0.9, ngram=1)
    assert near.datasets[0].near.documents == 0
    write(tmp_path / "narrow", documents[:1], "i")
    tables = []
    for name in ("a", "narrow"):
        hashes = np.empty((MMapIndexedDataset(tmp_path / name).documents, 2), np.uint64)
        token_hashes(
            MMapIndexedDataset(tmp_path / name),
            hashes,
            threads=1,
            on_bytes=lambda size: None,
            sums={},
        )
        tables.append(hashes)
    assert tables[0][0].tolist() == tables[1][0].tolist()
    write(tmp_path / "evals", [[1, 2, 2**32 + 5]], "q")
    found = tokpack.decontaminate(
        tmp_path / "a", against=tmp_path / "evals", unit="tokens", shortest=3
    )
    assert found.datasets[0].matched == 1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit address space")
@pytest.mark.parametrize("command", ["select a --first 1 -o out", "dedup a -o out --near 0.8"])
def test_little_memory_is_no_fault(tmp_path: Path, command: str) -> None:
    """Libraries say in many ways that they cannot be loaded; which, depends on how little it is."""
    write(tmp_path / "a", [[1, 2, 3], [4, 5]])
    for megabytes in range(170, 260, 30):

        def limit(size: int = megabytes << 20) -> None:
            resource.setrlimit(resource.RLIMIT_AS, (size, size))

        run = subprocess.run(
            [sys.executable, "-m", "tokpack", *command.split()],
            cwd=tmp_path,
            preexec_fn=limit,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "fault in tokpack" not in run.stderr
        if run.returncode == 0:
            break

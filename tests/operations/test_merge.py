"""Merge and split: nothing but documents moved from one dataset to another."""

from __future__ import annotations

import json
import resource
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cli_tools import tokpack
from support.documents import DOCUMENTS, Documents, documents_of, plain
from support.faults import limited
from support.indexed_twin import pack_index, read_plainly, write_plainly
from support.manifests import in_order, manifest_for
from support.places import GOLDEN
from support.table_tools import other_table

from tokpack.dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder
from tokpack.dataset.format import prefixes_of
from tokpack.dataset.manifest import plain_facts
from tokpack.dataset.merge import merge
from tokpack.dataset.outputs import NewFiles, new_datasets
from tokpack.dataset.writer import NewDataset
from tokpack.errors import BusyError, OutputError, UsageError
from tokpack.formats.conversion import convert


@pytest.mark.promises
@settings(max_examples=50, deadline=None)
@given(parts=st.lists(DOCUMENTS, min_size=1, max_size=4))
def test_a_merge_is_all_documents_in_order(parts: list[Documents]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{folder}/{number}" for number in range(len(parts))]
        for name, documents in zip(names, parts, strict=True):
            write_plainly(name, plain(documents))
        manifest = merge(names, f"{folder}/all")
        expected = plain([document for documents in parts for document in documents])
        assert read_plainly(f"{folder}/all") == expected
        assert Path(f"{folder}/all.idx").read_bytes() == pack_index(expected)
        in_order(manifest, f"{folder}/all")
        left = {path.name for path in Path(folder).glob("all*")}
        assert left == {"all.bin", "all.idx", "all.json"}


def test_real_datasets_merge_as_the_builder_merges_them(data: Path, tmp_path: Path) -> None:
    groups = [["index/eod", "index/short", "index/long", "index/edge"]]
    if (data / "megatron").is_dir():
        groups.append(
            [f"megatron/ag_news_prompt_{name}_document" for name in ("inputs", "targets")]
        )
    for names in groups:
        inputs = [str(data / name) for name in names]
        dtype = MMapIndexedDataset(inputs[0]).dtype
        inputs = [name for name in inputs if MMapIndexedDataset(name).dtype == dtype]
        merge(inputs, str(tmp_path / "new"), overwrite=True)
        with MMapIndexedDatasetBuilder(tmp_path / "old.bin", dtype) as builder:
            for name in inputs:
                builder.merge_file_(name)
            builder.finalize(tmp_path / "old.idx")
        for suffix in ("bin", "idx"):
            new, old = tmp_path / f"new.{suffix}", tmp_path / f"old.{suffix}"
            assert new.read_bytes() == old.read_bytes()


def test_manifests_are_put_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gpt2 = {"name": "gpt2", "sha256": "ab" * 32, "vocab_size": 50257}
    for name, documents in (("a", [[[1, 2]], []]), ("b", [[[3]]]), ("c", [[[4], [5]]])):
        write_plainly(tmp_path / name, plain(documents))
    manifest_for(tmp_path / "a", gpt2)
    manifest_for(tmp_path / "b", gpt2)
    (tmp_path / "c.json").write_text('{"text": "somebody\'s data"}\n')
    names = [str(tmp_path / name) for name in "abc"]
    manifest = merge(names, str(tmp_path / "all"))
    in_order(manifest, tmp_path / "all")
    assert manifest.tokenizer == gpt2
    assert manifest.options == {"merged": ["a", "b", "c"]}
    assert [entry["name"] for entry in manifest.inputs] == ["a.jsonl", "b.jsonl", "c"]
    assert (manifest.documents, manifest.records) == (4, 4 + 3 + 3)
    assert (manifest.empty, manifest.rejected, manifest.text_bytes) == (4, 2, 200)
    assert caplog.messages == [
        f"no manifest names the tokenizer of {names[2]}, so it was not checked"
    ]
    manifest = merge(names[:2], str(tmp_path / "two"))
    assert manifest.options == {"append_eod": True, "merged": ["a", "b"]}


@pytest.mark.parametrize("scheme", ["file", "local"])
def test_the_url_of_an_input_on_disk_is_the_input(tmp_path: Path, scheme: str) -> None:
    path = f"{tmp_path}/a"
    url = f"{scheme}://{path}"
    write_plainly(path, plain([[[1, 2], [3]], [[4]]]))
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    for source, output in ((path, url), (url, path), (url, url)):
        with pytest.raises(UsageError, match=r"a\.bin"):
            merge([source, source], output, overwrite=True)
        with pytest.raises(UsageError, match=r"a\.bin"):
            convert(source, output, dtype="int64", overwrite=True)
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_taken_output_may_go(tmp_path: Path) -> None:
    a, out = str(tmp_path / "a"), str(tmp_path / "out")
    write_plainly(a, plain([[[1, 2]]]))
    write_plainly(out, plain([[[9]]]))
    Path(f"{out}.docs.parquet").write_bytes(other_table())  # of the old documents
    merge([a], out, overwrite=True)
    assert documents_of(out) == [[[1, 2]]]
    assert not Path(f"{out}.docs.parquet").exists()


def test_names_from_a_glob_count_once(tmp_path: Path) -> None:
    write_plainly(tmp_path / "a.b", plain([[[1]]]))
    a = str(tmp_path / "a.b")
    assert prefixes_of([f"{a}.bin", f"{a}.idx", f"{a}.json"]) == [a]
    assert prefixes_of([a, a, "c.idx", "c.idx"]) == [a, a, "c", "c"]
    write_plainly(f"{a}.bin", plain([[[2]]]))  # whose files are a.b.bin.bin and a.b.bin.idx
    assert prefixes_of([f"{a}.bin"]) == [f"{a}.bin"]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    Path(f"{out}.bin.tokpack.tmp").write_text("left by a crash")

    def new_files() -> NewFiles:
        return new_datasets([out], [], overwrite=False)

    with new_files() as files:
        NewDataset(out, files).append(np.arange(9))
        assert Path(f"{out}.bin.tokpack.tmp").read_bytes() != b"left by a crash"
    with new_files() as files:
        making = NewDataset(out, files)
        making.append(np.zeros(1, np.uint16))
        with pytest.raises(OutputError, match=r"out\.bin: 2 bytes .*\b4:"):
            making.complete(np.uint16, np.array([2]), np.array([0, 1]), {})
    facts = plain_facts(out, 0, 0, 0)
    with new_files() as files:
        with pytest.raises(BusyError, match=r"out\.json"), new_files():
            pass
        making = NewDataset(out, files)
        making.complete(np.uint16, np.zeros(0, np.int32), np.array([0]), facts)
        Path(f"{out}.bin.tokpack.tmp").unlink()
        with pytest.raises(OutputError, match=r"out\.bin\.tokpack\.tmp"):
            files.publish()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plainly(tmp_path / "a", plain([[[1, 2, 3] * 1000]]))
    monkeypatch.chdir(tmp_path)
    for size in (1000, 11_999):
        with limited(resource.RLIMIT_FSIZE, size), pytest.raises(OutputError) as caught:
            merge(["a", "a"], "out")
        assert str(caught.value) == "cannot write out.bin: File too large"
        assert {path.name for path in tmp_path.iterdir()} == {"a.bin", "a.idx"}


def test_large_scratch_arrays_lie_in_a_file_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokpack.dataset.outputs._SCRATCH_IN_MEMORY", 8)
    parts = [[[[1, 2], []], []], [[[3]], [[4, 5, 6]]]]
    for number, documents in enumerate(parts):
        write_plainly(tmp_path / str(number), plain(documents))
    merge([str(tmp_path / "0"), str(tmp_path / "1")], str(tmp_path / "all"))
    assert documents_of(tmp_path / "all") == parts[0] + parts[1]
    with new_datasets([str(tmp_path / "more")], [], overwrite=False) as files:
        assert isinstance(files.scratch(100, np.int64), np.memmap)
    assert not list(tmp_path.glob("more*"))


def test_the_commands(tmp_path: Path) -> None:
    for name, documents in (("a", [[[1, 2]], [[3]]]), ("b", [[[4]]])):
        write_plainly(tmp_path / name, plain(documents))
    done = tokpack("merge", "a.bin", "a.idx", "b", "-o", "all", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "all\n")
    assert "all: 3 documents, 4 tokens as uint16, 8 B" in done.stderr
    done = tokpack("split", "all", "-o", "p", "--documents", 2, "--json", cwd=tmp_path)
    made = json.loads(done.stdout)["datasets"]
    assert [(one["prefix"], one["documents"]) for one in made] == [("p_00000", 2), ("p_00001", 1)]
    done = tokpack("merge", "a", "p_00001", "-o", "v", "--virtual", "-q", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "v\n", "")
    done = tokpack("split", "v", "-o", "w", "--shares", "2,1", cwd=tmp_path)
    assert done.stdout == "w_00000\nw_00001\n"
    assert documents_of(tmp_path / "w_00000") == [[[1, 2]], [[3]]]


def test_the_flags_of_merge_datasets(tmp_path: Path) -> None:
    """Megatron-LM's program takes all datasets of a folder by the order of their prefixes."""
    folder = tmp_path / "folder"
    (folder / "deeper").mkdir(parents=True)
    names = (
        "a-b",
        "a",
        "a.b",
        "B",
        "a_10",
        "a_9",
    )  # file names alone would put a-b.bin before a.bin
    for number, name in enumerate(names):
        write_plainly(folder / name, plain([[[number, 7]], [[number]]]))
    merge([folder / "a", folder / "B"], folder / "virtual", virtual=True)  # no pair of files
    write_plainly(folder / "deeper" / "c", plain([[[99]]]))
    (folder / "README.md").write_text("what it is")
    done = tokpack("merge", "--input", "folder", "--output-prefix", "all", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "all\n")
    merge(
        [folder / name for name in ("B", "a", "a-b", "a.b", "a_10", "a_9")], tmp_path / "expected"
    )
    for suffix in (".bin", ".idx"):
        made = (tmp_path / f"all{suffix}").read_bytes()
        assert made == (tmp_path / f"expected{suffix}").read_bytes()
    (tmp_path / "empty").mkdir()
    (folder / "x.bin").touch()
    for wrong, message in (
        (
            ["--input", "folder", "--output-prefix", "x"],
            "folder/x.idx: missing, while",
        ),
        (["--input", "folder/a", "--output-prefix", "x"], "folder/a: cannot be read: "),
    ):
        done = tokpack("merge", *wrong, cwd=tmp_path)
        assert done.returncode == 1
        assert message in done.stderr
        assert not (tmp_path / "x.idx").exists()
    golden = GOLDEN / "v1" / "multimodal"
    for suffix in (".bin", ".idx"):
        shutil.copyfile(golden.with_suffix(suffix), tmp_path / f"empty/m{suffix}")
    done = tokpack("merge", "--input=empty", "--output-prefix=m", "--multimodal", cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "m.idx").read_bytes() == golden.with_suffix(".idx").read_bytes()

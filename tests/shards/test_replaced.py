"""Planning and committing shards replace nothing that tokpack did not make, and no input."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from support.cli_tools import tokpack
from support.encoding_tools import documents, write_jsonl

from tokpack.cli import main
from tokpack.shards import plan

if TYPE_CHECKING:
    from pathlib import Path

    from shards.conftest import Corpus

PRECIOUS = b'{"text": "of somebody"}\n'


@pytest.fixture
def here(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a text, its tokenizer, and shards of it."""
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "x.jsonl", documents(20))
    shutil.copy(str(corpus.options["tokenizer"]), "tokenizer.json")
    done("plan", "x.jsonl", "-o", "pile")
    done("encode", "--plan", "pile", "--shard", "0", "--workers", "1")
    return tmp_path


def done(*words: str, code: int = 0) -> str:
    more = ("--tokenizer", "tokenizer.json") if words[0] == "plan" else ()
    ran = tokpack(*words, *more, "-q")
    assert ran.returncode == code, ran.stderr
    return ran.stderr


def everything(folder: Path) -> dict[str, bytes]:
    """All files; of reports only that they are there."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "name", ["pile.json", "pile-00000.json", "pile-00000.bin", "pile-00000.idx"]
)
def test_an_input_is_no_output_of_a_plan(here: Path, name: str) -> None:
    (here / name).write_bytes(PRECIOUS)
    before = everything(here)
    words = ("plan", name, "-o", "pile", "--input-format", "jsonl")
    for more in ((), ("--overwrite",)):
        said = done(*words, *more, code=1)
        assert everything(here) == before, said
    assert "is an input" in said
    for path in here.glob("pile.plan/*"):
        path.unlink()
    (here / "pile.plan").rmdir()
    for more in ((), ("--overwrite",)):
        assert "is an input" in done(*words, *more, code=1)
    assert (here / name).read_bytes() == PRECIOUS


@pytest.mark.parametrize("name", ["pile.json", "pile-00000.json", "pile-00000.docs.parquet"])
def test_a_plan_replaces_nothing_of_others(here: Path, name: str) -> None:
    (here / name).write_bytes(PRECIOUS)
    write_jsonl(here / "y.jsonl", documents(30))
    before = everything(here)
    assert "this one y.jsonl" in done("plan", "y.jsonl", "-o", "pile", code=1)
    assert "is not a" in done("plan", "y.jsonl", "-o", "pile", "--overwrite", code=1)
    assert everything(here) == before
    (here / name).unlink()
    done("plan", "y.jsonl", "-o", "pile", "--overwrite")
    assert not (here / "pile-00000.bin").exists()


def test_what_follows_a_new_plan_at_once_stays(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever plans anew may be slow to remove the old shards."""
    write_jsonl(here / "y.jsonl", documents(30))
    replace_version = plan.replace_version

    def replace_and_wait(*arguments: Any) -> Any:
        written = replace_version(*arguments)
        done("encode", "--plan", "pile", "--shard", "0", "--workers", "1")
        done("commit", "pile")
        return written

    monkeypatch.setattr(plan, "replace_version", replace_and_wait)
    words = "plan y.jsonl -o pile --overwrite --tokenizer tokenizer.json -q"
    assert main(words.split()) == 0
    assert "30 documents" in tokpack("verify", "pile").stdout


def test_a_plan_does_not_hide_datasets_that_have_its_names(here: Path) -> None:
    done("encode", "x.jsonl", "-o", "heap-00000", "--tokenizer", "tokenizer.json")
    before = everything(here)
    said = done("plan", "x.jsonl", "-o", "heap", code=1)
    assert "heap-00000.json exists" in said
    assert everything(here) == before
    done("plan", "x.jsonl", "-o", "heap", "--overwrite")
    assert not (here / "heap-00000.bin").exists()


def test_a_commit_replaces_no_other_file(here: Path) -> None:
    (here / "pile.json").write_bytes(PRECIOUS)
    assert "exists and is not a manifest" in done("commit", "pile", code=1)
    assert "exists and is not a manifest" in done("commit", "pile", "--overwrite", code=1)
    assert (here / "pile.json").read_bytes() == PRECIOUS
    done("encode", "x.jsonl", "-o", "other", "--tokenizer", "tokenizer.json")
    (here / "other.json").rename(here / "pile.json")
    assert "pile.json exists and is another dataset" in done("commit", "pile", code=1)
    done("commit", "pile", "--overwrite")
    done("verify", "pile")


def test_a_data_path_replaces_no_other_file(here: Path) -> None:
    words = ("commit", "pile", "--data-path")
    (here / "q").write_bytes(PRECIOUS)
    assert "q exists" in done(*words, "q", code=1)
    assert (here / "q").read_bytes() == PRECIOUS
    done(*words, "q", "--overwrite")
    assert (here / "q").read_text().split()[1] == "pile-00000"
    done(*words, "q")  # it is the same
    before = everything(here)
    own = ("pile.json", "pile-00000.bin", "pile-00000.json", "pile.plan/plan.jsonl")
    for name in ("x.jsonl", "tokenizer.json", *own):
        assert "choose another output" in done(*words, name, "--overwrite", code=1)
    assert "works only on disks" in done(*words, "s3://b/q", code=1)
    assert everything(here) == before

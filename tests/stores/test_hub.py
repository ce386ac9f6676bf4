"""Datasets in repositories of the hub, by the hub's own library, on a server of the test's own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from support import forked
from support.encoding_tools import dataset, documents, write_jsonl
from support.hub_server import hub

import tokpack
from tokpack.dataset.outputs import with_section

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.hub_server import Hub

pytest.importorskip("fsspec")
pytest.importorskip("huggingface_hub")

ROOT = "hf://datasets/owner/name"
ENDS = (".bin", ".idx", ".json")


@pytest.fixture
def there() -> Iterator[Hub]:
    """A hub without a repository."""
    with hub({}) as server:
        yield server


@pytest.fixture
def texts(tokenizer: Path, tmp_path: Path) -> Path:
    """300 documents that are not empty, whose dataset on the disk is ``right``."""
    path = write_jsonl(
        tmp_path / "x.jsonl", [f"{i} {text}" for i, text in enumerate(documents(300))]
    )
    tokpack.encode(path, tmp_path / "right", tokenizer=str(tokenizer), workers=1)
    return path


def run(there: Hub, folder: Path, *words: object, code: int = 0, **settings: str) -> str:
    """A command in a process of its own: the hub's library reads its settings once."""
    environment = os.environ | there.settings() | {"TOKPACK_CACHE": str(folder / "cache")}
    environment |= {"TMPDIR": str(folder), **settings}
    done = forked.run(
        ["-m", "tokpack", *words], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_files_and_datasets_of_the_hub_are_read(
    there: Hub, texts: Path, tokenizer: Path, tmp_path: Path
) -> None:
    files = {f"set{end}": (tmp_path / f"right{end}").read_bytes() for end in ENDS}
    there.repositories["owner/name"] = files | {"x.jsonl": texts.read_bytes(), "README.md": b"-"}
    out = tmp_path / "out"
    given = ("--tokenizer", tokenizer, "--workers", 1)
    run(there, tmp_path, "encode", f"{ROOT}/*.jsonl", "-o", out, *given)
    assert dataset(out) == dataset(tmp_path / "right")
    assert ": ok, " in run(there, tmp_path, "verify", f"{ROOT}/set")


def test_datasets_are_written_to_the_hub(
    there: Hub, texts: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """encode makes the repository and its card; merge and select add to both."""
    given = ("--tokenizer", tokenizer, "--workers", 1, "--keep", "all")
    said = run(there, tmp_path, "encode", texts, "-o", f"{ROOT}/en/wiki", *given)
    assert "made the private dataset repository owner/name" in said
    files = there.repositories["owner/name"]
    assert there.private["owner/name"]
    right = [(tmp_path / f"right{end}").read_bytes() for end in (".bin", ".idx")]
    assert [files[f"en/wiki{end}"] for end in (".bin", ".idx")] == right
    assert "| documents | 300 |" in files["README.md"].decode()
    assert there.commits[-2:] == ["Write wiki.json with tokpack", "Write README.md with tokpack"]
    assert not any("tmp" in one for one in there.commits)  # nothing is written as a trial

    wiki = f"{ROOT}/en/wiki"
    assert "made the" not in run(there, tmp_path, "merge", wiki, wiki, "-o", f"{ROOT}/two")
    run(there, tmp_path, "select", wiki, "-o", f"{ROOT}/long", "--where", "tokens > 10")
    card = files["README.md"].decode()
    for prefix, count in (("en/wiki", 300), ("two", 600)):
        section = card.partition(f"<!-- tokpack {prefix} -->")[2].partition("<!-- /tokpack")[0]
        assert f"| documents | {count:,} |" in section
        assert f'MMapIndexedDataset("{ROOT}/{prefix}")' in section
    assert "<!-- tokpack long -->" in card
    for prefix in ("en/wiki", "two", "long"):
        assert ": ok, " in run(there, tmp_path, "verify", f"{ROOT}/{prefix}")


def test_what_may_not_be_written_is_said_before_the_work(
    there: Hub, texts: Path, tokenizer: Path, tmp_path: Path
) -> None:
    there.repositories["owner/of-others"] = {}
    for output, said in {
        "hf://datasets/others/name/wiki": "403",  # no repository can be made there
        "hf://datasets/owner/of-others/wiki": "403",
        "hf://owner/name": "hf://datasets/OWNER/REPOSITORY/PREFIX",
    }.items():
        given = ("encode", texts, "-o", output, "--tokenizer", tokenizer)
        assert said in run(there, tmp_path, *given, code=1)
    assert not there.commits


def test_the_mode_without_a_network_is_an_error_at_once(there: Hub, tmp_path: Path) -> None:
    there.repositories["owner/name"] = {}
    said = run(there, tmp_path, "verify", f"{ROOT}/set", code=1, HF_HUB_OFFLINE="1")
    assert "offline mode is enabled" in said
    assert "tried for" not in said


def test_a_card_keeps_what_people_write() -> None:
    section = "<!-- tokpack a -->\nnew\n<!-- /tokpack a -->\n"
    own = "# Mine\n\nNothing of tokpack's.\n"
    assert with_section(own, "owner/name", "a", section) == own
    first = with_section(None, "owner/name", "a", section)
    assert first.endswith(section)
    edited = first.replace("new", "old").replace("# name", "# Our corpus") + "\nMore words.\n"
    again = with_section(edited, "owner/name", "a", section)
    assert "# Our corpus" in again
    assert again.endswith("More words.\n")
    assert again.count("new") == 1
    other = section.replace("tokpack a", "tokpack b")
    assert with_section(again, "owner/name", "b", other) == f"{again}\n{other}"

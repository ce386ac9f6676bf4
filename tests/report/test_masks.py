"""Trained tokens of a document are told from the others, on a terminal and on a page."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from support.encoding_tools import byte_tokenizer
from support.report_tools import run, run_json
from support.view_server import Server

from tokpack import GPTDataset, MMapIndexedDatasetBuilder, load_tokenizer
from tokpack.look.pages.dataset_pages import token_text
from tokpack.look.pages.items import DatasetItem

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def chat(tmp_path: Path) -> tuple[str, str]:
    """A dataset of one conversation whose last three tokens are trained, and its tokenizer."""
    tokenizer = tmp_path / "tokenizer.json"
    byte_tokenizer(tokenizer)
    ids = load_tokenizer(tokenizer).encode("hi\nyes")
    prefix = str(tmp_path / "chat")
    with MMapIndexedDatasetBuilder(f"{prefix}.bin", "uint16", tracks=["mask"]) as builder:
        builder.add_item(ids, mask=[0, 0, 0, 1, 1, 1])
        builder.finalize(f"{prefix}.idx")
    return prefix, str(tokenizer)


def test_inspect_marks_trained_tokens(chat: tuple[str, str]) -> None:
    prefix, tokenizer = chat
    said = run("inspect", prefix, "--doc", 0, "--tokenizer", tokenizer)
    head, *rows = said.stdout.splitlines()
    assert "6 tokens, 3 of them trained (marked *)" in head
    ids = [word for row in rows[1::2] for word in row.split()]
    assert [word.endswith("*") for word in ids] == [False] * 3 + [True] * 3
    assert "was made with" not in said.stderr


def test_a_page_marks_trained_tokens(chat: tuple[str, str]) -> None:
    prefix, tokenizer = chat
    item = DatasetItem(prefix, {"tokenizer": tokenizer})
    ids, mask = item.dataset.document(0).tolist(), [0, 0, 0, 1, 1, 1]
    page = str(token_text(ids, item.spelling, 0, with_ids=False, trained=mask))
    assert page.count(' trained" title=') == page.count(", trained") == 3
    assert page.count(' context" title=') == page.count(", not trained") == 3
    assert ", trained" not in str(token_text(ids, item.spelling, 0, with_ids=False))


@pytest.fixture
def spoken(tmp_path: Path) -> tuple[str, str]:
    """A dataset of one encoded conversation, and its tokenizer, of bytes."""
    byte_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "t.jinja").write_text(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    talk = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So <b>."}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": talk}) + "\n")
    names = ("chats.jsonl", "tokenizer.json", "t.jinja", "chats")
    source, tokenizer, template, prefix = (str(tmp_path / name) for name in names)
    run(
        "encode",
        source,
        "-o",
        prefix,
        "--tokenizer",
        tokenizer,
        "--chat",
        "--chat-template",
        template,
    )
    return prefix, tokenizer


def test_stats_show_roles_and_trained_text(spoken: tuple[str, str], tmp_path: Path) -> None:
    prefix, _ = spoken
    rows = run("stats", prefix, "--html", tmp_path / "page.html").stdout
    assert re.search(r"user +10 +0 ", rows)
    assert re.search(r"assistant +15 +7 \(46.7%\)", rows)
    assert re.search(r"chats.jsonl +1 +25 .* 7 \(28.0%\)", rows)
    assert "<code>So &lt;b&gt;.</code>" in (tmp_path / "page.html").read_text()


def test_stats_show_what_was_cut_and_how_full_samples_are(
    spoken: tuple[str, str], tmp_path: Path
) -> None:
    prefix, tokenizer = spoken
    flags = ["--tokenizer", tokenizer, "--chat", "--chat-template", tmp_path / "t.jinja"]
    cut = ["--max-length", 20, "--truncate", "right"]
    run("encode", tmp_path / "chats.jsonl", "-o", tmp_path / "cut", *flags, *cut)
    rows = run("stats", tmp_path / "cut", "--seq-length", 24).stdout
    assert re.search(r"documents cut to length +1 \(100%\)", rows)
    assert re.search(r"packed, best-fit +80.00% of 1 sample filled, 0 cut", rows)
    (said,) = run_json("stats", prefix, "--seq-length", 12)["datasets"]
    expected = GPTDataset(prefix, 12, packing="best_fit").packing_stats
    assert expected
    assert said["packed"] == { "samples": expected.samples, "fill": expected.fill, "cut": 1
    }  # fmt: skip
    assert said["truncated"] == 0
    assert "cut to length" not in run("stats", prefix).stdout


def test_inspect_says_who_speaks(spoken: tuple[str, str]) -> None:
    prefix, _ = spoken
    rows = [row.strip() for row in run("inspect", prefix, "--doc", 0).stdout.splitlines()]
    user, assistant = rows.index("user:"), rows.index("assistant:")
    text = ["".join(row.replace("|", "").split()) for row in rows]
    assert text[user + 1] == "[user]Why?"
    assert text[assistant + 1] == "[assistant]So\N{OPEN BOX}<b>."
    (said,) = run_json("inspect", prefix, "--doc", 0)["documents"]
    assert said["turns"] == [
        {"role": "user", "begin": 0, "end": 10},
        {"role": "assistant", "begin": 10, "end": 25},
    ]
    assert "by mask (uint8)\n" in run("inspect", prefix).stdout


def test_a_page_says_who_speaks(spoken: tuple[str, str], tmp_path: Path) -> None:
    prefix, tokenizer = spoken
    with Server(tmp_path, prefix, "--tokenizer", tokenizer) as server:
        page = server.get("0/document?number=0&from=12").text
    assert re.findall("<h3>(.*?)</h3>", page)[-1:] == ["assistant"]
    assert 'title="token 12, ' in page


def test_stats_count_trained_tokens(chat: tuple[str, str]) -> None:
    prefix, tokenizer = chat
    rows = run("stats", prefix, "--tokenizer", tokenizer).stdout
    assert "trained tokens              3 (50.0%)" in rows
    assert run_json("stats", prefix)["datasets"][0]["trained"] == 3

"""``tokpack view``: pages of a real server, over HTTP and in a real browser."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.places import GOLDEN
from support.report_tools import make, run, sample_texts
from support.view_server import Elements, Server

from tokpack.cli.commands.view import wait_for
from tokpack.dataset import MMapIndexedDataset, index_chunks
from tokpack.quantities import bytes_text
from tokpack.samples.iterate import fingerprint_of
from tokpack.storage.disk.durable import replace_file
from tokpack.trainer.config.config import Config
from tokpack.trainer.config.data import spec_of_config

pytest.importorskip("uvicorn")

from tokpack.look.pages.items import open_items
from tokpack.trainer.checkpoints.history import open_training

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.browser import Browser

EVIL = "<script>document.title='owned'</script>\"'&<img src=x onerror=alert(1)>\u202egnp\x1b[31m"
HUGE = 50_000_000  # tokens of a document, 100 MB
ITEMS = ("text", "evil", "huge", "empty", "blend.yaml", "run", "gone", "broken")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("view")
    make(folder, "text", sample_texts(), trace=True)
    make(folder, "evil", [EVIL, f"second {EVIL}"])
    with (folder / "huge.bin").open("wb") as file:
        file.truncate(2 * (HUGE + 3))
    replace_file(f"{folder}/huge.idx", index_chunks("uint16", np.array([HUGE, 3]), np.arange(3)))
    for path in (GOLDEN / "v1").glob("empty.*"):
        (folder / path.name).write_bytes(path.read_bytes())
    for suffix in (".bin", ".idx"):
        (folder / f"broken{suffix}").write_bytes((folder / f"evil{suffix}").read_bytes())
    (folder / "broken.json").write_text('{"tokpack": 99}')
    blend = {"datasets": {"text": 3.0, "evil": 0.1}, "seq_length": 16, "samples": 500}
    (folder / "blend.yaml").write_text(yaml.safe_dump(blend))
    before = Path.cwd()
    os.chdir(folder)
    try:
        write_run(folder / "run")
        write_run(folder / "gone")
        path = folder / "gone" / "log.jsonl"
        path.write_text(path.read_text().replace('"data_path": ["text"]', '"data_path": ["no"]'))
    finally:
        os.chdir(before)
    with Server(folder, *ITEMS) as served:
        yield served
        code, said = served.end()
    assert code == 0, said
    assert "Traceback" not in said


def write_run(folder: Path) -> None:
    """The log of a run of 40 steps of 8 samples, of which 30 were made."""
    folder.mkdir()
    config = Config(
        data_path=("text",), seq_length=16, global_batch_size=8, micro_batch_size=2, split=None,
        train_samples=320,
    )  # fmt: skip
    train = open_training(spec_of_config(config))[1]
    begin = {
        "event": "begin",
        "iteration": 0,
        "unigram_entropy": 6.25,
        "steps": 40,
        "consumed_samples": 0,
        "fingerprint": fingerprint_of(train, 0),
        "data_parallel_size": 2,
        "config": config.to_dict(),
    }
    steps = [
        {
            "event": "step",
            "iteration": step,
            "consumed_samples": 8 * step,
            "loss": 9.5 if step == 20 else 3 + 10 / step,
            "lr": 1e-4 * step,
            "tokens_per_second": 1e5,
            "grad_norm": None if step == 5 else 1.0,
        }
        for step in range(1, 31)
    ]
    evaluation = {"event": "evaluation", "name": EVIL, "iteration": 20, "loss": 4.5}
    lines = [begin, *steps, evaluation]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.utime(folder / "log.jsonl", (0, 0))


def text_of(server: Server, page: str) -> str:
    """The words of a page that must be there."""
    answer = server.get(page)
    assert answer.code == 200, answer.text
    return " ".join(" ".join(Elements(answer.text).words).split())


# Who may look


def test_only_who_has_the_address_may_look(server: Server) -> None:
    for base in ("/", "//", "/x/", server.base[:-1] + "x/", server.base.upper(), "/style.css"):
        refused = server.get("", base=base)
        assert refused.code == 403
        assert "text" not in refused.text
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "127.0.0.11", ":"):
        assert server.get("", host=host).code == 400
    for host in ("LOCALHOST:8000", "127.0.0.1"):  # as where a port is forwarded
        assert server.get("", host=host).code == 200
    assert server.get("", method="POST").code == 405
    assert server.get("", method="HEAD").text == ""


def test_only_what_was_named_is_shown(server: Server) -> None:
    pages = ("../../../etc/passwd", "..%2f..%2fetc/passwd", "0/../../etc", "0//etc/passwd", "-1/")
    pages += (
        "9" * 5000 + "/",
        f"0/document?number={'9' * 5000}",
        "%D9%A3/",
        "+0/",
        "0x0/",
    )
    for page in (*pages, "99/", "0/step?number=1", "5/document?number=0", "0/log.jsonl"):
        assert server.get(page).code in (403, 404), page
    missing = server.get("0/document?number=<b>9")
    assert missing.code == 404
    assert "&lt;b&gt;9" in missing.text


NAMES = [
    *("by", "dataset", "document", "from", "ids", "number", "rank", "sample", "smooth", "sort"),
    *("still", "text", "to", "where", "with"),
]
VALUES = [
    "",
    "0",
    "-1",
    "x",
    "9" * 400,
    "9" * 5000,
    "4" * 18,
    "1e5",
    "\u0663",
    "1,0",
    "\0",
    "(",
    "nan",
]
PLACES = [
    *("0/", "0/documents", "0/document", "0/search", "4/", "4/sample"),
    *("5/", "5/curves", "5/blend", "5/step", "5/sample", "5/seen"),
]


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(PLACES),
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES) | st.text()), max_size=4),
)
def test_every_query_has_a_page(server: Server, place: str, query: list[tuple[str, str]]) -> None:
    answer = server.get(f"{place}?{urlencode(query, errors='replace')}")
    assert answer.code == 200 or "This cannot be shown" in answer.text


def test_every_answer_forbids_what_no_page_needs(server: Server) -> None:
    for answer in (server.get(""), server.get("77/"), server.get("", host="x"), server.get("0/")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'; connect-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "server" not in answer.headers


# What is shown


def test_every_link_leads_to_a_page_that_is_safe(server: Server) -> None:
    waiting, seen = [server.base], set()
    while waiting and len(seen) < 200:
        address = waiting.pop(0)
        answer = server.get(address[len(server.base) :])
        page = address[len(server.base) :]
        broken, gone = page.startswith("7/"), re.match(r"6/\w", page)
        assert answer.code == (500 if broken else 404 if gone else 200), answer.text
        assert "\u202e" not in answer.text
        assert "\x1b" not in answer.text
        if not address.endswith(".css"):
            elements = Elements(answer.text)
            assert not elements.tags & {"img", "iframe", "style"}
            scripts = re.findall(r"<script([^>]*)>([^<]*)", answer.text)
            names = ("plotly.js", "view.js", "tables.js")
            own = [(f' src="{server.base}{name}" defer', "") for name in names]
            assert scripts in (own[2:], own)
            assert not {name for name in elements.names if name.startswith("on")}
            assert "style" not in elements.names
            assert all(link.startswith(server.base) for link in elements.links)
            kinds = {re.sub(r"\d+", "0", link) for link in seen}
            for link in dict.fromkeys(elements.links):
                if re.sub(r"\d+", "0", link) not in kinds or link.count("/") == 3:
                    waiting += [] if link in seen or link in waiting else [link]
        seen.add(address)
    assert len(seen) > 25


def test_a_dataset_and_its_documents(server: Server) -> None:
    data = MMapIndexedDataset(server.folder / "text")
    front = text_of(server, "")
    for name in ITEMS:
        assert name in front
    assert (
        f"text {data.token_count:,} {data.documents:,} {bytes_text(2 * data.token_count)}" in front
    )
    assert "Run run stopped step 30 of 40 loss 3.3333" in front
    assert "Blend blend.yaml 2 datasets, samples of 16 tokens" in front
    page = server.get("0/")
    assert page.text.count("<svg") >= 2
    assert "Frequency of tokens" in page.text
    listed = text_of(server, "0/documents?from=3")
    first, second = sample_texts()[3:5]
    assert "text.jsonl:4" in listed
    assert " ".join(first.split())[:30] in listed.replace("\\n", " ")
    document = text_of(server, "0/document?number=4&ids=0").replace("\\n", "\n")
    assert "".join(second.split()) in "".join(document.split())
    assert "source" in document
    assert re.search(
        r'<span class="t0[^>]*>[^<]*<small>\d+</small>', server.get("0/document?number=4").text
    )


def test_a_text_is_found(server: Server) -> None:
    texts = sample_texts()
    word = texts[-2].split()[0]
    expected = [number for number, text in enumerate(texts) if word in text]
    found = server.get(f"0/search?text={word}").text
    assert re.findall(r'<th scope="row"><a [^>]*>(\d+)</a>', found)[:5] == [
        f"{number}" for number in expected[:5]
    ]
    assert f"<mark>{word}</mark>" in found
    at = re.search(r'href="[^"]*/(0/document[^"]*)"', found.partition("<table")[2])
    assert at
    tokens = re.findall("<mark[^>]*>([^<]*)<", server.get(at[1].replace("&amp;", "&")).text)
    assert word in "".join(tokens)
    assert "Not found here" in server.get("0/search?text=zzzzqqqq").text
    assert server.get("0/search?text=").code == 404
    assert server.get("2/search?text=a").code == 404  # no tokenizer is known


def test_hostile_text_is_shown_not_obeyed(server: Server) -> None:
    for page in ("1/documents", "1/document?number=0", "1/search?text=second", "5/"):
        text = server.get(page).text
        assert "\\u202e" in text or "owned" in text
        assert "<script>" not in text
        assert "<img" not in text
    found = server.get("1/search?text=onerror").text
    assert "&lt;img src=x <mark>onerror</mark>=" in found


def test_a_document_of_100_mb_is_cut(server: Server) -> None:
    answer = server.get("2/document?number=0")
    assert len(answer.text) < 500_000
    assert "50,000,000 tokens" in answer.text
    last = server.get(f"2/document?number=0&from={HUGE - 2}").text
    assert len(re.findall('class="t[01]"', last)) == 2
    assert "count all 50,000,003 tokens" in text_of(server, "2/")


def test_an_empty_dataset(server: Server) -> None:
    assert "No documents." in text_of(server, "3/")
    assert "No documents here." in text_of(server, "3/documents")
    assert server.get("3/document?number=0").code == 404


def test_a_blend(server: Server) -> None:
    page = text_of(server, "4/")
    assert "500 samples, 8,000 tokens" in page
    assert "used up at" in page
    assert "96.8% 484 1.29 386" in page
    assert "Epochs times that each dataset is passed through" in page
    bars = re.findall(r'width="([\d.]+)" height="10"></rect></svg>([\d.]+)%', server.get("4/").text)
    assert [share for _, share in bars] == ["3.23", "96.8"]
    assert all(abs(float(width) - float(share)) < 0.06 for width, share in bars)
    sample = text_of(server, "4/sample?number=0")
    assert "sample 0 of text, epoch 0" in sample
    assert "text.jsonl:" in sample
    pages = (server.get(f"4/sample?number={number}").text for number in range(30))
    page = next(page for page in pages if page.count("<section>") > 1)  # documents
    assert '<svg class="stack"' in page
    assert {'class="text s0"', 'class="text s1"'} <= set(re.findall('class="text[^"]*"', page))
    assert re.search(r'href="[^"]*/0/documents\?where=[^"]*" title="[^"]*text.jsonl:\d+"', page)


def test_a_run_and_its_steps(server: Server) -> None:
    page = server.get("5/").text
    for words in ("step 30 of 40", "nats per token", "state stopped", "loss 3.333"):
        assert words in text_of(server, "5/"), words
    assert page.count("<figure") == page.count("<svg") == 4
    assert page.count("<circle") == 1  # of one evaluation
    assert re.search("<dt>loss of .*?</dt><dd>4.5</dd>", page)
    some = server.get("5/?from=18&to=22").text
    assert re.findall(r'<th scope="row"><a [^>]*>(\d+)</a>', some) == ["18", "19", "20", "21", "22"]
    assert ">18<" in some.partition("</svg>")[0]
    assert ">17<" not in some
    step = text_of(server, "5/step?number=20")
    assert "samples 152 to 159, micro batches of 2 on 2 ranks, loss 9.5000" in step
    both = server.get("5/step?number=20&rank=1").text
    numbers = re.findall(r'<th scope="row"><a [^>]*>(\d+)</a>', both)
    assert numbers == ["154", "155", "158", "159"]
    sample = server.get("5/sample?number=154").text
    assert "<p>in <a" in sample
    seen = re.search(r'href="[^"]*/(5/seen\?[^"]*)"', sample)
    assert seen
    steps = text_of(server, seen[1].replace("&amp;", "&"))
    assert "20 154 1 0 seen" in steps
    assert server.get("5/step?number=41").code == 404


def test_a_run_whose_data_is_gone(server: Server) -> None:
    assert "step 30 of 40" in text_of(server, "6/")
    answer = server.get("6/step?number=3")
    assert answer.code == 404
    assert "no: no such dataset" in answer.text
    assert "relative to the folder in which the run was started" in answer.text


def test_a_run_in_progress(server: Server) -> None:
    log = server.folder / "run" / "log.jsonl"
    record = {"event": "step", "iteration": 31, "consumed_samples": 248, "loss": 2.5}
    before = log.read_bytes()
    try:
        log.write_bytes(before + json.dumps(record).encode() + b'\n{"event": "st')
        assert "step 31 of 40" in text_of(server, "5/")
        assert "loss 2.5000" in text_of(server, "5/step?number=31")
    finally:  # other tests see the run as it was
        log.write_bytes(before)
        os.utime(log, (0, 0))


def test_what_cannot_be_served(tmp_path: Path) -> None:
    make(tmp_path, "one", ["one document"])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    said = run("view", tmp_path / "other", code=1).stderr
    assert "no dataset, blend or run in this folder" in said
    checkpoint = tmp_path / "run" / "step_00000002"
    checkpoint.mkdir(parents=True)
    for name in ("log.jsonl", "step_00000002/state.json"):
        (tmp_path / "run" / name).touch()
    assert "a checkpoint; open its run" in run("view", checkpoint, code=1).stderr
    assert "there is no folder" in run("view", tmp_path / "no" / "x", code=1).stderr
    (tmp_path / "one").mkdir()  # the dataset's inputs
    assert "give another --port" in run("view", tmp_path / "one", "--port", 99999, code=1).stderr


def test_a_folder_is_what_lies_in_it(tmp_path: Path) -> None:
    make(tmp_path, "text", ["one document", "another"])
    for name, text in (("blend", "datasets: [text]\n"), ("other", "services: {}\n")):
        (tmp_path / f"{name}.yaml").write_text(text)
    for name in ("text.jsonl", "package.json", ".hidden.idx", "broken.idx", "broken.bin"):
        (tmp_path / name).write_text("{}")
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        write_run(tmp_path / "run")
        items = [(one.kind, one.name) for one in open_items([os.curdir], {})]
    finally:
        os.chdir(before)
    assert items == [("dataset", "text"), ("blend", "blend.yaml"), ("run", "run")]


def test_what_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    run_folder, dataset = tmp_path / "run", tmp_path / "wiki"
    run_folder.mkdir()
    for name, file in ((run_folder, run_folder / "log.jsonl"), (dataset, tmp_path / "wiki.idx")):
        waiting = threading.Thread(target=wait_for, args=[str(name)], daemon=True)
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
        file.touch()
        waiting.join(30)
        assert not waiting.is_alive()


# As a browser shows it


def test_a_browser_at_390_pixels_in_the_dark_by_keyboard(server: Server, browser: Browser) -> None:
    browser.look(390, dark=True)
    for page in (
        "",
        "0/",
        "0/documents",
        "1/document?number=1",
        "4/",
        "4/sample?number=0",
        "5/",
        "5/step?number=20",
    ):
        browser.open(server.address + page)
        assert browser.ask("innerWidth") == 390
        assert browser.ask("document.documentElement.scrollWidth") <= 390, page
        assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)"
        assert browser.ask("document.title") != "owned"
        assert browser.ask("document.styleSheets.length") == 1

    # From the front to a document by its number, with nothing but keys.
    browser.open(server.address)
    reach(browser, "text")
    browser.press("Enter")
    browser.arrive("Dataset text")
    reach(browser, "number", "document.activeElement.name")
    browser.write("3")
    browser.press("Enter")
    browser.arrive("Document 3 of text")
    assert "number=3" in browser.ask("location.href")

    # From a line of the log to the step.
    browser.open(f"{server.address}5/")
    reach(browser, "20")
    browser.press("Enter")
    browser.arrive("Step 20 of run")
    browser.look(1000, dark=False)
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(244, 246, 249)"


def test_tables_are_sorted_and_filtered(server: Server, browser: Browser) -> None:
    browser.look(1000, dark=False)
    browser.open(server.address)
    column = (
        "[...document.querySelectorAll('tbody tr:not([hidden])')].map(e => e.cells[{}].innerText)"
    )
    tokens = column.format(1)
    first = browser.ask(tokens)
    browser.ask("[...document.querySelectorAll('th')].find(e => e.innerText === 'tokens').click()")
    assert browser.ask("document.querySelector('[aria-sort]').innerText") == "tokens"
    numbers = [int(text.replace(",", "")) for text in browser.ask(tokens)]
    assert numbers == sorted((int(text.replace(",", "")) for text in first), reverse=True)
    reach(browser, "size")
    browser.press("Enter")
    falling = browser.ask(column.format(3))
    assert falling[0] == "100 MB"
    browser.press("Enter")
    assert browser.ask(column.format(3)) == falling[::-1]
    assert browser.ask("document.querySelector('.filter')") is None  # too few
    browser.open(f"{server.address}0/documents")
    assert len(browser.ask(tokens)) == 20
    reach(browser, "filter these rows", "document.activeElement.placeholder")
    browser.write("JSONL:17")
    assert browser.ask(column.format(0)) == ["16"]


def test_a_reload_keeps_a_table_sorted_and_filtered(server: Server, browser: Browser) -> None:
    """Of this page alone, and in this tab: it may be one that loads itself again."""

    def column(number: int) -> Any:
        rows = "[...document.querySelectorAll('tbody tr:not([hidden])')]"
        return browser.ask(f"{rows}.map(e => e.cells[{number}].innerText)")

    def press(name: str) -> None:
        heads = "[...document.querySelectorAll('th')]"
        browser.ask(f"{heads}.find(e => e.innerText === '{name}').click()")

    def load_again() -> None:
        browser.ask("document.title = 'before'")
        browser.tell("Page.reload")
        browser.wait("document.title !== 'before' && document.readyState === 'complete'")

    browser.open(f"{server.address}0/documents")
    browser.ask("sessionStorage.clear()")  # what an earlier test has left
    load_again()
    before = column(0)
    press("tokens")
    falling = column(0)
    load_again()
    assert column(0) == falling != before
    assert browser.ask("document.querySelector('[aria-sort]').ariaSort") == "descending"
    press("tokens")
    rising = column(0)
    load_again()
    assert column(0) == rising != falling
    reach(browser, "filter these rows", "document.activeElement.placeholder")
    browser.write("JSONL:1")
    some = column(0)
    load_again()
    assert column(0) == some
    assert 0 < len(some) < len(before)
    browser.open(f"{server.address}0/documents?from=20")  # other rows
    assert browser.ask("document.querySelector('[aria-sort]')") is None
    assert column(0) == [str(number) for number in range(20, 40)]


def reach(browser: Browser, wanted: str, what: str = "document.activeElement.textContent") -> None:
    """Press Tab until what has the focus is the wanted thing."""
    for _ in range(200):
        browser.press("Tab")
        if browser.ask(what) == wanted:
            outline = browser.ask("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none"  # where one is can be seen
            return
    raise AssertionError(f"no Tab leads to {wanted}")

"""The page of ``tokpack stats --html``: as text, and as a real browser shows it."""

from __future__ import annotations

import base64
import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.places import GOLDEN
from support.report_tools import make, run, sample_texts
from support.view_server import Elements

from tokpack.dataset import MMapIndexedDataset, index_chunks
from tokpack.look import page, stats
from tokpack.storage.disk.durable import replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from support.browser import Browser

V1 = GOLDEN / "v1"
EVIL = "\x1b[31m<script>document.title='owned'</script>\"'&<img src=x onerror=alert(1)></style><b>"

# What a person would look for: text upon text, shapes beyond the plot, a page wider than its
# window, anything that was loaded or run.
LOOK = """
<script>
const box = e => e.getBoundingClientRect();
const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
  && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
const found = {overlaps: [], outside: [], wide: 0, plots: 0, height: 0, narrow: [], cut: []};
for (const svg of document.querySelectorAll("figure svg")) {
  found.plots++;
  if (box(svg).right > innerWidth || parseFloat(getComputedStyle(svg).width) < 250)
    found.cut.push(svg.outerHTML);
  const texts = [...svg.querySelectorAll("text")];
  texts.forEach((a, i) => texts.slice(i + 1).forEach(b => {
    if (meet(box(a), box(b))) found.overlaps.push([a.textContent, b.textContent]);
  }));
  for (const e of svg.querySelectorAll("text, rect, polyline, circle")) {
    const a = box(e), b = box(svg);
    const across = a.left < b.left - 1 || a.right > b.right + 1;
    if (across || a.top < b.top - 1 || a.bottom > b.bottom + 1)
      found.outside.push(e.outerHTML);
  }
}
for (const e of document.querySelectorAll("tbody th")) {
  const words = document.createRange();
  words.selectNodeContents(e);
  if (box(words).height > 80) found.narrow.push(e.textContent);
}
found.wide = document.documentElement.scrollWidth - innerWidth;
found.height = document.body.scrollHeight;
found.shown = getComputedStyle(document.body).display;
found.title = document.title;
found.back = getComputedStyle(document.body).backgroundColor;
found.loaded = performance.getEntriesByType("resource").length;
const out = document.createElement("pre");
out.id = "found";
out.textContent = JSON.stringify(found);
document.body.append(out);
</script>
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[str, str]:
    """Pages of data of many kinds, made by the command."""
    evil_folder = folder / "<i>&\"'"
    evil_folder.mkdir()
    datasets = {
        "data": [make(folder, "data", sample_texts())],
        "one": [make(folder, "one", ["only one document"])],
        "evil": [make(evil_folder, "<b>x<", [EVIL, EVIL, EVIL * 3, EVIL * 3])],
        "inner": [make(folder, "inner", ["a<|endoftext|>b"] * 3, special_tokens="encode")],
        "empty": [str(V1 / "empty")],
        "gaps": [str(V1 / "gaps")],
        "long": [long_tail(folder / "long")],
    }
    datasets["several"] = [prefix for prefixes in datasets.values() for prefix in prefixes]
    for name, prefixes in datasets.items():
        run("stats", *prefixes, "--html", folder / f"{name}.html")
    return {name: (folder / f"{name}.html").read_text(encoding="utf-8") for name in datasets}


def long_tail(path: Path) -> str:
    """Documents of 1 to 100,000 tokens with a Zipf distribution of ids, and no manifest."""
    rng = np.random.default_rng(1)
    lengths = np.unique(np.geomspace(1, 100_000, 60).astype(np.int32))
    ids = np.minimum(rng.zipf(1.2, int(lengths.sum())), 40_000)
    ids.astype("<u2").tofile(f"{path}.bin")
    replace_file(f"{path}.idx", index_chunks("uint16", lengths, np.arange(len(lengths) + 1)))
    return str(path)


# As text


def test_pages_are_well_formed_and_alone(pages: dict[str, str]) -> None:
    for text in pages.values():
        elements = Elements(text)  # which refuses elements without an end
        assert not elements.tags & {"img", "link", "iframe", "object", "a", "b", "base"}
        assert len(re.findall("<script", text)) == 1 + ("<b>x<" in text)
        assert not elements.names & {"src", "href", "onerror", "onload", "style"}
        assert "default-src 'none'" in text
        assert "url(" not in text
        assert "http" not in re.sub("http-equiv", "", text)
        assert len(text.encode()) < 300_000


def test_pages_hold_the_figures(pages: dict[str, str], folder: Path) -> None:
    figures = stats(MMapIndexedDataset(folder / "data"))
    text = "".join(Elements(pages["data"]).words)
    for word in (f"{figures.tokens:,}", "data.jsonl", "tokenizer.json", "99%", "uint16"):
        assert word in text
    assert figures.duplicates.documents
    assert f"{figures.duplicates.documents} documents equal to an earlier one" in text
    outlines = re.findall(r'class="line s([01]) area" points="([^"]*)"', pages["data"])
    assert [(s, len(points.split())) for s, points in outlines] == [
        (series, 2 * len(figures.histogram) + 2) for series in "01"
    ]
    assert "2 EOD tokens" not in pages["data"]
    assert "3 EOD tokens inside documents" in pages["inner"]


def test_hostile_text_is_shown_not_obeyed(pages: dict[str, str]) -> None:
    elements = Elements(pages["evil"])
    text = "".join(elements.words)
    assert "<script>document.title='owned'</script>" in text
    assert "<b>x<" in text
    assert "\\x1b[31m" in text
    assert "\x1b" not in pages["evil"]
    assert pages["evil"].count("</style>") == 1


def test_pages_are_small_for_large_data(folder: Path) -> None:
    # Six datasets with thousands of sources between them.
    figures = stats(MMapIndexedDataset(folder / "data"))
    sources = tuple(
        type(figures.sources[0])(f"/data/{'x' * 150}/{i}.jsonl", 1, i, 4 * i) for i in range(5000)
    )
    many = type(figures)(**{**vars(figures), "sources": sources})
    assert len(page([many] * 6).encode()) < 300_000


@pytest.mark.usefixtures("pages")
def test_names_that_are_no_text(tmp_path: Path, folder: Path) -> None:
    odd = tmp_path / "odd\udcff\n"
    for suffix in (".bin", ".idx", ".json"):
        shutil.copy(folder / f"one{suffix}", f"{odd}{suffix}")
    run("stats", odd, "--html", tmp_path / "x.html")
    assert "odd\\udcff\\n" in (tmp_path / "x.html").read_text(encoding="utf-8")


def test_the_page_must_be_writable(folder: Path, pages: dict[str, str]) -> None:
    done = run("stats", folder / "one", "--html", folder / "no" / "x.html", code=1)
    assert "x.html" in done.stderr


# As a browser shows it


def look(
    browser: Browser, path: Path, text: str, width: int, *, dark: bool = False
) -> dict[str, Any]:
    """What the script above finds; it may run only where the page's own policy is taken out."""
    path.write_text(re.sub("<meta http-equiv[^>]*>", "", text) + LOOK, encoding="utf-8")
    browser.look(width, dark=dark)
    browser.open(path.as_uri())
    result: dict[str, Any] = json.loads(browser.ask("document.getElementById('found').textContent"))
    return result


@pytest.mark.parametrize("name", ["data", "one", "evil", "empty", "long", "several"])
def test_nothing_overlaps(
    browser: Browser, pages: dict[str, str], tmp_path: Path, name: str
) -> None:
    found = look(browser, tmp_path / "x.html", pages[name], 1000)
    assert found["overlaps"] == []
    assert found["outside"] == []
    assert found["narrow"] == []
    assert found["wide"] <= 0
    assert found["loaded"] == 0
    assert found["shown"] == "block"
    assert found["title"].startswith("Dataset")
    assert found["plots"] == (0 if name == "empty" else 2)
    assert found["height"] > 400


def test_narrow_and_dark_windows(browser: Browser, pages: dict[str, str], tmp_path: Path) -> None:
    for name in ("several", "data", "long"):
        light = look(browser, tmp_path / "light.html", pages[name], 390)
        assert light["wide"] <= 0
        assert light["narrow"] == light["outside"] == light["overlaps"] == []
        assert light["cut"] == []
        assert light["back"] == "rgb(244, 246, 249)"
    dark = look(browser, tmp_path / "dark.html", pages["data"], 1000, dark=True)
    assert dark["back"] == "rgb(21, 24, 28)"


def test_a_wide_table_scrolls_in_its_card(
    browser: Browser, pages: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "x.html"
    path.write_text(pages["several"], encoding="utf-8")
    browser.look(1000, dark=False)
    browser.open(path.as_uri())
    ends = """(() => {
      const widest = [...document.querySelectorAll(".scroll")].reduce(
        (a, b) => b.scrollWidth - b.clientWidth > a.scrollWidth - a.clientWidth ? b : a);
      widest.scrollLeft = widest.scrollWidth;
      const [card, cells] = [widest.closest("section"), widest.querySelector("tbody tr").cells];
      const boxes = [cells[0], cells[cells.length - 1], card].map(e => e.getBoundingClientRect());
      return [widest.scrollLeft, boxes[0].left - boxes[2].left, boxes[2].right - boxes[1].right];
    })()"""
    scrolled, left, right = browser.ask(ends)
    assert scrolled > 100
    assert 0 < left < 30  # the name of the row stays
    assert 0 < right < 30
    browser.look(718, dark=False)  # as much as a sheet of paper
    browser.tell("Emulation.setEmulatedMedia", media="print")
    try:
        scrolled, left, right = browser.ask(ends)
    finally:
        browser.tell("Emulation.setEmulatedMedia", media="")
    assert (scrolled, right > 0) == (0, True)


def test_scripts_do_not_run(browser: Browser, pages: dict[str, str], tmp_path: Path) -> None:
    # Even one that were in the page: its policy forbids it.
    path = tmp_path / "one.html"
    path.write_text(pages["one"] + "<script>document.title = 'owned'</script>", encoding="utf-8")
    browser.open(path.as_uri())
    assert browser.ask("document.scripts.length") == 2
    assert browser.ask("document.title").startswith("Dataset")
    path = tmp_path / "evil.html"
    path.write_text(pages["evil"], encoding="utf-8")
    browser.open(path.as_uri())
    assert browser.ask("document.title").startswith("Dataset")
    assert browser.ask("document.documentElement.outerHTML").count("<script") == 1


def test_tables_of_a_page_alone_are_sorted(
    browser: Browser, pages: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "x.html"
    path.write_text(pages["data"], encoding="utf-8")
    browser.open(path.as_uri())
    tokens = "document.querySelector('.tokens')"
    rows = f"[...{tokens}.querySelectorAll('tbody tr:not([hidden])')]"
    ids = f"{rows}.map(e => +e.cells[0].textContent)"
    before = browser.ask(ids)
    browser.ask(f"{tokens}.tHead.rows[0].cells[0].click()")
    assert browser.ask(ids) == sorted(before, reverse=True) != before
    browser.ask(f"{tokens}.tHead.rows[0].cells[3].click()")
    assert browser.ask("document.querySelectorAll('[aria-sort]').length") == 1
    counts = f"{rows}.map(e => e.cells[3].textContent)"
    numbers = [int(text.replace(",", "")) for text in browser.ask(counts)]
    assert numbers == sorted(numbers, reverse=True)
    browser.ask("document.querySelector('.filter').value = 'the'")
    browser.ask("document.querySelector('.filter').dispatchEvent(new Event('input'))")
    assert 0 < len(browser.ask(ids)) < len(before)


def test_it_prints(browser: Browser, pages: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    path.write_text(pages["data"], encoding="utf-8")
    browser.open(path.as_uri())
    pdf = base64.b64decode(browser.tell("Page.printToPDF")["data"])
    assert pdf.startswith(b"%PDF")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 6

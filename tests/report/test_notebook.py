"""What a notebook shows of objects: ``_repr_html_``, and as a browser shows it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from support.report_tools import make, sample_texts
from support.view_server import Elements

import tokpack
from tokpack.samples.blend.plan import plan_blend

if TYPE_CHECKING:
    from pathlib import Path

    from support.browser import Browser


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("notebook")
    texts = sample_texts()
    one, other = make(folder, "<b>one", texts), make(folder, "other", texts[:20])
    data = tokpack.MMapIndexedDataset(one)
    plan = plan_blend([one, other], [3, 1], samples=600, seq_length=16)
    opened = tokpack.open_blend(plan)
    return {
        "dataset": data, "manifest": data.manifest, "stats": tokpack.stats(one), "plan": plan,
        "blends": opened, "blend": opened.train, "samples": tokpack.GPTDataset(data, 16),
        "packed": tokpack.GPTDataset(one, 16, packing="best_fit", samples=50),
    }  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["dataset", "manifest", "stats", "plan", "blends", "blend", "samples", "packed"],
)
def test_a_table_and_a_picture(things: dict[str, Any], name: str) -> None:
    text = things[name]._repr_html_()
    elements = Elements(text)
    assert {"svg", "style"} <= elements.tags
    assert elements.tags & {"table", "dl"}
    assert not elements.tags & {"script", "link", "img", "b", "body"}
    assert not elements.links
    assert len(text) < 30_000
    words = " ".join(elements.words)
    if name in ("samples", "packed"):
        one = things[name]
        assert f"{len(one):,} samples of 16 tokens" in words
        assert f"epochs {len(one) / one.samples_per_epoch:.2f}" in words
        assert ("% filled" in words) == (name == "packed")
    if name in ("dataset", "manifest", "stats", "samples", "packed"):
        assert f"tokens {things['dataset'].token_count:,}" in words
        assert "tokenizer.json" in words
    else:
        assert "75.0% 450 " in re.sub("[ ,]+", " ", words)
        assert "Epochs" in words
        assert text.count("<polyline") == 2


def test_what_cannot_be_drawn_is_text(things: dict[str, Any], tmp_path: Path) -> None:
    closed = tokpack.MMapIndexedDataset(make(tmp_path, "one", ["one"]))
    closed.close()
    assert closed._repr_html_() is None
    (tmp_path / "one.json").write_text('{"tokpack": 99}')
    assert tokpack.MMapIndexedDataset(tmp_path / "one")._repr_html_() is None


def test_its_style_is_for_itself(browser: Browser, things: dict[str, Any], tmp_path: Path) -> None:
    rules = "table { background: red; color: red; font-size: 40px } dt { float: left; width: 20% }"
    outputs = "".join(thing._repr_html_() for thing in things.values())
    page = tmp_path / "x.html"
    page.write_text(
        f"<!doctype html><meta charset=utf-8><style>{rules}</style><p>mine</p>{outputs}"
    )
    browser.look(900, dark=False)
    browser.open(page.as_uri())
    style = "getComputedStyle(document.querySelector('{}')).{}"
    fonts = [browser.ask(style.format(one, "fontFamily")) for one in ("p", ".tokpack p")]
    assert ["system-ui" in font for font in fonts] == [False, True]
    assert browser.ask(style.format("body", "backgroundColor")) == "rgba(0, 0, 0, 0)"
    assert browser.ask(style.format(".tokpack", "backgroundColor")) == "rgb(244, 246, 249)"
    assert browser.ask(style.format(".tokpack dt", "float")) == "none"
    assert browser.ask(style.format(".tokpack td", "color")) == "rgb(28, 32, 36)"
    assert browser.ask(style.format(".line", "stroke")) == "rgb(41, 102, 211)"
    assert browser.ask("document.documentElement.scrollWidth") <= 900

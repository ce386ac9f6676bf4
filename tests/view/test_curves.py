"""The curves of runs: what a page is sent, and what a browser draws of it."""

from __future__ import annotations

import json
import math
import os
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rounding import gamma
from support.view_server import Server

pytest.importorskip("uvicorn")

from tokpack.look.pages.items import RunItem
from tokpack.look.pages.run_pages import CURVES, smoothed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.browser import Browser

EVIL = "<b>&lt;i\u202e'\""
LONG = 5000


def write_log(folder: Path, steps: int, of: int, base: float, **more: object) -> Path:
    """A log without a configuration; its loss has a spike at step 7."""
    folder.mkdir()
    lines: list[dict[str, object]] = [
        {"event": "begin", "iteration": 0, "steps": of, "unigram_entropy": base + 1.5, **more}
    ]
    for step in range(1, steps + 1):
        loss = base + 5 / step + (3 if step == 7 else 0)
        numbers = {"lr": 1e-4 * step, "grad_norm": 1.0, "tokens_per_second": 1e5}
        lines.append({"event": "step", "iteration": step, "loss": loss, **numbers})
        if step % 10 == 0:
            lines.append({"event": "evaluation", "iteration": step, "name": EVIL, "loss": base + 1})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("curves")
    write_log(folder / "one", 40, 40, 2.0)
    write_log(folder / EVIL, 30, 50, 4.0)
    write_log(folder / "long", LONG, LONG, 1.0)
    with Server(folder, "one", EVIL, "long") as served:
        yield served
        assert served.end()[0] == 0


def curves(server: Server, page: str) -> dict[str, list[dict[str, Any]]]:
    answer = server.get(page)
    assert answer.headers["content-type"] == "application/json"
    assert "\u202e" not in answer.text
    found: dict[str, list[dict[str, Any]]] = json.loads(answer.text)["curves"]
    return found


def test_curves_of_a_run(server: Server) -> None:
    found = curves(server, "0/curves")
    assert list(found) == list(CURVES)
    training, evaluation = found["loss"]
    assert training["x"] == list(range(1, 41))
    assert training["y"] == [float(f"{2 + 5 / x + 3 * (x == 7):.6g}") for x in training["x"]]
    assert (evaluation["x"], evaluation["y"]) == ([10, 20, 30, 40], [3.0] * 4)
    assert (training["series"], evaluation["series"], evaluation["kind"]) == (0, 1, "dashed")
    assert training["step"].endswith("/0/step?number=")
    assert json.loads(server.get("0/curves").text)["unigram"] == 3.5


def test_runs_are_laid_over_each_other(server: Server) -> None:
    found = curves(server, "1/curves?with=0&with=0&with=99&with=x&with=1&smooth=0.9")
    named = [one["name"] for one in found["lr"]]
    assert named == [EVIL.replace("\u202e", "\\u202e"), "one"]
    assert [one["step"].split("/")[-2] for one in found["lr"]] == ["1", "0"]
    kinds = [(one["series"], one["kind"], bool(one["name"])) for one in found["loss"]]
    assert kinds == [
        (0, "faint", False), (0, "", True), (2, "dashed", True),
        (1, "faint", False), (1, "", True), (3, "dashed", True),
    ]  # fmt: skip
    page = server.get("1/?with=0").text
    assert page.count(" checked>") == 1
    assert 'value="2">long' in page


def test_a_part_of_a_long_run_is_sent_in_full(server: Server) -> None:
    [whole, *_] = curves(server, "2/curves")["loss"]
    assert len(whole["x"]) <= 1502 < LONG
    assert max(whole["y"]) == 1 + 5  # no spike is lost, and none made
    [part, *_] = curves(server, "2/curves?from=100&to=1599")["loss"]
    assert part["x"] == list(range(100, 1600))


@given(
    st.lists(st.integers(-(10**9), 10**9).map(float), min_size=1, max_size=50),
    st.sampled_from([0.0, 0.5, 0.9, 0.998]),
)
def test_smoothed_is_a_weighted_mean(heights: list[float], weight: float) -> None:
    result = smoothed([(float(at), height) for at, height in enumerate(heights)], weight)
    for at, height in result:
        weights = [weight ** (at - k) for k in range(int(at) + 1)]
        part = heights[: int(at) + 1]
        expected = math.fsum(w * y for w, y in zip(weights, part, strict=True)) / math.fsum(weights)
        # At most 5 roundings a step, of sums of at most so much; the mass is exact to as many.
        slack = 2 * gamma(6 * len(heights) + 10) * max(map(abs, part))
        assert abs(height - expected) <= slack


def test_the_state_of_a_run(tmp_path: Path) -> None:
    path = write_log(tmp_path / "run", 30, 40, 2.0)
    run, log = RunItem(str(path)), path / "log.jsonl"
    assert run.state == "running"
    os.utime(log, (0, time.time() - 100))
    assert run.state == "stopped"
    last = {"event": "step", "iteration": 39, "loss": 2.0, "seconds_per_step": 5.0}
    with log.open("a") as file:
        file.write(json.dumps(last) + "\n")
    os.utime(log, (0, time.time() - 100))
    assert run.state == "running"  # a line comes every 45 seconds
    with log.open("a") as file:
        file.write(json.dumps({**last, "iteration": 40}) + "\n")
    assert run.state == "finished"


# As a browser shows it


def drawn(browser: Browser, address: str) -> None:
    browser.open(address)
    browser.wait("document.getElementById('curves')?.dataset.drawn !== undefined")


def where(browser: Browser, selector: str) -> dict[str, float]:
    """The place of an element in the window."""
    found = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
    box: dict[str, float] = json.loads(browser.ask(f"JSON.stringify({found})"))
    return box


def test_a_browser_draws_them(server: Server, browser: Browser) -> None:
    browser.look(1200, dark=False)
    drawn(browser, f"{server.address}1/?with=0")
    # Four plots, two beside two.
    places = [where(browser, f"[data-curve={name}]") for name in CURVES]
    assert len({box["x"] for box in places}) == len({box["y"] for box in places}) == 2
    texts = browser.ask("document.getElementById('curves').textContent")
    assert "unigram 5.500" in texts
    assert "<b>&lt;i\\u202e" in texts
    assert browser.ask("document.querySelectorAll('#curves b, #curves .plot i').length") == 0
    strokes = browser.ask(
        "[...document.querySelectorAll('[data-curve=lr] .js-line')].map(e => e.style.stroke).join()"
    )
    assert strokes == "rgb(41, 102, 211),rgb(139, 24, 0)"
    # The sheet of the page has the rules of plotly, which lie over each other.
    assert (
        browser.ask("getComputedStyle(document.querySelector('.main-svg')).position") == "absolute"
    )


def test_a_part_is_chosen_with_the_mouse(server: Server, browser: Browser) -> None:
    browser.look(1200, dark=True)
    drawn(browser, f"{server.address}2/")
    box = where(browser, "[data-curve=loss] .nsewdrag")
    y = box["y"] + box["height"] / 2
    left, right = box["x"] + box["width"] / 4, box["x"] + box["width"] / 2
    for kind, x in (("mousePressed", left), ("mouseMoved", right), ("mouseReleased", right)):
        browser.tell(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1
        )
    browser.wait("document.getElementById('curves').dataset.drawn !== ''")
    found = re.fullmatch(r"\?from=(\d+)&to=(\d+)", browser.ask("location.search"))
    assert found
    first, last = map(int, found.groups())
    assert abs(first - LONG / 4) < LONG / 20
    assert abs(last - LONG / 2) < LONG / 20
    # All four show it, each point of it.
    counts = browser.ask(
        "[...document.querySelectorAll('.plot')].map(e => e.data[0].x.length).join()"
    )
    assert set(counts.split(",")) == {str(last - first + 1)}
    browser.ask("document.getElementById('all').click()")
    browser.wait("document.getElementById('curves').dataset.drawn === ''")
    assert browser.ask("document.getElementById('choose').elements.from.value") == ""


def test_a_point_leads_to_its_step(server: Server, browser: Browser) -> None:
    browser.look(390, dark=False)
    drawn(browser, f"{server.address}0/")
    assert browser.ask("document.documentElement.scrollWidth") <= 390
    box = where(browser, "[data-curve=lr] .nsewdrag")
    browser.ask(f"scrollBy(0, {box['top'] - 100})")
    box = where(browser, "[data-curve=lr] .nsewdrag")
    place = {"x": box["right"] - 1, "y": box["top"] + 2, "button": "left", "clickCount": 1}
    browser.tell("Input.dispatchMouseEvent", type="mouseMoved", **place)
    browser.wait(
        "document.querySelector('[data-curve=lr] .hovertext, [data-curve=lr] .hoverlayer *')"
    )
    for kind in ("mousePressed", "mouseReleased"):
        browser.tell("Input.dispatchMouseEvent", type=kind, **place)
    browser.wait("location.href.includes('step?number=')")
    assert browser.ask("location.href").endswith("0/step?number=40")


def test_without_scripts_there_are_plots(server: Server, browser: Browser) -> None:
    browser.look(390, dark=False)
    browser.tell("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(f"{server.address}1/?with=0&smooth=0.9")
        assert browser.ask("document.querySelectorAll('#curves figure svg polyline').length") == 16
        assert browser.ask("document.querySelector('.plot')") is None
        assert browser.ask("document.documentElement.scrollWidth") <= 390
    finally:
        browser.tell("Emulation.setScriptExecutionDisabled", value=False)

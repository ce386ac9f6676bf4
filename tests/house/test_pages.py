"""README and docs: links and anchors lead somewhere, and the site shows every page."""

from __future__ import annotations

import ast
import re
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from support.places import ROOT

import tokpack
from tokpack import errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CODE = re.compile(r"(?ms)^( *)```.*?^\1```|^(?: {4}|\t).*?$|`[^`\n]+`")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def pages() -> Iterator[Path]:
    yield from sorted(ROOT.glob("*.md"))
    for folder in ("docs", "csrc", "benchmarks", "tests"):
        yield from sorted((ROOT / folder).rglob("*.md"))


def anchors(text: str) -> set[str]:
    """What the headings of a page can be linked by, on GitHub and on the site."""
    headings = re.findall(r"(?m)^#+ +(.*?)\s*$", re.sub(r"(?ms)^```.*?^```", "", text))
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {word.replace(" ", "-") for word in words}


def broken(path: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    for link in LINK.findall(CODE.sub("", path.read_text())):
        if re.match("https?://", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            found.append(f"{path.relative_to(ROOT)}: {link}")
    return found


def test_links_lead_somewhere() -> None:
    assert sum(len(LINK.findall(path.read_text())) for path in pages()) > 100
    assert not [link for path in pages() for link in broken(path)]


@pytest.mark.parametrize("link", ["nothing.md", "#nowhere", "sub/other.md#no", "picture.svg"])
def test_a_broken_link_is_found(tmp_path: Path, link: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "other.md").write_text("# Other\n\n## Yes, here\n")
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n[good](sub/other.md#yes-here) `[x](y.md)` [bad]({link})\n")
    assert broken(page) == [f"page.md: {link}"]


def test_no_bar_is_escaped_in_a_table() -> None:
    """On GitHub it is a bar, on the site a backslash and a bar: write <code>a&#124;b</code>."""
    for path in pages():
        assert not re.findall(r"(?m)^\|.*\\\|.*$", path.read_text()), path


def listed(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from listed(entry)


def test_the_site_shows_every_page_once() -> None:
    project = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    docs = ROOT / "docs"
    shown = list(listed(project["nav"]))
    assert sorted(shown) == sorted(str(p.relative_to(docs)) for p in docs.rglob("*.md"))


def test_pages_of_the_site_link_to_no_other_page() -> None:
    """What is not below docs is no page there, so that the site's strict build fails."""
    for path in (ROOT / "docs").rglob("*.md"):
        links = LINK.findall(CODE.sub("", path.read_text()))
        targets = [(path.parent / link.partition("#")[0]).resolve() for link in links]
        inside = [target.is_relative_to(ROOT / "docs") for target in targets]
        assert all(ok or t.suffix != ".md" for ok, t in zip(inside, targets, strict=True)), path


def test_the_map_leads_to_code() -> None:
    """Each ``path.py:name`` is a file, and a class, a function or a method in it."""
    places = re.findall(r"\b(src/[\w/]+\.py):(\w+(?:\.\w+)*)", (ROOT / "docs/map.md").read_text())
    assert len(places) > 100
    assert not [f"{path}:{name}" for path, name in places if name not in defined(ROOT / path)]


def defined(path: Path) -> set[str]:
    """Classes, functions and ``Class.method``s of a file; nothing where there is no file."""
    tree = ast.parse(path.read_text() if path.exists() else "")
    kinds = ast.ClassDef | ast.FunctionDef
    found = {one.name: one for one in tree.body if isinstance(one, kinds)}
    methods = (
        f"{name}.{inner.name}"
        for name, one in found.items()
        for inner in one.body
        if isinstance(inner, kinds)
    )
    return {*found, *methods}


def test_the_reference_names_what_is_public() -> None:
    named = re.findall(r"(?m)^::: (\S+)$", (ROOT / "docs" / "api.md").read_text())
    assert "tokpack.errors" in named  # all exceptions
    public = set(tokpack.__all__) - set(vars(errors)) - {"__version__"}
    assert {f"tokpack.{name}" for name in public} <= set(named)
    for name in named:
        if name != "tokpack.errors":
            module, _, attribute = name.rpartition(".")
            assert getattr(pytest.importorskip(module), attribute).__doc__, name

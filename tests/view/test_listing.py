"""The documents that a page lists: filtered, sorted, by chance, and as far as a search reaches."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.encoding_tools import byte_tokenizer
from support.report_tools import run
from support.view_server import Elements, Server

import tokpack
from tokpack.dataset import MMapIndexedDataset
from tokpack.errors import UsageError
from tokpack.quantities import bytes_text

pytest.importorskip("uvicorn")
pytest.importorskip("duckdb")

from tokpack.look.pages.dataset_pages import _reach
from tokpack.look.pages.items import Listing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RECORDS: list[dict[str, Any]] = [
    {
        "text": "x" * (1 + 7 * n % 11) + " <b>",
        "score": None if n == 4 else (n * 37 % 50) / 50,
        "lang": "de'\"<i>" if n % 3 else "en",
    }
    for n in range(60)
]
WHERE = "score > 0.5 and lang = 'en'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with a table, a view of it, and one in shards."""
    folder = tmp_path_factory.mktemp("listing")
    tokenizer = byte_tokenizer(folder / "tokenizer.json")
    for name, records in (("data", RECORDS), ("a", RECORDS[:25]), ("b", RECORDS[25:])):
        source = folder / f"{name}.jsonl"
        source.write_text("".join(json.dumps(one) + "\n" for one in records))
        tokpack.encode(
            [str(source)], str(folder / name), tokenizer=str(tokenizer), keep=["score", "lang"],
            workers=1,
        )  # fmt: skip
    said = [{"role": role, "content": f"{role} é"} for role in ("user", "assistant")] * 2
    tokpack.encode(
        [{"messages": said}], str(folder / "chats"), tokenizer=str(tokenizer), chat=True, workers=1,
        chat_template="{% for m in messages %}{{ m.content }}.\n{% endfor %}",
    )  # fmt: skip
    run("select", folder / "data", "-o", folder / "view", "--where", "line % 2 = 0")
    run("merge", folder / "a", folder / "b", "-o", folder / "both", "--virtual")
    return folder


def kept(name: str) -> list[dict[str, Any]]:
    return RECORDS[1::2] if name == "view" else RECORDS


@pytest.mark.parametrize("name", ["data", "view", "both"])
def test_filters_and_orders(folder: Path, name: str) -> None:
    with MMapIndexedDataset(folder / name) as dataset:
        listing, records = Listing(dataset), kept(name)
        wanted = [
            n for n, one in enumerate(records) if (one["score"] or 0) > 0.5 and one["lang"] == "en"
        ]
        assert list(listing.numbers("", "")) == list(range(len(records)))
        assert list(listing.numbers(WHERE, "")) == wanted
        scores = [records[n]["score"] for n in listing.numbers("", "score")]
        known = [score for score in scores if score is not None]
        assert known == sorted(known)
        assert None not in scores[: len(known)]
        falling = [records[n]["score"] for n in listing.numbers(WHERE, "-score")]
        assert falling == sorted((records[n]["score"] for n in wanted), reverse=True)
        sizes = [len(dataset.document(int(n))) for n in listing.numbers("", "-tokens")]
        assert sizes == sorted(sizes, reverse=True)
        some = list(listing.numbers(WHERE, "tokens"))
        assert some == sorted(wanted, key=lambda n: len(dataset.document(n)))  # stable
        for fault in ("score >", "nothing = 1", "(select 1) = 1", "read_text('/etc/passwd') = ''"):
            with pytest.raises(UsageError):
                listing.numbers(fault, "")
        with pytest.raises(UsageError):
            listing.numbers("", "nothing")


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=12),
    st.integers(0, 14),
    st.integers(0, 20),
)
def test_a_search_reaches_as_far_as_it_may(lengths: list[list[int]], first: int, most: int) -> None:
    class Item:
        class dataset:  # noqa: N801
            documents = len(lengths)
            sizes = np.array([size for one in lengths for size in one], np.int32)
            doc_idx = np.cumsum([0, *map(len, lengths)])

    stop, skipped, tokens = len(lengths), False, 0
    for document in range(first, len(lengths)):
        size = sum(lengths[document])
        if tokens + size > most:
            stop, skipped = document, size > most
            break
        tokens += size
    assert _reach(Item, first, most) == (stop, skipped)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with Server(folder, "data", "both", "chats", "view") as served:
        yield served
        assert served.end()[0] == 0


def numbers(server: Server, page: str) -> list[int]:
    text = server.get(page).text
    assert "<i>" not in text.replace("<i class", "")
    found = re.findall(r'<th scope="row"><a [^>]*>(\d+)</a>', text)
    return list(map(int, found))


def test_pages_of_documents(server: Server) -> None:
    chosen = [n for n, r in enumerate(RECORDS) if (r["score"] or 0) > 0.5 and r["lang"] == "en"]
    page = f"0/documents?where={quote(WHERE)}"
    assert numbers(server, page) == chosen[:20]
    words = " ".join(Elements(server.get(page).text).words)
    assert f"{len(chosen)} documents of 60" in words
    assert "score (double), lang (string)" in words
    assert f"{RECORDS[chosen[0]]['score']:.5g} en" in words
    best = sorted(range(60), key=lambda n: -(RECORDS[n]["score"] or -1))
    assert numbers(server, "0/documents?sort=-score&from=20") == best[20:40]
    random = numbers(server, "0/documents?sort=random&seed=1")
    assert len(random) == 20
    assert random == numbers(server, "0/documents?sort=random&seed=1")
    assert random != numbers(server, "0/documents?sort=random&seed=2")
    fault = server.get(f"0/documents?where={quote('<b> > 1')}")
    assert fault.code == 200
    assert "No documents here" in fault.text
    assert 'value="&lt;b&gt; &gt; 1"' in fault.text
    about = " ".join(Elements(server.get("1/document?number=31").text).words)
    assert f"score {RECORDS[31]['score']:.5g}" in about
    assert "lang de'\"<i>" in about


def test_a_source_leads_to_its_documents(server: Server) -> None:
    page = server.get("1/documents?from=20").text
    address = re.search(
        r'href="[^"]*/(1/documents\?where=[^"]*)" title="[^"]*">[^<]*/a.jsonl:25<', page
    )
    assert address
    assert numbers(server, address[1]) == list(range(20))
    assert numbers(server, f"{address[1]}&from=20") == list(range(20, 25))


def test_a_text_that_goes_on_in_the_next_turn_is_marked(server: Server) -> None:
    for found, times in (
        ("r é.\nassist", 2),
        ("user é", 2),
        ("é.\nuser é.\nassistant", 1),
        ("x", 0),
    ):
        page = server.get(f"2/document?number=0&ids=0&text={quote(found)}").text
        assert page.count("<h3>") == 4
        marked = "".join(re.findall(r"<mark[^>]*>([^<]*)<", page)).replace("\\n", "\n")
        assert marked == found * times


def test_a_view_says_of_what_and_its_own_size(server: Server) -> None:
    files = [server.folder / f"view.{suffix}" for suffix in ("json", "selection")]
    size = bytes_text(sum(file.stat().st_size for file in files))
    front = server.get("").text
    row = " ".join(Elements(front).words).partition(" view  a ")[2]
    assert re.match(f"view of data [0-9,]+ 30 {size} tokenizer.json", row)
    page = server.get("3/").text
    assert f'of <a href="{server.base}0/">data</a>: 30 of 60 documents, a list of {size}' in page
    assert "A view of" not in server.get("0/").text
    told = run("stats", server.folder / "data", server.folder / "view").stdout
    assert re.search(r"view of +/\S+", told)

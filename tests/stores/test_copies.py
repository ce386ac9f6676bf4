"""Copies on this machine of what lies on a store: bounded, right, fetched once, without secrets."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import forked
from support.encoding_tools import documents, write_jsonl
from support.stores import Fault, Plan, web_server

import tokpack
from tokpack import MMapIndexedDataset
from tokpack.dataset import mapped
from tokpack.dataset.spelling import find_tokenizer
from tokpack.storage.objects import cache

if TYPE_CHECKING:
    from support.stores import Store

    from tokpack.storage.objects.urls import StoredObject


def test_the_cache(store: Store, url: str, copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is bounded, and gives no byte that is not right."""
    MMapIndexedDataset(url)
    (copied,) = copies.glob("*/one.idx")
    content = copied.read_bytes()
    copied.write_bytes(content[:-1] + b"\1")
    cache._checked.clear()
    MMapIndexedDataset(url)
    assert copied.read_bytes() == content
    for number in range(5):
        store.s3.put(f"small/{number}.txt", bytes(1_000))
        tokpack.storage.near(f"s3://texts/small/{number}.txt")
    monkeypatch.setenv("TOKPACK_CACHE_SIZE", f"{len(content) + 3_500}")
    assert MMapIndexedDataset(url)[0].size  # used again, so the others go first
    store.s3.put("small/5.txt", bytes(1_000))
    tokpack.storage.near("s3://texts/small/5.txt")
    left = sorted(path.name for path in copies.glob("*/*") if path.suffix in (".idx", ".txt"))
    assert left == ["3.txt", "4.txt", "5.txt", "one.idx"]
    monkeypatch.setenv("TOKPACK_CACHE_SIZE", "1KB")
    store.s3.put("small/6.txt", bytes(1_001))
    with pytest.raises(tokpack.UsageError, match=r"/6\.txt .*\b1,001 .* 1,000: .*_CACHE_SIZE"):
        tokpack.storage.near("s3://texts/small/6.txt")
    monkeypatch.setenv("TOKPACK_CACHE_SIZE", "much")
    with pytest.raises(tokpack.UsageError, match="TOKPACK_CACHE_SIZE: 'much'"):
        tokpack.storage.near("s3://texts/small/6.txt")


def test_a_copy_that_others_remove(
    store: Store, url: str, copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the moments when it is there and when it is open, a full cache may lose it."""
    times = iter((True, True, False))

    def removed(objects: list[StoredObject]) -> list[str]:
        paths = tokpack.storage.copies(objects)
        if next(times):
            Path(paths[0]).unlink()
        return paths

    monkeypatch.setattr(mapped, "copies", removed)
    assert MMapIndexedDataset(url)[0].size
    assert not any(times)


def test_one_process_fetches(store: Store, url: str, copies: Path) -> None:
    code = f"import tokpack; print(tokpack.MMapIndexedDataset({url!r})[3].size)"
    slow = Fault("call", "GET", "one.idx", times=1, act=lambda: time.sleep(1))
    store.plan.faults.append(slow)
    patient = os.environ | {"TOKPACK_STORE_TIMEOUT": "30"}
    pipe = subprocess.PIPE
    both = [forked.Process(["-c", code], stdout=pipe, text=True, env=patient) for _ in range(2)]
    answers = [process.communicate(timeout=100)[0] for process in both]
    assert answers[0] == answers[1] == f"{MMapIndexedDataset(url)[3].size}\n"
    assert store.asked("GET", "one.idx") == 1


def test_a_tokenizer(
    store: Store,
    tokenizer: Path,
    copies: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is read once; what it made is read with it again, without a store."""
    monkeypatch.setenv("TOKPACK_TOKENIZER_CACHE", "1")
    name = store.s3.put("words/tokenizer.json", tokenizer)
    inputs = write_jsonl(tmp_path / "few.jsonl", documents(20))
    made = [
        tokpack.encode(str(inputs), tmp_path / str(number), tokenizer=given, workers=1)
        for number, given in enumerate((str(tokenizer), name))
    ]
    own = {"files": [{**made[0].tokenizer["files"][0], "path": tokenizer.name}]}
    assert made[1].tokenizer == made[0].tokenizer | own | {"name": name}
    assert (tmp_path / "0.bin").read_bytes() == (tmp_path / "1.bin").read_bytes()
    assert find_tokenizer(MMapIndexedDataset(tmp_path / "1")).tokenizer is not None
    assert store.asked("GET", "words/tokenizer.json") == 1
    assert store.asked("HEAD", "words/tokenizer.json") == 1
    with web_server(tokenizer.parent, Plan()) as address:
        host = address.replace("http://", "http://me:hunter2@")
        secret = f"{host}/{tokenizer.name}?sig=SECRET"
        again = tokpack.encode(str(inputs), tmp_path / "2", tokenizer=secret, workers=1)
    assert again.tokenizer == made[1].tokenizer | {"name": f"{address}/{tokenizer.name}"}
    told = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    told += " ".join(map(str, tmp_path.rglob("*"))).encode()
    assert b"SECRET" not in told
    assert b"hunter2" not in told
    with pytest.raises(tokpack.TokenizerError, match=r"words/none\.json"):
        tokpack.load_tokenizer("s3://texts/words/none.json")
    with pytest.raises(tokpack.UsageError, match=r"tokenizer_config\.json"):
        tokpack.load_tokenizer(name, tokenizer_type="HuggingFaceTokenizer")


def test_a_url_has_no_secret(copies: Path) -> None:
    for secret in ("https://me:hidden@host/pile", "https://host/pile?sig=hidden"):
        with pytest.raises(tokpack.UsageError, match=r"^https://host/pile: ") as raised:
            MMapIndexedDataset(secret)
        assert "hidden" not in str(raised.value)

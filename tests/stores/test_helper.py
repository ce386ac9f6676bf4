"""Names of objects, and the process that asks stores for those that may fork."""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import pytest
from support.faults import plant
from support.stores import Fault

from tokpack import storage
from tokpack.encoding.options import default_output
from tokpack.errors import StoreError
from tokpack.storage import open_file
from tokpack.storage.objects import access

if TYPE_CHECKING:
    from support.stores import Store


def test_a_name_has_no_secret() -> None:
    assert default_output(["https://h/d/x.jsonl?X-Amz-Signature=SECRET"]) == "x"
    assert default_output(["s3://texts/web/*.jsonl"]) == "web"


def test_what_is_a_url() -> None:
    assert storage.is_url("s3://b/k")
    assert storage.is_url("hf://datasets/owner/name/x.parquet")
    assert not storage.is_url("hf://owner/name:split")
    assert not storage.is_url("/data/x:y//z")
    assert storage.shown("https://a:b@h/p?q=1#f") == "https://h/p"
    assert storage.shown("sftp://a:b@h/p") == "sftp://h/p"
    assert (
        storage.shown("abfs://box@me.dfs.core.windows.net/p")
        == "abfs://box@me.dfs.core.windows.net/p"
    )


def test_a_question_that_is_interrupted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of the answer is not taken for the answer to the next question."""
    first = store.s3.put("interrupted/x.jsonl", b"abc")
    second = store.s3.put("interrupted/y.jsonl", b"abcdef")
    sizes = [access.objects.named(url).size for url in (first, second)]

    with monkeypatch.context() as patch:
        plant(Connection, "recv", KeyboardInterrupt(), patch=patch)
        with pytest.raises(KeyboardInterrupt):
            access.objects.stat(first)
    assert [access.objects.named(url).size for url in (second, first)] == sizes[::-1] == [6, 3]


def test_a_helper_that_dies_is_begun_again(store: Store) -> None:
    found = access.objects.named(store.s3.put("dies/x.jsonl", b"abc"))
    for _ in range(2):
        assert access._helper is not None
        assert access._helper._process is not None
        access._helper._process.kill()
        access._helper._process.wait()
        assert access.objects.read(found, 0, 3) == b"abc"
        assert access.objects.stat(found.url) == found


def test_a_helper_that_cannot_begin_is_an_error(store: Store) -> None:
    url = store.s3.put("begins/x.jsonl", b"abc")
    access.shut_down()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(StoreError, match=rf"^{url}: .*\bprocess\b"):
            access.objects.stat(url)
        access.shut_down()
        patch.setattr(sys, "executable", "/none")
        with pytest.raises(FileNotFoundError):
            access.objects.stat(url)
    assert access.objects.named(url).size == 3


def test_an_open_file_is_read_on_in_a_fork(store: Store) -> None:
    """The requests that were under way have no threads there."""
    content = bytes(range(256)) * (40 << 10)
    with open_file(store.s3.put("forked/x.bin", content)) as file:
        store.plan.faults.append(Fault("call", "GET", "forked", act=lambda: time.sleep(0.3)))
        for at in range(4):
            assert file.read(1 << 20) == content[at << 20 : (at + 1) << 20]
        child = os.fork()
        if not child:
            signal.alarm(30)  # as SIGALRM it says that the child hung
            os._exit(0 if file.read() == content[4 << 20 :] else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert file.read() == content[4 << 20 :]

"""One S3 server for all tests of this folder, and a proxy before it that makes faults."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from support.encoding_tools import byte_tokenizer, dataset, documents, write_jsonl
from support.stores import S3, Encode, Plan, Store, environment, faulty_proxy, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

import tokpack
from tokpack.storage.objects import access, cache

pytest.importorskip("obstore")
if find_spec("moto") is None:  # it is another process that imports it
    pytest.skip("moto is not installed", allow_module_level=True)


@pytest.fixture(scope="session")
def served() -> Iterator[Store]:
    plan = Plan()
    with s3_server() as endpoint, faulty_proxy(endpoint, plan) as proxy:
        yield Store(S3(endpoint), plan, proxy, endpoint)


@pytest.fixture
def store(served: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store, without faults so far, named by the environment."""
    served.plan.faults.clear()
    served.plan.requests.clear()
    served.plan.page = 1000
    for name, value in environment(served.proxy).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    # pytest changes one variable all the time: nobody needs another helper for that.
    settings = access._settings
    monkeypatch.setattr(access, "_settings", lambda: settings() | {"PYTEST_CURRENT_TEST": ""})
    return served


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a store refuses is given up four times as early: for faults that stay."""
    monkeypatch.setattr(access, "_TURNS", 1)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JSON lines that are large enough for two workers and several requests."""
    folder = tmp_path_factory.mktemp("texts")
    return write_jsonl(folder / "x.jsonl", documents(9_000, words=150))


@pytest.fixture
def encode(tokenizer: Path, tmp_path: Path) -> Encode:
    """Encodes inputs into ``name`` in the test's folder, with two workers; gives .bin and .idx."""

    def encode(inputs: str, name: str = "out", *, workers: int = 2) -> tuple[bytes, bytes]:
        tokpack.encode(inputs, tmp_path / name, tokenizer=str(tokenizer), workers=workers)
        return dataset(tmp_path / name)

    return encode


@pytest.fixture(scope="session")
def disk(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    """A dataset on the disk, of 1,500 documents, which is 1 MB; its prefix."""
    folder = tmp_path_factory.mktemp("disk")
    inputs = write_jsonl(folder / "texts.jsonl", documents(1_500, words=150))
    tokpack.encode(str(inputs), folder / "one", tokenizer=str(tokenizer), trace=True, workers=1)
    return folder / "one"


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache of a machine that has looked at nothing so far."""
    monkeypatch.setenv("TOKPACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_checked", set())
    return tmp_path / "cache" / "stores"


@pytest.fixture
def url(store: Store, disk: Path, copies: Path) -> str:
    """The same dataset on the store; its prefix."""
    return store.put(disk)

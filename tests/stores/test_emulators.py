"""The same on GCS and on Azure: encode from there and to there, in shards too, merge, and look."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.emulators import azure, gcs
from support.encoding_tools import dataset, documents, write_jsonl
from support.optional import program

import tokpack
from tokpack import MMapIndexedDataset, storage
from tokpack.cli.main import main
from tokpack.errors import StoreError
from tokpack.storage.objects import Range, access, upload

if TYPE_CHECKING:
    from collections.abc import Iterator

AZURITE = program("azurite-blob") or ""


@pytest.fixture(params=["gs", "az"])
def root(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The URL of an empty container of an emulator, which the environment names."""
    if request.param == "gs" and find_spec("gcp_storage_emulator") is None:
        pytest.skip("no emulator of GCS: pip install gcp-storage-emulator")
    if request.param == "az" and not AZURITE:
        pytest.skip("no emulator of Azure: npm install -g azurite")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("TOKPACK_CACHE", str(tmp_path / "cache"))
    settings = access._settings
    monkeypatch.setattr(access, "_settings", lambda: settings() | {"PYTEST_CURRENT_TEST": ""})
    with gcs(tmp_path) if request.param == "gs" else azure(AZURITE) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield f"{request.param}://texts"


def test_as_on_a_disk(root: str, tokenizer: Path) -> None:
    texts = write_jsonl(Path("x.jsonl"), documents(900, words=150))
    given = {"tokenizer": str(tokenizer), "workers": 1}
    tokpack.encode(texts, "right", **given)
    right = dataset(Path("right"))
    upload.compose(f"{root}/in/x.jsonl", [Range.of_file("x.jsonl")])
    upload.compose(f"{root}/in/y.jsonl", [Range.of_file("x.jsonl")])

    tokpack.encode(f"{root}/in/x.jsonl", f"{root}/out/one", **given)
    assert fetched(f"{root}/out/one") == right
    tokens = MMapIndexedDataset("right").token_count
    assert tokpack.verify(f"{root}/out/one").tokens == tokens
    assert main(["inspect", f"{root}/out/one", "--doc", "17"]) == 0
    assert MMapIndexedDataset(f"{root}/out/one")[17].tolist() == (
        MMapIndexedDataset("right")[17].tolist()
    )

    pile = f"{root}/out/pile"
    words = f"plan {root}/in -o {pile} --shard-size 100KB --tokenizer {tokenizer}"
    assert main(words.split()) == 0
    assert main(f"encode --plan {pile} --shard 0-1 -q".split()) == 0
    assert main(["commit", pile]) == 0
    assert tokpack.verify(pile).tokens == 2 * tokens

    split = tokpack.split(f"{root}/out/one", f"{root}/out/s", parts=3)
    tokpack.merge([prefix for prefix, _ in split], f"{root}/out/whole")
    assert fetched(f"{root}/out/whole") == right
    assert tokpack.verify(f"{root}/out/whole").tokens == tokens
    assert not [url for url in access.objects.listed(f"{root}/out/") if "tmp" in url]
    with pytest.raises(tokpack.OutputError, match=r"whole\.bin"):
        tokpack.merge(pile, f"{root}/out/whole")
    with pytest.raises(tokpack.OutputError, match="gs://nowhere/"):
        tokpack.merge(pile, f"{root.replace('texts', 'nowhere')}/whole")
    # An object that is replaced meanwhile.
    found = access.objects.named(f"{root}/in/x.jsonl")
    upload.write(b"{}", found.url)
    with pytest.raises(StoreError, match=rf"{found.url} changed\b"):
        storage.Ranges([(found, 0, 2)]).take()


def fetched(prefix: str) -> tuple[bytes, ...]:
    """The .bin and .idx on a store."""
    found = [access.objects.named(prefix + suffix) for suffix in (".bin", ".idx")]
    return tuple(storage.Ranges([(one, 0, one.size) for one in found]).take())

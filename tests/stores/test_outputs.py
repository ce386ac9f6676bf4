"""Outputs on stores: a dataset is there whole or not at all, whatever the store does."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING

import pytest
from support import forked
from support.encoding_tools import DRIVER, dataset
from support.stores import Fault, Store

import tokpack
from tokpack.cli.main import main
from tokpack.encoding import plan
from tokpack.encoding.resume import complete_datasets
from tokpack.sources import parts
from tokpack.storage.objects import urls

if TYPE_CHECKING:
    from pathlib import Path

MANY = 5 << 20  # bytes of a part: the least that S3 allows


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with uploads in several parts."""
    monkeypatch.setattr(urls, "PART_BYTES", MANY)
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def right(texts: Path, tokenizer: Path) -> tuple[bytes, bytes]:
    """The .bin, which has several parts, and the .idx."""
    prefix = texts.with_name("right")
    tokpack.encode(texts, prefix, tokenizer=str(tokenizer), workers=2)
    found = dataset(prefix)
    assert len(found[0]) > MANY
    return found


def there(store: Store, prefix: str) -> tuple[bytes | None, bytes | None]:
    """The .bin and .idx on the store, and nothing half done beside them."""
    assert store.s3.uploads() == 0
    assert not [key for key in store.s3.keys(prefix) if "tmp" in key]
    return store.s3.get(f"{prefix}.bin"), store.s3.get(f"{prefix}.idx")


def test_an_output_on_a_store(
    store: Store, texts: Path, tokenizer: Path, work: Path, right: tuple[bytes, bytes]
) -> None:
    """Also from a store; run again it is found, with another option it is refused or replaced."""
    given = {"tokenizer": str(tokenizer), "workers": 2}
    made = tokpack.encode(texts, "s3://texts/out/one", trace=True, **given)
    assert there(store, "out/one") == right
    assert json.loads(store.s3.get("out/one.json") or b"") == json.loads(made.to_json())
    assert store.s3.get("out/one.docs.parquet")
    assert not list(work.iterdir())
    order = [line.split()[1].partition("?")[0] for line in store.plan.requests if "PUT" in line]
    assert order[-1] == "/texts/out/one.json"

    store.plan.requests.clear()
    again = tokpack.encode(texts, "s3://texts/out/one", trace=True, **given)
    assert again == made
    assert not [line for line in store.plan.requests if not line.startswith(("GET", "HEAD"))]

    with pytest.raises(tokpack.OutputError, match=r"texts/out/one\.json"):
        tokpack.encode(texts, "s3://texts/out/one", append_eod=False, **given)
    tokpack.encode(texts, "s3://texts/out/one", append_eod=False, overwrite=True, **given)
    assert 0 < len(store.s3.get("out/one.bin") or b"") < len(right[0])
    assert store.s3.get("out/one.docs.parquet") is None
    assert not list(work.iterdir())


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 1 MiB."""
    monkeypatch.setattr(plan, "MIN_PART_BYTES", 1 << 20)
    monkeypatch.setitem(parts.make_parts.__kwdefaults__, "smallest_bytes", 1 << 20)


@pytest.mark.usefixtures("small_parts")
def test_several_files(
    store: Store, texts: Path, tokenizer: Path, work: Path, right: tuple[bytes, bytes]
) -> None:
    """Each with its manifest, the whole one last; with another number all others are removed."""
    url = "s3://texts/several/one"
    given = {"tokenizer": str(tokenizer), "workers": 2}
    made = tokpack.encode(texts, url, files=2, **given)
    assert len(made.pieces or ()) == 2
    names = [f"several/one-{n:05d}-of-00002" for n in (0, 1)]
    keys = {f"{name}.{kind}" for name in names for kind in ("bin", "idx", "json")}
    assert set(store.s3.keys("several/")) == {"several/one.json", *keys}
    assert b"".join(store.s3.get(f"{name}.bin") or b"" for name in names) == right[0]
    assert tokpack.encode(texts, url, files=2, **given) == made
    with pytest.raises(tokpack.OutputError, match=r"texts/several/one\.json"):
        tokpack.encode(texts, url, files=1, **given)
    store.plan.faults[:] = [Fault("403", "PUT", "one-00001-of-00003.idx")]
    with pytest.raises(tokpack.OutputError, match="s3://texts/several/"):
        tokpack.encode(texts, url, files=3, overwrite=True, **given)
    assert store.s3.get("several/one.json") is None
    store.plan.faults.clear()
    tokpack.encode(texts, url, files=3, overwrite=True, **given)
    names = [f"several/one-{n:05d}-of-00003" for n in range(3)]
    assert b"".join(store.s3.get(f"{name}.bin") or b"" for name in names) == right[0]
    tokpack.encode(texts, url, files=1, overwrite=True, **given)
    assert there(store, "several/one") == right
    assert not list(work.iterdir())


def test_faults_that_pass(
    store: Store, texts: Path, tokenizer: Path, work: Path, right: tuple[bytes, bytes]
) -> None:
    """At each request, also those whose answers are lost: parts, their end, the manifest's."""
    for method, path in (
        ("PUT", "two.tokpack.tmp"),
        ("POST", "two.bin?uploads"),
        ("PUT", "two.bin?uploadId"),
        ("POST", "two.bin?uploadId"),
        ("PUT", "two.idx"),
        ("PUT", "two.json"),
    ):
        store.plan.faults += [
            Fault(kind, method, path, times=1) for kind in ("503", "reset", "lost")
        ]
    tokpack.encode(texts, "s3://texts/two/two", tokenizer=str(tokenizer), workers=2)
    assert all(fault.done for fault in store.plan.faults)
    store.plan.faults.clear()
    assert there(store, "two/two") == right
    assert json.loads(store.s3.get("two/two.json") or b"")["bin"]["bytes"] == len(right[0])
    assert not list(work.iterdir())


@pytest.mark.usefixtures("hasty")
def test_faults_that_stay(store: Store, texts: Path, tokenizer: Path, work: Path) -> None:
    """One error, no manifest and no upload under way; the next run sends what was made."""
    url = "s3://texts/stay/three"
    for method, path in (
        ("PUT", "three.tokpack.tmp"),
        ("POST", "three.bin?uploads"),
        ("PUT", "three.bin?uploadId"),
        ("POST", "three.bin?uploadId"),
        ("PUT", "three.idx"),
        ("PUT", "three.json"),
    ):
        store.plan.faults[:] = [Fault("403", method, path)]
        with pytest.raises(tokpack.OutputError, match=r"s3://texts/stay/three.*\(403 Injected\)"):
            tokpack.encode(texts, url, tokenizer=str(tokenizer), workers=2)
        assert store.s3.get("stay/three.json") is None
        assert store.s3.uploads() == 0
        # Nothing is begun for a store that cannot be written; later nothing is lost.
        assert bool(list(work.iterdir())) == (path != "three.tokpack.tmp")
    store.plan.faults.clear()
    tokpack.encode(texts, url, tokenizer=str(tokenizer), workers=2)
    assert store.s3.get("stay/three.json")
    assert not list(work.iterdir())


def test_a_kill_while_it_sends(
    store: Store, texts: Path, tokenizer: Path, work: Path, right: tuple[bytes, bytes]
) -> None:
    """The next run aborts the upload that was under way, and sends the dataset."""
    arrived, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        arrived.set()
        goes_on.wait(100)

    store.plan.faults.append(Fault("call", "PUT", "four.bin?", after=1, act=hold))
    options = {"inputs": str(texts), "output": "s3://texts/four/four", "workers": 2}
    options["tokenizer"] = str(tokenizer)
    driver = f"import tokpack.storage.objects.urls as ranges\nranges.PART_BYTES = {MANY}\n{DRIVER}"
    run = forked.Process(["-c", driver, json.dumps(options)])
    assert arrived.wait(100)
    while not store.s3.uploads():  # until its other part is there
        time.sleep(0.02)
    run.kill()
    run.wait()
    store.plan.faults.clear()
    goes_on.set()
    tokpack.encode(texts, options["output"], tokenizer=str(tokenizer), workers=2)
    assert there(store, "four/four") == right
    assert not list(work.iterdir())


@pytest.mark.parametrize("root", ["s3://texts/", "s3://texts//", "S3A://texts/"])
def test_an_output_is_no_input(root: str, store: Store, tokenizer: Path, work: Path) -> None:
    url = store.s3.put("seven.json", b'{"text": "a b"}\n')
    with pytest.raises(tokpack.UsageError, match=r"s3://texts/seven\.json"):
        tokpack.encode(url, f"{root}seven", tokenizer=str(tokenizer), overwrite=True, workers=1)
    assert store.s3.get("seven.json") == b'{"text": "a b"}\n'
    named = store.s3.put("eight.json", tokenizer)
    with pytest.raises(tokpack.UsageError, match=r"s3://texts/eight\.json"):
        tokpack.encode(url, f"{root}eight", tokenizer=named, overwrite=True, workers=1)
    assert store.s3.get("eight.json") == tokenizer.read_bytes()


def test_a_store_that_does_not_answer_is_not_taken_for_an_empty_one(
    texts: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next question to it would be waited for as long again."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION", "ALLOW_HTTP"):
        monkeypatch.setenv(f"AWS_{name}", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    options = tokpack.EncodeOptions(inputs=(str(texts),), output="s3://bucket/out")
    with pytest.raises(tokpack.StoreError, match=r"out\.json"):
        complete_datasets(options)


@pytest.mark.parametrize(
    "case",
    [
        (
            "s3://nobucket/x",
            {},
            r"s3://nobucket/x.*: .*'nobucket' .*AWS_ENDPOINT_URL=",
        ),
        ("s3://texts/x", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "AWS_ENDPOINT_URL=http:.*:1 "),
        ("https://127.0.0.1/x", {}, r"^https://127\.0\.0\.1/x: "),
        ("s3://texts/", {}, "^output 's3://texts/' .*folder"),
    ],
)
def test_stores_that_cannot_be_written(
    store: Store,
    texts: Path,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[str, dict[str, str], str],
) -> None:
    """One error, before any work."""
    output, changes, message = case
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(tokpack.TokpackError, match=message):
        tokpack.encode(texts, output, workers=1)
    assert not list(work.iterdir())


def test_the_command(
    store: Store,
    texts: Path,
    tokenizer: Path,
    work: Path,
    right: tuple[bytes, bytes],
    *,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It names what it made by its URL; --scratch says where it works."""
    words = f"encode {texts} -o s3://texts/eight/eight --tokenizer {tokenizer} --scratch here"
    assert main(words.split()) == 0
    done = capsys.readouterr()
    assert done.out == "s3://texts/eight/eight\n"
    assert "s3://texts/eight/eight: " in done.err
    assert "next: train on it where it is" in done.err
    assert there(store, "eight/eight") == right
    assert not list((work / "here").iterdir())

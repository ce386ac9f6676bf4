"""Inputs on stores: the same bytes as from a disk, or one clear error, whatever the store does."""

from __future__ import annotations

import gzip
import json
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import zstandard
from support import forked
from support.certificates import certificate
from support.encoding_tools import dataset
from support.stores import KEYS, Fault, Plan, web_server

import tokpack
from tokpack.errors import StoreError
from tokpack.sources import discover
from tokpack.sources.detect import NoTextError
from tokpack.storage.objects import access

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.stores import Encode, Store


class Local(NamedTuple):
    """A file of JSON lines, its bytes, and the .bin and .idx that are right for them."""

    path: Path
    content: bytes
    dataset: tuple[bytes, bytes]


@pytest.fixture(scope="module")
def local(texts: Path, tokenizer: Path) -> Local:
    tokpack.encode(str(texts), texts.with_suffix(""), tokenizer=str(tokenizer), workers=2)
    return Local(texts, texts.read_bytes(), dataset(texts.with_suffix("")))


def archive(path: Path, content: bytes) -> bytes:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.jsonl", content)
    return path.read_bytes()


def parquet(path: Path, content: bytes) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    rows = [json.loads(line)["text"] for line in content.splitlines()]
    table = pyarrow.table({"id": range(len(rows)), "text": rows})
    pyarrow.parquet.write_table(table, path, row_group_size=1000)
    return path.read_bytes()


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.zst", "x.jsonl.gz", "x.zip", "x.parquet"])
def test_same_bytes_as_from_a_disk(
    store: Store,
    local: Local,
    encode: Encode,
    tmp_path: Path,
    name: str,
) -> None:
    pytest.importorskip("pyarrow.parquet") if name.endswith("parquet") else None
    make: dict[str, Callable[[bytes], bytes]] = {
        ".jsonl": bytes,
        ".zst": zstandard.compress,
        ".gz": lambda content: gzip.compress(content, 1),
        ".zip": lambda content: archive(tmp_path / "x.zip", content),
        ".parquet": lambda content: parquet(tmp_path / "x.parquet", content),
    }
    url = store.s3.put(f"one/{name}", make[Path(name).suffix](local.content))
    assert encode(url) == local.dataset
    manifest = tokpack.Manifest.load(str(tmp_path / "out"))
    assert manifest.inputs[0]["name"] == url
    assert manifest.inputs[0]["mtime_ns"] == 0
    # It is found again by its ETag, also under a new time, and nothing of it is read.
    store.s3.put(f"one/{name}", store.s3.get(f"one/{name}") or b"")
    store.plan.requests.clear()
    assert encode(url) == local.dataset
    assert len(store.plan.requests) < 20


def test_plain_files_are_read_once(store: Store, local: Local, encode: Encode) -> None:
    """Parts ask for their own range, and for little of the next one's."""
    url = store.s3.put("once/x.jsonl", local.content)
    store.plan.sent = 0
    encode(url)
    assert store.plan.sent < 1.9 * len(local.content)


@pytest.fixture(scope="module")
def tree(served: Store) -> dict[str, bytes]:
    line = b'{"text": "a"}\n'
    names = {
        "tree/a/1.jsonl": line,
        "tree/a/2.jsonl": line,
        "tree/a/.hidden.jsonl": line,
        "tree/b/x/3.jsonl": line,
        "tree/b/README.md": b"# no document",
        "tree/b/data": line,
        "tree/b/notes": b"plain text",
        "tree/c d/4 %23?[é].jsonl": line,
        "tree/work.unfinished/5.jsonl": line,
        "tree/set.json": b"{}",
        "tree/set.idx": b"MMIDIDX\0\0",
    }
    for name, content in names.items():
        served.s3.put(
            name.replace("%", "%25").replace(" ", "%20").replace("?", "%3F").replace("é", "%C3%A9"),
            content,
        )
    return names


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("tree/a/1.jsonl", ["a/1.jsonl"]),
        ("tree/a/*", ["a/1.jsonl", "a/2.jsonl"]),
        ("tree/*/[12].jsonl", ["a/1.jsonl", "a/2.jsonl"]),
        ("tree/**/*.jsonl", ["a/1.jsonl", "a/2.jsonl", "b/x/3.jsonl", "c d/4 %23?[é].jsonl"]),
        ("tree/b", ["b/data", "b/x/3.jsonl"]),
        ("tree/?", ["a/1.jsonl", "a/2.jsonl", "b/data", "b/x/3.jsonl"]),
        ("tree/*/x/*.jsonl", ["b/x/3.jsonl"]),
        (
            "tree",
            ["a/1.jsonl", "a/2.jsonl", "b/data", "b/x/3.jsonl", "c d/4 %23?[é].jsonl"],
        ),
    ],
)
def test_folders_and_patterns(
    store: Store, tree: dict[str, bytes], path: str, found: list[str]
) -> None:
    names = [source.name for source in discover([f"s3://texts/{path}"])]
    assert names == [f"s3://texts/tree/{name}" for name in found]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("s3://texts/tree/a/9.jsonl", r"^s3://texts/tree/a/9\.jsonl: no "),
        ("s3://texts/tree/z*", r"^s3://texts/tree/z\*: no "),
        ("s3://nobucket/x.jsonl", "'nobucket' .*AWS_ENDPOINT_URL=http"),
        ("s3://", "^s3://: .*s3://BUCKET/"),
        ("s3://texts/a//b", "empty path segment"),
        ("nothing://x/y", "Protocol not known: nothing"),
    ],
)
def test_what_is_not_there(store: Store, tree: dict[str, bytes], path: str, message: str) -> None:
    with pytest.raises(tokpack.InputError, match=message):
        discover([path])


def test_lists_of_inputs(store: Store, tree: dict[str, bytes]) -> None:
    listed = store.s3.put("list.txt", b"s3://texts/tree/a/*.jsonl\n# no\ns3://texts/tree/b/data\n")
    assert len(discover([f"@{listed}"])) == 3
    assert len(discover([f"{listed[:-8]}tree/a/1.jsonl, s3://texts/tree/a/2.jsonl"])) == 2


def test_listings_of_several_beginnings(store: Store) -> None:
    """Of S3, which lists by prefix, and of a store that lists the folder once."""
    pytest.importorskip("fsspec")
    names = ("many/a-0", "many/a-1", "many/b-0", "many/c-0", "many/a-below/d", "b-0")
    for begin in ("s3://texts/listed/", "memory:///listed/"):
        for name in names:
            access.objects.put(begin + name, b"x", "create")
        folder = f"{begin}many/"
        found = access.objects.listed(f"{folder}a-", f"{folder}b-", f"{folder}a-1")
        assert sorted(found) == [begin + name for name in names[:3]]
        assert access.objects.listed(f"{folder}zz") == {}


def test_objects_that_are_not_what_their_names_say(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """As files: pointers and pages are refused, what downloads have left is passed over."""
    line = b'{"text": "a"}\n'
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n"
    for name, content in {
        "odd/a.jsonl": line,
        "odd/b.jsonl.part": line,
        "odd/c.jsonl~": line,
        "odd/d.pdf": b"%PDF-1.7\n",
        "odd/e.png": pointer,
        "data.json": b'{\n"data": [{"text": "a"}]}',
        "twice.jsonl.gz": gzip.compress(gzip.compress(line)),
    }.items():
        store.s3.put(name, content)
    for named in ("odd", "odd/*l*"):
        caplog.clear()
        assert [one.name for one in discover([f"s3://texts/{named}"])] == ["s3://texts/odd/a.jsonl"]
        assert "unfinished downloads: 1" in caplog.text
        assert "backups: 1" in caplog.text
    (source,) = discover(["s3://texts/data.json"], json_path="data")
    assert (source.format, source.json_path) == ("json", "data")
    assert discover(["s3://texts/twice.jsonl.gz"])[0].compression == "gz+gz"
    for name, content in (("odd/x.parquet", pointer), ("odd/y.jsonl.zst", b"<!doctype html>")):
        store.s3.put(name, content)
        for named in (name, "odd", f"{name[:5]}*"):
            with pytest.raises(NoTextError, match=f"^s3://texts/{name}: "):
                discover([f"s3://texts/{named}"])
        store.s3.delete(name)


PASSING = {
    "HEAD": ["503", "409", "reset"],
    "list-type": ["503", "429", "reset", "cut"],
    "GET": ["503", "409", "500", "reset", "cut", "cut", "stall", "503"],
}


@pytest.mark.parametrize("operation", PASSING)
def test_faults_that_pass(
    store: Store,
    local: Local,
    encode: Encode,
    operation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of them at another request of one run, some at the same one."""
    monkeypatch.setenv("TOKPACK_STORE_TIMEOUT", "3")  # a loaded machine's store may take a second
    store.s3.put("faults/x.jsonl", local.content)
    method = operation if operation == "HEAD" else "GET"
    path = "list-type" if operation == "list-type" else "faults/x.jsonl"
    for number, kind in enumerate(PASSING[operation]):
        after = number // 2 if operation == "GET" else 0
        store.plan.faults.append(Fault(kind, method, path, after=after, times=1))
    pattern = "*" if operation == "list-type" else "x"
    assert encode(f"s3://texts/faults/{pattern}.jsonl") == local.dataset
    assert all(fault.done for fault in store.plan.faults)


@pytest.mark.usefixtures("hasty")
def test_a_fault_that_stays(store: Store, local: Local, encode: Encode, tmp_path: Path) -> None:
    """The run ends with one line, and leaves no dataset; when, a simulated clock has shown."""
    store.s3.put("stays/x.jsonl", local.content)
    store.plan.faults.append(Fault("cut", "GET", "stays/x.jsonl", after=2))
    with pytest.raises(StoreError, match=r"^s3://texts/stays/x\.jsonl: .* \d+ s\)$"):
        encode("s3://texts/stays/x.jsonl")
    assert not list(tmp_path.glob("out.[bij]*"))


@pytest.mark.parametrize(
    ("after", "goes"),
    [(1, False), (3, False), (2, True)],  # at requests of discovery, and of parts
)
def test_an_object_that_changes(
    store: Store, local: Local, encode: Encode, tmp_path: Path, after: int, *, goes: bool
) -> None:
    store.s3.put("changes/x.jsonl", local.content)

    def change() -> None:
        if goes:
            store.s3.delete("changes/x.jsonl")
        else:
            store.s3.put("changes/x.jsonl", local.content.replace(b"the", b"THE"))

    store.plan.faults[:] = [Fault("call", "GET", "changes/x", after=after, times=1, act=change)]
    with pytest.raises(StoreError, match=r"/changes/x\.jsonl changed\b"):
        encode("s3://texts/changes/x.jsonl")
    assert not list(tmp_path.glob("out.[bij]*"))


def test_a_run_goes_on(store: Store, local: Local, encode: Encode, tmp_path: Path) -> None:
    """What was encoded before the store failed is not read again; not so if it has changed."""
    url = store.s3.put("resume/x.jsonl", local.content)
    store.plan.faults.append(Fault("403", "GET", "resume/x", beyond=5 << 20))
    with pytest.raises(StoreError, match=r"/resume/x\.jsonl: .*\(403 Injected\): "):
        encode(url, workers=1)
    store.plan.faults.clear()
    assert (tmp_path / "out.unfinished").is_dir()
    assert encode(url) == local.dataset


@pytest.mark.parametrize(
    "case",
    [
        ({}, "403", r"\(403 Forbidden\): .*AWS_PROFILE, .*AWS_ACCESS_KEY_ID"),
        ({}, "404", "AWS_ENDPOINT_URL=http.* 404 Not Found: "),
        (
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
            "",
            "AWS_ENDPOINT_URL=http:.*:1 ",
        ),
        (
            dict.fromkeys(KEYS, "") | {"AWS_SHARED_CREDENTIALS_FILE": "/dev/null"},
            "",
            "^s3: no .*AWS_PROFILE, .*AWS_ACCESS_KEY_ID",
        ),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_PROFILE": "nobody"}, "", "nobody.*AWS_PROFILE"),
        ({"TOKPACK_STORE_TIMEOUT": "soon"}, "", "TOKPACK_STORE_TIMEOUT .*'soon'"),
        ({"AWS_CA_BUNDLE": "/none.pem"}, "", "/none.pem, .*AWS_CA_BUNDLE"),
    ],
)
def test_settings_that_are_wrong(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    encode: Encode,
    case: tuple[dict[str, str], str, str],
) -> None:
    """One error before any work, which names the setting."""
    changes, status, message = case
    for name, value in changes.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    if status:
        store.plan.faults += [Fault(status, method) for method in ("GET", "HEAD")]
    with pytest.raises(tokpack.TokpackError, match=message) as caught:
        encode("s3://texts/tree/a/1.jsonl")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_profile(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tree: dict[str, bytes]
) -> None:
    """Credentials, region and endpoint from the files that other programs use."""
    for name in (*KEYS, "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(name)
    (tmp_path / "config").write_text(
        f"[profile mine]\nregion = eu-central-1\nendpoint_url = {store.proxy}\n"
        "aws_access_key_id = AKIAPROFILE\naws_secret_access_key = x\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert len(discover(["s3://texts/tree/a"])) == 2
    assert store.plan.requests


@pytest.mark.usefixtures("store")
def test_https_and_secrets(
    local: Local,
    encode: Encode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A signed URL, for GET alone, of a server with its own certificate."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    plan = Plan()
    with web_server(local.path.parent, plan, tls=certificate(tmp_path), only="GET") as address:
        host = address.replace("https://", "https://me:hunter2@")
        url = f"{host}/x.jsonl?X-Amz-Signature=SECRET&x=1"
        assert encode(url) == local.dataset
        plan.faults.append(Fault("403", "GET", after=4))
        with pytest.raises(StoreError) as caught:
            encode(url, "again")
    told = str(caught.value) + caplog.text
    for path in tmp_path.rglob("*.json"):
        told += path.read_text()
    assert f"{address}/x.jsonl" in told
    assert "SECRET" not in told
    assert "hunter2" not in told


def test_a_web_server_whose_file_changes(
    store: Store, local: Local, encode: Encode, tmp_path: Path
) -> None:
    """It gives no ETag, but only a time."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(local.content)
    os.utime(path, (1e9, 1e9))
    change = lambda: path.write_bytes(local.content.replace(b"the", b"THE"))  # noqa: E731
    plan = Plan([Fault("call", "GET", after=7, times=1, act=change)])
    with (
        web_server(tmp_path, plan, tags=False) as address,
        pytest.raises(StoreError, match=r"/x\.jsonl changed\b"),
    ):
        encode(f"{address}/x.jsonl")


def test_a_web_server_without_ranges(store: Store, local: Local, encode: Encode) -> None:
    with (
        web_server(local.path.parent, Plan(), ranges=False) as address,
        pytest.raises(StoreError, match=r"/x\.jsonl: .*\bno ranges\b"),
    ):
        encode(f"{address}/x.jsonl")


def test_a_file_system_of_fsspec(local: Local, encode: Encode, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    assert encode(f"file://{local.path.parent}/*.jsonl") == local.dataset
    assert encode(f"file://{local.path.parent}/x.jsonl", "one", workers=1) == local.dataset


@pytest.mark.parametrize(
    ("url", "blocked", "extra"),
    [
        ("s3://texts/x", "obstore", "s3"),
        ("gs://texts/x", "obstore", "gcs"),
        ("abfs://texts@me.dfs.core.windows.net/x", "obstore", "azure"),
        ("https://127.0.0.1/x", "obstore", "remote"),
        ("hf://datasets/a/b/x.jsonl", "fsspec", "remote"),
    ],
)
def test_a_missing_package(url: str, blocked: str, extra: str) -> None:
    code = (
        f"import sys; sys.modules[{blocked!r}] = None\n"
        "from tokpack import storage\n"
        "from tokpack.storage.objects import access; access._never_forks = True\n"
        "from tokpack.errors import UsageError\n"
        f"try: storage.find({url!r})\n"
        "except UsageError as error: print(error)\n"
    )
    done = forked.run(["-c", code], capture_output=True, text=True, check=True)
    assert f"pip install 'tokpack[{extra}]'" in done.stdout

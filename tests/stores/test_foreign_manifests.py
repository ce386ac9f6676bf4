"""Manifests of others: no command asks a host, reads a file elsewhere, or runs code for one."""

from __future__ import annotations

import hashlib
import json
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from support import forked
from support.encoding_tools import byte_tokenizer, write_jsonl
from support.stores import Plan, environment, web_server
from support.view_server import Server

import tokpack
from tokpack import GPTDataset, MMapIndexedDataset
from tokpack.dataset.manifest import TRUST
from tokpack.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WATCHED = """
import os, sys
log = os.open(os.environ["OPENED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def note(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        os.write(log, os.fsencode(arguments[0]) + b"\\n")
sys.addaudithook(note)
from tokpack.cli import main
sys.exit(main(sys.argv[1:]))
"""
COMMANDS = (
    "inspect v",
    "inspect v --doc 0",
    "verify v",
    "verify v --quick",
    "stats v",
    "trace v --doc 0",
    "blend v --seq-length 8 --show 1",
    "merge v -o new",
    "merge v -o new --virtual",
    "split v -o new --parts 2",
    "convert v new.npy --to npy",
)
OPEN_ALL = ("inspect v --doc 0", "verify v --quick", "merge v -o new --virtual")
JINJA = "{{ cycler.__init__.__globals__.os.system('touch ran') }}"


class Away(NamedTuple):
    """A dataset that is not the manifest's, ``secret``, on a disk and on a server."""

    folder: Path
    address: str
    plan: Plan


class Done(NamedTuple):
    """How a command ended, and the files that it opened."""

    code: int
    said: str
    opened: str


@pytest.fixture(scope="module")
def away(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Away]:
    folder = tmp_path_factory.mktemp("away")
    (folder / "bucket").mkdir()
    byte_tokenizer(folder / "bucket" / "tokenizer.json")
    source = write_jsonl(folder / "texts.jsonl", ["the secret", "of another"] * 20)
    tokpack.encode(
        source, folder / "bucket" / "secret", tokenizer=folder / "bucket" / "tokenizer.json",
        trace=True, workers=1,
    )  # fmt: skip
    evil = {"version": 1, "templates": {"u": JINJA}, "refs": {"evil.idx": ["{{u}}"]}}
    (folder / "bucket" / "evil.idx").write_text(json.dumps(evil))
    plan = Plan()
    with web_server(folder, plan) as address:
        yield Away(folder, address, plan)


@pytest.fixture
def here(away: Away, tmp_path: Path) -> Path:
    """The folder of a foreign manifest; its piece lies there."""
    folder = tmp_path / "here"
    folder.mkdir()
    for path in (away.folder / "bucket").glob("secret.*"):
        (folder / path.name).write_bytes(path.read_bytes())
    tokpack.merge(folder / "secret", folder / "v", virtual=True)
    for path in folder.glob("secret.*"):
        path.unlink()
    away.plan.requests.clear()
    return folder


def change(manifest: Path, prefix: str) -> None:
    values = json.loads(manifest.read_text())
    values["pieces"][0]["prefix"] = prefix
    manifest.write_text(json.dumps(values))


def command(words: str, folder: Path, away: Away, **env: str) -> Done:
    """A command in a folder, with credentials for a store that counts its requests."""
    log = folder / "opened.log"
    settings = {**os.environ, **environment(away.address), "HF_ENDPOINT": away.address, **env}
    settings |= {"OPENED": str(log), "TERM": "dumb"}
    process = ["-c", WATCHED, *words.split()]
    done = forked.run(
        process, env=settings, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    opened = log.read_text()
    log.unlink()
    return Done(done.returncode, done.stdout + done.stderr, opened)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_piece_elsewhere_is_neither_read_nor_asked_for(
    words: str, away: Away, here: Path
) -> None:
    secret, evil = away.folder / "bucket" / "secret", away.folder / "bucket" / "evil"
    prefixes = (
        str(secret),
        os.path.relpath(secret, here),
        f"sub/../{os.path.relpath(secret, here)}",
        f"{away.address}/bucket/secret",
        "s3://bucket/secret",
        f"file://{secret}",
        f"reference::file://{evil}",
        f"reference::{away.address}/bucket/evil",
        f"filecache::s3://bucket/secret::file://{secret}",
    )
    # All commands open it alike, so some try one of each kind.
    for prefix in prefixes if words in OPEN_ALL else prefixes[::4]:
        change(here / "v.json", prefix)
        done = command(words, here, away)
        assert done.code == 1, (prefix, done.said)
        assert "v.json" in done.said or "chain" in done.said
        assert str(away.folder) not in done.opened
        assert away.plan.requests == []
        assert sorted(os.listdir(here)) == ["v.json"]


def test_what_a_user_trusts_is_opened(away: Away, here: Path) -> None:
    """By the folder or the URL that a variable names; by another one it is not."""
    secret = away.folder / "bucket" / "secret"
    for prefix, trusted, other in (
        (os.path.relpath(secret, here), str(away.folder), f"{away.folder}/buck"),
        (f"{away.address}/bucket/secret", f"/x, {away.address}/bucket", f"{away.address}/buck"),
        ("s3://bucket/secret", "s3://bucket", "s3://bucket/secrets,s3://buck"),
    ):
        change(here / "v.json", prefix)
        refused = command("inspect v --doc 0", here, away, **{TRUST: other})
        assert (refused.code, away.plan.requests) == (1, [])
        assert f"set {TRUST}=" in refused.said
        done = command("inspect v --doc 0", here, away, **{TRUST: trusted})
        assert done.code == 0, done.said
        away.plan.requests.clear()
    change(here / "v.json", f"reference::file://{away.folder}/bucket/evil")
    done = command("inspect v", here, away, **{TRUST: f"/,reference::file://{away.folder}"})
    assert done.code == 1
    assert "chains of file systems are not supported" in done.said


def test_a_url_of_a_user_is_no_chain_either(away: Away, tmp_path: Path) -> None:
    evil = f"reference::file://{away.folder}/bucket/evil"
    for words in (f"inspect {evil}", f"encode {evil}.idx -o x", f"verify {evil}"):
        done = command(words, tmp_path, away)
        assert (done.code, "chain" in done.said) == (1, True)
        assert not any(name.startswith(str(away.folder)) for name in done.opened.split("\n"))
    away.plan.requests.clear()


def test_samples_and_a_manifest_on_a_store(away: Away, here: Path) -> None:
    change(here / "v.json", str(away.folder / "bucket" / "secret"))
    for opens in (MMapIndexedDataset, lambda prefix: GPTDataset(prefix, 8)):
        with pytest.raises(FormatError, match=r"v\.json: .*/secret'.*\bTOKPACK_TRUST\b"):
            opens(here / "v")
    for prefix in ("../bucket/secret", "s3://other/secret", f"{away.address}/bucket/secret"):
        change(here / "v.json", prefix)
        (away.folder / "mine").mkdir(exist_ok=True)
        (away.folder / "mine" / "v.json").write_bytes((here / "v.json").read_bytes())
        done = command("inspect s3://mine/v", here, away)
        assert (done.code, "is outside" in done.said) == (1, True), done.said
        assert {request.split()[1].partition("?")[0] for request in away.plan.requests} <= {
            "/mine/v.idx", "/mine/v.bin", "/mine/v.json",
        }  # fmt: skip


def foreign_tokenizers(away: Away) -> Iterator[dict[str, Any]]:
    """What a manifest may say so that another file is read, or a host is asked."""
    file = away.folder / "bucket" / "tokenizer.json"
    raw = file.read_bytes()
    right = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    places = (
        str(file),
        f"{away.address}/bucket/tokenizer.json",
        "s3://bucket/tokenizer.json",
        f"file://{file}",
        f"reference::file://{away.folder}/bucket/evil.idx",
        "owner/name",
    )
    for place in places:
        yield {"name": place, "files": None}
        yield {"name": place, "files": [{**right, "path": place, "bytes": len(raw) + 1}]}
        yield {"name": place, "arguments": {"tokenizer_type": "HuggingFaceTokenizer"}, "files": 1}
        if not place.startswith("/"):
            yield {"name": place, "files": [{**right, "path": place}]}


@pytest.mark.parametrize(
    "words",
    ["inspect v --doc 0 --json", "inspect v", "verify v", "stats v", "samples v --seq-length 8"],
)
def test_a_tokenizer_elsewhere_is_neither_read_nor_asked_for(
    words: str, away: Away, here: Path
) -> None:
    for suffix in ("bin", "idx", "json"):
        (here / f"v.{suffix}").write_bytes((away.folder / f"bucket/secret.{suffix}").read_bytes())
    own = json.loads((here / "v.json").read_text())
    every = list(foreign_tokenizers(away))
    for changes in every if words.startswith("inspect") else every[::3]:
        changed = {**own, "tokenizer": own["tokenizer"] | changes}
        (here / "v.json").write_text(json.dumps(changed))
        done = command(words, here, away)
        assert "the secret" not in done.said
        assert str(away.folder) not in done.opened, changes
        assert away.plan.requests == []
    (here / "v.json").write_text(json.dumps(own))
    done = command("inspect v --doc 0 --json", here, away)
    assert "the secret" in done.said  # by the path and the checksum of its file


def test_pages_and_training_ask_nobody_either(
    away: Away, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("uvicorn")
    for name, value in {**environment(away.address), "HF_ENDPOINT": away.address}.items():
        monkeypatch.setenv(name, value)
    for suffix in ("bin", "idx", "json"):
        (here / f"own.{suffix}").write_bytes((away.folder / f"bucket/secret.{suffix}").read_bytes())
    own = json.loads((here / "own.json").read_text())
    own["tokenizer"] |= {"name": f"{away.address}/bucket/tokenizer.json", "files": None}
    (here / "own.json").write_text(json.dumps(own))
    change(here / "v.json", f"{away.address}/bucket/secret")
    server = Server(here, "own")
    pages = [server.get(page).text for page in ("", "0/", "0/document?number=0")]
    assert server.get("0/search?text=secret").code == 404  # there is no tokenizer to read it with
    assert server.end()[0] == 0
    assert "another one" in "".join(pages) or "not recorded" in "".join(pages)
    done = command("view v", here, away)
    assert (done.code, "is outside" in done.said) == (1, True), done.said
    if find_spec("torch"):
        words = "train --data-path v --num-layers 1 --hidden-size 8 --num-attention-heads 1"
        done = command(f"{words} --seq-length 8 --train-iters 1 --vocab-size 300", here, away)
        assert (done.code, "is outside" in done.said) == (1, True), done.said
    assert away.plan.requests == []


def test_merge_says_what_will_not_be_opened(away: Away, here: Path) -> None:
    secret = away.folder / "bucket" / "secret"
    done = command(f"merge {secret} -o far --virtual", here, away)
    assert done.code == 0
    assert f"{TRUST}={away.folder}/bucket" in done.said
    assert command("inspect far", here, away).code == 1
    assert command("inspect far", here, away, **{TRUST: str(away.folder)}).code == 0

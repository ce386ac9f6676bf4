"""Finding tokenizers: paths, the flags of other tools, names, caches, downloads, failures."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from support import forked
from support.tiny_tokenizers import ALPHABET, EOD, pair, save, tiny
from support.tokenizers_twin import block, rows

from tokpack.errors import FormatError, TokenizerError
from tokpack.tokenizers import Tokenizer, load_tokenizer
from tokpack.tokenizers.hub import check_etag
from tokpack.tokenizers.load import count_ids, load_described

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WORDS = {"<unk>": 0, EOD: 1, "a": 2}


@pytest.fixture(autouse=True)
def _no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of this test's own, and no way to download unless a test gives one."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TOKPACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def ids(tokenizer: Tokenizer, text: str, mode: str = "auto") -> list[int]:
    encoder = tokenizer.encoder(dtype="int32", append_eod=True, special_tokens=mode)
    return rows(encoder.encode(*block([text])))[0]


# Paths and the flags of other preprocessors.


@pytest.mark.parametrize("eos", ["abc", {"content": "abc"}])
def test_the_eos_of_transformers_is_the_eod(tmp_path: Path, eos: object) -> None:
    path = save(tmp_path, tiny())
    save(tmp_path, {"eos_token": eos}, "tokenizer_config.json")
    for request in (path, tmp_path):
        tokenizer = load_tokenizer(request, tokenizer_type="HuggingFaceTokenizer")
        assert tokenizer.eod_id == 257
        assert load_described(tokenizer.describe()).fingerprint == tokenizer.fingerprint
        assert load_tokenizer(request).eod_id == 258
    (tmp_path / "tokenizer_config.json").unlink()
    assert load_tokenizer(path, tokenizer_type="HuggingFaceTokenizer").eod_id == 258


def test_merges_that_leave_much_of_the_vocabulary_unreachable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = [(a, b) for a in ALPHABET[:20] for b in ALPHABET[:20]]
    vocab = {token: i for i, token in enumerate([*ALPHABET, *map("".join, pairs), EOD])}
    lines = [" ".join(two) for two in pairs]
    load_tokenizer(**pair(tmp_path, vocab, "\n".join(lines)))
    assert not caplog.messages
    load_tokenizer(**pair(tmp_path, vocab, "\n".join(lines[:300])))
    (said,) = caplog.messages
    assert "no text becomes 101 of the 657 tokens of " in said  # EOD is one of them


def test_paths_of_all_kinds(tmp_path: Path) -> None:
    path = save(tmp_path, tiny())
    by_path = load_tokenizer(path)
    assert by_path.name == str(path)
    assert ids(by_path, "abc") == [257, 258]
    for other in (
        load_tokenizer(tmp_path),
        load_tokenizer(vocab_file=path),
        load_tokenizer(vocab_file=path, tokenizer_type="HFTokenizer"),
        load_tokenizer(tokenizer_model=tmp_path, tokenizer_type="HuggingFaceTokenizer"),
        load_tokenizer(tmp_path, tokenizer_type="PretrainedFromHF"),
    ):
        assert other.fingerprint == by_path.fingerprint


def test_gpt2_s_files_as_a_folder_and_as_flags(tmp_path: Path) -> None:
    files = pair(tmp_path, tiny()["model"]["vocab"], "#version: 0.2\na b\nab c\n")
    megatron = load_tokenizer(**files, tokenizer_type="GPT2BPETokenizer")
    assert megatron.fingerprint == load_tokenizer(tmp_path).fingerprint
    transformers = load_tokenizer(**files, tokenizer_type="HFGPT2Tokenizer")
    assert ids(megatron, f"ab{EOD}", "auto") == ids(transformers, f"ab{EOD}", "text")
    assert ids(transformers, f"ab{EOD}") == [256, 258, 258]
    assert megatron.fingerprint != transformers.fingerprint


def test_what_the_library_cannot_read_is_said(tmp_path: Path) -> None:
    broken = tiny()
    broken["model"]["merges"] = "oops"
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: tokenizers [\d.]+ "):
        load_tokenizer(save(tmp_path, broken))


# Names and caches.


@pytest.mark.parametrize("name", ["gpt2", "neox", "owner/name"])
def test_a_name_without_network_says_where_to_put_what(name: str, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(name)
    message = str(caught.value)
    assert "HF_HUB_OFFLINE is set" in message
    assert str(tmp_path / "cache" / "tokenizers" / name.replace("/", "--")) in message
    assert ("vocab.json and merges.txt" if name == "gpt2" else "tokenizer.json") in message
    assert message.endswith(("with tokenizer", "with vocab_file", "with vocab_file and merge_file"))
    assert not (tmp_path / "cache").exists()


def test_known_names_in_the_cache(shared: Path, tmp_path: Path) -> None:
    files = shared / "tokenizers"
    cache = tmp_path / "cache" / "tokenizers"
    for folder in ("gpt2", "neox"):
        (cache / folder).mkdir(parents=True)
    shutil.copy(files / "gpt2-vocab.json", cache / "gpt2" / "vocab.json")
    shutil.copy(files / "gpt2-merges.txt", cache / "gpt2" / "merges.txt")
    shutil.copy(files / "20B_tokenizer.json", cache / "neox" / "tokenizer.json")
    gpt2, neox = load_tokenizer(), load_tokenizer("EleutherAI/gpt-neox-20b")
    assert (gpt2.name, gpt2.vocab_size, gpt2.eod_id) == ("gpt2", 50257, 50256)
    assert (neox.name, neox.vocab_size, neox.eod_id) == ("neox", 50277, 0)
    assert load_tokenizer("openai-community/gpt2").fingerprint == gpt2.fingerprint
    assert ids(gpt2, "hello<|endoftext|>")[1] == 27
    assert ids(neox, "hello<|endoftext|>")[1] == 0
    # A copy with other formatting is the same tokenizer, one with another merge is not.
    vocab = json.loads((cache / "gpt2" / "vocab.json").read_text())
    (cache / "gpt2" / "vocab.json").write_text(json.dumps(vocab))
    assert load_tokenizer("gpt2").fingerprint == gpt2.fingerprint
    merges = (cache / "gpt2" / "merges.txt").read_text(encoding="utf-8").split("\n")
    merges[5], merges[6] = merges[6], merges[5]
    (cache / "gpt2" / "merges.txt").write_text("\n".join(merges), encoding="utf-8")
    with pytest.raises(TokenizerError, match=r"/gpt2: .*\btokenizer gpt2 \(sha256 "):
        load_tokenizer("gpt2")


def test_a_hugging_face_cache_is_read_as_it_is(tmp_path: Path) -> None:
    repository = tmp_path / "huggingface" / "hub" / "models--owner--name"
    for commit, merges in (("aaa", [["a", "b"]]), ("bbb", [["a", "b"], ["ab", "c"]])):
        (repository / "snapshots" / commit).mkdir(parents=True)
        save(repository / "snapshots" / commit, tiny(merges=merges))
    (repository / "refs").mkdir()
    for commit, expected in (("bbb", [257, 258]), ("aaa", [256, 66, 258])):
        (repository / "refs" / "main").write_text(commit)
        tokenizer = load_tokenizer("owner/name")
        assert tokenizer.name == "owner/name"
        assert ids(tokenizer, "abc") == expected


def test_nothing_heavy_is_imported_before_it_is_needed(tmp_path: Path) -> None:
    path = save(tmp_path, tiny())
    program = (
        "import sys; from tokpack.tokenizers import load_tokenizer;"
        f"load_tokenizer({str(path)!r}).encoder(dtype='uint16', append_eod=True);"
        "print([m for m in ('tokenizers', 'huggingface_hub', 'sentencepiece', 'torch')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"[]\n"


# Downloads, from a server of this test's own that speaks the hub's protocol.


class Hub:
    """Repositories by path "owner/name/file"; ``etag`` is how it announces checksums."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.etag: Callable[[bytes], str] = git_sha1
        self.requests: list[str] = []
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self._answer(with_body=False)

            def do_GET(self) -> None:
                self._answer(with_body=True)

            def _answer(self, *, with_body: bool) -> None:
                hub.requests.append(f"{self.command} {self.path}")
                parts = self.path.strip("/").split("/")
                owner, name, file = parts[0], parts[min(1, len(parts) - 1)], parts[-1]
                content = hub.files.get(f"{owner}/{name}/{file}")
                self.send_response(404 if content is None else 200)
                if content is None:
                    known = any(path.startswith(f"{owner}/{name}/") for path in hub.files)
                    self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
                    content, with_body = b"", False
                self.send_header("X-Repo-Commit", "c" * 40)
                self.send_header("ETag", f'"{hub.etag(content)}"')
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if with_body:
                    self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.server.serve_forever, args=(0.01,))
    thread.start()
    yield hub
    hub.server.shutdown()
    thread.join()
    hub.server.server_close()


def load_elsewhere(name: str, endpoint: str) -> tuple[dict[str, Any], str]:
    """Load in a new process, because the hub's library reads HF_ENDPOINT once: result or error."""
    program = f"""
import json
from tokpack.errors import TokenizerError
from tokpack.tokenizers import load_tokenizer
try:
    print(json.dumps(load_tokenizer({name!r}).describe()))
except TokenizerError as error:
    print(json.dumps(str(error)))
"""
    environment = {**os.environ, "HF_ENDPOINT": endpoint}
    del environment["HF_HUB_OFFLINE"]
    done = forked.run(["-c", program], capture_output=True, check=True, env=environment)
    answer = json.loads(done.stdout)
    return ({}, answer) if isinstance(answer, str) else (answer, "")


@pytest.mark.parametrize("etag", [git_sha1, sha256])
def test_download_of_a_repository(hub: Hub, tmp_path: Path, etag: Callable[[bytes], str]) -> None:
    hub.etag = etag
    hub.files["owner/name/tokenizer.json"] = json.dumps(tiny()).encode()
    answer, error = load_elsewhere("owner/name", hub.url)
    assert not error
    assert answer["vocab_size"] == 259
    folder = tmp_path / "cache" / "tokenizers"
    assert [path.name for path in folder.iterdir()] == ["owner--name"]
    assert [path.name for path in (folder / "owner--name").iterdir()] == ["tokenizer.json"]
    # From now on the network is not asked: HF_HUB_OFFLINE is set in this process.
    asked = len(hub.requests)
    assert load_tokenizer("owner/name").fingerprint == answer["sha256"]
    assert len(hub.requests) == asked


def test_download_of_known_names_is_held_to_the_known_definition(
    hub: Hub, shared: Path, tmp_path: Path
) -> None:
    files = shared / "tokenizers"
    wrong = json.loads((files / "20B_tokenizer.json").read_bytes())
    wrong["model"]["merges"].pop()
    hub.files["EleutherAI/gpt-neox-20b/tokenizer.json"] = json.dumps(wrong).encode()
    _, error = load_elsewhere("neox", hub.url)
    assert "are not those of the tokenizer neox" in error
    assert list((tmp_path / "cache" / "tokenizers").iterdir()) == []

    hub.files["EleutherAI/gpt-neox-20b/tokenizer.json"] = (
        files / "20B_tokenizer.json"
    ).read_bytes()
    hub.files["openai-community/gpt2/vocab.json"] = (files / "gpt2-vocab.json").read_bytes()
    hub.files["openai-community/gpt2/merges.txt"] = (files / "gpt2-merges.txt").read_bytes()
    for name, size in (("neox", 50277), ("gpt2", 50257)):
        answer, error = load_elsewhere(name, hub.url)
        assert (answer.get("vocab_size"), error) == (size, "")
        assert load_tokenizer(name).fingerprint == answer["sha256"]


def test_a_download_that_is_not_what_the_server_announced(hub: Hub, tmp_path: Path) -> None:
    hub.files["owner/name/tokenizer.json"] = json.dumps(tiny()).encode()
    for etag, reason in (
        (lambda content: sha256(content + b"?"), "the download is broken: checksum"),
        (lambda content: git_sha1(content + b"?"), "the download is broken: checksum"),
        (lambda content: "W-123", "the server gives no checksum"),
    ):
        hub.etag = etag
        _, error = load_elsewhere("owner/name", hub.url)
        assert reason in error
        assert list((tmp_path / "cache" / "tokenizers").iterdir()) == []


def test_a_repository_without_tokenizer_and_one_that_does_not_exist(hub: Hub) -> None:
    hub.files["owner/name/README.md"] = b"?"
    _, error = load_elsewhere("owner/name", hub.url)
    assert "neither tokenizer.json nor vocab.json with merges.txt nor tokenizer.model" in error
    _, error = load_elsewhere("owner/none", hub.url)
    assert "owner/none is not on this machine, and cannot be downloaded: no such repo" in error


def test_a_server_that_cannot_be_reached_fails_soon(tmp_path: Path) -> None:
    begin = time.monotonic()
    _, error = load_elsewhere("gpt2", "http://127.0.0.1:9")
    assert time.monotonic() - begin < 60
    assert "tokenizer gpt2 is not on this machine, and cannot be downloaded: " in error
    assert "vocab_file and merge_file" in error
    assert list((tmp_path / "cache" / "tokenizers").iterdir()) == []


def test_checksums_of_both_kinds() -> None:
    check_etag(b"abc", git_sha1(b"abc"), "f")
    check_etag(b"abc", sha256(b"abc"), "f")
    for wrong in (git_sha1(b"abd"), sha256(b"abd"), None, "", "xyz"):
        with pytest.raises(TokenizerError):
            check_etag(b"abc", wrong, "f")


def test_ids_of_a_file(tmp_path: Path) -> None:
    """A vocabulary may hold the words that tell a tokenizer.json from it."""
    words = {"model": 1, "added_tokens": 7, "vocab": 2}
    assert count_ids(save(tmp_path, words, "vocab.json")) == 8
    whole = {"model": {"vocab": words}, "added_tokens": [{"id": 9, "content": "<end>"}]}
    assert count_ids(save(tmp_path, whole, "tokenizer.json")) == 10
    listed = {"model": {"vocab": [["a", -1.0], ["b", -2.0]]}}
    assert count_ids(save(tmp_path, listed, "unigram.json")) == 2
    for broken in ({"model": "x"}, {"model": {}}, [], {}, {"a": "b"}, {"model": {"vocab": 3}}):
        with pytest.raises(FormatError, match=r"broken\.json"):
            count_ids(save(tmp_path, broken, "broken.json"))

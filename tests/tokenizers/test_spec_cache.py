"""The cache of definitions: the same as the file, never trusted blindly, never in the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest
from support import forked
from support.faults import flip
from support.optional import needs_root
from support.tiny_tokenizers import added, save, tiny

from tokpack.tokenizers import definition as spec_cache
from tokpack.tokenizers import load_tokenizer
from tokpack.tokenizers.native import NativeTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tokpack.tokenizers.definition import ByteLevelSpec


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an empty cache, switched on."""
    monkeypatch.setenv("TOKPACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(spec_cache.OFF, raising=False)
    return tmp_path / "cache" / "definitions"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A tokenizer.json of more than a megabyte, most of it blanks, with a hole and added tokens."""
    definition = tiny(ignore_merges=True)
    definition["model"]["vocab"]["zz"] = 300
    definition["added_tokens"] += [
        added("\u00e9\u00e8", 301, special=False, normalized=True),
        added("<x>", 302),
    ]
    definition["normalizer"] = {"type": "NFC"}
    definition["model"]["vocab"] |= {"\u00e9\u00e8": 301, "<x>": 302}
    path = save(tmp_path, definition)
    path.write_bytes(path.read_bytes() + b" " * spec_cache.LEAST_BYTES)
    return path


def parts(spec: ByteLevelSpec) -> tuple[object, ...]:
    settings = (spec.pattern, spec.form, spec.ignore_merges)
    return (*settings, spec.vocab, spec.added, spec.merges.tolist(), str(spec.merges.dtype))


def spec_of(path: Path) -> ByteLevelSpec:
    tokenizer = load_tokenizer(path)
    assert isinstance(tokenizer, NativeTokenizer)
    return tokenizer.spec


def is_read_from_file(path: Path, spec: ByteLevelSpec) -> bool:
    """Whether the definition is made of the file, and not taken from the cache."""
    made = []

    def build() -> ByteLevelSpec:
        made.append(spec)
        return spec

    assert parts(spec_cache.kept(path.read_bytes(), build)) == parts(spec)
    return bool(made)


def test_the_two_files_of_gpt2_are_kept(
    cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny()["model"]
    unreachable = {f"zz{n}": 1000 + n for n in range(100)}
    vocab, merges = tmp_path / "vocab.json", tmp_path / "merges.txt"
    vocab.write_text(json.dumps(model["vocab"] | unreachable) + " " * spec_cache.LEAST_BYTES)
    merges.write_text("".join(f"{left} {right}\n" for left, right in model["merges"]))
    kept = []
    for _ in range(2):
        caplog.clear()
        tokenizer = load_tokenizer(vocab_file=vocab, merge_file=merges)
        assert isinstance(tokenizer, NativeTokenizer)
        kept.append(parts(tokenizer.spec))
        assert "no text becomes 101 of the" in caplog.text  # also when it was kept
        assert len(list(cache.iterdir())) == 1
    assert kept[0] == kept[1]
    merges.write_text("")  # another tokenizer
    load_tokenizer(vocab_file=vocab, merge_file=merges)
    assert len(list(cache.iterdir())) == 2


def test_what_is_kept_is_what_the_file_says(
    cache: Path, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(spec_cache.OFF, "0")
    plain = parts(spec_of(large))
    assert not cache.exists()
    monkeypatch.delenv(spec_cache.OFF)
    for _ in range(2):
        assert parts(spec_of(large)) == plain
        (entry,) = cache.iterdir()
    assert entry.stat().st_mode & 0o777 == 0o600
    assert cache.stat().st_mode & 0o777 == 0o700
    tokenizer = load_tokenizer(large)
    assert tokenizer.encoder(dtype="uint16", append_eod=True)


def test_an_entry_is_read(cache: Path, large: Path) -> None:
    spec, raw = spec_of(large), large.read_bytes()
    assert not is_read_from_file(large, spec)
    other = large.with_name("other.json")
    other.write_bytes(raw + b" ")
    spec_of(other)
    assert len(list(cache.iterdir())) == 2


def test_another_library_reads_anew(
    cache: Path, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked how characters change, so an entry of an older one may be wrong."""
    spec = spec_of(large)
    (tmp_path / "tokenizers.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tokenizers", raising=False)
    spec_cache._code.cache_clear()
    try:
        assert is_read_from_file(large, spec)
    finally:
        spec_cache._code.cache_clear()


def test_a_small_file_is_not_kept(cache: Path, tmp_path: Path) -> None:
    spec_of(save(tmp_path, tiny()))
    assert not cache.exists()


def cut(entry: Path) -> None:
    os.truncate(entry, entry.stat().st_size - 1)


def longer(entry: Path) -> None:
    entry.write_bytes(entry.read_bytes() + b"x")


def of_another(entry: Path) -> None:
    """Another tokenizer's entry under this one's name."""
    definition = tiny()
    definition["model"]["vocab"]["yy"] = 300
    other = save(entry.parent.parent.parent, definition, "other.json")
    other.write_bytes(other.read_bytes() + b" " * spec_cache.LEAST_BYTES)
    spec_of(other)
    (found,) = (path for path in entry.parent.iterdir() if path != entry)
    found.replace(entry)


def in_json(text: str) -> Callable[[Path], None]:
    return lambda entry: entry.write_text(text)


def pipe(entry: Path) -> None:
    entry.unlink()
    os.mkfifo(entry)


def headed(**head: int) -> Callable[[Path], None]:
    """A head of the entry's own name, and a file as long as it says, with no block on the disk."""

    def write(entry: Path) -> None:
        line = json.dumps({"entry": entry.name, **head}) + "\n"
        entry.write_text(line)
        os.truncate(entry, len(line) + sum(head.values()))

    return write


FAULTS: dict[str, Callable[[Path], None]] = {
    "cut": cut,
    "longer": longer,
    "empty": lambda entry: entry.write_bytes(b""),
    **{
        f"flipped at {place}": partial(flip, at=place)
        for place in (0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    },
    "of another": of_another,
    "a list": in_json("[]\n"),
    "an object": in_json("{}\n"),
    "no numbers": in_json('{"head": "", "ids": [], "bytes": 1, "merges": null}\n'),
    "negative": in_json('{"head": -1, "ids": -1, "bytes": -1, "merges": -1}\n'),
    "nested": in_json("[" * 100_000 + "\n"),
    "no checksum": headed(head=0, ids=0, bytes=0, merges=0),
    "more than memory": headed(head=0, ids=0, bytes=1 << 38, merges=0),
    "writable by others": lambda entry: entry.chmod(0o602),
    "writable by the group": lambda entry: entry.chmod(0o620),
    "given away": lambda entry: os.chown(entry, 12345, 12345),
    "folder writable by others": lambda entry: entry.parent.chmod(0o703),
    "a pipe": pipe,
}


@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=needs_root if name == "given away" else ()) for name in FAULTS],
)
def test_what_cannot_be_trusted_is_not_read(cache: Path, large: Path, fault: str) -> None:
    spec = spec_of(large)
    (entry,) = cache.iterdir()
    FAULTS[fault](entry)
    assert is_read_from_file(large, spec)
    if cache.stat().st_mode & 0o077:
        assert is_read_from_file(large, spec)
        cache.chmod(0o700)
    assert not is_read_from_file(large, spec)


def test_what_cannot_be_written_is_left_out(tmp_path: Path, large: Path, cache: Path) -> None:
    cache.parent.write_text("a file where the folder should be")
    spec = spec_of(large)
    assert is_read_from_file(large, spec)
    assert cache.parent.is_file()


def test_only_the_newest_stay(cache: Path, large: Path) -> None:
    cache.mkdir(parents=True, mode=0o700)
    for number in range(40):
        old = cache / f"old{number:02}"
        old.write_bytes(b"")
        os.utime(old, (number, number))
    spec = spec_of(large)
    left = sorted(path.name for path in cache.iterdir())
    assert left[-15:] == [f"old{number}" for number in range(25, 40)]
    assert len(left) == 16
    assert not is_read_from_file(large, spec)


def test_many_processes_at_once(cache: Path, large: Path) -> None:
    program = (
        "import sys; from tokpack import load_tokenizer\n"
        "for _ in range(5): print(load_tokenizer(sys.argv[1]).fingerprint)"
    )
    command = ["-c", program, large]
    runs = [forked.Process(command, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    said = {line for run in runs for line in run.communicate()[0].split()}
    assert [run.returncode for run in runs] == [0] * 6
    assert said == {load_tokenizer(large).fingerprint}
    assert len(list(cache.iterdir())) == 1


@needs_root
def test_a_user_without_a_home() -> None:
    program = (
        "import os; from tokpack.tokenizers import definition; definition._code();"
        "raw = bytes(definition.LEAST_BYTES); os.environ.pop('HOME'); os.setuid(54321);"
        "print(definition.kept(raw, lambda: 'made'))"
    )
    unset = {"TOKPACK_CACHE", "XDG_CACHE_HOME", spec_cache.OFF}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.stdout == "made\n", run.stderr

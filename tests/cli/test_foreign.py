"""Files of others: whatever stands in them, a terminal obeys none of it, and none is a fault."""

from __future__ import annotations

import io
import json
import os
import time
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

import pytest
import ujson
from hypothesis import given, settings
from hypothesis import strategies as st
from support import hostile
from support.json_edits import EDITS, edited
from support.report_tools import make, run, sample_texts

from tokpack.cli import main
from tokpack.display import brief
from tokpack.errors import FormatError, InputError
from tokpack.samples.blend.file import read_blend
from tokpack.storage.disk.foreign import MAX_DEPTH, MAX_DIGITS, parse_json, read_json
from tokpack.storage.disk.foreign_yaml import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.report_tools import Done


def seen(done: Done) -> str:
    """What a command showed, which a terminal must not obey."""
    text = done.stdout + done.stderr
    for char in text:
        assert char.isprintable() or char in "\n\t", repr(char)
    return text


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset whose manifest holds escape sequences wherever it has text."""
    made = make(tmp_path_factory.mktemp("foreign"), "d", sample_texts()[:9], trace=True)
    manifest = read_json(made + ".json")
    for key in ("name", "kind"):
        manifest["tokenizer"][key] += hostile.ESCAPES
    manifest["created"] += hostile.ESCAPES
    manifest["tokpack"]["version"] += hostile.ESCAPES
    manifest["inputs"][0]["name"] += hostile.ESCAPES
    with open(made + ".json", "w") as file:
        json.dump(manifest, file)
    return made


@pytest.mark.parametrize(
    "command",
    [
        "inspect",
        "inspect --json",
        "inspect --doc 0",
        "stats",
        "stats --json",
        "trace --doc 0",
        "trace --doc 0 --json",
        "trace --all",
        "verify",
        "verify --json",
        "verify --quick",
        "blend --seq-length 8",
        "blend --seq-length 8 --show 1",
        "blend --seq-length 8 --json",
    ],
)
def test_strings_of_a_manifest(command: str, prefix: str) -> None:
    name, *flags = command.split()
    assert "\x1b" not in seen(run(name, prefix, *flags))


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str, Any]:
    """The words that encode a dataset, its prefix, and its manifest."""
    made = make(tmp_path_factory.mktemp("encoded"), "d", sample_texts()[:9])
    tokenizer = os.path.join(os.path.dirname(made), "tokenizer.json")
    words = ["encode", f"{made}.jsonl", "--tokenizer", tokenizer, "-o", made, "--workers", "1"]
    return words, made, read_json(made + ".json")


@settings(max_examples=40, deadline=None)
@given(EDITS)
def test_whatever_a_manifest_says_is_read_or_refused(
    encoded: tuple[list[str], str, Any], edits: list[tuple[int, Any]]
) -> None:
    encode, prefix, manifest = encoded
    with open(prefix + ".json", "w") as file:
        json.dump(edited(manifest, edits), file)
    for words in (encode, ["inspect", prefix], ["stats", prefix]):
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
            code = main(words)
        assert code in (0, 1), said.getvalue()


@pytest.mark.parametrize("command", ["inspect", "stats", "verify", "encode", "merge", "convert"])
def test_names_of_files(command: str, tmp_path: Path) -> None:
    name = tmp_path / f"x{hostile.ESCAPES}"
    output = ["-o", tmp_path / "o"]
    more = {"encode": output, "merge": output, "convert": output[1:]}.get(command, [])
    assert "\\x1b" in seen(run(command, name, *more, code=1))


def test_names_in_what_a_run_says(tmp_path: Path) -> None:
    source = tmp_path / f"x{hostile.ESCAPES}.jsonl"
    source.write_text('{"text": "one"}\n')
    make(tmp_path, "other", ["one"])
    output = tmp_path / f"o{hostile.ESCAPES}"
    found = run("encode", source, "-o", output, "--tokenizer", tmp_path / "tokenizer.json")
    assert "\\x1b" in seen(found._replace(stdout=""))


def test_strings_of_a_vocabulary(tmp_path: Path) -> None:
    vocab = tmp_path / "vocab.json"
    vocab.write_text(json.dumps({f"a{hostile.ESCAPES}": "no id", "b": 1}))
    words = ["--tokenizer-type", "Whitespace"]
    done = run("verify", tmp_path / "d", "--vocab-file", vocab, *words, code=1)
    assert "\\x1b" in seen(done)


def test_strings_of_a_blend_file(tmp_path: Path) -> None:
    path = tmp_path / "b.yaml"
    path.write_text(json.dumps({f"k{hostile.ESCAPES[:-1]}": 1, "datasets": ["a"]}))
    assert "\\x1b" in seen(run("blend", path, code=1))


def test_strings_that_a_fault_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tokpack.cli.commands import inspect

    def fail(arguments: object) -> int:
        raise RuntimeError(hostile.ESCAPES)

    monkeypatch.setattr(inspect, "run", fail)
    assert "fault in tokpack" in seen(run("inspect", "x", "--debug", code=2))


def aliases(levels: int) -> str:
    """YAML of a few lines that says 9 ** levels values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        before = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} [{before}]")
    return "\n".join([*lines, f"datasets: *a{levels - 1}", ""])


def merges(levels: int) -> str:
    """The same with merge keys, which the library itself unfolds."""
    lines = ["a0: &a0 {x: 1}"]
    for level in range(1, levels):
        before = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} {{<<: [{before}]}}")
    return "\n".join(lines)


YAML = {
    "aliases": aliases(8),
    "merge keys": merges(9),
    "holds itself": "datasets: &a [*a]",
    "deep": "[" * 100_000,
    "deep through aliases": "\n".join(
        ["a0: &a0 x", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 300))]
    ),
    "digits": f"datasets: {'7' * 5000}",
    "sexagesimal": f"samples: {'1:' * 100}1",
    "a wrong tag": "datasets: !!bool maybe",
    "another wrong tag": "datasets: !!timestamp never",
    "an object": "!!python/object:os.system {}",
    "a control": "a: \x01",
    "a NUL": r'datasets: "\0"',
    "half a surrogate pair": r'datasets: "\ud800"',
}


@pytest.mark.parametrize("what", YAML)
def test_hostile_yaml(what: str, tmp_path: Path) -> None:
    path = tmp_path / "b.yaml"
    path.write_text(YAML[what])
    began = time.monotonic()
    for command in (["blend", path], ["train", path]):
        done = run(*command, code=1)
        assert len(done.stderr) < 5000
        assert done.stderr.count("\n") == 1
        assert str(path) in done.stderr
    assert time.monotonic() - began < 60


def test_aliases_that_mean_little_are_read() -> None:
    value = parse_yaml("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n", "f")
    assert value == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}


JSON = {
    "deep": "[" * 100_000 + "]" * 100_000,
    "deep objects": '{"tokpack":' * 500 + "1" + "}" * 500,
    "digits": '{"tokpack": {"manifest": ' + "7" * 4000 + "}}",
    "cut off": '{"tokpack": ',
    "no UTF-8": '{"tokpack": "\udcff"}',
}


@pytest.mark.parametrize("what", JSON)
@pytest.mark.parametrize("kind", ["manifest", "vocabulary", "tokenizer", "deepspeed", "ids"])
def test_hostile_json(what: str, kind: str, prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(JSON[what].encode("utf-8", "surrogateescape"))
    commands: dict[str, list[Any]] = {
        "manifest": ["trace", tmp_path / "x", "--all"],
        "vocabulary": ["verify", prefix, "--tokenizer-type", "Whitespace", "--vocab-file", path],
        "tokenizer": ["verify", prefix, "--tokenizer", path],
        "deepspeed": ["train", "--deepspeed_config", path],
        "ids": ["blend", prefix, "--megatron-cache", "c", "--tokenizer-ids", path],
    }
    done = run(*commands[kind], code=1)
    assert len(done.stderr) < 5000
    assert done.stderr.count("\n") == 1
    assert "fault in tokpack" not in done.stderr


def test_depth_of_json() -> None:
    fine = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert parse_json(fine, "f")
    with pytest.raises(FormatError, match=r"^f: .*100"):
        parse_json(f"[{fine}]", "f")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32-le"])
def test_numbers_are_bounded_in_any_encoding(encoding: str) -> None:
    least = 10**MAX_DIGITS
    for text in (f"[{least - 1}]", f'{{"a": [1, -{least - 1}]}}', f"[0.{'7' * 4000}]"):
        assert parse_json(text.encode(encoding), "f") == json.loads(text)
    for text in (f"{10 * least}", f'{{"a": [1, -{10 * least}]}}', f"[{'7' * 5000}]"):
        with pytest.raises(FormatError, match=r"^f: not JSON: .* digits"):
            parse_json(text.encode(encoding), "f")


TEXT = st.text(st.characters(exclude_categories=[]), max_size=9)
INSERTED = [b"", b'"', b"\\", b"0", b"-", b".", b"e5", b",", b"\t", b"\0", b"\xff"]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**MAX_DIGITS) // 10, 10**MAX_DIGITS - 1)
    | st.floats()
    | TEXT,
    lambda child: st.lists(child, max_size=5) | st.dictionaries(TEXT, child, max_size=5),
)


@given(VALUES, st.booleans(), st.sampled_from([None, 1]), st.data())
def test_the_fast_reader_agrees_where_ours_takes_a_text(
    value: Any, ascii_only: bool, indent: int | None, data: st.DataObject
) -> None:
    """ujson takes more than JSON; whatever both take is the same, to the last digit."""
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    raw = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(data.draw(st.integers(0, 2))):
        place = data.draw(st.integers(0, len(raw)))
        raw[place : place + data.draw(st.integers(0, 2))] = data.draw(st.sampled_from(INSERTED))
    try:
        expected = parse_json(bytes(raw), "f")
    except FormatError:
        return
    try:
        found = ujson.loads(bytes(raw))
    except ValueError:  # a byte order mark, UTF-16
        assert raw[:1] == b"\xff" or b"\0" in raw
        return
    assert repr(found) == repr(expected)


def test_a_file_without_end_or_beginning(tmp_path: Path) -> None:
    """A pipe that nobody writes to would be waited for."""
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", str(tmp_path / "pipe")):
        with pytest.raises(InputError, match=f"^{path}:"):
            read_blend(path)


def test_values_in_messages_are_short() -> None:
    deep: Any = []
    for _ in range(50):
        deep = [deep] * 9
    for value in (deep, "x" * 10**6, list(range(10**5)), {"a" * 1000: "b" * 1000}, 10**4000):
        assert len(brief(value)) <= 600
    assert brief({"b": 1, "a": [None, "x"]}) in ("{'a': [None, 'x'], 'b': 1}",)


def manifest_readers(prefix: str) -> list[Callable[[], object]]:
    from tokpack.dataset import Manifest, MMapIndexedDataset, Origins
    from tokpack.dataset.overview import overview
    from tokpack.dataset.spelling import find_tokenizer
    from tokpack.dataset.verify import verify

    return [
        lambda: Manifest.load(prefix).to_json(),
        lambda: overview(MMapIndexedDataset(prefix)),
        lambda: find_tokenizer(MMapIndexedDataset(prefix)),
        lambda: Origins(prefix)[0],
        lambda: verify(prefix, quick=True),
    ]


def test_wrong_types_in_a_manifest(tmp_path: Path) -> None:
    made = make(tmp_path, "d", sample_texts()[:3], trace=True)
    right = read_json(made + ".json")
    refused = 0
    for _, document in [*hostile.edited(right)][::5]:  # the fuzz target `manifest` tries the rest
        with open(made + ".json", "w") as file:
            json.dump(document, file)
        refused += sum([hostile.refused_well(reader) for reader in manifest_readers(made)])
    assert refused > 100

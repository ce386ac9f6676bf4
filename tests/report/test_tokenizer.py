"""``tokpack tokenizer``, and the tokenizer of a dataset found again by what its manifest says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.encoding_tools import byte_tokenizer, write_jsonl
from support.rank_files import BYTES, WORDS, entries, save_lines
from support.report_tools import run, run_json

import tokpack
from tokpack import MMapIndexedDataset, load_tokenizer
from tokpack.dataset.spelling import find_tokenizer
from tokpack.errors import TokenizerError
from tokpack.look import tokenizer_facts
from tokpack.look.tokenizers import Texts, mix, read_texts, sample_texts, tokens_of, try_out
from tokpack.tokenizers.load import load_described, tokenizer_of

if TYPE_CHECKING:
    from pathlib import Path

OWN = [*BYTES, *WORDS]


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    return save_lines(tmp_path, OWN)


# What it is.


def test_a_native_tokenizer(ranks: Path, tmp_path: Path) -> None:
    texts = write_jsonl(tmp_path / "a.jsonl", ["in the thing"] * 50)
    found = run_json("tokenizer", ranks, "--pattern", "qwen2", "--on", texts)
    trial = found.pop("trial")
    assert found == {
        "name": str(ranks),
        "files": [ranks.name],
        "kind": "byte-level BPE",
        "model": "BPE",
        "native": True,
        "why_not_native": "",
        "pattern": "qwen2",
        "normalizer": "",
        "vocab_size": 266,
        "merges": 9,
        "unused": 0,
        "whole_words": False,
        "special": {"<|endoftext|>": 265},
        "special_in_text": "text",
        "eod": ["<|endoftext|>", 265],
        "bos": None,
        "notes": [],
        "sha256": load_tokenizer(ranks, pattern="qwen2").fingerprint,
    }
    assert (trial["text_bytes"], trial["documents"], trial["tokens"]) == (600, 50, 250)
    assert trial["difference"] == ""
    assert trial["cold"] > 0 < trial["warm"]
    said = run("tokenizer", ranks, "--pattern", "qwen2", "--on", texts).stdout
    assert "fast path        yes" in said
    assert "the same as the Hugging Face library's, on 600 B of text" in said


def test_the_inside_of_a_sentencepiece_model(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    from support.sentencepiece_tools import trained

    said = {}
    for name in ("llama", "folding unigram"):
        path = tmp_path / f"{name}.model"
        path.write_bytes(trained(name))
        facts = tokenizer_facts(load_tokenizer(path))
        said[name] = facts.model, facts.normalizer
    assert said["llama"] == ("BPE with byte fallback", "a space before the text")
    rules = "rules of the file, single spaces, a space before the text"
    assert said["folding unigram"] == ("Unigram", rules)


def test_a_tokenizer_that_is_not_native(ranks: Path, tmp_path: Path) -> None:
    texts = write_jsonl(tmp_path / "a.jsonl", ["in the thing"])
    said = run("tokenizer", ranks, "--pattern", r"(?>a|ab)c|.", "--on", texts).stdout
    assert "no: its pattern has an atomic group" in said
    assert "made by the reference library" in said
    assert "Split (?>a|ab)c|., ByteLevel" in said
    said = run("tokenizer", "--tokenizer-type", "CharLevelTokenizer", "--on", texts).stdout
    assert "pattern" not in said
    assert "512 ids" in said


def test_wrong_ids_are_an_error(
    ranks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer(ranks, pattern="gpt2")
    other = load_tokenizer(save_lines(tmp_path, BYTES, "b.tiktoken"), pattern="gpt2")
    monkeypatch.setattr(tokenizer, "reference_in", other.reference_in)
    trial = try_out(tokenizer, Texts.of("", [b"in the thing"]))
    assert "fails its self-check" in str(trial.difference)


def test_the_built_in_text_has_the_size_asked_for() -> None:
    texts = sample_texts(300_000)
    assert 299_990 < texts.size <= 300_000
    assert texts.data.tobytes().decode()  # whole characters


def test_whole_words_are_told(tmp_path: Path) -> None:
    path = save_lines(tmp_path, [*BYTES, b"xyz"])
    facts = tokenizer_facts(load_tokenizer(path, pattern="gpt2"))
    assert (facts.whole_words, facts.merges) == (True, 0)
    assert "without merging" in run("tokenizer", path, "--pattern", "gpt2", "--sample", "9k").stdout


# Compared.


def test_compare(ranks: Path, tmp_path: Path) -> None:
    one = write_jsonl(tmp_path / "one.jsonl", ["in the thing", "the the"])
    two = write_jsonl(tmp_path / "two.jsonl", ["caf\u00e9 12"])
    byte_tokenizer(tmp_path / "tokenizer.json")
    words = ("tokenizer", ranks, "--pattern", "gpt2", "--compare", tmp_path / "tokenizer.json")
    found = run_json(*words, "--on", one, two)
    assert [group["name"] for group in found["groups"]] == [str(one), str(two)]
    first = found["groups"][0]
    assert (first["documents"], first["text_bytes"], first["tokens"][0]) == (2, 19, 7)
    said = run(*words, "--on", one, two).stdout
    assert "one.jsonl" in said
    assert str(tmp_path) not in said
    assert "all" in said


def test_compare_by_a_key(ranks: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"text": "the", "lang": "en"}, {"text": "caf\u00e9", "lang": "fr"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in (*rows, rows[0])))
    words = ("tokenizer", ranks, "--pattern", "gpt2", "--compare", ranks)
    run("tokenizer", ranks, "--by", "lang", "--pattern", "gpt2", code=1)
    groups = read_texts([str(path)], key="text", input_format="auto", by="lang", most=100)
    assert [(group.name, group.size) for group in groups] == [("en", 6), ("fr", 5)]
    tokenizer = load_tokenizer(ranks, pattern="gpt2")
    assert [tokens_of(tokenizer, group) for group in groups] == [2, 4]
    assert run(*words, "--on", path, code=1).stderr.count("--pattern") == 1


def test_only_so_much_of_each_file_is_read(tmp_path: Path) -> None:
    paths = [write_jsonl(tmp_path / name, ["\u00e9" * 50] * 9) for name in ("a.jsonl", "b.jsonl")]
    groups = read_texts(list(map(str, paths)), key="text", input_format="auto", by=None, most=151)
    assert [group.size for group in groups] == [150, 150]
    assert groups[0].spans.tolist() == [[0, 100], [100, 150]]
    assert mix(groups, 121).size == 120


# Shown.


def test_text_as_tokens(ranks: Path) -> None:
    words = ("tokenizer", ranks, "--pattern", "gpt2", "--text", "the in\x1b[31m")
    found = run_json(*words)
    assert found["ids"] == [257, 261, 27, 91, 51, 49, 109]
    assert found["tokens"][:2] == [{"ids": [257], "text": "the"}, {"ids": [261], "text": " in"}]
    said = run(*words).stdout
    assert "7 tokens, 11 bytes" in said
    assert "\x1b" not in said
    assert "257" in said


# Found again.


@pytest.mark.parametrize("pattern", ["llama3", r"\p{L}+|\s|."])
def test_a_dataset_finds_its_pattern_again(ranks: Path, tmp_path: Path, pattern: str) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["in the thing"])
    manifest = tokpack.encode(
        source, tmp_path / "a", tokenizer=str(ranks), pattern=pattern, workers=1
    )
    assert manifest.tokenizer["arguments"] == {"pattern": pattern}
    found = find_tokenizer(MMapIndexedDataset(str(tmp_path / "a")))
    assert found.note == ""
    assert found.tokenizer is not None
    assert found.tokenizer.fingerprint == manifest.tokenizer["sha256"]
    assert tokenizer_of(manifest.tokenizer).fingerprint == manifest.tokenizer["sha256"]
    assert "in the thing" in json.dumps(run_json("inspect", tmp_path / "a", "--doc", 0))


def _gpt2_pair(folder: Path) -> None:
    entry = json.loads(byte_tokenizer(folder / "whole.json").read_text())
    (folder / "vocab.json").write_text(json.dumps(entry["model"]["vocab"]))
    pairs = [" ".join(pair) for pair in map(_pair, entry["model"]["merges"])]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs]) + "\n")
    (folder / "whole.json").unlink()


def _pair(merge: str | list[str]) -> list[str]:
    return merge.split(" ") if isinstance(merge, str) else merge


def _words(folder: Path) -> None:
    words = ["<unk>", "<|endoftext|>", "in", "the", "thing"]
    (folder / "words.json").write_text(json.dumps({word: n for n, word in enumerate(words)}))


def _model(folder: Path) -> None:
    pytest.importorskip("sentencepiece")
    from support.sentencepiece_tools import trained

    (folder / "a.model").write_bytes(trained("llama"))


MOVED = {
    "json": (lambda at: byte_tokenizer(at / "tokenizer.json"), "--tokenizer tok/tokenizer.json"),
    "folder": (_gpt2_pair, "--tokenizer tok"),
    "pair": (_gpt2_pair, "--vocab-file tok/vocab.json --merge-file tok/merges.txt"),
    "typed": (
        _gpt2_pair,
        "--vocab-file tok/vocab.json --merge-file tok/merges.txt --tokenizer-type HFGPT2Tokenizer",
    ),
    "words": (_words, "--vocab-file tok/words.json --tokenizer-type Whitespace"),
    "ranks": (lambda at: save_lines(at, OWN), "--tokenizer tok/own.tiktoken --pattern qwen2"),
    "model": (_model, "--tokenizer-model tok/a.model"),
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the copies of a machine that has seen no tokenizer."""
    monkeypatch.setenv("TOKPACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TOKPACK_TOKENIZER_CACHE", "1")
    return tmp_path / "cache" / "tokenizers" / "copies"


@pytest.mark.parametrize("kind", MOVED)
def test_a_dataset_finds_its_tokenizer_from_anywhere(
    kind: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the path that was typed, made absolute; by the copy when the original has gone."""
    build, flags = MOVED[kind]
    work = tmp_path / "work"
    (work / "tok").mkdir(parents=True)
    build(work / "tok")
    write_jsonl(work / "a.jsonl", ["in the thing"])
    monkeypatch.chdir(work)
    run("encode", "a.jsonl", "-o", "out/a", "--workers", "1", *flags.split())
    monkeypatch.chdir(tmp_path)

    def text() -> str:
        return str(run_json("inspect", work / "out" / "a", "--doc", "0")["documents"])

    assert " the " in text()
    copies = sorted(path.name for path in cache.iterdir())
    assert len(copies) == len(list((work / "tok").iterdir()))
    cache.rename(tmp_path / "elsewhere")
    assert " the " in text()
    (tmp_path / "elsewhere").rename(cache)
    (work / "tok").rename(tmp_path / "gone")
    assert " the " in text()
    cache.rename(tmp_path / "elsewhere")
    said = run("inspect", work / "out" / "a", "--doc", "0").stderr
    assert f"{work / 'tok'}/" in said
    assert "no copy of it is on this machine" in said


def test_a_damaged_copy_is_not_used_and_made_again(
    cache: Path, ranks: Path, tmp_path: Path
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["in the thing"])
    options = {"tokenizer": ranks, "pattern": "gpt2", "workers": 1}
    tokpack.encode(source, tmp_path / "a", **options)
    (copy,) = cache.iterdir()
    whole = copy.read_bytes()
    copy.write_bytes(whole[:-1] + b"?")
    content = ranks.read_bytes()
    ranks.unlink()
    found = find_tokenizer(MMapIndexedDataset(tmp_path / "a"))
    assert found.tokenizer is None
    assert "another one" in found.note
    ranks.write_bytes(content)
    tokpack.encode(source, tmp_path / "b", **options)
    assert copy.read_bytes() == whole


def test_a_cache_that_cannot_be_written(
    ranks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOKPACK_CACHE", str(tmp_path / "file"))
    monkeypatch.setenv("TOKPACK_TOKENIZER_CACHE", "1")
    source = write_jsonl(tmp_path / "a.jsonl", ["in the thing"])
    tokpack.encode(source, tmp_path / "a", tokenizer=ranks, pattern="gpt2", workers=1)
    assert find_tokenizer(MMapIndexedDataset(tmp_path / "a")).note == ""


def test_to_look_at_a_dataset_keeps_no_copy(cache: Path, ranks: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["in the thing"])
    tokpack.encode(source, tmp_path / "a", tokenizer=ranks, pattern="gpt2", workers=1)
    (copy,) = cache.iterdir()
    copy.unlink()
    (tmp_path / "a.json").unlink()
    flags = ["--tokenizer", ranks, "--pattern", "gpt2"]
    assert run_json("inspect", tmp_path / "a", *flags)["tokenizer"]["sha256"]
    assert list(cache.iterdir()) == []


def test_the_newest_copies_stay(
    cache: Path, ranks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokpack.tokenizers.base._MOST_COPIES", 2)
    for number in range(4):
        ranks.write_bytes(ranks.read_bytes() + b"\n" * number)
        load_tokenizer(ranks, pattern="gpt2").keep_copies()
    assert len(list(cache.iterdir())) == 2


def test_a_copy_is_of_what_was_recorded(cache: Path, ranks: Path) -> None:
    tokenizer = load_tokenizer(ranks, pattern="gpt2")
    tokenizer.describe()
    ranks.write_bytes(ranks.read_bytes() + b"\n")
    tokenizer.keep_copies()
    assert not list(cache.glob("*"))


def test_a_manifest_downloads_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(cache))
    monkeypatch.setattr("tokpack.tokenizers.hub.download", pytest.fail)
    for name in ("gpt2", "neox", "owner/name"):
        with pytest.raises(TokenizerError, match="files"):
            load_described({"name": name, "sha256": "0" * 64})


def test_a_foreign_manifest_cannot_choose_the_arguments(ranks: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["in the thing"])
    tokpack.encode(source, tmp_path / "a", tokenizer=str(ranks), pattern="gpt2", workers=1)
    path = tmp_path / "a.json"
    for arguments in ({"pattern": 3, "nonsense": []}, [1], {"pattern": "("}, {"vocab_size": True}):
        manifest = json.loads(path.read_text())
        manifest["tokenizer"]["arguments"] = arguments
        path.write_text(json.dumps(manifest))
        found = find_tokenizer(MMapIndexedDataset(str(tmp_path / "a")))
        assert found.tokenizer is None
        assert "cannot load the tokenizer" in found.note


def test_flags_of_megatrons_tik_tokenizer(tmp_path: Path) -> None:
    vocabulary = tmp_path / "ranks.json"
    vocabulary.write_text(json.dumps(entries(OWN)))
    source = write_jsonl(tmp_path / "a.jsonl", ["the<s>"])
    flags = ["--tokenizer-type", "TikTokenizer", "--tokenizer-model", vocabulary]
    flags += ["--tiktoken-pattern", "v1", "--vocab-size", 275, "--tiktoken-num-special-tokens", 10]
    done = run(
        "encode", "--input", source, "--output-prefix", tmp_path / "a", "--append-eod", *flags
    )
    assert "--vocab-size is not needed" not in done.stderr
    dataset = MMapIndexedDataset(str(tmp_path / "a_text_document"))
    assert dataset.document(0).tolist() == [267, 1, 2]
    assert find_tokenizer(dataset).note == ""
    assert run_json("tokenizer", *flags, "--text", "the<s>")["ids"] == [267, 1]


def test_char_level_dataset(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["h\u00e9"])
    run("encode", source, "-o", tmp_path / "a", "--tokenizer-type", "CharLevelTokenizer")
    dataset = MMapIndexedDataset(str(tmp_path / "a"))
    assert dataset.document(0).tolist() == [104, 195, 169, 0]
    found = find_tokenizer(dataset)
    assert found.tokenizer is not None
    assert found.tokenizer.kind == "UTF-8 bytes"

"""``tokpack inspect``: the overview, and documents token by token."""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support import forked
from support.encoding_tools import idx_and_bin
from support.places import GOLDEN
from support.report_tools import make, make_words, run, run_json, sample_texts
from support.rounding import equal
from support.track_tools import build_tracks

import tokpack
from tokpack.dataset import MMapIndexedDataset
from tokpack.dataset.format import document_ends
from tokpack.dataset.overview import grep
from tokpack.dataset.spelling import Spelling, find_tokenizer


def raw(path: Path, rows: list[list[int]], doc_idx: list[int], dtype: str = "uint16") -> str:
    """A dataset of given sequences, without a manifest."""
    tokens, index = idx_and_bin(rows, [len(row) for row in rows], doc_idx, dtype)
    path.with_suffix(".bin").write_bytes(tokens)
    path.with_suffix(".idx").write_bytes(index)
    return str(path)


# The overview


def test_overview_of_a_dataset(prefix: str, folder: Path) -> None:
    facts = run_json("inspect", prefix)
    manifest = tokpack.Manifest.load(prefix)
    lengths = np.sort(tokpack.MMapIndexedDataset(prefix).sizes)
    assert facts["documents"] == len(sample_texts()) == len(lengths)
    assert facts["tokens"] == manifest.tokens == lengths.sum()
    assert facts["bytes_per_token"] == manifest.text_bytes / manifest.tokens
    assert not facts["measured"]
    assert (facts["lengths"]["minimum"], facts["lengths"]["maximum"]) == (lengths[0], lengths[-1])
    assert facts["lengths"]["mean"] == equal(lengths.mean(), 2)
    for share, value in facts["lengths"]["percentiles"].items():
        # The shortest length that so large a share of the documents does not exceed.
        rank = -(-int(share) * len(lengths) // 100)
        assert value == lengths[max(rank, 1) - 1]
    assert [source["tokens"] for source in facts["sources"]] == [manifest.tokens]
    assert facts["files"][f"{prefix}.bin"] == os.path.getsize(f"{prefix}.bin")
    screen = run("inspect", prefix).stdout
    for word in (f"{manifest.tokens:,}", "tokenizer.json", "data.jsonl", manifest.created, "99%"):
        assert word in screen
    assert len(screen.splitlines()) < 24


def test_overview_of_tracks(tmp_path: Path) -> None:
    """Of a virtual dataset those of its pieces; a file of another program is none."""
    build_tracks(tmp_path / "a", [[[1, 2, 3]], [[5]]], ["mask", "weights"])
    build_tracks(tmp_path / "b", [[[2, 2]]], [])
    tokpack.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all", virtual=True)
    (tmp_path / "all.mask").write_bytes(b"of another program")
    facts = run_json("inspect", tmp_path / "a")
    assert (facts["tracks"], facts["trained"]) == ({"mask": "uint8", "weights": "float16"}, 3)
    assert facts["files"][f"{tmp_path}/a.weights"] == 8
    assert "3 tokens (75.0%), by mask (uint8) and weights" in run("inspect", tmp_path / "a").stdout
    facts = run_json("inspect", tmp_path / "all")
    assert (list(facts["tracks"]), facts["trained"]) == (["mask", "weights"], 5)
    assert f"{tmp_path}/all.mask" not in facts["files"]
    assert run_json("inspect", tmp_path / "b")["trained"] is None


@pytest.mark.parametrize("name", ["empty", "gaps", "empty-documents", "multimodal", "int64"])
def test_overview_of_unusual_datasets(name: str) -> None:
    facts = run_json("inspect", GOLDEN / "v1" / name)
    assert facts["tokens"] == len(tokpack.MMapIndexedDataset(GOLDEN / "v1" / name).tokens)
    screen = run("inspect", GOLDEN / "v1" / name).stdout
    assert "documents" in screen
    assert facts["multimodal"] == ("it is multimodal" in screen) == (name == "multimodal")


def test_a_broken_dataset_is_an_error() -> None:
    done = run("inspect", GOLDEN / "broken" / "inner-length", code=1)
    assert "inner-length.idx" in done.stderr
    assert "sequence" in done.stderr


def test_a_manifest_of_another_dataset_is_left_aside(tmp_path: Path, prefix: str) -> None:
    for suffix in (".bin", ".idx"):
        shutil.copy(GOLDEN / "v1" / f"uint16{suffix}", tmp_path / f"x{suffix}")
    shutil.copy(f"{prefix}.json", tmp_path / "x.json")
    done = run("inspect", tmp_path / "x")
    assert "belongs to another" in done.stderr
    assert "data.jsonl" not in done.stdout
    (tmp_path / "x.json").write_text('{"text": "my own file"}')
    assert "not a manifest" in run("inspect", tmp_path / "x").stderr


# Documents


def test_a_document_decodes_to_its_text(prefix: str) -> None:
    texts = sample_texts()
    for asked, number in (("17", 17), ("-1", len(texts) - 1)):
        (shown,) = run_json("inspect", prefix, "--doc", asked)["documents"]
        assert shown["document"] == number
        assert shown["ids"] == tokpack.MMapIndexedDataset(prefix)[number].tolist()
        assert shown["text"] == texts[number] + "<|endoftext|>"
        assert shown["source"].endswith("data.jsonl")


def test_tokens_and_ids_stand_side_by_side(prefix: str) -> None:
    lines = run("inspect", prefix, "--doc", "17", "--max-tokens", "0").stdout.splitlines()
    assert lines[0].startswith("document 17: ")
    texts = "".join(line[2:] for line in lines[1:-1:2])
    ids = " ".join(line[2:] for line in lines[2:-1:2])
    tokens = tokpack.MMapIndexedDataset(prefix)[17].tolist()
    assert [int(i) for word in ids.split() for i in word.split("+")] == tokens
    # Without the bars and the blanks that align them, the text itself is left.
    text = re.sub(r"\| *", "", texts).replace("\N{OPEN BOX}", " ").replace("\\n", "\n")
    assert text.replace("\\t", "\t") == sample_texts()[17] + "<endoftext>"
    assert max(map(len, lines)) <= 100


def test_a_long_document_is_cut(prefix: str) -> None:
    number = int(np.argmax(tokpack.MMapIndexedDataset(prefix).sizes))
    size = len(tokpack.MMapIndexedDataset(prefix)[number])
    out = run("inspect", prefix, "--doc", number, "--max-tokens", "5").stdout
    assert f"{size - 5} more tokens" in out.replace(",", "")
    (shown,) = run_json("inspect", prefix, "--doc", number, "--max-tokens", 5)["documents"]
    assert (len(shown["ids"]), shown["length"]) == (5, size)


def test_colours_are_for_terminals_only(prefix: str) -> None:
    number = str(np.argmax(tokpack.MMapIndexedDataset(prefix).sizes))

    def on_terminal(**env: str) -> str:
        leader, follower = pty.openpty()
        environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        forked.run(
            ["-m", "tokpack", "inspect", prefix, "--doc", number, "--max-tokens", "5"],
            stdout=follower,
            stderr=subprocess.PIPE,
            env={**environment, "TERM": "xterm-256color", **env},
            check=True,
            timeout=60,
        )
        os.close(follower)
        read = os.read(leader, 1 << 16).decode()
        os.close(leader)
        return read

    colours = re.findall(r"\x1b\[30;48;5;(\d+)m", on_terminal())
    assert 2 < len(colours) <= 5
    assert all(a != b for a, b in itertools.pairwise(colours))
    plain = on_terminal(NO_COLOR="1")
    assert "\x1b" not in plain
    assert "|" in plain
    piped = forked.run(
        ["-m", "tokpack", "inspect", prefix, "--doc", number],
        env={**os.environ, "TERM": "xterm-256color"},
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert b"\x1b" not in piped.stdout


def test_a_document_of_sentences_is_whole(tmp_path: Path) -> None:
    name = raw(tmp_path / "s", [[1, 2], [3], [4, 5, 6], []], [0, 2, 2, 4])
    opened = MMapIndexedDataset(name)
    found = [opened.document(number).tolist() for number in range(opened.documents)]
    assert found == [[1, 2, 3], [], [4, 5, 6]]
    assert np.diff(document_ends(opened.sizes, opened.doc_idx)).tolist() == [3, 0, 3]
    assert "2 sequences" in run("inspect", name, "--doc", "0").stdout


def test_controls_never_reach_the_terminal(tmp_path: Path) -> None:
    hostile = "\x1b[31mred\x1b]0;title\x07 \u202e back \u2028\r\x00 end"
    name = make(tmp_path, "h", [hostile])
    for arguments in (("--doc", "0"), ("--grep", "red"), ()):
        out = run("inspect", name, *arguments).stdout
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e\u2028]", out)
    (shown,) = run_json("inspect", name, "--doc", "0")["documents"]
    assert shown["text"] == hostile + "<|endoftext|>"


# The tokenizer


def test_the_tokenizer_is_found_again(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    make(tmp_path / "a", "x", ["one two three"])
    shutil.move(tmp_path / "a", tmp_path / "moved")
    # Its old place is gone, but it lies beside the dataset.
    (shown,) = run_json("inspect", tmp_path / "moved" / "x", "--doc", "0")["documents"]
    assert shown["text"] == "one two three<|endoftext|>"
    other = json.loads((tmp_path / "moved" / "tokenizer.json").read_text())
    other["added_tokens"][0]["content"] = "<|other|>"
    other["model"]["vocab"]["<|other|>"] = other["model"]["vocab"].pop("<|endoftext|>")
    (tmp_path / "moved" / "tokenizer.json").write_text(json.dumps(other))
    done = run("inspect", tmp_path / "moved" / "x", "--doc", "0")
    assert "another one" in done.stderr
    assert "--tokenizer" in done.stderr
    assert "three" not in done.stdout
    done = run(
        "inspect", tmp_path / "moved" / "x", "--tokenizer", tmp_path / "moved" / "tokenizer.json"
    )
    assert "was made with the tokenizer" in done.stderr


def test_a_vocabulary_of_words(tmp_path: Path) -> None:
    words = make_words(tmp_path, "a b a\nb zz a\n")
    shown = run_json("inspect", words, "--doc", ":")["documents"]
    assert [entry["text"] for entry in shown] == ["a b a <|endoftext|>", "b <unk> a <|endoftext|>"]
    found = run_json("inspect", words, "--grep", "<unk> a")["documents"]
    assert [entry["document"] for entry in found] == [1]


def test_datasets_of_megatron(shared: Path, tmp_path: Path) -> None:
    data = shared / "megatron"
    prefix = data / "meg-gpt2-openwebtext_text_document"
    tokenizer = (
        *("--vocab-file", data / "gpt2-tiny-vocab.json"),
        *("--merge-file", data / "gpt2-tiny-merges.txt"),
    )
    done = run("inspect", prefix)
    assert "1,361,845" in done.stdout
    assert "no manifest names the tokenizer" in done.stderr
    ids = run("inspect", prefix, "--doc", "3", "--max-tokens", "4").stdout
    dataset = tokpack.MMapIndexedDataset(prefix)
    assert [int(word) for word in ids.splitlines()[1].split()] == dataset[3][:4].tolist()
    facts = run_json("inspect", prefix, *tokenizer)
    assert facts["measured"]
    assert 2.5 < facts["bytes_per_token"] < 4.5
    (shown,) = run_json("inspect", prefix, "--doc", 3, *tokenizer)["documents"]
    assert shown["text"].startswith("The 45-year-old")
    # What was decoded is what was encoded: encoding it again gives the same ids.
    source = tmp_path / "again.jsonl"
    source.write_text(json.dumps({"text": shown["text"].removesuffix("<|endoftext|>")}) + "\n")
    tokpack.encode(
        [str(source)],
        str(tmp_path / "again"),
        vocab_file=str(tokenizer[1]),
        merge_file=str(tokenizer[3]),
    )
    again = tokpack.MMapIndexedDataset(tmp_path / "again")[0]
    count = len(dataset[3])
    assert again[: count - 1].tolist() == dataset[3][: count - 1].tolist()


def test_ids_that_no_token_has(tmp_path: Path, folder: Path, prefix: str) -> None:
    name = raw(tmp_path / "x", [[65, 700, 66], [-5, 67]], [0, 1, 2], "int32")
    tokenizer = folder / "tokenizer.json"
    shown = run_json("inspect", name, "--doc", ":", "--tokenizer", tokenizer)["documents"]
    assert [entry["text"].count("\N{REPLACEMENT CHARACTER}") for entry in shown] == [1, 1]
    assert "700" in run("inspect", name, "--doc", "0", "--tokenizer", tokenizer).stdout


def test_a_trace_gives_the_line(tmp_path: Path) -> None:
    name = make(tmp_path, "t", ["one", "", "three"], trace=True)
    assert [entry["line"] for entry in run_json("inspect", name, "--doc", ":")["documents"]] == [
        *(1, 3),
    ]
    assert "t.jsonl:3" in run("inspect", name, "--doc", "1").stdout


def test_kept_values_stand_with_their_documents(tmp_path: Path) -> None:
    name = make(tmp_path, "t", ["one two three", "", "four"] * 9, keep=["again=text", "none=no?"])
    overview = run("inspect", name).stdout
    assert "kept             again (string), none (string)" in overview
    assert "t.docs.parquet" in overview
    assert "t.dropped.parquet" in overview
    assert run_json("inspect", name)["columns"] == {"again": "string", "none": "string"}
    shown = run("inspect", name, "--doc", "1").stdout
    assert "from " in shown
    assert "t.jsonl:3\n  again=four\n" in shown
    (entry,) = run_json("inspect", name, "--doc", "1")["documents"]
    assert entry["kept"] == {"again": "four", "none": None}
    (traced,) = run("inspect", name, "--trace", "--doc", "1", "--json").stdout.splitlines()
    assert json.loads(traced)["kept"] == {"again": "four", "none": None}
    source = ["--trace", "--source", "t.jsonl:1", "--json"]
    (line,) = run("inspect", name, *source).stdout.splitlines()
    assert json.loads(line)["kept"] == {"again": "one two three", "none": None}
    run("select", name, "--first", "3", "-o", f"{name}_view")
    assert "t.jsonl:3\n  again=four\n" in run("inspect", f"{name}_view", "--doc", "1").stdout
    blend = ["blend", name, "--seq-length", "8", "--samples", "4", "--show", "1"]
    assert "again=" in run(*blend).stdout
    (sample,) = run_json(*blend)["shown"]
    kept = {one["kept"]["again"] for one in sample["documents"]}
    assert kept <= {"one two three", "four"}


def test_a_tokenizer_that_is_not_byte_level(tmp_path: Path) -> None:
    library = pytest.importorskip("tokenizers")
    model = library.Tokenizer(library.models.Unigram())
    model.pre_tokenizer = library.pre_tokenizers.Metaspace()
    model.decoder = library.decoders.Metaspace()
    texts = ["the quick brown fox", "how many roads must a man walk down", "été à la plage"]
    trainer = library.trainers.UnigramTrainer(
        vocab_size=60, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    model.train_from_iterator(texts * 20, trainer)
    model.save(str(tmp_path / "unigram.json"))
    name = make(tmp_path, "u", texts, tokenizer=str(tmp_path / "unigram.json"))
    opened = MMapIndexedDataset(name)
    tokenizer = find_tokenizer(opened).tokenizer
    assert tokenizer
    assert tokenizer.kind == "Hugging Face tokenizers"
    spelling = Spelling(tokenizer)
    for number, text in enumerate(texts):
        ids = opened.document(number).tolist()
        assert b"".join(spelling.of(ids)).decode() == text + "</s>"
        assert [i for piece in spelling.whole(ids) for i in piece.ids] == ids
    assert [match.document for match in grep(opened, spelling, "man walk")] == [1]
    out = run("stats", name).stdout
    assert "' '" in out


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"name": ["a"], "vocab_size": -7, "eod_id": 2**80}, "tokenizer: name is ['a']"),
        ({"name": "/dev/zero", "vocab_size": 2**40, "eod_id": "x", "kind": None}, ""),
        ({"name": "../" * 40, "special_ids": {"<unk>": -(2**70)}}, "special_ids['<unk>'] is -"),
        ({"name": "\x1b[31m\n", "kind": "\x07"}, ""),
    ],
)
def test_a_hostile_manifest_harms_nothing(
    tmp_path: Path, prefix: str, changes: dict[str, object], refused: str
) -> None:
    for suffix in (".bin", ".idx"):
        shutil.copy(prefix + suffix, tmp_path / f"x{suffix}")
    manifest = json.loads(Path(f"{prefix}.json").read_text())
    manifest["tokenizer"] |= changes
    manifest["inputs"] = [5, {"name": 7, "tokens": "x", "documents": -1}, {"text_bytes": 2.5}]
    (tmp_path / "x.json").write_text(json.dumps(manifest))
    page = tmp_path / "x.html"
    for arguments in (("inspect",), ("inspect", "--doc", "0"), ("stats", "--html", page)):
        done = run(arguments[0], tmp_path / "x", *arguments[1:], code=bool(refused))
        assert "\x1b" not in done.stdout + done.stderr
        assert refused in done.stderr

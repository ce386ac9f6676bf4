"""What a run of `tokpack encode` does and says: real processes, real files."""

from __future__ import annotations

import gzip
import hashlib
import json
from typing import TYPE_CHECKING

import pytest
from support.cli_tools import ids, tokpack
from support.encoding_tools import byte_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


def test_default_output_and_streams(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    run = tokpack("encode", corpus, "--tokenizer", tokenizer, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "corpus\n"
    assert "3 documents" in run.stderr
    assert "bytes per token" in run.stderr
    assert "\x1b" not in run.stderr
    for suffix in ("bin", "idx", "json"):
        assert (tmp_path / f"corpus.{suffix}").stat().st_size
    assert ids(tmp_path / "corpus").count(0) == 3


def test_a_folder_gives_its_name(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    folder = tmp_path / "the-pile"
    folder.mkdir()
    files = [folder / f"{i}.jsonl" for i in range(2)]
    for path in files:
        path.write_bytes(corpus.read_bytes())
    run = tokpack("encode", *files, "--tokenizer", tokenizer, cwd=tmp_path)
    assert (run.returncode, run.stdout) == (0, "the-pile\n"), run.stderr
    first = ids(tmp_path / "the-pile")
    run = tokpack("encode", "the-pile/", "--tokenizer", tokenizer, "--overwrite", cwd=tmp_path)
    assert (run.returncode, run.stdout) == (0, "the-pile\n"), run.stderr
    assert ids(tmp_path / "the-pile") == first


def test_a_finished_dataset_is_left_alone(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    command = ("encode", corpus, "--tokenizer", tokenizer, "-o", "out")
    assert tokpack(*command, cwd=tmp_path).returncode == 0
    before = (tmp_path / "out.bin").stat().st_mtime_ns
    again = tokpack(*command, cwd=tmp_path)
    assert again.returncode == 0
    assert "complete already" in again.stderr
    assert (tmp_path / "out.bin").stat().st_mtime_ns == before


@pytest.mark.parametrize(("mode", "became"), [("text", "text"), ("encode", "special tokens")])
def test_special_tokens_are_counted(
    tokenizer: Path, tmp_path: Path, mode: str, became: str
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a <|endoftext|> b <|endoftext|>"}\n')
    command = ("encode", "a.jsonl", "--tokenizer", tokenizer, "--special-tokens", mode)
    run = tokpack(*command, cwd=tmp_path)
    assert f"2 special tokens written in documents, encoded as {became}" in run.stderr
    assert ids(tmp_path / "a").count(0) == (1 if mode == "text" else 3)


def test_the_summary_says_what_was_read_and_what_ends_documents(
    corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    done = tokpack("encode", corpus, "a.txt", "-o", "x", "--tokenizer", tokenizer, cwd=tmp_path)
    assert (
        "read as    JSON lines (1 input); plain text, one document per line (1 input)"
        in done.stderr
    )
    eod = json.loads((tmp_path / "x.json").read_text())["tokenizer"]["eod_id"]
    assert f"documents  end with the EOD <|endoftext|> ({eod})" in done.stderr
    options = ("-o", "y", "--no-append-eod", "--tokenizer", tokenizer)
    done = tokpack("encode", "a.txt", *options, cwd=tmp_path)
    assert "read as    plain text, one document per line\n" in done.stderr
    assert "documents  end without an EOD" in done.stderr
    options = ("-o", "z", "--bos-token", "a", "--tokenizer", tokenizer)
    done = tokpack("encode", "a.txt", *options, cwd=tmp_path)
    first = ids(tmp_path / "z")[0]
    assert f"documents  begin with {first}, end with the EOD <|endoftext|> ({eod})" in done.stderr


def test_patterns_of_datasets_that_the_shell_left_alone(
    corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    for name in ("part_0", "part_1", "other"):
        tokpack("encode", corpus, "-o", name, "--tokenizer", tokenizer, cwd=tmp_path)
    (tmp_path / "part_2.json").write_text("{}")
    for pattern in ("part_*", "part_?.idx", "part_[01].bin"):
        verified = tokpack("verify", pattern, cwd=tmp_path).stdout
        assert [line.split(":")[0] for line in verified.splitlines()] == ["part_0", "part_1"]
    assert tokpack("merge", "part_*", "-o", "all.bin", cwd=tmp_path).stdout == "all\n"
    assert ids(tmp_path / "all") == 2 * ids(tmp_path / "other")
    counted = json.loads(tokpack("stats", "part_*", "--json", cwd=tmp_path).stdout)
    assert len(counted["datasets"]) == 2
    none = tokpack("verify", "none_*", cwd=tmp_path)
    assert (none.returncode, "none_*: no dataset matches this pattern" in none.stderr) == (1, True)


def test_json_and_quiet(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    run = tokpack(
        "encode", corpus, "--tokenizer", tokenizer, "-o", "out", "--json", "-q", cwd=tmp_path
    )
    assert (run.returncode, run.stderr) == (0, "")
    (dataset,) = json.loads(run.stdout)["datasets"]
    assert dataset["prefix"] == "out"
    assert dataset["documents"] == 3
    assert dataset["tokens"] == len(ids(tmp_path / "out"))


def test_megatron_names_and_eod_note(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    base = (
        "encode",
        "--input",
        corpus,
        "--vocab-file",
        tokenizer,
        "--tokenizer-type",
        "HFTokenizer",
    )
    run = tokpack(*base, "--output-prefix", "old", "--partitions", "2", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "old_text_document\n"
    assert "note: no EOD after documents" in run.stderr
    assert "note: --partitions is not needed" in run.stderr
    assert 0 not in ids(tmp_path / "old_text_document")
    run = tokpack(*base, "--output-prefix", "new", "--append-eod", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "no EOD" not in run.stderr
    with_eod = ids(tmp_path / "new_text_document")
    assert [i for i in with_eod if i] == ids(tmp_path / "old_text_document")


def test_comma_list_with_blanks(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    lists = f" {corpus}, {corpus} , {corpus}"
    run = tokpack("encode", "--input", lists, "-o", "x", "--tokenizer", tokenizer, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    tokpack("encode", corpus, "-o", "y", "--tokenizer", tokenizer, cwd=tmp_path)
    assert ids(tmp_path / "x") == 3 * ids(tmp_path / "y")


def test_a_dataset_for_each_key(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    run = tokpack(
        "encode", corpus, "--json-keys", "text", "title", "-o", "k", "--tokenizer", tokenizer,
        cwd=tmp_path,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout == "k_text\nk_title\n"
    assert ids(tmp_path / "k_text") != ids(tmp_path / "k_title")


def test_whitespace_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a b a\nb  zzz \n")
    vocabulary = {"<unk>": 0, "<|endoftext|>": 1, "a": 2, "b": 3}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    run = tokpack(
        *[
            "encode",
            "--input",
            "train.txt",
            "--tokenizer-type",
            "Whitespace",
            "--vocab-file",
            "vocab.json",
        ],
        *["--output-prefix", "nist", "--dataset-impl", "mmap", "--workers", "4"],
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "nist_text_sentence\n"
    assert ids(tmp_path / "nist_text_sentence") == [2, 3, 2, 1, 3, 0, 1]


@pytest.mark.parametrize("kind", ["whitespace", "bpe"])
def test_vocab_then_encode(corpus: Path, tmp_path: Path, kind: str) -> None:
    name = "vocab.json" if kind == "whitespace" else "tokenizer.json"
    # Training a BPE waits for threads, which a fork does not have.
    run = tokpack("vocab", corpus, "-o", name, "--size", "300", cwd=tmp_path, fresh=kind == "bpe")
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"{name}\n"
    assert f"tokpack encode {corpus} --" in run.stderr
    assert "--eod-token" not in run.stderr
    flags = ["--tokenizer-type", "Whitespace"] if kind == "whitespace" else []
    run = tokpack(
        "encode", corpus, "-o", "out", "--vocab-file", name, *flags, "--input-format", "jsonl",
        cwd=tmp_path,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert ids(tmp_path / "out")


def test_an_error_names_flags_beside_a_tokenizer_in_a_json_file(tmp_path: Path) -> None:
    chats, tokenizer = tmp_path / "chats.jsonl", tmp_path / "tokenizer.json"
    chats.write_text('{"messages": []}\n')
    byte_tokenizer(tokenizer)
    done = tokpack("encode", chats, "--chat", "--tokenizer", tokenizer, "-o", tmp_path / "x")
    assert "--chat-template FILE" in done.stderr


def test_a_template_is_said_to_be_of_the_tokenizer_only_where_it_is(tmp_path: Path) -> None:
    chats, template = tmp_path / "chats.jsonl", tmp_path / "plain.jinja"
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    chats.write_text(json.dumps({"messages": turns}) + "\n")
    template.write_text("{% for m in messages %}{{ m['content'] }}.{% endfor %}")
    byte_tokenizer(tmp_path / "tokenizer.json")
    words = ["encode", chats, "--chat", "--chat-template", template]
    words += ["--tokenizer", tmp_path / "tokenizer.json"]
    done = tokpack(*words, "--dry-run")
    assert f"template{template}tokenizer" in "".join(done.stdout.split())  # a long path is broken
    digest = hashlib.sha256(template.read_bytes()).hexdigest()
    done = tokpack(*words, "-o", tmp_path / "out")
    assert f"loss on assistant, template {digest[:8]}\n" in done.stderr


CHATML = (
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content ~ (loop.length > 2) }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_errors_of_conversations_name_flags(tmp_path: Path) -> None:
    byte_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "t.jinja").write_text(CHATML)
    chat = ["--chat", "--chat-template", "t.jinja", "--tokenizer", "tokenizer.json", "-o", "x"]

    def said(*roles: str) -> str:
        talk = {"messages": [{"role": role, "content": "a"} for role in roles]}
        (tmp_path / "chats.jsonl").write_text(json.dumps(talk) + "\n")
        return tokpack("encode", "chats.jsonl", *chat, "--workers", "2", cwd=tmp_path).stderr

    assert "--rewriting split" in said("user", "assistant", "user", "assistant")
    assert "--role-map critic=user" in said("critic", "assistant")
    done = said("user", "assistant")
    assert "tokpack convert" in done
    assert "for Megatron or NeoX" not in done
    again = tokpack(
        "encode", "chats.jsonl", "--dry-run", "--tokenizer", "tokenizer.json", cwd=tmp_path
    )
    assert "conversations are encoded with --chat" in again.stderr


def test_a_dry_run_says_what_to_expect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokpack.cli.shown._MOST_SECONDS", 60.0)  # however busy the machine is
    byte_tokenizer(tmp_path / "tokenizer.json")
    lines = [json.dumps({"text": f"text {n:06}", "id": n}) + "\n" for n in range(300)]
    (tmp_path / "a.jsonl").write_text("".join(lines))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress("".join(lines[:50]).encode()))
    words = ["encode", "a.jsonl", "b.jsonl.gz", "-o", "out", "--tokenizer", "tokenizer.json"]
    before = sorted(tmp_path.iterdir())

    def said(*more: str, code: int = 0) -> str:
        done = tokpack(*words, *more, "--dry-run", cwd=tmp_path)
        assert done.returncode == code, done.stderr
        assert sorted(tmp_path.iterdir()) == before
        return " ".join((done.stdout + done.stderr).split())

    whole = said()
    for part in (
        "JSON lines (1 input); JSON lines in gz (1 input)",
        "key text",
        "tokenizer tokenizer.json (byte-level BPE), ids stored as uint16",
        "end with the EOD <|endoftext|>",
        "100 records: 100 documents, 1,200 tokens",
        "document 0: 12 tokens, from a.jsonl",
        "in all 350 documents, 4.2k tokens, 8.4 kB of .bin",
    ):
        assert part in whole
    assert f"from{tmp_path}" in whole.replace(" ", "")  # a long path is broken
    assert "in all 175 documents" in said("--where", "id % 2 = 0")
    assert "in all 10 documents" in said("--limit", "10")
    assert "no key 'txt'" in said("--json-keys", "txt", code=1)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": 5}\n'))
    assert "b.jsonl.gz:1" in said(code=1)


def test_a_dry_run_sends_no_reports(tmp_path: Path) -> None:
    byte_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    words = ["encode", "a.jsonl", "--tokenizer", "tokenizer.json", "--dry-run"]
    done = tokpack(*words, "--report-to", "https://nowhere.invalid/", cwd=tmp_path)
    assert done.returncode == 0
    assert "report" not in done.stderr

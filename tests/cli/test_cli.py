"""The command line as its users meet it: real processes, real files."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.encoding_tools import wait_until

from tokpack.cli.commands.encode import PAGE, resolve
from tokpack.cli.parser import parse
from tokpack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TOKPACK = [sys.executable, "-m", "tokpack"]
TEXTS = ["The first document.", "Le deuxième, où ça va?", "third\nof\tthem " * 20]


def tokpack(
    *arguments: object, cwd: Path | None = None, **settings: Any
) -> subprocess.CompletedProcess[str]:
    """Run the command and wait for it."""
    environment = {**os.environ, "TERM": "dumb", **settings.pop("env", {})}
    return subprocess.run(
        [*TOKPACK, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **settings,
    )


def options_of(command: str) -> tuple[Any, list[str]]:
    """What the library is asked to do for a command line, and the notes for the user."""
    arguments = parse(PAGE, command.split())
    assert arguments is not None
    return resolve(arguments)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small byte-level BPE with an end-of-text token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(TEXTS, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    model.save(str(path))
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": t, "title": t[:9]}) + "\n" for t in TEXTS))
    return path


def ids(prefix: Path | str) -> list[int]:
    return np.fromfile(f"{prefix}.bin", dtype=np.uint16).tolist()


# What a command line means


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "--input my.jsonl --output-prefix my-gpt2 --vocab gpt2-vocab.json --dataset-impl mmap "
            "--tokenizer-type GPT2BPETokenizer --merge-file gpt2-merges.txt --append-eod "
            "--workers 8",
            {
                "inputs": ("my.jsonl",),
                "output_names": {"text": "my-gpt2_text_document"},
                "vocab_file": "gpt2-vocab.json",
                "merge_file": "gpt2-merges.txt",
                "tokenizer_type": "GPT2BPETokenizer",
                "append_eod": True,
                "workers": 8,
            },
        ),
        (
            "--input a.txt --tokenizer-type Whitespace --vocab-file v.json --output-prefix nist",
            {
                "output_names": {"text": "nist_text_sentence"},
                "append_eod": True,
                "input_format": "text",
            },
        ),
        (
            "--input a b --json_keys text title --output_prefix=p --split-sentences --lang german",
            {
                "inputs": ("a", "b"),
                "keys": ("text", "title"),
                "output_names": {"text": "p_text_sentence", "title": "p_title_sentence"},
                "append_eod": False,
                "lang": "german",
            },
        ),
        (
            "a.jsonl -o out --tokenizer neox --on-error skip:7 b.jsonl --max-document-bytes 2MB",
            {
                "inputs": ("a.jsonl", "b.jsonl"),
                "output": "out",
                "output_names": {"text": "out"},
                "tokenizer": "neox",
                "append_eod": True,
                "on_error": "skip",
                "max_rejects": 7,
                "max_document_bytes": 2_000_000,
            },
        ),
        ("d/a.jsonl.zst --no-append-eod", {"append_eod": False, "output": "a", "workers": 0}),
        ("a --tokenizer-name-or-path org/name", {"tokenizer": "org/name"}),
        ("a --jsonl-keys b", {"keys": ("b",)}),
        ("a --limit 1.5k -o x.bin", {"limit": 1500, "output": "x"}),
        ("a --limit 2M -o d/x.idx", {"limit": 2_000_000, "output": "d/x"}),
        ("a --limit 1B -o x.y", {"limit": 10**9, "output": "x.y"}),
        ("a --json-keys b -o x -- --c -d", {"inputs": ("a", "--c", "-d"), "keys": ("b",)}),
        ("a --json-keys text,title meta.text,", {"keys": ("text", "title", "meta.text")}),
    ],
)
def test_flags_mean(command: str, expected: dict[str, Any]) -> None:
    options, _ = options_of(command)
    assert {name: getattr(options, name) for name in expected} == expected


def test_flags_without_effect_get_a_note_each() -> None:
    _, notes = options_of(
        "a --partitions 4 --make-vocab-size-divisible-by 128 --tensor-model-parallel-size 1 "
        "--keep-sequential-samples --vocab-size 50257 --num-docs 10 --workers-to-check 1 2"
    )
    assert [note.split()[0] for note in notes] == [
        "--partitions",
        "--make-vocab-size-divisible-by",
        "--tensor-model-parallel-size",
        "--keep-sequential-samples",
        "--vocab-size",
        "--num-docs",
        "--workers-to-check",
    ]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "no INPUT"),
        ("a --worker 3", "did you mean --workers?"),
        ("a --tokeniser=neox", "did you mean --tokenizer?"),
        ("a --zzzzzzzz", "unknown flag --zzzzzzzz"),
        ("a --workers many", "'many' is not a whole number of at least 1"),
        ("a --on-error maybe", "'maybe' is not fail, skip or skip:N"),
        ("a --dataset-impl lazy", "use --dataset-impl mmap"),
        ("a -o x --output-prefix y", "keep one"),
        ("a --max-document-bytes big", "'big' is not a size"),
    ],
)
def test_a_wrong_request_says_what_to_do(command: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        options_of(command)


def test_keys_that_took_the_input(corpus: Path) -> None:
    with pytest.raises(UsageError, match="put the inputs before it"):
        options_of(f"--json-keys text {corpus}")


# What a run does


def test_default_output_and_streams(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    run = tokpack("encode", corpus, "--tokenizer", tokenizer, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "corpus\n"
    assert "3 documents" in run.stderr
    assert "bytes a token" in run.stderr
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
    assert f"2 special tokens inside documents, as {became}" in run.stderr
    assert ids(tmp_path / "a").count(0) == (1 if mode == "text" else 3)


def test_the_summary_says_what_was_read_and_what_ends_documents(
    corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    done = tokpack("encode", corpus, "a.txt", "-o", "x", "--tokenizer", tokenizer, cwd=tmp_path)
    assert "read as    JSON lines (1 input); plain text, a document a line (1 input)" in done.stderr
    eod = json.loads((tmp_path / "x.json").read_text())["tokenizer"]["eod_id"]
    assert f"documents  end with the EOD <|endoftext|> ({eod})" in done.stderr
    options = ("-o", "y", "--no-append-eod", "--tokenizer", tokenizer)
    done = tokpack("encode", "a.txt", *options, cwd=tmp_path)
    assert "read as    plain text, a document a line\n" in done.stderr
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
    run = tokpack("vocab", corpus, "-o", name, "--size", "300", cwd=tmp_path)
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


# How it fails


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["encode", "nowhere.jsonl"], "nowhere.jsonl"),
        (["encode"], "no INPUT"),
        (["encod"], "did you mean encode?"),
        (["corpus.jsonl"], "did you mean `tokpack encode corpus.jsonl"),
        (["vocab", "corpus.jsonl"], "-o"),
        (["vocab", "corpus.jsonl", "-o", "/dev/null/tokenizer.json"], "/dev/null/tokenizer.json"),
        (["encode", "corpus.jsonl", "--tokenizer", "nobody/nothing", "-o", "x"], "nobody/nothing"),
    ],
)
def test_one_message_and_exit_code_1(
    corpus: Path, tmp_path: Path, arguments: Sequence[str], message: str
) -> None:
    offline = {"HF_HUB_OFFLINE": "1"}
    run = tokpack(*arguments, cwd=tmp_path, env=offline)
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr.startswith("tokpack: error: ")
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    debug = tokpack(*arguments, "--debug", cwd=tmp_path, env=offline)
    assert debug.returncode == 1
    assert "Traceback" in debug.stderr


def test_a_bad_record_is_named(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    with corpus.open("a") as file:
        file.write('{"text": null}\n')
    base = ("encode", corpus, "--tokenizer", tokenizer, "-o", "out")
    run = tokpack(*base, cwd=tmp_path)
    assert run.returncode == 1
    assert "corpus.jsonl:4" in run.stderr
    assert not (tmp_path / "out.bin").exists()
    run = tokpack(*base, "--on-error", "skip", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "1 bad record in out.rejects.jsonl" in run.stderr
    assert (tmp_path / "out.rejects.jsonl").read_text().count("\n") == 1


def test_train_without_torch_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from tokpack.cli.main import main;"
        "sys.exit(main(['train', '--data-path', 'somewhere']))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "this needs the package torch: pip install 'tokpack[train]'" in done.stderr


def test_help_version_and_module() -> None:
    assert tokpack().stdout == tokpack("--help").stdout
    version = tokpack("--version").stdout.splitlines()
    assert re.fullmatch(r"tokpack \d+\.\d+\.\d+\S*", version[0])
    assert [line.partition(":")[0] for line in version[1:]] == [
        "instructions",
        "python",
        "libraries",
    ]
    assert f"tokenizers {metadata.version('tokenizers')}" in version[3]
    page = tokpack("encode", "--help", env={"COLUMNS": "80"}).stdout
    assert max(map(len, page.splitlines())) <= 100
    for title in ("input:", "tokenizer:", "text:", "output:", "run:", "examples:"):
        assert f"\n{title}\n" in page
    assert "--partitions" not in page


@pytest.mark.parametrize("arguments", [["--help"], ["encode", "--help"]])
def test_a_closed_pipe_is_no_error(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(
        [*TOKPACK, *arguments], stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60
    )
    os.close(writer)
    assert (run.returncode, run.stderr) == (0, b"")


def test_a_closed_stderr_does_not_stop_a_run(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(
        [*TOKPACK, "encode", corpus, "--tokenizer", tokenizer, "-o", "out"],
        stdout=subprocess.PIPE, stderr=writer, cwd=tmp_path, check=False, timeout=60,
    )  # fmt: skip
    os.close(writer)
    assert (run.returncode, run.stdout) == (0, b"out\n")


def test_streams_closed_by_the_shell(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    command = f"{sys.executable} -m tokpack encode {corpus} --tokenizer {tokenizer} -o out"
    run = subprocess.run(
        f"{command} 2>&-; {command}2 >&-", shell=True, capture_output=True, cwd=tmp_path, check=True
    )
    assert run.stdout == b"out\n"
    assert b"out2: 3 documents" in run.stderr
    assert ids(tmp_path / "out") == ids(tmp_path / "out2")


def test_interrupt(tokenizer: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*TOKPACK, "encode", "-", "--tokenizer", tokenizer, "-o", "out"],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(b'{"text": "a"}\n')
    process.stdin.flush()
    pipe = process.stdin.fileno()
    wait_until(lambda: fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)) == bytes(4))  # it reads
    os.killpg(process.pid, signal.SIGINT)
    _, talk = process.communicate(timeout=300)
    assert process.returncode == 130
    assert talk.decode().splitlines()[-1].startswith("tokpack: interrupted")
    assert b"Traceback" not in talk
    assert not (tmp_path / "out.bin").exists()


def on_terminal(arguments: Sequence[object], cwd: Path, **environment: str) -> tuple[int, str]:
    """Run the command with a terminal for its stderr; its exit code and what the terminal got."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*TOKPACK, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "TERM": "xterm-256color", **environment},
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    received = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            received += os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
    os.close(ours)
    return process.wait(timeout=60), received.decode()


def test_progress_on_a_terminal(tokenizer: Path, tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    line = json.dumps({"text": "some text of a document " * 40}) + "\n"
    path.write_text(line * 20_000)
    code, screen = on_terminal(["encode", path, "--tokenizer", tokenizer, "-o", "a"], tmp_path)
    assert code == 0, screen
    assert "\r" in screen
    assert "/s" in screen
    code, screen = on_terminal(
        ["encode", "nowhere.jsonl", "-o", "b"], tmp_path, NO_COLOR="1", COLUMNS="80"
    )
    assert code == 1
    assert "\x1b" not in screen
    code, screen = on_terminal(["encode", "nowhere.jsonl", "-o", "b"], tmp_path, NO_COLOR="")
    assert "\x1b[1;31merror" in screen


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_standard_output_is_named() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tokpack", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "tokpack: error: cannot write standard output: No space left on device\n"

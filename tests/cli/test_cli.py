"""How the command line fails, helps, and speaks to pipes and terminals: real processes."""

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
from typing import TYPE_CHECKING

import pytest
from support import forked
from support.cli_tools import TOKPACK, ids, tokpack
from support.encoding_tools import wait_until

from tokpack.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["encode", "nowhere.jsonl"], "nowhere.jsonl"),
        (["vocab", "corpus.jsonl", "-o", "/dev/null/tokenizer.json"], "/dev/null/tokenizer.json"),
    ],
)
def test_one_message_and_exit_code_1(
    corpus: Path, tmp_path: Path, arguments: Sequence[str], message: str
) -> None:
    run = tokpack(*arguments, cwd=tmp_path)
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr.startswith("tokpack: error: ")
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    debug = tokpack(*arguments, "--debug", cwd=tmp_path)
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


def test_help_as_a_command_is_that_of_its_flag() -> None:
    for words in (["encode"], ["shards", "plan"], ["plan"], ["shards"], ["model", "export"]):
        done = tokpack("help", *words)
        assert (done.returncode, done.stdout) == (0, tokpack(*words, "--help").stdout)
        assert words[-1] in done.stdout
    assert tokpack("help", "encod").stderr == tokpack("encod").stderr


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
    process = forked.Process(
        ["-m", "tokpack", "encode", "-", "--tokenizer", tokenizer, "-o", "out"],
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


@pytest.mark.parametrize(
    ("version", "hint"),
    [
        ([], "the same command starts from scratch"),
        (["--map-version", "1"], "run the same command again"),
    ],
)
def test_interrupt_of_a_function(
    version: list[str], hint: str, tokenizer: Path, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n' * 3000)
    (tmp_path / "wait.py").write_text(
        "import time\n\n\ndef wait(batch):\n"
        "    time.sleep(batch.num_rows // 2000 * 60)\n    return batch\n"
    )
    flags = ["--tokenizer", str(tokenizer), "-o", "out", "--map", "wait.py:wait", *version]
    process = forked.Process(
        ["-m", "tokpack", "encode", "in.jsonl", *flags],
        stderr=subprocess.PIPE, cwd=tmp_path, start_new_session=True,
    )  # fmt: skip
    wait_until((tmp_path / "out.unfinished" / "joined.text.ids").exists)
    os.killpg(process.pid, signal.SIGINT)
    _, talk = process.communicate(timeout=300)
    assert process.returncode == 130
    assert talk.decode().splitlines()[-1].startswith(f"tokpack: interrupted; {hint}")
    assert (b"--map without --map-version: if this run is stopped" in talk) is (not version)


def test_interrupt_of_a_definition() -> None:
    """A dataclass is defined by an exec; Python itself would end by the signal after that."""
    code = (
        "import sys\n"
        "from tokpack.cli.main import main\n"
        "main.__globals__['_dispatch'] = lambda *_: exec('raise KeyboardInterrupt')\n"
        "sys.exit(main(['encode']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr.startswith("tokpack: interrupted")


def on_terminal(arguments: Sequence[object], cwd: Path, **environment: str) -> tuple[int, str]:
    """Run the command with a terminal for its stderr; its exit code and what the terminal got."""
    ours, theirs = pty.openpty()
    process = forked.Process(
        ["-m", "tokpack", *arguments],
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


def test_commands_of_two_words(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["shards", "-h"], ["model", "--help"]):
        assert main(words) == 0
        assert f"{words[0]} " in capsys.readouterr().out
    assert main(["plan", "--help"]) == main(["shards", "plan", "--help"]) == 0
    one, other = capsys.readouterr().out.split("Cut a run")[1:]
    assert one == other


def test_rare_flags_are_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--help"]) == 0
    assert "--merge-file FILE" not in capsys.readouterr().out.split("examples")[0]
    assert main(["inspect", "--help-all"]) == 0
    assert "--merge-file FILE" in capsys.readouterr().out

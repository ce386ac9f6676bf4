"""--nproc: ranks as processes, their environment, signals, exit codes. No torch is needed here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.encoding_tools import wait_until
from support.warm_python import warm_python

from tokpack.errors import UsageError
from tokpack.machine import ONE_INTERRUPT
from tokpack.trainer import __main__ as rank
from tokpack.trainer.commands import ranks as launch
from tokpack.trainer.config.flags import RunRequest, resolve

SRC = (
    "from tokpack.trainer.commands.ranks import start; import sys; "
    "sys.exit(start({command!r}, {count}))"
)
RANK = "import os, sys, time, signal; rank = int(os.environ['RANK']); "


def script(body: str) -> list[str]:
    return [sys.executable, "-c", RANK + body]


def start_elsewhere(body: str, count: int) -> subprocess.Popen[str]:
    """A launcher in a process of its own, which a signal can hit."""
    code = SRC.format(command=script(body), count=count)
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(path: Path, count: int) -> None:
    end = time.monotonic() + 100
    while len(list(path.iterdir())) < count and time.monotonic() < end:
        time.sleep(0.02)
    assert len(list(path.iterdir())) == count


def test_every_rank_knows_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "1")  # of some other run
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    body = (
        f"open({str(tmp_path)!r} + f'/{{rank}}', 'w').write(' '.join(map(os.environ.get, {names})))"
    )
    assert launch.start(script(body), 3) == 0
    rows = sorted(path.read_text().split() for path in tmp_path.iterdir())
    port = rows[0][-1]
    assert port != "1"
    assert rows == [[str(r), str(r), "3", "3", "127.0.0.1", port] for r in range(3)]


def test_nobody_else_is_given_the_port_of_the_ranks() -> None:
    body = """
import errno, socket
port = int(os.environ["MASTER_PORT"])
for address in ("127.0.0.1", "127.0.0.2"):
    with socket.socket() as other:
        try:
            other.bind((address, port))
            sys.exit("the port was free")
        except OSError as error:
            assert error.errno == errno.EADDRINUSE
socket.create_server(("", port)).close()  # with SO_REUSEADDR, as torch's store
"""
    assert launch.start(script(body), 1) == 0


def test_the_first_failure_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GRACE", 0.5)
    begin = time.monotonic()
    assert launch.start(script("rank == 1 and sys.exit(7); time.sleep(60)"), 3) == 7
    assert time.monotonic() - begin < 30


def test_a_rank_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GRACE", 0.5)
    body = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "time.sleep(0.5 if rank else 60); sys.exit(3)"
    )
    begin = time.monotonic()
    assert launch.start(script(body), 2) == 3
    assert time.monotonic() - begin < 30


def test_a_killed_rank_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "GRACE", 0.5)
    body = "rank == 1 and os.kill(os.getpid(), signal.SIGKILL); time.sleep(60)"
    assert launch.start(script(body), 2) == 128 + signal.SIGKILL
    assert "rank 1 was ended by SIGKILL; stopping the others" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_signals_go_on_to_every_rank(tmp_path: Path, number: signal.Signals) -> None:
    body = (
        "answer = lambda *_: os.write(1, b'got %d\\n' % rank) and os._exit(0); "
        f"signal.signal({int(number)}, answer); "
        f"open({str(tmp_path)!r} + f'/{{rank}}', 'w').close(); time.sleep(60)"
    )
    launcher = start_elsewhere(body, 2)
    wait_for(tmp_path, 2)
    launcher.send_signal(number)
    out, err = launcher.communicate(timeout=100)
    assert (launcher.returncode, err) == (0, "")
    assert sorted(out.split("\n")) == ["", "got 0", "got 1"]


def test_a_second_ctrl_c_ends_ranks_that_hang(tmp_path: Path) -> None:
    body = (
        "signal.signal(signal.SIGINT, lambda *_: os.write(1, b'-')); "
        f"open({str(tmp_path)!r} + f'/{{rank}}', 'w').close(); "
        "end = time.monotonic() + 60\nwhile time.monotonic() < end: time.sleep(1)"
    )
    launcher = start_elsewhere(body, 2)
    wait_for(tmp_path, 2)
    assert launcher.stdout
    launcher.send_signal(signal.SIGINT)
    assert launcher.stdout.read(2) == "--"
    launcher.send_signal(signal.SIGINT)  # the same, from elsewhere
    assert launcher.stdout.read(2) == "--"
    time.sleep(ONE_INTERRUPT)
    begin = time.monotonic()
    launcher.send_signal(signal.SIGINT)
    out, err = launcher.communicate(timeout=100)
    assert time.monotonic() - begin < 30
    assert (out, "KeyboardInterrupt" in err) == ("", True)


def is_alive(process: int) -> bool:
    """Whether it runs, and is no zombie that waits for its parent."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="the system must know of its parent's death")
def test_ranks_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    body = f"os.mknod({str(tmp_path)!r} + f'/{{os.getpid()}}'); time.sleep(600)"
    launcher = start_elsewhere(body, 2)
    wait_for(tmp_path, 2)
    ranks = [int(path.name) for path in tmp_path.iterdir()]
    assert all(map(is_alive, ranks))
    launcher.kill()
    launcher.communicate()
    wait_until(lambda: not any(map(is_alive, ranks)), 60)


def test_no_rank_outlives_a_launcher_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks: list[subprocess.Popen[bytes]] = []

    def fail(found: list[subprocess.Popen[bytes]], received: list[int]) -> int:
        ranks.extend(found)
        raise RuntimeError("the launcher fails")

    monkeypatch.setattr(launch, "_wait", fail)
    with pytest.raises(RuntimeError):
        launch.start(script("time.sleep(60)"), 2)
    assert [rank.wait(100) for rank in ranks] == [-signal.SIGKILL] * 2


def test_a_request_is_the_same_behind_a_pipe(tmp_path: Path) -> None:
    """Notes, too, and files that the run does not replace."""
    path = tmp_path / "c.yaml"
    path.write_text(
        "pipe_parallel_size: 1\nzero_optimization: {offload_optimizer: {device: cpu}}\n"
    )
    line = f"{path} --data-path .5 a .5 b --nproc 2 --rampup-batch-size 2 2 10"
    request = resolve(f"{line} --global-batch-size 8 --num-workers 3".split())
    again = RunRequest.from_json(request.to_json())
    assert again == request
    assert (again.processes, again.inputs) == (2, (str(path),))
    assert again.config.notes == request.config.notes != ()
    assert again.config.unlike == request.config.unlike != ""
    assert again.config.flags == request.config.flags != {}


def test_a_file_is_read_once_and_an_error_is_said_once() -> None:
    """Files could change, or be a shell's pipe, between the launcher's check and a rank's."""
    pytest.importorskip("torch")
    done = subprocess.run(
        [warm_python() / "tokpack", "train", "/dev/stdin", "--nproc", "2"],
        input="data-path: /nowhere/data\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("tokpack:")]
    assert len(lines) == 1, done.stderr
    assert "/nowhere/data" in lines[0]


def test_checkpoints_of_another_run_are_refused_at_once(tmp_path: Path) -> None:
    """Before torch is imported, which takes seconds: the one here cannot be."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    (tmp_path / "run" / "step_00000002").mkdir(parents=True)
    (tmp_path / "run" / "step_00000002" / "state.json").write_text("{}")
    (tmp_path / "run" / "latest").write_text("step_00000002")
    words = ["--save", str(tmp_path / "run"), "--data-path", "wiki"]
    done = ranks_of(*words, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "--save: " in done.stderr
    assert "holds step_00000002 of another run: go on from it with --load" in done.stderr
    done = ranks_of(*words, "--load", words[1], PYTHONPATH=str(tmp_path))
    assert done.stderr == "torch was imported\n"


def test_nproc_inside_another_launcher() -> None:
    with pytest.raises(UsageError, match=r"^nproc 4, .*\b2 processes\b"):
        rank.run(resolve(["--nproc", "4"]), 2)


def ranks_of(*words: str, **names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tokpack", "train", *words],
        env={**os.environ, "NO_COLOR": "1", **names},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_wrong_request_is_one_message_before_any_rank() -> None:
    done = ranks_of("--nproc", "2", "--tensor-model-parallel-size", "3")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "tokpack: error: 2 processes do not divide into --tensor-model-parallel-size 3 x "
        "--pipeline-model-parallel-size 1"
    ]


def test_the_module_has_no_help_page_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tokpack.trainer", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "The flags are those of `tokpack train --help`.\n"

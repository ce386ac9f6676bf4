"""Whole runs: what they say and write, how they stop, go on, and fail."""

from __future__ import annotations

import errno
import gc
import io
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import warnings
from contextlib import redirect_stderr
from dataclasses import replace
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING, Any

import pytest
from support.encoding_tools import wait_until
from support.faults import failure, plant
from support.rounding import PRODUCTS, TERMS, equal, gamma, likely
from support.trainer_tools import FLAGS, VOCABULARY, finish, losses, records, run, settings, start
from support.warm_python import warm_python

from tokpack import machine
from tokpack.errors import FormatError, OutputError, TrainingError, UsageError, worded
from tokpack.trainer.config.config import Config
from tokpack.trainer.config.flags import resolve

torch = pytest.importorskip("torch")

from tokpack.trainer import checkpoint, log, loop  # noqa: E402
from tokpack.trainer import run as run_module  # noqa: E402
from tokpack.trainer.log import telling_of_a_wait  # noqa: E402
from tokpack.trainer.loop import train  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


SHORT = ("--train-samples", "160")
TOLD = """
import os, runpy
with open({group!r}, "w") as file:
    file.write(str(os.getpgrp()))
runpy.run_module("tokpack", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def whole(prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two processes that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    run(2, *SHORT, "--data-path", prefix, "--save", str(folder), "--save-interval", "5")
    assert list(losses(folder)) == list(range(1, 21))
    return folder


def test_a_run_says_and_writes_what_it_does(
    prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"eval_interval": 20, "eval_iters": 2, "log_interval": 10, "save_interval": 20}
    config = Config(**settings(prefix, save=str(tmp_path), **more))
    assert train(config)
    said = capsys.readouterr().err
    steps = records(tmp_path)
    assert [step["iteration"] for step in steps] == [10, 20, 30, 40]
    assert [step["consumed_samples"] for step in steps] == [80, 160, 240, 320]
    for step in steps:
        for name in ("loss", "grad_norm", "lr", "tokens_per_second", "tflops_per_gpu"):
            assert 0 <= step[name] < math.inf
            assert step["peak_memory_bytes"] > 1e6
        assert 0 <= step["data_wait"] < 1
        norms = step["grad_norms"]
        assert list(norms) == ["embedding", "blocks.0", "blocks.1", "norm"]
        whole = pytest.approx(step["grad_norm"], rel=gamma(20, "float32"))
        assert math.hypot(*norms.values()) == whole
        assert f"iteration {step['iteration']}/40  loss {step['loss']:.4f}" in said
        assert f"loss {step['loss']:.4f}" in said
    evaluations = [(e["name"], e["iteration"]) for e in records(tmp_path, "evaluation")]
    assert evaluations == [("valid", 20), ("valid", 40), ("test", 40)]
    for evaluation in records(tmp_path, "evaluation"):
        assert evaluation["perplexity"] == equal(math.exp(evaluation["loss"]), 4)
    entropy = float(said.split("unigram entropy: ")[1].split()[0])
    assert steps[-1]["loss"] < entropy < math.log(VOCABULARY)
    assert "320 samples = 10,240 tokens in 40 steps" in said
    assert "\nsplit: 90,5,5, of documents: train 180, valid 10, test 10\n" in said
    assert "note: the learning rate" not in said
    assert said.count("\nattention: FLASH_ATTENTION\n") == 1
    assert gc.isenabled()
    assert (tmp_path / "step_00000020").is_dir()
    assert (tmp_path / "step_00000040").is_dir()
    assert resolve([str(tmp_path / "config.yaml")]).config == config
    page = (tmp_path / "loss.html").read_text()
    for word in ("training", "valid", "unigram entropy", "<polyline"):
        assert word in page


def test_two_processes_stop_at_a_signal_and_go_on_bit_by_bit(
    prefix: str, whole: Path, tmp_path: Path
) -> None:
    flags = (*SHORT, "--data-path", prefix, "--save", str(tmp_path), "--load", str(tmp_path))
    ranks = start(2, *flags)
    wait_until(lambda: len(records(tmp_path)) >= 3)
    ranks[1].send_signal(signal.SIGTERM)
    done = finish(ranks)
    assert [code for code, _ in done] == [0, 0], done
    assert "by a signal" in done[0][1]
    stopped = len(losses(tmp_path))
    assert 3 <= stopped < 20, "the signal came too late to stop anything"
    assert (tmp_path / f"step_{stopped:08d}").is_dir()
    said = run(2, *flags)
    assert f"{stopped * 8} samples are consumed, {20 - stopped} steps left" in said
    assert losses(tmp_path) == losses(whole)


def test_ctrl_c_saves_and_says_what_goes_on(prefix: str, whole: Path, tmp_path: Path) -> None:
    """As of a terminal, which sends it to the launcher and to all that it started."""
    words = (*FLAGS.split(), *SHORT, "--data-path", prefix, "--save", str(tmp_path / "a run"))
    # A process of warm_python is in a session of its own, and so are the ranks that it starts.
    group, script = tmp_path / "group", tmp_path / "script.py"
    script.write_text(TOLD.format(group=str(group)))
    command = [warm_python() / "python", script, "train", "--nproc", "2", *words]
    launcher = Popen(command, stderr=PIPE, text=True)
    wait_until(lambda: len(records(tmp_path / "a run")) >= 3)
    os.killpg(int(group.read_text()), signal.SIGINT)
    ((code, said),) = finish([launcher])
    assert (code, said.splitlines()[-1]) == (130, "tokpack: interrupted"), said
    assert "stopping after this step; a second Ctrl-C ends at once\n" in said
    assert 3 <= len(losses(tmp_path / "a run")) < 20, "it came too late to stop anything"
    program, *again = shlex.split(said.partition("go on with: ")[2].splitlines()[0])
    assert (program, again[-2:]) == ("tokpack", ["--load", str(tmp_path / "a run")])
    subprocess.run([warm_python() / "tokpack", *again], check=True)
    assert losses(tmp_path / "a run") == losses(whole)


def test_ctrl_c_from_a_terminal_and_from_a_launcher_is_one(prefix: str, tmp_path: Path) -> None:
    folder = str(tmp_path)
    ranks = start(2, "--data-path", prefix, "--save", folder, "--train-samples", "80_000")
    wait_until(lambda: len(records(tmp_path)) >= 3)
    for rank in (*ranks, *ranks):
        rank.send_signal(signal.SIGINT)
    (code, said), (other, _) = finish(ranks)
    assert (code, other) == (130, 130)
    assert f"the same again with --load {folder} goes on" in said
    assert checkpoint.folders.find(folder)


def test_ctrl_c_ends_an_evaluation_after_its_batch(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the middle of a run and at its end, which is then evaluated when it goes on."""
    short = {"train_samples": 24, "lr_decay_samples": 24, "lr_warmup_samples": 0}
    short |= {"eval_interval": 2, "eval_iters": 4, "save": str(tmp_path), "load": str(tmp_path)}
    batches = list[int]()

    def weigh(*batch: Any) -> float:
        batches.append(len(batches))
        if batches[-1] == 1:
            signal.raise_signal(signal.SIGINT)
        return weighed(*batch)

    weighed = loop.weigh
    monkeypatch.setattr(loop, "weigh", weigh)
    for steps in (2, 3):
        batches.clear()
        with pytest.raises(KeyboardInterrupt):
            train(Config(**settings(prefix, **short)), again="the same again goes on")
        said = capsys.readouterr().err
        assert batches == [0, 1]
        assert "\nno loss of valid: its evaluation was stopped by Ctrl-C\n" in said
        assert said.endswith("\nthe same again goes on\n")
        assert checkpoint.folders.find(str(tmp_path)).name == f"step_{steps:08d}"
        assert not records(tmp_path, "evaluation")
    monkeypatch.undo()
    assert train(Config(**settings(prefix, **short)))
    assert [one["name"] for one in records(tmp_path, "evaluation")] == ["valid", "test"]


def test_a_signal_to_one_process_ends_an_evaluation_of_all(prefix: str, tmp_path: Path) -> None:
    flags = ("--data-path", prefix, "--save", str(tmp_path), "--train-samples", "80_000")
    ranks = start(2, *flags, "--eval-interval", "3", "--eval-iters", "100_000")
    wait_until(lambda: len(records(tmp_path)) >= 3)
    ranks[1].send_signal(signal.SIGTERM)
    (code, said), (other, _) = finish(ranks)
    assert (code, other) == (0, 0), said
    assert "no loss of valid: its evaluation was stopped by a signal\n" in said
    assert "stopped at iteration 3 by a signal\n" in said
    assert (tmp_path / "step_00000003").is_dir()
    assert not records(tmp_path, "evaluation")


def test_the_second_ctrl_c_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with loop._received_signals(True) as received:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        assert received == [signal.SIGINT] * 2
        monkeypatch.setattr(machine, "ONE_INTERRUPT", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as of a script's background
    try:
        with loop._received_signals(True) as received:
            signal.raise_signal(signal.SIGINT)
        assert not received
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("flags", "more"),
    [
        ("--save run", "--load run"),
        ("--save run --load run", ""),
        ("--save run --load ./run/", ""),
        ("--save run --load base", "--load run"),
        ("--save run --load base --finetune", ""),
        ("--save run --load run --finetune", "--load run --no-finetune"),
    ],
)
def test_the_command_that_goes_on(prefix: str, flags: str, more: str) -> None:
    words = [*FLAGS.split(), "--data-path", prefix, *flags.split()]
    said = resolve(words).again(launched=False)
    assert said == f"go on with: {shlex.join(['tokpack', 'train', *words, *more.split()])}"
    again = resolve([*words, *more.split()]).config
    assert again.save == "run"
    assert again.finetune == (again.load == "base")
    assert "the same again" in worded(resolve(words).again(launched=True))


def test_a_run_that_keeps_nothing_says_so(
    prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = {"train_samples": 8, "lr_decay_samples": 8, "lr_warmup_samples": 0}
    for more in ({}, {"save": str(tmp_path)}):
        assert train(Config(**settings(prefix, **short, **more)))
        first = capsys.readouterr().err.partition("\nmodel: ")[0]
        assert ("no checkpoint will be saved: save='DIR' keeps them" in first) == (not more)


def test_another_number_of_processes_goes_on_with_the_same_samples(
    prefix: str, whole: Path, tmp_path: Path
) -> None:
    """The first loss tells them; behind it AdamW's steps turn rounding into other weights."""
    shutil.copytree(whole / "step_00000005", tmp_path / "step_00000005")
    (tmp_path / "latest").write_text("step_00000005\n")
    flags = (*SHORT, "--data-path", prefix, "--save", str(tmp_path), "--load", str(tmp_path))
    said = run(1, *flags, "--exit-interval", "7")
    assert "stopped at iteration 7 by --exit-interval" in said
    found = losses(tmp_path)
    assert list(found) == [6, 7]
    bound = 2 * likely(PRODUCTS * TERMS, "float32")
    assert found[6] == pytest.approx(losses(whole)[6], rel=bound)
    assert abs(found[6] - found[7]) > 2 * bound * found[6]  # so other samples would be seen


def test_a_killed_process_ends_the_others(prefix: str, tmp_path: Path) -> None:
    flags = ("--data-path", prefix, "--log-dir", str(tmp_path), "--train-samples", "8_000_000")
    ranks = start(2, *flags)
    wait_until(lambda: len(records(tmp_path)) >= 2)
    ranks[1].kill()
    (code, said), _ = finish(ranks)
    assert code == TrainingError.exit_code
    assert "another process of the run is gone" in said


def test_a_loss_that_is_no_number_ends_the_run_and_is_not_saved(
    prefix: str, tmp_path: Path
) -> None:
    config = Config(**settings(prefix, lr=1e30, save=str(tmp_path), save_interval=40))
    with pytest.raises(TrainingError):
        train(config)
    assert TrainingError.exit_code == 2
    assert not list(tmp_path.glob("step_*"))


def test_skipped_steps_that_do_not_end(
    prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"precision": "fp16", "loss_scale": 1e38, "save_interval": 1, "log_dir": str(tmp_path)}
    config = Config(**settings(prefix, **more))
    with pytest.raises(TrainingError, match=r"^10 steps .* 1e\+38\b"):
        train(config)
    assert {(step["skipped"], step["loss"]) for step in records(tmp_path)} == {(1, None)}
    assert "note: a CPU computes fp16 many times slower" in capsys.readouterr().err


def test_the_kill_switch_and_the_clock(
    prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config(**settings(prefix, save=str(tmp_path), load=str(tmp_path)))
    switch = tmp_path / "kill"
    switch.touch()
    assert train(replace(config, kill_switch_path=str(switch)))
    assert "stopped at iteration 0 by the kill switch" in capsys.readouterr().err
    assert not list(tmp_path.glob("step_*"))
    assert train(replace(config, exit_duration_in_mins=1e-6))
    assert "stopped at iteration 1 by exit_duration_in_mins" in capsys.readouterr().err
    assert train(replace(config, train_samples=16))  # what was saved at 1 is gone on with
    assert [step["iteration"] for step in records(tmp_path)] == [1, 2]


def test_a_lack_of_memory_is_named_behind_the_estimate(
    prefix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
    plant(run_module, "make_engine", full, patch=monkeypatch)
    with pytest.raises(TrainingError, match="micro_batch_size"):
        train(Config(**settings(prefix)))
    said = capsys.readouterr().err
    assert "GB of weights, gradients and moments" in said
    assert "too little memory" not in said


def test_a_run_that_this_machine_lacks_the_memory_for_is_said_before_it_starts(
    prefix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
    plant(run_module, "make_engine", full, patch=monkeypatch)
    with pytest.raises(TrainingError):
        train(resolve([*FLAGS.split(), "--data-path", prefix, "--hidden-size", "1048576"]).config)
    said = capsys.readouterr().err
    assert re.search(r"too little memory: the run needs 4.\d+e\+05 GB, [\d.]+ GB are free", said)
    assert "lower --micro-batch-size, --num-layers or --hidden-size, or recompute with --ch" in said


def test_a_plot_that_fails_hides_no_error(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = OutputError("cannot write x.safetensors: No space left on device")
    plant(log, "save_plot", failure(errno.ENOSPC), patch=monkeypatch)
    plant(checkpoint, "CheckpointWrite", full, patch=monkeypatch)
    with pytest.raises(OutputError, match=r"x\.safetensors"):
        train(Config(**settings(prefix, save=str(tmp_path), train_samples=16)))
    assert "no loss.html: [Errno 28] No space left" in capsys.readouterr().err


def test_a_checkpoint_named_by_its_path_is_loaded_whatever_is_the_latest(
    prefix: str, whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole / "step_00000005", tmp_path / "step_00000005")
    (tmp_path / "latest").write_text("step_00000010\n")
    more = {"save": str(tmp_path), "train_samples": 160}
    with pytest.raises(FormatError, match=r"/latest .*\bstep_00000010, .*\bstep_00000005:"):
        train(Config(**settings(prefix, load=str(tmp_path), **more)))
    config = Config(**settings(prefix, load=str(tmp_path / "step_00000005"), **more))
    assert train(config)
    assert (tmp_path / "latest").read_text() == "step_00000020\n"


def test_curves_have_megatrons_names(prefix: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    flags = {"tensorboard_dir": str(tmp_path)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of tensorboard and protobuf
        train(Config(**settings(prefix, train_samples=16, eval_iters=1, **flags)))
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(tmp_path))
        events.Reload()
    names = set(events.Tags()["scalars"])
    for name in ("lm loss", "learning-rate", "grad-norm", "batch-size", "iteration-time"):
        assert {name, f"{name} vs samples"} <= names
        assert [event.step for event in events.Scalars(name)] == [1, 2]
    assert {"lm loss valid", "lm loss valid ppl"} <= names


def test_a_long_drawing_of_weights_is_told(
    prefix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = {"train_samples": 8, "lr_decay_samples": 8, "lr_warmup_samples": 0}
    for silent in (run_module.SILENT, 0.0):
        monkeypatch.setattr(run_module, "SILENT", silent)
        assert train(Config(**settings(prefix, **short, hidden_size=256, num_layers=4)))
        assert ("weights, which can take minutes" in capsys.readouterr().err) == (not silent)


def test_a_long_wait_for_a_board_is_told() -> None:
    with redirect_stderr(io.StringIO()) as said:
        with telling_of_a_wait("it does not answer", seconds=0.001):
            wait_until(lambda: said.getvalue().endswith("\n"))
        assert said.getvalue() == "tokpack: note: it does not answer\n"
        with telling_of_a_wait("it does not answer"):
            pass
        assert said.getvalue().count("note") == 1


def test_weights_and_biases(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wandb = pytest.importorskip("wandb")
    more = {"wandb_project": "proj", "wandb_exp_name": "mine", "wandb_save_dir": str(tmp_path)}
    config = Config(**settings(prefix, train_samples=16, eval_iters=1, **more))
    monkeypatch.setenv("WANDB_MODE", "offline")
    train(config)
    assert "Weights & Biases: offline, in " in capsys.readouterr().err
    file = next(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    wait_until(lambda: b"lm loss valid" in file.read_bytes())  # another process writes it
    written = file.read_bytes()
    for text in (b"proj", b"mine", b"seq_length"):
        assert text in written
    assert written.count(b"grad-norm") >= 2  # a step each
    assert b"lm loss valid" in written
    wandb.teardown()  # it reads its variables once
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="wandb_project"):
        train(config)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"tokpack\[wandb\]"):
        train(config)


def test_a_longer_run_says_where_its_learning_rate_goes(
    prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its decay is as long as the run, unless something says it; the split is said every time."""
    folder = str(tmp_path)
    more = {"save": folder, "load": folder, "lr_decay_samples": None, "lr_warmup_samples": 0}
    config = Config(**settings(prefix, train_samples=16, **more, eval_iters=0))
    assert train(config)
    capsys.readouterr()
    assert train(replace(config, train_samples=24, exit_interval=1))
    said = capsys.readouterr().err
    assert "note: the learning rate goes on at 0.00075, not 0: train_samples is 16 there" in said
    assert "24 here; the old rates have ended, at 0: lr_decay_style constant with a" in said
    assert "\nsplit: 90,5,5, of documents: train 180, valid 10, test 10\n" in said  # as always
    assert "has an earlier run" not in said
    assert train(replace(config, train_samples=32, lr_decay_samples=24))
    assert "note: the learning rate" not in capsys.readouterr().err


def test_rates_that_differ_only_later_are_said_too(
    prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run that was stopped in its warm-up, where the rates of a longer one are the same."""
    folder = str(tmp_path)
    more = {"save": folder, "load": folder, "lr_decay_samples": None, "lr_warmup_samples": 16}
    config = Config(**settings(prefix, train_samples=32, **more, eval_iters=0))
    assert train(replace(config, exit_interval=1))
    capsys.readouterr()
    assert train(replace(config, train_samples=40, exit_interval=1))
    said = capsys.readouterr().err
    assert (
        "note: at sample 32 the learning rate will be 0.00075, not 0: train_samples is 32" in said
    )
    assert "lr_decay_samples 32 keeps the old rates, which are 0 from sample 32 on\n" in said


def test_a_log_that_gets_a_second_run_says_so(
    prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config(**settings(prefix, train_samples=8, log_dir=str(tmp_path)))
    assert train(config)
    assert "has an earlier run" not in capsys.readouterr().err
    assert train(config)
    said = capsys.readouterr().err
    assert f"note: {tmp_path}/log.jsonl has the log of an earlier run" in said
    assert "give log_dir another folder" in said.replace("--log-dir", "log_dir")

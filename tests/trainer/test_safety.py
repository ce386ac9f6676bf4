"""What must not be lost or left behind: locks, ranks, space on the disk, finite weights."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402
from support.encoding_tools import wait_until  # noqa: E402
from support.faults import limited  # noqa: E402
from support.trainer_checkpoint_tools import make, state  # noqa: E402
from support.trainer_tools import finish, losses, records, settings, start  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from tokpack.errors import InputError, OutputError, ResumeError, TrainingError, UsageError, worded  # noqa: E402
from tokpack.storage.disk import lock  # noqa: E402
from tokpack.trainer.checkpoint import CheckpointWrite  # noqa: E402
from tokpack.trainer.checkpoints.export import open_weights  # noqa: E402
from tokpack.trainer.checkpoints.folder import abandon, begin, find  # noqa: E402
from tokpack.trainer.config.config import Config  # noqa: E402
from tokpack.trainer.data import open_data  # noqa: E402
from tokpack.trainer.log import Lines, draw  # noqa: E402
from tokpack.trainer.loop import train  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any


@pytest.fixture(autouse=True)
def _locks_go() -> Iterator[None]:
    yield
    lock.release()


# Locks and ranks


def test_a_run_that_ended_leaves_its_folder_to_other_hosts(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = finish(
        start(2, "--data-path", prefix, "--train-samples", "16", "--save", str(tmp_path)), 300
    )
    assert [code for code, _ in done] == [0, 0], done
    monkeypatch.setattr("socket.gethostname", lambda: "another-host")
    lock.hold(tmp_path)


def test_the_lock_stays_young_between_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.05)
    lock.hold(tmp_path)
    os.utime(tmp_path / "lock", (0, 0))
    wait_until(lambda: (tmp_path / "lock").stat().st_mtime > 1e9, 30)


class Collectives(TorchDispatchMode):
    """The names of the collectives that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if operation.namespace == "c10d":
            self.names.append(operation.name())
        return operation(*args, **(kwargs or {}))


def test_one_process_leaves_no_work_to_threads(tmp_path: Path) -> None:
    """Those of gloo want Python for it, and in one that ends they ended it with SIGABRT."""
    with Collectives() as called, pytest.raises(InputError):
        train(Config(**settings(str(tmp_path / "nothing"))))
    assert called.names == []


# What a checkpoint holds


def test_weights_that_are_not_finite_are_not_saved(prefix: str, tmp_path: Path) -> None:
    """The loss of a step is that of the weights before it: it is finite once too often."""
    more: dict[str, Any] = {"lr": 1e38, "clip_grad": 0.0, "lr_warmup_samples": 0}
    more |= {"save_interval": 1, "extra_save_iters": (0,), "save": str(tmp_path)}
    with pytest.raises(TrainingError, match=r": step_00000001 .*\bfinite\b"):
        train(Config(**settings(prefix, **more)))
    assert [path.name for path in tmp_path.glob("step_*")] == ["step_00000000"]
    for path in (tmp_path / "step_00000000").glob("*.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(path).values())


# A full disk


def test_a_full_disk_gets_its_space_back(tmp_path: Path) -> None:
    engine = make()
    CheckpointWrite(engine, tmp_path, state(engine, 1)).finish()
    with (
        limited(resource.RLIMIT_FSIZE, 1 << 17),
        pytest.raises(OutputError, match=r"/step_00000002\.tokpack\.tmp/") as caught,
    ):
        CheckpointWrite(engine, tmp_path, state(engine, 2)).finish()
    assert caught.value.no_space
    assert sorted(os.listdir(tmp_path)) == ["latest", "lock", "step_00000001"]
    CheckpointWrite(engine, tmp_path, state(engine, 2)).finish()
    assert find(tmp_path) == tmp_path / "step_00000002"


def test_the_only_whole_checkpoint_is_not_given_up(tmp_path: Path) -> None:
    """A kill between two renames left it under the name of an unfinished one."""
    whole = begin(tmp_path / "step_00000001")
    (whole / "state.json").touch()
    (tmp_path / "latest").write_text("step_00000001\n")
    abandon(tmp_path / "step_00000001")
    assert find(tmp_path) == whole
    (tmp_path / "latest").write_text("step_00000000\n")
    abandon(tmp_path / "step_00000001")
    assert not whole.exists()


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs a limit set from outside")
def test_a_run_goes_on_until_there_is_room_again(prefix: str, tmp_path: Path) -> None:
    flags = ("--data-path", prefix, "--save", str(tmp_path), "--train-samples", "80_000")
    ranks = start(2, *flags, "--save-interval", "2", "--async-save")
    said = ranks[0].stderr
    assert said is not None

    def wait_for(text: str) -> None:
        assert any(text in line for line in said), text

    try:
        wait_for("saved iteration 4 ")
        writer = json.loads((tmp_path / "lock").read_text())["pid"]
        with limited(resource.RLIMIT_FSIZE, 2000, writer):
            wait_for("was not saved: cannot write")
            wait_for("was not saved: cannot write")
        wait_for("saved iteration")
        ranks[0].send_signal(signal.SIGTERM)
        wait_for("by a signal")
    finally:
        done = finish(ranks)
    assert [code for code, _ in done] == [0, 0]
    steps = [step["iteration"] for step in records(tmp_path)]
    assert steps == list(range(1, len(steps) + 1)), "lines that could not be written are missing"
    missed = {record["iteration"] for record in records(tmp_path, "not saved")}
    saved = {record["iteration"] for record in records(tmp_path, "save")}
    assert len(missed) >= 2
    assert not missed & saved
    assert max(saved) == steps[-1] > max(missed)


def test_a_failed_line_waits_and_leaves_no_part(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"part of a li')
    lines, long = Lines(path), json.dumps({"loss": 1.0, "iteration": 1, "more": 3000 * "x"})
    lines.add(long)
    lines.write()
    size = path.stat().st_size
    lines.add(long)
    with limited(resource.RLIMIT_FSIZE, 4096), pytest.raises(OutputError, match=path.name):
        lines.write()
    assert path.stat().st_size == size
    lines.add("{}")
    lines.write()
    assert path.read_text().split("\n") == ['{"part of a li', long, long, "{}", ""]
    assert "loss.html" in draw(tmp_path, 1.0)


# Evaluation


class Made(TorchDispatchMode):
    """Counts matrix products, and new tensors of a shape."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape, self.products, self.copies = shape, 0, 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = operation(*args, **(kwargs or {}))
        self.products += operation in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        old = {x.data_ptr() for x in args if isinstance(x, torch.Tensor)}
        if isinstance(made, torch.Tensor) and made.shape == self.shape:
            self.copies += made.data_ptr() not in old
        return made


@pytest.mark.parametrize("untied", [False, True])
def test_an_evaluation_makes_no_gradient_of_the_head(untied: bool) -> None:
    engine = make(num_layers=1, untie_embeddings_and_output_weights=untied)
    ids = torch.randint(0, 500, (2, 65), generator=torch.Generator().manual_seed(1))
    batch = {"tokens": ids[:, :-1], "labels": ids[:, 1:], "loss_mask": torch.ones(2, 64)}
    head = engine.model.head_weight.shape
    with Made(head) as learning:
        trained = float(engine.train_batch([batch], 0.0).loss)
    with Made(head) as looking:
        evaluated = float(engine.evaluate([batch]))
    assert evaluated == trained
    assert learning.copies > 0
    assert looking.copies == 0
    assert looking.products == 1 + 4  # the head, and four in the block


# Other places


def test_a_working_folder_with_names_of_packages(tmp_path: Path) -> None:
    for name in ("yaml", "torch", "numpy", "tensorboard"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('of the working folder')")
    done = subprocess.run(
        [sys.executable, "-m", "tokpack.trainer", "--data-path", "nowhere", "--device", "cpu"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("tokpack: error: nowhere: no such dataset")


def test_a_finetuning_is_begun_and_gone_on_with_by_one_command(
    prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, new = tmp_path / "base", tmp_path / "new"
    assert train(Config(**settings(prefix, train_samples=16, save=str(base))))
    more: dict[str, Any] = {"load": str(base), "save": str(new), "finetune": True, "seed": 7}
    whole = Config(**settings(prefix, train_samples=32, **more | {"save": str(tmp_path / "w")}))
    assert train(whole)
    command = Config(**settings(prefix, train_samples=32, **more))
    assert train(replace(command, exit_interval=2))
    capsys.readouterr()
    assert train(command)  # as a queue starts it again
    said = capsys.readouterr().err
    assert f"{new} has checkpoints of this run from {base}: it goes on" in said
    assert "resumed: 16 samples are consumed, 2 steps left" in said
    assert losses(new) == losses(tmp_path / "w")
    other = tmp_path / "other"
    assert train(Config(**settings(prefix, train_samples=16, save=str(other))))
    with pytest.raises(UsageError, match=rf"{other} .*\bstep_00000002\b"):
        train(replace(command, save=str(other)))
    with pytest.raises(UsageError, match=r"\bstep_00000004 .*\bload\b"):
        train(replace(command, load=str(other)))


def test_longer_sequences_are_a_run_of_its_own_on_the_same_weights(
    prefix: str, tmp_path: Path
) -> None:
    base, new, rope = tmp_path / "base", tmp_path / "new", {"position_embedding_type": "rope"}
    config = Config(**settings(prefix, train_samples=16, save=str(base), **rope))
    assert train(config)
    length = 2 * config.seq_length
    longer = replace(config, load=str(base), seq_length=length)
    with pytest.raises(
        ResumeError, match=f"seq_length is {config.seq_length} there, {length} here"
    ):
        train(longer)
    tuned = replace(longer, save=str(new), finetune=True, lr=0.0)
    with pytest.raises(UsageError, match="rotary_base"):
        train(replace(tuned, rotary_base=5e3))
    with pytest.raises(UsageError, match="rotary_base is"):
        train(replace(longer, seq_length=config.seq_length, rotary_base=5e5))
    assert train(replace(tuned, rotary_base=5e5))
    assert list(losses(new)) == [1, 2]
    before, after = open_weights(base), open_weights(new)
    for name in before.model.layout:
        assert torch.equal(before.read(name)["parameter"], after.read(name)["parameter"])


def test_a_split_without_validation_is_said(prefix: str) -> None:
    data = open_data(Config(**settings(prefix, split="100,0,0", eval_iters=2)), 2)
    (said,) = (worded(note) for note in data.notes if "no validation" in note)
    assert "100,0,0" in said
    assert "valid_data_path" in said

"""Checkpoints: complete or absent, verified, and resumed bit by bit."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from hypothesis import given, settings  # noqa: E402
from safetensors import safe_open  # noqa: E402
from support.faults import failure, plant  # noqa: E402
from support.json_edits import EDITS, edited  # noqa: E402
from support.trainer_checkpoint_tools import (  # noqa: E402
    LIMIT,
    begin,
    claim_and_wait,
    load,
    make,
    save_for_ever,
    state,
    steps,
)
from support.trainer_model_tools import NEOX, model_of  # noqa: E402

from tokpack.errors import BusyError, FormatError, InputError, OutputError, UsageError  # noqa: E402
from tokpack.storage.disk import lock, whole_folder  # noqa: E402
from tokpack.storage.disk.whole_folder import MARKER  # noqa: E402
from tokpack.trainer import checkpoint  # noqa: E402
from tokpack.trainer.checkpoint import CheckpointWrite  # noqa: E402
from tokpack.trainer.checkpoints import files  # noqa: E402
from tokpack.trainer.checkpoints import folder as folders  # noqa: E402
from tokpack.trainer.checkpoints.files import Checkpoint, checksum_of  # noqa: E402
from tokpack.trainer.checkpoints.folder import find, foreign_folders  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.trainer.checkpoints.files import RunState
    from tokpack.trainer.engine import Engine


@pytest.fixture(autouse=True)
def _locks_go() -> Iterator[None]:
    """Let go of the folders that a test saved to, as the end of a process does."""
    yield
    lock.release()


def weights_of(engine: Engine) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in engine.model.named_parameters()}


def same(engine: Engine, before: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in weights_of(engine).items())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"hidden_dropout": 0.1, "attention_dropout": 0.1},
        {"precision": "fp16", "initial_loss_scale": 2.0**20, "loss_scale_window": 2},
        {"precision": "bf16", **NEOX},
    ],
    ids=["fp32", "dropout", "fp16", "neox bf16"],
)
def test_resume_is_bit_exact(tmp_path: Path, settings: dict[str, Any]) -> None:
    engine, model = make(**settings), model_of(**settings)
    steps(engine, 0, 3)
    CheckpointWrite(engine, tmp_path, state(engine, 3, **settings)).finish()
    losses = steps(engine, 3, 4)
    # Another seed gives other weights to begin with, and would give other dropout.
    again = make(**settings) if "hidden_dropout" in settings else make(**settings, seed=7)
    found = load(again, tmp_path, model)
    assert found is not None
    assert replace(found, scalars={}, files={}) == state(engine, 3, **settings)
    assert steps(again, 3, 4) == losses
    assert same(again, weights_of(engine))
    assert again.steps == engine.steps
    if settings.get("precision") == "fp16":
        assert again.scalars() == engine.scalars()
        assert engine.scalars()["loss_scale"]["value"] != 2.0**20


def test_a_save_before_the_first_step(tmp_path: Path) -> None:
    engine = make()
    CheckpointWrite(engine, tmp_path, state(engine, 0)).finish()
    losses = steps(engine, 0, 2)
    again = make(seed=7)
    load(again, tmp_path, model_of())
    assert steps(again, 0, 2) == losses


def test_what_a_checkpoint_holds(tmp_path: Path) -> None:
    engine = make()
    steps(engine, 0, 1)
    CheckpointWrite(engine, tmp_path, state(engine, 1)).finish()
    path = tmp_path / "step_00000001"
    assert sorted(os.listdir(tmp_path)) == ["latest", "lock", path.name]
    layers = [f"layer_{i:03d}.safetensors" for i in range(3)]
    expected = ["embedding.safetensors", *layers, "norm.safetensors"]
    assert sorted(os.listdir(path)) == sorted([*expected, "state.json", MARKER])
    assert {(path / name).stat().st_mode for name in os.listdir(path)} == {
        (path / "state.json").stat().st_mode
    }
    with safe_open(path / "embedding.safetensors", "pt") as file:
        assert sorted(file.keys()) == [
            f"embedding.{which}.weight{kind}"
            for which in ("position", "word")
            for kind in ("", ":exp_avg", ":exp_avg_sq")
        ]
        assert file.get_tensor("embedding.word.weight").shape == (500, 64)  # without padding
    values = json.loads((path / "state.json").read_text())
    assert values["tokpack_checkpoint"] == 1
    assert values["step"] == 1
    assert sorted(values["files"]) == sorted(expected)


# What is there to load


def test_find(tmp_path: Path) -> None:
    assert find(tmp_path / "absent") is None
    assert find(tmp_path) is None
    (tmp_path / "lock").touch()
    (tmp_path / "log.jsonl").touch()
    assert find(tmp_path) is None  # a run that died before its first checkpoint
    (tmp_path / "lock").unlink()
    with pytest.raises(InputError):
        find(tmp_path)
    with pytest.raises(InputError):
        find(tmp_path / "log.jsonl")


def whole(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "state.json").touch()
    return path


def test_find_the_latest(tmp_path: Path) -> None:
    first, second = whole(tmp_path / "step_00000001"), whole(tmp_path / "step_00000002")
    (tmp_path / "step_00000003").mkdir()
    whole(tmp_path / "step_00000004.tokpack.tmp")
    whole(tmp_path / "step_00000005.tokpack.old")
    assert find(tmp_path) == second  # killed before the first `latest`
    (tmp_path / "latest").write_text("step_00000001\n")
    assert find(tmp_path) == first
    assert find(second) == second
    (tmp_path / "latest").write_text("step_00000004\n")  # killed while it was replaced
    assert find(tmp_path) == tmp_path / "step_00000004.tokpack.tmp"
    (tmp_path / "latest").write_text("step_00000009\n")
    with pytest.raises(FormatError, match=r"step_00000009, .* step_00000001, step_00000002: load"):
        find(tmp_path)


def test_nothing_to_load_is_a_fresh_start(tmp_path: Path) -> None:
    engine = make()
    before = weights_of(engine)
    assert load(engine, tmp_path / "new", model_of()) is None
    assert same(engine, before)
    with pytest.raises(InputError):
        load(engine, tmp_path / "new", model_of(), finetune=True)


def test_a_model_of_transformers_has_to_be_imported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=f"`tokpack model import {tmp_path} -o BASE`"):
        find(tmp_path)


def test_finetune_takes_only_weights(tmp_path: Path) -> None:
    engine = make()
    steps(engine, 0, 3)
    CheckpointWrite(engine, tmp_path, state(engine, 3)).finish()
    again = make(seed=7)
    found = load(again, tmp_path, model_of(), finetune=True)
    assert found is not None
    assert (found.step, found.consumed_samples, again.steps) == (0, 0, 0)
    assert same(again, weights_of(engine))
    assert all(not value.any() for _, t in again.full_state() for k, value in t.items() if "_" in k)


def test_another_model_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    engine = make()
    CheckpointWrite(engine, tmp_path, state(engine, 1)).finish()
    other = make(num_layers=2, hidden_size=32)
    before = weights_of(other)
    found = r"/step_00000001: .*\bnum_layers is 3 .* 2 .*\bhidden_size is 64 .* 32 "
    with pytest.raises(UsageError, match=rf"{found}(?!.*config\.yaml)"):
        load(other, tmp_path, model_of(num_layers=2, hidden_size=32))
    (tmp_path / "config.yaml").touch()
    with pytest.raises(UsageError, match=rf"{found}.* {tmp_path}/config\.yaml,"):
        load(other, tmp_path, model_of(num_layers=2, hidden_size=32))
    assert same(other, before)
    assert load(make(), tmp_path, model_of(hidden_dropout=0.1, init_method_std=1.0)) is not None


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    CheckpointWrite(make(), folder, state(make(), 1)).finish()
    return folder / "step_00000001"


@settings(max_examples=200, deadline=None)
@given(EDITS)
def test_whatever_a_state_says_is_read_or_refused(
    saved: Path, edits: list[tuple[int, Any]]
) -> None:
    path = saved / "state.json"
    text = path.read_text()
    values = edited({k: v for k, v in json.loads(text).items() if k != "checksum"}, edits)
    values["checksum"] = checksum_of(values)  # as of somebody who means it
    path.write_text(json.dumps(values))
    try:
        checkpoint = Checkpoint(saved)
        assert checkpoint.model.layout.keys() >= {"embedding.word.weight"}
        assert checkpoint.state.step <= checkpoint.state.consumed_samples
        checkpoint.verify()
    except FormatError:
        pass  # which names it
    finally:
        path.write_text(text)


@pytest.mark.parametrize(
    "name", [b"\xff\xfe", b"step_00000001\0", b"a" * 300, b"../step_00000001", b"\xc3\xa9" * 130]
)
def test_a_latest_that_names_nothing(tmp_path: Path, name: bytes) -> None:
    whole(tmp_path / "step_00000001")
    (tmp_path / "latest").write_bytes(name)
    with pytest.raises(FormatError, match=r"/latest .*\bstep_00000001: "):
        find(tmp_path)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("1" * 5000)
    assert foreign_folders(tmp_path) == [tmp_path]


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "step", "json", "version", "no state"])
def test_broken_files_are_named(tmp_path: Path, damage: str) -> None:
    engine = make()
    CheckpointWrite(engine, tmp_path, state(engine, 1)).finish()
    CheckpointWrite(engine, tmp_path, state(engine, 2)).finish()
    path = tmp_path / "step_00000002/layer_001.safetensors"
    if damage in ("step", "json", "version", "no state"):
        path = tmp_path / "step_00000002/state.json"
    raw = path.read_bytes()
    {
        "flip": lambda: path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1])),
        "cut": lambda: path.write_bytes(raw[:-1]),
        "gone": path.unlink,
        "step": lambda: path.write_bytes(raw.replace(b'"step": 2', b'"step": 3')),
        "json": lambda: path.write_bytes(raw[:-9]),
        "version": lambda: path.write_bytes(raw.replace(b'checkpoint": 1', b'checkpoint": 2')),
        "no state": path.unlink,
    }[damage]()
    again = make(seed=7)
    before = weights_of(again)
    message = "step_00000002" if damage == "no state" else str(path)
    with pytest.raises(FormatError, match=message) as caught:
        load(again, tmp_path, model_of())
    assert same(again, before)
    if damage != "version":
        assert "step_00000001" in str(caught.value)
    assert load(again, tmp_path / "step_00000001", model_of()) is not None


# Old ones


def test_old_checkpoints_go(tmp_path: Path) -> None:
    engine = make(num_layers=1)
    for step in range(1, 5):
        CheckpointWrite(engine, tmp_path, state(engine, step, num_layers=1), keep=2).finish()
        names = sorted(path.name for path in tmp_path.glob("step_*"))
        assert names == [f"step_{i:08d}" for i in range(max(1, step - 1), step + 1)]
    CheckpointWrite(engine, tmp_path, state(engine, 5, num_layers=1), keep=0).finish()
    assert len(list(tmp_path.glob("step_*"))) == 3


def test_what_another_run_left_stays(tmp_path: Path) -> None:
    engine = make(num_layers=1)
    for step in (1, 10, 20):
        CheckpointWrite(engine, tmp_path, state(engine, step, num_layers=1)).finish()
    (tmp_path / "step_00000003.tokpack.tmp").mkdir()
    (tmp_path / "step_notes").mkdir()
    CheckpointWrite(engine, tmp_path, state(engine, 11, num_layers=1), keep=1).finish()
    names = sorted(path.name for path in tmp_path.glob("step_*"))
    assert names == ["step_00000011", "step_00000020", "step_notes"]
    assert find(tmp_path) == tmp_path / "step_00000011"


def test_a_failed_save_leaves_what_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make(num_layers=1)
    CheckpointWrite(engine, tmp_path, state(engine, 1, num_layers=1), keep=1).finish()

    for module, name in ((files, "sync_file"), (folders, "replace_file")):
        with monkeypatch.context() as patch:
            plant(module, name, failure(errno.ENOSPC), patch=patch)
            with pytest.raises(OutputError, match=rf"/step_00000002.*{os.strerror(errno.ENOSPC)}"):
                CheckpointWrite(engine, tmp_path, state(engine, 2, num_layers=1), keep=1).finish()
        assert find(tmp_path) == tmp_path / "step_00000001"
    CheckpointWrite(engine, tmp_path, state(engine, 2, num_layers=1), keep=1).finish()
    assert sorted(os.listdir(tmp_path)) == ["latest", "lock", "step_00000002"]


# Kills and rivals


def wait(told: Path, lines: int) -> list[str]:
    """The lines of a file, when there are so many."""
    deadline = time.monotonic() + LIMIT
    while not told.exists() or len(told.read_text().split()) < lines:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return told.read_text().split()


def test_a_kill_at_any_moment(tmp_path: Path) -> None:
    chance, folder, told = random.Random(5), tmp_path / "run", tmp_path / "told"
    for _ in range(3):
        lines = told.read_text().split() if told.exists() else []
        run = begin(save_for_ever, str(folder), str(told))
        wait(told, len(lines) + 2)
        time.sleep(chance.uniform(0, 0.2))
        run.kill()
        run.join()
        said = int(told.read_text().split()[-1])
        path = find(folder)
        assert path is not None
        Checkpoint(path).verify()
        assert Checkpoint(path).state.step in (said, said + 1)
        assert len(list(folder.glob("step_????????"))) <= 3


def interrupted(
    monkeypatch: pytest.MonkeyPatch, number: int, engine: Engine, folder: Path, meta: RunState
) -> bool:
    """Whether a save was stopped before the change ``number`` that it makes to the folder."""

    class Killed(BaseException):
        pass

    left, remove = number, shutil.rmtree

    def counted(original: Any) -> Any:
        def change(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                if original is remove:  # stopped in the middle
                    for path in Path(args[0]).glob("layer*"):
                        path.unlink()
                raise Killed
            return original(*args, **kwargs)

        return change

    with monkeypatch.context() as patch:
        patch.setattr(folders, "rename", counted(folders.rename))
        patch.setattr(whole_folder, "rename", counted(whole_folder.rename))
        patch.setattr(Path, "mkdir", counted(Path.mkdir))
        patch.setattr(shutil, "rmtree", counted(remove))
        patch.setattr(folders, "replace_file", counted(folders.replace_file))
        patch.setattr(checkpoint, "write_tensors", counted(checkpoint.write_tensors))
        try:
            CheckpointWrite(engine, folder, meta, keep=1).finish()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("again", [False, True], ids=["a new step", "the same step"])
def test_a_kill_between_any_two_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    engine, settings = make(num_layers=1), {"num_layers": 1}
    CheckpointWrite(engine, tmp_path, state(engine, 1, **settings), keep=1).finish()
    number, step = 0, 1 if again else 2
    while interrupted(monkeypatch, number, engine, tmp_path, state(engine, step, **settings)):
        for second in range(4):  # and the next run is killed as it begins
            path = find(tmp_path)
            assert path is not None, (number, second)
            Checkpoint(path).verify()
            lock.release()
            meta = state(engine, step, **settings)
            assert interrupted(monkeypatch, second, engine, tmp_path, meta)
        number += 1
        if not again:  # so that the next one replaces nothing
            step += 1
    assert number > 7
    assert sorted(os.listdir(tmp_path)) == ["latest", "lock", f"step_{step:08d}"]


def test_two_runs_do_not_save_to_one_folder(tmp_path: Path) -> None:
    engine, folder = make(num_layers=1), tmp_path / "run"
    other = begin(claim_and_wait, str(folder), str(tmp_path / "told"))
    wait(tmp_path / "told", 1)
    with pytest.raises(BusyError, match=rf"\b{other.pid} .* {folder}: "):
        CheckpointWrite(engine, folder, state(engine, 1, num_layers=1)).finish()
    other.kill()
    other.join()
    CheckpointWrite(engine, folder, state(engine, 1, num_layers=1)).finish()
    checkpoint.claim(str(folder), str(folder))
    assert find(folder) == folder / "step_00000001"

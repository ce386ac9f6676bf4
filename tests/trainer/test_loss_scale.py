"""fp16's loss scale: where it can fall no more, and where a run that had none goes on with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

from support.deepspeed_tools import needs_deepspeed, zero
from support.parallel_tools import Run, batches, in_processes, open_engine
from support.trainer_tools import finish, start, write_tokens

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs_deepspeed
FP16: dict[str, Any] = {"precision": "fp16", "initial_loss_scale": 1024.0}
HUGE = f"--fp16 --initial-loss-scale {2**60} --min-loss-scale {2**60} --hysteresis 1".split()


@pytest.mark.parametrize("engine", ["--zero-stage 1", "--deepspeed --zero-stage 3"])
def test_a_scale_that_can_fall_no_more_ends_the_run(tmp_path: Path, engine: str) -> None:
    prefix = write_tokens(tmp_path / "corpus")
    for code, said in finish(start(2, "--data-path", prefix, *HUGE, *engine.split())):
        assert code == 2
        assert "10 steps in a row were skipped" in said
        assert "a loss scale of 1.15292e+18; lower the learning rate, or" in said
        assert "Traceback" not in said


def scalars_after(settings: dict[str, Any]) -> dict[str, Any]:
    """What an engine keeps after four steps."""
    engine = open_engine(settings)
    for batch in batches(Run(settings), 0, 1):
        engine.train_batch(batch, 1e-3)
    found: dict[str, Any] = engine.scalars()
    return found


def go_on(argument: tuple[dict[str, Any], dict[str, Any]]) -> tuple[float, dict[str, Any]]:
    """The scale of the next step of an engine that takes scalars, and what it keeps then."""
    settings, scalars = argument
    engine = open_engine(settings)
    engine.load_scalars(scalars)
    assert engine.steps == scalars["steps"]
    scale = engine.train_batch(batches(Run(settings), 0, 1)[0], 1e-3).loss_scale
    return scale, engine.scalars()


def test_a_run_that_had_no_scale_begins_with_its_own() -> None:
    sources = [{"precision": "bf16"}, zero(3, **FP16, loss_scale=8.0)]
    saved = [ranks[0] for ranks in in_processes([(1, scalars_after, one) for one in sources])]
    assert [scalars["loss_scale"] for scalars in saved] == [None] * 2
    targets = [
        ({**engine, **FP16, "loss_scale": fixed}, fixed or 1024.0)
        for engine, fixed in (({}, 0.0), ({}, 64.0), (zero(1), 0.0), (zero(1), 64.0))
    ]
    jobs = [(1, go_on, (settings, scalars)) for scalars in saved for settings, _ in targets]
    found = [ranks[0][0] for ranks in in_processes(jobs)]
    assert found == [scale for _ in saved for _, scale in targets]


def test_fp16_goes_on_with_its_scale() -> None:
    """Doubled after three of four good steps; any engine takes it, but for a fixed one."""
    growing = [{**engine, **FP16, "loss_scale_window": 3} for engine in ({}, zero(1))]
    saved = [ranks[0] for ranks in in_processes([(1, scalars_after, one) for one in growing])]
    assert all(scalars["loss_scale"]["value"] == 2048.0 for scalars in saved)
    jobs = [(1, go_on, (settings, scalars)) for scalars in saved for settings in growing]
    for ((scale, later),) in in_processes(jobs):
        assert scale == later["loss_scale"]["value"] == 2048.0
    fixed = [{**engine, **FP16, "loss_scale": 64.0} for engine in ({}, zero(1))]
    jobs = [(1, go_on, (settings, saved[0])) for settings in fixed]
    assert [ranks[0][0] for ranks in in_processes(jobs)] == [64.0] * 2

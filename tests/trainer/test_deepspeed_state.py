"""The DeepSpeed engine's state, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from support.deepspeed_tools import needs_deepspeed, zero
from support.flags_tools import config
from support.parallel_tools import (
    PP,
    TINY,
    VOCABULARY,
    Run,
    go_on,
    in_processes,
    save_state,
    train_many,
)

from tokpack.errors import UsageError, worded
from tokpack.trainer import engine_ds
from tokpack.trainer.config.config import Config
from tokpack.trainer.config.flags import make_settings
from tokpack.trainer.config.model import ModelConfig
from tokpack.trainer.parallel import Topology

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

pytestmark = needs_deepspeed


@pytest.mark.parametrize("stage", [1, 3])
def test_a_run_goes_on_bit_by_bit(tmp_path: Path, stage: int) -> None:
    """In processes of its own: DeepSpeed keeps something of an engine that was there before."""
    run, path = Run(zero(stage, precision="bf16"), 2, 3), str(tmp_path / "state")
    in_processes([(2, save_state, (run, path))])
    files = sorted(map(str, tmp_path.glob("state.*")))
    found = in_processes([(2, go_on, (run, files))])[0][0]
    assert found == train_many([replace(run, steps=6)])[0]["loss"][3:]


def make(topology: Topology, **settings: Any) -> None:
    made = Config(**{**TINY, **settings})
    engine_ds.make(made, ModelConfig.of(made, VOCABULARY), topology)


def test_what_cannot_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import deepspeed

    with pytest.raises(UsageError, match="pipeline_model_parallel_size"):
        make(Topology(world_size=2, pipeline_size=2), **zero(1, **PP))
    odd = zero(1, precision="fp16", initial_loss_scale=1000.0)
    with pytest.raises(UsageError, match="initial_loss_scale"):
        make(Topology(), **odd)
    amsgrad = {"optimizer": {"params": {"amsgrad": True}}}
    with pytest.raises(UsageError, match=r"^amsgrad True "):
        make(Topology(), engine="deepspeed", deepspeed_json=amsgrad)
    for release in ("0.18.9", "0.19.2", "0.20.0"):
        monkeypatch.setattr(deepspeed, "__version__", release)
        with pytest.raises(UsageError, match=rf"^deepspeed .*\b{release}, .*\b0\.19\.3 .*\b0\.20,"):
            make(Topology(), **zero(1))


def test_what_is_changed_is_noted() -> None:
    given = {
        "activation_checkpointing": {"profile": True, "number_checkpoints": 4},
        "zero_optimization": {"overlap_comm": True},
        "steps_per_print": 7,
        "optimizer": {"params": {"bias_correction": True}},
    }
    run = Config(**TINY, engine="deepspeed", precision="bf16", deepspeed_json=given)
    settings, notes = make_settings(run, "cpu")
    assert settings["zero_optimization"] == {"overlap_comm": True, "stage": 1}
    assert settings["steps_per_print"] == 7
    assert settings["bf16"]["enabled"]
    assert not settings["fp16"]["enabled"]
    assert not {"optimizer", "activation_checkpointing"} & set(settings)
    assert [worded(note) for note in notes] == [
        "not needed to recompute activations: profile, number_checkpoints",
        "zero_stage 1 is used, which DeepSpeed computes exactly",
    ]
    stage_2, notes = make_settings(replace(run, zero_stage=2), "cpu")
    assert stage_2["zero_optimization"]["stage"] == 2
    assert len(notes) == 1


def test_a_pipeline_is_the_torch_engines() -> None:
    found = config("--deepspeed --zero-stage 2 --pipe-parallel-size 2", 2)
    assert (found.engine, found.zero_stage) == ("torch", 2)
    assert (
        "engine torch, not deepspeed, trains the 2 pipeline stages; the results" in found.notes[0]
    )
    words = "--deepspeed --zero-stage 2 --sequence-parallel --tensor-model-parallel-size 2"
    assert config(words, 2).notes == (
        "sequence_parallel is the torch engine's; the results are the same without",
    )

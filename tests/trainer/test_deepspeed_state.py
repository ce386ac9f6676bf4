"""The DeepSpeed engine's state, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from support.deepspeed_tools import needs_deepspeed, zero
from support.parallel_tools import (
    LLAMA,
    PP,
    TINY,
    TP,
    VOCABULARY,
    Run,
    go_on,
    in_processes,
    save_state,
    train_many,
)
from support.rounding import EXACT

from tokpack.configuration.config import Config
from tokpack.configuration.deepspeed_json import make_settings
from tokpack.configuration.model import ModelConfig
from tokpack.errors import UsageError
from tokpack.trainer import engine_ds
from tokpack.trainer.parallel import Topology

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

pytestmark = needs_deepspeed


def test_state_goes_from_any_engine_to_any_other(tmp_path: Path) -> None:
    """Also where parts do not divide: LLAMA's norms have no even number of elements a rank."""
    path = str(tmp_path / "state")
    sources = {
        "torch": (2, {**LLAMA, **PP}),
        "zero0": (2, zero(0, **LLAMA)),
        "zero2": (2, zero(2, **LLAMA)),
        "zero3": (2, zero(3, **LLAMA, **TP)),
        "pipe": (4, zero(1, **LLAMA, **TP, **PP)),
    }
    saves = [(n, save_state, (Run(s, steps=3), f"{path}.{k}")) for k, (n, s) in sources.items()]
    in_processes(saves, float64=True)
    files = {name: sorted(map(str, tmp_path.glob(f"state.{name}.*"))) for name in sources}
    targets = [
        ("zero0", 1, LLAMA),
        ("zero3", 1, zero(1, **LLAMA)),
        ("zero2", 2, zero(3, **LLAMA)),
        ("torch", 2, zero(1, **LLAMA, **PP)),
        ("pipe", 2, zero(2, **LLAMA)),
        ("pipe", 1, LLAMA),
    ]
    resumes = [(n, go_on, (Run(s, steps=3), files[name])) for name, n, s in targets]
    found = in_processes(resumes, float64=True)
    straight = train_many([Run(LLAMA, steps=6)], float64=True)[0]["loss"][3:]
    for (name, *_), ranks in zip(targets, found, strict=True):
        apart = max(abs(a - b) for a, b in zip(ranks[0], straight, strict=True))
        assert apart < EXACT, f"from {name}: {apart}"


@pytest.mark.parametrize(
    "settings",
    [zero(3, precision="bf16"), zero(1, precision="bf16", **PP)],
    ids=["zero3", "pipeline"],
)
def test_a_run_goes_on_bit_by_bit(tmp_path: Path, settings: dict[str, Any]) -> None:
    """In processes of its own: DeepSpeed keeps something of an engine that was there before."""
    run, path = Run(settings, 2, 3), str(tmp_path / "state")
    in_processes([(2, save_state, (run, path))])
    files = sorted(map(str, tmp_path.glob("state.*")))
    found = in_processes([(2, go_on, (run, files))])[0][0]
    assert found == train_many([replace(run, steps=6)])[0]["loss"][3:]


def make(topology: Topology, **settings: Any) -> None:
    config = Config(**{**TINY, **settings})
    engine_ds.make(config, ModelConfig.of(config, VOCABULARY), topology)


def test_what_cannot_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import deepspeed

    piped = Topology(world_size=2, pipeline_size=2)
    for stage in (2, 3):
        with pytest.raises(UsageError, match=rf"zero_stage {stage} .*parallel_size 2: use .* 1"):
            make(piped, **zero(stage, **PP))
    odd = zero(1, precision="fp16", initial_loss_scale=1000.0)
    with pytest.raises(UsageError, match=r"initial_loss_scale is 1000: .* power of 2"):
        make(Topology(), **odd)
    amsgrad = {"optimizer": {"params": {"amsgrad": True}}}
    with pytest.raises(UsageError, match="amsgrad True of the optimizer is not supported"):
        make(Topology(), engine="deepspeed", deepspeed_json=amsgrad)
    for release in ("0.18.9", "0.19.2", "0.20.0"):
        monkeypatch.setattr(deepspeed, "__version__", release)
        with pytest.raises(UsageError, match=rf"{release}, expected at least 0.19.3 and before"):
            make(Topology(), **zero(1))


def test_what_is_changed_is_noted() -> None:
    given = {
        "activation_checkpointing": {"profile": True, "number_checkpoints": 4},
        "zero_optimization": {"overlap_comm": True},
        "steps_per_print": 7,
        "optimizer": {"params": {"bias_correction": True}},
    }
    config = Config(**TINY, engine="deepspeed", precision="bf16", deepspeed_json=given)
    settings, notes = make_settings(config, "cpu")
    assert settings["zero_optimization"] == {"overlap_comm": True, "stage": 1}
    assert settings["steps_per_print"] == 7
    assert settings["bf16"]["enabled"]
    assert not settings["fp16"]["enabled"]
    assert not {"optimizer", "activation_checkpointing"} & set(settings)
    assert notes == [
        "not needed to recompute activations: profile, number_checkpoints",
        "zero_stage 1 is used: DeepSpeed's 0 is not exact with bf16",
    ]
    plain, notes = make_settings(replace(config, precision="fp32"), "cpu")
    assert plain["zero_optimization"]["stage"] == 0
    assert len(notes) == 1

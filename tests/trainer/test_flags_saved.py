"""A configuration that a run saved, read back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.flags_tools import config

from tokpack.option import MOST
from tokpack.trainer.config.config import FIELDS, Config
from tokpack.trainer.config.flags import resolve

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

NAMES = st.characters(exclude_categories=["Cs"], exclude_characters="\0")  # no file has that
NUMBERS = {
    "lr": st.floats(1e-3, 1),
    "min_lr": st.floats(0, 1e-4),
    "clip_grad": st.floats(0, 1e9),
    "adam_eps": st.floats(1e-30, 1),
    "seed": st.integers(0, MOST),
    "hidden_dropout": st.floats(0, 0.99),
    "exit_duration_in_mins": st.none() | st.floats(1e-6, 1e9),
    "train_samples": st.none() | st.integers(1, 2**50),
    "lr_warmup_samples": st.integers(0, 2**50),
    "save_interval": st.none() | st.integers(1, 2**31),
    "compile": st.none() | st.booleans(),
    "embed_layernorm": st.booleans(),
    "data_path": st.lists(st.text(NAMES, min_size=1, max_size=8), max_size=4).map(tuple),
    "save": st.none() | st.text(NAMES, max_size=8),
    "split": st.text(NAMES, max_size=8),
    "rampup_batch_size": st.none() | st.integers(0, 2**40).map(lambda n: (4, 4, n)),
    "deepspeed_json": st.dictionaries(
        st.sampled_from(["zero_optimization", "comms_logger"]),
        st.dictionaries(st.sampled_from("ab"), st.integers() | st.booleans() | st.just([1, 2])),
    ),
    "zero_stage": st.integers(0, 3),
    **{
        name: st.sampled_from(item.choices)
        for name, item in FIELDS.items()
        if item.choices and name != "zero_stage"
    },
}


@settings(max_examples=10, deadline=None)
@given(values=st.fixed_dictionaries({}, optional=NUMBERS))
def test_a_saved_configuration_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    if values.get("engine") == "deepspeed":
        values.pop("optimizer", None)  # it has only Adam
    saved = Config(**{"global_batch_size": 16, **values})
    path = tmp_path_factory.mktemp("saved") / "config.yaml"
    path.write_text(saved.to_yaml(), encoding="utf-8")
    found = resolve([str(path)])
    assert found.config == saved
    assert found.processes is None


def test_a_saved_configuration_in_another_world(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(config("--global-batch-size 16 --micro-batch-size 2").to_yaml())
    assert config(str(path), 4).global_batch_size == 16
    assert config(f"{path} --global-batch-size 32", 4).global_batch_size == 32

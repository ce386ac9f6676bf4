"""Defaults of other programs, what is not there of them, and a JSON that overrides the flags."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from support.flags_tools import changed, config, write

from tokpack.errors import UsageError, worded
from tokpack.trainer.config.config import FIELDS
from tokpack.trainer.config.names import DEFAULTS

if TYPE_CHECKING:
    from pathlib import Path

FUSED = "--no-masked-softmax-fusion"  # any flag that only the Megatron family has


def test_every_default_of_another_program_is_one_of_a_setting() -> None:
    for program, values in DEFAULTS.items():
        for name, value in values.items():
            FIELDS[name].checked(value)
            assert value != FIELDS[name].default, f"{program}: {name} is no difference"


@pytest.mark.parametrize("program", DEFAULTS)
def test_like_takes_all_of_them(program: str) -> None:
    found = changed(config(f"--like {program}"))
    assert {name: found.get(name) for name in DEFAULTS[program]} == DEFAULTS[program]
    assert found.pop("activation", None) == ("gelu_erf" if program == "neox" else None)
    assert found == DEFAULTS[program]
    assert config(f"--like {program}").unlike == ""


def test_what_is_given_goes_before_what_a_program_has(tmp_path: Path) -> None:
    words = "--hidden-dropout 0 --bf16 --order stateless --keep-checkpoints 2"
    found = config(f"--like megatron {words} --attention-dropout 0.2")
    assert (found.hidden_dropout, found.attention_dropout) == (0.0, 0.2)
    assert (found.precision, found.order, found.keep_checkpoints) == ("bf16", "stateless", 2)
    blend = tmp_path / "blend.yaml"
    blend.write_text("datasets: [wiki]\norder: neox\n")
    assert config(f"{blend} --like megatron").order == "neox"
    path = write(tmp_path / "c.yml", {"like": "neox", "lr_warmup_iters": 3})
    assert config(path).lr_warmup_fraction is None
    assert config(path).weight_decay == 0.1
    path = write(tmp_path / "ds.json", {"fp16": {"enabled": True, "initial_scale_power": 12}})
    found = config(f"--like megatron --deepspeed_config {path}")
    assert (found.precision, found.initial_loss_scale) == ("fp16", 4096)


@pytest.mark.parametrize(
    ("line", "program"),
    [
        (FUSED, "megatron"),
        (f"{FUSED} --embed-layernorm", "bigscience"),
        ("--use-flash-attn-v2 --train-tokens 1e6", "microsoft"),
        ("--num-layers 3 --embed-layernorm --samples 8 --local_rank=0", None),
    ],
)
def test_one_line_says_what_a_script_may_miss(line: str, program: str | None) -> None:
    said = worded(config(line).unlike)
    assert re.findall(r"like (\w+) takes those$", said) == ([program] if program else [])
    if program:
        assert "attention_dropout 0 (0.1 there), hidden_dropout 0 (0.1 there)" in said
        assert f"order stateless ({program} there)" in said
        assert "precision bf16 on a GPU, else fp32 (fp32 there)" in said
        assert "loss_scale" not in said


def test_a_file_of_neox_has_a_line_too(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yml", {"pipe_parallel_size": 1, "fp16": {"enabled": True}})
    said = config(path).unlike
    assert "weight_decay 0.01 (0.1 there)" in said
    assert "precision" not in said
    saved = tmp_path / "saved.yaml"
    saved.write_text(config(path).to_yaml())
    assert config(str(saved)) == config(path)
    assert config(str(saved)).unlike == ""


# What is not there


def test_what_would_change_no_result_is_said(tmp_path: Path) -> None:
    words = "--overlap-param-gather --num-layers-per-virtual-pipeline-stage 2 --num-workers 2"
    found = config(f"{words} --overlap-grad-reduce")
    assert changed(found) == {}
    assert found.notes == (
        "accepted, without effect: --num-workers 2 (a thread maps and reads the data); "
        "--overlap-grad-reduce (gradients are summed in fp32, during the backward "
        "pass)",
        "not implemented, the results are the same: --overlap-param-gather (not overlapped); "
        "--num-layers-per-virtual-pipeline-stage 2 (stages are not interleaved, nor split by a "
        "method)",
    )
    assert config(write(tmp_path / "c.yml", {"overlap_param_gather": False})).notes == ()
    (note,) = config("--sequence-parallel --deepspeed").notes
    assert note.startswith("sequence_parallel is the torch engine's; the results are the same")


# DeepSpeed's JSON, and GPT-NeoX's launcher


ZERO = {"zero_optimization": {"stage": 2, "reduce_bucket_size": 5}, "fp16": {"enabled": False}}


def test_a_json_goes_before_flags_that_change_no_result(tmp_path: Path) -> None:
    """As where nobody else reads them: the stage of ZeRO and its buckets. All else is refused."""
    zero = {**ZERO["zero_optimization"], "contiguous_gradients": False}
    path = write(tmp_path / "ds.json", {**ZERO, "zero_optimization": zero})
    flags = f"--deepspeed --deepspeed_config {path} --zero-stage 0 --zero-reduce-bucket-size 7"
    flags += " --zero-allgather-bucket-size 3 --zero-contigious-gradients --zero-reduce-scatter"
    found = config(flags)
    assert changed(found) == {
        "engine": "deepspeed",
        "zero_stage": 2,
        "deepspeed_json": {
            "zero_optimization": {
                "reduce_bucket_size": 5,
                "allgather_bucket_size": 3,
                "contiguous_gradients": False,
                "reduce_scatter": True,
            }
        },
    }
    note = (
        f"{path} overrides the flags: zero_optimization.stage 2, not --zero-stage 0; "
        "zero_optimization.reduce_bucket_size 5, not --zero-reduce-bucket-size 7; "
        "zero_optimization.contiguous_gradients false, not --zero-contigious-gradients"
    )
    assert found.notes == (note,)
    with pytest.raises(UsageError, match=r"^--fp16 .*fp16\.enabled"):
        config(f"{flags} --fp16")


@pytest.mark.parametrize("flag", ["-d", "--conf_dir"])
def test_files_in_a_folder_as_neox_names_them(tmp_path: Path, flag: str) -> None:
    folder = tmp_path / "configs"
    folder.mkdir()
    write(folder / "125M.yml", {"num-layers": 3, "pipe-parallel-size": 1, "save": "here"})
    write(folder / "local_setup.yml", {"save": "there"})
    found = config(f"{flag} {folder} 125M local_setup.yml --bias-gelu-fusion")
    assert changed(found) == {"num_layers": 3, "save": "there"}
    assert config(f"{folder}/125M").num_layers == 3

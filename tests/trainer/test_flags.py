"""Flags, files and DeepSpeed's JSON -> Config."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.flags_tools import changed, config, write

from tokpack.cli.parser import help_page
from tokpack.errors import FormatError, InputError, UsageError
from tokpack.trainer.commands import train as command
from tokpack.trainer.config import names
from tokpack.trainer.config.config import FIELDS
from tokpack.trainer.config.flags import SETTINGS


def test_the_first_command_of_the_manual() -> None:
    found = config("--data-path 0.35 wiki 0.65 owt --num-layers 24")
    assert changed(found) == {"data_path": ("0.35", "wiki", "0.65", "owt"), "num_layers": 24}
    assert found.notes == ()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--train-samples 10_000", {"train_samples": 10_000}),
        ("--train-tokens 1e6 --seq-length 100", {"train_samples": 10_000, "seq_length": 100}),
        ("--warmup .01", {"lr_warmup_fraction": 0.01}),
        ("--lr=1e-4", {"lr": 1e-4}),
        ("--tensor_model_parallel_size 1", {}),
        ("--bf16", {"precision": "bf16"}),
        ("--precision bfloat16", {"precision": "bf16"}),
        ("--swiglu --normalization rmsnorm", {"activation": "swiglu", "normalization": "RMSNorm"}),
        ("--disable-bias-linear", {"add_bias_linear": False, "activation": "gelu_erf"}),
        ("--no-add-bias-linear", {"add_bias_linear": False}),
        ("--no-compile", {"compile": False}),
        ("--compile", {"compile": True}),
        ("--use-rotary-position-embeddings", {"position_embedding_type": "rope"}),
        ("--recompute-activations", {"checkpoint_activations": True}),
        ("--pipeline-split 6,6", {"pipeline_split": (6, 6)}),
        ("--initial-loss-scale 4096", {"initial_loss_scale": 4096.0}),
        ("--zero-stage 2", {"zero_stage": 2}),
        ("--zero-stage 3 --deepspeed", {"zero_stage": 3, "engine": "deepspeed"}),
        ("--use-distributed-optimizer", {"zero_stage": 1}),
        ("--zero-stage 0", {}),
        ("--local_rank=1 --debug", {}),
        (
            "--lr 1 --lr 2 --batch-size 2 --micro-batch-size 2",
            {"lr": 2.0, "micro_batch_size": 2, "global_batch_size": 2},
        ),
        ("--compile --no-compile", {"compile": False}),
        ("--deepspeed --engine torch --fp16 --precision bf16", {"precision": "bf16"}),
        ("--extra-save-iters 0 1 512", {"extra_save_iters": (0, 1, 512)}),
    ],
)
def test_what_a_flag_sets(line: str, expected: dict[str, Any]) -> None:
    stages = len(expected.get("pipeline_split", (1,)))
    parallel = f" --pipe-parallel-size {stages}" if stages > 1 else ""
    found = changed(config(line + parallel, stages))
    found.pop("pipeline_model_parallel_size", None)
    assert found == expected


def test_what_needs_nothing_is_said_once() -> None:
    """With the reason; flags of one reason together."""
    found = config("--no-rope-fusion --distributed-backend nccl --num-workers 2 --use-flash-attn")
    assert changed(found) == {}
    assert found.notes == (
        "accepted, with nothing to do: --no-rope-fusion, --use-flash-attn (torch's own kernels are "
        "always used); --distributed-backend nccl (the device decides); --num-workers 2 (a thread "
        "maps and reads the data)",
    )


@pytest.mark.parametrize(
    ("line", "world", "micro", "batch"),
    [
        ("", 1, 4, 4),
        ("", 3, 4, 12),
        ("--batch-size 8", 2, 8, 16),
        ("--batch-size 8 --gas 4", 2, 8, 64),
        ("--global-batch-size 6", 1, 2, 6),
        ("--global-batch-size 6", 3, 2, 6),
        ("--global-batch-size 16 --gas 2", 4, 2, 16),
        ("--global-batch-size 16 --rampup-batch-size 2 2 9", 2, 1, 16),
        ("--global-batch-size 16 --tensor-model-parallel-size 4", 8, 4, 16),
    ],
)
def test_batch_sizes(line: str, world: int, micro: int, batch: int) -> None:
    found = config(line, world)
    assert (found.micro_batch_size, found.global_batch_size) == (micro, batch)


DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 2,
    "train_batch_size": 16,
    "gradient_clipping": 0.5,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.8, 0.9], "eps": 1e-6}},
    "zero_optimization": {"stage": 1, "overlap_comm": True, "reduce_bucket_size": 1000},
    "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 12, "hysteresis": 3},
    "activation_checkpointing": {"partition_activations": True, "profile": True},
    "steps_per_print": 10,
}


def test_deepspeed_json(tmp_path: Path) -> None:
    path = write(tmp_path / "ds.json", DEEPSPEED)
    found = config(f"--deepspeed --deepspeed_config {path} --fp16 --clip-grad 0.5 --zero-stage 1")
    assert changed(found) == {
        "micro_batch_size": 2,
        "global_batch_size": 16,
        "clip_grad": 0.5,
        "lr": 1e-3,
        "adam_beta1": 0.8,
        "adam_beta2": 0.9,
        "adam_eps": 1e-6,
        "zero_stage": 1,
        "precision": "fp16",
        "initial_loss_scale": 4096.0,
        "hysteresis": 3,
        "engine": "deepspeed",
        "deepspeed_json": {
            "activation_checkpointing": {"profile": True},
            "zero_optimization": {"overlap_comm": True, "reduce_bucket_size": 1000},
            "steps_per_print": 10,
        },
    }


def test_fp16_that_the_json_turns_off(tmp_path: Path) -> None:
    path = write(tmp_path / "s.json", {"scheduler": {"type": "WarmupLR"}})
    with pytest.raises(UsageError, match=r"scheduler\.type warmuplr is not supported: only none"):
        config(f"--deepspeed_config {path}")
    path = write(tmp_path / "ds.json", {"fp16": {"enabled": False}})
    assert config(f"--deepspeed_config {path}").precision is None
    assert config(f"--deepspeed_config {path} --bf16").precision == "bf16"
    with pytest.raises(UsageError, match=r"--fp16 contradicts fp16\.enabled false"):
        config(f"--deepspeed_config {path} --fp16")


def test_settings_of_deepspeed_without_it() -> None:
    found = config("--zero-reduce-bucket-size 5 --profile-backward")
    assert found.notes == (
        "of no use to engine torch: zero_optimization.reduce_bucket_size, "
        "activation_checkpointing.profile",
    )


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(FormatError, match=r"bad\.json: not JSON"):
        config(f"--deepspeed_config {tmp_path}/bad.json")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(FormatError, match=r"bad\.yaml: not YAML"):
        config(f"{tmp_path}/bad.yaml")


def test_defaults_then_the_file_then_flags(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("num-layers: 6\nhidden_size: 96\nlr: 1e-3\ntrain-iters: 7\nbf16: true\n")
    found = config(f"{path} --lr 1e-4 --train-samples 70 --fp16")
    assert changed(found) == {
        "num_layers": 6,
        "hidden_size": 96,
        "lr": 1e-4,
        "train_samples": 70,
        "precision": "fp16",
    }


def test_whether_neox_files_ask_for_weights_and_biases(tmp_path: Path) -> None:
    file = tmp_path / "n.yml"
    for words, flags, project in (
        ('"use_wandb": false, "wandb_project": "there"', "", None),
        ('"use_wandb": false, "wandb_project": "there"', "--wandb-project mine", "mine"),
        ('"use_wandb": true, "wandb_project": "there"', "", "there"),
        ('"use_wandb": true', "", "neox"),
        ('"use_wandb": null', "", None),
    ):
        file.write_text(f"{{{words}}}")
        assert config(f"{file} {flags}").wandb_project == project


def test_several_files_as_neox_has_them(tmp_path: Path) -> None:
    """A model of GPT-NeoX and the places of a cluster; the later file goes before."""
    model, cluster, blend = (tmp_path / name for name in ("m.yml", "c.yml", "b.yaml"))
    model.write_text(
        '{"pipe-parallel-size": 0, "attention-config": [[["flash"], 12]], "save": "here", '
        '"zero_optimization": {"stage": 0, "cpu_offload": false}, "gas": 2, "seq-length": 64}'
    )
    cluster.write_text('{"save": "there", "wandb_host": "ours"}')
    blend.write_text("tokpack_blend: 1\n")
    assert changed(config(f"{model} {cluster} {blend} --seq-length 32")) == {
        "activation": "gelu_erf",
        "save": "there",
        "seq_length": 32,
        "global_batch_size": 8,
        "deepspeed_json": {"zero_optimization": {"cpu_offload": False}},
        "data_path": (str(blend),),
        "split": None,
    }
    model.write_text('{"attention-config": [[["sparse_fixed"], 12]]}')
    with pytest.raises(UsageError, match="is not supported: only"):
        config(str(model))


@pytest.mark.parametrize(
    ("file", "line", "expected"),
    [
        ("gas: 4\nbatch-size: 2", "--global-batch-size 6", (2, 6)),
        ("global-batch-size: 6\nbatch-size: 2", "--gas 2", (2, 4)),
        ("global-batch-size: 6", "--batch-size 3", (3, 6)),
    ],
)
def test_a_flag_replaces_another_way_to_say_it(
    tmp_path: Path, file: str, line: str, expected: tuple[int, int]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(file)
    found = config(f"{path} {line}")
    assert (found.micro_batch_size, found.global_batch_size) == expected


def test_tokens_replace_the_samples_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("train-iters: 5\nseq-length: 10")
    assert config(f"{path} --train-tokens 100").train_samples == 10
    path.write_text("train-tokens: 1000\ntrain-samples: 30\nseq-length: 10")
    assert config(str(path)).train_samples == 30


@pytest.mark.parametrize("text", ["tokpack_blend: 1\n", "datasets: {wiki: 0.3, owt: 0.7}\n"])
@pytest.mark.parametrize("way", ["", "--data-path ", "--train-data-path "])
def test_the_length_of_a_blend_file(tmp_path: Path, text: str, way: str) -> None:
    """Flag > configuration > blend file > default, however the blend file is named."""
    path, other = tmp_path / "blend.yaml", tmp_path / "config.yaml"
    field = "train_data_path" if "train" in way else "data_path"
    path.write_text(text)
    assert getattr(config(f"--lr 1e-4 {way}{path}"), field) == (str(path),)
    assert config(f"--lr 1e-4 {way}{path}").seq_length == 1024
    path.write_text(f"{text}seq_length: 64\n")
    assert config(f"{way}{path}").seq_length == 64
    assert config(f"--train-tokens 6400 {way}{path}").train_samples == 100
    other.write_text("seq-length: 48")
    for line in (f"{other} {way}{path}", f"{way}{path} {other}" if not way else f"{other} {path}"):
        assert config(line).seq_length == 48
    assert config(f"{other} --seq-length 32 {way}{path}").seq_length == 32
    path.write_text(f"{text}seq_length: many\n")
    with pytest.raises(UsageError, match="seq_length many: expected a whole number"):
        config(f"{way}{path}")
    with pytest.raises(InputError, match=r"no\.yaml: No such file"):
        config(f"--data-path {tmp_path}/no.yaml")


def test_a_blend_file_that_a_configuration_names(tmp_path: Path) -> None:
    blend = tmp_path / "blend.yml"
    blend.write_text("datasets: [wiki]\nseq_length: 64\n")
    path = write(tmp_path / "config.yaml", {"data_path": str(blend)})
    assert config(path).seq_length == 64
    assert config(f"{path} --data-path wiki").seq_length == 1024


def test_what_a_blend_file_says_beside_its_datasets(tmp_path: Path) -> None:
    """It holds until a flag or a configuration says otherwise, be it the default."""
    blend = tmp_path / "blend.yml"
    blend.write_text(
        "datasets: [wiki]\nseed: 7\nsplit: 0:0.9\norder: neox\neod_id: 3\nallow_empty: true\n"
        "document_boundaries: true\npacking: best_fit\nseq_length: 64\n"
    )
    found = config(str(blend))
    assert (found.seed, found.split, found.order, found.eod_id) == (7, "0:0.9", "neox", 3)
    assert found.allow_empty
    assert found.document_boundaries
    assert not found.reset_attention_mask
    saved = tmp_path / "saved.yaml"
    saved.write_text(found.to_yaml())
    assert config(str(saved)) == found
    words = "--seed 1234 --split 969,30,1 --order stateless --no-allow-empty"
    found = config(f"{blend} {words} --no-document-boundaries")
    assert (found.seed, found.split, found.order) == (1234, "969,30,1", "stateless")
    assert (found.allow_empty, found.document_boundaries) == (False, False)
    blend.write_text("datasets: [wiki]\n")
    assert config(str(blend)).split is None
    assert config("--data-path wiki").split == "969,30,1"
    assert config(f"{blend} --train-data-path wiki").data_path == ()
    blend.write_text("- wiki\n")
    with pytest.raises(FormatError, match="expected names and values, found list"):
        config(f"--data-path {blend}")


def test_the_table_of_names() -> None:
    """Each name has one line, in order, and what it is said to be there is."""
    text = Path(names.__file__).with_suffix(".txt").read_text()
    lines = [line for line in text.splitlines() if line and line[0] != "#"]
    first = [line.split()[0] for line in lines]
    assert len(first) == len(set(first)) > 250, "a name has two meanings"
    assert lines == sorted(lines)
    rows = names.NAMES.items()
    assert {row.target for _, row in rows if row.kind == "setting"} <= set(SETTINGS)
    switches = {row.target for _, row in rows if row.kind == "switch"}
    assert {name for name in switches if "." not in name} <= set(FIELDS)
    # Under a name of ours, one that only one of the programs has.
    assert all(row == ("setting", name, None) for name, row in rows if name in SETTINGS)
    for kind, colon, reason in (line.split(" | ")[1].partition(":") for line in lines):
        assert not colon or (kind in ("nothing", "unlike") and len(reason) > 4), "without a reason"


def test_the_help_page_shows_every_setting_with_its_default() -> None:
    page = help_page(command.PAGE)
    shown = re.findall(r"^  --(?:\[no-\]|no-)?(\S+)", page, re.MULTILINE)
    own = {setting.name for setting in names.OWN}
    assert sorted(name.replace("-", "_") for name in shown) == sorted(
        {*FIELDS, *own} - {"deepspeed_json", "save_interval_in_mins"}
    )
    assert max(map(len, page.splitlines())) <= 100
    assert re.search(r"--lr X +learning rate \(0\.0003\)\n", page)
    assert re.search(r"--\[no-\]compile +torch\.compile of the blocks \(on a GPU\)\n", page)
    helps = {
        one.names[0]: one.settings["help"] for group in command.PAGE.groups for one in group.flags
    }
    for name, setting in FIELDS.items():
        default = setting.default
        if isinstance(default, (int, float)) and not isinstance(default, bool):
            assert f"({setting.otherwise or f'{default:g}'})" in helps[setting.flag], name


def test_no_torch_is_loaded() -> None:
    code = "import sys, tokpack.trainer.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

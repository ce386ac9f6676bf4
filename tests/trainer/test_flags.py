"""Flags, files and DeepSpeed's JSON -> Config."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.flags_tools import changed, config, write

from tokpack.cli.main import main
from tokpack.cli.parser import help_page
from tokpack.errors import FormatError, InputError, UsageError
from tokpack.trainer.commands import train as command
from tokpack.trainer.config import names
from tokpack.trainer.config.config import FIELDS
from tokpack.trainer.config.flags import SETTINGS

UNSUPPORTED = (
    "fp32-residual-connection",
    "use-checkpoint-lr-scheduler",
    "use-checkpoint-opt_param-scheduler",
)
BLOCKS = ("data_efficiency", "curriculum_learning", "amp")  # they would change the run

NEOX = {"pipe_parallel_size": 1, "bias_gelu_fusion": True}  # enough to be known as one
JSON = "--deepspeed_config {}"
ADAM = {"optimizer": {"type": "Adam", "params": {"lr": 1e-3, "max_grad_norm": 0.5}}}
OFFLOAD = {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}
OFFLOADED = {
    "engine": "deepspeed",
    "zero_stage": 1,
    "deepspeed_json": {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
}
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

# A file of settings or of DeepSpeed's JSON, the command line, in which {} is the file, and all that
# is not as by default then.
SET: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    # Ours, and Megatron-LM's
    ({}, "--data-path 0.35 wiki 0.65 owt --num-layers 24",
     {"data_path": ("0.35", "wiki", "0.65", "owt"), "num_layers": 24}),
    ({}, "--train-samples 10_000", {"train_samples": 10_000}),
    ({}, "--train-tokens 1e6 --seq-length 100", {"train_samples": 10_000, "seq_length": 100}),
    ({}, "--warmup .01", {"lr_warmup_fraction": 0.01}),
    ({}, "--lr=1e-4", {"lr": 1e-4}),
    ({}, "--tensor_model_parallel_size 1", {}),
    ({}, "--bf16", {"precision": "bf16"}),
    ({}, "--precision bfloat16", {"precision": "bf16"}),
    ({}, "--swiglu", {"activation": "swiglu"}),
    ({}, "--swiglu --normalization rmsnorm --ffn-hidden-size 100",
     {"activation": "swiglu", "normalization": "RMSNorm", "ffn_hidden_size": 100}),
    ({}, "--intermediate-size 100", {"ffn_hidden_size": 100}),
    ({}, "--disable-bias-linear", {"add_bias_linear": False, "activation": "gelu_erf"}),
    ({}, "--no-add-bias-linear", {"add_bias_linear": False}),
    ({}, "--no-compile", {"compile": False}),
    ({}, "--compile", {"compile": True}),
    ({}, "--compile --no-compile", {"compile": False}),
    ({}, "--use-rotary-position-embeddings", {"position_embedding_type": "rope"}),
    ({}, "--recompute-activations", {"checkpoint_activations": True}),
    ({}, "--initial-loss-scale 4096", {"initial_loss_scale": 4096.0}),
    ({}, "--zero-stage 0", {}),
    ({}, "--zero-stage 1", {"zero_stage": 1}),
    ({}, "--zero-stage 3 --deepspeed", {"zero_stage": 3, "engine": "deepspeed"}),
    ({}, "--use-distributed-optimizer", {"zero_stage": 1}),
    ({}, "--local_rank=1 --debug", {}),
    ({}, "--lr 1 --lr 2 --batch-size 2 --micro-batch-size 2",
     {"lr": 2.0, "micro_batch_size": 2, "global_batch_size": 2}),
    ({}, "--deepspeed --engine torch --fp16 --precision bf16", {"precision": "bf16"}),
    ({}, "--extra-save-iters 0 1 512", {"extra_save_iters": (0, 1, 512)}),
    ({}, "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
     {"checkpoint_activations": True, "checkpoint_num_layers": 2}),
    ({}, "--activations-checkpoint-method uniform --activations-checkpoint-num-layers 1",
     {"checkpoint_activations": True}),
    ({}, "--recompute-granularity selective", {"checkpoint_activations": True}),
    ({}, "--distribute-saved-activations", {}),
    ({}, "--num-experts 1 --moe-expert-parallel-size 1 --ds-sequence-parallel-size 1", {}),
    ({}, "--kill-switch-file stop --timing-log-level 1", {"kill_switch_path": "stop"}),
    ({}, "--cpu-optimizer --no-save-optim", {}),
    ({}, "--finetune --no-load-optim", {"finetune": True}),
    ({}, "--pad-vocab-size-to 250_880", {"vocab_size": 250880}),
    ({}, "--optimizer dist_muon --muon-use-nesterov --muon-no-split-qkv --muon-tp-mode duplicated",
     {"optimizer": "muon", "muon_nesterov": True, "muon_split_qkv": False}),
    ({}, "--optimizer AdamW --qk-layernorm", {"qk_layernorm": True}),
    # A file, and what a flag replaces of it
    ({"num-layers": 6, "hidden_size": 96, "lr": "1e-3", "train-iters": 7, "bf16": True},
     "{} --lr 1e-4 --train-samples 70 --fp16",
     {"num_layers": 6, "hidden_size": 96, "lr": 1e-4, "train_samples": 70, "precision": "fp16"}),
    ({"gas": 4, "batch-size": 2}, "{} --global-batch-size 6",
     {"micro_batch_size": 2, "global_batch_size": 6}),
    ({"global-batch-size": 6, "batch-size": 2}, "{} --gas 2", {"micro_batch_size": 2}),
    ({"global-batch-size": 6}, "{} --batch-size 3",
     {"micro_batch_size": 3, "global_batch_size": 6}),
    ({"train-iters": 5, "seq-length": 10}, "{} --train-tokens 100",
     {"seq_length": 10, "train_samples": 10}),
    ({"train-tokens": 1000, "train-samples": 30, "seq-length": 10}, "{}",
     {"seq_length": 10, "train_samples": 30}),
    *(({flag: False}, "{}", {}) for flag in UNSUPPORTED),
    # GPT-NeoX's
    ({"use_wandb": False, "wandb_project": "there"}, "{}", {}),
    ({"use_wandb": False, "wandb_project": "there"}, "{} --wandb-project mine",
     {"wandb_project": "mine"}),
    ({"use_wandb": True, "wandb_project": "there"}, "{}", {"wandb_project": "there"}),
    ({"use_wandb": True}, "{}", {"wandb_project": "neox"}),
    ({"use_wandb": None}, "{}", {}),
    ({**NEOX, "use_bias_in_mlp": False, "use_bias_in_attn_linear": False}, "{}",
     {"add_bias_linear": False}),
    ({**NEOX, "use_bias_in_mlp": True, "gpt_j_tied": False}, "{}", {}),
    ({**NEOX, "rms_norm_epsilon": 1e-6}, "{}", {}),
    ({**NEOX, "rms_norm_epsilon": 1e-6, "norm": "rmsnorm", "layernorm_epsilon": 1e-3}, "{}",
     {"normalization": "RMSNorm", "layernorm_epsilon": 1e-6}),
    ({**NEOX, "attention_config": [[["flash", "global"], 6]], "sliding_window_width": 1024}, "{}",
     {}),
    ({**NEOX, "pos_emb": "rotary", "no_position_embedding": True, "kv_channels": 64}, "{}",
     {"position_embedding_type": "rope", "kv_channels": 64}),
    ({**NEOX, "num_attention_heads": 7, "kv_channels": 128}, "{}",
     {"num_attention_heads": 7, "kv_channels": 128}),
    ({**NEOX, "fp16": {"enabled": True, "type": "bfloat16", "loss_scale": 0}}, "{}",
     {"precision": "bf16"}),
    ({**NEOX, "fp16": {"enabled": False, "type": "bfloat16"}}, "{}", {}),
    ({**NEOX, "checkpoint_factor": 20, "extra-save-iters": [0, 1, 2]}, "{}",
     {"save_interval": 20, "extra_save_iters": (0, 1, 2)}),
    ({**NEOX, "train_data_paths": ["a", "b"], "train_data_weights": [1, 3],
      "valid_data_paths": ["c"], "test_data_paths": ["d", "e"]}, "{}",
     {"train_data_path": ("1.0", "a", "3.0", "b"), "valid_data_path": ("c",),
      "test_data_path": ("1.0", "d", "1.0", "e")}),
    ({**NEOX, "train_data_paths": ["a", "b"], "valid_data_paths": ["c"]},
     "{} --train-data-path d --valid-data-path e",
     {"train_data_path": ("d",), "valid_data_path": ("e",)}),
    ({**NEOX, "train_data_paths": ["a", "b"], "valid_data_paths": ["c"]},
     "{} --data-path 0.5 d 0.5 e",
     {"data_path": ("0.5", "d", "0.5", "e"), "valid_data_path": ("c",)}),
    ({**NEOX, "deepspeed_extra_args": {"comms_logger": {"enabled": True}}, "data_types": {"a": 1}},
     "{}", {"deepspeed_json": {"comms_logger": {"enabled": True}, "data_types": {"a": 1}}}),
    ({**NEOX, "moe_num_experts": 1, "comet_others": {"a": None}, "checkpoint_scale": "linear"},
     "{}", {}),
    # DeepSpeed's JSON, which says where the optimizer runs, whatever the flag
    (DEEPSPEED, f"--deepspeed {JSON} --fp16 --clip-grad 0.5 --zero-stage 1", {
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
    }),
    ({"fp16": {"enabled": False}}, JSON, {"engine": "deepspeed"}),
    ({"fp16": {"enabled": False}}, f"{JSON} --bf16", {"engine": "deepspeed", "precision": "bf16"}),
    (ADAM, JSON, {"engine": "deepspeed", "lr": 1e-3, "clip_grad": 0.5}),
    (OFFLOAD, f"{JSON} --cpu-optimizer", OFFLOADED),
    (OFFLOAD, "{}", OFFLOADED),
    *(({block: {"enabled": False}}, JSON, {"engine": "deepspeed"}) for block in BLOCKS),
]  # fmt: skip


@pytest.mark.parametrize(("file", "line", "expected"), SET)
def test_what_is_set(
    tmp_path: Path, file: dict[str, Any], line: str, expected: dict[str, Any]
) -> None:
    assert changed(config(line.format(write(tmp_path / "c.yml", file)))) == expected


def test_the_width_of_swiglu_as_megatron_has_it(tmp_path: Path) -> None:
    line = "--hidden-size 4096 --num-attention-heads 32 --swiglu --like megatron"
    assert config(line).ffn_hidden_size == 10880
    assert config(f"{line} --ffn-hidden-size 64").ffn_hidden_size == 64


def test_what_says_where_the_optimizer_runs_is_a_note() -> None:
    for line in ("--cpu-optimizer", "--cpu-torch-adam"):
        assert config(line).notes[0].endswith(" (zero_optimization.offload_optimizer decides)")
    assert config("--data-path 0.35 wiki 0.65 owt --num-layers 24").notes == ()


def test_stages_that_are_split_by_hand() -> None:
    found = config("--pipeline-split 6,6 --pipe-parallel-size 2", 2)
    assert changed(found) == {"pipeline_split": (6, 6), "pipeline_model_parallel_size": 2}


@pytest.mark.parametrize("name", ["bad.json", "bad.yaml"])
def test_files_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{")
    with pytest.raises(FormatError, match=name):
        config(f"{JSON if name == 'bad.json' else '{}'}".format(tmp_path / name))


def test_what_needs_nothing_is_said_once() -> None:
    """With the reason; flags of one reason together."""
    found = config("--no-rope-fusion --distributed-backend nccl --num-workers 2 --use-flash-attn")
    assert changed(found) == {}
    assert found.notes == (
        "accepted, without effect: --no-rope-fusion, --use-flash-attn (torch's own kernels are "
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


def test_settings_of_deepspeed_without_it() -> None:
    found = config("--zero-reduce-bucket-size 5 --profile-backward")
    assert found.notes == (
        "not used by engine torch: zero_optimization.reduce_bucket_size, "
        "activation_checkpointing.profile",
    )


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
    with pytest.raises(UsageError, match=r"^attention_config sparse_fixed "):
        config(str(model))


@pytest.mark.parametrize("text", ["tokpack_blend: 1\n", "datasets: {wiki: 0.3, owt: 0.7}\n"])
@pytest.mark.parametrize("way", ["", "--data-path ", "--train-data-path "])
def test_the_length_of_a_blend_file(tmp_path: Path, text: str, way: str) -> None:
    """Flag > blend file > configuration > default, however the blend is named."""
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
        assert config(line).seq_length == 64
        assert any("seq_length 64 overrides seq-length 48" in one for one in config(line).notes)
    assert config(f"{other} --seq-length 32 {way}{path}").seq_length == 32
    path.write_text(f"{text}seq_length: many\n")
    with pytest.raises(UsageError, match="seq_length"):
        config(f"{way}{path}")
    with pytest.raises(InputError, match=r"no\.yaml"):
        config(f"--data-path {tmp_path}/no.yaml")


def test_the_length_for_a_model_with_few_positions() -> None:
    assert config("--max-position-embeddings 512").seq_length == 512
    assert config("--max-position-embeddings 4096").seq_length == 1024
    assert config("--max-position-embeddings 512 --seq-length 64").seq_length == 64


def test_a_blend_file_that_a_configuration_names(tmp_path: Path) -> None:
    blend = tmp_path / "blend.yml"
    blend.write_text("datasets: [wiki]\nseq_length: 64\n")
    path = write(tmp_path / "config.yaml", {"data_path": str(blend)})
    assert config(path).seq_length == 64
    assert config(f"{path} --data-path wiki").seq_length == 1024
    path = write(tmp_path / "config.yaml", {"data_path": str(blend), "seq_length": 48})
    found = config(path)
    assert found.seq_length == 64
    assert found.notes == (f"{blend}: seq_length 64 overrides seq_length 48 of a configuration",)
    assert config(f"{path} --seq-length 32").seq_length == 32
    assert config(f"{path} --load run").seq_length == 48  # the run goes on as it was
    assert config(f"{path} --load model --finetune").seq_length == 64
    path = write(tmp_path / "config.yaml", {"data_path": str(blend), "seq_length": 64})
    assert config(path).notes == ()


def test_options_of_messages_are_written_as_they_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a file, if one has them; else as flags, also those that are not given."""
    monkeypatch.chdir(tmp_path)
    Path("blend.yaml").write_text("datasets: [wiki]\n")
    Path("config.yaml").write_text('{"hidden-size": 30}')
    Path("other.yaml").write_text("num_attention_heads: 7\n")
    for words, message in (
        ("blend.yaml --hidden-size 30", "--hidden-size 30 is not a multiple of --num-attention-h"),
        ("config.yaml", "hidden_size 30 is not a multiple of --num-attention-heads 12"),
        ("config.yaml other.yaml", "hidden_size 30 is not a multiple of num_attention_heads 7"),
        ("other.yaml --num-attention-heads=7", "--hidden-size 768 is not a multiple of --num-att"),
        ("blend.yaml --gpus-per-node 2", "--gpus-per-node needs --plan"),
    ):
        assert main(["train", *words.split()]) == 1
        assert f"tokpack: error: {message}" in capsys.readouterr().err


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
    with pytest.raises(FormatError, match=r"blend\.yml"):
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

"""Every example script at its full size: its flags -> Config."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support.flags_tools import changed
from support.places import EXAMPLES
from support.rounding import equal

from tokpack.configuration.flags import resolve

if TYPE_CHECKING:
    from pathlib import Path

RECORD = """\
#!{python}
import sys
words = sys.argv[1:]
open({out!r}, "w").write("\\n".join(words[words.index("tokpack.trainer") + 1:]))
"""


def script_flags(tmp_path: Path, script: str, *words: str, **names: str) -> list[str]:
    """The flags that an example gives to the trainer, as it stands."""
    out, folder = tmp_path / "words", tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    for launcher in ("python", "python3", "torchrun", "deepspeed"):
        (folder / launcher).write_text(RECORD.format(python=sys.executable, out=str(out)))
        (folder / launcher).chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    bash = shutil.which("bash")
    assert bash is not None
    subprocess.run(
        [bash, str(EXAMPLES / script), *words],
        cwd=tmp_path,
        env={"PATH": path, **names},
        check=True,
        timeout=60,
    )
    return out.read_text().splitlines()


def test_bigscience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = script_flags(tmp_path, "bigscience_gpt2.sh")
    monkeypatch.chdir(tmp_path)
    found = resolve(words, 2)[0]
    values = changed(found)
    assert values.pop("deepspeed_json") == {"steps_per_print": 2000, "wall_clock_breakdown": False}
    assert values == {
        "num_layers": 2,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "seq_length": 512,
        "max_position_embeddings": 512,
        "embed_layernorm": True,
        "micro_batch_size": 1,
        "global_batch_size": 16,
        "rampup_batch_size": (2, 2, 1000),
        "train_samples": 10000,
        "lr": 1e-4,
        "min_lr": 1e-6,
        "lr_decay_style": "cosine",
        "lr_decay_samples": 12,
        "lr_warmup_samples": 5,
        "weight_decay": 0.1,
        "adam_beta2": 0.95,
        "precision": "fp16",
        "initial_loss_scale": 4096.0,
        "loss_scale_window": 500,
        "tensor_model_parallel_size": 2,
        "engine": "deepspeed",
        "zero_stage": 1,
        "checkpoint_activations": True,
        "partition_activations": True,
        "data_path": ("data/meg-gpt2-oscar-en-10k_text_document",),
        "seed": 42,
        "vocab_file": "data/gpt2-vocab.json",
        "save": "checkpoints/gpt2",
        "load": "checkpoints/gpt2",
        "save_interval": 50,
        "eval_interval": 100,
        "eval_iters": 10,
        "exit_interval": 100,
        "kill_switch_path": "/tmp/kill-switch",
        "tensorboard_dir": "output_dir/tensorboard",
        "tensorboard_queue_size": 5,
        "log_timers_to_tensorboard": True,
        "log_batch_size_to_tensorboard": True,
        "log_validation_ppl_to_tensorboard": True,
    }
    assert found.notes == (
        "accepted, with nothing to do: --distributed-backend nccl (the device decides); "
        "--merge-file data/gpt2-merges.txt (the manifest names the tokenizer); "
        "--deepspeed-activation-checkpointing (activations are recomputed in one way)",
    )


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_megatron_1_1_5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: int) -> None:
    words = script_flags(tmp_path, "megatron_1.1.5.sh", STAGE=str(stage))
    monkeypatch.chdir(tmp_path)
    found = resolve(["--local_rank=0", *words], 2)[0]
    assert (found.num_layers, found.micro_batch_size, found.global_batch_size) == (24, 8, 16)
    assert (found.engine, found.zero_stage, found.split) == ("deepspeed", stage, "900,50,50")
    assert (found.train_iters, found.lr_decay_iters) == (320000, 320000)
    assert found.lr_warmup_fraction == 0.01
    assert found.checkpoint_activations
    assert found.checkpoint_in_cpu
    assert found.deepspeed_json["activation_checkpointing"] == {
        "contiguous_memory_optimization": True,
        "synchronize_checkpoint_boundary": True,
        "profile": True,
    }
    assert found.deepspeed_json["zero_optimization"] == {
        "overlap_comm": True,
        "reduce_bucket_size": 200000000,
        "allgather_bucket_size": 200000000,
        "contiguous_gradients": True,
        "reduce_scatter": True,
    }
    (note,) = [note for note in found.notes if "goes before the flags" in note]
    assert "reduce_bucket_size 200000000, not --zero-reduce-bucket-size 50000000" in note
    assert ("--zero-stage 0" in note) == (stage > 0)


def test_megatron_gpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = script_flags(tmp_path, "megatron_gpt.sh", "here", "board", "v.json", "m.txt", "data")
    monkeypatch.chdir(tmp_path)
    found = resolve(words, 8)[0]
    assert (found.tensor_model_parallel_size, found.pipeline_model_parallel_size) == (2, 2)
    assert (found.micro_batch_size, found.global_batch_size) == (4, 64)
    assert (found.precision, found.engine, found.lr_warmup_fraction) == ("fp16", "torch", 0.001)
    assert (found.data_path, found.save, found.load) == (("data",), "here", "here")
    assert found.notes == (
        "accepted, with nothing to do: --attention-backend auto (torch's own kernels are always "
        "used); --merge-file m.txt (the manifest names the tokenizer)",
    )


def test_microsoft_gpt3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = script_flags(tmp_path, "microsoft_gpt3.sh")
    monkeypatch.chdir(tmp_path)
    found = resolve(words, 64)[0]
    assert (found.tensor_model_parallel_size, found.pipeline_model_parallel_size) == (8, 8)
    assert (found.micro_batch_size, found.global_batch_size) == (1, 1536)
    assert found.data_path == (
        *("0.35", "data/wiki_text_document"),
        *("0.65", "data/openwebtext_text_document"),
    )
    assert found.data_cache_path == "gpt3_175b/index-cache"
    assert found.train_samples == 300_000_000_000 // 2048
    assert found.lr_decay_samples == 260_000_000_000 // 2048
    assert found.lr_warmup_samples == 375_000_000 // 2048
    assert found.precision == "bf16"
    assert "--use-flash-attn-v2" in found.notes[0]


@pytest.mark.parametrize("stage", ["", "0", "1"])
def test_libai_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    words = ("1", "8", "0", "10.10.0.8", "2", "4", "true", "true", "24", "384")
    words = script_flags(
        tmp_path, "libai_comparison.sh", *words, ZERO_STAGE=stage, STAGES="7 7 6 4"
    )
    monkeypatch.chdir(tmp_path)
    found = resolve(words, 8)[0]
    assert (found.tensor_model_parallel_size, found.pipeline_split) == (2, (7, 7, 6, 4))
    assert found.engine == ("deepspeed" if stage else "torch")
    assert found.zero_stage == int(stage or 0)
    assert (found.precision, found.checkpoint_activations) == ("fp16", True)


def test_neox_20b() -> None:
    found = resolve([str(EXAMPLES / "neox_20b.yml")], 96)[0]
    assert (found.num_layers, found.hidden_size, found.num_attention_heads) == (44, 6144, 64)
    assert (found.position_embedding_type, found.rotary_percent) == ("rope", 0.25)
    assert found.parallel_residual
    assert found.untie_embeddings_and_output_weights
    assert (found.tensor_model_parallel_size, found.pipeline_model_parallel_size) == (2, 4)
    assert (found.micro_batch_size, found.global_batch_size) == (4, 4 * 32 * 12)
    assert (found.lr, found.min_lr, found.adam_beta2) == (0.97e-4, 0.97e-5, 0.95)
    assert (found.precision, found.initial_loss_scale) == ("fp16", 4096.0)
    assert (found.engine, found.zero_stage) == ("torch", 1)
    assert found.deepspeed_json["zero_optimization"]["overlap_comm"] is True
    assert found.deepspeed_json["steps_per_print"] == 2
    assert (found.save_interval, found.lr_warmup_fraction) == (500, 0.01)
    assert found.init_method_std == equal((2 / (5 * 6144)) ** 0.5, 3)
    assert found.output_init_method_std == equal(2 / 44 / 6144**0.5, 4)
    assert "gelu in its tanh form, as GPT-NeoX computes it with bias_gelu_fusion" in found.notes

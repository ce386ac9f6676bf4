"""Tokens a second on several GPUs of a node, in layouts that a run would take, and as expected.

    python benchmarks/gpu.py --gpus 8            # all layouts, some minutes
    python benchmarks/gpu.py --gpus 2 --toy      # the same in toy sizes, on a CPU too

Each row has what `tokpack train --plan` expects of these GPUs beside what was measured, and the
best published figure for its size, as a goal.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpu
import torch

from tokpack.trainer.commands import ranks
from tokpack.trainer.config.estimate import Layout, mfu_of, time_of
from tokpack.trainer.config.hardware import GPUS
from tokpack.trainer.config.model import ModelConfig

if TYPE_CHECKING:
    from common import Row

Settings = dict[str, Any]

LLAMA = {
    "position_embedding_type": "rope",
    "num_query_groups": 8,
    "ffn_hidden_size": 14336,
    "activation": "swiglu",
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
}
TENSOR = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "zero_stage": 1}
RECOMPUTE = {"checkpoint_activations": True}
# A size, a micro batch, and settings. Published: llm-foundry's 1.3B, torchtitan's 8B.
CASES: dict[str, tuple[str, int, Settings]] = {
    "1.3B, ZeRO 0": ("1.3B", 8, {}),
    "1.3B, ZeRO 1": ("1.3B", 8, {"zero_stage": 1}),
    "1.3B, ZeRO 3": ("1.3B", 8, {"zero_stage": 3}),
    "1.3B, tensor 2": ("1.3B", 8, TENSOR),
    "8B, ZeRO 3, recomputed": ("8B", 1, {**LLAMA, **RECOMPUTE, "zero_stage": 3}),
    "8B, tensor 2, ZeRO 1": ("8B", 1, {**LLAMA, **TENSOR}),
    "8B, tensor 4, ZeRO 1": ("8B", 2, {**LLAMA, **TENSOR, "tensor_model_parallel_size": 4}),
    "8B, pipeline 2, recomputed": (
        "8B", 1, {**LLAMA, **RECOMPUTE, "pipeline_model_parallel_size": 2, "zero_stage": 2}
    ),
}  # fmt: skip
TOY = {
    "toy, ZeRO 1": ("toy", 2, {"zero_stage": 1}),
    "toy, tensor 2": ("toy", 2, TENSOR),
    "toy, pipeline 2": ("toy", 2, {"pipeline_model_parallel_size": 2}),
}
SIZES = {**gpu.SIZES, "8B": (32, 4096, 32, 128256, 8192)}
GOALS: dict[str, Row] = {"1.3B": {"goal_tokens_per_gpu": 45_500}, "8B": {"goal_mfu": 0.509}}


def measure(count: int, toy: bool) -> list[Row]:
    """A row for each layout on ``count`` GPUs, or processes; a failure is a row too."""
    rows: list[Row] = []
    for name, (size, _, _) in (TOY if toy else CASES).items():
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "row.json"
            command = [sys.executable, __file__, name, str(count), str(out)]
            code = ranks.start(command, count)
            row = json.loads(out.read_text()) if out.exists() else {"failed": f"exit code {code}"}
        rows.append({"benchmark": "layouts", "case": name, "gpus": count, **row})
        rows[-1] |= GOALS.get(size, {})
    return rows


def rank(name: str, count: int, out: str) -> None:
    """One of the processes of a layout; rank 0 writes the row."""
    size, micro, more = {**CASES, **TOY}[name]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shared = more.get("tensor_model_parallel_size", 1) * more.get("pipeline_model_parallel_size", 1)
    more = {**more, "global_batch_size": 4 * micro * count // shared}
    if device == "cpu":
        more["compile"] = False
    row = gpu.speed(size, SIZES[size], device, micro, 2 if device == "cpu" else 10, **more)
    config = gpu.config_of(SIZES[size], device, micro, **more)
    model = ModelConfig.of(config, config.vocab_size or 0)
    layout = Layout.of(config, count // shared, "cuda")
    kind = torch.cuda.get_device_name().lower() if device == "cuda" else "h100"
    known = next((one for key, one in GPUS.items() if key.partition("-")[0] in kind), GPUS["h100"])
    cluster = replace(known, gpus_per_node=count)
    seconds = time_of(model, layout, cluster).total
    row |= {"expected_seconds": seconds, "expected_mfu": mfu_of(model, layout, cluster, seconds)}
    if torch.distributed.get_rank() == 0:
        Path(out).write_text(json.dumps(row))
    torch.distributed.barrier()


if __name__ == "__main__":
    rank(sys.argv[1], int(sys.argv[2]), sys.argv[3])

"""Training in one process: tokens/s, MFU, peak memory and data wait by size of the model.

    python benchmarks/train.py                    # what this machine has; rows are appended
    python benchmarks/train.py --sizes tiny 124M --steps 10 --no-rows

On the CPU a plain torch loop with the same shape takes turns with the trainer, in processor time,
since others use the machine. On a GPU there is no such peer. Sizes that a CPU cannot do in
reasonable time, and all GPU rows where there is no GPU, say "not measured".
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from common import append_rows, machine, print_table, versions
from torch import Tensor, nn
from torch.nn import functional

from tokpack import MMapIndexedDatasetBuilder
from tokpack.configuration.config import Config
from tokpack.configuration.model import ModelConfig
from tokpack.trainer import parallel
from tokpack.trainer.data import open_data, stream
from tokpack.trainer.engine import make_engine
from tokpack.trainer.metrics import StepMeter, peak_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokpack.trainer.engine import Engine

WARM_UP = 3
# Layers, hidden size, heads, vocabulary, sequence, micro batch on a GPU, and on a CPU (0: none).
SIZES: dict[str, tuple[int, int, int, int, int, int, int]] = {
    "tiny": (4, 256, 4, 8192, 256, 64, 2),
    "124M": (12, 768, 12, 50257, 1024, 32, 1),
    "345M": (24, 1024, 16, 50257, 1024, 24, 0),
    "1.3B": (24, 2048, 16, 50257, 2048, 8, 0),
}


class Plain(nn.Module):
    """GPT-2 as people write it: what the trainer must not be slower than."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        size, self.heads = config.hidden_size, config.num_attention_heads
        self.word, self.place = (
            nn.Embedding(config.vocab_size or 0, size),
            nn.Embedding(config.seq_length, size),
        )
        self.layers = nn.ModuleList(_plain_layer(size) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(size)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        x = self.word(batch["tokens"]) + self.place(batch["position_ids"])
        for layer in self.layers:
            qkv = layer["qkv"](layer["norm1"](x)).chunk(3, -1)
            q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in qkv)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer["out"](y.transpose(1, 2).flatten(2))
            y = functional.gelu(layer["up"](layer["norm2"](x)), approximate="tanh")
            x = x + layer["down"](y)
        logits = functional.linear(self.norm(x), self.word.weight).flatten(0, 1)
        losses = functional.cross_entropy(logits, batch["labels"].flatten(), reduction="none")
        mask = batch["loss_mask"].flatten()
        return (losses * mask).sum() / mask.sum()


def _plain_layer(size: int) -> nn.ModuleDict:
    shapes = {"qkv": (size, 3 * size), "out": (size, size)}
    shapes |= {"up": (size, 4 * size), "down": (4 * size, size)}
    layers: dict[str, nn.Module] = {name: nn.Linear(*shape) for name, shape in shapes.items()}
    return nn.ModuleDict({**layers, "norm1": nn.LayerNorm(size), "norm2": nn.LayerNorm(size)})


def plain_step(config: Config) -> Callable[[list[dict[str, Tensor]]], None]:
    """A step of the plain loop over micro batches."""
    model = Plain(config)
    optimizer = torch.optim.AdamW(model.parameters(), config.lr, fused=True)

    def step(batches: list[dict[str, Tensor]]) -> None:
        optimizer.zero_grad()
        for batch in batches:
            (model(batch) / len(batches)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip_grad)
        optimizer.step()

    return step


def ratio(engine: Engine, config: Config, batches: list[dict[str, Tensor]], runs: int) -> float:
    """Processor time of the plain loop by that of the trainer: least of ``runs`` turns each."""
    plain = plain_step(config)
    steps = (lambda: plain(batches), lambda: engine.train_batch(batches, config.lr))
    least = [float("inf")] * 2
    for turn in range(runs + 1):
        for i, step in enumerate(steps):
            begin = time.process_time()
            step()
            least[i] = min(least[i], time.process_time() - begin if turn else float("inf"))
    return least[0] / least[1]


def measure(size: str, device: str, folder: str, steps: int) -> dict[str, Any]:
    """One row: a fresh process trains ``steps`` steps behind a warm-up."""
    layers, hidden, heads, vocabulary, length, on_gpu, on_cpu = SIZES[size]
    micro = on_gpu if device == "cuda" else on_cpu
    config = Config(
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        seq_length=length,
        micro_batch_size=micro,
        global_batch_size=2 * micro,
        train_iters=steps + WARM_UP,
        data_path=(_data(Path(folder), 2 * micro * (steps + WARM_UP + 1) * length, vocabulary),),
        split="1,0,0",
        eval_iters=0,
        vocab_size=vocabulary,
        device=device,
    )
    topology = parallel.start(config)
    model = ModelConfig.of(config, vocabulary)
    engine, data = make_engine(config, model, topology), open_data(config, micro)
    batches = iter(stream(data, data.train, config, topology))
    meter = StepMeter(model.flops_per_token, length, topology)
    for step in range(WARM_UP + steps):
        begin = time.perf_counter()
        batch = list(islice(batches, 2))
        meter.waited += time.perf_counter() - begin
        meter.add(engine.train_batch(batch, config.lr), 2 * micro, config.lr)
        if step == WARM_UP - 1:
            meter.read()
            meter.restart()
    found = meter.read()
    row = {
        name: found[name] for name in ("tokens_per_second", "tflops_per_gpu", "mfu", "data_wait")
    }
    row["peak_memory"] = peak_memory(topology.device)
    row["plain_ratio"] = ratio(engine, config, batch, 4) if device == "cpu" else None
    row |= {"micro_batch": micro, "sequence": length, "parameters": model.parameters}
    row["device"] = torch.cuda.get_device_name() if device == "cuda" else machine()["cpu"]
    return row


def _data(folder: Path, tokens: int, vocabulary: int) -> str:
    prefix = folder / "random"
    ids = np.random.default_rng(0).integers(0, vocabulary, tokens + 1).astype(np.uint16)
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    builder.add_item(ids)
    builder.end_document()
    builder.finalize(f"{prefix}.idx")
    return str(prefix)


def main() -> None:
    """Measure each size on each kind of device that is here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--steps", type=int, default=10, help="steps that are timed")
    parser.add_argument("--no-rows", action="store_true", help="print only, append no rows")
    args = parser.parse_args()
    rows = []
    for device in ("cuda", "cpu"):
        for size in args.sizes:
            row: dict[str, Any] = {"benchmark": "train", "size": size, "kind": device}
            if torch.cuda.is_available() if device == "cuda" else SIZES[size][-1]:
                with (
                    tempfile.TemporaryDirectory() as folder,
                    mp.get_context("spawn").Pool(1) as pool,
                ):
                    row |= pool.apply(measure, (size, device, folder, args.steps))
                rows.append(row)
            else:
                row["device"] = "not measured"
            _show(row)
    if rows and not args.no_rows:
        append_rows("train", rows, versions("torch"))


def _show(row: dict[str, Any]) -> None:
    names = ("size", "kind", "device", "tokens_per_second", "tflops_per_gpu", "mfu", "data_wait")
    names += ("peak_memory", "plain_ratio")
    print_table(names, [["-" if row.get(name) is None else row[name] for name in names]])


if __name__ == "__main__":
    main()

"""Steps on random tokens, as ``gpu.py`` and ``gpu_layouts.py`` make them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tokpack.configuration.config import Config
from tokpack.configuration.model import ModelConfig
from tokpack.trainer import parallel
from tokpack.trainer.engine import make_engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from tokpack.trainer.engine import Engine


def config_of(size: tuple[int, ...], device: str, micro: int, **more: Any) -> Config:
    """A run of two micro batches a step."""
    layers, hidden, heads, vocabulary_size, length = size
    settings = {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "vocab_size": vocabulary_size,
        "seq_length": length,
        "micro_batch_size": micro,
        "global_batch_size": 2 * micro,
        "device": device,
    }
    return Config(**{**settings, "precision": "bf16", **more})


def open_engine(config: Config) -> Engine:
    """An engine, and with others in other processes where the environment names them."""
    model = ModelConfig.of(config, config.vocab_size or 0)
    return make_engine(config, model, parallel.start(config))


def batches(config: Config, step: int, documents: bool = False) -> list[dict[str, Tensor]]:
    """The micro batches of a step: random tokens, of three documents in a sample if asked."""
    draw = torch.Generator().manual_seed(step)
    found, length = [], config.seq_length
    for _ in range(config.global_batch_size // config.micro_batch_size):
        shape = (config.micro_batch_size, length + 1)
        ids = torch.randint(config.vocab_size or 0, shape, generator=draw)
        batch = {"tokens": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}
        batch["loss_mask"] = torch.ones(batch["tokens"].shape)
        if documents:
            edges = torch.full(shape, length, dtype=torch.int32)
            edges[:, :3] = torch.tensor([0, length // 3, length // 2])
            batch["cu_seqlens"] = edges
        if config.device == "cuda":
            batch = {name: x.pin_memory() for name, x in batch.items()}
        found.append(batch)
    return found


def waits(step: Callable[[], object], device: str) -> str:
    """Where a step waits for the device, of which torch makes an error; "never"."""
    if device != "cuda":
        return "never"
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "never"


def furthest(found: list[float], exact: list[float]) -> float:
    """The largest relative difference."""
    return max(abs(a - b) / b for a, b in zip(found, exact, strict=True))

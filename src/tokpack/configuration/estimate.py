"""What a run would need of GPUs that nobody has to have: memory and time. No torch here."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from tokpack.errors import TokpackError, UsageError, worded
from tokpack.indexed.manifest import Manifest
from tokpack.tokenizers.ids import count_ids

from .cost import Layout, Memory, StepTime, memory_of, mfu_of, time_of
from .deepspeed_json import make_settings
from .flags import resolve
from .model import ModelConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .config import Config
    from .hardware import Cluster

USUAL_VOCABULARY = 50257  # GPT-2's


@dataclass(frozen=True)
class Estimate:
    """Memory of the fullest GPU and time of a step; ``notes`` say what was assumed."""

    model: ModelConfig
    cluster: Cluster
    layout: Layout
    memory: Memory
    time: StepTime
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether each GPU has enough memory."""
        return self.memory.total <= self.cluster.gpu_memory * 1e9

    @property
    def tokens_per_step(self) -> int:
        return self.layout.batch * self.model.seq_length

    @property
    def mfu(self) -> float:
        return mfu_of(self.model, self.layout, self.cluster, self.time.total)

    def to_json(self) -> dict[str, Any]:
        """All numbers: bytes and seconds."""
        layout = asdict(self.layout)
        for name in ("interleaved", "scores", "scattered"):
            del layout[name]
        return {
            "estimated": True,
            "notes": list(self.notes),
            "gpus": asdict(self.cluster),
            "model": {**asdict(self.model), "parameters": self.model.parameters},
            "tokens_per_step": self.tokens_per_step,
            "layout": layout,
            "fits": self.fits,
            "memory_bytes": {**asdict(self.memory), "total": self.memory.total},
            "seconds": {**asdict(self.time), "total": self.time.total},
            "mfu": self.mfu,
        }


def estimate_run(argv: Sequence[str], cluster: Cluster) -> Estimate:
    """What the run that flags and files ask for needs of these GPUs, one process on each.

    UsageError where so many processes cannot share it, or where the trainer refuses it.
    """
    config, nproc = resolve(argv, cluster.world_size)
    if nproc is not None:
        raise UsageError("--nproc starts processes: with --plan, say --nodes and --gpus-per-node")
    ranks = config.tensor_model_parallel_size * config.pipeline_model_parallel_size
    layout = Layout.of(config, cluster.world_size // ranks, "cuda")
    notes: list[str] = []
    if config.engine == "deepspeed":
        settings, notes = make_settings(config, "cuda")
        layout = replace(layout, zero=settings["zero_optimization"]["stage"])
    size = _vocabulary(config)
    model = ModelConfig.of(config, size or USUAL_VOCABULARY)
    memory, time = memory_of(model, layout), time_of(model, layout, cluster)
    return Estimate(
        model,
        cluster,
        layout,
        memory,
        time,
        (*(worded(note, config.flags) for note in notes), *_notes(config, size)),
    )


def _notes(config: Config, vocabulary: int | None) -> Iterator[str]:
    """What was assumed that the flags do not say, or say otherwise."""
    if vocabulary is None:
        yield f"a vocabulary of {USUAL_VOCABULARY:,} is assumed: give --vocab-size"
    if config.precision_on("cuda") == "fp32":
        yield "times are those of bf16: products in fp32 take several times as long"
    if config.pipeline_split is not None:
        yield "stages are counted as equal, which those of --pipeline-split are not"
    if config.optimizer != "adam":
        yield f"the optimizer is counted as adam: {config.optimizer} keeps and sends other amounts"


def _vocabulary(config: Config) -> int | None:
    """The number of ids; None where nothing says it."""
    if config.vocab_size:
        return config.vocab_size
    if config.vocab_file and os.path.exists(config.vocab_file):
        return count_ids(config.vocab_file)
    for word in (*config.data_path, *config.train_data_path):
        try:
            size = Manifest.load(word).tokenizer.get("vocab_size")
        except TokpackError:
            continue
        if isinstance(size, int):
            return size
    return None

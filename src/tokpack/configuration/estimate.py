"""What a run would need of GPUs that nobody has to have: memory and time. No torch here."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from tokpack.configuration.cost import (
    Layout,
    Memory,
    StepTime,
    data_bytes,
    memory_of,
    mfu_of,
    time_of,
)
from tokpack.configuration.data import vocabulary_of
from tokpack.configuration.deepspeed_json import make_settings
from tokpack.configuration.model import ModelConfig
from tokpack.errors import TokpackError, option
from tokpack.indexed.manifest import Manifest
from tokpack.quantities import count_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.configuration.config import Config
    from tokpack.configuration.hardware import Cluster

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


def estimate_run(config: Config, cluster: Cluster) -> Estimate:
    """What a run needs of these GPUs, one process on each. UsageError where it cannot run so."""
    ranks = config.tensor_model_parallel_size * config.pipeline_model_parallel_size
    layout = Layout.of(config, cluster.world_size // ranks, "cuda")
    notes: list[str] = []
    if config.engine == "deepspeed":
        settings, notes = make_settings(config, "cuda")
        layout = replace(layout, zero=settings["zero_optimization"]["stage"])
    size = vocabulary_of(config, _size_of_data(config))
    model = ModelConfig.of(config, size or USUAL_VOCABULARY)
    memory, time = memory_of(model, layout), time_of(model, layout, cluster)
    return Estimate(model, cluster, layout, memory, time, (*notes, *_notes(config, size)))


def _notes(config: Config, vocabulary: int | None) -> Iterator[str]:
    """What was assumed that the flags do not say, or say otherwise."""
    if vocabulary is None:
        yield (f"a vocabulary of {USUAL_VOCABULARY:,} is assumed: give {option('vocab_size')}")
    if config.precision_on("cuda") == "fp32":
        yield "times are those of bf16: products in fp32 take several times as long"
    if config.fp8:
        yield "times are those of bf16: products in fp8 take up to half as long"
    if config.pipeline_split is not None:
        yield f"stages are counted as equal, which those of {option('pipeline_split')} are not"
    if config.optimizer != "adam":
        yield f"the optimizer is counted as adam: {config.optimizer} keeps and sends other amounts"


def _size_of_data(config: Config) -> int | None:
    """The vocabulary that a manifest names; None where there is none."""
    for word in (*config.data_path, *config.train_data_path):
        with suppress(TokpackError):
            size = Manifest.load(word).tokenizer.get("vocab_size")
            if isinstance(size, int):
                return size
    return None


def run_lines(
    config: Config, model: ModelConfig, layout: Layout, device: str = "cuda"
) -> Iterator[str]:
    """The numbers of a run that follow from its configuration."""
    tensor, pipeline, data = layout.tensor, layout.pipeline, layout.data
    yield (
        f"model: {model.parameters:,} parameters, {model.num_layers} layers of "
        f"{model.hidden_size}, vocabulary {model.vocab_size:,} padded to "
        f"{model.padded_vocab_size(tensor):,}, {count_text(model.flops_per_token)} FLOPs a token"
    )
    recomputed = ", activations recomputed" if layout.group else ""
    yield (
        f"processes: {tensor * pipeline * data} = tensor {tensor} x pipeline {pipeline} x data "
        f"{data}, on {device}, engine {config.engine}, ZeRO {layout.zero}{recomputed}"
    )
    if data > 1 and config.engine == "torch" and config.optimizer == "adam":
        yield f"data ranks: each sends {data_bytes(model, layout) / 1e9:.3g} GB a step"
    batch, length = config.global_batch_size, config.seq_length
    start = config.rampup_batch_size[0] if config.rampup_batch_size else batch
    yield (
        f"step: {batch:,} samples of {length:,} = {batch * length:,} tokens: micro batch "
        f"{layout.micro} x {data} ranks x {layout.micro_batches}"
        + (f", from {start} samples on" if start < batch else "")
    )

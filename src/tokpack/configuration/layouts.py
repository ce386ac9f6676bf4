"""Which layouts of a run fit on GPUs, and what each would take, best first. No torch here."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from tokpack.errors import TokpackError, UsageError
from tokpack.indexed.manifest import Manifest
from tokpack.tokenizers.ids import count_ids

from .cost import Layout, Memory, Time, memory_of, mfu_of, time_of
from .flags import UNSPLIT, resolve
from .model import ModelConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .config import Config
    from .hardware import Cluster

USUAL_VOCABULARY = 50257  # GPT-2's
_MICRO = 128  # the largest that is tried


@dataclass(frozen=True)
class Estimate:
    """A layout, and the memory and time that the formulas give for it."""

    layout: Layout
    memory: Memory
    time: Time
    mfu: float
    fits: bool
    asked: bool  # the flags ask for just this one
    switched: bool = False  # it is of the engine that the flags do not ask for

    def flags(self) -> str:
        """The flags of ``tokpack train`` that make it."""
        one = self.layout
        words = [
            f"--tensor-model-parallel-size {one.tensor}",
            f"--pipeline-model-parallel-size {one.pipeline}",
            f"--micro-batch-size {one.micro} --global-batch-size {one.batch}",
        ]
        if one.sequence:
            words.append("--sequence-parallel")
        if one.group:
            words.append(f"--checkpoint-activations --checkpoint-num-layers {one.group}")
        if one.deepspeed or self.switched:
            words.append(f"--engine {'deepspeed' if one.deepspeed else 'torch'}")
        if one.zero:
            words.append(f"--zero-stage {one.zero}")
        return " ".join(words)

    def to_json(self) -> dict[str, Any]:
        """All numbers: bytes and seconds."""
        own = asdict(self.layout)
        for name in ("interleaved", "scores", "scattered"):
            del own[name]
        memory = {**asdict(self.memory), "total": self.memory.total}
        time = {**asdict(self.time), "total": self.time.total}
        said = {"fits": self.fits, "asked": self.asked, "flags": self.flags()}
        return {**own, **said, "memory_bytes": memory, "seconds": time, "mfu": self.mfu}


@dataclass(frozen=True)
class LayoutPlan:
    """The ``estimates`` of a model on a cluster; ``notes`` say what was assumed."""

    model: ModelConfig
    cluster: Cluster
    estimates: list[Estimate]
    notes: list[str]


def plan_of(argv: Sequence[str], cluster: Cluster) -> LayoutPlan:
    """The layouts of the run that flags and files ask for: those that fit, the fastest first.

    Behind them are those that do not fit, the smallest first. UsageError where nothing can be
    shared among so many GPUs.
    """
    config, notes = _resolved(argv, cluster)
    asked = None if notes else _asked(config, cluster)
    size, note = _vocabulary(config)
    notes += [note] if note else []
    if config.precision_on("cuda") == "fp32":
        notes.append("times are those of bf16: products in fp32 take several times as long")
    model = ModelConfig.of(config, size)
    found = [
        replace(
            _estimate(model, one, cluster, asked),
            switched=one.deepspeed != (config.engine == "deepspeed"),
        )
        for one in _layouts(config, cluster)
    ]
    if not found:
        raise UsageError(
            f"global_batch_size {config.global_batch_size}, {config.num_layers} layers and "
            f"{config.num_attention_heads} heads cannot be shared among {cluster.world_size} GPUs"
        )
    found.sort(key=_rank)
    return LayoutPlan(model, cluster, found, notes)


def _rank(one: Estimate) -> tuple[Any, ...]:
    """Those that fit first, by time; of equals the one that needs least."""
    measure = one.time.total if one.fits else one.memory.total
    return not one.fits, round(measure, 6), one.layout.zero, one.memory.total


def _resolved(argv: Sequence[str], cluster: Cluster) -> tuple[Config, list[str]]:
    """The configuration, and a note where its own layout does not fit so many GPUs."""
    try:
        config, nproc = resolve(argv, cluster.world_size)
        notes: list[str] = []
    except UsageError as error:
        try:
            config, nproc = resolve([*argv, *UNSPLIT])
        except UsageError:
            raise error from None
        notes = [f"the layout of the flags is none of these GPUs: {error}"]
    if nproc is not None:
        raise UsageError("nproc starts processes: with --plan, say --nodes and --gpus-per-node")
    return config, notes


def _vocabulary(config: Config) -> tuple[int, str]:
    """The number of ids, and what was assumed if nothing says it."""
    if config.vocab_size:
        return config.vocab_size, ""
    if config.vocab_file and os.path.exists(config.vocab_file):
        return count_ids(config.vocab_file), ""
    for word in (*config.data_path, *config.train_data_path):
        try:
            size = Manifest.load(word).tokenizer.get("vocab_size")
        except TokpackError:
            continue
        if isinstance(size, int):
            return size, ""
    return USUAL_VOCABULARY, f"a vocabulary of {USUAL_VOCABULARY:,} is assumed: give --vocab-size"


def _layouts(config: Config, cluster: Cluster) -> Iterator[Layout]:
    """All layouts that the trainer can use on these GPUs; tensor ranks share a node."""
    world, batch = cluster.world_size, config.global_batch_size
    asked = _asked(config, cluster)
    groups = {0, config.checkpoint_num_layers}
    tensors = _divisors(cluster.gpus_per_node)
    micros = [n for n in range(1, _MICRO + 1) if batch % n == 0]
    for tensor, pipeline in product(tensors, _divisors(config.num_layers)):
        if world % (tensor * pipeline):
            continue
        data = world // (tensor * pipeline)
        zeros = {(zero, False) for zero in ((0, 1, 2, 3) if data > 1 else (0,))}
        zeros.add((asked.zero, asked.deepspeed))
        for micro, group, zero in product(micros, groups, zeros):
            if batch % (micro * data) == 0:
                one = Layout(tensor, pipeline, data, micro, batch, group, *zero)
                one = replace(one, half=asked.half, sequence=asked.sequence)
                if _is_possible(config, one):
                    yield one


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _is_possible(config: Config, layout: Layout) -> bool:
    """Whether the trainer accepts a layout."""
    if layout.deepspeed and layout.pipeline > 1 and layout.zero > 1:
        return False
    try:
        replace(
            config,
            tensor_model_parallel_size=layout.tensor,
            pipeline_model_parallel_size=layout.pipeline,
            pipeline_split=None,
            micro_batch_size=layout.micro,
            rampup_batch_size=None,
            checkpoint_activations=layout.group > 0,
            checkpoint_num_layers=layout.group or 1,
            zero_stage=layout.zero,
            engine="deepspeed" if layout.deepspeed else "torch",
        )
    except UsageError:
        return False
    return True


def _asked(config: Config, cluster: Cluster) -> Layout:
    ranks = config.tensor_model_parallel_size * config.pipeline_model_parallel_size
    return Layout.of(config, cluster.world_size // ranks, "cuda")


def _estimate(
    model: ModelConfig, layout: Layout, cluster: Cluster, asked: Layout | None
) -> Estimate:
    memory, time = memory_of(model, layout), time_of(model, layout, cluster)
    mfu = mfu_of(model, layout, cluster, time.total)
    fits = memory.total <= cluster.gpu_memory * 1e9
    return Estimate(layout, memory, time, mfu, fits, layout == asked)

"""An estimate of the memory of a GPU and the time of a step that a run needs, by formulas.

docs/train-plan.md has the formulas, and how far their results are from published runs. No torch
here.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from tokpack.errors import option
from tokpack.quantities import count_text

from .data import size_of_data, vocabulary_of
from .flags import make_settings
from .model import VOCABULARY, ModelConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .config import Config
    from .hardware import Cluster


MOMENTS = 8  # bytes that AdamW keeps for a parameter
RUNTIME = 2e9  # bytes of the CUDA context, NCCL's buffers and the like
FRAGMENTS = 1.05  # memory that the allocator holds, divided by what is in use
LOGITS = 8192  # positions whose logits exist at a time, as in the head's loss
ATTENTION = 0.4  # share of the peak that attention reaches; large products reach ``efficiency``
SCORES = 14  # bytes read and written for each score of attention that is kept in memory


@dataclass(frozen=True)
class Layout:
    """How processes share a step, and which activations are kept.

    ``tensor``, ``pipeline`` and ``data`` are the sizes of those kinds of parallelism. A step has
    ``batch`` samples, one pass ``micro`` samples. ``group`` blocks are recomputed together, 0 means
    none. ``zero`` is the stage of ZeRO, ``half`` means bf16 or fp16; with ``sequence`` tensor ranks
    share the activations between layers. The last three are only for comparisons with runs of other
    programs: each stage has ``interleaved`` parts; the ``scores`` of attention are kept in memory;
    tensors sent to other stages are ``scattered`` over tensor ranks.
    """

    tensor: int
    pipeline: int
    data: int
    micro: int
    batch: int
    group: int = 0
    zero: int = 0
    deepspeed: bool = False
    half: bool = True
    sequence: bool = False
    interleaved: int = 1
    scores: bool = False
    scattered: bool = False

    @classmethod
    def of(cls, config: Config, data: int, device_type: str) -> Layout:
        """The layout of a run with ``data`` data parallel processes."""
        return cls(
            config.tensor_model_parallel_size,
            config.pipeline_model_parallel_size,
            data,
            config.micro_batch_size,
            config.global_batch_size,
            config.recomputed_together,
            config.zero_stage,
            config.engine == "deepspeed",
            config.precision_on(device_type) != "fp32",
            config.sequence_parallel and config.engine == "torch",
        )

    @property
    def micro_batches(self) -> int:
        """The number of micro batches of a data rank in a step."""
        return self.batch // (self.micro * self.data)


@dataclass(frozen=True)
class Memory:
    """The bytes on the GPU that needs the most memory."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    runtime: float = RUNTIME

    @property
    def states(self) -> float:
        """The bytes in use during the whole step."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        return FRAGMENTS * (self.states + self.activations + self.logits) + self.runtime


@dataclass(frozen=True)
class StepTime:
    """The seconds of a step, by cause."""

    compute: float  # with recomputation
    tensor: float  # sums over tensor ranks
    pipeline: float  # waiting for other stages, and sending to them
    data: float  # sums of gradients over data ranks
    optimizer: float

    @property
    def total(self) -> float:
        return self.compute + self.tensor + self.pipeline + self.data + self.optimizer


def memory_of(model: ModelConfig, layout: Layout) -> Memory:
    """The memory that each GPU of the fullest stage needs."""
    stages = {0, layout.pipeline - 1}
    return max((_stage_memory(model, layout, stage) for stage in stages), key=lambda m: m.total)


def _stage_memory(model: ModelConfig, layout: Layout, stage: int) -> Memory:
    size = 2 if layout.half else 4  # bytes of an activation
    tokens = layout.micro * model.seq_length
    layers = model.num_layers / layout.pipeline
    inside = _kept(model, layout) * tokens * size / 2
    edge = size * tokens * model.hidden_size / (layout.tensor if layout.sequence else 1)
    if layout.group:
        kept = edge * layers / layout.group
        working = inside * min(layout.group, layers)
    else:
        kept, working = inside * layers, 0.0
    under_way = min(layout.pipeline - stage, layout.micro_batches)
    logits = 0.0
    if stage == layout.pipeline - 1:
        rows = model.padded_vocab_size(layout.tensor) / layout.tensor
        # Logits in fp32, and twice in the type of the products; the head's copy and its gradient.
        logits = rows * (min(LOGITS, tokens) * (4 + 2 * size) + (4 + size) * model.hidden_size)
    return Memory(*states_of(model, layout, stage), kept * under_way + working + 2 * edge, logits)


def states_of(model: ModelConfig, layout: Layout, stage: int) -> tuple[float, float, float]:
    """The bytes of weights, of gradients, and of optimizer state: moments and fp32 weights."""
    matrices, rest = _stage_parameters(model, layout, stage)
    count = matrices + rest
    first, second, third = (layout.data if layout.zero >= least else 1 for least in (1, 2, 3))
    if layout.deepspeed:
        size, master = (2, 4) if layout.half else (4, 0)
        return size * count / third, size * count / second, (master + MOMENTS) * count / first
    blocks = 3 * matrices * layout.pipeline / model.num_layers  # of three blocks at a time
    gradients = 4 * count
    if second > 1:  # and whole gradients that are not summed yet
        gradients = 4 * (count / second + max(blocks, rest))
    copies = blocks if third > 1 else matrices  # weights as products read them
    gathered = (2 if layout.half else 4) * copies + (4 * rest if first > 1 else 0)
    if not layout.half and layout.data == 1:  # products read the fp32 weights themselves
        gathered = 0
    return 4 * count / first + gathered, gradients, MOMENTS * count / first


def data_bytes(model: ModelConfig, layout: Layout, stage: int = 0) -> float:
    """The bytes that each rank of a stage sends to other data ranks in a step, with ring
    collectives.
    """
    matrices, rest = _stage_parameters(model, layout, stage)
    count, size = matrices + rest, 2 if layout.half else 4
    if layout.deepspeed:
        around = (3 if layout.zero == 3 else 2) * size * count  # 3: weights for both passes
    elif not layout.zero:
        around = 2 * 4 * count
    else:
        sums = layout.micro_batches if layout.zero > 1 else 1
        times = 2 * sums if layout.zero == 3 else 1  # for both passes, or once after the step
        around = sums * 4 * count + times * size * matrices + 4 * rest
    return around * (layout.data - 1) / layout.data


def _stage_parameters(model: ModelConfig, layout: Layout, stage: int) -> tuple[float, float]:
    """The parameters of a stage on one tensor rank: in the blocks' matrices; and all others, with
    padding.
    """
    first, last = stage == 0, stage == layout.pipeline - 1
    matrices = count = 0.0
    for name, one in replace(model, num_layers=1).layout.items():
        size = math.prod(one.shape) / (1 if one.split is None else layout.tensor)
        if name in VOCABULARY:
            size *= model.padded_vocab_size(layout.tensor) / model.vocab_size
        if name.startswith("blocks.") and len(one.shape) == 2:
            matrices += size * model.num_layers / layout.pipeline
        elif name.startswith("blocks."):
            count += size * model.num_layers / layout.pipeline
        elif name.startswith("embedding."):
            tied = name in VOCABULARY and not model.untie_embeddings_and_output_weights
            count += size * (first or (last and tied))
        else:
            count += size * last
    return matrices, count


def _kept(model: ModelConfig, layout: Layout) -> float:
    """The bytes of activations that a block keeps per token, in half precision."""
    width, heads = model.hidden_size, model.num_attention_heads
    values = 2 * model.num_query_groups * model.head_width
    # The MLP keeps the input of its activation function, and the output.
    inner = (3 if model.activation == "swiglu" else 2) * model.ffn_hidden_size
    split = 2 * (2 * model.attention_width + values + inner)  # queries, their result; keys, values
    whole = 8 * width  # the inputs of both norms, and of the linear layers after them
    if model.hidden_dropout:
        whole += 2 * width
    if layout.scores:
        split += 5 * heads * model.seq_length
    return whole / (layout.tensor if layout.sequence else 1) + split / layout.tensor


def time_of(model: ModelConfig, layout: Layout, cluster: Cluster) -> StepTime:
    """The seconds of a step."""
    tokens, count = layout.micro * model.seq_length, layout.micro_batches
    size = 2 if layout.half else 4
    layers, stages = model.num_layers / layout.pipeline, layout.pipeline
    passes = 4 if layout.group else 3  # forward, twice as much backward, recomputation
    block = _block_seconds(model, layout, cluster) * passes
    rows = model.padded_vocab_size(layout.tensor) / layout.tensor
    head = 3 * _product(cluster, tokens, model.hidden_size, rows, size)
    # A block has two sums in its forward pass, two in its backward pass, two in recomputation.
    sums = 2 * layers * (passes - 1) + 2
    edge = size * tokens * model.hidden_size
    ring = 2 * (layout.tensor - 1) / layout.tensor * edge
    tensor = cluster.seconds(sums * ring, _link(cluster, layout.tensor, 1))
    stage = layers * block
    sent = 0.0
    if stages > 1:
        near = layout.tensor * layout.data * stages <= cluster.gpus_per_node
        port = cluster.network_bandwidth / cluster.gpus_per_node
        sent = cluster.seconds(2 * edge, cluster.link_bandwidth if near else port)
        sent /= layout.tensor if layout.scattered else 1
    compute = count * (stage + head)
    # A stage waits while the other stages fill and empty the pipeline, and for each transfer.
    bubble = (stages - 1) * (stage + tensor) / layout.interleaved
    waits = (count + stages - 1) * sent * layout.interleaved
    data = cluster.seconds(data_bytes(model, layout), _link(cluster, layout.data, layout.tensor))
    held = sum(_stage_parameters(model, layout, 0)) / (layout.data if layout.zero else 1)
    optimizer = cluster.seconds(36 * held)
    return StepTime(compute, count * tensor, bubble + waits, data, optimizer)


def _block_seconds(model: ModelConfig, layout: Layout, cluster: Cluster) -> float:
    """The seconds of a block's forward pass over a micro batch."""
    tokens, t, size = layout.micro * model.seq_length, layout.tensor, 2 if layout.half else 4
    width, wide, heads = model.hidden_size, model.ffn_hidden_size, model.attention_width
    rows = (model.num_attention_heads + 2 * model.num_query_groups) * model.head_width
    up = wide * (2 if model.activation == "swiglu" else 1)
    products = ((width, rows / t), (heads / t, width), (width, up / t), (wide / t, width))
    seconds = sum(_product(cluster, tokens, k, n, size) for k, n in products)
    flops = 4 * tokens * model.seq_length * heads / t
    bytes_ = tokens * size * (10 * width + (up + wide + 4 * heads) / t)
    if layout.scores:
        bytes_ += SCORES * tokens * model.seq_length * model.num_attention_heads / t
        seconds += flops / (cluster.peak * cluster.efficiency)
    else:  # half of causal attention is computed
        seconds += flops / 2 / (cluster.peak * ATTENTION)
    return seconds + cluster.seconds(bytes_)


def _product(cluster: Cluster, m: float, k: float, n: float, size: int) -> float:
    """The seconds of a product of [m, k] and [k, n]: for its FLOPs, and for reading and writing."""
    moved = size * (m * k + k * n + m * n)
    return 2 * m * k * n / (cluster.peak * cluster.efficiency) + cluster.seconds(moved)


def _link(cluster: Cluster, ranks: int, inside: int) -> float:
    """The GB/s around a ring of ``ranks``, each ``inside`` GPUs away from the next."""
    if ranks * inside <= cluster.gpus_per_node:
        return cluster.link_bandwidth
    # Rings share the network of a node: as many as there are GPUs between neighbours in a ring.
    rings = min(inside, cluster.gpus_per_node)
    return min(cluster.link_bandwidth, cluster.network_bandwidth / rings)


def mfu_of(model: ModelConfig, layout: Layout, cluster: Cluster, seconds: float) -> float:
    """Model FLOPs utilisation: the share of the peak that a step reaches, without counting
    recomputation.
    """
    flops = model.flops_per_token * layout.batch * model.seq_length
    return flops / (seconds * cluster.peak * cluster.world_size)


USUAL_VOCABULARY = 50257  # GPT-2's


@dataclass(frozen=True)
class Estimate:
    """The memory of the fullest GPU and the time of a step; ``notes`` name the assumptions."""

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
    """The needs of a run on these GPUs, with one process on each. UsageError if it cannot run
    so.
    """
    ranks = config.tensor_model_parallel_size * config.pipeline_model_parallel_size
    layout = Layout.of(config, cluster.world_size // ranks, "cuda")
    notes: list[str] = []
    if config.engine == "deepspeed":
        settings, notes = make_settings(config, "cuda")
        layout = replace(layout, zero=settings["zero_optimization"]["stage"])
    size = vocabulary_of(config, size_of_data(config))
    model = ModelConfig.of(config, size or USUAL_VOCABULARY)
    memory, time = memory_of(model, layout), time_of(model, layout, cluster)
    return Estimate(model, cluster, layout, memory, time, (*notes, *_notes(config, size)))


def _notes(config: Config, vocabulary: int | None) -> Iterator[str]:
    """What the estimate assumes: values that are not given, and what the formulas leave out."""
    if vocabulary is None:
        yield f"assuming a vocabulary of {USUAL_VOCABULARY:,}: set {option('vocab_size')}"
    if config.precision_on("cuda") == "fp32":
        yield "times are those of bf16: products in fp32 take several times as long"
    if config.fp8:
        yield "times are those of bf16: products in fp8 take up to half as long"
    if config.pipeline_split is not None:
        yield f"stages are counted as equal, which those of {option('pipeline_split')} are not"
    if config.optimizer != "adam":
        yield f"the optimizer is counted as adam: {config.optimizer} keeps and sends other amounts"


def run_lines(
    config: Config, model: ModelConfig, layout: Layout, device: str = "cuda"
) -> Iterator[str]:
    """The numbers of a run that follow from its configuration."""
    tensor, pipeline, data = layout.tensor, layout.pipeline, layout.data
    yield (
        f"model: {model.parameters:,} parameters, {model.num_layers} layers of "
        f"{model.hidden_size}, vocabulary {model.vocab_size:,} padded to "
        f"{model.padded_vocab_size(tensor):,}, {count_text(model.flops_per_token)} FLOPs per token"
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

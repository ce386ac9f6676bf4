"""The decoder of all supported models, cut into pipeline stages. Parameters have global names."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend

from .blocks import (
    DecoderLayer,
    block_seeds,
    document_mask,
    dropout,
    fastest_kernel,
    norm_of,
    random_seed,
    recomputed,
    reseed,
    rotary_of,
)
from .config.model import VOCABULARY, ModelConfig
from .parallel import Topology, gather_whole, own_part
from .tensor import HeadLoss, VocabWeight, enter, sequence_part, softmax

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from .config.config import Config

# tokens, labels and position_ids int64 [B, S], loss_mask float32 [B, S], and, for attention inside
# documents, cu_seqlens int32 [B, S + 1]; a weight float32 [] of the micro batch, if not 1.
Batch = dict[str, Tensor]


def stage_layers(config: Config, topology: Topology) -> range:
    """The blocks of this pipeline stage."""
    size, rank = topology.pipeline_size, topology.pipeline_rank
    split = config.pipeline_split or (config.num_layers // size,) * size
    return range(sum(split[:rank]), sum(split[: rank + 1]))


class Embedding(nn.Module):
    """Word embedding, its norm, and learned positions; on the last stage of a tied model the words
    alone.
    """

    def __init__(self, model: ModelConfig, topology: Topology) -> None:
        super().__init__()
        rows, first = model.padded_vocab_size(topology.tensor_size), topology.first_stage
        self.word = VocabWeight(rows, model.hidden_size, topology)
        self.norm = norm_of(model) if first and model.embed_layernorm else None
        learned = first and model.position_embedding_type == "learned_absolute"
        positions = (model.max_position_embeddings, model.hidden_size)
        self.position = nn.Embedding(*positions) if learned else None

    def forward(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        x: Tensor = self.word(tokens)
        x = x if self.norm is None else self.norm(x)
        position_ids = sequence_part(position_ids, self.word.topology)
        return _computed(x if self.position is None else x + self.position(position_ids))


class Stage(nn.Module):
    """A pipeline stage: some blocks of a model, by default all, with embedding and head where they
    belong.

    Weights are empty until ``initialise`` or a checkpoint fills them.
    """

    def __init__(self, model: ModelConfig, topology: Topology, layers: range | None = None) -> None:
        super().__init__()
        self.model, self.topology = model, topology
        self.tied = not model.untie_embeddings_and_output_weights
        first, last = topology.first_stage, topology.last_stage
        rows = model.padded_vocab_size(topology.tensor_size)
        self.embedding = Embedding(model, topology) if first or (last and self.tied) else None
        layers = range(model.num_layers) if layers is None else layers
        self.blocks = nn.ModuleDict({str(i): DecoderLayer(model, topology) for i in layers})
        self.norm = norm_of(model) if last else None
        untied = last and not self.tied
        self.head = VocabWeight(rows, model.hidden_size, topology) if untied else None
        self.recompute = 0  # blocks whose activations are recomputed together, if an engine asks
        self.flex = False  # whether FlexAttention is used for documents: fast only when compiled
        self.softmax = softmax

    def compile_parts(self) -> None:
        """Compile the blocks and the head's softmax when they are first used."""
        model = self.model
        self.softmax = torch.compile(softmax)
        # FlexAttention has no dropout and needs heads of at least 16.
        wide = model.head_width >= 16 and not model.attention_dropout
        self.flex = wide and self.topology.device.type == "cuda"
        outside = torch.compiler.disable(reseed) if model.random else reseed  # type: ignore[no-untyped-call]
        for block in self.blocks.values():
            block.reseed = outside  # type: ignore[assignment]
            # Not block.compile: what ``fully_shard`` does around a block cannot be compiled.
            block.forward = torch.compile(block.forward, fullgraph=not model.random)

    def forward(
        self, batch: Mapping[str, Tensor], hidden: Tensor | None = None, key: tuple[int, ...] = ()
    ) -> Tensor:
        """The loss, float32 [], of a micro batch; before the last stage the hidden state [B, S, H].

        ``hidden`` comes from the previous stage. ``key`` names the micro batch, for dropout.
        """
        x = self.hidden(batch, hidden, key)
        if not self.topology.last_stage:
            return x
        labels, mask = batch["labels"].flatten(), batch["loss_mask"].flatten().float()
        # Asked here: inside an autograd Function it always looks as if gradients were wanted.
        learn = torch.is_grad_enabled()
        rest = (labels, mask, self.model.vocab_size, self.topology, self.softmax, learn)
        x = enter(x, self.topology).flatten(0, 1)
        loss = HeadLoss.apply(x, self.head_weight, *rest)  # type: ignore[no-untyped-call]
        return loss * batch["weight"] if "weight" in batch else loss  # type: ignore[no-any-return]

    def logits(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Logits [B, S, vocab_size] of a model in one process; ``batch`` needs only tokens."""
        return functional.linear(self.hidden(batch), self.head_weight)[..., : self.model.vocab_size]

    def hidden(
        self, batch: Mapping[str, Tensor], hidden: Tensor | None = None, key: tuple[int, ...] = ()
    ) -> Tensor:
        """The output [B, S, H] of the blocks of this stage; on the last stage, of the final
        norm.
        """
        tokens, model = batch["tokens"], self.model
        positions, documents = batch.get("position_ids"), batch.get("cu_seqlens")
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        random = self.training and model.random
        if hidden is None:
            assert self.embedding is not None
            hidden = self.embedding(tokens, positions)
            if random:
                reseed(torch.tensor(random_seed(*key, "embedding")))
                hidden = dropout(hidden, model.hidden_dropout, self.topology)
        rotary = None
        if model.position_embedding_type == "rope":
            rotary = rotary_of(positions, model)
        if documents is not None:
            documents = document_mask(documents, tokens.shape[1], self.flex)

        def run(x: Tensor, names: list[str]) -> Tensor:
            for name in names:
                seeds = block_seeds((*key, name), self.topology.tensor_rank) if random else None
                x = self.blocks[name](x, rotary, documents, seeds)
            return x

        names, step = list(self.blocks), self.recompute
        if not (step and torch.is_grad_enabled()):
            hidden = run(hidden, names)
        else:
            for begin in range(0, len(names), step):
                hidden = recomputed(run, hidden, names[begin : begin + step])
        return hidden if self.norm is None else _computed(self.norm(hidden))

    def attention_kernel(self, dtype: torch.dtype, samples: int, documents: bool) -> str:
        """The name of the kernel that computes attention for ``samples`` samples of type ``dtype``.

        With ``documents`` attention stays inside documents.
        """
        model, topology = self.model, self.topology
        if documents and self.flex:
            return "FlexAttention"
        heads = (model.num_attention_heads, model.num_query_groups, model.num_query_groups)
        q, k, v = (
            torch.empty(
                (samples, n // topology.tensor_size, model.seq_length, model.head_width),
                dtype=dtype,
                device=topology.device,
                requires_grad=True,
            )
            for n in heads
        )
        mask = None
        if documents:
            shape = (samples, 1, model.seq_length, model.seq_length)
            mask = torch.empty(shape, dtype=torch.bool, device=topology.device)
        grouped = model.num_query_groups < model.num_attention_heads
        with fastest_kernel(topology.device):
            choice = torch._fused_sdp_choice(
                q, k, v, mask, model.attention_dropout, mask is None, enable_gqa=grouped
            )
        return SDPBackend(choice).name

    @property
    def head_weight(self) -> Tensor:
        """The head [padded vocabulary / tensor_size, H]: the word embedding where it is tied."""
        holder = self.head if self.embedding is None or not self.tied else self.embedding.word
        assert holder is not None
        return holder.weight

    def owned(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters by global name, without the last stage's copy of a tied word embedding."""
        for name, parameter in self.named_parameters():
            if self.topology.first_stage or not name.startswith("embedding."):
                yield name, parameter

    def counted(self) -> list[str]:
        """The names of owned parameters whose gradients this rank adds to the norm.

        A parameter that every tensor rank has whole is counted on tensor rank 0 only.
        """
        main = self.topology.tensor_rank == 0
        layout = self.model.layout
        return [name for name, _ in self.owned() if main or layout[name].split is not None]

    def own_part(self, name: str, whole: Tensor) -> Tensor:
        """This rank's part of a whole tensor, whose vocabulary is first padded with zeros."""
        if name in VOCABULARY:
            rows = self.model.padded_vocab_size(self.topology.tensor_size)
            whole = functional.pad(whole, (0, 0, 0, rows - len(whole)))
        return own_part(whole, self.model.layout[name].split, self.topology)

    def gather_whole(self, name: str, part: Tensor) -> Tensor:
        """The whole tensor, from the ``part`` on each tensor rank; a collective."""
        whole = gather_whole(part, self.model.layout[name].split, self.topology)
        return whole[: self.model.vocab_size] if name in VOCABULARY else whole

    def full_state(
        self, parts: Callable[[str], Mapping[str, Tensor]]
    ) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """The parameters one by one, each as its global name and its tensors by kind; a collective.

        Kinds are "parameter" and the names in the optimizer's state. Tensors are whole, float32, on
        the CPU, without padding of the vocabulary. Data and tensor ranks above 0 write nothing and
        get no tensors. A tied head is not repeated. ``parts`` gives this tensor rank's parts of a
        parameter by its name.
        """
        writes = self.topology.data_rank == 0 and self.topology.tensor_rank == 0
        for name, _ in self.owned():
            whole = {k: self.gather_whole(name, part) for k, part in parts(name).items()}
            yield name, {k: x.to("cpu", copy=True) for k, x in whole.items()} if writes else {}

    def initialise(self, seed: int) -> None:
        """Fill the weights as Megatron does, with the same values for every topology.

        They are normal with ``init_method_std``, in layers that end a residual branch with
        ``output_init_method_std``; biases are 0, norms 1. Each parameter has its own stream of
        random numbers.
        """

        @torch.no_grad()  # here, since each thread has its own setting
        def fill(named: tuple[str, nn.Parameter]) -> None:
            name, parameter = named
            if parameter.ndim < 2:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                return
            ends = name.endswith((".out.weight", ".down.weight"))
            std = self.model.output_init_method_std if ends else self.model.init_method_std
            generator = torch.Generator().manual_seed(random_seed(seed, name))
            whole = torch.empty(self.model.layout[name].shape)
            whole.normal_(0.0, std, generator=generator)
            parameter.copy_(self.own_part(name, whole))

        # A thread draws 10 billion numbers in a minute, and holds one whole tensor at a time.
        with ThreadPoolExecutor(min(torch.get_num_threads(), 8)) as pool:
            for _ in pool.map(fill, self.named_parameters()):
                pass


def _computed(x: Tensor) -> Tensor:
    """``x`` in the type of autocast, which the residual stream has too."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x

"""GPT-2 and GPT-NeoX as one decoder, cut into pipeline stages. Parameters have global names."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from . import parallel
from .parallel import ColumnLinear, RowLinear, Topology, VocabEmbedding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .config import Config

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class ModelConfig:
    """What decides the shape and the function of a model; names as in Config."""

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    ffn_hidden_size: int
    seq_length: int
    max_position_embeddings: int
    vocab_size: int
    make_vocab_size_divisible_by: int
    position_embedding_type: str
    rotary_percent: float
    rotary_base: float
    untie_embeddings_and_output_weights: bool
    parallel_residual: bool
    embed_layernorm: bool
    normalization: str
    activation: str
    add_bias_linear: bool
    hidden_dropout: float
    attention_dropout: float
    layernorm_epsilon: float
    init_method_std: float

    @classmethod
    def of(cls, config: Config, vocab_size: int) -> ModelConfig:
        """The model of a run over a vocabulary of ``vocab_size`` tokens."""
        values = {f.name: getattr(config, f.name) for f in dataclasses.fields(cls)}
        values["vocab_size"] = vocab_size
        values["num_query_groups"] = config.num_query_groups or config.num_attention_heads
        values["ffn_hidden_size"] = config.ffn_hidden_size or 4 * config.hidden_size
        values["max_position_embeddings"] = config.max_position_embeddings or config.seq_length
        return cls(**values)

    @property
    def head_width(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def padded_vocab_size(self, tensor_size: int = 1) -> int:
        """Rows that the vocabulary takes; those from ``vocab_size`` on stay 0 and are not saved."""
        multiple = self.make_vocab_size_divisible_by * tensor_size
        return -(-self.vocab_size // multiple) * multiple

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter, whole and without padding, by its global name."""
        with torch.device("meta"):
            stage = Stage(self, Topology())
        return {name: stage.whole_shape(name) for name, _ in stage.named_parameters()}

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes().values())

    @property
    def flops_per_token(self) -> float:
        """FLOPs of a training step for one token: 6 N + 12 L H S.

        N are the parameters of the matrix products (blocks and head, not the embeddings), L H S
        counts attention over the whole sequence, masked or not, as is usual.
        """
        shapes = self.shapes()
        products = sum(math.prod(s) for n, s in shapes.items() if n.startswith("blocks") and s[1:])
        products += self.vocab_size * self.hidden_size
        return 6.0 * products + 12.0 * self.num_layers * self.hidden_size * self.seq_length


def stage_layers(config: Config, topology: Topology) -> tuple[int, int]:
    """Blocks [first, last) of this pipeline stage."""
    size, rank = topology.pipeline_size, topology.pipeline_rank
    split = config.pipeline_split or (config.num_layers // size,) * size
    return sum(split[:rank]), sum(split[: rank + 1])


def random_seed(*key: object) -> int:
    """A seed that is a function of ``key``, the same on every machine."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True)
class Context:
    """What all blocks share in one micro batch."""

    rotary: tuple[Tensor, Tensor] | None = None  # cos and sin, [B, 1, S, rotary width]
    documents: Any = None  # bool [B, 1, S, S] or a BlockMask: where attention may look


class Attention(nn.Module):
    """Causal self-attention. Rows of ``qkv`` are [group, (its queries, key, value), width]."""

    def __init__(self, model: ModelConfig, topology: Topology) -> None:
        super().__init__()
        self.width, self.dropout = model.head_width, model.attention_dropout
        self.queries = model.num_attention_heads // model.num_query_groups
        rows = (model.num_attention_heads + 2 * model.num_query_groups) * self.width
        self.qkv = ColumnLinear(model.hidden_size, rows, model.add_bias_linear, topology)
        self.out = RowLinear(model.hidden_size, model.hidden_size, model.add_bias_linear, topology)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv(x).view(batch, length, -1, self.queries + 2, self.width)
        q = qkv[:, :, :, : self.queries].flatten(2, 3).transpose(1, 2)
        k, v = (qkv[:, :, :, i].transpose(1, 2) for i in (-2, -1))
        if context.rotary is not None:
            q, k = _rotate(q, *context.rotary), _rotate(k, *context.rotary)
        return self.out(self._attend(q, k, v, context.documents).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, documents: Any) -> Tensor:
        grouped = self.queries > 1
        if documents is not None and not isinstance(documents, Tensor):
            from torch.nn.attention.flex_attention import flex_attention

            return flex_attention(q, k, v, block_mask=documents, enable_gqa=grouped)
        return functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=documents,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=documents is None,
            enable_gqa=grouped,
        )


class MLP(nn.Module):
    """Two linear layers. With swiglu the rows of ``up`` are [width, (gate, up)]."""

    def __init__(self, model: ModelConfig, topology: Topology) -> None:
        super().__init__()
        self.activation, wide = model.activation, model.ffn_hidden_size
        rows = 2 * wide if model.activation == "swiglu" else wide
        self.up = ColumnLinear(model.hidden_size, rows, model.add_bias_linear, topology)
        self.down = RowLinear(wide, model.hidden_size, model.add_bias_linear, topology)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        if self.activation == "swiglu":
            gate, up = y.unflatten(-1, (-1, 2)).unbind(-1)
            y = functional.silu(gate) * up
        else:
            y = functional.gelu(y, approximate="tanh" if self.activation == "gelu" else "none")
        return self.down(y)  # type: ignore[no-any-return]


class Block(nn.Module):
    """One pre-norm decoder layer: [B, S, H] -> [B, S, H]."""

    def __init__(self, model: ModelConfig, topology: Topology) -> None:
        super().__init__()
        self.parallel, self.dropout = model.parallel_residual, model.hidden_dropout
        self.random = max(model.hidden_dropout, model.attention_dropout) > 0
        self.tensor_rank = topology.tensor_rank
        self.attention_norm = _norm(model)
        self.attention = Attention(model, topology)
        self.mlp_norm = _norm(model)
        self.mlp = MLP(model, topology)

    def forward(self, x: Tensor, context: Context, key: tuple[object, ...] = ()) -> Tensor:
        """``key`` decides what dropout drops: the same again when a block is computed again."""
        if self.random:  # heads are split, so their ranks drop differently
            _reseed(*key, "attention", self.tensor_rank)
        attended = self.attention(self.attention_norm(x), context)
        if self.random:  # what follows is whole on all tensor ranks, and must stay equal
            _reseed(*key, "hidden")
        attended = functional.dropout(attended, self.dropout, self.training)
        if not self.parallel:
            x = attended = x + attended
        y = functional.dropout(self.mlp(self.mlp_norm(x)), self.dropout, self.training)
        return y + attended + x if self.parallel else y + x


class Embedding(nn.Module):
    """Word, and learned position, embeddings; on the last stage of a tied model the words only."""

    def __init__(self, model: ModelConfig, topology: Topology) -> None:
        super().__init__()
        rows = model.padded_vocab_size(topology.tensor_size)
        self.word = VocabEmbedding(rows, model.hidden_size, topology)
        learned = model.position_embedding_type == "learned_absolute" and topology.first_stage
        positions = (model.max_position_embeddings, model.hidden_size)
        self.position = nn.Embedding(*positions) if learned else None
        self.norm = _norm(model) if model.embed_layernorm and topology.first_stage else None

    def forward(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        x = self.word(tokens)
        x = x if self.norm is None else self.norm(x)
        return x if self.position is None else x + self.position(position_ids)  # type: ignore[no-any-return]


class Stage(nn.Module):
    """Blocks [first_layer, last_layer) of a model, with embedding and head where they belong.

    On the last stage a call returns the loss, before it the hidden state. Weights are empty until
    ``initialise`` or a checkpoint fills them.
    """

    def __init__(
        self,
        model: ModelConfig,
        topology: Topology,
        first_layer: int = 0,
        last_layer: int | None = None,
    ) -> None:
        super().__init__()
        self.model, self.topology = model, topology
        last_layer = model.num_layers if last_layer is None else last_layer
        self.tied = not model.untie_embeddings_and_output_weights
        ends = topology.first_stage or (topology.last_stage and self.tied)
        self.embedding = Embedding(model, topology) if ends else None
        layers = range(first_layer, last_layer)
        self.blocks = nn.ModuleDict({str(i): Block(model, topology) for i in layers})
        self.norm = _norm(model) if topology.last_stage else None
        rows, size = model.padded_vocab_size(topology.tensor_size), model.hidden_size
        untied = topology.last_stage and not self.tied
        self.head = VocabEmbedding(rows, size, topology) if untied else None
        # Wraps the call of a group of blocks; the engine sets it for activation checkpointing.
        self.recompute: Callable[..., Tensor] | None = None
        self.recompute_layers = 1
        self.flex = False  # FlexAttention for documents, worth it on a GPU only
        self.random = max(model.hidden_dropout, model.attention_dropout) > 0

    def forward(
        self, batch: Mapping[str, Tensor], hidden: Tensor | None = None, key: tuple[int, ...] = ()
    ) -> Tensor:
        """One micro batch; ``hidden`` [B, S, H] comes from the stage before.

        ``key`` names the micro batch for dropout, the same on all ranks that work on it.
        """
        x = self.hidden(batch, hidden, key)
        if not self.topology.last_stage:
            return x
        loss_mask = batch["loss_mask"].flatten().float()
        return parallel.head_loss(
            _computed(x).flatten(0, 1),
            self.head_weight,
            batch["labels"].flatten(),
            loss_mask,
            self.model.vocab_size,
            self.topology,
        )

    def logits(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Logits [B, S, vocab_size] of a model in one process; ``batch`` needs tokens only."""
        x = self.hidden(batch, None, ())
        return functional.linear(_computed(x), self.head_weight)[..., : self.model.vocab_size]

    def hidden(
        self, batch: Mapping[str, Tensor], hidden: Tensor | None, key: tuple[int, ...]
    ) -> Tensor:
        """The hidden state [B, S, H] behind this stage, on the last one behind the final norm."""
        tokens = batch["tokens"]
        positions = batch.get("position_ids")
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        x = hidden
        if x is None:
            assert self.embedding is not None
            x = self.embedding(tokens, positions)
            if self.training and self.model.hidden_dropout:
                _reseed(*key, "embedding")
                x = functional.dropout(x, self.model.hidden_dropout)
        x = self._run_blocks(x, self._context(positions, batch.get("cu_seqlens")), key)
        return x if self.norm is None else self.norm(x)

    def _run_blocks(self, x: Tensor, context: Context, key: tuple[int, ...]) -> Tensor:
        names = list(self.blocks)

        def run(x: Tensor, part: list[str]) -> Tensor:
            for name in part:
                x = self.blocks[name](x, context, (*key, name))
            return x

        if self.recompute is None or not torch.is_grad_enabled():
            return run(x, names)
        for begin in range(0, len(names), self.recompute_layers):
            x = self.recompute(run, x, names[begin : begin + self.recompute_layers])
        return x

    def _context(self, positions: Tensor, cu_seqlens: Tensor | None) -> Context:
        model, length = self.model, positions.shape[1]
        rotary = None
        if model.position_embedding_type == "rope":
            width = int(model.head_width * model.rotary_percent)
            rotary = _rotary(positions, width, model.rotary_base)
        if cu_seqlens is None:
            return Context(rotary)
        place = torch.arange(length, device=positions.device, dtype=cu_seqlens.dtype)
        place = place.expand(len(cu_seqlens), length).contiguous()
        document = torch.searchsorted(cu_seqlens.contiguous(), place, right=True)
        return Context(rotary, _document_mask(document, self.flex))

    @property
    def head_weight(self) -> Tensor:
        """The head [padded vocabulary / tensor_size, H]: the word embedding where it is tied."""
        holder = self.head if self.head is not None else self.embedding and self.embedding.word
        assert isinstance(holder, VocabEmbedding)
        return holder.weight

    def shard_dim(self, name: str) -> int | None:
        """The dimension of this parameter that tensor parallelism splits, None if none."""
        return parallel.shard_dim(self.get_parameter(name))

    def whole_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a parameter over all tensor ranks, without padding of the vocabulary."""
        parameter, dim = self.get_parameter(name), self.shard_dim(name)
        shape = [
            n * self.topology.tensor_size if i == dim else n for i, n in enumerate(parameter.shape)
        ]
        return (self.model.vocab_size, *shape[1:]) if _is_vocabulary(name) else tuple(shape)

    def own_part(self, name: str, whole: Tensor) -> Tensor:
        """This rank's part of a whole tensor; the vocabulary is padded with zeros first."""
        if _is_vocabulary(name):
            rows = self.model.padded_vocab_size(self.topology.tensor_size)
            whole = functional.pad(whole, (0, 0, 0, rows - whole.shape[0]))
        return parallel.own_part(whole, self.shard_dim(name), self.topology)

    def gather_whole(self, name: str, part: Tensor) -> Tensor:
        """The whole tensor of which every tensor rank gives its ``part``; a collective."""
        whole = parallel.gather_whole(part, self.shard_dim(name), self.topology)
        return whole[: self.model.vocab_size] if _is_vocabulary(name) else whole

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Fill the weights as Megatron does, the same for every topology.

        Normal with ``init_method_std``, for the layers that end a residual branch divided by
        sqrt(2 * num_layers); biases 0, norms 1. Each parameter has its own stream of numbers.
        """
        for name, parameter in self.named_parameters():
            if parameter.ndim < 2:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            std = self.model.init_method_std
            if name.endswith((".out.weight", ".down.weight")):
                std /= math.sqrt(2 * self.model.num_layers)
            generator = torch.Generator().manual_seed(random_seed(seed, name))
            whole = torch.empty(self.whole_shape(name)).normal_(0.0, std, generator=generator)
            parameter.copy_(self.own_part(name, whole))


def checkpointed(run: Callable[..., Tensor], x: Tensor, part: list[str]) -> Tensor:
    """Blocks whose activations are computed again on the way back; dropout has its own seeds."""
    return checkpoint(run, x, part, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]


def _is_vocabulary(name: str) -> bool:
    return name in ("embedding.word.weight", "head.weight")


def _norm(model: ModelConfig) -> nn.Module:
    kind = nn.LayerNorm if model.normalization == "LayerNorm" else nn.RMSNorm
    return kind(model.hidden_size, eps=model.layernorm_epsilon)


def _computed(x: Tensor) -> Tensor:
    """``x`` in the type that products are computed in."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _reseed(*key: object) -> None:
    torch.manual_seed(random_seed(*key))


def _rotary(positions: Tensor, width: int, base: float) -> tuple[Tensor, Tensor]:
    steps = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    angles = positions[:, None, :, None].float() * base ** (-steps / width)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first ``cos.shape[-1]`` of each head's width, halves paired as GPT-NeoX does."""
    width = cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned.to(x.dtype), rest), dim=-1)


def _document_mask(document: Tensor, flex: bool) -> Any:
    """Causal attention inside documents; ``document`` int64 [B, S] numbers them."""
    batch, length = document.shape
    if flex:
        from torch.nn.attention.flex_attention import create_block_mask

        def allowed(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (q >= k) & (document[b, q] == document[b, k])

        return create_block_mask(allowed, batch, None, length, length, document.device)
    causal = torch.ones(length, length, dtype=torch.bool, device=document.device).tril()
    return ((document[:, :, None] == document[:, None, :]) & causal)[:, None]

"""The shape of a model: sizes, parameters under their global names, FLOPs. No torch here."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .config import Config

LLAMA_3_POSITIONS = 8192  # Llama 3's; its successors scale rope from this length
VOCABULARY = ("embedding.word.weight", "head.weight")  # their rows are padded


def room_of(name: str) -> str:
    """The part of a model that a parameter belongs to: a block, or embedding, norm, head."""
    room, number, *_ = name.split(".")
    return f"{room}.{number}" if room == "blocks" else room


class ParameterShape(NamedTuple):
    """The shape of a whole parameter, and the dimension that tensor parallelism splits, or None."""

    shape: tuple[int, ...]
    split: int | None = None


@dataclass(frozen=True)
class ModelConfig:
    """The settings that decide the shape and the function of a model; names as in Config."""

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
    output_init_method_std: float
    # Added later: older checkpoints lack these. The defaults describe the models of that time.
    qk_layernorm: bool = False
    kv_channels: int | None = None  # if not hidden_size / num_attention_heads
    add_qkv_bias: bool = False
    use_rope_scaling: bool = False
    rope_scaling_factor: float = 8.0

    @classmethod
    def of(cls, config: Config, vocab_size: int) -> ModelConfig:
        """The model of a run with a vocabulary of ``vocab_size`` tokens."""
        values = {f.name: getattr(config, f.name) for f in dataclasses.fields(cls)}
        values["vocab_size"] = vocab_size
        values["num_query_groups"] = config.num_query_groups or config.num_attention_heads
        values["ffn_hidden_size"] = config.ffn_hidden_size or 4 * config.hidden_size
        ends = config.output_init_method_std or config.init_method_std / math.sqrt(
            2 * config.num_layers
        )
        values["output_init_method_std"] = ends
        if config.kv_channels == config.hidden_size // config.num_attention_heads:
            values["kv_channels"] = None
        values["max_position_embeddings"] = config.max_position_embeddings or config.seq_length
        return cls(**values)

    @property
    def head_width(self) -> int:
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def attention_width(self) -> int:
        """The width of all heads together."""
        return self.num_attention_heads * self.head_width

    @property
    def qkv_bias(self) -> bool:
        """Whether queries, keys and values have a bias."""
        return self.add_bias_linear or self.add_qkv_bias

    @property
    def random(self) -> bool:
        """Whether training uses random numbers."""
        return max(self.hidden_dropout, self.attention_dropout) > 0

    def padded_vocab_size(self, tensor_size: int = 1) -> int:
        """The rows of the vocabulary with padding; rows from ``vocab_size`` on stay 0 and are not
        saved.
        """
        multiple = self.make_vocab_size_divisible_by * tensor_size
        return -(-self.vocab_size // multiple) * multiple

    @cached_property
    def layout(self) -> dict[str, ParameterShape]:
        """Every parameter by its global name, whole and without padding, in the model's order."""
        return dict(self._layout())

    def _layout(self) -> Iterator[tuple[str, ParameterShape]]:
        width = self.hidden_size
        rows = (self.num_attention_heads + 2 * self.num_query_groups) * self.head_width
        up = self.ffn_hidden_size * (2 if self.activation == "swiglu" else 1)

        def norm(name: str, over: int = width) -> Iterator[tuple[str, ParameterShape]]:
            yield f"{name}.weight", ParameterShape((over,))
            if self.normalization == "LayerNorm":
                yield f"{name}.bias", ParameterShape((over,))

        def linear(
            name: str, *shape: int, split: int, bias: bool = self.add_bias_linear
        ) -> Iterator[tuple[str, ParameterShape]]:
            yield f"{name}.weight", ParameterShape(shape, split)
            if bias:  # if the inputs are split, every tensor rank has the whole bias
                yield f"{name}.bias", ParameterShape(shape[:1], None if split else 0)

        words = ParameterShape((self.vocab_size, width), 0)
        yield "embedding.word.weight", words
        if self.embed_layernorm:
            yield from norm("embedding.norm")
        if self.position_embedding_type == "learned_absolute":
            yield "embedding.position.weight", ParameterShape((self.max_position_embeddings, width))
        for block in (f"blocks.{number}" for number in range(self.num_layers)):
            yield from norm(f"{block}.attention_norm")
            yield from linear(f"{block}.attention.qkv", rows, width, split=0, bias=self.qkv_bias)
            if self.qk_layernorm:
                yield from norm(f"{block}.attention.q_norm", self.head_width)
                yield from norm(f"{block}.attention.k_norm", self.head_width)
            yield from linear(f"{block}.attention.out", width, self.attention_width, split=1)
            yield from norm(f"{block}.mlp_norm")
            yield from linear(f"{block}.mlp.up", up, width, split=0)
            yield from linear(f"{block}.mlp.down", width, self.ffn_hidden_size, split=1)
        yield from norm("norm")
        if self.untie_embeddings_and_output_weights:
            yield "head.weight", words

    @property
    def parameters(self) -> int:
        """Number of parameters, without padding."""
        return sum(math.prod(one.shape) for one in self.layout.values())

    @property
    def flops_per_token(self) -> float:
        """FLOPs of a training step for one token: 6 N + 12 L H S.

        N are the parameters of the matrix products (blocks and head, not the embeddings), L H S
        counts attention over the whole sequence, masked or not, as is usual; H is the width of all
        heads.
        """
        blocks = (one.shape for name, one in self.layout.items() if name.startswith("blocks"))
        products = sum(math.prod(shape) for shape in blocks if len(shape) == 2)
        products += self.vocab_size * self.hidden_size
        return 6.0 * products + 12.0 * self.num_layers * self.attention_width * self.seq_length

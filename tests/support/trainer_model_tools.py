"""Small models with weights that are not at their first values, for the tests of export."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tokpack.trainer.config.config import Config
from tokpack.trainer.config.model import ModelConfig
from tokpack.trainer.model import Stage
from tokpack.trainer.parallel import Topology

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

VOCAB = 500
SMALL = {
    "num_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 64,
    "vocab_size": VOCAB,
    "micro_batch_size": 2,
    "global_batch_size": 4,
    "device": "cpu",
}
NEOX = {
    "position_embedding_type": "rope",
    "rotary_percent": 0.25,
    "parallel_residual": True,
    "untie_embeddings_and_output_weights": True,
    "activation": "gelu_erf",
}
LLAMA = {
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "activation": "swiglu",
    "add_bias_linear": False,
    "num_query_groups": 2,
    "ffn_hidden_size": 96,
}


def model_of(**settings: Any) -> ModelConfig:
    """A small model."""
    return ModelConfig.of(Config(**{**SMALL, **settings}), VOCAB)


@contextmanager
def float64() -> Iterator[None]:
    """Let torch compute in float64 wherever it would in fp32."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def logits_of_transformers(model: Any) -> Tensor:
    """What a model of ``transformers`` computes in float64, also where it asks for fp32 by name."""
    model = model.double().eval()
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        for name in ("float", "float32"):
            patch.setattr(torch, name, torch.float64)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        for module in model.modules():
            if hasattr(module, "inv_freq"):  # it has computed angles in fp32
                module.__init__(module.config)
        logits: Tensor = model(tokens()).logits
    return logits


class Memory:
    """Weights as Checkpoint and RankWeights give them, from memory; biases and norms random too."""

    def __init__(self, model: ModelConfig, seed: int = 0) -> None:
        self.model = model
        self.tokenizer: dict[str, Any] | None = None
        self.stage = Stage(model, Topology())
        self.stage.initialise(seed)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.stage.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        self.stage.eval()

    def read(self, name: str) -> dict[str, Tensor]:
        whole = self.stage.gather_whole(name, self.stage.get_parameter(name).detach())
        return {"parameter": whole}

    @torch.no_grad()
    def logits(self, tokens: Tensor) -> Tensor:
        """In float64."""
        with float64():
            stage = Stage(self.model, Topology())
            stage.load_state_dict(self.stage.state_dict())
            return stage.eval().logits({"tokens": tokens})


def tokens(rows: int = 2, length: int = 64) -> Tensor:
    """Random tokens [rows, length]."""
    return torch.randint(0, VOCAB, (rows, length), generator=torch.Generator().manual_seed(1))


def without_vocabulary(model: ModelConfig) -> ModelConfig:
    """The same model with as many words as its weights have."""
    return dataclasses.replace(model, vocab_size=0)

"""A GPT and AdamW, written plainly in one process: what every layout of the trainer must equal.

It shares no code with the trainer, only the names and the shapes of docs/checkpoints.md. Gradients
are those of torch's autograd; all else is spelled out. Everything is float64.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    Weights = dict[str, Tensor]
    Batch = Mapping[str, Tensor]  # tokens, labels, loss_mask, position_ids [B, S]

BETAS, EPSILON = (0.9, 0.999), 1e-8  # of AdamW, as tokpack's defaults


class Twin:
    """A model with its optimizer; ``settings`` are those of the run, by the names of Config."""

    def __init__(self, weights: Weights, settings: Mapping[str, Any]) -> None:
        self.weights = {name: x.clone().requires_grad_() for name, x in weights.items()}
        self.settings, self.steps = settings, 0
        self._means = {name: torch.zeros_like(x) for name, x in weights.items()}
        self._squares = {name: torch.zeros_like(x) for name, x in weights.items()}

    def train(self, micro_batches: Sequence[Batch], lr: float) -> tuple[float, float]:
        """A step over the whole batch: its loss, and the norm of the gradients before clipping.

        ``norms`` are those of each block, and of what is before and behind them.
        """
        loss = self.loss(micro_batches)
        names = list(self.weights)
        grads = torch.autograd.grad(loss, [self.weights[name] for name in names])
        squares = {name: float((x**2).sum()) for name, x in zip(names, grads, strict=True)}
        norm, self.norms = math.sqrt(sum(squares.values())), list[float]()
        for room in dict.fromkeys(map(_room, names)):
            mine = (square for name, square in squares.items() if _room(name) == room)
            self.norms.append(math.sqrt(sum(mine)))
        factor = min(1.0, self.settings.get("clip_grad", 1.0) / (norm + 1e-6))
        self.steps += 1
        with torch.no_grad():
            for name, grad in zip(names, grads, strict=True):
                self._step(name, factor * grad, lr)
        return loss.item(), norm

    def loss(self, micro_batches: Sequence[Batch]) -> Tensor:
        """The mean of the micro batches' losses, each of which is a mean over what counts."""
        losses = []
        for batch in micro_batches:
            chances = torch.log_softmax(self.logits(batch), -1)
            taken = chances.gather(-1, batch["labels"][..., None])[..., 0]
            mask = batch["loss_mask"].to(taken.dtype)
            losses.append(-(taken * mask).sum() / mask.sum())
        return torch.stack(losses).mean()

    def _step(self, name: str, grad: Tensor, lr: float) -> None:
        first, second = BETAS
        weight, mean, square = self.weights[name], self._means[name], self._squares[name]
        mean.copy_(first * mean + (1 - first) * grad)
        square.copy_(second * square + (1 - second) * grad**2)
        right_mean = mean / (1 - first**self.steps)
        right_square = square / (1 - second**self.steps)
        decay = self.settings["weight_decay"] if weight.ndim > 1 else 0.0
        moved = right_mean / (right_square.sqrt() + EPSILON)
        weight.copy_(weight - lr * decay * weight - lr * moved)

    def logits(self, batch: Batch) -> Tensor:
        """[B, S, vocabulary]."""
        positions = batch["position_ids"]
        x = self.weights["embedding.word.weight"][batch["tokens"]]
        if "embedding.norm.weight" in self.weights:
            x = self._norm("embedding.norm", x)
        if "embedding.position.weight" in self.weights:
            x = x + self.weights["embedding.position.weight"][positions]
        for number in range(self.settings["num_layers"]):
            block = f"blocks.{number}"
            attended = self._attention(f"{block}.attention", x, batch)
            if self.settings.get("parallel_residual"):
                x = x + attended + self._mlp(f"{block}.mlp", x)
            else:
                x = x + attended
                x = x + self._mlp(f"{block}.mlp", x)
        head = self.weights.get("head.weight", self.weights["embedding.word.weight"])
        return self._norm("norm", x) @ head.T

    def _linear(self, name: str, x: Tensor) -> Tensor:
        y = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else y + bias

    def _norm(self, name: str, x: Tensor) -> Tensor:
        if self.settings.get("normalization") == "RMSNorm":
            x = x / ((x**2).mean(-1, keepdim=True) + 1e-5).sqrt()
            return x * self.weights[f"{name}.weight"]
        x = x - x.mean(-1, keepdim=True)
        x = x / ((x**2).mean(-1, keepdim=True) + 1e-5).sqrt()
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def _mlp(self, name: str, x: Tensor) -> Tensor:
        y = self._linear(f"{name}.up", self._norm(f"{name}_norm", x))
        kind = self.settings.get("activation", "gelu")
        if kind == "swiglu":  # rows of gate and up in turn
            gate, up = y[..., 0::2], y[..., 1::2]
            y = gate / (1 + torch.exp(-gate)) * up
        elif kind == "gelu_erf":
            y = y * (1 + torch.erf(y / math.sqrt(2))) / 2
        else:
            y = y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))) / 2
        return self._linear(f"{name}.down", y)

    def _attention(self, name: str, x: Tensor, batch: Batch) -> Tensor:
        heads = self.settings["num_attention_heads"]
        groups = self.settings.get("num_query_groups") or heads
        mixed = self._linear(f"{name}.qkv", self._norm(f"{name}_norm", x))
        size, length, rows = mixed.shape
        width = rows // (heads + 2 * groups)
        mixed = mixed.view(size, length, groups, heads // groups + 2, width)
        parts = []
        for head in range(heads):
            group, query = divmod(head, heads // groups)
            q, k, v = (mixed[:, :, group, place] for place in (query, -2, -1))
            if f"{name}.q_norm.weight" in self.weights:
                q, k = self._norm(f"{name}.q_norm", q), self._norm(f"{name}.k_norm", k)
            q, k = (self._turned(one, batch["position_ids"]) for one in (q, k))
            scores = q @ k.transpose(1, 2) / math.sqrt(width)
            scores = scores.masked_fill(~_seen(batch, length), -math.inf)
            parts.append(torch.softmax(scores, -1) @ v)
        return self._linear(f"{name}.out", torch.cat(parts, -1))

    def _turned(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary positions: pairs (i, i + half) of the first part of a head, turned."""
        if self.settings.get("position_embedding_type") != "rope":
            return x
        turned = int(x.shape[-1] * self.settings.get("rotary_percent", 1.0))
        half = turned // 2
        parts = list(x.unbind(-1))
        for i in range(half):
            speed = 10000.0 ** (-2 * i / turned)
            if self.settings.get("use_rope_scaling"):
                speed = _scaled(speed)
            angle = positions * speed
            one, other = x[..., i], x[..., i + half]
            parts[i] = one * angle.cos() - other * angle.sin()
            parts[i + half] = other * angle.cos() + one * angle.sin()
        return torch.stack(parts, -1)


def _room(name: str) -> str:
    return ".".join(name.split(".")[: 2 if name.startswith("blocks.") else 1])


def _scaled(speed: float) -> float:
    """A frequency of rope as Llama 3.1 has it: of long waves an eighth, of short ones all."""
    length = 2 * math.pi / speed
    if length < 8192 / 4:
        return speed
    if length > 8192:
        return speed / 8
    share = (8192 / length - 1) / (4 - 1)
    return (1 - share) * speed / 8 + share * speed


def _seen(batch: Batch, length: int) -> Tensor:
    """Which keys each query sees, bool [B or 1, S, S]: earlier ones of its own document."""
    seen = torch.ones(length, length, dtype=torch.bool).tril()[None]
    if "cu_seqlens" not in batch:
        return seen
    documents = []
    for row in batch["cu_seqlens"].tolist():
        documents.append([sum(edge <= place for edge in row) for place in range(length)])
    number = torch.tensor(documents)
    return seen & (number[:, :, None] == number[:, None, :])

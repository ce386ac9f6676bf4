"""Train on a blend in a plain torch loop, stop, and resume: python examples/torch_loop.py

Run it in the folder with the datasets of encode_and_look.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tokpack import SampleIterator, open_blend

SEQUENCE, BATCH, STEPS = 64, 8, 20


class Model(nn.Module):
    """A transformer with one block."""

    def __init__(self, vocabulary: int, width: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(SEQUENCE, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        inputs = self.words(tokens) + self.places(positions)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.block(inputs, mask, is_causal=True))


def loss_of(model: Model, batch: dict[str, Any]) -> torch.Tensor:
    """The mean over the labels that count. Arrays become tensors without a copy."""
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    logits = model(tensors["tokens"], tensors["position_ids"])
    labels, counts = tensors["labels"].flatten(), tensors["loss_mask"].flatten()
    losses = functional.cross_entropy(logits.flatten(0, 1), labels, reduction="none")
    return (losses * counts).sum() / counts.sum()


def main() -> None:
    blend = {"datasets": {"code": 0.7, "manual": 0.3}, "seq_length": SEQUENCE, "split": "95,5,0"}
    train = open_blend(blend, samples=STEPS * BATCH).train
    batches = SampleIterator(train, BATCH)  # in a distributed run: rank=, world_size=
    torch.manual_seed(0)
    model = Model(1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    state: dict[str, Any] = {}
    for step, batch in enumerate(batches, 1):
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
        if step == STEPS // 2:
            state = batches.state_dict()  # a number and a fingerprint, for the checkpoint

    again = SampleIterator(train, BATCH // 2)  # as if restarted, with half the batch
    again.load_state_dict(state)
    following = next(again)["tokens"][0]
    if (following != train[STEPS // 2 * BATCH]["tokens"]).any():
        raise SystemExit("the run did not resume where it stopped")
    print(f"resumes with sample {state['consumed_samples']}, with any batch size")


if __name__ == "__main__":
    main()

"""Train on a blend with Lightning, stop, and resume: python examples/lightning_data.py

Run it in the folder with the datasets of encode_and_look.py. Needs lightning.
"""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import nn
from torch.nn import functional

from tokpack import SampleIterator, open_blend

SEQUENCE, BATCH, STEPS = 64, 8, 10


class Blend(lightning.LightningDataModule):
    """A blend whose position is saved in Lightning's checkpoints."""

    def setup(self, stage: str) -> None:
        blend = {"datasets": {"code": 0.7, "manual": 0.3}, "seq_length": SEQUENCE}
        train = open_blend(blend, samples=STEPS * BATCH).train
        rank, ranks = self.trainer.global_rank, self.trainer.world_size
        self.batches = SampleIterator(train, BATCH // ranks, rank=rank, world_size=ranks)

    def train_dataloader(self) -> SampleIterator:
        return self.batches

    def transfer_batch_to_device(self, batch: dict[str, Any], device: Any, _: int) -> Any:
        return {name: torch.from_numpy(array).to(device) for name, array in batch.items()}

    def state_dict(self) -> dict[str, Any]:
        return self.batches.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches.load_state_dict(state)


class Bigrams(lightning.LightningModule):
    """The smallest language model: a table of which token follows which."""

    def __init__(self, vocabulary: int = 1000) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, vocabulary)
        self.first: list[int] = []  # first token of each batch, to compare runs

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        self.first.append(int(batch["tokens"][0, 0]))
        logits, labels = self.table(batch["tokens"]), batch["labels"]
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def train(steps: int, checkpoint: str | None = None) -> tuple[lightning.Trainer, list[int]]:
    """Train to ``steps``; return the trainer and the first token of each batch."""
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    model = Bigrams()
    trainer.fit(model, datamodule=Blend(), ckpt_path=checkpoint)
    return trainer, model.first


def main() -> None:
    whole = train(STEPS)[1]
    half, before = train(STEPS // 2)
    half.save_checkpoint("half.ckpt")
    after = train(STEPS, "half.ckpt")[1]
    if before + after != whole:
        raise SystemExit("the run did not resume where it stopped")
    print(f"resumes with step {len(before) + 1} of {len(whole)}")


if __name__ == "__main__":
    main()

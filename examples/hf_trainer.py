"""Train with Hugging Face's Trainer: python examples/hf_trainer.py

Run it in the folder with the datasets of encode_and_look.py. Needs transformers and accelerate.
"""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from tokpack import BlendedDataset, GPTDataset

SEQUENCE, BATCH, STEPS = 64, 8, 4


class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Samples for the models of transformers, which shift the labels themselves."""

    def __init__(self, samples: BlendedDataset) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        tokens = torch.from_numpy(self.samples[number]["tokens"])
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    # Samples of exactly SEQUENCE tokens, because the model derives the labels from them.
    datasets = [GPTDataset(name, SEQUENCE, add_extra_token=False) for name in ("code", "manual")]
    train = Samples(BlendedDataset(datasets, [0.7, 0.3], size=STEPS * BATCH))
    config = GPT2Config(
        vocab_size=1000, n_positions=SEQUENCE, n_embd=32, n_layer=1, n_head=2,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir="trainer",
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        learning_rate=1e-2,
        train_sampling_strategy="sequential",  # the blend is already shuffled
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=not torch.cuda.is_available(),
    )
    Trainer(GPT2LMHeadModel(config), arguments, train_dataset=train).train()


if __name__ == "__main__":
    main()

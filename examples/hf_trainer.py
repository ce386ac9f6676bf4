"""Train with Hugging Face's Trainer, stop, and resume: python examples/hf_trainer.py

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
        self.taken: list[int] = []

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        self.taken.append(number)
        sample = {name: torch.from_numpy(array) for name, array in self.samples[number].items()}
        # What is not trained, as the loss mask says, has the label -100.
        counted = sample["labels"].masked_fill(sample["loss_mask"] == 0, -100)
        labels = torch.cat([torch.full((1,), -100), counted[:-1]])
        return {"input_ids": sample["tokens"], "labels": labels}


def train(steps: int, resume: str | None = None) -> list[int]:
    """Train to ``steps``; return the numbers of the samples that were taken."""
    # Samples of exactly SEQUENCE tokens, because the model derives the labels from them.
    datasets = [GPTDataset(name, SEQUENCE, add_extra_token=False) for name in ("code", "manual")]
    samples = Samples(BlendedDataset(datasets, [0.7, 0.3], size=STEPS * BATCH))
    config = GPT2Config(
        vocab_size=1000, n_positions=SEQUENCE, n_embd=32, n_layer=1, n_head=2,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir="trainer",
        per_device_train_batch_size=BATCH,
        max_steps=steps,
        learning_rate=1e-2,
        train_sampling_strategy="sequential",  # the blend is already shuffled
        logging_steps=1,
        save_steps=STEPS // 2,
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=samples)
    trainer.train(resume_from_checkpoint=resume)
    return samples.taken


def main() -> None:
    before = train(STEPS // 2)[: STEPS // 2 * BATCH]  # it had also read a batch ahead
    after = train(STEPS, f"trainer/checkpoint-{STEPS // 2}")  # skips samples without reading them
    if before + after != list(range(STEPS * BATCH)):
        raise SystemExit("the run did not resume where it stopped")
    print(f"resumes with sample {len(before)}")


if __name__ == "__main__":
    main()

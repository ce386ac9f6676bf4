"""Train torchtitan's models on a blend: python examples/torchtitan_loader.py

``BlendLoader.Config(blend="blend.yaml")`` is the ``dataloader`` of a torchtitan configuration. This
script takes some batches of it, in the folder with the datasets of encode_and_look.py. Needs
torchtitan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import yaml
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import IGNORE_INDEX

from tokpack import SampleIterator, open_blend

if TYPE_CHECKING:
    from collections.abc import Iterator

SEQUENCE, BATCH, STEPS = 64, 8, 20


class BlendLoader(BaseDataLoader):
    """Micro batches of a blend. Its state is the same on all ranks, and goes on with any number."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        blend: str = "blend.yaml"
        samples: int = 1_000_000
        prefetch: int = 4

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, seq_len: int,
        local_batch_size: int, **_: Any,
    ) -> None:  # fmt: skip
        train = open_blend(config.blend, seq_length=seq_len, samples=config.samples).train
        self.batches = SampleIterator(
            train, local_batch_size, rank=dp_rank, world_size=dp_world_size,
            prefetch=config.prefetch,
        )  # fmt: skip

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for batch in self.batches:
            arrays = {name: torch.from_numpy(array) for name, array in batch.items()}
            labels = arrays["labels"].masked_fill(arrays["loss_mask"] == 0, IGNORE_INDEX)
            yield {"input": arrays["tokens"], "positions": arrays["position_ids"]}, labels

    def state_dict(self) -> dict[str, Any]:
        return self.batches.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict:
            self.batches.load_state_dict(state_dict)


def main() -> None:
    with open("titan.yaml", "w") as file:
        yaml.safe_dump({"datasets": {"code": 0.7, "manual": 0.3}, "split": "95,5,0"}, file)
    config = BlendLoader.Config(blend="titan.yaml", samples=STEPS * BATCH)

    def loaders(ranks: int) -> list[BlendLoader]:
        places = {"seq_len": SEQUENCE, "local_batch_size": BATCH // ranks, "tokenizer": None}
        return [config.build(dp_world_size=ranks, dp_rank=rank, **places) for rank in range(ranks)]

    whole = [tokens for inputs, _ in loaders(1)[0] for tokens in inputs["input"]]
    before = loaders(2)
    streams = [iter(loader) for loader in before]
    for _ in range(STEPS // 2):
        for stream in streams:
            next(stream)
    (after,) = loaders(1)
    after.load_state_dict(before[0].state_dict())
    inputs, _ = next(iter(after))
    if not torch.equal(inputs["input"][0], whole[STEPS // 2 * BATCH]):
        raise SystemExit("the run did not resume where it stopped")
    print(f"2 ranks, then 1: resumes with sample {STEPS // 2 * BATCH}")


if __name__ == "__main__":
    main()

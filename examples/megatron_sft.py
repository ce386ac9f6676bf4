"""Conversations with the shapes of Megatron-LM's SFTDataset: python examples/megatron_sft.py

Run it in the folder of encode_and_look.py, whose tokenizer encodes the conversations made here.
"""

from __future__ import annotations

import json
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch

import tokpack

SEQUENCE = 512
TEMPLATE = """{% for m in messages %}<{{ m.role }}>
{{ m.content }}</s>
{% endfor %}{% if add_generation_prompt %}<assistant>
{% endif %}"""


class SFTDataset(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Whole conversations, packed, of S <= ``sequence_length`` tokens together; nothing is padded.

    ``tokens`` and ``labels`` int64 [S - 1], ``loss_mask`` float32 [S - 1], and ``cu_seqlens`` int32
    [conversations + 1], from 0 to S. The mask is that of PREFIX.mask: no token is searched for.
    """

    def __init__(self, prefix: str, sequence_length: int) -> None:
        self.packed = tokpack.GPTDataset(prefix, sequence_length - 1, packing="best_fit")

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        sample, rows = self.packed.parts(number)  # rows: sequence, first token, tokens
        cu_seqlens = np.append(0, rows[:, 2].cumsum()).astype(np.int32)
        names = ("tokens", "labels", "loss_mask")
        arrays = {name: sample[name][: cu_seqlens[-1] - 1] for name in names}
        return {k: torch.from_numpy(v) for k, v in {**arrays, "cu_seqlens": cu_seqlens}.items()}


def main() -> None:
    with Path("chats.jsonl").open("w") as file:
        for name, text in topics.items():
            said = [("user", f"What is {name}?"), ("assistant", text.strip()[:600])]
            messages = [{"role": role, "content": content} for role, content in said]
            file.write(json.dumps({"messages": messages}) + "\n")
    options = {"tokenizer": "tokenizer.json", "chat_template": TEMPLATE}
    tokpack.encode("chats.jsonl", "chats", chat=True, max_length=SEQUENCE, **options)
    train = SFTDataset("chats", SEQUENCE)
    trained = sum(int(train[number]["loss_mask"].sum()) for number in range(len(train)))
    if trained != sum(int(mask.sum()) for mask in tokpack.MMapIndexedDataset("chats").mask):
        raise SystemExit("not every trained token is predicted once")
    print(f"{len(train)} samples of whole conversations, {trained:,} trained tokens in them")


if __name__ == "__main__":
    main()

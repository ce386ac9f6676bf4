"""Packed conversations for Megatron-LM, by their index: python examples/megatron_sft.py

No token is written again: tokens are read from PREFIX.bin, what is trained from PREFIX.mask, and
which conversations share a sample from PREFIX.packs.npy. ``write_packs`` makes that one with
tokpack, once; PackedDataset needs numpy, torch and megatron-core alone. It gives the arrays of
Megatron-LM's SFTDataset: to train on them, let pretrain_gpt.py take it as ``dataset_type``, and
give ``--sft``.

Run it in the folder of encode_and_look.py, whose tokenizer encodes the conversations made here.
"""

from __future__ import annotations

import json
from pathlib import Path
from pydoc_data.topics import topics
from types import SimpleNamespace

import numpy as np
import torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.megatron_dataset import MegatronDataset

SEQUENCE = 512
TEMPLATE = """{% for m in messages %}<{{ m.role }}>
{{ m.content }}</s>
{% endfor %}{% if add_generation_prompt %}<assistant>
{% endif %}"""


def write_packs(prefix: str, sequence_length: int) -> None:
    """Write PREFIX.packs.npy: int64 [n, 4], a row for each conversation of each pack, in order.

    A row is the number of the pack, that of the sequence, its first token and how many.
    """
    import tokpack

    packed = tokpack.GPTDataset(prefix, sequence_length, packing="best_fit")
    rows = [packed.locate(number) for number in range(len(packed))]
    numbers = np.repeat(np.arange(len(rows)), [len(pack) for pack in rows])
    np.save(f"{prefix}.packs.npy", np.column_stack([numbers, np.concatenate(rows)]))


class Packs:
    """The packs of a dataset: tokens, and whether each is trained, read where they lie."""

    def __init__(self, prefix: str, sequence_length: int) -> None:
        self.tokens = IndexedDataset(prefix)
        lengths = self.tokens.sequence_lengths.astype(np.int64)
        self.begins = np.cumsum(lengths) - lengths  # of sequences, in tokens
        self.rows = np.load(f"{prefix}.packs.npy", mmap_mode="r")
        packs, sequences, firsts, counts = self.rows.T
        self.bounds = np.append(np.flatnonzero(np.diff(packs, prepend=-1)), len(packs))
        longest = int(np.add.reduceat(counts, self.bounds[:-1]).max())
        ends = np.zeros(max(len(lengths), sequences.max() + 1), np.int64)
        np.maximum.at(ends, sequences, firsts + counts)
        if not np.array_equal(ends, np.where(lengths > 1, lengths, 0)):
            raise ValueError(f"{prefix}.packs.npy is of another dataset: write it again")
        if longest > sequence_length + 1:
            raise ValueError(f"{prefix}.packs.npy has packs of {longest} tokens: write it again")
        tracks = json.loads(Path(f"{prefix}.json").read_text()).get("tracks", {})
        if not tracks.keys() <= {"mask", "roles"}:
            raise ValueError(f"{prefix}: has {', '.join(tracks)}, and only a mask is read here")
        self.mask = np.memmap(f"{prefix}.mask", np.uint8, "r") if "mask" in tracks else None
        if self.mask is not None and len(self.mask) != lengths.sum():
            raise ValueError(f"{prefix}.mask: {len(self.mask)} values, {lengths.sum()} tokens")

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each conversation the tokens, and whether each is trained."""
        begin, end = self.bounds[number : number + 2]
        pieces = []
        for _, sequence, first, count in self.rows[begin:end].tolist():
            at = self.begins[sequence] + first
            mask = np.ones(count) if self.mask is None else self.mask[at : at + count]
            pieces.append((self.tokens.get(sequence, first, count), mask))
        return pieces


class PackedDataset(MegatronDataset):
    """Samples of S = ``sequence_length`` tokens, one pack each, in another order every epoch.

    ``tokens``, ``labels`` and ``position_ids`` int64 [S], ``loss_mask`` float32 [S], ``cu_seqlens``
    int32 [S + 1], the beginnings of conversations and of the padding, then S, and ``max_seqlen``. A
    split is of packs.
    """

    epoch = -1  # that of ``order``, the packs one after the other

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: GPTDatasetConfig) -> Packs:
        return Packs(dataset_path, config.sequence_length)

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: Packs) -> int:
        return len(low_level_dataset)

    def __len__(self) -> int:
        return len(self.indices) if self.num_samples is None else self.num_samples

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        epoch, place = divmod(number, len(self.indices))
        if epoch != self.epoch:
            random = np.random.default_rng([self.config.random_seed, epoch])
            self.epoch, self.order = epoch, random.permutation(self.indices)
        size, end = self.config.sequence_length, 0
        text, loss, positions = np.zeros((3, size + 1), np.int64)
        starts = np.full(size + 1, size, np.int32)
        starts[0] = 0
        for count, (tokens, mask) in enumerate(self.dataset[self.order[place]], 1):
            begin, end = end, end + len(tokens)
            text[begin:end], positions[begin:end] = tokens, np.arange(len(tokens))
            loss[begin + 1 : end] = mask[1:]  # nothing predicts the first token
            starts[count] = min(end, size)
        positions[end:] = np.arange(size + 1 - end)
        sample = {
            "tokens": text[:-1], "labels": text[1:], "loss_mask": loss[1:].astype(np.float32),
            "position_ids": positions[:-1], "cu_seqlens": starts,
            "max_seqlen": np.diff(starts).max(),
        }  # fmt: skip
        return {name: torch.from_numpy(np.array(values)) for name, values in sample.items()}


def main() -> None:
    import tokpack

    with Path("chats.jsonl").open("w") as file:
        for name, text in topics.items():
            said = [("user", f"What is {name}?"), ("assistant", text.strip()[:600])]
            messages = [{"role": role, "content": content} for role, content in said]
            file.write(json.dumps({"messages": messages}) + "\n")
    options = {"tokenizer": "tokenizer.json", "chat_template": TEMPLATE}
    tokpack.encode("chats.jsonl", "chats", chat=True, max_length=SEQUENCE, **options)
    write_packs("chats", SEQUENCE)
    config = GPTDatasetConfig(
        random_seed=1234, sequence_length=SEQUENCE, blend=(["chats"], None), split="9,1,0",
        tokenizer=SimpleNamespace(vocab_size=1000, eod=0, pad=-1, unique_identifiers={}),
        reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
    )  # fmt: skip
    train, valid, _ = BlendedMegatronDatasetBuilder(
        PackedDataset, [None, None, None], lambda: True, config
    ).build()
    samples = [one[number] for one in (train, valid) for number in range(len(one))]
    trained = sum(int(sample["loss_mask"].sum()) for sample in samples)
    if trained != sum(int(mask.sum()) for mask in tokpack.MMapIndexedDataset("chats").mask):
        raise SystemExit("not every trained token is predicted once")
    print(f"{len(train)} and {len(valid)} packs of whole conversations, {trained:,} trained tokens")


if __name__ == "__main__":
    main()

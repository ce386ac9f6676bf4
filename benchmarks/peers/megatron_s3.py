"""Samples by Megatron-core's reader of S3: megatron_s3.py URL SAMPLES TAKEN SEQ_LENGTH CACHE.

The interpreter that has megatron-core, torch and boto3 runs this. Its index files are made before
the clock runs. Prints the seconds that the samples took, the requests and a checksum of the tokens,
as JSON.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import time
import warnings
from typing import Any

import numpy as np


def open_samples(url: str, samples: int, seq_length: int, cache: str) -> Any:
    """Megatron-core's GPTDataset of a dataset on S3, with its defaults."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
        from megatron.core.datasets.utils import Split
    logging.disable(logging.WARNING)

    class Tokenizer:
        """What GPTDataset asks of a tokenizer; its pad is no token of the dataset."""

        vocab_size, eod, pad = 50_002, 50_000, 50_001
        unique_identifiers = {"class": "none"}  # noqa: RUF012

    config = GPTDatasetConfig(
        random_seed=1234,
        sequence_length=seq_length,
        split="1",
        path_to_cache=f"{cache}/indices",
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        mmap_bin_files=False,
        object_storage_cache_path=f"{cache}/idx",
    )
    data = GPTDataset.build_low_level_dataset(url, config)
    documents = np.arange(len(data.sequence_lengths), dtype=np.int32)
    return GPTDataset(data, url, documents, samples, Split.train, config)


def main(url: str, samples: str, taken: str, seq_length: str, cache: str) -> None:
    """Take the first samples, and say how long that took."""
    dataset = open_samples(url, int(samples), int(seq_length), cache)
    client = dataset.dataset.bin_reader._client
    get, sizes = client.get_object, []

    def counted(**given: Any) -> Any:
        answer = get(**given)
        sizes.append(answer["ContentLength"])
        return answer

    client.get_object = counted
    digest, began = hashlib.sha256(), time.perf_counter()
    for number in range(int(taken)):
        digest.update(dataset[number]["tokens"].numpy().tobytes())
    seconds = time.perf_counter() - began
    found = {"seconds": seconds, "requests": len(sizes), "mb": sum(sizes) / 1e6}
    print(json.dumps({**found, "sha256": digest.hexdigest()}))


if __name__ == "__main__":
    main(*sys.argv[1:])

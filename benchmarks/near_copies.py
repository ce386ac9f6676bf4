"""Near copies found by ``tokpack dedup --near`` and by datatrove, against all pairs compared.

    python benchmarks/near_copies.py TEXTS.jsonl.zst TOKENIZER [--documents 4700] [--alike 0.8]

To the first documents of some JSON lines copies of one in eight are added: a third of them exact, a
third with 1% of the words replaced, a third cut off at 50 to 100%. Whoever finds copies leaves out
all but the first of a cluster. Recall and precision are of the documents that are left out, against
those that all pairs of sets of token 5-grams leave out. datatrove (``pip install
'datatrove[processing]' 'xxhash<3.6'``: 0.10.1 gives texts to functions that newer ones want as
bytes) compares 5-grams of words, which is a neighbouring question. Both with 14 bands of 8 and one
worker; seconds are of processor time, datatrove's from the texts on, tokpack's from the dataset,
which is there already.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import tempfile
import time
from collections import Counter, defaultdict
from itertools import combinations
from pathlib import Path

import zstandard

import tokpack

NGRAM = 5
ONE_IN = 8


def texts_with_copies(path: str, count: int) -> list[str]:
    """The first documents of a file, and copies of some of them, shuffled."""
    source = random.Random(1)
    with open(path, "rb") as file:
        stream = zstandard.ZstdDecompressor().stream_reader(file)
        lines = io.TextIOWrapper(stream, encoding="utf-8")
        texts = [json.loads(line)["text"] for line, _ in zip(lines, range(count), strict=False)]
    for number, text in enumerate(source.sample(texts, len(texts) // ONE_IN)):
        words = text.split(" ")
        if number % 3 == 1:
            for place in source.sample(range(len(words)), -(-len(words) // 100)):
                words[place] = source.choice(words)
        elif number % 3 == 2:
            words = words[: int(len(words) * source.uniform(0.5, 1))]
        texts.append(" ".join(words))
    source.shuffle(texts)
    return texts


def left_out_by_all_pairs(dataset: tokpack.MMapIndexedDataset, alike: float) -> set[int]:
    """All but the first of each cluster of documents whose sets of n-grams are so alike."""
    holders = defaultdict(list)
    sizes = []
    for number in range(dataset.documents):
        ids = dataset.document(number).tolist()
        grams = set(zip(*(ids[at:] for at in range(NGRAM)), strict=False)) or {tuple(ids)}
        sizes.append(len(grams))
        for gram in grams:
            holders[gram].append(number)
    shared = Counter(pair for some in holders.values() for pair in combinations(some, 2))
    first = list(range(dataset.documents))

    def root(number: int) -> int:
        while first[number] != number:
            number = first[number]
        return number

    for (a, b), count in shared.items():
        if count >= alike * (sizes[a] + sizes[b] - count):
            low, high = sorted((root(a), root(b)))
            first[high] = low
    return {number for number in range(dataset.documents) if root(number) != number}


def left_out_by_tokpack(prefix: str, alike: float, verify: bool) -> set[int]:
    """The same by ``tokpack dedup --near``."""
    output = f"{prefix}_clean"
    tokpack.dedup([prefix], output, near=alike, verify=verify, threads=1, overwrite=True)
    kept = tokpack.MMapIndexedDataset(output).view
    assert kept is not None
    return set(range(tokpack.MMapIndexedDataset(prefix).documents)) - set(kept.numbers.tolist())


def left_out_by_datatrove(texts: str, folder: str, count: int) -> set[int]:
    """The same by datatrove's four steps."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import minhash
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    reader = JsonlReader(os.path.dirname(texts), glob_pattern=os.path.basename(texts))
    config = minhash.MinhashConfig(n_grams=NGRAM, num_buckets=14, hashes_per_bucket=8)
    signatures, buckets, removed = (f"{folder}/{one}" for one in ("sigs", "buckets", "removed"))
    kept = JsonlWriter(f"{folder}/kept", compression=None)
    steps = (
        ([reader, minhash.MinhashDedupSignature(signatures, config)], 1),
        ([minhash.MinhashDedupBuckets(signatures, buckets, config=config)], config.num_buckets),
        ([minhash.MinhashDedupCluster(buckets, removed, config=config)], 1),
        ([reader, minhash.MinhashDedupFilter(removed), kept], 1),
    )
    for number, (pipeline, tasks) in enumerate(steps):
        logs = f"{folder}/logs{number}"
        LocalPipelineExecutor(pipeline, tasks=tasks, workers=1, logging_dir=logs).run()
    lines = [
        json.loads(line)
        for path in Path(folder, "kept").iterdir()
        for line in path.read_text().splitlines()
    ]
    return set(range(count)) - {int(line["id"]) for line in lines}


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts")
    parser.add_argument("tokenizer")
    parser.add_argument("--documents", type=int, default=4700)
    parser.add_argument("--alike", type=float, default=0.8)
    arguments = parser.parse_args()
    texts = texts_with_copies(arguments.texts, arguments.documents)
    with tempfile.TemporaryDirectory() as folder:
        path, prefix = f"{folder}/texts.jsonl", f"{folder}/texts"
        lines = (json.dumps({"text": text, "id": str(n)}) for n, text in enumerate(texts))
        Path(path).write_text("\n".join(lines))
        tokpack.encode(path, prefix, tokenizer=arguments.tokenizer, empty="document")
        right = left_out_by_all_pairs(tokpack.MMapIndexedDataset(prefix), arguments.alike)
        print(f"all pairs of {len(texts):,} documents: {len(right):,} left out", flush=True)
        for name, work in {
            "tokpack": lambda: left_out_by_tokpack(prefix, arguments.alike, verify=True),
            "tokpack --no-verify": lambda: left_out_by_tokpack(prefix, arguments.alike, False),
            "datatrove": lambda: left_out_by_datatrove(path, folder, len(texts)),
        }.items():
            begin = time.process_time()
            answer = work()
            seconds, both = time.process_time() - begin, len(answer & right)
            print(
                f"{name}: {len(answer):,} left out, recall {both / len(right):.1%}, precision "
                f"{both / len(answer):.1%}, {seconds:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()

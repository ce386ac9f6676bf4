"""Let tokpack encode in transformers, datasets and datatrove: python examples/faster_tokenizers.py

Run it in the folder with the datasets of encode_and_look.py. Needs transformers, datasets and
datatrove.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import datasets
import transformers
from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.utils import tokenization

import tokpack

TOKENIZER = "tokenizer.json"  # of encode_and_look.py


def in_datasets(texts: list[str]) -> list[list[int]]:
    """The map of a dataset, without lists on the way."""
    tokenizer = tokpack.load_tokenizer(TOKENIZER)

    def tokenize(batch: dict[str, list[str]]) -> dict[str, list[object]]:
        ids, offsets = tokenizer.encode_batch(batch["text"])
        return {"input_ids": [ids[a:b] for a, b in pairwise(offsets)]}

    dataset = datasets.Dataset.from_dict({"text": texts})
    return list(dataset.map(tokenize, batched=True, remove_columns="text")["input_ids"])


def in_datatrove(texts: list[str], folder: str) -> bytes:
    """The tokenization step of datatrove."""
    documents = [Document(text=text, id=str(number)) for number, text in enumerate(texts)]
    step = DocumentTokenizer(folder, tokenizer_name_or_path=TOKENIZER, shuffle_documents=False)
    LocalPipelineExecutor([documents, step], logging_dir=f"{folder}/logs").run()
    (path,) = Path(folder).glob("*.ds")
    return path.read_bytes()


def main() -> None:
    texts = [json.loads(line)["text"] for line in Path("code.jsonl").read_text().splitlines()]
    plain = transformers.PreTrainedTokenizerFast(tokenizer_file=TOKENIZER)
    before = plain(texts)["input_ids"], in_datatrove(texts, "plain")

    fast = tokpack.load_tokenizer(TOKENIZER).as_hf()
    load = tokenization.load_tokenizer
    tokenization.load_tokenizer = lambda name: tokpack.AcceleratedTokenizer(load(name))

    after = fast(texts)["input_ids"], in_datatrove(texts, "fast")
    if after != before or in_datasets(texts) != before[0]:
        raise SystemExit("the ids differ")
    print(f"{len(texts)} documents: the same ids in transformers, datasets and datatrove")


if __name__ == "__main__":
    main()

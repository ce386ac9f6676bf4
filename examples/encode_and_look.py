"""Encode two corpora that come with Python, and inspect them: python examples/encode_and_look.py

Writes the datasets code and manual and their tokenizer to the current folder.
"""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path
from pydoc_data.topics import topics

import tokpack
from tokpack.dataset import Origins
from tokpack.tokenizers import train_bpe


def texts() -> dict[str, list[str]]:
    """Two corpora: modules of the standard library, and chapters of Python's manual."""
    library = Path(sysconfig.get_path("stdlib"))
    modules = [path for name in ("email", "http", "json") for path in library.glob(f"{name}/*.py")]
    code = [path.read_text("utf-8") for path in sorted(modules)]
    return {"code": code, "manual": list(topics.values())}


def main() -> None:
    corpora = texts()
    every = [text for documents in corpora.values() for text in documents]
    Path("tokenizer.json").write_text(train_bpe(every, vocab_size=1000))
    tokenizer = tokpack.load_tokenizer("tokenizer.json")

    for name, documents in corpora.items():
        lines = "".join(json.dumps({"text": text}) + "\n" for text in documents)
        Path(f"{name}.jsonl").write_text(lines)
        tokpack.encode(f"{name}.jsonl", name, tokenizer="tokenizer.json", trace=True)

        dataset = tokpack.MMapIndexedDataset(name)
        print(f"{name}: {len(dataset)} documents, {dataset.token_count:,} tokens, {dataset.dtype}")
        ids = dataset.get(0, length=12)
        print(f"  begins {[tokenizer.decode([token]) for token in ids]}")
        if tokenizer.decode(dataset[0][:-1]) != documents[0]:  # the last id ends the document
            raise SystemExit("the decoded text differs from the original")
        longest = int(dataset.sizes.argmax())
        print(f"  document {longest} is the longest, from {Origins(name)[longest]}")


if __name__ == "__main__":
    main()

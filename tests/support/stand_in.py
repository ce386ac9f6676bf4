"""Small data in place of the real: made-up and the repository's own texts, tokenizers of them.

The files have the names of the real ones, and the same formats; tokenizers have fewer tokens.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING

import numpy as np
import zstandard

from support.indexed_twin import Plain, pack_index
from support.places import GOLDEN, ROOT
from support.traps import TRAPS
from tokpack.tokenizers import load_tokenizer
from tokpack.tokenizers.check import reference
from tokpack.tokenizers.huggingface import encode_batch

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENTS = GOLDEN / "documents"


def stand_in(folder: Path) -> Path:
    """Corpora, tokenizers and the golden indices in an empty folder."""
    pages = [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]
    sections = [section for page in pages for section in page.split("\n\n## ")]
    paragraphs = [paragraph for page in pages[::4] for paragraph in page.split("\n\n")]
    code = [path.read_text() for path in sorted((ROOT / "src").rglob("*.py"))[::12]]
    lines = (DOCUMENTS / "documents.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    made_up = [json.loads(line)["text"] for line in lines]
    odd = [text for texts in TRAPS.values() for text in texts]
    odd += ["", "x" * 100_000, "a;\r\n" * 5000, "e\u0301" * 3000, "".join(made_up)]
    corpora = {"owt": sections, "english": paragraphs, "code": code, "multi": made_up, "nasty": odd}
    (folder / "corpora").mkdir()
    for name, texts in corpora.items():
        records = "".join(json.dumps({"text": text, "meta": {}}) + "\n" for text in texts)
        packed = zstandard.compress(records.encode())
        (folder / "corpora" / f"{name}.jsonl.zst").write_bytes(packed)
    # Without lengths that have no tokens.
    shutil.copytree(GOLDEN / "index", folder / "index", ignore=shutil.ignore_patterns("owt.idx"))
    _tokenizers(folder / "tokenizers")
    _sentencepiece(folder / "tokenizers" / "modern", [*sections, *made_up])
    expected = _expected(folder / "tokenizers", corpora)
    (folder / "corpora" / "expected.json").write_text(json.dumps(expected))
    return folder


def _tokenizers(folder: Path) -> None:
    folder.mkdir()
    model = json.loads((DOCUMENTS / "gpt2.json").read_bytes())["model"]
    (folder / "gpt2-vocab.json").write_text(json.dumps(model["vocab"]))
    merges = "".join(" ".join(pair) + "\n" for pair in model["merges"])
    (folder / "gpt2-merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")
    neox = json.loads((DOCUMENTS / "neox.json").read_bytes())
    number = 1 + max(token["id"] for token in neox["added_tokens"])  # behind the runs of spaces
    padding = {**neox["added_tokens"][0], "id": number, "content": "<|padding|>"}
    neox["added_tokens"].append(padding)
    (folder / "20B_tokenizer.json").write_text(json.dumps(neox))


def _expected(folder: Path, corpora: dict[str, list[str]]) -> dict[str, dict[str, object]]:
    """What the Hugging Face library makes of them, by the twin of the format."""
    files = (folder / "gpt2-vocab.json", folder / "gpt2-merges.txt")
    gpt2 = load_tokenizer(vocab_file=files[0], merge_file=files[1])
    neox = load_tokenizer(folder / "20B_tokenizer.json")
    expected: dict[str, dict[str, object]] = {}
    for tokenizer, name, mode in ((gpt2, "gpt2", "text"), (neox, "neox20b", "encode")):
        library = reference(tokenizer, mode)
        for corpus, texts in corpora.items():
            ids = [row for row in encode_batch(library, texts) if row]
            sequences = [[*row, tokenizer.eod_id] for row in ids]
            tokens = np.concatenate(sequences).astype("<u2")
            index = pack_index(Plain("H", sequences, list(range(len(ids) + 1))))
            expected[f"{corpus}.{name}"] = {
                "docs": len(texts),
                "empty": len(texts) - len(ids),
                "tokens": len(tokens),
                "bin": hashlib.sha256(tokens.tobytes()).hexdigest(),
                "idx": hashlib.sha256(index).hexdigest(),
            }
    return expected


def _sentencepiece(folder: Path, texts: list[str]) -> None:
    """A model like Mistral's: BPE with bytes, and a space before each text."""
    from support.sentencepiece_tools import trained

    folder.mkdir()
    lines = tuple(line[:1000] for text in texts for line in text.splitlines() if line)
    (folder / "mistral-v1.model").write_bytes(trained("llama", lines, 2000))

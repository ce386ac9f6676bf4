"""One library, one corpus, one fresh process: what ``encode.py`` runs for each cell of its table.

    python encode_one.py LIBRARY TEXT OFFSETS BYTES TOKENIZER_FOLDER PASSES

Encodes the documents in TEXT (cut at the int64 OFFSETS, of which as many as fit into BYTES) on one
thread and prints one JSON object: CPU seconds of every pass, and the sha256 of all ids as uint32.
Needs only numpy and the library, so that it runs in any environment.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"  # snaptokens has no other way to ask for one thread
BLOCK = 1 << 20


def tokpack(folder: Path, documents: list[bytes]) -> Callable[[], Any]:
    """tokpack as its pipeline uses it: blocks of about a megabyte, one array of ids for each."""
    from tokpack import load_tokenizer

    tokenizer = load_tokenizer(folder)
    dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "int32"
    encoder = tokenizer.encoder(dtype=dtype, append_eod=False)
    blocks = []
    block: list[bytes] = []
    for document in [*documents, None]:
        if document is not None:
            block.append(document)
        if block and (document is None or sum(map(len, block)) >= BLOCK):
            ends = np.cumsum([len(d) for d in block])
            spans = np.stack([ends - [len(d) for d in block], ends], axis=1).astype(np.int64)
            blocks.append((np.frombuffer(b"".join(block), np.uint8), spans))
            block = []
    ids = np.zeros(sum(map(len, documents)) + len(documents), dtype)

    def encode() -> Any:
        used = 0
        for data, spans in blocks:
            new = encoder.encode(data, spans).ids
            ids[used : used + len(new)] = new
            used += len(new)
        return ids[:used]

    ids[:] = 1  # the copy's memory is there before the clock starts
    return encode


def gigatoken(folder: Path, documents: list[bytes]) -> Callable[[], Any]:
    """gigatoken's fastest API: a list of bytes in, an Awkward array out."""
    import gigatoken

    tokenizer = gigatoken.Tokenizer(str(folder / "tokenizer.json"))
    return lambda: tokenizer.encode_batch(documents, parallel=False)


def snaptokens(folder: Path, documents: list[bytes]) -> Callable[[], Any]:
    """snaptokens' API with the least Python in it: a list of texts in, all ids as bytes out."""
    from snaptokens import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [document.decode() for document in documents]
    return lambda: np.frombuffer(tokenizer.encode_batch_flat(texts)[0], np.uint32)


def tokenizers(folder: Path, documents: list[bytes]) -> Callable[[], Any]:
    """The Hugging Face library, without offsets."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [document.decode() for document in documents]
    return lambda: [e.ids for e in tokenizer.encode_batch_fast(texts)]


def _digest(result: Any) -> str:
    if hasattr(result, "layout"):
        import awkward

        result = awkward.to_numpy(awkward.flatten(result))
    if isinstance(result, np.ndarray):
        return hashlib.sha256(result.astype(np.uint32).tobytes()).hexdigest()
    digest = hashlib.sha256()
    for ids in result:
        digest.update(np.asarray(ids, np.uint32).tobytes())
    return digest.hexdigest()


def main() -> None:
    """Measure, and print the result."""
    library, text, offsets, limit, folder, passes = sys.argv[1:]
    content = Path(text).read_bytes()
    ends = np.fromfile(offsets, np.int64)
    ends = ends[ends <= int(limit)].tolist()
    documents = [content[a:b] for a, b in itertools.pairwise(ends)]
    del content
    encode = {
        "tokpack": tokpack,
        "gigatoken": gigatoken,
        "snaptokens": snaptokens,
        "tokenizers": tokenizers,
    }[library](Path(folder), documents)
    seconds = []
    for _ in range(int(passes)):
        start = time.process_time()
        result = encode()
        seconds.append(time.process_time() - start)
    print(json.dumps({"bytes": ends[-1], "seconds": seconds, "ids": _digest(result)}))


if __name__ == "__main__":
    main()

"""One library on one text in a process of its own: what ``bench`` runs for each measurement.

    python -P bench_one.py LIBRARY TEXT OFFSETS BYTES TOKENIZER_FOLDER

Encodes the documents in TEXT, cut at the int64 OFFSETS, as many as fit into BYTES, on one thread,
each once, and prints what ``main`` measures as JSON. Needs only numpy and the library, so
that it runs in any environment.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import resource
import sys
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Documents = Sequence[bytes]
    # Two functions: convert documents for the library, and encode these.
    Library = tuple[Callable[[Documents], Any], Callable[[Any], Any]]

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"  # for snaptokens and fastokens, which have no other way
FIRST = 10_000_000  # bytes of text that count as "first"
BLOCK = 1 << 20


def tokpack(folder: Path) -> Library:
    """tokpack as its pipeline uses it: blocks of about a megabyte, an array of ids for each."""
    from tokpack.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(folder)
    dtype: Any = "uint16" if tokenizer.vocab_size <= 1 << 16 else "int32"
    encoder = tokenizer.encoder(dtype=dtype, append_eod=False)

    def prepare(documents: Documents) -> Any:
        sizes = np.array([0, *map(len, documents)], np.int64)
        ends = np.cumsum(sizes)
        data = np.frombuffer(b"".join(documents), np.uint8)
        spans = np.stack([ends[:-1], ends[1:]], axis=1)
        borders = np.flatnonzero(np.diff(ends // BLOCK)) + 1
        blocks = [block for block in np.split(spans, borders) if len(block)]
        return [(data[block[0, 0] : block[-1, 1]], block - block[0, 0]) for block in blocks]

    return prepare, lambda blocks: [encoder.encode(data, spans).ids for data, spans in blocks]


def gigatoken(folder: Path) -> Library:
    """gigatoken's fastest API: a list of bytes in, an Awkward array out."""
    import gigatoken

    tokenizer = gigatoken.Tokenizer(str(folder / "tokenizer.json"))
    return list, lambda documents: tokenizer.encode_batch(documents, parallel=False)


def snaptokens(folder: Path, module: str = "snaptokens") -> Library:
    """The API with the least Python in it: a list of texts in, all ids as bytes out."""
    tokenizer = import_module(module).Tokenizer.from_file(str(folder / "tokenizer.json"))
    return _texts, lambda texts: np.frombuffer(tokenizer.encode_batch_flat(texts)[0], np.uint32)


def fastokens(folder: Path) -> Library:
    """The same API as that of snaptokens."""
    return snaptokens(folder, "fastokens")


def tokenizers(folder: Path) -> Library:
    """The Hugging Face library, without offsets."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)  # not in version 1
    return _texts, lambda texts: [e.ids for e in encode(texts)]


def transformers(folder: Path) -> Library:
    """A fast tokenizer of transformers, text by text, as preprocessing scripts call it."""
    import transformers

    face: Any = transformers.PreTrainedTokenizerFast
    tokenizer = face(tokenizer_file=str(folder / "tokenizer.json"))
    return _texts, lambda texts: [tokenizer.encode(t, add_special_tokens=False) for t in texts]


def tiktoken(folder: Path) -> Library:
    """tiktoken, whose ranks are the ids; for a vocabulary in another order its ids differ."""
    import tiktoken

    definition = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    ranks = {_bytes_of(token): rank for token, rank in definition["model"]["vocab"].items()}
    for token in definition["added_tokens"]:
        ranks.pop(_bytes_of(token["content"]), None)
    encoding = tiktoken.Encoding(
        "bench",
        pat_str=_expression(definition["pre_tokenizer"]),
        mergeable_ranks=ranks,
        special_tokens={},
    )
    return _texts, lambda texts: [encoding.encode_ordinary(text) for text in texts]


_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _expression(node: dict[str, Any]) -> str:
    """The only expression by which a definition cuts text. ValueError if it has other steps."""
    first, *others = node.get("pretokenizers", [node])
    if not others and first["type"] == "ByteLevel" and first.get("use_regex", True):
        return _GPT2
    if (first["type"], *(step["type"] for step in others)) != ("Split", "ByteLevel"):
        raise ValueError("tiktoken cuts text by one expression")
    return str(first["pattern"]["Regex"])


def _bytes_of(token: str) -> bytes:
    """The bytes of a token in GPT-2's vocabulary, where each character stands for a byte."""
    return b"".join(_BYTES.get(character, character.encode()) for character in token)


# Printable bytes are their own characters, the others are those from U+0100 on.
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_CHARACTERS = [*map(chr, _PRINTABLE), *(chr(256 + i) for i in range(len(_OTHERS)))]
_BYTES = {c: bytes([byte]) for c, byte in zip(_CHARACTERS, _PRINTABLE + _OTHERS, strict=True)}
_ALL = (tokpack, fastokens, gigatoken, snaptokens, tiktoken, tokenizers, transformers)
LIBRARIES = {make.__name__: make for make in _ALL}


def _texts(documents: Documents) -> list[str]:
    return [document.decode() for document in documents]


def _add(digest: Any, ids: Any) -> None:
    if hasattr(ids, "layout"):
        import awkward

        ids = awkward.to_numpy(awkward.flatten(ids))
    for row in [ids] if isinstance(ids, np.ndarray) else ids:
        digest.update(np.asarray(row).astype(np.uint32).tobytes())


def _used() -> tuple[float, float]:
    """Processor seconds of this process so far: all, and those in the system, by its ticks."""
    return time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_stime


def main() -> None:
    """Measure processor seconds: to the first letter, for the first 10 MB, and later.

    Prints ``construction``, ``first`` and ``later``, the last two with the ``bytes`` of their
    texts and the seconds in the ``system``; ``ids`` is the sha256 of all ids as uint32.
    """
    library, text, offsets, limit, folder = sys.argv[1:]
    content = Path(text).read_bytes()
    ends = np.fromfile(offsets, np.int64)
    ends = ends[ends <= int(limit)]
    border = int(np.searchsorted(ends[1:], FIRST))
    documents = [content[a:b] for a, b in itertools.pairwise(ends.tolist())]
    del content
    began = time.process_time()
    prepare, encode = LIBRARIES[library](Path(folder))
    encode(prepare([b"a"]))  # some libraries do more work in their first call
    row: dict[str, Any] = {"construction": time.process_time() - began}
    digest = hashlib.sha256()
    for name, part in (("first", documents[:border]), ("later", documents[border:])):
        batch = prepare(part)
        began, in_system = _used()
        ids = encode(batch) if part else []
        ended, all_in_system = _used()
        row[name] = {"bytes": sum(map(len, part)), "seconds": ended - began}
        row[name]["system"] = all_in_system - in_system
        _add(digest, ids)
    print(json.dumps({"version": version(library), **row, "ids": digest.hexdigest()}))


if __name__ == "__main__":
    main()

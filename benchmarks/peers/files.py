"""GPT-2's tokenizer in the forms that preprocessors ask for, and how what they wrote compares."""

from __future__ import annotations

import json
import shutil
import struct
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from inputs import sha256

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

EOD = "<|endoftext|>"


def write_tokenizer(folder: Path, vocab_file: Path, merge_file: Path) -> None:
    """Write vocab.json, merges.txt, tokenizer.json and what the transformers library wants."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(vocab_file, folder / "vocab.json")
    shutil.copyfile(merge_file, folder / "merges.txt")
    tokenizer = Tokenizer(models.BPE.from_file(str(vocab_file), str(merge_file)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(EOD, special=True, normalized=False)])
    content = json.loads(tokenizer.to_str())
    # The form of merges that tokenizers before 0.20 know too.
    content["model"]["merges"] = [
        merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"]
    ]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    special = dict.fromkeys(("eos_token", "bos_token", "unk_token"), EOD)
    config = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))


def compare(results: Sequence[Path], prefix: Path) -> str:
    """In words: how the token files ``results``, in order, differ from the dataset ``prefix``."""
    if not results:
        return "NO OUTPUT"
    right = np.fromfile(prefix.with_suffix(".bin"), "<u2")
    tokens = np.concatenate([np.fromfile(path, "<u2") for path in results])
    indices = [path.with_suffix(".idx") for path in results]
    if all(index.exists() for index in indices):
        ours = lengths_of(prefix.with_suffix(".idx"))
        theirs = np.concatenate([lengths_of(index) for index in indices])
        same, kind = "same bytes", ""
        if len(results) > 1 and np.array_equal(theirs, ours):
            same = f"same documents in {len(results)} files"
        elif len(results) > 1 or sha256(indices[0]) != sha256(prefix.with_suffix(".idx")):
            same = "same .bin, other .idx"
    else:  # every document ends with the EOD
        ends = (np.flatnonzero(ids == right[-1]) for ids in (right, tokens))
        ours, theirs = (np.diff(places, prepend=-1) for places in ends)
        same, kind = "same tokens, no index", ", no index"
    if np.array_equal(tokens, right):
        return same
    whole = theirs.sum() == len(tokens)
    equal = whole and _documents(tokens, theirs) == _documents(right, ours)
    return f"same documents, other order{kind}" if equal else "DIFFERENT"


def lengths_of(index: Path) -> npt.NDArray[np.int32]:
    """Tokens of each sequence of a .idx file."""
    content = index.read_bytes()
    count = struct.unpack_from("<Q", content, 18)[0]
    return np.frombuffer(content, "<i4", count, 34)


def _documents(tokens: npt.NDArray[np.uint16], lengths: npt.NDArray[np.int32]) -> Counter[int]:
    ends = np.cumsum(lengths, dtype=np.int64)
    spans = zip(ends - lengths, ends, strict=True)
    return Counter(hash(tokens[begin:end].tobytes()) for begin, end in spans)

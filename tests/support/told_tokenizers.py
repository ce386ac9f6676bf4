"""What a tokenizer says of itself, and the ids that it gives; also as a program.

python told_tokenizers.py FOLDER...   the library's version, and what each says, as lines of JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from support.traps import TRAPS
from tokpack import load_tokenizer
from tokpack.tokenizers import self_check

EOD = "<|endoftext|>"
# Characters that are letters in the Unicode version of one library and not in that of another.
NEWER = "letters and numbers of a Unicode version"
TEXTS = [
    *(text for kind, texts in TRAPS.items() for text in texts if kind != NEWER and len(text) < 200),
    f"Some English, {EOD}and\ncode: def f(x): return x**2  # \u00e9t\u00e9",
    "\u0130stanbul \u01c5 STRASSE \u6771\u4eac abc",
]


def told(folder: Path) -> dict[str, Any]:
    """All that is asked of the tokenizer in a folder."""
    files = {"vocab_file": folder / "vocab.json", "merge_file": folder / "merges.txt"}
    tokenizer = (
        load_tokenizer(folder) if not files["vocab_file"].exists() else load_tokenizer(**files)
    )
    texts = [text.encode("utf-8", "replace") for text in TEXTS]
    ends = np.cumsum([0, *map(len, texts)])
    spans = np.stack([ends[:-1], ends[1:]], axis=1)
    data = np.frombuffer(b"".join(texts), np.uint8)
    modes = ("text", "encode")
    encoders = [tokenizer.encoder(dtype="int32", special_tokens=mode) for mode in modes]
    ids = [encoder.encode(data, spans) for encoder in encoders]
    frame = tokenizer.special_frame()
    return {
        "kind": tokenizer.kind,
        "native": tokenizer.native,
        "ids": [[one.ids.tolist(), one.lengths.tolist()] for one in ids],
        "checked": [self_check(tokenizer, data, spans, special_tokens=mode) for mode in modes],
        "decoded": tokenizer.decode(ids[1].ids.tolist()),
        "frame": [list(frame.before), list(frame.after)],
        "special": tokenizer.special_ids,
        "vocabulary": [tokenizer.vocab_size, tokenizer.eod_id, tokenizer.token_to_id(EOD)],
        "fingerprint": tokenizer.definition_digest(),
    }


if __name__ == "__main__":
    import tokenizers

    print(json.dumps(tokenizers.__version__))
    for name in sys.argv[1:]:
        print(json.dumps(told(Path(name))))

"""Added tokens: the leftmost, then the longest, is found, however many there are."""

from __future__ import annotations

import random
import re
import time

import numpy as np
import pytest
from support.rank_files import BYTES
from support.tokenizers_twin import block, rows

from tokpack import _core


def core(contents: list[str]) -> _core.ByteLevelBPE:
    """The 256 bytes, and added tokens from 256 on."""
    return _core.ByteLevelBPE(
        vocab=BYTES,
        merges=np.empty((0, 3), np.int32),
        pattern="none",
        added=[(text.encode(), 256 + i, True, False) for i, text in enumerate(contents)],
        special_tokens="encode",
    )


@pytest.mark.parametrize("seed", range(20))
def test_leftmost_and_longest(seed: int) -> None:
    rng = random.Random(seed)
    letters = rng.choice(["ab", "a<|", "\u00e9\u00e8a"])
    contents = ["".join(rng.choices(letters, k=rng.randint(1, 7))) for _ in range(40)]
    contents = list(dict.fromkeys(contents))[: rng.randint(1, 30)]
    wanted = sorted(contents, key=lambda text: len(text.encode()), reverse=True)
    pattern = re.compile(b"|".join(re.escape(text.encode()) for text in wanted) + b"|.", re.DOTALL)
    known = {text.encode(): 256 + i for i, text in enumerate(contents)}
    texts = ["".join(rng.choices(letters + "x", k=rng.randint(1, 60))) for _ in range(50)]
    expected = [
        [known[piece] if piece in known else piece[0] for piece in pattern.findall(text.encode())]
        for text in texts
    ]
    assert rows(core(contents).encode(*block(texts))) == expected


def test_many_tokens_cost_as_much_as_a_few() -> None:
    """Not a bound on time but on the ratio: it was 100 where each was compared in turn."""
    data, spans = block(["<div><p>text</p></div>\n" * 20_000])
    seconds = []
    for count in (3, 3000):
        encoder = core([f"<|special_{i}|>" for i in range(count)])
        encoder.encode(data.data, spans)
        took = []
        for _ in range(3):
            began = time.process_time()
            encoder.encode(data.data, spans)
            took.append(time.process_time() - began)
        seconds.append(min(took))
    assert seconds[1] < 20 * seconds[0]

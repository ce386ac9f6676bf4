"""``tokpack generate``: a checkpoint and the beginning of a text -> its continuation."""

from __future__ import annotations

import argparse
import math
import sys
from itertools import chain

from tokpack.cli.parser import Group, Page, flags, given_options, number
from tokpack.display import data_text

from .model_export import CHECKPOINTS, PARTS, open_named


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


PAGE = Page(
    "generate",
    "Print a text and its continuation by a checkpoint.",
    (
        Group(
            "flags",
            flags(
                """
                -p, --prompt TEXT       the text to continue ('')
                -n, --tokens N          most tokens to add; a document may end earlier (100)
                --temperature T         below 1 is safer, 0: always the likeliest token (1)
                --top-k K               draw from the K likeliest tokens, 0: from all (0)
                --seed S                seed of the draws (0)
                --device auto|cpu|cuda  where to compute (auto)
                """,
                prompt={"default": ""},
                tokens={"default": 100},
                temperature={"type": _temperature, "default": 1.0},
                top_k={"type": number(0), "default": 0},
                seed={"type": number(0), "default": 0},
                device={"default": "auto"},
            ),
        ),
        *PARTS,
    ),
    CHECKPOINTS
    + """
The same seed gives the same text on the same machine.

examples:
  tokpack generate run --prompt "Once upon a time"
  tokpack generate run --prompt "The capital of France" --temperature 0 --tokens 20
""",
    usage="CHECKPOINT [flags]",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack generate``."""
    weights, tokenizer = open_named(arguments)
    if isinstance(tokenizer, Exception):
        raise tokenizer
    from ..generate import generate

    texts = generate(weights, tokenizer, arguments.prompt, **given_options(generate, arguments))
    for text in chain([arguments.prompt], texts, ["\n"]):
        sys.stdout.write(data_text(text))
        sys.stdout.flush()
    return 0

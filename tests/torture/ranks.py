"""Made up vocabularies of ranks and patterns: the ids of tiktoken, or an error.

    python -m torture.ranks --seed 1 --minutes 5

Not only where the core encodes: also where the Hugging Face library takes the pattern.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import tiktoken
from support.rank_files import BYTES, entries, lines
from support.tokenizers_twin import block, rows

from tokpack.errors import TokenizerError, UsageError
from tokpack.tokenizers import ranks
from tokpack.tokenizers.base import DocumentsError, TokenizerOptions
from tokpack.tokenizers.native import NativeTokenizer
from tokpack.tokenizers.patterns import names, pre_tokenizer_of
from torture.made_up import TEXTS, Maker, compare_ids, rounds
from torture.patterns import Writer

_FIRST = 10  # special tokens of a tekken.json
_PLACE = Path("made-up")


def _pattern(make: Maker) -> str:
    """A pattern that matches all text: what matches none is lost in tiktoken."""
    if make.maybe(0.15):
        steps = pre_tokenizer_of(make.rng.choice(names()))["pretokenizers"]
        if [step["type"] for step in steps] == ["Split", "ByteLevel"]:
            expression: str = steps[0]["pattern"]["Regex"]
            return expression
    rest = make.rng.choice([r"[\s\S]", r"[\s\S]+?", r"\s|\S"])
    return f"{Writer(make.rng).expression()}|{rest}"


def _tokens(make: Maker) -> list[bytes]:
    rng = make.rng
    text = "".join(make.characters).encode()
    more: dict[bytes, None] = {}
    for _ in range(rng.choice([0, 5, 40, 120])):
        begin = rng.randrange(len(text))
        piece = text[begin : begin + rng.randint(2, 6)]
        made = [piece, make.word().encode(), *(more and [rng.choice(list(more)) + piece])]
        more[rng.choice(made)] = None
    tokens = [*BYTES, *(token for token in more if len(token) > 1)]
    if make.maybe(0.3):
        rng.shuffle(tokens)
    return tokens


def _special(make: Maker) -> dict[str, int]:
    """Special tokens, none of which has another one in it: tiktoken tries them in no order."""
    special: dict[str, int] = {}
    for number in range(make.rng.randint(0, 6)):
        text = make.rng.choice([make.word(), "<s>", "[INST]", "</s>"])
        if not any(text in other or other in text for other in special):
            special[text] = number
    return special


def made_up(make: Maker) -> tuple[Any, Any]:
    """The tokenizer, and tiktoken's. Any error of either."""
    tokens, pattern = _tokens(make), _pattern(make)
    known = {token: rank for rank, token in enumerate(tokens)}
    if make.maybe(0.5):
        special = {"<|endoftext|>": len(tokens)}
        choice = TokenizerOptions(pattern=pattern)
        tokenizer = ranks.from_file(lines(tokens), _PLACE, "made up", choice)
    else:
        special = _special(make)
        config = {
            "pattern": pattern,
            "default_vocab_size": len(tokens) + _FIRST,
            "default_num_special_tokens": _FIRST,
        }
        listed = [{"rank": i, "token_str": text} for text, i in special.items()]
        definition = {"config": config, "vocab": entries(tokens), "special_tokens": listed}
        tokenizer = ranks.from_tekken(definition, _PLACE, "made up", TokenizerOptions())
        known = {token: rank + _FIRST for token, rank in known.items()}
    make.contents = list(special)
    library = tiktoken.Encoding(
        "made up", pat_str=pattern, mergeable_ranks=known, special_tokens=special
    )
    return tokenizer, library


def check(seed: int) -> str:
    """Compare one seed: what came of it. AssertionError with all that repeats it."""
    make = Maker(random.Random(seed))
    try:
        tokenizer, library = made_up(make)
    except (UsageError, TokenizerError, ValueError):
        return "no vocabulary"
    texts = [make.text() for _ in range(TEXTS)]
    for mode in ("text", "encode"):
        allowed = set() if mode == "text" else "all"
        try:
            expected = [
                library.encode(text, allowed_special=allowed, disallowed_special=())
                for text in texts
            ]
        except BaseException as error:  # it panics at an empty piece
            if type(error).__name__ not in ("PanicException", "ValueError"):
                raise
            return "too much for tiktoken"
        if [library.decode(ids) for ids in expected] != texts:
            return "lost in tiktoken"  # behind an empty match
        where = f"seed {seed}, {mode}: {library._pat_str!r}"
        if isinstance(tokenizer, NativeTokenizer):
            compare_ids(tokenizer, texts, expected, where, special_tokens=mode)
            continue
        encoder = tokenizer.encoder(dtype="int32", special_tokens=mode)
        try:
            found = rows(encoder.encode(*block(texts)))
        except DocumentsError:
            return "too much for the library"
        for text, ids, right in zip(texts, found, expected, strict=True):
            assert ids == right, f"{where}, by the library: of {text!r} {ids}, not {right}"
    for ids in expected if tokenizer.native else ():  # the library decodes to whole characters
        assert tokenizer.decode_bytes(ids) == library.decode_bytes(ids), f"seed {seed}: {ids}"
    return "equal" if tokenizer.native else "left to the library, equal"


if __name__ == "__main__":
    rounds(check, __doc__)

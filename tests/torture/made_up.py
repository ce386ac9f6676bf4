"""What made up tokenizers are made of: merges, vocabularies, added tokens, texts; by a seed."""

from __future__ import annotations

import argparse
import itertools
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from support.split_patterns import byte_level
from support.tokenizers_twin import LEVELS, block, rows

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable

Node = dict[str, Any]

SPACE = "\u2581"
CACHES = (1 << 12, 1 << 20)  # bytes
TEXTS = 24  # for each seed
_CHARACTERS = [
    *"  abAB'sS019.,-_<>|[]/\n\r\t\x00\x0b\x0c",
    *"\xa0\u3000\u2028\x85\u200b\u200d\ufeff\ufe0f\u0301\u0308\u0327\u0345e\xe9\xe5\u212b\u1100\u1161",
    *"\u4e2d\u6587\U0001f600\U0001f469\u2581\u2581\uff21\ufb01\xbd\xaa\xdf\u0130\u0131\u0e33\u0958",
    *"\u0120\u010a\xad\ufdfa\uffff\U0010ffff\ud7ff\u2126\u0344\u1e0b\u0323",
]
_RUNS = ("huge run", "long run", "run", "word", "piece", "one")
_NAMES = ["<s>", "</s>", "<unk>", "<|x|>", "<0x41>", "<0x0A>", "<0xC3>", "[UNK]", "s>", "<s", "  "]


class Maker:
    """Makes what a tokenizer.json is made of; all of it from a few characters."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        few = rng.sample(_CHARACTERS, rng.randint(3, 12))
        self.characters = [*few, " ", *rng.choice(["ab", "a", SPACE, "\n", "e\u0301"])]
        self.contents: list[str] = []

    def maybe(self, chance: float) -> bool:
        return self.rng.random() < chance

    def word(self, longest: int = 4) -> str:
        return "".join(self.rng.choices(self.characters, k=self.rng.randint(1, longest)))

    def merges(self, tokens: list[str], most: int) -> list[tuple[str, str]]:
        """Pairs of tokens, and of what earlier pairs make."""
        tokens, pairs = list(tokens), []
        for _ in range(self.rng.randint(0, most)):
            left, right = self.rng.choice(tokens[-12:]), self.rng.choice(tokens)
            if self.maybe(0.5):
                left, right = right, left
            pairs.append((left, right))
            tokens.append(left + right)
        if self.maybe(0.3):
            self.rng.shuffle(pairs)
        if pairs and self.maybe(0.1):
            pairs.append(self.rng.choice(pairs))
        return pairs

    def vocab(self, tokens: list[str]) -> dict[str, int]:
        """An id for each token, in some order, with holes."""
        tokens = list(dict.fromkeys(tokens))
        if self.maybe(0.4):
            self.rng.shuffle(tokens)
        gap = self.rng.choice([0.02, 0.5]) if self.maybe(0.1) else 0
        ids = itertools.accumulate(1 + self.maybe(gap) for _ in tokens)
        first = 0 if self.maybe(0.03) else 1
        return {token: i - first for token, i in zip(tokens, ids, strict=True)}

    def model(self, tokens: list[str], pairs: list[tuple[str, str]], **settings: Any) -> Node:
        rng = self.rng
        vocab = self.vocab([*tokens, *(part for a, b in pairs for part in (a, b, a + b))])
        if pairs and self.maybe(0.03):
            del vocab["".join(rng.choice(pairs))]
        listed: list[Any] = [list(pair) for pair in pairs]
        if all(" " not in token and "\n" not in token for token in vocab) and self.maybe(0.4):
            listed = [" ".join(pair) for pair in pairs]
            if self.maybe(0.2):
                listed.insert(0, "#version: 0.2")
        model = {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": rng.choice([None, None, ""]),
            "end_of_word_suffix": rng.choice([None, None, ""]),
            "fuse_unk": self.maybe(0.3),
            "byte_fallback": False,
            "ignore_merges": self.maybe(0.3),
            "vocab": vocab,
            "merges": listed,
            **settings,
        }
        for key in ("dropout", "fuse_unk", "ignore_merges", "byte_fallback", "unk_token"):
            if self.maybe(0.03):
                del model[key]
        return model

    def added(self, vocab: dict[str, int]) -> list[Node]:
        """Added tokens: pieces of each other, tokens of the model, with all flags."""
        rng, tokens = self.rng, list(vocab)
        plain = self.maybe(0.6)
        found: dict[str, Node] = {}
        following = len(vocab)
        for _ in range(rng.choice([0, 1, 2, 3, 6, 12])):
            content = rng.choice(
                [self.word(), self.word(2), rng.choice(_NAMES), rng.choice(tokens), *found]
            )
            if self.maybe(0.2):
                content += self.word(2)
            if (content in found or not content) and not self.maybe(0.01):
                continue
            special = self.maybe(0.5)
            flags = {name: not plain and self.maybe(0.15) for name in ("lstrip", "rstrip")}
            number = vocab.get(content, following)
            following = max(following, number + 1)
            node = {
                "id": number + self.maybe(0.01),
                "content": content,
                "single_word": not plain and self.maybe(0.02),
                "normalized": self.maybe(0.5) if not plain or self.maybe(0.2) else not special,
                "special": special,
                **flags,
            }
            for name in ("normalized", "special", "lstrip", "single_word"):
                if self.maybe(0.01):
                    del node[name]
            found[content] = node
        self.contents = list(found)
        return list(found.values())

    def definition(self, model: Node, normalizer: Any, pre_tokenizer: Any, decoder: Any) -> Node:
        vocab = model["vocab"]
        if isinstance(vocab, list):
            vocab = {token: i for i, (token, _) in enumerate(vocab)}
        template = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}],
            "pair": [],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
        }
        template["single"].append({"Sequence": {"id": "A", "type_id": 0}})  # type: ignore[attr-defined]
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": self.added(vocab),
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": self.rng.choice([None, template, byte_level()]),
            "decoder": decoder,
            "model": model,
        }

    def text(self) -> str:
        rng = self.rng
        pool = [*self.characters, *self.contents, *rng.sample(_CHARACTERS, 3)]
        parts: list[str] = []
        for _ in range(rng.choice([0, 1, 2, 5, 12, 30])):
            (kind,) = rng.choices(_RUNS, (0.1, 1, 20, 10, 12, 57))
            one = rng.choice(pool)
            if kind == "word":
                one = self.word(20)
            elif kind == "piece":
                one = one[rng.randrange(len(one) + 1) :] if self.maybe(0.5) else one[:-1]
            parts.append(
                one * {"run": rng.randint(1, 6), "long run": 300, "huge run": 9000}.get(kind, 1)
            )
        return "".join(parts)


def compare_ids(
    tokenizer: Any, texts: list[str], expected: list[list[int]], where: str, **options: Any
) -> None:
    """Raise AssertionError where the core gives other ids: in a block, alone, at a level.

    ``options`` are those of ``core``.
    """
    for level, cache in itertools.product(LEVELS, CACHES):
        core = tokenizer.core(dtype="int32", level=level, cache_bytes=cache, **options)
        found = rows(core.encode(*block(texts)))
        found_alone = [rows(core.encode(*block([text])))[0] for text in texts]
        for text, ids, alone, right in zip(texts, found, found_alone, expected, strict=True):
            assert ids == alone == right, (
                f"{where}, {level}, cache {cache}: of {text!r} {ids}, alone {alone}, not {right}"
            )


def rounds(check: Callable[[int], str | Iterable[str]], description: str) -> None:
    """Check seed after seed, for as long as the command line says."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=5)
    args = parser.parse_args()
    until, counts = time.monotonic() + 60 * args.minutes, Counter[str]()
    for seed in itertools.count(args.seed):
        came = check(seed)
        counts.update([came] if isinstance(came, str) else came)
        if time.monotonic() > until:
            break
    print(f"seeds {args.seed} to {seed}: {dict(counts)}")

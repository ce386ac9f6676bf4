"""Every family of byte-level tokenizer.json: trained here, read natively, held to the library."""

from __future__ import annotations

import argparse
import difflib
import inspect
import itertools
import json
import random
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.families import families
from support.tokenizers_twin import Twin
from support.traps import TRAPS
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from tokpack import _core
from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


def _published(family: str) -> list[str]:
    """The expressions of a family's Splits."""
    node: Any = families()[family].pre_tokenizer
    return [step["pattern"]["Regex"] for step in node["pretokenizers"] if step["type"] == "Split"]


SPLITS: dict[str, tuple[str, list[str]]] = {
    "llama3": ("llama3", _published("Llama 3")),
    "cl100k": (
        "llama3",
        [
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
            r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
        ],
    ),
    "qwen2": ("qwen2", _published("Qwen 3")),
    "qwen35": ("qwen35", _published("Qwen 3.5")),
    "o200k": ("o200k", _published("gpt-oss")),
    "tekken": ("tekken", _published("Mistral NeMo, Pixtral (Tekken)")),
    "deepseek_v3": ("deepseek_v3", _published("DeepSeek V3, R1")),
    "gpt2 as a split": (
        "gpt2",
        [r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"],
    ),
}
OTHERS: dict[str, tuple[str, list[Any]]] = {
    "gpt2": ("gpt2", [pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    "none": ("none", [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
    "digits_gpt2": (
        "digits_gpt2",
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ],
    ),
}
FAMILIES = [*SPLITS, *OTHERS]

_WORLD = [
    "Don't you think they'LL say it's We'Re 1st of 2024, or 12345678 in \u0661\u0662\u0663\u0664?",
    "\u00dcber die \u00c4pfel: caf\u00e9, na\u00efve, \u0130stanbul, \u01c5ungla, STRASSE",
    "\u041c\u043e\u0441\u043a\u0432\u0430 \u0438 \u0422\u0432\u0435\u0440\u044c, 2,5 "
    "\u043c\u043b\u043d",
    "\u6771\u4eac\u90fd\u306f\u9996\u90fd\u3067\u3059\u3002\u30ab\u30bf\u30ab"
    "\u30ca\u3082 \u4e2d\u6587\u6587\u672c\u3002",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0643\u062a\u0627\u0628\u064c "
    "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd \uc548\ub155",
    "emoji \U0001f600\U0001f468\u200d\U0001f469 \u2764\ufe0f x\u00b2 \u216b \u2460 "
    "\u00bd \u20ac5 \u00a35",
    "tabs\t\there\r\n\r\n  indented\n\n\n    more   \n /path/to//file\n/\n .../\n",
    "e\u0301 a\u0308 \u0301 mark  \u0301\u0302 x'\u017f CamelCaseWORDS HTTPServer iPhone",
]


def _corpus() -> list[str]:
    rng = random.Random(5)
    code = [inspect.getsource(argparse)[:30_000], inspect.getsource(difflib)[:20_000]]
    mixed = [" ".join(rng.choices(_WORLD, k=6)) for _ in range(30)]
    return [*code, *mixed, *_WORLD]


def _pre_tokenizer(family: str) -> tuple[str, Any]:
    if family in SPLITS:
        name, expressions = SPLITS[family]
        splits = [pre_tokenizers.Split(Regex(e), "isolated") for e in expressions]
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return name, pre_tokenizers.Sequence([*splits, bytes_only])
    name, steps = OTHERS[family]
    return name, steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)


def _train(family: str) -> dict[str, Any]:
    """A small tokenizer.json of a family."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _pre_tokenizer(family)[1]
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=["<|endoftext|>", "<|im_start|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        max_token_length=24,
    )
    lines = [line for text in _corpus() for line in text.splitlines(keepends=True)]
    tokenizer.train_from_iterator(lines, trainer)
    definition: dict[str, Any] = json.loads(tokenizer.to_str())
    return definition


def _load(definition: dict[str, Any], folder: Path, name: str = "tokenizer.json") -> Twin:
    path = folder / name
    path.write_text(json.dumps(definition))
    return Twin(load_tokenizer(path))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return {family: _train(family) for family in FAMILIES}


@pytest.fixture(scope="module")
def twins(
    trained: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Twin]:
    folder = tmp_path_factory.mktemp("families")
    return {f: _load(d, folder, f"{f}.json") for f, d in trained.items()}


def test_every_native_pattern_has_a_family_here() -> None:
    assert {name for name, _ in [*SPLITS.values(), *OTHERS.values()]} == set(_core.patterns())


@pytest.mark.promises
@pytest.mark.parametrize("family", FAMILIES)
def test_family_is_native_and_exact(family: str, twins: dict[str, Twin]) -> None:
    twin = twins[family]
    assert twin.tokenizer.spec.pattern == _pre_tokenizer(family)[0]
    twin.compare(_corpus())


@pytest.mark.parametrize("family", FAMILIES)
def test_traps(family: str, twins: dict[str, Twin]) -> None:
    """Those of GPT-2 and NeoX, without the long pieces: these take the library long."""
    texts = [text for name, trap in TRAPS.items() if name != "long pieces" for text in trap]
    twins[family].compare(texts)


@pytest.mark.parametrize("family", SPLITS)
def test_the_pieces_themselves(family: str) -> None:
    """Without a model in between, on texts that cut in many places."""
    name, pre_tokenizer = _pre_tokenizer(family)
    core = _core.Pretokenizer(name)
    rng = random.Random(11)
    pool = (
        "aZ\u00e9\u0130\u01c5\u02b0\u4e2d\u30ab\u0301\u0903 '\u017f\n\r\t\u3000\u00a0\u2028"
        "1\u0662\u00b2.,/-!\u00bf\u20ac<|\U0001f600"
    )
    for _ in range(400):
        text = "".join(rng.choices(pool, k=rng.randint(1, 90)))
        offsets = [end for _, (_, end) in pre_tokenizer.pre_tokenize_str(text)]
        expected = sorted({len(text[:end].encode()) for end in offsets})
        for level in _core.simd_levels():
            actual = core.ends(text.encode(), level).tolist()
            assert actual == expected, (level, text)


@pytest.mark.parametrize("family", FAMILIES)
def test_code_points_between_all_kinds_of_neighbours(family: str) -> None:
    """The character classes: everything below U+3400, and a sample of the rest."""
    name, pre_tokenizer = _pre_tokenizer(family)
    core = _core.Pretokenizer(name)
    rng = random.Random(8)
    rest = [*range(0x3400, 0xD800), *range(0xE000, 0x32000), *range(0xE0000, 0xE0200)]
    points = [*range(0x3400), *rng.sample(rest, 6000)]
    for begin in range(0, len(points), 64):
        characters = [chr(c) for c in points[begin : begin + 64]]
        text = "".join(f"{c}'s{c} {c}a1{c}A\n{c}/{c}b'" for c in characters)
        ends = list(itertools.accumulate(len(c.encode()) for c in text))
        pieces = pre_tokenizer.pre_tokenize_str(text)
        expected = sorted({ends[end - 1] for _, (_, end) in pieces})
        for level in _core.simd_levels():
            assert core.ends(text.encode(), level).tolist() == expected, level


_PIECES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.text("aB1 '\n\r/.\u0301\u4e2d", max_size=12),
    st.sampled_from(_WORLD),
    st.sampled_from(
        ["'S", "'\u017f", "'LL", "<|im_start|>", "\u02b0", "\u01c5", "\u30fc", "12 345"]
    ),
)
_TEXTS = st.lists(st.lists(_PIECES, max_size=12).map("".join), min_size=1, max_size=4)


@pytest.mark.parametrize("family", FAMILIES)
@given(texts=_TEXTS)
@settings(max_examples=40, deadline=None, database=None, suppress_health_check=[*HealthCheck])
def test_family_on_random_texts(family: str, twins: dict[str, Twin], texts: list[str]) -> None:
    twins[family].compare(texts)


@pytest.mark.parametrize("family", ["llama3", "gpt2"])
def test_ignore_merges_takes_whole_tokens(
    family: str, trained: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """A token that no merge leads to is used when, and only when, ignore_merges is set."""
    definition = json.loads(json.dumps(trained[family]))
    vocab = definition["model"]["vocab"]
    unreachable = "\u0120qzx"  # " qzx"
    vocab[unreachable] = len(vocab)
    texts = [" qzx", "a qzx b", " qzxx", " qzx" * 20, *_corpus()[2:12]]
    for flag in (False, True):
        definition["model"]["ignore_merges"] = flag
        twin = _load(definition, tmp_path)
        twin.compare(texts)
        assert (twin.native([" qzx"], "text") == [[vocab[unreachable]]]) is flag


def test_a_pair_that_is_listed_twice_has_its_last_rank(
    trained: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    definition = json.loads(json.dumps(trained["gpt2"]))
    merges = definition["model"]["merges"]
    merges.extend(merges[:200:3])
    twin = _load(definition, tmp_path)
    twin.compare(_corpus())


def test_ranks_need_not_follow_ids(trained: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    definition = json.loads(json.dumps(trained["gpt2"]))
    vocab = definition["model"]["vocab"]
    ids = list(vocab.values())
    random.Random(2).shuffle(ids)
    definition["model"]["vocab"] = dict(zip(vocab, ids, strict=True))
    for token in definition["added_tokens"]:
        token["id"] = definition["model"]["vocab"][token["content"]]
    _load(definition, tmp_path).compare(_corpus())


@pytest.mark.parametrize("family", ["llama3", "gpt2"])
def test_ids_above_65536(family: str, trained: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """A large vocabulary, as far as ids show it: scattered, in no order, most above 65536."""
    definition = json.loads(json.dumps(trained[family]))
    vocab = definition["model"]["vocab"]
    ids = random.Random(9).sample(range(300_000), len(vocab))
    definition["model"]["vocab"] = dict(zip(vocab, ids, strict=True))
    for token in definition["added_tokens"]:
        token["id"] = definition["model"]["vocab"][token["content"]]
    twin = _load(definition, tmp_path)
    assert twin.tokenizer.vocab_size > 65_536
    twin.compare(_corpus())


def test_one_product_of_several_merges(trained: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """("a", "bc") and ("ab", "c") both make "abc", at different ranks."""
    definition = json.loads(json.dumps(trained["none"]))
    model = definition["model"]
    base = {t: i for t, i in model["vocab"].items() if len(t) == 1 or "<|" in t}
    vocab = {token: i for i, token in enumerate(base)}
    for token in ("ab", "bc", "abc", "abcd", "cd"):
        vocab[token] = len(vocab)
    model["vocab"] = vocab
    model["merges"] = [["c", "d"], ["a", "b"], ["ab", "c"], ["b", "c"], ["a", "bc"], ["ab", "cd"]]
    for token in definition["added_tokens"]:
        token["id"] = vocab[token["content"]]
    rng = random.Random(4)
    texts = ["".join(rng.choices("abcd", k=n)) for n in range(1, 120)]
    _load(definition, tmp_path).compare(texts)


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_normalization_and_added_tokens_of_both_kinds(
    family: str, trained: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Added tokens of the raw text and of the normalized one, special or not, nested."""
    definition = json.loads(json.dumps(trained[family]))
    definition["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}]}
    top = len(definition["model"]["vocab"])
    extra = [
        ("<tool>", False, False),
        ("<tool>x", False, True),
        ("\u00e9\u00e9", False, True),
        ("<|mask|>", True, False),
        ("<|m\u00e9|>", True, True),
        ("   ", False, True),
    ]
    definition["added_tokens"] += [
        {
            "id": top + i,
            "content": content,
            "special": special,
            "normalized": normalized,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
        }
        for i, (content, special, normalized) in enumerate(extra)
    ]
    pool = ["<tool>", "<tool>x", "\u00e9", "e\u0301", "e", "\u0301", "<|mask|>", "<|m\u00e9|>"]
    pool += ["<|me\u0301|>", " ", "   ", "word", "<", "<|im_start|>", "<|endoftext|>"]
    rng = random.Random(6)
    texts = ["".join(rng.choices(pool, k=rng.randint(1, 12))) for _ in range(600)]
    twin = _load(definition, tmp_path)
    assert twin.tokenizer.vocab_size == top + len(extra)
    twin.compare(texts)


def test_both_forms_of_merges_are_one_definition(
    trained: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    new = trained["llama3"]
    old = json.loads(json.dumps(new))
    old["model"]["merges"] = [" ".join(pair) for pair in new["model"]["merges"]]
    del old["model"]["ignore_merges"], old["model"]["byte_fallback"]
    first, second = _load(new, tmp_path, "new.json"), _load(old, tmp_path, "old.json")
    assert first.tokenizer.fingerprint == second.tokenizer.fingerprint
    second.compare(_corpus()[2:10])

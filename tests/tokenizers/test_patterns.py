"""Patterns of vocabularies of ranks: by name, or as expressions that tiktoken would take."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from support.rank_files import OWN, save_lines
from support.tokenizers_twin import ids
from torture import patterns as made_up

from tokpack import _core
from tokpack.errors import TokenizerError, UsageError
from tokpack.tokenizers import load_tokenizer
from tokpack.tokenizers.huggingface import HuggingFaceTokenizer
from tokpack.tokenizers.native import NativeTokenizer
from tokpack.tokenizers.patterns import is_name, names, pre_tokenizer_of, recognize, steps_of
from tokpack.tokenizers.ranks import EOD

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("no_network")


def test_every_name_is_a_pattern() -> None:
    for name in names():
        assert is_name(recognize(pre_tokenizer_of(name))) == (name not in ("kimi", "v1"))


def test_an_expression_is_cut_as_tiktoken_does(tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    path = save_lines(tmp_path, OWN)
    texts = ["in the  thing\n$x$ 12 34", "thing", "\nthe\n the$", "caf\u00e9 th\u00e9", "[a]$"]
    for pattern in (
        r"\p{L}+$|\p{L}++|^\s+|[^\p{L}$^]+?|[$^\]]",
        r"(?i:the|in)|\d{1,2}|[\s\S]",
        r"\pL+|[\pN]{1,3}|\PL+",
        r"\x{74}+|\x68|[\s\S]",
    ):
        tokenizer = load_tokenizer(path, pattern=pattern)
        assert tokenizer.native
        reference = tiktoken.Encoding(
            "own",
            pat_str=pattern,
            mergeable_ranks={token: i for i, token in enumerate(OWN)},
            special_tokens={},
        )
        assert ids(tokenizer, texts) == [reference.encode_ordinary(text) for text in texts]


def test_a_lazy_fixed_number_is_that_of_tiktoken(tmp_path: Path) -> None:
    """In the library's engine ``X{2}?`` is ``(?:X{2})?``."""
    pattern = r"\p{L}{2}?|[\s\S]"
    tokenizer = load_tokenizer(save_lines(tmp_path, OWN), pattern=pattern)
    reference = pytest.importorskip("tiktoken").Encoding(
        "own",
        pat_str=pattern,
        mergeable_ranks={token: i for i, token in enumerate(OWN)},
        special_tokens={},
    )
    assert ids(tokenizer, ["thing in"]) == [reference.encode_ordinary("thing in")]


@pytest.mark.parametrize(
    "behind", [r"\b", r"\B", r"(?=\w)", r"(?=\W)", r"(?=[\w.])", r"(?=[^\W_])"]
)
def test_word_characters_are_those_of_tiktoken(behind: str) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    core = _core.Pretokenizer(steps_of(pre_tokenizer_of(f"a{behind}")))
    reference = tiktoken.Encoding(
        "own", pat_str=f"a{behind}", mergeable_ranks={b"a": 0}, special_tokens={}
    )
    for character in map(chr, (*range(32, 0x250), 0x200C, 0x200D, 0x203F, 0x2160, 0x4E2D)):
        text = f"a{character}".encode()
        is_match = bool(reference.encode_ordinary(text.decode()))
        assert core.ends(text).tolist() == ([1, len(text)] if is_match else [len(text)]), character


def test_the_text_of_a_known_pattern_is_native(tmp_path: Path) -> None:
    path = save_lines(tmp_path, OWN)
    text = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    by_text, by_name = load_tokenizer(path, pattern=text), load_tokenizer(path, pattern="qwen2")
    assert by_text.native
    assert by_text.fingerprint == by_name.fingerprint


def test_text_that_an_expression_does_not_match_stays(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_lines(tmp_path, OWN), pattern=r"\p{L}+")
    assert ids(tokenizer, ["the!in"]) == [[257, 33, 259]]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "cannot be compiled.*parenthesis"),
        ("[a", "cannot be compiled"),
        ("cl10k", "unknown: did you mean cl100k"),
        ("", "unknown"),
        (r"\p{Nonsense}+", "cannot be compiled"),
        (r"(?m:^a)|(?sm)b", r"flag m in '\(\?m'"),
        (r"(?i)\p{Lu}+|.", r"flag i in '\(\?i'"),
        (r"(?i:\p{Lu}+)|.", r"flag i in '\(\?i'"),
        (r"(?i:mass|of)|.", r"flag i in '\(\?i'"),
        (r"\0|.", r"has \\0, "),
        (r"\X|[\Qa\E]", r"has \\X, "),
        (r".|\p", r"ends in \\p, "),
        (r"[a-z--[aeiou]]+|.", "has -- in a set"),
        (r"[^a~~b]+|.", "has ~~ in a set"),
        (r"\p{N}?{1,3}|.", r"has \?\{1,3\}, "),
        (r"a{1,2}{2}|.", r"has \{1,2\}\{2\}, "),
        (r"[[:alpha:]_]+|.", r"has \[: in a set"),
        (r"[^[:^digit:]]|.", r"has \[: in a set"),
        (r"\p{Word}+|.", r"has \\p\{Word\}, "),
        (r"[\P{ pr_int }]|.", r"has \\P\{ pr_int \}"),
        (r"[.-[a]]|.", r"has - before \[ or && in a set"),
        (r"[%-&&\w]|.", r"has - before \[ or && in a set"),
        (r"(?:|a){2,}|.", r"repeats what may be empty.*as in a\*"),
        (r"(?:a?)+b|.", "repeats what may be empty"),
        ("(" * 100_000, "cannot be compiled"),
        (r"\p{N}{1,3}+|.", r"possessive in tiktoken: write \(\?>X\{1,3\}\)"),
    ],
)
def test_a_pattern_that_is_none(tmp_path: Path, pattern: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        load_tokenizer(save_lines(tmp_path, OWN), pattern=pattern)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(?>ab|a)+|[\s\S]", "its pattern has an atomic group"),
        (r"(?=a(?=bc))a|[\s\S]", "a look ahead within another one"),
        (r"\p{Cherokee}+|[\s\S]", "p{Cherokee}"),
        # The library's engine makes another set of this.
        (r"[^? k[^\d\D]]|[\s\S]", "an empty set in a set"),
    ],
)
def test_what_the_core_does_not_understand_goes_to_the_library(
    tmp_path: Path, pattern: str, reason: str
) -> None:
    tokenizer = load_tokenizer(save_lines(tmp_path, OWN), pattern=pattern)
    assert not tokenizer.native
    assert reason in tokenizer.why_not_native
    assert ids(tokenizer, ["!"]) == [[33]]


def test_made_up_expressions_are_cut_as_the_library_does() -> None:
    """A short round of ``python -m torture.patterns``."""
    counts = Counter(made_up.check(seed) for seed in range(400))
    assert counts["equal"] > 100


@pytest.mark.parametrize("expression", [r"\w+", r"[\w]+", r"[^\w]+", r"[\W.]+", r"[^\W]+"])
def test_word_characters_in_sets_are_others_than_outside(expression: str) -> None:
    """In the library six numbers of Latin-1 are; the text has all that may be."""
    text = "".join(map(chr, range(0x250)))
    steps = [("Isolated", expression, False), ("ByteLevel", "", False)]
    pieces = made_up.library_of(steps).pre_tokenizer.pre_tokenize_str(text)
    expected = list(itertools.accumulate(len(piece) for piece, _ in pieces))
    assert _core.Pretokenizer(steps).ends(text.encode()).tolist() == expected


def test_sets_of_any_case_with_letters_that_are_two() -> None:
    r"""\H has U+FB00, which is ff in another case."""
    with pytest.raises(ValueError, match=r"\bnegated set\b.*\bstep 1$"):
        _core.Pretokenizer([("Isolated", r"(?i:[\H])", False), ("ByteLevel", "", False)])


def test_what_has_become_native_keeps_its_fingerprint(tmp_path: Path) -> None:
    """Manifests have it from a version in which the library encoded."""
    ranks = load_tokenizer(save_lines(tmp_path, OWN), pattern=r"\p{L}+|[\s\S]")
    assert isinstance(ranks, NativeTokenizer)
    (raw,) = ranks.reference
    (tmp_path / "tokenizer.json").write_bytes(raw)
    for tokenizer in (ranks, load_tokenizer(tmp_path / "tokenizer.json", eod_token=EOD)):
        assert tokenizer.native
        library = HuggingFaceTokenizer("library", raw, why_not_native="", eod_token=EOD)
        library.special_tokens_default = tokenizer.special_tokens_default
        assert tokenizer.fingerprint == library.fingerprint


def test_a_pattern_that_runs_away_ends_with_an_error(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_lines(tmp_path, OWN), pattern=r"(a+)+$|(?>\s+|x)")
    with pytest.raises(TokenizerError, match=r"'\(a\+\)\+\$\|.*: .*retry-limit"):
        ids(tokenizer, ["a" * 40 + "b"])


@pytest.mark.parametrize("pattern", [r"(a+)+$|\s+", r".*x|[\s\S]", r"(?=(?:aa)*b)a|[\s\S]"])
def test_the_core_does_not_run_away(tmp_path: Path, pattern: str) -> None:
    """Each match looks to the end of the text, and the core remembers what it has seen there."""
    tokenizer = load_tokenizer(save_lines(tmp_path, OWN), pattern=pattern)
    assert tokenizer.native
    (row,) = ids(tokenizer, ["a" * 1_000_000])
    assert (len(row), set(row)) == (1_000_000, {97})

"""Vocabularies of ranks: the ids are tiktoken's, wrong files are one line that says where."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.optional import SHARED
from support.rank_files import BYTES, OWN, entries, lines, save_lines, save_tekken
from support.tokenizers_twin import block, corpus, ids, rows
from torture import ranks as made_up

from tokpack import _core
from tokpack.errors import TokenizerError, UsageError
from tokpack.tokenizers import load_tokenizer, self_check
from tokpack.tokenizers.patterns import pre_tokenizer_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("no_network")

MODERN = SHARED / "tokenizers" / "modern"


# The ids.


@pytest.mark.skipif(not MODERN.is_dir(), reason="no real vocabularies here")
@pytest.mark.parametrize(
    ("file", "name", "eod"),
    [
        ("cl100k_base", "cl100k", 100257),
        ("o200k_base", "o200k", 199999),
        ("qwen", "qwen2", 151643),
    ],
)
def test_published_files_give_the_known_ids(file: str, name: str, eod: int) -> None:
    tokenizer = load_tokenizer(MODERN / f"{file}.tiktoken")
    assert tokenizer.native
    assert tokenizer.eod_id == eod
    expected = json.loads((SHARED / "corpora" / "expected-modern.json").read_text())
    ranks = len((MODERN / f"{file}.tiktoken").read_bytes().splitlines())
    # The nasty texts have <|fim_prefix|>, which was text where the expected ids were made.
    sources = ("english", "code", "multi", *(() if name == "cl100k" else ("nasty",)))
    for source in sources:
        encoder = tokenizer.encoder(dtype="int32", append_eod=False, special_tokens="encode")
        encoded = encoder.encode(*block(corpus(SHARED, source, 24 << 20)[:400]))
        found = encoded.ids.copy()
        found[found == eod] = ranks  # where the expected ids have it: behind the last rank
        known = expected[f"{source}.{name}"]
        assert len(found) == known["tokens"]
        assert hashlib.sha256(found.astype("<u4").tobytes()).hexdigest() == known["sha256"]


def test_random_vocabularies_give_the_ids_of_tiktoken(tmp_path: Path) -> None:
    """Tokens that no merging makes, and halves of a higher rank than the whole, among them."""
    tiktoken = pytest.importorskip("tiktoken")
    rng = random.Random(7)
    unmergeable = 0
    for _ in range(60):
        letters = rng.choice(["ab", "abc", "a \n", "a\u00e9"])
        more = {
            "".join(rng.choices(letters, k=rng.randint(2, 6))).encode()
            for _ in range(rng.randint(1, 40))
        }
        tokens = [*BYTES, *more]
        rng.shuffle(tokens)
        unmergeable += len(_core.ranked_merges(tokens)[1])
        tokenizer = load_tokenizer(save_lines(tmp_path, tokens), pattern="gpt2")
        reference = tiktoken.Encoding(
            "own",
            pat_str=r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            mergeable_ranks={token: i for i, token in enumerate(tokens)},
            special_tokens={},
        )
        texts = ["".join(rng.choices(letters, k=rng.randint(1, 150))) for _ in range(40)]
        assert ids(tokenizer, texts) == [reference.encode_ordinary(text) for text in texts]
        data, spans = block(texts)
        self_check(tokenizer, data, spans)
    assert unmergeable > 60  # the other kind of token was there


@pytest.mark.parametrize(
    ("tokens", "merges", "unmergeable"),
    [
        (
            [b"ab", b"abc", b"cabc", b"xyz"],
            [[97, 98, 256], [256, 99, 257], [99, 257, 258]],
            [259],
        ),
        ([b"abc", b"ab"], [[257, 99, 256], [97, 98, 257]], []),  # a half of the higher rank
    ],
)
def test_merges_are_made_of_ranks(
    tokens: list[bytes], merges: list[list[int]], unmergeable: list[int]
) -> None:
    made, rest = _core.ranked_merges([*BYTES, *tokens])
    assert (made.tolist(), rest) == (merges, unmergeable)


def test_a_token_that_merging_does_not_make_is_found_as_a_word(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_lines(tmp_path, [*BYTES, b"xyz"]), pattern="gpt2")
    assert ids(tokenizer, ["xyz", "xyzz"]) == [[256], [120, 121, 122, 122]]


@pytest.mark.parametrize("pattern", [r"\S+|\s+", r"(?>ab|\S)+|\s+"])
def test_special_tokens_beside_equal_ones(tmp_path: Path, pattern: str) -> None:
    """With a token that no merging makes, what is a token becomes it; not what is a special one."""
    path = save_tekken(tmp_path, [*BYTES, b"<unk>", b"xyz"], pattern)
    tokenizer = load_tokenizer(path)
    assert tokenizer.native == ("?>" not in pattern)
    texts = ["</s>", "<unk>", "</s>< xyz", "<unk"]
    ordinary = {token: 10 + i for i, token in enumerate([*BYTES, b"<unk>", b"xyz"])}
    special = {"<unk>": 0, "<s>": 1, "</s>": 2}
    reference = pytest.importorskip("tiktoken").Encoding(
        "own", pat_str=pattern, mergeable_ranks=ordinary, special_tokens=special
    )
    assert ids(tokenizer, texts, "text") == [reference.encode_ordinary(text) for text in texts]
    encoded = [reference.encode(text, allowed_special="all") for text in texts]
    assert ids(tokenizer, texts, "encode") == encoded
    for mode in ("text", "encode"):
        self_check(tokenizer, *block(texts), special_tokens=mode)


def test_a_special_token_that_the_library_writes_for_bytes(tmp_path: Path) -> None:
    special = [{"rank": 0, "token_str": "\u00e9", "is_control": True}]
    path = save_tekken(tmp_path, OWN, r"(?>ab|\S)+|\s+", special_tokens=special)
    with pytest.raises(TokenizerError, match="'\u00e9'"):
        load_tokenizer(path)


def test_made_up_ranks_give_the_ids_of_tiktoken() -> None:
    """A short round of ``python -m torture.ranks``."""
    counts = Counter(made_up.check(seed) for seed in range(120))
    assert counts["equal"] > 10


# What files do not say.


def test_an_unknown_file_needs_its_pattern(tmp_path: Path) -> None:
    path = save_lines(tmp_path, OWN)
    with pytest.raises(UsageError, match=r"own\.tiktoken"):
        load_tokenizer(path)
    tokenizer = load_tokenizer(path, pattern="cl100k")
    assert tokenizer.native
    assert tokenizer.special_ids == {"<|endoftext|>": 265}
    assert tokenizer.eod_id == 265
    assert ids(tokenizer, ["in the thing"]) == [[259, 258, 32, 256, 260]]
    assert tokenizer.decode([259, 258, 265]) == "in the<|endoftext|>"


def test_special_tokens_in_text(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_lines(tmp_path, OWN), pattern="cl100k")
    text = "a<|endoftext|>b"
    assert ids(tokenizer, [text]) == [list(text.encode())]
    assert ids(tokenizer, [text], "encode") == [[97, 265, 98]]


def test_the_content_of_a_file_says_what_it_is(tmp_path: Path) -> None:
    path = save_lines(tmp_path, OWN, "tokenizer.model")
    by_file = load_tokenizer(path, pattern="llama3")
    by_folder = load_tokenizer(tmp_path, pattern="llama3")
    assert by_file.fingerprint == by_folder.fingerprint
    link = tmp_path / "link"
    link.symlink_to(path)
    assert load_tokenizer(link, pattern="llama3").fingerprint == by_file.fingerprint
    assert load_tokenizer(path, pattern="gpt2").fingerprint != by_file.fingerprint


# Names of tiktoken.


def test_names_are_found_in_both_caches(tmp_path: Path) -> None:
    source = MODERN / "cl100k_base.tiktoken"
    if not source.is_file():
        pytest.skip("no real vocabularies here")
    url = "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken"
    theirs = tmp_path / "tiktoken" / hashlib.sha1(url.encode()).hexdigest()
    theirs.parent.mkdir()
    theirs.symlink_to(source)
    tokenizer = load_tokenizer("cl100k_base")
    assert (tokenizer.name, tokenizer.vocab_size) == ("cl100k_base", 100277)
    assert tokenizer.special_ids["<|fim_suffix|>"] == 100260
    theirs.unlink()
    own = tmp_path / "cache" / "tokenizers" / "cl100k_base" / source.name
    own.parent.mkdir(parents=True)
    own.symlink_to(source)
    for request in (
        {"name": "cl100k_base"},
        {"vocab_file": "cl100k_base", "tokenizer_type": "TiktokenTokenizer"},
    ):
        assert load_tokenizer(**request).fingerprint == tokenizer.fingerprint
    assert load_tokenizer(source).fingerprint == tokenizer.fingerprint


def test_a_name_without_its_file_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer("o200k_base")
    text = str(caught.value)
    assert "encodings/o200k_base.tiktoken into " + str(tmp_path / "cache") in text
    assert "\n" not in text


def test_another_file_under_the_name_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "tokenizers" / "r50k_base"
    folder.mkdir(parents=True)
    save_lines(folder, OWN, "r50k_base.tiktoken")
    with pytest.raises(TokenizerError, match=r"/r50k_base\.tiktoken: .* r50k_base \(sha256 "):
        load_tokenizer("r50k_base")


# Patterns.


# Wrong files.


def _line(token: bytes, rank: object) -> bytes:
    return base64.b64encode(token) + f" {rank}\n".encode()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", r"own\.tiktoken: .*\bno token$"),
        (b"\n\n", r"own\.tiktoken: .*\bno token$"),
        (bytes(range(256)) * 4, r"own\.tiktoken:1: "),
        (lines(OWN)[:-3], r":265: line 3 .*\brank\b"),
        (lines(OWN) + b"AAAA", ":266: .*'AAAA'"),
        (lines(OWN) + b"AA=A 265\n", r":266: .*\bbase64\b.*'AA=A 265'"),
        (lines(OWN) + b"AAAAA 265\n", r":266: .*\bbase64\b.*'AAAAA 265'"),
        (lines(OWN) + lines(OWN), r":266: line 1 .*\btoken\b"),
        (lines(OWN) + _line(b"new", 264), r":266: line 265 .*\brank\b"),
        (lines(OWN) + _line(b"new", -1), r":266: .*\brank\b.* -1'"),
        (lines(OWN) + _line(b"new", "1_0"), r":266: .*\brank\b.* 1_0'"),
        (lines(OWN) + _line(b"new", 10**30), r":266: .*\brank\b.* 10{30}'"),
        (lines(OWN) + _line(b"new", 10**8), r"\brank 265, .*\b100000000\b"),
        (lines(OWN) + _line(b"new", 266), r"\brank 265, .*\b266\b"),
        (lines(OWN) + _line(b"x" * 5000, 265), r":266: .*\b4096 bytes, .*\b5,000\b"),
        (lines(OWN[1:]), r"\bbyte 0x00\b"),
        (lines(OWN).replace(b"\n", b" 1\n", 1), ":1: .* 0 1'"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, raw: bytes, reason: str) -> None:
    path = tmp_path / "own.tiktoken"
    path.write_bytes(raw)
    with pytest.raises(TokenizerError, match=reason) as caught:
        load_tokenizer(path, pattern="gpt2")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


# tekken.json, and the types of other programs.


def test_tekken(tmp_path: Path) -> None:
    o200k = pre_tokenizer_of("tekken")["pretokenizers"][0]["pattern"]["Regex"]
    tokenizer = load_tokenizer(save_tekken(tmp_path, OWN, o200k))
    assert tokenizer.native
    assert (tokenizer.vocab_size, tokenizer.eod_id) == (275, 2)
    assert ids(tokenizer, ["the</s>"]) == [[267, *(10 + byte for byte in b"</s>")]]
    assert load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint
    own = save_tekken(tmp_path, OWN, r"\p{L}+|\s")
    assert ids(load_tokenizer(own), ["the in"]) == [[267, 42, 269]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"config": {}}, r"\bconfig\b.*\bpattern\b"),
        ({"config": {"pattern": "."}}, r"\bdefault_vocab_size\b.*\bNone,"),
        ({"special_tokens": [{"rank": 11, "token_str": "x"}]}, "ids from 10 on"),
        ({"special_tokens": [{"rank": 1}]}, "special token 0 is"),
        ({"special_tokens": 3}, "special token 0 is 3"),
        ({"vocab": entries(OWN)[1:]}, "takes 265 beside|token 0 is"),
        ({"vocab": [*entries(OWN)[:-1], {"rank": 264, "token_bytes": "AA"}]}, "not base64"),
        ({"vocab": [*entries(OWN)[:-1], {"rank": 264, "token_bytes": "AA=="}]}, "there twice"),
        ({"vocab": [1] * 265}, "token 0 is 1"),
    ],
)
def test_a_wrong_tekken(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    path = save_tekken(tmp_path, OWN, "gpt2", **change)
    with pytest.raises(TokenizerError, match=reason) as caught:
        load_tokenizer(path)
    assert str(path) in str(caught.value)


def test_tik_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps(entries([*OWN, b"never"])))
    with pytest.raises(TokenizerError, match="tokenizer_type='TikTokenizer'"):
        load_tokenizer(path)
    with pytest.raises(TokenizerError, match=r"\b266 tokens\b.*\b130072\b.*\bvocab_size\b"):
        load_tokenizer(path, tokenizer_type="TikTokenizer")
    sizes = {"vocab_size": 285, "special_tokens_count": 20}
    for pattern in (None, "v2", "v1"):
        tokenizer = load_tokenizer(
            tokenizer_model=path, tokenizer_type="TikTokenizer", pattern=pattern, **sizes
        )
        assert tokenizer.native
        assert (tokenizer.vocab_size, tokenizer.eod_id) == (285, 2)
        assert ids(tokenizer, ["the<s><SPECIAL_7>"]) == [[277, 1, 7]]
        assert ids(tokenizer, ["the<s>"], "text") == [[277, 80, 135, 82]]
        again = load_tokenizer(path, **tokenizer.describe()["arguments"])
        assert again.fingerprint == tokenizer.fingerprint


def test_megatrons_patterns_cut_as_tiktoken_does(tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    path = save_lines(tmp_path, OWN)
    v1 = r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    reference = tiktoken.Encoding(
        "own",
        pat_str=v1,
        mergeable_ranks={token: i for i, token in enumerate(OWN)},
        special_tokens={},
    )
    rng = random.Random(3)
    parts = [" ", "\n", "\r\n", "  ", "the", "in", "12", "'s", "!", "\u00e9", "\t"]
    texts = ["".join(rng.choices(parts, k=rng.randint(1, 12))) for _ in range(300)]
    tokenizer = load_tokenizer(path, pattern="v1")
    assert ids(tokenizer, texts) == [reference.encode_ordinary(text) for text in texts]


def test_char_level_tokenizer() -> None:
    tokenizer = load_tokenizer(tokenizer_type="CharLevelTokenizer")
    assert (tokenizer.vocab_size, tokenizer.eod_id, tokenizer.native) == (512, 0, False)
    encoder = tokenizer.encoder(dtype="uint16", append_eod=True)
    encoded = encoder.encode(*block(["h\u00e9", "", "x"]))
    assert encoded.ids.dtype == np.uint16
    assert rows(encoded) == [[104, 195, 169, 0], [], [120, 0]]
    assert tokenizer.decode([104, 195, 169]) == "h\u00e9"
    assert load_tokenizer(**tokenizer.describe()["arguments"]).fingerprint == tokenizer.fingerprint


def test_qwen_normalizes() -> None:
    if not (MODERN / "qwen.tiktoken").is_file():
        pytest.skip("no real vocabularies here")
    tokenizer = load_tokenizer(MODERN / "qwen.tiktoken")
    text = "cafe\u0301"
    assert ids(tokenizer, [text]) == ids(tokenizer, [unicodedata.normalize("NFC", text)])
    assert ids(tokenizer, ["<|im_start|>"]) == [[151644]]

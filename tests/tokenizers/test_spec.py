"""What makes a tokenizer.json native, what sends it to the library, what makes files an error."""

from __future__ import annotations

import json
import pickle
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.tiny_tokenizers import ALPHABET, EOD, added, pair, save, tiny
from support.tokenizers_twin import EMPTY_MODEL, Twin, block, left_to_the_library, rows
from tokenizers import Tokenizer, models, pre_tokenizers

from tokpack.errors import TokenizerError
from tokpack.tokenizers import load_tokenizer
from tokpack.tokenizers.definition import decode_alphabet
from tokpack.tokenizers.huggingface import HuggingFaceTokenizer, digest_of

if TYPE_CHECKING:
    from pathlib import Path


def test_the_alphabet_is_the_library_s() -> None:
    """GPT-2's characters for the bytes, derived here the other way round."""
    assert sorted(filter(None, decode_alphabet(ALPHABET))) == [bytes([b]) for b in range(256)]
    for text in ("a b", "\u00e9\n", "\u4e2d"):
        pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        written = pieces.pre_tokenize_str(text)[0][0]
        assert decode_alphabet([written]) == [text.encode()]
    assert decode_alphabet(["a", "a b", "", "\u4e2d\u6587", "b"]) == [b"a", None, b"", None, b"b"]


def test_a_plain_file_is_native(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(tmp_path, tiny()))
    assert tokenizer.native
    assert (tokenizer.vocab_size, tokenizer.eod_id) == (259, 258)
    assert tokenizer.special_ids == {EOD: 258}
    encoder = tokenizer.encoder(dtype="uint16", append_eod=True)
    encoded = encoder.encode(*block(["abc", "", f"ab{EOD}"]))
    assert rows(encoded) == [[257, 258], [], [256, 258, 258]]
    assert encoded.ids.dtype == np.uint16
    assert encoded.lengths.dtype == np.int32
    assert encoded.special.tolist() == [2]
    assert tokenizer.decode([257, 258]) == f"abc{EOD}"


@pytest.mark.parametrize(
    "harmless",
    [
        {
            "truncation": {
                "direction": "Right",
                "max_length": 1,
                "strategy": "LongestFirst",
                "stride": 0,
            }
        },
        {"normalizer": {"type": "Sequence", "normalizers": []}},
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [
                    {"SpecialToken": {"id": EOD, "type_id": 0}},
                    {"Sequence": {"id": "A", "type_id": 0}},
                ],
                "pair": [],
                "special_tokens": {EOD: {"id": EOD, "ids": [258], "tokens": [EOD]}},
            }
        },
    ],
    ids=lambda value: next(iter(value)),
)
def test_what_adds_or_cuts_tokens_is_left_out(tmp_path: Path, harmless: dict[str, Any]) -> None:
    path = save(tmp_path, {**tiny(), **harmless})
    tokenizer = load_tokenizer(path)
    assert tokenizer.native
    library = Tokenizer.from_file(str(path))
    library.no_truncation()
    expected = library.encode("abcabc", add_special_tokens=False).ids
    encoder = tokenizer.encoder(dtype="int32", append_eod=False)
    assert rows(encoder.encode(*block(["abcabc"]))) == [expected]


def _without(*tokens: str) -> dict[str, int]:
    kept = [t for t in [*ALPHABET, "ab", "abc", EOD] if t not in tokens]
    return {token: i for i, token in enumerate(kept)}


METASPACE = {"type": "Metaspace", "replacement": "_", "prepend_scheme": "never", "split": True}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "byte_fallback of a byte without a token": (
        tiny(vocab=_without("q", EOD) | {"<0x71>": 257}, byte_fallback=True) | {"added_tokens": []},
        "byte 0x71",
    ),
    "prefix": (tiny(continuing_subword_prefix="##", merges=[]), "byte 0x00 within a word"),
    "suffix": (tiny(end_of_word_suffix="</w>"), "byte 0x00 at the end of a word"),
    "two alphabets": (
        {
            **tiny(),
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [EMPTY_MODEL["pre_tokenizer"], EMPTY_MODEL["pre_tokenizer"]],
            },
        },
        "ByteLevel twice",
    ),
    "no pre_tokenizer": ({**tiny(), "pre_tokenizer": None}, "no token for unknown"),
    "other pre_tokenizer": (
        {
            **tiny(),
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [*2 * [METASPACE], EMPTY_MODEL["pre_tokenizer"]],
            },
        },
        "two that put spaces in front",
    ),
    "normalizer": (
        {**tiny(), "normalizer": {"type": "ByteLevel"}},
        "normalizer is ByteLevel",
    ),
    "two normalizers": (
        {
            **tiny(),
            "normalizer": {
                "type": "Sequence",
                "normalizers": [
                    {"type": "NFC"},
                    {"type": "Replace", "pattern": {"Regex": "(?>a|ab)c"}, "content": ""},
                ],
            },
        },
        "its normalizer has an atomic group",
    ),
    "white space for two": (
        {**tiny(), "added_tokens": [added(EOD, 258, rstrip=True), added(" x", 259)]},
        "around it",
    ),
    "another flag": ({**tiny(), "added_tokens": [added(EOD, 258, lazy=True)]}, "has 'lazy'"),
    "gap in the ids": (
        {**tiny(), "added_tokens": [added(EOD, 258), added("<x>", 300)]},
        "may change the id",
    ),
    "a number that versions of the library give otherwise": (
        {
            **tiny(vocab=_without(EOD) | {EOD: 500}),
            "added_tokens": [added(EOD, 500), added("<x>", 501)],
        },
        "may change the id",
    ),
    "an added token with the id of another one": (
        {**tiny(vocab=_without(EOD) | {"abc": 258}), "added_tokens": [added("<x>", 258)]},
        "'<x>' has the id of 'abc'",
    ),
    "a byte without a token": (
        tiny(vocab=_without("q", EOD)) | {"added_tokens": []},
        "byte 0x71",
    ),
    "another model": (
        {
            **tiny(),
            "model": {
                "type": "Unigram",
                "unk_id": 0,
                "vocab": [["<unk>", 0.0], ["a", -1.0]],
                "byte_fallback": False,
            },
            "added_tokens": [],
        },
        "no token for a space",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_goes_to_the_library_and_works_the_same(tmp_path: Path, case: str) -> None:
    definition, reason = REFUSED[case]
    path = save(tmp_path, definition)
    tokenizer = left_to_the_library(path, reason)
    texts = ["abc a b", "", "x\u00e9 abab"]
    library = Tokenizer.from_file(str(path))
    expected = [library.encode(text, add_special_tokens=False).ids for text in texts]
    encoder = pickle.loads(pickle.dumps(tokenizer)).encoder(dtype="int32", append_eod=False)
    assert rows(encoder.encode(*block(texts))) == expected


@pytest.mark.parametrize(
    "forms", [["NFD"], ["NFKC"], ["NFKD"], ["NFKD", "NFC"], ["NFC", "NFD"], ["NFKC", "NFD"]]
)
def test_normal_forms(tmp_path: Path, forms: list[str]) -> None:
    steps = {"type": "Sequence", "normalizers": [{"type": form} for form in forms]}
    tokenizer = load_tokenizer(save(tmp_path, {**tiny(), "normalizer": steps}))
    parts = ["ab", "\u00e5", "a\u030a", "\u212b", "\ufb01", "\uff76\uff9e", "\u1100\u1161"]
    parts += ["\uac01", "\u0301\u0323", "\u00a0", "\ufdfa", "\u2460", " ", EOD, "\U0001d400"]
    draw = random.Random(1)
    Twin(tokenizer).compare(["".join(draw.choices(parts, k=20)) for _ in range(200)])
    # As where the library encodes: a dataset of then is one of now.
    assert tokenizer.kind == HuggingFaceTokenizer.kind
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    assert tokenizer.definition_digest() == digest_of(definition)


def test_an_added_token_in_another_form(tmp_path: Path) -> None:
    tokens = [added(EOD, 258), added("\uff41<", 259, normalized=True), added("\uff42<", 260)]
    written = {**tiny(), "normalizer": {"type": "NFKC"}, "added_tokens": tokens}
    twin = Twin(load_tokenizer(save(tmp_path, written)))
    twin.compare(["a\uff41<a<b\uff42<b<", "\uff42\uff41\uff1c\uff42<"])
    assert twin.tokenizer.kind == HuggingFaceTokenizer.kind
    again = [*tokens, added("a<", 261, normalized=True)]
    tokenizer = load_tokenizer(save(tmp_path, {**written, "added_tokens": again}))
    assert "'a<' is there twice, normalized" in tokenizer.why_not_native


def test_vocabulary_with_holes_counts_them(tmp_path: Path) -> None:
    """The largest id decides what fits into uint16."""
    definition = tiny()
    definition["model"]["vocab"]["abc"] = 70_000
    definition["model"]["vocab"][EOD] = 257
    definition["added_tokens"][0]["id"] = 257
    tokenizer = load_tokenizer(save(tmp_path, definition))
    assert tokenizer.vocab_size == 70_001
    with pytest.raises(TokenizerError, match=r"\b70001 ids, .*\buint16 .*\b65536: .*\bint32$"):
        tokenizer.encoder(dtype="uint16", append_eod=False)
    encoder = tokenizer.encoder(dtype="int32", append_eod=True)
    assert rows(encoder.encode(*block(["abc"]))) == [[70_000, 257]]
    with pytest.raises(TokenizerError):
        tokenizer.decode([300])


def test_the_end_of_document_token(tmp_path: Path) -> None:
    definition = tiny()
    names = ["<s>", "</s>", "<|eot|>"]
    definition["added_tokens"] = [added(n, 259 + i) for i, n in enumerate(names)]
    del definition["model"]["vocab"][EOD]
    definition["model"]["vocab"]["zz"] = 258
    path = save(tmp_path, definition)
    assert load_tokenizer(path).eod_id == 260
    assert load_tokenizer(path, eod_token="<|eot|>").eod_id == 261
    with pytest.raises(TokenizerError, match="'<nope>'"):
        load_tokenizer(path, eod_token="<nope>")
    fingerprints = {load_tokenizer(path, eod_token=n).fingerprint for n in names}
    assert len(fingerprints) == 3

    definition["added_tokens"] = []
    without = load_tokenizer(save(tmp_path, definition))
    assert without.eod_id is None
    with pytest.raises(TokenizerError):
        without.encoder(dtype="uint16", append_eod=True)
    assert without.encoder(dtype="uint16", append_eod=False)


def test_the_fingerprint_is_of_the_meaning(tmp_path: Path) -> None:
    """Formatting, order of keys and post-processing do not count; all that decides ids does."""
    first = load_tokenizer(save(tmp_path, tiny())).fingerprint
    other = dict(reversed(tiny().items()))
    other["post_processor"] = {"type": "ByteLevel", "add_prefix_space": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(other, indent=3))
    assert load_tokenizer(tmp_path / "tokenizer.json").fingerprint == first
    changed = [
        {**tiny(), "normalizer": {"type": "NFC"}},
        tiny(ignore_merges=True),
        tiny(merges=[["a", "b"]]),
        {**tiny(), "added_tokens": [added(EOD, 258, special=False)]},
        {**tiny(), "added_tokens": [added(EOD, 258), added("<x>", 259)]},
        {**tiny(), "pre_tokenizer": {**EMPTY_MODEL["pre_tokenizer"], "use_regex": False}},  # type: ignore[dict-item]
    ]
    seen = {load_tokenizer(save(tmp_path, definition)).fingerprint for definition in changed}
    assert len(seen | {first}) == len(changed) + 1


# GPT-2's pair of files.


@pytest.mark.parametrize(
    "merges",
    [
        "#version: 0.2\na b\nab c\n",
        "a b\nab c\n",
        "#version: 0.2\na b\nab c",
        "#version: 0.2\r\na b\r\nab c\r\n",
    ],
)
def test_merges_files_of_all_makes(tmp_path: Path, merges: str) -> None:
    tokenizer = load_tokenizer(**pair(tmp_path, _without(), merges))
    encoder = tokenizer.encoder(dtype="uint16", append_eod=True)
    assert rows(encoder.encode(*block(["abc", "ab"]))) == [[257, 258], [256, 258]]


def test_special_tokens_are_text_in_gpt2_s_files(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(**pair(tmp_path, _without(), "a b\nab c\n"))
    for mode, last in (("auto", 13), ("text", 13), ("encode", 1), ("error", 1)):
        encoder = tokenizer.encoder(dtype="uint16", append_eod=False, special_tokens=mode)
        encoded = encoder.encode(*block([f"ab{EOD}"]))
        assert encoded.lengths.tolist() == [1 + last]
        assert encoded.special.tolist() == [0]


def test_a_vocabulary_without_merges(tmp_path: Path) -> None:
    library = Tokenizer(models.BPE(_without(), []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder = load_tokenizer(**pair(tmp_path, _without(), "#version: 0.2\n")).encoder(
        dtype="uint16", append_eod=False
    )
    assert rows(encoder.encode(*block(["abc d"]))) == [library.encode("abc d").ids]


@pytest.mark.parametrize(
    ("vocab", "merges", "message"),
    [
        (
            _without("abc"),
            "a b\nab c\n",
            r"vocab\.json .*merges\.txt: .*\bmerge 2 \('ab' \+ 'c'\) .*'abc'",
        ),
        (_without("b"), "a b\nab c\n", r"\bmerge 1 \('a' \+ 'b'\) .*'b':"),
        (_without("q"), "a b\n", r"\bbyte 0x71:"),
        ({**_without(), "zz": 5}, "a b\n", r"vocab\.json: '&' and 'zz' .*\bid 5$"),
        ({**_without(), "zz": -1}, "a b\n", r"'zz' is -1\b"),
        ({**_without(), "zz": 1 << 40}, "a b\n", r"'zz' is 1099511627776\b"),
        ({**_without(), "zz": "7"}, "a b\n", r"'zz' is '7',"),
        ({}, "a b\n", r"vocab\.json: .*empty"),
        ([1, 2], "a b\n", r"vocab\.json: .*\bJSON object\b"),
        (_without(), "a b\nabc\n", r"merges\.txt:2: .*'abc'"),
        (_without(), "#version: 0.2\na b\nab  c\n", r"merges\.txt:3: .*'ab  c'"),
        (_without(), "a b\n\nab c\n", r"merges\.txt:2: .*''"),
        (tiny(), "a b\n", r"vocab\.json: .*\btokenizer\.json\b"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, vocab: object, merges: str, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(**pair(tmp_path, vocab, merges))


def test_files_that_are_no_files(tmp_path: Path) -> None:
    files = pair(tmp_path, _without(), "a b\n")
    files["vocab_file"].write_text("{not json")
    with pytest.raises(TokenizerError, match=r"vocab\.json"):
        load_tokenizer(**files)
    files["merge_file"].write_bytes(b"a b\n\xff \n")
    save(tmp_path, _without(), "vocab.json")
    with pytest.raises(TokenizerError, match=r"merges.txt: .*byte 4"):
        load_tokenizer(**files)
    files["merge_file"].unlink()
    with pytest.raises(TokenizerError, match=r"merges\.txt"):
        load_tokenizer(**files)

"""Tokenizers of transformers whose texts the core encodes: whatever they are asked, the same."""

from __future__ import annotations

import copy
import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import tokpack
from tokpack.errors import TokenizerError
from tokpack.tokenizers.accelerated import AcceleratedTokenizer

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")

EOD = "<|endoftext|>"
TEXTS = st.text(max_size=40) | st.sampled_from(
    ["", f"a{EOD}b", "one two  three\n", "né \ud83d\ude00"]
)


@pytest.fixture(scope="module")
def both(bpe: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """transformers' own tokenizer, with a token before and one behind each text, and ours."""
    path = tmp_path_factory.mktemp("framed") / "tokenizer.json"
    library = tokenizers.Tokenizer.from_file(str(bpe))
    eod = library.token_to_id(EOD)
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{EOD} $A {EOD}", pair=f"{EOD} $A {EOD} $B:1 {EOD}:1", special_tokens=[(EOD, eod)]
    )
    library.save(str(path))
    plain = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), eos_token=EOD)
    ours = tokpack.load_tokenizer(path).as_hf()
    for one in (plain, ours):
        one.pad_token = EOD
    assert ours._tokenizer.is_native
    return plain, ours


def asked(tokenizer: Any, texts: Any, request: dict[str, Any]) -> Any:
    try:
        return dict(tokenizer(texts, **request))
    except Exception as error:  # the library's words too
        return type(error), str(error)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(TEXTS, min_size=1, max_size=4),
    st.fixed_dictionaries(
        {},
        optional={
            "add_special_tokens": st.booleans(),
            "truncation": st.booleans(),
            "max_length": st.integers(1, 12),
            "padding": st.sampled_from([True, False, "max_length"]),
            "pad_to_multiple_of": st.sampled_from([4, 8]),
            "padding_side": st.sampled_from(["left", "right"]),
            "return_offsets_mapping": st.booleans(),
            "return_overflowing_tokens": st.booleans(),
            "return_token_type_ids": st.booleans(),
            "return_special_tokens_mask": st.booleans(),
            "return_length": st.booleans(),
            "split_special_tokens": st.booleans(),
        },
    ),
)
@pytest.mark.filterwarnings("ignore")
def test_whatever_is_asked_the_answer_is_the_same(
    both: tuple[Any, Any], texts: list[str], request_: dict[str, Any]
) -> None:
    plain, ours = both
    assert asked(ours, texts, request_) == asked(plain, texts, request_)
    assert asked(ours, texts[0], request_) == asked(plain, texts[0], request_)


PADDING = st.fixed_dictionaries(
    {},
    optional={
        "direction": st.sampled_from(["left", "right"]),
        "pad_id": st.integers(0, 9),
        "pad_type_id": st.integers(0, 3),
        "pad_token": st.sampled_from(["[PAD]", ""]),
        "length": st.none() | st.integers(0, 12),
        "pad_to_multiple_of": st.none() | st.sampled_from([0, 1, 4, 8]),
    },
)
TRUNCATION = st.fixed_dictionaries(
    {"max_length": st.integers(0, 12)},
    optional={
        "stride": st.integers(0, 6),
        "strategy": st.sampled_from(["longest_first", "only_first", "only_second"]),
        "direction": st.sampled_from(["left", "right"]),
    },
)
FACTS = "ids type_ids attention_mask tokens offsets special_tokens_mask word_ids n_sequences"


def told(function: Any, *arguments: Any, **named: Any) -> Any:
    """What a call of the library gives, or how it fails; its panics are no Exception."""
    try:
        made = function(*arguments, **named)
    except BaseException as error:
        return type(error).__name__, str(error)
    return [
        [getattr(one, name) for name in FACTS.split()] + [len(one), len(one.overflowing)]
        for one in made or ()
    ]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(TEXTS, max_size=4),
    st.lists(st.none() | PADDING | TRUNCATION | st.booleans(), max_size=4),
    st.booleans(),
)
def test_padding_and_truncation_are_the_library_s(
    both: tuple[Any, Any], texts: list[str], changes: list[Any], special: bool
) -> None:
    library = tokenizers.Tokenizer.from_str(both[0].backend_tokenizer.to_str())
    ours = AcceleratedTokenizer(tokenizers.Tokenizer.from_str(library.to_str()))
    for change in changes:
        answers = []
        for one in (library, ours):
            if change is None:
                one.no_padding()
                answers.append(one.no_truncation())
            elif isinstance(change, bool):
                one.post_processor = both[0].backend_tokenizer.post_processor if change else None
            elif "max_length" in change:
                answers.append(told(one.enable_truncation, **change))
            else:
                answers.append(told(one.enable_padding, **change))
        assert answers[:1] == answers[1:]
        request: dict[str, Any] = {"add_special_tokens": special}
        assert told(ours.encode_batch, texts, **request) == told(
            library.encode_batch, texts, **request
        )


def test_what_goes_to_the_library(both: tuple[Any, Any]) -> None:
    plain, ours = both
    for request in (("one", "two"), (["one"], ["two"]), (["one two", "three"], ["a", "b"])):
        assert dict(ours(*request)) == dict(plain(*request))
    split = {"is_split_into_words": True}
    assert dict(ours(["one", "two"], **split)) == dict(plain(["one", "two"], **split))
    left = {"truncation": True, "max_length": 4, "return_offsets_mapping": True}
    one, other = ours("one two three four", **left), plain("one two three four", **left)
    assert dict(one) == dict(other)
    ours("another")  # whose settings are not those of before
    assert one.tokens() == other.tokens()
    assert one.char_to_token(5) == other.char_to_token(5)
    assert ours.decode(one["input_ids"]) == plain.decode(other["input_ids"])
    assert pickle.loads(pickle.dumps(one)).tokens() == other.tokens()
    assert asked(ours, "a\ud800", {}) == asked(plain, "a\ud800", {})


def test_changes_of_a_tokenizer_are_noticed(both: tuple[Any, Any]) -> None:
    plain, ours = (copy.deepcopy(one) for one in both)
    for one in (plain, ours):
        one.add_tokens(["three fo"])
        one.add_special_tokens({"additional_special_tokens": ["<|x|>"]})
    text = "one two three four<|x|> five"
    assert ours(text)["input_ids"] == plain(text)["input_ids"]
    assert ours(text)["input_ids"] != both[1](text)["input_ids"]
    for one in (plain, ours):
        one.backend_tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    assert ours._tokenizer.is_native
    assert ours("ONE")["input_ids"] == plain("ONE")["input_ids"]
    for one in (plain, ours):
        atomic = tokenizers.Regex("(?>ON|O)E")
        one.backend_tokenizer.normalizer = tokenizers.normalizers.Replace(atomic, "two")
    assert not ours._tokenizer.is_native
    assert ours("ONE")["input_ids"] == plain("ONE")["input_ids"]
    for one in (plain, ours):
        one.backend_tokenizer.normalizer = None
        one.backend_tokenizer.post_processor = None
    assert ours._tokenizer.is_native
    assert ours("ONE")["input_ids"] == plain("ONE")["input_ids"]


def test_a_chat_template_beside_the_files_comes_along(bpe: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(bpe.read_bytes())
    template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    config = {"eos_token": EOD, "chat_template": template}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = tokpack.load_tokenizer(tmp_path).as_hf()
    assert isinstance(ours._tokenizer, AcceleratedTokenizer)
    ids = ours.apply_chat_template([{"role": "user", "content": "one"}])["input_ids"]
    assert ours.decode(ids) == f"one{EOD}"


def test_what_has_no_tokenizer_json(tmp_path: Path) -> None:
    path = tmp_path / "words.json"
    path.write_text('{"one": 0, "[UNK]": 1}')
    words = tokpack.load_tokenizer(tokenizer_type="Whitespace", vocab_file=path)
    with pytest.raises(TokenizerError, match=r"words\.json"):
        words.as_hf()

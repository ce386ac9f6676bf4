"""Random texts, and real ones: native against the Hugging Face library, at every level."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.tokenizers_twin import LEVELS, Twin, block, corpus

from tokpack.indexed import MMapIndexedDataset
from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

_CHARACTERS = st.characters(exclude_categories=["Cs"])
# Pieces that meet at awkward places: white space of all widths, quotes, marks, special tokens.
_PIECES = st.one_of(
    st.text(_CHARACTERS, max_size=6),
    st.text("abcdefgh", max_size=70),
    st.sampled_from(
        [
            *(" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\0"),
            *("'", "'s", "'ll", "'LL", "\u2019s", "123", "1234", "\u0661\u0662", "!?", "--"),
            *("e\u0301", "\u0301", "\u1100\u1161\u11a8", "\u212b", "\u00e9", "\u4e2d\u6587"),
            *("\U0001f600", "\U0001f468\u200d\U0001f469"),
            *("<|endoftext|>", "<|padding|>", "<|endof"),
        ]
    ),
    st.builds(lambda character, count: character * count, _CHARACTERS, st.integers(1, 80)),
    st.builds(lambda count: " " * count, st.integers(1, 70)),
)
_TEXTS = st.lists(st.lists(_PIECES, max_size=20).map("".join), min_size=1, max_size=6)
_SETTINGS = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)


@pytest.mark.parametrize("name", ["gpt2", "neox"])
@given(texts=_TEXTS)
@settings(_SETTINGS, suppress_health_check=[*HealthCheck])
def test_random_texts(name: str, request: pytest.FixtureRequest, texts: list[str]) -> None:
    twin: Twin = request.getfixturevalue(name)
    twin.compare(texts)


@given(
    before=st.integers(0, 70),
    middle=_PIECES,
    after=st.integers(0, 70),
    word=st.sampled_from("a\u00e9 "),
)
@_SETTINGS
def test_every_position_in_a_block(  # noqa: PLR0917
    neox: Twin, gpt2: Twin, before: int, middle: str, after: int, word: str
) -> None:
    texts = [word * before + middle + "b" * after]
    gpt2.compare(texts, modes=["text"])
    neox.compare(texts, modes=["encode"])


@pytest.mark.parametrize("name", ["gpt2", "neox"])
@pytest.mark.parametrize("which", ["owt", "english", "code", "multi", "nasty"])
def test_real_documents(name: str, which: str, data: Path, request: pytest.FixtureRequest) -> None:
    twin: Twin = request.getfixturevalue(name)
    texts = corpus(data, which, limit=600_000)
    twin.compare(texts[: len(texts) // 2 + 1], modes=["text"])
    twin.compare(texts[len(texts) // 2 :], modes=["encode"])


@pytest.mark.parametrize("which", ["owt", "english", "code", "multi", "nasty"])
def test_whole_corpora_have_the_published_ids(
    which: str, data: Path, gpt2: Twin, neox: Twin
) -> None:
    """expected.json was made by other programs: sha256 of all ids as uint16, with an EOD each."""
    texts = corpus(data, which)
    text, spans = block(texts)
    expected = json.loads((data / "corpora" / "expected.json").read_text())
    for name, twin in {"gpt2": gpt2, "neox20b": neox}.items():
        encoder = twin.tokenizer.encoder(dtype="uint16", append_eod=True)
        encoded = encoder.encode(text, spans)
        case = expected[f"{which}.{name}"]
        assert encoded.ids.dtype == np.uint16
        assert len(encoded.ids) == case["tokens"]
        assert int((encoded.lengths == 0).sum()) == case["empty"]
        assert hashlib.sha256(encoded.ids.tobytes()).hexdigest() == case["bin"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["gpt2", "neox"])
def test_decoding_gives_the_text_back(
    name: str, level: str, data: Path, request: pytest.FixtureRequest
) -> None:
    twin: Twin = request.getfixturevalue(name)
    of = "multi" if name == "gpt2" else "code"
    texts = [t for t in corpus(data, of, limit=300_000) if name == "gpt2" or t.isascii()]
    assert len(texts) > 10
    for text, ids in zip(texts, twin.native(texts, "encode", level), strict=True):
        assert twin.tokenizer.decode(ids) == text


def test_a_dataset_that_megatron_made_encodes_to_itself(shared: Path) -> None:
    """Its documents, decoded and encoded again, are the same bytes."""
    folder = shared / "megatron"
    tokenizer = load_tokenizer(
        vocab_file=folder / "gpt2-tiny-vocab.json", merge_file=folder / "gpt2-tiny-merges.txt"
    )
    dataset = MMapIndexedDataset(str(folder / "meg-gpt2-openwebtext_text_document"))
    documents = [dataset[i] for i in range(len(dataset))]
    assert len(documents) == 1000
    assert all(ids[-1] == tokenizer.eod_id for ids in documents)
    data, spans = block([tokenizer.decode_bytes(ids[:-1]) for ids in documents])
    encoded = tokenizer.encoder(dtype="uint16", append_eod=True).encode(data, spans)
    assert encoded.lengths.tolist() == [len(ids) for ids in documents]
    assert np.array_equal(encoded.ids, np.concatenate(documents))

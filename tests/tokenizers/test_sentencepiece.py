"""SentencePiece models in the native core: the ids of their own library."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sentencepiece_tools import HOSTILE, MODELS, TEXTS, Twin, edited, mistral, trained, twin
from support.tokenizers_twin import block, corpus, rows

from tokpack.errors import TokenizerError
from tokpack.tokenizers import load_tokenizer, self_check

if TYPE_CHECKING:
    from pathlib import Path


# Equal ids.


@pytest.mark.parametrize("name", MODELS)
def test_hostile_texts(name: str) -> None:
    twin(name).compare([*TEXTS, *HOSTILE])


@pytest.mark.parametrize("name", MODELS)
def test_texts_made_of_what_a_model_knows_and_does_not(name: str) -> None:
    draw = random.Random(name)
    alphabet = [
        *"the cat sat on mats \n\t.'<x>0",
        "\u2581",
        "\u00e9",
        "e\u0301",
        "\u4e2d",
        "  ",
        "\u3000",
    ]
    alphabet += ["\U0001f600", "\u0441", "the", " cat", "\0", "\u00a0", "\n\n", "\u0301", "\uff21"]
    texts = ["".join(draw.choices(alphabet, k=draw.randrange(60))) for _ in range(1500)]
    twin(name).compare(texts)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=4), st.sampled_from(sorted(MODELS)))
def test_any_text(texts: list[str], name: str) -> None:
    twin(name).compare(texts)


@pytest.mark.parametrize("name", ["mistral", *MODELS])
@pytest.mark.parametrize("of", ["english", "code", "multi", "nasty"])
def test_real_documents(data: Path, name: str, of: str) -> None:
    real = name == "mistral"
    both = mistral(data) if real else twin(name)
    texts = corpus(data, f"{of}.jsonl", 400_000 if real else 80_000)
    # One long document too: a Unigram's sum of scores is set back within it.
    both.compare([*texts, "\n".join(texts)])


def test_ids_of_a_real_model_are_those_that_were_written_down(shared: Path) -> None:
    expected = json.loads((shared / "corpora" / "expected-modern.json").read_text())
    core = mistral(shared).cores[0]
    for of in ("english", "code", "multi", "nasty"):
        encoded = core.encode(*block(corpus(shared, f"{of}.jsonl")[:400]))
        digest = hashlib.sha256(encoded.ids.astype("<u4").tobytes()).hexdigest()
        assert digest == expected[f"{of}.mistral-v1"]["sha256"]


@pytest.mark.parametrize("name", MODELS)
def test_words_of_a_megabyte(name: str) -> None:
    texts = ["a" * 1_000_000, " " * 1_000_000, "th\u00e9" * 250_000, "\U0001f600" * 250_000]
    core = twin(name).cores[0]
    expected = twin(name).library.encode(texts)
    assert rows(core.encode(*block(texts))) == expected


@pytest.mark.parametrize("name", ["gemma", "unigram"])
def test_more_than_65536_pieces(name: str) -> None:
    def grow(proto: Any) -> None:
        for number in range(70_000):
            proto.pieces.add(piece=f"cat{number}", score=-10_000.0 - number)

    both = Twin(edited(trained(name), grow))
    both.compare([*TEXTS, *HOSTILE, "cat7 cat69999 cat700000 the cat12"])
    with pytest.raises(TokenizerError, match="uint16 holds 65536: use int32"):
        both.tokenizer.encoder(dtype="uint16", append_eod=False)


def test_what_is_not_utf8_does_no_harm() -> None:
    draw = random.Random(5)
    texts = [draw.randbytes(draw.randrange(40)) for _ in range(500)]
    for name in MODELS:
        for core in twin(name).cores:
            assert len(core.encode(*block([*texts, "the cat"])).lengths) == 501


# Beside the Hugging Face library.


# Tokenizers.


@pytest.mark.parametrize("name", MODELS)
def test_a_tokenizer_is_what_it_was_with_the_library(name: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(trained(name))
    tokenizer = load_tokenizer(path)
    library = twin(name).library
    assert (tokenizer.native, tokenizer.why_not_native) == (True, "")
    assert tokenizer.vocab_size == library.get_piece_size()
    assert tokenizer.eod_id == library.eos_id()
    control = {library.id_to_piece(i): i for i in range(len(library)) if library.is_control(i)}
    assert tokenizer.special_ids == control
    parts = ("SentencePiece", hashlib.sha256(trained(name)).hexdigest(), "text", library.eos_id())
    assert tokenizer.fingerprint == hashlib.sha256(repr(parts).encode()).hexdigest()
    texts = [*TEXTS, *HOSTILE, "</s>cat<s></s>"]
    encoded = tokenizer.encoder(dtype="uint16", append_eod=True).encode(*block(texts))
    plain = library.encode(texts)
    assert rows(encoded) == [[*ids, library.eos_id()] if ids else [] for ids in plain]
    assert (encoded.ids.dtype, encoded.lengths.dtype) == (np.uint16, np.int32)
    assert encoded.special.tolist() == [
        *[i for i, text in enumerate(texts) for mark in control for _ in range(text.count(mark))]
    ]
    for ids in plain:
        assert tokenizer.decode(ids) == library.decode(ids)
    for number in range(len(library)):
        if not library.is_byte(number):
            assert tokenizer.decode([number, number, 0]) == library.decode([number, number, 0])
    self_check(tokenizer, *block(TEXTS))


def test_the_library_is_not_needed(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(trained("llama"))
    program = (
        "import sys, numpy as np; sys.modules['sentencepiece'] = None\n"
        "from tokpack.tokenizers import load_tokenizer\n"
        f"tokenizer = load_tokenizer({str(path)!r})\n"
        "encoder = tokenizer.encoder(dtype='uint16', append_eod=False)\n"
        "ids = encoder.encode(np.frombuffer(b'the cat', np.uint8), np.array([[0, 7]])).ids\n"
        "print(tokenizer.decode(ids))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"the cat\n"

"""SentencePiece files that the native core leaves to the library, or refuses."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.sentencepiece_tools import TEXTS, edited, pb, sentencepiece, trained, twin
from support.tokenizers_twin import block, rows

from tokpack.errors import TokenizerError
from tokpack.tokenizers.sentencepiece import SentencePieceTokenizer


def unused(proto: Any) -> None:
    proto.pieces[-1].type = 5


def suffix(proto: Any) -> None:
    proto.trainer_spec.treat_whitespace_as_suffix = True


def unescaped(proto: Any) -> None:
    proto.normalizer_spec.escape_whitespaces = False


def characters(proto: Any) -> None:
    proto.trainer_spec.model_type = 4


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (unused, "unused pieces"),
        (suffix, "white space behind words"),
        (unescaped, "leaves white space as it is"),
        (characters, "words or characters"),
    ],
)
def test_what_is_left_to_the_library(change: Any, reason: str) -> None:
    raw = edited(trained("bpe"), change)
    tokenizer = SentencePieceTokenizer("m", raw)
    assert not tokenizer.native
    assert reason in tokenizer.why_not_native
    library = sentencepiece.SentencePieceProcessor(model_proto=raw)
    encoder = tokenizer.encoder(dtype="int32", append_eod=False)
    assert rows(encoder.encode(*block(TEXTS))) == library.encode(TEXTS)
    assert tokenizer.decode(library.encode(TEXTS[0])) == library.decode(library.encode(TEXTS[0]))


# Files that are broken.


def test_a_model_cut_at_every_byte() -> None:
    raw = trained("llama")
    whole = twin("llama").library.encode(TEXTS)
    # Only what follows the normalizer decides no id.
    proto = pb.ModelProto()
    proto.ParseFromString(raw)
    proto.ClearField("denormalizer_spec")
    enough = len(proto.SerializeToString())
    for size in range(len(raw)):
        if size == enough:
            tokenizer = SentencePieceTokenizer("m", raw[:size])
            assert rows(tokenizer.core(dtype="int32").encode(*block(TEXTS))) == whole
            continue
        with pytest.raises(TokenizerError, match=r"^tokenizer m: not a SentencePiece model: .*\Z"):
            SentencePieceTokenizer("m", raw[:size])


@pytest.mark.parametrize("name", ["llama", "bpe", "unigram"])
def test_a_model_with_bytes_changed_is_refused_or_means_the_same_to_the_library(name: str) -> None:
    draw = random.Random(name)
    raw = trained(name)
    for _ in range(200):
        bad = bytearray(raw)
        for _ in range(draw.randrange(1, 4)):
            bad[draw.randrange(len(bad))] = draw.randrange(256)
        try:
            tokenizer = SentencePieceTokenizer("m", bytes(bad))
            library = tokenizer.library_model()
        except TokenizerError:
            continue
        if tokenizer.native:
            core = tokenizer.core(dtype="int32")
            assert rows(core.encode(*block(TEXTS))) == library.encode(TEXTS)


def twice(proto: Any) -> None:
    proto.pieces[-1].piece = proto.pieces[-2].piece


def empty(proto: Any) -> None:
    proto.pieces[-1].piece = ""


def infinite(proto: Any) -> None:
    proto.pieces[-1].score = float("inf")


def known(proto: Any) -> None:
    proto.pieces[0].type = 1


def half_a_byte(proto: Any) -> None:
    proto.pieces[-1].type = 6


def broken_rules(proto: Any) -> None:
    proto.normalizer_spec.precompiled_charsmap = b"\xff\xff\xff\x7fabc"


def no_pieces(proto: Any) -> None:
    del proto.pieces[:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (twice, r"piece \d+ .*\btwice\b"),
        (empty, r"piece \d+ .*\bempty\b"),
        (infinite, r"piece \d+ .*\bscore\b"),
        (known, r".*\bunknown piece\b"),
        (half_a_byte, r"piece \d+ .*\bbyte\b"),
        (broken_rules, r".*\bnormalization rules\b"),
        (no_pieces, r".*\bpieces\b"),
    ],
)
def test_models_that_contradict_themselves(change: Any, message: str) -> None:
    with pytest.raises(TokenizerError, match=f"^tokenizer m: .* SentencePiece model: {message}"):
        SentencePieceTokenizer("m", edited(trained("bpe"), change))

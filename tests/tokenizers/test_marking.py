"""Which tokens are of marked text: those of which the library's offsets say so."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.marking_twin import library_of, marked
from support.sentencepiece_tools import trained, unigram_json
from support.tiny_tokenizers import EOD, OF_THE_LIBRARY, added, save, tiny, with_ids
from support.tokenizers_twin import block
from support.traps import TRAPS
from support.wordpiece_tools import CUTS, bert_normalizer, sequence

from tokpack.errors import TokenizerError
from tokpack.tokenizers import Frame, MarkingEncoder, load_tokenizer
from tokpack.tokenizers.marking import _agree

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SPACE = "\u2581"
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
LLAMA = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, REPLACE]}
PIECES = [
    *("<|im_start|>", "<|im_end|>", "<s>", "</s>", "<t>", " <t> ", "user\n", "assistant\n"),
    *(" ", "  ", "\n", "\t", "\u3000", "a", "b", "ab", "abab", "c", "1234", "<", "|>", "\0"),
    *("\u00e9", "e\u0301", "\u0301", "\u4e2d", "\u0958", "\U0001f600", "\ufb01", "\u00a0"),
    *("\U0001f468\u200d\U0001f469", "\u1112\u1161\u11ab", SPACE, "<unk>", "<0x0A>"),
]


def metaspace(normalizer: Any, pre_tokenizer: Any, **model: Any) -> dict[str, Any]:
    texts = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, "a", "b", "\n", "\u00e9"]
    merges = [(SPACE, SPACE), ("a", "b"), (SPACE, "ab"), ("ab", "ab"), (SPACE + SPACE, "ab")]
    texts += [left + right for left, right in merges]
    tokens = [
        added("<s>", len(texts)),
        added("</s>", len(texts) + 1, normalized=True),
        added("<t>", len(texts) + 2, lstrip=True, rstrip=True),
        added("<|im_end|>", len(texts) + 3, rstrip=True),
    ]
    settings = {
        "type": "BPE",
        "unk_token": "<unk>",
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": {text: number for number, text in enumerate(texts)},
        "merges": [list(pair) for pair in merges],
        **model,
    }
    return {
        **tiny(),
        "added_tokens": tokens,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "decoder": None,
        "model": settings,
    }


def scheme(name: str, *, split: bool) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": name, "split": split}


def byte_level(**changes: Any) -> dict[str, Any]:
    tokens = [added("<|im_start|>", 259), added("<|im_end|>", 260), added("<t>", 261)]
    definition = tiny()
    definition["added_tokens"] += tokens
    return {**definition, **changes}


def replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def normalizers(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(steps)}


def rules() -> dict[str, Any]:
    """SentencePiece's, compiled."""
    text: dict[str, Any] = json.loads(unigram_json(trained("folding unigram"), "T5"))
    return next(
        step
        for step in (text["normalizer"], *text["normalizer"].get("normalizers", ()))
        if step["type"] == "Precompiled"
    )


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
NORMALIZERS: dict[str, dict[str, Any]] = {
    **{
        form: {"type": form} for form in ("NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt")
    },
    "forms one by one": normalizers({"type": "NFC"}, {"type": "NFKD"}),
    "white space": normalizers(
        {"type": "Strip", "strip_left": True, "strip_right": True}, replace(r"\s+", " ")
    ),
    "replaced": normalizers(
        *(replace("a", ""), replace("b|\u00e9", "xyz"), replace(" {2,}", "\u4e2d")),
        {"type": "Prepend", "prepend": "\u00e9 "},
    ),
    "BERT's": bert_normalizer(strip_accents=True),
    "rules": rules(),
}


def of_sentencepiece(form: str) -> dict[str, Any]:
    """A Unigram."""
    written: dict[str, Any] = json.loads(unigram_json(trained("folding unigram"), form))
    return {**written, "post_processor": None}


def words(model: dict[str, Any], normalizer: Any, cuts: Any) -> dict[str, Any]:
    known = dict(model["vocab"])
    tokens = [added("<s>", 0), added("</s>", 0, normalized=True), added("<t>", 0, lstrip=True)]
    return {
        **tiny(),
        "added_tokens": with_ids(known, tokens),
        "normalizer": normalizer,
        "pre_tokenizer": cuts,
        "decoder": None,
        "model": model,
    }


def word_pieces(**model: Any) -> dict[str, Any]:
    texts = ["[UNK]", "a", "##b", "ab", "##ab", "\u00e9", "e", "##\u0301", "\u4e2d", "12", "<"]
    return {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {text: number for number, text in enumerate(texts)},
        **model,
    }


def word_bpe(**model: Any) -> dict[str, Any]:
    texts = ["<unk>", "a", "b</w>", "ab</w>", "\u00e9</w>", "a</w>", "1", "2", "12", *"abcx"]
    return {
        **byte_level()["model"],
        "unk_token": "<unk>",
        "end_of_word_suffix": "</w>",
        "vocab": {text: number for number, text in enumerate(dict.fromkeys(texts))},
        "merges": [["a", "b</w>"], ["1", "2"]],
        **model,
    }


SPLIT = {"type": "Split", "pattern": {"Regex": r"\s+|b"}, "behavior": "Removed", "invert": False}
LOWER = bert_normalizer()

# As the library the core knows where all tokens are.
PLACED = {
    **{name: byte_level(normalizer=one) for name, one in NORMALIZERS.items()},
    "removed": byte_level(pre_tokenizer=sequence(SPLIT, BYTES)),
    "spaces in front": byte_level(
        pre_tokenizer=sequence(CUTS["scripts"], {**BYTES, "add_prefix_space": True})
    ),
    "metaspace of bytes": byte_level(pre_tokenizer=sequence(scheme("always", split=True), BYTES)),
    **{
        f"pieces, {name}": words(word_pieces(), None if "and others" in name else LOWER, one)
        for name, one in CUTS.items()
    },
    "pieces as they are": words(word_pieces(), None, CUTS["BERT's"]),
    "whole words": words(
        {"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1, "ab": 2}, "unk_token": "<unk>"},
        {"type": "NFKC"},
        CUTS["words"],
    ),
    "words": words(word_bpe(), LOWER, CUTS["words"]),
    "words of bytes": words(
        word_bpe(
            byte_fallback=True,
            end_of_word_suffix=None,
            vocab={
                **{f"<0x{byte:02X}>": byte for byte in range(256)},
                "<unk>": 256,
                "a": 257,
                "b": 258,
                "ab": 259,
            },
            merges=[["a", "b"]],
        ),
        {"type": "NFD"},
        CUTS["Metaspace and others"] | {"pretokenizers": [SPLIT]},
    ),
}
# For these the library is asked where unknown characters are.
UNIGRAMS = {form: of_sentencepiece(form) for form in ("T5", "XLM-R", "ALBERT", "DeBERTa")}
DEFINITIONS = {
    **PLACED,
    **UNIGRAMS,
    "byte level": byte_level(),
    "nfc": byte_level(normalizer={"type": "NFC"}),
    "trimmed": byte_level(
        post_processor={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    ),
    "stripping": byte_level(
        added_tokens=[added(EOD, 258), added("<t>", 259, lstrip=True, rstrip=True)]
    ),
    "of the library": byte_level(normalizer=OF_THE_LIBRARY),
    "prefix of its own": byte_level(
        pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    ),
    "llama 2": metaspace(LLAMA, None),
    "gemma": metaspace(REPLACE, None),
    "first": metaspace(None, scheme("first", split=False)),
    "always": metaspace(None, scheme("always", split=True)),
    "never": metaspace(None, scheme("never", split=True)),
    "unknown": metaspace(LLAMA, None, byte_fallback=False),
    "unknown one by one": metaspace(LLAMA, None, byte_fallback=False, fuse_unk=False),
}
NATIVE = set(DEFINITIONS) - {"of the library"}


class Both:
    """An encoder that marks, and the library of the same tokenizer."""

    def __init__(self, path: Path) -> None:
        self.tokenizer: Any = load_tokenizer(path)
        self.encoder = MarkingEncoder(self.tokenizer, dtype="int32")
        if self.tokenizer.native:
            self.library = library_of(self.tokenizer)
        else:
            from tokenizers import Tokenizer, processors

            self.library = Tokenizer.from_file(str(path))
            self.library.post_processor = processors.ByteLevel(trim_offsets=False)

    def compare(self, texts: Sequence[str], spans: Sequence[list[tuple[int, int]]]) -> None:
        made = self.encoder.encode(texts, spans)
        at = 0
        for text, own, length in zip(texts, spans, made.lengths.tolist(), strict=True):
            here = slice(at, at + length)
            expected = marked(self.library, text, own)
            assert (made.ids[here].tolist(), made.mask[here].tolist()) == expected, (text, own)
            at += length
        assert at == len(made.ids) == len(made.mask)


@pytest.fixture(scope="module", params=DEFINITIONS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    path = save(tmp_path_factory.mktemp("marking"), DEFINITIONS[request.param])
    made = Both(path)
    assert made.tokenizer.native == (request.param in NATIVE)
    return made


@pytest.mark.parametrize("name", [*PLACED, *UNIGRAMS])
def test_no_text_needs_the_library(tmp_path: Path, name: str) -> None:
    rng = random.Random(3)
    pieces = [piece for piece in PIECES if piece not in ("<unk>", "<0x0A>")]
    if name in UNIGRAMS:
        pieces = [" ", "  ", "\n", "\t", "\u3000", "the", " Cat", "\ufb01", "\uff21", SPACE, "</s>"]
    texts = ["".join(rng.choices(pieces, k=rng.randrange(14))) for _ in range(200)]
    path = save(tmp_path, DEFINITIONS[name])
    core = Both(path).tokenizer.core(dtype="int32", special_tokens="encode")
    assert core.encode(*block(texts), offsets=True).unplaced.tolist() == []


def spans_of(text: str, rng: random.Random) -> list[tuple[int, int]]:
    cuts = sorted(rng.sample(range(len(text) + 1), min(len(text) + 1, 2 * rng.randrange(3))))
    pairs = zip(cuts[::2], cuts[1::2], strict=False)
    return [(begin, end) for begin, end in pairs if begin < end]


def test_texts_at_awkward_places(both: Both) -> None:
    rng = random.Random(5)
    texts = ["".join(rng.choices(PIECES, k=rng.randrange(14))) for _ in range(400)]
    both.compare(texts, [spans_of(text, rng) for text in texts])


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_text_and_span(both: Both, data: st.DataObject) -> None:
    piece = st.sampled_from(PIECES) | st.text(max_size=3)
    texts = data.draw(st.lists(st.lists(piece, max_size=8).map("".join), min_size=1, max_size=4))
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    seed = data.draw(st.integers(0, 1 << 30))
    both.compare(texts, [spans_of(text, random.Random(seed)) for text in texts])


def test_a_mark_joined_to_a_letter(tmp_path: Path) -> None:
    """Of both characters of a letter with its mark the token is marked by the first."""
    both = Both(save(tmp_path, DEFINITIONS["nfc"]))
    both.compare(["e\u0301ab", "ab"], [[(0, 1)], [(0, 2)]])
    made = both.encoder.encode(["xe\u0301 ab"], [[(1, 3)]])
    assert made.mask.tolist() == [0, 1, 1, 0, 0]


@pytest.mark.parametrize("name", ["20B_tokenizer.json", "modern/deepseek-v3.json"])
def test_real_tokenizers(data: Path, name: str) -> None:
    path = data / "tokenizers" / name
    if not path.exists():
        pytest.skip(f"no {name} here")
    both = Both(path)
    rng = random.Random(7)
    pieces = [*PIECES, *TRAPS, *both.tokenizer.special_ids]
    texts = ["".join(rng.choices(pieces, k=rng.randrange(9))) for _ in range(250)]
    both.compare(texts, [spans_of(text, rng) for text in texts])


def test_most_texts_need_no_library(data: Path) -> None:
    """Also those that are not plainly normal, but are: vowel signs of Hindi and Tamil."""
    tokenizer: Any = load_tokenizer(data / "tokenizers" / "20B_tokenizer.json")
    core = tokenizer.core(dtype="int32", special_tokens="encode")
    texts = ["\u0939\u093f\u0928\u094d\u0926\u0940", "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd \u0b95\u0bbe"]
    texts += ["\ud55c\uad6d\uc5b4 \U0001f600<|endoftext|> caf\u00e9", "e\u0301"]
    raw = [text.encode() for text in texts]
    ends = np.cumsum([len(one) for one in raw])
    spans = np.stack([ends - [len(one) for one in raw], ends], axis=1)
    assert core.encode(b"".join(raw), spans, offsets=True).unplaced.tolist() == []


def test_frames_are_never_marked(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(tmp_path, byte_level()))
    encoder = MarkingEncoder(tokenizer, dtype="uint16", frame=Frame((258,), (258, 257)))
    made = encoder.encode(["abc", "", "<t>"], [[(0, 3)], [], [(0, 3)]])
    assert made.lengths.tolist() == [4, 0, 4]
    assert made.mask.tolist() == [0, 1, 0, 0, 0, 1, 0, 0]
    assert made.special.tolist() == [2]
    assert made.ids.dtype == np.uint16


def test_no_special_tokens_in_text(tmp_path: Path) -> None:
    path = tmp_path / "words.json"
    path.write_text(json.dumps({"<unk>": 0, "a": 1}))
    words = load_tokenizer(vocab_file=path, tokenizer_type="Whitespace")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        MarkingEncoder(words, dtype="int32")


def unigram() -> dict[str, Any]:
    """Of which the library puts bytes of neighbouring unknown characters in one place."""
    texts = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, "a", "b"]
    vocab = [[text, -float(number)] for number, text in enumerate(texts)]
    model = {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": True}
    pre = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    return {**tiny(), "added_tokens": [], "model": model, "pre_tokenizer": pre}


def test_bytes_of_unknown_characters_are_each_of_their_own(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(tmp_path, unigram()))
    encoder = MarkingEncoder(tokenizer, dtype="int32")
    text, spans = "a\u4e2d\u6587b", [(1, 2)]
    encoder.check([text], [spans])
    assert encoder.encode([text], [spans]).mask.tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("own", "is_right"),
    [
        ([0, 1, 1, 0, 0], True),
        ([0, 0, 1, 1, 0], True),
        ([0, 0, 0, 0, 0], False),  # nothing of what is marked
        ([1, 1, 1, 1, 0], False),  # a neighbour too
        ([0, 1, 1, 1, 1], False),
    ],
)
def test_a_wrong_mask_is_a_fault_also_beside_unknown_characters(
    own: list[int], *, is_right: bool
) -> None:
    places = np.array([[0, 1], [1, 3], [1, 3], [1, 3], [3, 4]], np.int32)
    masks = (np.array(mask, np.uint8) for mask in (own, [0, 1, 1, 1, 0]))
    assert _agree(*masks, places) == is_right

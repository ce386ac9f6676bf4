"""SentencePiece models trained by their own library, and the core beside it."""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HuggingFace

from support.tokenizers_twin import LEVELS, block, rows
from tokpack.tokenizers.sentencepiece import SentencePieceTokenizer

if TYPE_CHECKING:
    from pathlib import Path

sentencepiece = pytest.importorskip("sentencepiece", reason="the extra is not installed")
pb = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")

TEXTS = [
    "the cat sat on the mat, it's the cat's mat: the mats, 12 and 2345.",
    "a \u4e2d\u6587 mat\u00a0sat\nthe\tnew\u3000line \u00e9t\u00e9 e\u0301t\u00e9",
    "def the(cat):\n    if cat == 'sat':\n        return [mat for mat in cat]\n",
    "Les chats \u00e9taient l\u00e0, \u043a\u043e\u0442 \u0441\u0438\u0434\u0435\u043b \U0001f600",
]
PLAIN = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "bpe", "byte_fallback": True, **PLAIN},
    "gemma": {
        "model_type": "bpe",
        "byte_fallback": True,
        "add_dummy_prefix": False,
        **PLAIN,
        "user_defined_symbols": ["\n", "\n\n", "\u2581\u2581", "\u2581\u2581\u2581", "<x>", "a<x"],
    },
    "bpe": {"model_type": "bpe"},
    "folding bpe": {
        "model_type": "bpe",
        "normalization_rule_name": "nmt_nfkc_cf",
        "user_defined_symbols": ["e\u0301", "Cat", "a b", "\u2581the"],
    },
    "sentences": {
        "model_type": "bpe",
        "byte_fallback": True,
        "split_by_whitespace": False,
        "split_by_unicode_script": False,
        "control_symbols": ["<c>"],
        **PLAIN,
    },
    "unigram": {"model_type": "unigram"},
    "byte unigram": {"model_type": "unigram", "byte_fallback": True, "split_digits": True, **PLAIN},
    "nfkc unigram": {
        "model_type": "unigram",
        "normalization_rule_name": "nfkc",
        "split_by_whitespace": False,
        "add_dummy_prefix": False,
    },
    "unigram of symbols": {
        "model_type": "unigram",
        "user_defined_symbols": ["e\u0301", "Cat", "a b", "\u2581the", "<x>", "a<x", "e", "\u2581"],
    },
    "byte unigram of symbols": {
        "model_type": "unigram",
        "byte_fallback": True,
        "user_defined_symbols": ["\n", "\n\n", "\u2581\u2581", "mat", "s mat", "\u4e2d\u6587"],
        **PLAIN,
    },
}
FOLDING = {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc_cf"}
HOSTILE = [
    *(
        "",
        " ",
        "  ",
        "\u2581",
        "\u2581\u2581 \u2581",
        "\0",
        "a\0b\0",
        "\n",
        "\r\n\n\t ",
        "a" * 5000,
    ),
    *(
        " " * 3000,
        " a" * 500,
        "\u4e2d" * 3000,
        "\U0001f600 \U0001f600\U0001f600",
        "<0x0A>",
        "<unk>",
    ),
    *(
        "</s><s> </s>",
        "the<x>a<x>a<<x>",
        "\u2581the the",
        "\ufeffthe",
        "\ufdfa \u00bd\u2460 \u200b",
    ),
    *(
        "  the  cat  ",
        "\u3000the\u3000\u3000cat\u00a0",
        "e\u0301e\u0301 A\u030a",
        "the cat \u2581 ",
    ),
    *("\uffff\U0010ffff\ud7ff", "a b a  b", "\n\n\n\n\n", "    \n        x", "<c>cat", "\x7f\x01"),
]


@functools.cache
def trained(name: str, texts: tuple[str, ...] = (*TEXTS * 20,), size: int = 0) -> bytes:
    """A model of so many pieces, or of as few as show everything."""
    model = io.BytesIO()
    options = {**MODELS, "folding unigram": FOLDING}[name]
    size = size or (380 if "byte" in str(options) else 150)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        vocab_size=size,
        model_writer=model,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


@functools.cache
def named_rules(name: str) -> bytes:
    """Rules of normalization by a name that the library has."""
    return trained_rules(normalization_rule_name=name)


def trained_rules(**options: str) -> bytes:
    """The compiled rules of a model with these options."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c"]),
        model_type="char",
        vocab_size=8,
        hard_vocab_limit=False,
        model_writer=model,
        minloglevel=3,
        **options,
    )
    proto = pb.ModelProto()
    proto.ParseFromString(model.getvalue())
    rules: bytes = proto.normalizer_spec.precompiled_charsmap
    return rules


def edited(raw: bytes, change: Any) -> bytes:
    """The model with a change of its fields."""
    proto = pb.ModelProto()
    proto.ParseFromString(raw)
    change(proto)
    edited: bytes = proto.SerializeToString()
    return edited


class Twin:
    """A model in the core, at every level and with a small cache, beside the library."""

    def __init__(self, raw: bytes) -> None:
        self.tokenizer = SentencePieceTokenizer("m", raw)
        assert self.tokenizer.native, self.tokenizer.why_not_native
        self.library = sentencepiece.SentencePieceProcessor(model_proto=raw)
        self.cores = [self.tokenizer.core(dtype="int32", level=level) for level in LEVELS]
        self.cores.append(self.tokenizer.core(dtype="int32", cache_bytes=1 << 12))

    def compare(self, texts: list[str]) -> None:
        expected = self.library.encode(texts)
        for core in self.cores:
            for text, ids, right in zip(
                texts, rows(core.encode(*block(texts))), expected, strict=True
            ):
                assert ids == right, (text[:200], ids[:30], right[:30])


@functools.cache
def twin(name: str) -> Twin:
    return Twin(trained(name))


@functools.cache
def mistral(shared: Path) -> Twin:
    return Twin((shared / "tokenizers" / "modern" / "mistral-v1.model").read_bytes())


def hugging_face(raw: bytes) -> HuggingFace:
    """The tokenizer that `transformers` makes of a model of BPE with a dummy prefix."""
    proto = pb.ModelProto()
    proto.ParseFromString(raw)
    vocab = {piece.piece: token_id for token_id, piece in enumerate(proto.pieces)}
    merges = []
    for piece in proto.pieces:
        halves = [(piece.piece[:at], piece.piece[at:]) for at in range(1, len(piece.piece))]
        local = [(a, b) for a, b in halves if a in vocab and b in vocab]
        merges += [(vocab[a], vocab[b], piece.score, (a, b)) for a, b in local]
    merges.sort(key=lambda merge: (-merge[2], merge[0], merge[1]))
    model = models.BPE(
        vocab, [merge[3] for merge in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    made = HuggingFace(model)
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    return made


STRIP = [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "\u2581")]
SPACES = normalizers.Replace(Regex(" {2,}"), " ")
ACCENTS = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
QUOTES = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
ALWAYS = pre_tokenizers.Metaspace()
WORDS = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), ALWAYS])
MASK = AddedToken("<mask>", lstrip=True, normalized=False, special=True)
UNKNOWN = AddedToken("[UNK]", normalized=True, special=True)
LINE = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
# By model: what stands before and behind the rules of the model, if they are used; the
# pretokenizer; added tokens. As `transformers` writes them, up to version 4 and from 5 on.
CONVERTED: dict[str, tuple[list[Any], bool, list[Any], Any, list[Any]]] = {
    "T5": ([], True, STRIP, ALWAYS, []),
    "T5, not legacy": ([], True, STRIP, pre_tokenizers.Metaspace(prepend_scheme="first"), []),
    "T5, XLM-R of 5": ([], True, [], WORDS, [MASK]),
    "XLM-R": ([], True, STRIP, ALWAYS, [MASK]),
    "ALBERT": ([*QUOTES, *ACCENTS], True, [SPACES], ALWAYS, [MASK]),
    "ALBERT of 5": ([*QUOTES, *ACCENTS], True, [], WORDS, [MASK]),
    "DeBERTa": ([normalizers.Strip()], True, [SPACES], ALWAYS, [MASK, UNKNOWN]),
    "DeBERTa of 5": ([normalizers.Lowercase(), LINE, normalizers.NFC()], False, STRIP, ALWAYS, []),
    "NLLB, Pegasus": ([], True, [SPACES], ALWAYS, []),
    "without rules": ([], False, [], pre_tokenizers.Metaspace(prepend_scheme="never"), []),
}


def unigram_json(raw: bytes, form: str) -> str:
    """The tokenizer.json that ``transformers`` makes of a Unigram."""
    proto = pb.ModelProto()
    proto.ParseFromString(raw)
    front, ruled, behind, pretokenizer, added = CONVERTED[form]
    extra = [f"<extra_id_{number}>" for number in range(9, -1, -1)]
    pieces = [(piece.piece, piece.score) for piece in proto.pieces] + [(e, 0.0) for e in extra]
    unknown, fallback = proto.trainer_spec.unk_id, proto.trainer_spec.byte_fallback
    made = HuggingFace(models.Unigram(pieces, unk_id=unknown, byte_fallback=fallback))
    rules = proto.normalizer_spec.precompiled_charsmap
    steps = [*front, *([normalizers.Precompiled(rules)] if ruled and rules else []), *behind]
    if steps:
        made.normalizer = normalizers.Sequence(steps) if len(steps) > 1 else steps[0]
    made.pre_tokenizer = pretokenizer
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(["<unk>", "<s>", "</s>", *extra, *added])
    return str(made.to_str())

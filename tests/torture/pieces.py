"""Made up SentencePiece models: the core gives the ids of their library, or leaves it the work.

python -m torture.pieces --seed 1 --minutes 5
"""

from __future__ import annotations

import random
import tempfile

from support.sentencepiece_tools import named_rules, pb, sentencepiece, trained, trained_rules

from tokpack.errors import TokenizerError
from tokpack.tokenizers.sentencepiece import SentencePieceTokenizer
from torture.made_up import SPACE, TEXTS, Maker, compare_ids, rounds

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)


def made_up_rules(make: Maker) -> bytes:
    """Rules of a normalizer, which replace short texts by others."""
    lines = {make.word(3): make.rng.choice(["", " ", make.word(1), make.word(3)]) for _ in range(5)}
    lines["ab"] = "c"
    written = "".join(
        f"{' '.join(f'{ord(c):X}' for c in old)}\t{' '.join(f'{ord(c):X}' for c in new)}\n"
        for old, new in lines.items()
        if "\0" not in old + new and old != new
    )
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        file.write(written)
        file.flush()
        return trained_rules(normalization_rule_tsv=file.name)


def made_up_model(make: Maker) -> bytes:
    """A model file."""
    rng, proto = make.rng, pb.ModelProto()
    proto.ParseFromString(trained("llama"))
    del proto.pieces[:]
    bpe, fallback = make.maybe(0.5), make.maybe(0.4)
    letters = [SPACE if one == " " else one for one in make.characters]
    known = [one for one in letters if make.maybe(0.8)]
    texts = [*known, *(a + b for a, b in make.merges([*known, SPACE], rng.choice([3, 20, 60])))]
    if not bpe:
        texts += [make.word().replace(" ", SPACE) for _ in range(20)]
    kinds = {"<unk>": _UNKNOWN, "<s>": _CONTROL, "</s>": _CONTROL}
    for _ in range(rng.choice([0, 0, 1, 4, 8])):
        text = rng.choice([make.word(), make.word(1), rng.choice(texts), "<s>x", "  "])
        kinds.setdefault(text.replace(" ", SPACE) if make.maybe(0.9) else text, _USER)
    for text in texts:
        kinds.setdefault(text, _UNUSED if make.maybe(0.001) else _NORMAL)
    if fallback:
        kinds |= {f"<0x{byte:02X}>": _BYTE for byte in range(256)}
    order = list(kinds)
    if make.maybe(0.5):
        rng.shuffle(order)
    digits = rng.choice([0, 1, 8])
    for number, text in enumerate(order):
        score = -number if bpe and make.maybe(0.8) else round(-rng.random() * 9, digits)
        if kinds[text] != _NORMAL:
            score = rng.choice([0, score])
        proto.pieces.add(piece=text, score=score, type=kinds[text])
    proto.trainer_spec.model_type = 2 if bpe else 1
    proto.trainer_spec.byte_fallback = fallback
    proto.trainer_spec.unk_id = order.index("<unk>")
    proto.trainer_spec.treat_whitespace_as_suffix = make.maybe(0.02)
    if make.maybe(0.3):
        proto.trainer_spec.unk_surface = rng.choice(["", "?", " \u2047 "])
    spec = proto.normalizer_spec
    spec.precompiled_charsmap = b""
    if make.maybe(0.4):
        spec.precompiled_charsmap = named_rules(rng.choice(["nmt_nfkc", "nmt_nfkc_cf", "nfkc"]))
    elif make.maybe(0.3):
        spec.precompiled_charsmap = made_up_rules(make)
    spec.add_dummy_prefix = make.maybe(0.6)
    spec.remove_extra_whitespaces = make.maybe(0.4)
    spec.escape_whitespaces = make.maybe(0.98)
    make.contents = [text.replace(SPACE, " ") for text in order if kinds[text] != _BYTE][-40:]
    raw: bytes = proto.SerializeToString()
    return raw


def check(seed: int) -> str:
    """Compare one seed: what came of it. AssertionError with all that repeats it."""
    make = Maker(random.Random(seed))
    raw = made_up_model(make)
    library = sentencepiece.SentencePieceProcessor()
    try:
        library.LoadFromSerializedProto(raw)
        tokenizer = SentencePieceTokenizer(f"{seed}", raw)
    except (RuntimeError, TokenizerError):
        return "no model"
    if not tokenizer.native:
        return "left to the library"
    texts = [make.text() for _ in range(TEXTS)]
    expected = library.encode(texts)
    compare_ids(tokenizer, texts, expected, f"seed {seed}")
    for ids in expected:
        found_text, right_text = tokenizer.decode(ids), library.decode(ids)
        assert found_text == right_text, (
            f"seed {seed}: decoded {ids} as {found_text!r}, not {right_text!r}"
        )
    return "equal"


if __name__ == "__main__":
    rounds(check, __doc__)

"""Made up tokenizers: the core gives the ids of the Hugging Face library, or leaves it the work.

    python -m torture.definitions --seed 1 --minutes 5

A seed is a tokenizer.json and some texts, full of what the tokenizer looks for. Vocabularies have
holes, merges come in odd orders, added tokens overlap each other, and settings are what no
published tokenizer has.
"""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

from support.families import families
from support.sentencepiece_tools import CONVERTED, named_rules, trained, unigram_json
from support.split_patterns import PRE_TOKENIZERS, byte_level
from support.tiny_tokenizers import ALPHABET
from support.tokenizers_twin import MODES
from support.wordpiece_tools import CUTS as WORDPIECE_CUTS
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from tokpack.tokenizers.base import TokenizerOptions
from tokpack.tokenizers.folder import Definition
from tokpack.tokenizers.load import from_json
from tokpack.tokenizers.native import CoreTokenizer
from tokpack.tokenizers.patterns import with_steps
from torture.made_up import SPACE, TEXTS, Maker, Node, compare_ids, rounds
from torture.patterns import made_up_steps
from torture.pieces import made_up_rules

_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_PREPEND = {"type": "Prepend", "prepend": SPACE}


def _nested(rng: random.Random, steps: list[Node], name: str) -> Any:
    """Steps as the file has them: one alone, or a sequence, which may be in another one."""
    if not steps:
        return rng.choice([None, None, {"type": "Sequence", name: []}])
    if len(steps) == 1 and rng.random() < 0.7:
        return steps[0]
    if len(steps) > 1 and rng.random() < 0.1:
        steps = [{"type": "Sequence", name: steps[:1]}, *steps[1:]]
    return {"type": "Sequence", name: steps}


def byte_level_bpe(make: Maker) -> Node:
    """As GPT-2's, Llama 3's, Qwen's."""
    rng = make.rng
    text = "".join(make.characters)
    letters = [piece for piece, _ in ByteLevel(False, use_regex=False).pre_tokenize_str(text)]
    letters = list("".join(letters)) * 3 + [rng.choice(ALPHABET), "\u0120", "\u0120"]
    tokens = list(ALPHABET)
    if make.maybe(0.03):
        tokens.remove(rng.choice(tokens))
    tokens += [make.word() for _ in range(rng.choice([0, 0, 0, 2]))]
    tokens += [
        "".join(rng.choices(letters, k=rng.randint(2, 5))) for _ in range(rng.choice([0, 4]))
    ]
    if make.maybe(0.02):
        tokens.append("")
    unk = rng.choice([None, None, None, None, "<unk>", "!"])
    if unk and make.maybe(0.5):
        tokens.append(unk)
    model = make.model(
        tokens, make.merges(letters, rng.choice([3, 20, 60])),
        unk_token=unk, byte_fallback=make.maybe(0.03),
    )  # fmt: skip
    forms = rng.choices(["NFC", "NFC", "NFD", "NFKC", "NFKD"], k=rng.choice([0, 0, 0, 1, 1, 2]))
    normalizer = _nested(rng, [{"type": form} for form in forms], "normalizers")
    if make.maybe(0.05):
        normalizer = _nested(rng, _normalizers(make), "normalizers")
    kinds = [
        *(
            byte_level(use_regex=r, add_prefix_space=p)
            for r in (True, False)
            for p in (True, False)
        ),
        rng.choice(list(PRE_TOKENIZERS.values())),
        with_steps(made_up_steps(rng)),
        {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"String": make.word(2)},
                    "behavior": rng.choice(["Isolated", "MergedWithPrevious", "MergedWithNext"]),
                    "invert": make.maybe(0.1),
                },
                byte_level(use_regex=make.maybe(0.5), add_prefix_space=make.maybe(0.3)),
            ],
        },
    ]
    return make.definition(model, normalizer, rng.choice(kinds), byte_level())


def _metaspace(make: Maker) -> Node:
    node: Node = {"type": "Metaspace", "replacement": SPACE}
    if make.maybe(0.9):
        node["prepend_scheme"] = make.rng.choice(["always", "first", "never"])
    if make.maybe(0.8):
        node["split"] = make.maybe(0.5)
    if make.maybe(0.2):
        node["add_prefix_space"] = node.get("prepend_scheme") != "never"
    return node


def metaspace_bpe(make: Maker) -> Node:
    """As Llama 2's, Gemma's, Mistral's."""
    rng = make.rng
    letters = [SPACE if one == " " else one for one in make.characters] * 2 + [SPACE]
    if make.maybe(0.1):
        letters.append(" ")
    known = [one for one in letters if make.maybe(0.8)] or letters[:1]
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *known]
    if make.maybe(0.1):
        tokens.remove(f"<0x{rng.randrange(256):02X}>")
    if make.maybe(0.2):
        tokens = ["<unk>", *known]
    tokens += [make.word().replace(" ", SPACE) for _ in range(rng.choice([0, 0, 4]))]
    model = make.model(
        tokens,
        make.merges(known, rng.choice([3, 20, 60])),
        unk_token=rng.choice(["<unk>"] * 6 + [None, "<none>", known[0]]),
        byte_fallback=make.maybe(0.6),
    )
    forms: list[list[Node]] = [[_PREPEND, _REPLACE], [_REPLACE, _PREPEND], [_REPLACE], [], []]
    steps = rng.choice(forms)
    if make.maybe(0.3):
        more = _normalizers(make)
        steps = [*more, *steps] if make.maybe(0.8) else [*steps, *more]
    if make.maybe(0.05):
        steps = families()["SeamlessM4T"].normalizer["normalizers"]  # type: ignore[index]
    split = {
        "type": "Split",
        "pattern": {"String": " "},
        "behavior": rng.choice(
            ["MergedWithPrevious", "Isolated", "Removed", "MergedWithNext", "Contiguous"]
        ),
        "invert": make.maybe(0.02),
    }
    gone = [step["pattern"] for step in steps if step["type"] == "Replace"]
    if gone and make.maybe(0.3):
        split["pattern"] = rng.choice(gone)
    choices: list[list[Node]] = [[], [], [split], [_metaspace(make)]]
    cuts = rng.choice(choices if steps else [[_metaspace(make)]])
    pre_tokenizer = _nested(rng, cuts, "pretokenizers") if cuts else None
    decoders = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        *({"type": kind} for kind in ("ByteFallback", "Fuse")),
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    decoder = rng.choice([None, {"type": "Sequence", "decoders": decoders}])
    return make.definition(model, _nested(rng, steps, "normalizers"), pre_tokenizer, decoder)


def _rules(make: Maker) -> Node:
    rules = made_up_rules(make) if make.maybe(0.3) else named_rules("nmt_nfkc_cf")
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(rules).decode()}


def _normalizers(make: Maker) -> list[Node]:
    """Up to four steps, as models of Unigram have them, and other ones."""
    rng = make.rng

    def replace() -> Node:
        pattern = rng.choice(
            [{"String": make.word(2)}, {"String": " "}, {"Regex": " {2,}"}, {"Regex": r"\n"},
             {"Regex": r"\s{2,}|[\n\r\t]"}, {"Regex": r"\s+"}]
        )  # fmt: skip
        content = rng.choice(["", " ", SPACE, make.word(2), make.word(1)])
        return {"type": "Replace", "pattern": pattern, "content": content}

    def strip() -> Node:
        return {"type": "Strip", "strip_left": make.maybe(0.5), "strip_right": make.maybe(0.7)}

    accents = [{"type": "NFKD"}, {"type": "StripAccents"}]
    choices = [
        *(lambda: [replace()], lambda: [replace()], lambda: [strip()], lambda: [_rules(make)]),
        *(lambda: [{"type": "Lowercase"}], lambda: [{"type": "NFC"}], lambda: accents),
    ]
    if make.maybe(0.1):
        others = ["NFD", "NFKC", "NFKD", "Nmt", "StripAccents"]
        choices.append(lambda: [{"type": rng.choice(others)}])
    return [step for _ in range(rng.randint(1, 3)) for step in rng.choice(choices)()]


def unigram(make: Maker) -> Node:
    """As T5's, XLM-R's, and what else can be written."""
    rng = make.rng
    letters = [SPACE if one == " " else one for one in make.characters]
    known = [one for one in letters if make.maybe(0.8)]
    words = [make.word().replace(" ", SPACE) for _ in range(rng.choice([5, 20, 80]))]
    tokens = ["<unk>", SPACE, *known, *words, *(SPACE + word for word in words[:10])]
    fallback = make.maybe(0.3)
    if fallback:
        tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    if make.maybe(0.1):
        tokens.append("<unk>" + make.word(1))
    tokens = list(dict.fromkeys(tokens))
    if make.maybe(0.5):
        rng.shuffle(tokens)
    unknown = tokens.index("<unk>")
    digits, size = rng.choice([None, 0, 4, 17]), rng.choice([12, 12, 1e-5])
    scores = (round(-rng.random() * size, digits) for _ in tokens)
    vocab = [list(row) for row in zip(tokens, scores, strict=True)]
    model = {"type": "Unigram", "unk_id": unknown, "vocab": vocab, "byte_fallback": fallback}
    steps = [] if make.maybe(0.3) else _normalizers(make)
    if make.maybe(0.3):
        form = rng.choice(list(CONVERTED))
        steps = [json.loads(unigram_json(trained("folding unigram"), form))["normalizer"]]
    cuts = [_metaspace(make)]
    if make.maybe(0.7):
        cuts[0]["split"] = True
    if make.maybe(0.25):
        cuts.insert(0, {"type": "WhitespaceSplit"})
    decoder = cuts[-1]
    if make.maybe(0.1):  # as Helium
        steps = [*steps, _REPLACE]
        pattern, behavior = {"String": make.word(1)}, rng.choice(["Contiguous", "Isolated"])
        cuts = [{"type": "Split", "pattern": pattern, "behavior": behavior, "invert": False}]
    pre_tokenizer = _nested(rng, cuts, "pretokenizers")
    normalizer = _nested(rng, [step for step in steps if step], "normalizers")
    return make.definition(model, normalizer, pre_tokenizer, decoder)


def _some_cuts(make: Maker, *, of_bytes: bool) -> Any:
    """Pre-tokenizers in any order, often a Metaspace among them."""
    rng = make.rng

    def split() -> Node:
        expression = rng.choice([r"\s+", "a|b", r"\p{L}+"])
        behavior = rng.choice(["Isolated", "MergedWithNext", "Removed"])
        pattern = {"Regex": expression}
        return {
            "type": "Split",
            "pattern": pattern,
            "behavior": behavior,
            "invert": make.maybe(0.2),
        }

    def punctuation() -> Node:
        behavior = rng.choice(["Isolated", "Removed", "Contiguous"])
        return {"type": "Punctuation", "behavior": behavior}

    plain = ["Whitespace", "WhitespaceSplit", "BertPreTokenizer", *["UnicodeScripts"] * 3]
    choices = [
        *(lambda: {"type": rng.choice(plain)}, lambda: {"type": rng.choice(plain)}, split),
        *(lambda: {"type": "Digits", "individual_digits": make.maybe(0.5)}, punctuation),
    ]
    steps = [rng.choice(choices)() for _ in range(rng.randint(0, 3))]
    if make.maybe(0.7):
        metaspace = _metaspace(make)
        if make.maybe(0.1):
            metaspace["replacement"] = rng.choice(" _a")
        steps.insert(rng.randint(0, len(steps)), metaspace)
    if of_bytes:
        last = byte_level(use_regex=make.maybe(0.5), add_prefix_space=make.maybe(0.2))
        steps.insert(rng.randint(0, len(steps)) if make.maybe(0.3) else len(steps), last)
    return _nested(rng, steps, "pretokenizers") if steps else None


def prefixed_bpe(make: Maker) -> Node:
    """A byte-level BPE with a prefix of tokens that go on a word."""
    rng, written = make.rng, byte_level_bpe(make)
    prefix, suffix = rng.choice(["##", "a", "\u0120", "\xe9"]), rng.choice(["", "", "</w>"])
    model = written["model"]
    some = [*model["vocab"], *ALPHABET]
    both = [token + end for end in dict.fromkeys(("", suffix)) for token in some]
    tokens = dict.fromkeys([*both, *(prefix + token for token in both)])
    pairs = []
    for _ in range(rng.randint(0, 40)):
        left = rng.choice(ALPHABET if make.maybe(0.5) else list(tokens))
        right = rng.choice([token for token in tokens if token.startswith(prefix)])
        pairs.append((left, right))
        tokens.setdefault(left + right.removeprefix(prefix))
    model["vocab"] = make.vocab(list(tokens))
    model["merges"] = [list(pair) for pair in dict.fromkeys(pairs)]
    model |= {"continuing_subword_prefix": prefix, "end_of_word_suffix": suffix or None}
    return {**written, "added_tokens": make.added(model["vocab"])}


def wordpiece(make: Maker) -> Node:
    """As BERT's, and what else can be written."""
    rng = make.rng
    prefix = rng.choice(["##", "##", "##", "", rng.choice(make.characters)])
    words = [make.word() for _ in range(rng.choice([5, 20, 80]))]
    letters = [one for one in make.characters if make.maybe(0.8)]
    tokens = ["[UNK]", *letters, *words]
    tokens += [prefix + word for word in (*letters, *words) if make.maybe(0.7)]
    model = {
        "type": "WordPiece",
        "unk_token": rng.choice(["[UNK]"] * 9 + [letters[0] if letters else "none"]),
        "continuing_subword_prefix": prefix,
        "max_input_chars_per_word": rng.choice([100, 100, 3, 0, 1000]),
        "vocab": make.vocab(tokens),
    }
    bert = {"type": "BertNormalizer", "strip_accents": rng.choice([None, None, True, False])}
    bert |= {name: make.maybe(0.8) for name in ("clean_text", "handle_chinese_chars", "lowercase")}
    steps = [bert] if make.maybe(0.7) else _normalizers(make)
    normalizer = _nested(rng, steps if make.maybe(0.9) else [], "normalizers")
    cuts = rng.choice([*WORDPIECE_CUTS.values(), WORDPIECE_CUTS["BERT's"]])
    decoder = {"type": "WordPiece", "prefix": prefix, "cleanup": make.maybe(0.5)}
    if make.maybe(0.2):
        model = {"type": "WordLevel", "vocab": model["vocab"], "unk_token": "[UNK]"}
    return make.definition(model, normalizer, cuts, decoder)


def pipeline(make: Maker, model: Node) -> Node:
    """Steps and added tokens in any order around a real model, of bytes or not."""
    of_bytes = (
        model["type"] == "BPE" and ALPHABET[0] in model["vocab"] and "<0x41>" not in model["vocab"]
    )
    steps = [] if make.maybe(0.2) else _normalizers(make)
    if model["type"] == "BPE" and not of_bytes and make.maybe(0.6):
        steps.append(_REPLACE)
    normalizer = _nested(make.rng, steps, "normalizers")
    cuts = _some_cuts(make, of_bytes=of_bytes)
    if _REPLACE in steps and make.maybe(0.5):
        cuts = None
    return make.definition(model, normalizer, cuts, None)


_KINDS = (byte_level_bpe, prefixed_bpe, metaspace_bpe, unigram, wordpiece)


def check(seed: int) -> str:
    """Compare one seed: what came of it. AssertionError with all that repeats it."""
    make = Maker(random.Random(seed))
    kind = make.rng.choice(_KINDS)
    written = kind(make)
    if make.maybe(0.4):
        of_bytes = kind in (byte_level_bpe, prefixed_bpe)
        written["pre_tokenizer"] = _some_cuts(make, of_bytes=of_bytes)
    raw = json.dumps(written)
    try:
        library = Tokenizer.from_str(raw)
    except BaseException as error:
        if type(error).__name__ not in ("Exception", "PanicException"):
            raise
        return "no tokenizer"
    path = Path(f"{seed}.json")
    tokenizer = from_json(Definition(raw.encode(), path), path, f"{seed}", TokenizerOptions())
    if not isinstance(tokenizer, CoreTokenizer):
        return f"{kind.__name__}: left to the library"
    texts = [make.text() for _ in range(TEXTS)]
    for mode in MODES:
        library.encode_special_tokens = mode == "text"
        try:
            expected = [one.ids for one in library.encode_batch(texts, add_special_tokens=False)]
        except BaseException as error:  # it panics where its engine of expressions gives up
            if type(error).__name__ != "PanicException":
                raise
            return "too much for the library"
        where = f"seed {seed}, {kind.__name__}, {mode}"
        compare_ids(tokenizer, texts, expected, where, special_tokens=mode)
    # As bytes the library decodes what an added token has of the alphabet of bytes.
    foreign = {
        token.id
        for token in tokenizer.spec.added
        if not token.content.isascii() and set(token.content) <= set(ALPHABET)
    }
    for text, ids in zip(texts, expected, strict=True):
        if not foreign.isdisjoint(ids):
            continue
        found_text, right_text = tokenizer.decode(ids), library.decode(ids, False)
        assert found_text == right_text, (
            f"seed {seed}, {kind.__name__}: decoded {ids} of {text!r} as {found_text!r}, "
            f"not {right_text!r}"
        )
    return f"{kind.__name__}: equal"


if __name__ == "__main__":
    rounds(check, __doc__)

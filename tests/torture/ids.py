"""Every family of tokenizers beside the libraries whose ids it has, on much text of all kinds.

    python -m torture.ids --seed 1 --megabytes 200 --minutes 60

Each family has ``--megabytes`` of real, changed and made up text. Every batch has an instruction
set, a mode for special tokens, a size of cache and, where a family has several, a tokenizer of its
own, drawn from the seed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import sentencepiece
import tiktoken
from support.optional import SHARED
from support.sentencepiece_tools import CONVERTED, MODELS, hugging_face, trained, unigram_json
from support.split_patterns import PRE_TOKENIZERS
from support.tokenizers_twin import LEVELS, MODES, block, rows
from support.wordpiece_tools import trained as trained_wordpiece

from tokpack.errors import TokenizerError
from tokpack.tokenizers import load_tokenizer
from tokpack.tokenizers.check import reference
from tokpack.tokenizers.definition import to_json
from tokpack.tokenizers.huggingface import encode_batch
from tokpack.tokenizers.native import NativeTokenizer
from tokpack.tokenizers.patterns import pre_tokenizer_of
from tokpack.tokenizers.sentencepiece import SentencePieceTokenizer
from torture import texts
from torture.definitions import pipeline
from torture.made_up import Maker

REAL = SHARED / "tokenizers"
MODERN = REAL / "modern"
GPT2 = {"vocab_file": REAL / "gpt2-vocab.json", "merge_file": REAL / "gpt2-merges.txt"}
BATCH = 1 << 20
_CACHES = (1 << 12, 1 << 20, 64 << 20)  # bytes; the first is cleared all the time
_LINES = 20_000  # that SentencePiece's models are trained on

Ids = list[list[int]]
Reference = Callable[[list[str]], Ids]


@dataclass
class Subject:
    """A tokenizer, and who knows its ids in each mode."""

    tokenizer: Any
    references: dict[str, dict[str, Reference]]  # mode -> name of the library -> its ids
    cores: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def ids(self, documents: list[str], mode: str, level: str, cache: int) -> Ids:
        key = (mode, level, cache)
        if key not in self.cores:
            self.cores.clear()  # those of many tokenizers would take all memory
            modes = {} if mode == "" else {"special_tokens": mode}
            self.cores[key] = self.tokenizer.core(
                dtype="int32", level=level, cache_bytes=cache, **modes
            )
        return rows(self.cores[key].encode(*block(documents)))


def beside_hugging_face(tokenizer: Any, **more: Reference) -> Subject:
    """A tokenizer.json, or what can be written as one; ``more`` leave special tokens as text."""
    assert tokenizer.native, tokenizer.why_not_native
    libraries: dict[str, dict[str, Reference]] = {
        mode: {"tokenizers": partial(encode_batch, reference(tokenizer, mode))} for mode in MODES
    }
    libraries["text"] |= more
    return Subject(tokenizer, libraries)


def of_ranks(file: str, pattern: str) -> Subject:
    """Real ranks, cut by a pattern, also beside tiktoken where it knows such a pattern."""
    tokenizer = load_tokenizer(MODERN / file, pattern=pattern)
    assert isinstance(tokenizer, NativeTokenizer)
    steps = pre_tokenizer_of(pattern)["pretokenizers"]
    if tokenizer.spec.form or len(steps) != 2 or steps[0]["type"] != "Split":
        return beside_hugging_face(tokenizer)
    encoding = tiktoken.Encoding(
        "own",
        pat_str=steps[0]["pattern"]["Regex"],
        mergeable_ranks={t: i for i, t in enumerate(tokenizer.spec.vocab) if t is not None},
        special_tokens={},
    )
    return beside_hugging_face(tokenizer, tiktoken=partial(_each, encoding.encode_ordinary))


def of_name(name: str, folder: Path) -> Subject:
    """An encoding of tiktoken's by its name, beside tiktoken's own."""
    url = f"https://openaipublic.blob.core.windows.net/encodings/{name}.tiktoken"
    link = folder / hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()
    link.symlink_to(MODERN / f"{name}.tiktoken")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
    encoding = tiktoken.get_encoding(name)
    return beside_hugging_face(
        load_tokenizer(name), tiktoken=partial(_each, encoding.encode_ordinary)
    )


def _each(encode: Callable[[str], list[int]], documents: list[str]) -> Ids:
    return [encode(document) for document in documents]


def ignoring_merges() -> Subject:
    """As Llama 3: what is a token as a whole word is that token."""
    tokenizer = load_tokenizer(MODERN / "cl100k_base.tiktoken")
    assert isinstance(tokenizer, NativeTokenizer)
    spec = replace(tokenizer.spec, ignore_merges=True)
    return beside_hugging_face(NativeTokenizer("llama3", spec, special_tokens_default="encode"))


def of_steps(folder: Path) -> list[Subject]:
    """GPT-2's vocabulary, cut by each of the support's pre-tokenizers."""
    tokenizer = load_tokenizer(**GPT2)
    assert isinstance(tokenizer, NativeTokenizer)
    nodes = PRE_TOKENIZERS.values()
    return [of_json(to_json(tokenizer.spec, node).decode(), folder) for node in nodes]


def of_model(raw: bytes) -> Subject:
    """A SentencePiece model."""
    tokenizer = SentencePieceTokenizer("model", raw)
    assert tokenizer.native, tokenizer.why_not_native
    library = sentencepiece.SentencePieceProcessor(model_proto=raw)
    return Subject(tokenizer, {"": {"sentencepiece": library.encode}})


def of_json(text: str, folder: Path) -> Subject:
    path = folder / "tokenizer.json"
    path.write_text(text, encoding="utf-8")
    return beside_hugging_face(load_tokenizer(path))


def learned(name: str) -> bytes:
    """A model of the support's settings, of a real one's size."""
    lines = [line for text in texts.real() for line in text.splitlines() if 0 < len(line) < 1000]
    random.Random(3).shuffle(lines)
    return trained(name, tuple(lines[:_LINES]), 8000)


def word_pieces(folder: Path) -> list[Subject]:
    """A vocabulary with case, and one without, of all corpora."""
    made = []
    for lowercase in (True, False):
        written = trained_wordpiece(lowercase=lowercase, texts=tuple(texts.real()), size=20_000)
        made.append(of_json(json.dumps(written), folder))
    return made


def converted_bpe(folder: Path) -> list[Subject]:
    """The BPE of Mistral as a tokenizer.json, in the forms of Llama, Gemma and new Mistral."""
    text = str(hugging_face((MODERN / "mistral-v1.model").read_bytes()).to_str())
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"}
    forms = (
        {},
        {"normalizer": spaces, "pre_tokenizer": {**split, "invert": False}},
        {"normalizer": None, "pre_tokenizer": {**metaspace, "split": False}},
        {"normalizer": None, "pre_tokenizer": {**metaspace, "split": True}},
    )
    added = [
        {"id": i, "content": content, "special": special, "normalized": normalized, **_FLAGS}
        for i, (content, special, normalized) in enumerate(
            (("<unk>", True, False), ("<s>", True, False), ("</s>", False, True))
        )
    ]
    made = {**json.loads(text), "added_tokens": added}
    return [of_json(json.dumps({**made, **form}), folder) for form in forms]


def pipelines(folder: Path) -> list[Subject]:
    """Made up steps and added tokens around real vocabularies; those that the core encodes."""
    gpt2 = load_tokenizer(**GPT2)
    assert isinstance(gpt2, NativeTokenizer)
    model_of = [
        to_json(gpt2.spec, {"type": "ByteLevel"}).decode(),
        str(hugging_face((MODERN / "mistral-v1.model").read_bytes()).to_str()),
        unigram_json(learned(_UNIGRAMS[0]), "T5"),
        json.dumps(trained_wordpiece(lowercase=True, texts=tuple(texts.real()), size=20_000)),
    ]
    models = [json.loads(text)["model"] for text in model_of]
    made: list[Subject] = []
    for seed in itertools.count():
        if len(made) == _PIPELINES:
            return made
        make = Maker(random.Random(seed))
        path = folder / f"{seed}.json"
        path.write_text(json.dumps(pipeline(make, make.rng.choice(models))), encoding="utf-8")
        with contextlib.suppress(TokenizerError):  # the library cannot read it
            tokenizer = load_tokenizer(path)
            if tokenizer.native:
                made.append(beside_hugging_face(tokenizer))
    raise AssertionError


_PIPELINES = 60
_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False}
_UNIGRAMS = ("folding unigram", "byte unigram", "nfkc unigram")
_BPES = [name for name, options in MODELS.items() if options["model_type"] == "bpe"]


def families(folder: Path) -> dict[str, Callable[[], list[Subject]]]:
    """What makes the tokenizers of each family."""
    mistral = MODERN / "mistral-v1.model"
    patterns = ("gpt2", "cl100k", "o200k", "qwen2", "qwen35", "tekken", "digits_gpt2", "none")
    return {
        "gpt2": lambda: [beside_hugging_face(load_tokenizer(**GPT2))],
        "neox": lambda: [beside_hugging_face(load_tokenizer(REAL / "20B_tokenizer.json"))],
        "cl100k_base": lambda: [of_name("cl100k_base", folder)],
        "o200k_base": lambda: [of_name("o200k_base", folder)],
        "llama3": lambda: [ignoring_merges()],
        "qwen": lambda: [of_ranks("qwen.tiktoken", "qwen2")],
        "deepseek": lambda: [beside_hugging_face(load_tokenizer(MODERN / "deepseek-v3.json"))],
        "other patterns": lambda: [of_ranks("cl100k_base.tiktoken", p) for p in patterns],
        "steps": lambda: of_steps(folder),
        "mistral": lambda: [of_model(mistral.read_bytes())],
        "SentencePiece BPE": lambda: [of_model(learned(name)) for name in _BPES],
        "SentencePiece Unigram": lambda: [
            of_model(learned(name)) for name in (*MODELS, _UNIGRAMS[0]) if name not in _BPES
        ],
        "WordPiece": lambda: word_pieces(folder),
        "mistral as tokenizer.json": lambda: converted_bpe(folder),
        "Unigram as tokenizer.json": lambda: [
            *(of_json(unigram_json(learned(_UNIGRAMS[0]), form), folder) for form in CONVERTED),
            *(of_json(unigram_json(learned(name), "T5"), folder) for name in _UNIGRAMS[1:]),
        ],
        "pipelines": lambda: pipelines(folder),
    }


def family(name: str, subjects: list[Subject], seed: int, size: int, until: float) -> int:
    """Compare about ``size`` bytes, or what time allows, but a batch at least; returns how many
    bytes. AssertionError.
    """
    done = number = 0
    while number == 0 or (done < size and time.monotonic() < until):
        rng = random.Random(f"{seed} {name} {number}")
        subject = rng.choice(subjects)
        mode, level = rng.choice(sorted(subject.references)), rng.choice(LEVELS)
        cache = rng.choice(_CACHES)
        documents = texts.batch(rng, min(BATCH, size))
        actual = subject.ids(documents, mode, level, cache)
        for library, encode in subject.references[mode].items():
            expected = encode(documents)
            for text, own, theirs in zip(documents, actual, expected, strict=True):
                assert own == theirs, (
                    f"{name}, seed {seed}, batch {number}, tokenizer {subjects.index(subject)}, "
                    f"{mode or 'plain'}, {level}, cache {cache}: not the ids of {library}: "
                    f"{text!r}: {own[:50]} instead of {theirs[:50]}"
                )
        done += sum(len(text.encode()) for text in documents)
        number += 1
    return done


def run(seed: int, megabytes: float, minutes: float, only: list[str], folder: Path) -> None:
    """All families, each each with its share of what time is left once it is made."""
    chosen = {name: make for name, make in families(folder).items() if name in only or not only}
    end = time.monotonic() + 60 * minutes
    for number, (name, make) in enumerate(chosen.items()):
        subjects = make()
        began = time.monotonic()
        until = began + (end - began) / (len(chosen) - number)
        done = family(name, subjects, seed, int(megabytes * 1e6), until)
        seconds = time.monotonic() - began
        short = "" if done >= megabytes * 1e6 else f" of {megabytes:.1f}: the time was up"
        print(
            f"ids: {name}: {done / 1e6:.1f} MB alike{short}, seed {seed}, {seconds:.0f} s",
            flush=True,
        )


def main() -> None:
    """Run a long round; ends at the first text whose ids differ, and shows it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--megabytes", type=float, default=200, help="of text for each family")
    parser.add_argument("--minutes", type=float, default=90, help="for all of it")
    parser.add_argument("--family", action="append", default=[], help="only this one")
    args = parser.parse_args()
    if not REAL.is_dir():
        print(f"ids: no real vocabularies here: {REAL} is absent")
        return
    with tempfile.TemporaryDirectory(prefix="tokpack-ids-") as folder:
        run(args.seed, args.megabytes, args.minutes, args.family, Path(folder))


if __name__ == "__main__":
    main()

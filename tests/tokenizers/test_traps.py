"""Texts on which tokenizers have been seen to differ: native against the Hugging Face library.

The reference is ``tokenizers`` of the version that is installed; its Unicode tables are version 16.
"""

from __future__ import annotations

import random
import subprocess
import sys
import unicodedata
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.tokenizers_twin import LEVELS, Twin, block, rows
from support.traps import TRAPS
from tokenizers import normalizers

from tokpack import _core

if TYPE_CHECKING:
    from pathlib import Path


def test_the_reference_is_of_the_unicode_version_that_is_compiled_in(gpt2: Twin) -> None:
    """U+1C89 became a letter with Unicode 16, U+088F with 17."""
    (contraction,) = gpt2.tokenizer.encode("'s")
    new16, new17 = gpt2.slow(["\u1c89's", "\u088f's"], "text")
    assert contraction == new16[-1]
    assert contraction != new17[-1]


@pytest.mark.parametrize("name", ["gpt2", "neox"])
@pytest.mark.parametrize("trap", TRAPS)
def test_trap(name: str, trap: str, request: pytest.FixtureRequest) -> None:
    twin: Twin = request.getfixturevalue(name)
    twin.compare(TRAPS[trap])


@pytest.mark.slow
def test_every_code_point(gpt2: Twin) -> None:
    """Each character before a contraction, which shows whether it is a letter or number, or not."""
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    # Most of the planes above 3 are not assigned.
    points = [c for c in points if c < 0x40000 or c % 64 == 0 or 0xE0000 <= c < 0xE0200]
    texts = [
        "".join(f"{chr(c)}'s{chr(c)} {chr(c)}" for c in points[i : i + 256])
        for i in range(0, len(points), 256)
    ]
    gpt2.compare(texts, modes=["encode"])


@pytest.mark.parametrize("name", ["gpt2", "neox"])
def test_every_token_is_reached_as_the_library_reaches_it(
    name: str, request: pytest.FixtureRequest
) -> None:
    """A piece that is a token need not be encoded as that token, unless the merges lead there."""
    twin: Twin = request.getfixturevalue(name)
    texts = []
    for token in twin.tokenizer.spec.vocab:
        try:
            texts.append((token or b"").decode())
        except UnicodeDecodeError:
            continue
    assert len(texts) > 0.8 * len(twin.tokenizer.spec.vocab)
    twin.compare(texts, modes=["encode"])


@pytest.mark.parametrize("name", ["gpt2", "neox"])
def test_many_new_words(name: str, request: pytest.FixtureRequest) -> None:
    """A cache that compares less than the whole word would mix some of them up."""
    twin: Twin = request.getfixturevalue(name)
    rng = random.Random(3)
    words = [
        "".join(rng.choices("abcdeXYZ\u00e9\u4e2d", k=rng.randint(4, 20))) for _ in range(40_000)
    ]
    texts = [" ".join(words[i : i + 400]) for i in range(0, len(words), 400)]
    twin.compare(texts, modes=["text"])
    twin.compare(texts[::-1], modes=["text"])


@pytest.mark.parametrize("level", LEVELS)
def test_a_cache_that_overflows(gpt2: Twin, level: str) -> None:
    """More words than the smallest cache holds, long ones too; then some of them again."""
    spec = gpt2.tokenizer.spec
    core = _core.ByteLevelBPE(
        vocab=spec.vocab,
        merges=spec.merges,
        pattern=spec.pattern,
        added=[],
        special_tokens="text",
        cache_bytes=1,
        level=level,
    )
    rng = np.random.default_rng(5)
    letters = rng.integers(ord("a"), ord("q"), (60_000, 7), np.uint8)
    letters[:, 0] = ord(" ")
    core.encode(letters.reshape(-1).data, np.array([[0, letters.size]]))
    info = core.cache_info()
    assert info["words"] < info["misses"]
    long = rng.integers(ord("a"), ord("q"), (20_000, 20), np.uint8)
    long[:, 0] = ord(" ")
    core.encode(long.reshape(-1).data, np.array([[0, long.size]]))
    some = [letters[:20_000], long[:10_000], letters[-20_000:]]
    texts = [words.tobytes().decode() for words in some]
    assert rows(core.encode(*block(texts))) == gpt2.slow(texts, "text")


@pytest.mark.parametrize("level", LEVELS)
def test_the_end_of_the_buffer(gpt2: Twin, level: str) -> None:
    """A document that ends with its memory page is read no further."""
    core = gpt2.tokenizer.core(dtype="uint16", level=level)
    page = np.zeros(1 << 16, np.uint8)
    for size in [*range(70), 127, 128, 129, 191, 192, 193]:
        text = (b"don't stop  me now 123 " * 10)[:size]
        page[len(page) - size :] = np.frombuffer(text, np.uint8)
        spans = np.array([[len(page) - size, len(page)]], np.int64)
        assert rows(core.encode(page.data, spans)) == gpt2.slow([text.decode()], "text")


@pytest.mark.parametrize("level", LEVELS)
def test_documents_may_lie_anywhere(gpt2: Twin, level: str) -> None:
    """Gaps, any order, the same document twice, empty documents."""
    texts = ["first one", "", "'second' 22", "  third"]
    data, spans = block(["junk ", *texts, " more junk"])
    order = [4, 3, 2, 1, 1, 4]
    core = gpt2.tokenizer.core(dtype="uint16", level=level)
    encoded = core.encode(data.data, spans[order], after=[gpt2.tokenizer.eod_id])
    expected = gpt2.slow([texts[i - 1] for i in order], "text")
    assert rows(encoded) == [[*ids, gpt2.tokenizer.eod_id] if ids else [] for ids in expected]


@pytest.mark.parametrize("level", LEVELS)
def test_special_tokens_are_reported_in_every_mode(neox: Twin, level: str) -> None:
    data, spans = block(["a<|endoftext|>b<|padding|>", "none", "<|endoftext|>"])
    for mode in ("text", "encode"):
        encoded = neox.tokenizer.core(dtype="uint16", special_tokens=mode, level=level).encode(
            data.data, spans
        )
        assert encoded.special.tolist() == [0, 0, 2], mode


@pytest.mark.parametrize("level", LEVELS)
def test_bytes_that_are_no_text_do_no_harm(data: Path, level: str) -> None:
    """The caller promises UTF-8; a broken promise gives an error or odd ids, never a crash."""
    program = f"""
import numpy as np
from pathlib import Path
from tokpack import _core
from tokpack.tokenizers import load_tokenizer
core = load_tokenizer({str(data / "tokenizers" / "20B_tokenizer.json")!r}).core(
    dtype="int32", level={level!r})
for raw in (b"\\xe2\\x82", b"\\xff" * 70000, b"\\xf5abc", b"a" * 63 + b"\\xf0", b"\\x80" * 65,
            b" \\xed\\xa0\\x80 b", b"\\xf4\\x90\\x80\\x80", b"\\xcc"):
    try:
        core.encode(np.frombuffer(raw, np.uint8), np.array([[0, len(raw)]]))
    except Exception:
        pass
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_normalization_is_the_library_s_for_every_code_point() -> None:
    """Its tables are older than Unicode 16: some newer marks keep their places."""
    library = normalizers.NFC()
    for before, after in (("", ""), ("", "\u0323\u0301"), ("e", "\u0323"), ("\u1100", "\u11a8")):
        texts = [
            before + chr(c) + after
            for c in range(0x30000)
            if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co") and not 0x3400 < c < 0xAC00
        ]
        text = "\n".join(texts)
        assert _core.normalize("NFC", text.encode()).decode() == library.normalize_str(text)

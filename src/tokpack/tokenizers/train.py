"""Train a tokenizer on a corpus: a vocabulary of words, or a byte-level BPE."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tokpack.display import brief
from tokpack.errors import InputError, TokenizerError, UsageError, option
from tokpack.tokenizers.huggingface import assembled, encode_batch, failures, load_library
from tokpack.tokenizers.patterns import names, pre_tokenizer_of
from tokpack.tokenizers.words import EOD, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import tokenizers

_LONG = 1 << 14  # characters; with fewer a pattern may take long, but comes to an end


def train_whitespace_vocab(
    texts: Iterable[str], *, vocab_size: int | None = None, min_count: int = 1
) -> dict[str, int]:
    """Count the words of texts (``str.split``) and number them. Returns word -> id.

    ``<unk>`` is 0 and ``<|endoftext|>`` is 1; words follow by falling count, and with equal counts
    in alphabetical order. ``vocab_size`` includes the two special tokens; words that occur fewer
    than ``min_count`` times are left out. InputError if there is no word.
    """
    if vocab_size is not None and vocab_size < 3:
        raise UsageError(
            f"a vocabulary of {vocab_size} has no room for words beside {UNKNOWN} and {EOD}"
        )
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text.split())
    for special in (UNKNOWN, EOD):
        counts.pop(special, None)
    words = [word for word, count in counts.items() if count >= min_count]
    if not words:
        raise InputError(f"no word occurs {min_count} times or more: nothing to learn from")
    words.sort(key=lambda word: (-counts[word], word))
    kept = words if vocab_size is None else words[: vocab_size - 2]
    return {token: token_id for token_id, token in enumerate([UNKNOWN, EOD, *kept])}


def train_bpe(
    texts: Iterable[str],
    *,
    vocab_size: int,
    min_count: int = 2,
    special_tokens: Sequence[str] = (EOD,),
    pattern: str = "gpt2",
    threads: int = 0,
) -> str:
    """Train a byte-level BPE. Returns the text of a tokenizer.json.

    ``pattern`` cuts texts into words, as in ``pre_tokenizer_of``. All 256 bytes are in the
    vocabulary, so every text can be encoded; special tokens have the lowest ids. ``vocab_size`` is
    an upper bound: a small corpus has fewer pairs that occur ``min_count`` times. The trainer is
    the Hugging Face library's, with so many ``threads``, or one for each core; the result does not
    depend on them. UsageError for a vocabulary that is too small, for a pattern that cannot be
    compiled, and for special tokens that are empty or repeated; TokenizerError for a pattern that
    does not come to an end at a text.
    """
    if "" in special_tokens or len(set(special_tokens)) != len(special_tokens):
        raise UsageError(
            f"{option('special_tokens')} is {[*special_tokens]}; it needs different tokens"
        )
    least = 256 + len(special_tokens)
    if vocab_size < least:
        raise UsageError(
            f"a byte-level vocabulary of {vocab_size} is too small: 256 bytes and "
            f"{len(special_tokens)} special tokens take {least}"
        )
    library: Any = load_library("training a tokenizer")
    tokenizer = _untrained(pattern)
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_count,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    what = f"the pattern {brief(pattern)} cannot cut a text"
    with _threads(threads), failures(what):
        tokenizer.train_from_iterator(_cut(texts, pattern, what), trainer)
    text: str = tokenizer.to_str(pretty=True)
    return text


def _cut(texts: Iterable[str], pattern: str, what: str) -> Iterator[str]:
    """The texts; TokenizerError for a long one that a pattern of the user takes too long to cut.

    During a training nothing could end that.
    """
    if pattern in names():
        yield from texts
        return
    cutter = _untrained(pattern)  # another one, since the first is locked
    for number, text in enumerate(texts, 1):
        if len(text) > _LONG:
            try:
                encode_batch(cutter, [text])
            except TokenizerError as error:
                raise TokenizerError(f"{what} (number {number} of those read): {error}") from None
        yield text


def _untrained(pattern: str) -> tokenizers.Tokenizer:
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    cutter = step if pattern == "gpt2" else pre_tokenizer_of(pattern)
    decoder = {**step, "add_prefix_space": True}
    return assembled("an empty BPE", pre_tokenizer=cutter, decoder=decoder)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Lift the library's limit of one thread during a training.

    How many threads it starts is fixed when a process first trains.
    """
    ours = {"TOKENIZERS_PARALLELISM": "true"}
    ours |= {"RAYON_NUM_THREADS": str(count)} if count else {}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

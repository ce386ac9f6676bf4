"""Many texts at once: numpy arrays in the place of lists, and threads that share no lock."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from tokpack.display import brief
from tokpack.errors import UsageError
from tokpack.tokenizers.base import as_utf8

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from tokpack.tokenizers.base import Encoded, Encoder, Tokenizer

T = TypeVar("T")

_RUN_BYTES = 1 << 18  # of texts that are encoded at a time: text and ids stay in the cache


class EncodedBatch(NamedTuple):
    """Ids of n texts: those of text i are ``ids[offsets[i]:offsets[i + 1]]``."""

    ids: npt.NDArray[Any]  # uint16 or int32
    offsets: npt.NDArray[np.int64]  # [n + 1]


Settings = tuple[str, bool, str]  # dtype, append_eod, special_tokens of an encoder

# Encoders that nobody uses now, by what they are for: as many as threads have used at once. They
# are beside tokenizers, not in them, since they have no pickle.
_idle: WeakKeyDictionary[Tokenizer, dict[Any, list[Any]]] = WeakKeyDictionary()


@contextmanager
def borrowed(tokenizer: Tokenizer, purpose: Any, build: Callable[[], T]) -> Iterator[T]:
    """An encoder for this thread alone: one that nobody uses now, or a new one.

    What ``build`` makes takes milliseconds and megabytes, and is kept as long as the tokenizer.
    """
    idle = _idle.setdefault(tokenizer, {}).setdefault(purpose, [])
    try:
        encoder = idle.pop()
    except IndexError:
        encoder = build()
    yield encoder
    idle.append(encoder)  # after an error it is not


def encode_batch(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    dtype: str,
    append_eod: bool,
    special_tokens: str,
    threads: int,
) -> EncodedBatch:
    """What ``Tokenizer.encode_batch`` does."""
    if threads < 1:
        raise UsageError(f"threads is {threads}, expected 1 or more")
    if isinstance(texts, str):
        raise UsageError("encode_batch takes several texts, not one str: use encode, or a list")
    if not isinstance(texts, Sequence):
        raise UsageError(f"encode_batch takes texts in a list, not {_kind(texts)}: give list(...)")
    settings = dtype, append_eod, special_tokens

    def encode(run: list[bytes]) -> Encoded:
        return encode_texts(tokenizer, run, settings)

    if threads == 1:
        results = [encode(run) for run in _runs(texts)]
    else:
        with ThreadPoolExecutor(threads) as pool:
            results = list(pool.map(encode, _runs(texts)))
    if not results:
        return EncodedBatch(np.empty(0, tokenizer.check_dtype(dtype)), np.zeros(1, np.int64))
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.concatenate([one.lengths for one in results]), out=offsets[1:])
    return EncodedBatch(np.concatenate([one.ids for one in results]), offsets)


def encode_texts(tokenizer: Tokenizer, texts: list[bytes], settings: Settings) -> Encoded:
    """Encode texts, UTF-8."""
    dtype, append_eod, mode = settings

    def build() -> Encoder:
        return tokenizer.encoder(dtype=dtype, append_eod=append_eod, special_tokens=mode)

    with borrowed(tokenizer, settings, build) as encoder:
        return encoder.encode(*_joined(texts))


def _runs(texts: Sequence[str]) -> Iterator[list[bytes]]:
    """The texts as UTF-8, some at a time."""
    run: list[bytes] = []
    size = 0
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UsageError(f"text {number} is {brief(text)}, no str: decode bytes first")
        run.append(as_utf8(text, f"text {number}"))
        size += len(run[-1])
        if size >= _RUN_BYTES:
            yield run
            run, size = [], 0
    if run:
        yield run


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _joined(texts: list[bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    return np.frombuffer(b"".join(texts), np.uint8), np.stack([begins, ends], axis=1)

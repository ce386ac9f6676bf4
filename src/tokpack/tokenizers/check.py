"""Prove on a run's own data that the native core encodes as the tokenizer's own library does."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import ujson

from tokpack.errors import TokenizerError
from tokpack.tokenizers.base import SpecialMode, Tokenizer, texts_of
from tokpack.tokenizers.huggingface import HuggingFaceTokenizer, build, encode_batch
from tokpack.tokenizers.native import CoreTokenizer
from tokpack.tokenizers.ranks import EOD, parse_merges
from tokpack.tokenizers.sentencepiece import SentencePieceTokenizer

if TYPE_CHECKING:
    import numpy.typing as npt
    import tokenizers

    from tokpack import _core

SAMPLE_BYTES = 1 << 18
CACHE_BYTES = 1 << 24  # enough for the vocabulary and the sample's words; more is slow to clear
_SHOWN = 10  # ids before and after a difference, in the message


def self_check(
    tokenizer: Tokenizer,
    data: npt.NDArray[np.uint8],
    spans: npt.NDArray[np.int64],
    *,
    special_tokens: str = "auto",
    most: int = SAMPLE_BYTES,
) -> bool:
    """Encode the first ``most`` bytes of documents in the core and by the library; compare every
    id.

    ``spans`` is int64 [n, 2], begin and end of each document in ``data``. Raises TokenizerError
    that shows the first difference. Returns False if nothing was compared: for a tokenizer that is
    not native, or a SentencePiece model without its library.
    """
    sample = first_documents(data, spans, most)
    texts = texts_of(data, sample)
    core: _core.AnyEncoder
    if isinstance(tokenizer, CoreTokenizer):
        mode = tokenizer.special_mode(special_tokens)
        core = tokenizer.core(dtype="int32", special_tokens=mode, cache_bytes=CACHE_BYTES)
        expected = encode_batch(reference(tokenizer, mode), texts)
    elif isinstance(tokenizer, SentencePieceTokenizer) and tokenizer.native:
        if importlib.util.find_spec("sentencepiece") is None:
            return False
        core = tokenizer.core(dtype="int32", cache_bytes=CACHE_BYTES)
        expected = tokenizer.library_model().encode(texts, out_type=int)
    else:
        return False
    encoded = core.encode(data.data, sample)
    ends = np.cumsum(encoded.lengths, dtype=np.int64)
    begin = 0
    for index, (end, right) in enumerate(zip(ends.tolist(), expected, strict=True)):
        actual = encoded.ids[begin:end].tolist()
        begin = end
        if actual != right:
            raise _difference(tokenizer, index, texts[index], actual, right)
    return True


def first_documents(
    data: npt.NDArray[np.uint8], spans: npt.NDArray[np.int64], limit: int
) -> npt.NDArray[np.int64]:
    """The documents that fit into ``limit`` bytes; the last one is cut between two characters."""
    sizes = np.cumsum(spans[:, 1] - spans[:, 0])
    count = int(np.searchsorted(sizes, limit, side="left")) + 1
    sample = np.array(spans[:count], np.int64)
    if len(sample) and sizes[len(sample) - 1] > limit:
        end = int(sample[-1, 1] - (sizes[len(sample) - 1] - limit))
        while end > sample[-1, 0] and data[end] & 0xC0 == 0x80:
            end -= 1
        sample[-1, 1] = end
    return sample


def reference(tokenizer: CoreTokenizer, mode: SpecialMode) -> tokenizers.Tokenizer:
    """The Hugging Face library's tokenizer, from the files that the native one was read from."""
    files = tokenizer.reference_in(mode)
    raw = files[0] if len(files) == 1 else _of_gpt2(files, tokenizer, mode)
    return build(raw, special_tokens=mode, where=f"tokenizer {tokenizer.name}")


def _of_gpt2(files: tuple[bytes, ...], tokenizer: CoreTokenizer, mode: SpecialMode) -> bytes:
    """The tokenizer.json of GPT-2's vocab.json and merges.txt."""
    raw_vocab, raw_merges = files
    pairs = parse_merges(raw_merges, Path(tokenizer.name))
    eod = tokenizer.token_to_id(EOD)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = {"id": eod, "content": EOD, **flags, "special": True}
    definition = {
        "version": "1.0",
        "added_tokens": [added] if mode == "encode" and eod is not None else [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False},
        "model": {"type": "BPE", "merges": list(map(" ".join, zip(*pairs, strict=True)))},
    }
    # The vocabulary stays JSON: to read it and to write it again takes longer than all else here.
    vocab = raw_vocab.decode(json.detect_encoding(raw_vocab))
    begin = ujson.dumps(definition, ensure_ascii=False).removesuffix("}}")
    return f'{begin}, "vocab": {vocab}}}}}'.encode()


def library_of(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """The library's tokenizer of the same files. TokenizerError if it cannot read them."""
    if isinstance(tokenizer, CoreTokenizer):
        return reference(tokenizer, "encode")
    if isinstance(tokenizer, HuggingFaceTokenizer):
        where = f"tokenizer {tokenizer.name}"
        return build(tokenizer.raw, special_tokens="encode", where=where)
    raise TokenizerError(
        f"tokenizer {tokenizer.name} ({tokenizer.kind}) has no tokenizer.json, which transformers "
        "needs: convert it there first"
    )


def _difference(
    tokenizer: Tokenizer,
    index: int,
    text: str,
    actual: list[int],
    right: list[int],
) -> TokenizerError:
    library = "SentencePiece" if isinstance(tokenizer, SentencePieceTokenizer) else "Hugging Face"
    pairs = zip(actual, right, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(actual), len(right)))
    before = tokenizer.decode(actual[:at])
    offset = len(before)
    around = text[max(0, offset - 40) : offset + 40]
    window = slice(max(0, at - 2), at + _SHOWN)
    return TokenizerError(
        f"tokenizer {tokenizer.name} fails its self-check: in document {index + 1} of the sample, "
        f"token {at}, near {around!r}, the native core gives {actual[window]} and the {library} "
        f"library {right[window]}. This is a fault of tokpack: please report it with this text"
    )

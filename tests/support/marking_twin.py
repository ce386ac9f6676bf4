"""Marked tokens, as the Hugging Face library's offsets say: one token and one character a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import processors

from tokpack.tokenizers.check import reference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer as HuggingFace

    from tokpack.tokenizers.native import CoreTokenizer


def library_of(tokenizer: CoreTokenizer) -> HuggingFace:
    """The library's tokenizer, whose offsets include white space."""
    library = reference(tokenizer, "encode")
    library.post_processor = processors.ByteLevel(trim_offsets=False)
    return library


def marked(
    library: HuggingFace, text: str, spans: Sequence[tuple[int, int]]
) -> tuple[list[int], list[int]]:
    """The ids of a text, and for each whether one of its characters is in a span."""
    encoding = library.encode(text, add_special_tokens=False)
    inside = {at for begin, end in spans for at in range(begin, end)}
    mask = [int(not inside.isdisjoint(range(*place))) for place in encoding.offsets]
    return encoding.ids, mask

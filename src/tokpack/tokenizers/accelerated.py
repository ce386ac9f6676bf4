"""Tokenizers of the Hugging Face libraries whose texts the core encodes."""

from __future__ import annotations

import contextlib
import sys
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokpack.errors import TokenizerError, UsageError
from tokpack.machine import usable_cores
from tokpack.tokenizers.base import Tokenizer, TokenizerOptions
from tokpack.tokenizers.check import library_of
from tokpack.tokenizers.folder import CONFIG, Definition
from tokpack.tokenizers.frame import Frame
from tokpack.tokenizers.load import from_json

if TYPE_CHECKING:
    import tokenizers
    import transformers


# The methods and attributes that change the ids of a text. A change inside of a part, such as
# `model.dropout`, cannot be noticed: assign the part again.
_PARTS = ("model", "normalizer", "pre_tokenizer", "encode_special_tokens")
_CHANGING = ("add_tokens", "add_special_tokens", "train", "train_from_iterator")
_NAME = Path("tokenizer.json")
_THREADED_CHARACTERS = 1 << 20  # a larger batch is worth more than one thread


class AcceleratedTokenizer:
    """Replaces a ``tokenizers.Tokenizer``: the same methods, attributes and results.

    Texts are encoded by the core if it knows the tokenizer. Pairs, words that are split already and
    other tokenizers go to the library, and so does everything about an encoding besides its ids. A
    change of the tokenizer is noticed before the next text.
    """

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        self.__dict__.update(_library=library, _core=None, _frame=None, _is_known=False)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._library, name)
        return self._noticing(value) if name in _CHANGING else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._library, name, value)
        if name in _PARTS or name == "post_processor":
            self.__dict__["_is_known"] = False

    def __reduce__(self) -> tuple[type[AcceleratedTokenizer], tuple[tokenizers.Tokenizer]]:
        return type(self), (self._library,)

    def __repr__(self) -> str:
        return repr(self._library)

    @property
    def is_native(self) -> bool:
        """Whether the core encodes its texts."""
        self._look()
        return self._core is not None

    def encode(
        self,
        sequence: Any,
        pair: Any = None,
        is_pretokenized: bool = False,
        add_special_tokens: bool = True,
    ) -> Any:
        """As ``tokenizers.Tokenizer.encode``."""
        if pair is None and not is_pretokenized and isinstance(sequence, str):
            return self.encode_batch([sequence], add_special_tokens=add_special_tokens)[0]
        return self._library.encode(sequence, pair, is_pretokenized, add_special_tokens)

    def encode_batch(
        self,
        input: Any,  # noqa: A002  # its name there
        is_pretokenized: bool = False,
        add_special_tokens: bool = True,
    ) -> list[Any]:
        """As ``tokenizers.Tokenizer.encode_batch``."""
        texts = list(input)
        rows = None
        if not is_pretokenized and texts and all(isinstance(text, str) for text in texts):
            self._look()
            rows = self._rows(texts, add_special_tokens)
        if rows is None:
            encodings: list[Any] = self._library.encode_batch(
                texts, is_pretokenized, add_special_tokens
            )
            return encodings
        batch = _Batch(self._library, texts, add_special_tokens)
        masks = [[1] * len(row) for row in rows]
        if batch.padding is not None:
            rows, masks = _padded(rows, masks, batch.padding)
        pairs = enumerate(zip(rows, masks, strict=True))
        return [_Encoding(batch, number, row, mask) for number, (row, mask) in pairs]

    encode_batch_fast = encode_batch

    def _noticing(self, method: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            self.__dict__["_is_known"] = False
            return method(*arguments, **named)

        return call

    def _look(self) -> None:
        """Read the tokenizer again if it has changed."""
        if self._is_known:
            return
        library, core, frame = self._library, None, None
        if not library.encode_special_tokens:
            definition = Definition(library.to_str().encode(), _NAME)
            read = from_json(definition, _NAME, str(_NAME), TokenizerOptions())
            if read.native:
                core, frame = read, _frame_of(read, library)
        self.__dict__.update(_core=core, _frame=frame, _is_known=True)

    def _rows(self, texts: list[str], add_special_tokens: bool) -> list[list[int]] | None:
        """The ids of each text, cut and framed; None if the library must encode them."""
        core, frame = self._core, self._frame if add_special_tokens else Frame()
        if core is None or frame is None:
            return None
        cut = self._library.truncation
        room = sys.maxsize if cut is None else cut["max_length"]
        room -= len(frame.before) + len(frame.after)
        if room < 0:
            return None  # an error, which the library puts into its own words
        is_large = sum(map(len, texts)) >= _THREADED_CHARACTERS
        try:
            batch = core.encode_batch(texts, threads=usable_cores() if is_large else 1)
        except (TokenizerError, ValueError):
            return None  # an error, for instance about a lone surrogate
        ids, ends = batch.ids.tolist(), batch.offsets.tolist()
        rows = [ids[begin:end] for begin, end in pairwise(ends)]
        if cut is not None and max(map(len, rows)) > room:
            if cut["strategy"] == "only_second" or 0 < room <= cut["stride"]:
                return None  # an error
            left = cut["direction"] == "left"
            rows = [row[max(len(row) - room, 0) :] if left else row[:room] for row in rows]
        if frame != Frame():
            rows = [[*frame.before, *row, *frame.after] for row in rows]
        return rows


class _Batch:
    """Texts that the core has encoded, for questions that only the library can answer."""

    def __init__(
        self, library: tokenizers.Tokenizer, texts: list[str], add_special_tokens: bool
    ) -> None:
        self._library, self._texts = library, texts
        self._add_special_tokens = add_special_tokens
        self._truncation, self.padding = library.truncation, library.padding

    @cached_property
    def encodings(self) -> list[Any]:
        """The library's encodings of them, cut and padded as the settings were at that time."""
        now = self._library.truncation, self._library.padding
        self._set(self._truncation, self.padding)
        try:
            encodings: list[Any] = self._library.encode_batch(
                self._texts, add_special_tokens=self._add_special_tokens
            )
        finally:
            self._set(*now)
        return encodings

    def _set(self, truncation: dict[str, Any] | None, padding: dict[str, Any] | None) -> None:
        library = self._library
        if (truncation, padding) == (library.truncation, library.padding):
            return  # the library may refuse it, because of its current post-processor
        library.enable_truncation(**truncation) if truncation else library.no_truncation()
        library.enable_padding(**padding) if padding else library.no_padding()


class _Encoding:
    """The ids of a text. For everything else in a ``tokenizers.Encoding`` the library is asked."""

    n_sequences = 1

    def __init__(self, batch: _Batch, number: int, ids: list[int], mask: list[int]) -> None:
        self._batch, self._number = batch, number
        self.ids, self.attention_mask = ids, mask

    @property
    def type_ids(self) -> list[int]:
        padding = self._batch.padding
        kind = padding["pad_type_id"] if padding else 0
        return [0 if is_token else kind for is_token in self.attention_mask]

    def __len__(self) -> int:
        return len(self.ids)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._batch.encodings[self._number], name)

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        return _same, (self._batch.encodings[self._number],)


def _same(value: Any) -> Any:
    return value


def _frame_of(core: Tokenizer, library: tokenizers.Tokenizer) -> Frame | None:
    """The tokens that a post-processor adds around a text; None if it does something else, too."""
    try:
        frame = core.special_frame()
    except TokenizerError:
        return None
    # If any token has a type of its own, padding has.
    types = library.encode("a", add_special_tokens=True).type_ids
    return None if any(types) else frame


def _padded(
    rows: list[list[int]], masks: list[list[int]], padding: dict[str, Any]
) -> tuple[list[list[int]], list[list[int]]]:
    """Rows and masks, padded to the same length: the given one, or that of the longest row."""
    length = padding["length"]  # may be 0, which is not None
    length = max(map(len, rows)) if length is None else length
    if (multiple := padding["pad_to_multiple_of"]) is not None and multiple > 0:
        length = -(-length // multiple) * multiple
    left = padding["direction"] == "left"

    def fill(row: list[int], value: int) -> list[int]:
        more = [value] * (length - len(row))
        return more + row if left else row + more

    return [fill(row, padding["pad_id"]) for row in rows], [fill(mask, 0) for mask in masks]


def as_hf(tokenizer: Tokenizer) -> transformers.PreTrainedTokenizerFast:
    """The tokenizer that ``Tokenizer.as_hf`` returns."""
    library = _transformers()
    backend, wrapped = library_of(tokenizer), None
    folders = dict.fromkeys(path.parent for path in tokenizer.files.values())
    if folder := next((one for one in folders if (one / CONFIG).is_file()), None):
        # The tokenizer of a folder may be code of its own, or of a class that is not known.
        with contextlib.suppress(OSError, ValueError):
            wrapped = library.AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    if not isinstance(wrapped, library.PreTrainedTokenizerFast):
        eod = None if tokenizer.eod_id is None else tokenizer.decode([tokenizer.eod_id])
        wrapped = library.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eod)
    # The class may have built a tokenizer that differs from its files.
    wrapped._tokenizer = AcceleratedTokenizer(backend)
    fast: transformers.PreTrainedTokenizerFast = wrapped
    return fast


def _transformers() -> Any:
    try:
        import transformers
    except ModuleNotFoundError:
        raise UsageError("this needs the package transformers: pip install transformers") from None
    return transformers


Tokenizer.accelerate = staticmethod(as_hf)

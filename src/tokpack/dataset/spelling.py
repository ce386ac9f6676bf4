"""Tokens as text, one by one."""

from __future__ import annotations

import os
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokpack.dataset.format import numbers_in
from tokpack.dataset.sources import own_manifest
from tokpack.dataset.track import role_name
from tokpack.errors import TokenizerError, option
from tokpack.storage import is_url
from tokpack.tokenizers import (
    NativeTokenizer,
    Tokenizer,
    TokenizerFiles,
    load_described,
    load_tokenizer,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    import numpy.typing as npt

    from tokpack.dataset.dataset import MMapIndexedDataset


_BLOCK = 1 << 16  # tokens
_WINDOW = 8  # tokens before one that may affect its text
_NO_TOKEN = "\N{REPLACEMENT CHARACTER}"


class TokenText(NamedTuple):
    """Tokens that form whole characters together; nearly always just one."""

    ids: tuple[int, ...]
    text: str


class Spelling:
    """The bytes of single tokens of a tokenizer, as far as possible.

    A byte-level BPE has them in its vocabulary. With other tokenizers the text of a token may
    depend on those before it. Unknown ids become U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @cached_property
    def table(self) -> list[bytes] | None:
        """The bytes of each id, or None if a text is not just their concatenation."""
        if not isinstance(self.tokenizer, NativeTokenizer):
            return None
        return [self.alone(token) for token in range(self.tokenizer.vocab_size)]

    def alone(self, token: int) -> bytes:
        """The bytes of one token alone, or, if there are none, after itself."""
        try:
            first = self.tokenizer.decode_bytes([token])
            return first or self.tokenizer.decode_bytes([token, token])
        except TokenizerError:
            return _NO_TOKEN.encode()

    def text(self, ids: Sequence[int] | npt.NDArray[Any]) -> bytes:
        """The text of a document as UTF-8; about 20 ns per token for a byte-level BPE."""
        if self.table is not None:
            array = np.asarray(ids)
            return b"".join(
                self._gather(array[begin : begin + _BLOCK])
                for begin in range(0, len(array), _BLOCK)
            )
        tokens = [int(token) for token in ids]
        try:
            return self.tokenizer.decode_bytes(tokens)
        except TokenizerError:
            return b"".join(self.of(tokens))

    @cached_property
    def _flat(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """All bytes of the table concatenated, the offset of each token, and its length.

        One more entry at the end is for unknown ids.
        """
        rows = [*(self.table or []), _NO_TOKEN.encode()]
        lengths = np.array([len(row) for row in rows], np.int64)
        return np.frombuffer(b"".join(rows), np.uint8), np.cumsum(lengths) - lengths, lengths

    def _gather(self, ids: npt.NDArray[Any]) -> bytes:
        data, starts, lengths = self._flat
        none = len(lengths) - 1
        ids = np.where((ids >= 0) & (ids < none), ids, none)
        text: bytes = data[numbers_in(starts[ids], lengths[ids])].tobytes()
        return text

    def of(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each token."""
        if self.table is not None:
            return [self.text([token]) for token in ids]
        return [self._after(ids[max(0, i - _WINDOW) : i], ids[i]) for i in range(len(ids))]

    def _after(self, before: Sequence[int], token: int) -> bytes:
        try:
            start = self.tokenizer.decode_bytes(before)
            whole = self.tokenizer.decode_bytes([*before, token])
        except TokenizerError:
            return self.alone(token)
        return whole[len(start) :] if whole.startswith(start) else self.alone(token)

    def whole(self, ids: Sequence[int]) -> list[TokenText]:
        """Tokens as text; those that share a character stay together."""
        spelled: list[TokenText] = []
        waiting: list[int] = []
        pending = b""
        last = len(ids) - 1
        for number, (token, its_bytes) in enumerate(zip(ids, self.of(ids), strict=True)):
            waiting.append(token)
            pending += its_bytes
            if number == last or not _is_cut(pending):
                spelled.append(TokenText(tuple(waiting), pending.decode("utf-8", "replace")))
                waiting, pending = [], b""
        return spelled


def _is_cut(text: bytes) -> bool:
    """Whether the last character of a text is not complete."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False


# Find the tokenizer of a dataset again.

HOW = (
    f"give it with {option('tokenizer')}, or {option('vocab_file')} and {option('merge_file')}, as "
    "for encode"
)
_IN_PYTHON = "load one with tokpack.load_tokenizer(...), whose decode takes dataset.document(i)"


class TokenizerLookup(NamedTuple):
    """A tokenizer, or None; ``note`` tells the user why, or how it differs."""

    tokenizer: Tokenizer | None
    note: str


def find_tokenizer(dataset: MMapIndexedDataset, **files: Unpack[TokenizerFiles]) -> TokenizerLookup:
    """The given tokenizer, loaded, or else the one in the manifest.

    A manifest has the paths and checksums of a tokenizer's files. They are looked for among the
    copies that encode keeps on this machine, beside the dataset, and at their old place, and must
    have the checksum. TokpackError if a given tokenizer does not load.
    """
    if any(files.values()):
        tokenizer, manifest = load_tokenizer(**files), own_manifest(dataset)
        described = manifest.tokenizer if manifest else {}
        if not described or tokenizer.fingerprint == described.get("sha256"):
            return TokenizerLookup(tokenizer, "")
        note = (
            f"{dataset.path_prefix} was made with the tokenizer {str(described.get('name'))!r} of "
            f"{described.get('vocab_size')} ids (sha256 {str(described.get('sha256'))[:12]}); the "
            f"one given has {tokenizer.vocab_size} ids (sha256 {tokenizer.fingerprint[:12]})"
        )
        return TokenizerLookup(tokenizer, note)
    try:
        return TokenizerLookup(_own_tokenizer(dataset), "")
    except TokenizerError as error:
        return TokenizerLookup(None, f"{error.args[0]}; {HOW}")


def spelling_of(dataset: MMapIndexedDataset) -> Spelling:
    """A Spelling for the tokenizer in a dataset's manifest.

    TokenizerError, with advice, if there is none or it is not found.
    """
    try:
        return Spelling(_own_tokenizer(dataset))
    except TokenizerError as error:
        adopted = "" if dataset.manifest else "give it one with tokpack.adopt, or "
        raise TokenizerError(f"{error.args[0]}; {adopted}{_IN_PYTHON}") from None


def _own_tokenizer(dataset: MMapIndexedDataset) -> Tokenizer:
    manifest, prefix = own_manifest(dataset), dataset.path_prefix
    if manifest is None or not manifest.tokenizer:
        raise TokenizerError(f"no manifest names the tokenizer of {prefix}")
    folder = os.path.dirname(prefix if is_url(prefix) else os.path.abspath(prefix))
    try:
        return load_described(manifest.tokenizer, folder)
    except TokenizerError as error:
        name = str(manifest.tokenizer.get("name", ""))
        raise TokenizerError(
            f"cannot load the tokenizer {name!r} of {prefix}: {error.args[0]}"
        ) from None


class RoleSpan(NamedTuple):
    """Tokens [begin, end) of one role; "" if nobody speaks."""

    role: str
    begin: int
    end: int


def turns_of(dataset: MMapIndexedDataset, number: int, begin: int, end: int) -> list[RoleSpan]:
    """The turns in tokens [begin, end) of document ``number``, counted from ``begin``.

    Consecutive messages of the same role are one turn. Without a track of roles all tokens are one
    turn of the role "". Raises as ``track``.
    """
    if "roles" not in dataset.tracks:
        return [RoleSpan("", 0, end - begin)]
    roles = dataset.track("roles").document(number)[begin:end]
    cuts = [0, *(np.flatnonzero(np.diff(roles)) + 1).tolist(), len(roles)]
    return [
        RoleSpan(role_name(int(roles[first])), first, stop)
        for first, stop in pairwise(cuts)
        if first < stop
    ]


def document_text(dataset: MMapIndexedDataset, spelling: Spelling, number: int) -> bytes:
    """The text of document ``number``, in [0, documents), as UTF-8.

    The ids that the manifest names as the frame of each document (EOD, BOS) are left out if they
    are there; if it names none, the EOD at the end is. FormatError for a broken index.
    """
    ids = dataset.document(number)
    manifest = own_manifest(dataset)
    frame = manifest.frame if manifest else None
    eod = spelling.tokenizer.eod_id
    before, after = frame or ([], [] if eod is None else [eod])
    if before and ids[: len(before)].tolist() == before:
        ids = ids[len(before) :]
    if after and ids[-len(after) :].tolist() == after:
        ids = ids[: -len(after)]
    return spelling.text(ids)

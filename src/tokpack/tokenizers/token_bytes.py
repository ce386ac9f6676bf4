"""Tokenizers whose texts are the bytes of their tokens: are the tokens of documents their texts?"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tokpack.tokenizers.spec import NormalForm

    Spans = npt.NDArray[np.int64]

_IN_NO_TEXT = b"\xff"


class TokenBytes:
    """The bytes of each token, by its id; None for an id that is unused.

    A text is normalized into ``form``, if there is one, before it is encoded.
    """

    def __init__(self, table: Sequence[bytes | None], *, form: NormalForm = "") -> None:
        self._table = [_IN_NO_TEXT if token is None else token for token in table]
        self._bytes = b"".join(self._table)
        self._ends = np.fromiter(accumulate(map(len, self._table)), np.int64, len(self._table))
        self._form = form

    def unlike(
        self, ids: npt.NDArray[Any], spans: Spans, data: npt.NDArray[np.uint8], texts: Spans
    ) -> Spans:
        """The documents, ids [spans[i, 0], spans[i, 1]), that are not the text data[texts[i]]."""
        tokens = ids.view(np.uint32) if ids.dtype == np.int32 else ids
        same = _core.are_texts(tokens, spans, data.data, texts, self._bytes, self._ends)
        for i in np.flatnonzero(~same).tolist() if self._form else ():
            same[i] = self._is_equal(ids, spans[i], data, texts[i])
        return np.flatnonzero(~same)

    def _is_equal(
        self, ids: npt.NDArray[Any], span: Spans, data: npt.NDArray[np.uint8], text: Spans
    ) -> bool:
        """Whether a document is a text after both are normalized."""
        some = ids[span[0] : span[1]].tolist()
        if some and not 0 <= min(some) <= max(some) < len(self._table):
            return False
        decoded = b"".join(map(self._table.__getitem__, some))
        both = (decoded, data[text[0] : text[1]].tobytes())
        texts = (t.decode("utf-8", "replace").encode() for t in both)
        one, other = (_core.normalize(self._form, t) for t in texts)
        return one == other

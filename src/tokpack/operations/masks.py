"""Which tokens are trained, as other programs say it: by labels, of which -100 does not count.

Value i of a mask, or of labels, belongs to token i as it is read, unshifted, as in our tracks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tokpack.operations.foreign import Arrays

IGNORED = -100  # the label of a token that is not trained
_LABELS = np.iinfo(np.int32)
_NONE: npt.NDArray[Any] = np.zeros(0, np.int8)


def in_step(name: str, first: Arrays, *others: Arrays) -> Iterator[tuple[npt.NDArray[Any], ...]]:
    """The parts of the first array, each with the same values of the others.

    FormatError, about ``name``, where another one ends before the first.
    """
    cutters = [_Cutter(name, other) for other in others]
    for part in first:
        yield part, *(cutter.take(len(part)) for cutter in cutters)


class _Cutter:
    """An array that comes in parts, cut into others."""

    def __init__(self, name: str, parts: Arrays) -> None:
        self._name, self._parts, self._rest = name, parts, next(parts, _NONE)

    def take(self, count: int) -> npt.NDArray[Any]:
        parts, missing = [self._rest[:count]], count - len(self._rest)
        self._rest = self._rest[count:]
        while missing > 0:
            part = next(self._parts, None)
            if part is None:
                raise FormatError(f"{self._name}: {missing} values are missing: it is cut off")
            parts.append(part[:missing])
            self._rest, missing = part[missing:], missing - len(part)
        filled = [part for part in parts if len(part)] or parts[:1]
        return filled[0] if len(filled) == 1 else np.concatenate(filled)


def tracks_of_labels(
    name: str, pairs: Callable[[], Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]]
) -> Mapping[str, Callable[[], Arrays]]:
    """The track that labels beside ids are: a mask, where each is the id or -100, else labels.

    ``pairs`` gives ids and labels in parts, each time anew; they are read once here. FormatError
    for a label that 32 bits do not hold.
    """
    for ids, labels in pairs():
        if labels.size and not _LABELS.min <= labels.min() <= labels.max() <= _LABELS.max:
            wrong = labels[(labels < _LABELS.min) | (labels > _LABELS.max)][0]
            raise FormatError(f"{name}: the label {wrong} does not fit int32")
        if ((labels != ids) & (labels != IGNORED)).any():
            return {"labels": lambda: (labels.astype("<i4") for _, labels in pairs())}
    return {"mask": lambda: ((labels != IGNORED).astype("u1") for _, labels in pairs())}


def shifted(mask: npt.NDArray[Any], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int8]:
    """A mask [n] as one of the tokens that predict: value i says whether i + 1 is trained.

    ``ends`` int64 [D] are where documents end; the last token of a document predicts none.
    """
    moved = np.zeros(len(mask), np.int8)
    moved[:-1] = mask[1:]
    moved[ends[ends > 0] - 1] = 0
    return moved


def unshifted(mask: npt.NDArray[Any], begins: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """The reverse of ``shifted``; ``begins`` int64 [D] are where documents begin."""
    moved = np.zeros(len(mask), np.uint8)
    moved[1:] = mask[:-1]
    moved[begins[begins < len(mask)]] = 0
    return moved

"""The text of a document, without what frames it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tokpack.indexed.track import role_name
from tokpack.report.sources import own_manifest

if TYPE_CHECKING:
    from tokpack.indexed import MMapIndexedDataset
    from tokpack.report.spelling import Spelling


class RoleSpan(NamedTuple):
    """Tokens [begin, end) of one role, "" where none speaks."""

    role: str
    begin: int
    end: int


def turns_of(dataset: MMapIndexedDataset, number: int, begin: int, end: int) -> list[RoleSpan]:
    """The tokens [begin, end) of document ``number`` by who speaks, counted from ``begin``.

    Two messages of one role that follow each other are one turn. All of them are of no role where
    the dataset has no roles. Raises as its ``track``.
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

    Ids that the manifest says to stand around each document (EOD, BOS) are left out where they are
    there; without such a word the EOD at the end is. FormatError for a broken index.
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

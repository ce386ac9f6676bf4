"""What the manifest of a run's dataset says: counts, and what was read of each input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.encoding.piece import SOURCE_COLUMNS
from tokpack.errors import OutputError
from tokpack.indexed import Manifest
from tokpack.indexed.manifest import CHAT_COUNTS, ROLES, now, without_zeros

if TYPE_CHECKING:
    from tokpack.encoding.piece import Job
    from tokpack.encoding.plan import Plan

# What a manifest counts, of all and of each input, and the columns of a piece that count it.
_COUNTED = {
    "records": "records",
    "documents": "documents",
    "sequences": "sequences",
    "tokens": "tokens",
    "empty": "empty",
    "rejected": "rejected",
    "text_bytes": "key_bytes",
    "left_out": "left_out",
    "mapped_out": "mapped_out",
    "mapped_in": "mapped_in",
    "truncated": "truncated",
    "nans": "nans",
    **{name: name for name in CHAT_COUNTS},
}


class InputFacts(Sequence[dict[str, Any]]):
    """What a manifest says of each input, made when it is asked for: there may be a million.

    ``counts`` are int64 [sources, columns]: those of _COUNTED, and special tokens.
    """

    def __init__(
        self, plan: Plan, contents: Sequence[str | None], counts: npt.NDArray[np.int64]
    ) -> None:
        self._plan = plan
        self._contents = contents
        self._counts = counts

    def __len__(self) -> int:
        return len(self._counts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        source = self._plan.sources[index]
        *counts, special, trained = self._counts[index].tolist()
        return {
            "name": source.name,
            "size": source.size,
            "format": source.format,
            "compression": source.compression,
            "fingerprint": self._plan.fingerprints[index],
            "mtime_ns": source.mtime_ns,
            "content": self._contents[index],
            **without_zeros(dict(zip(_COUNTED, counts, strict=True))),
            "special_tokens": special,
            **({"trained": trained} if trained else {}),
        }

    @property
    def total(self) -> dict[str, int]:
        """The counts of all inputs."""
        return dict(zip(_COUNTED, self._counts.sum(axis=0).tolist(), strict=False))


def manifest_of(job: Job, plan: Plan, key: str, inputs: InputFacts, **files: Any) -> Manifest:
    """The manifest of a key; ``files`` are its facts that are not counts of ``inputs``."""
    total: dict[str, Any] = inputs.total
    return Manifest(
        tokpack_version=plan.version,
        created=now(),
        tokenizer=plan.tokenizer,
        options={**plan.options, "key": key, "on_error": job.options.on_error},
        inputs=inputs,
        dtype=job.setup.dtype,
        **files,
        **total,
    )


def counts_of(job: Job, sums: npt.NDArray[np.int64], index: int) -> npt.NDArray[np.int64]:
    """Of key number ``index`` and each row of ``sums``: _COUNTED, special tokens, trained tokens.

    Raises OutputError when they do not add up.
    """
    counts = sums[
        :,
        [
            SOURCE_COLUMNS.index(column)
            if column in SOURCE_COLUMNS
            else job.key_column(index, column)
            for column in (*_COUNTED.values(), "special")
        ],
    ]
    trained = [SOURCE_COLUMNS.index(f"trained of {role}") for role in ROLES]
    of = dict(zip(_COUNTED, counts.T, strict=False))
    rows = of["records"] - of["left_out"] - of["mapped_out"] + of["mapped_in"]
    wrong = np.flatnonzero(rows != of["documents"] + of["empty"] + of["rejected"])
    if wrong.size:
        counted = {name: int(column[wrong[0]]) for name, column in of.items()}
        raise OutputError(
            f"the counts do not add up, so nothing was written: {counted}; this is a defect in "
            "tokpack, please report it"
        )
    return np.column_stack([counts, sums[:, trained].sum(axis=1)])

"""Which shards a task of a job array makes, by the environment variables of its scheduler."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from tokpack.errors import UsageError

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


class _Variable(NamedTuple):
    name: str
    first: int  # the number of the first task of an array


# Those of SGE and LSF count from 1; outside of an array they are "undefined" and 0.
_VARIABLES = (
    _Variable("SLURM_ARRAY_TASK_ID", 0),
    _Variable("JOB_COMPLETION_INDEX", 0),  # an Indexed Job of Kubernetes
    _Variable("PBS_ARRAY_INDEX", 0),
    _Variable("PBS_ARRAYID", 0),
    _Variable("LSB_JOBINDEX", 1),
    _Variable("SGE_TASK_ID", 1),
)


def numbers_of(text: str, shards: int) -> list[int]:
    """The shards that ``--shard TEXT`` means: ``17``, ``3,5-7``, ``auto``. UsageError."""
    if text == "auto":
        return _of_task(shards)
    numbers: list[int] = []
    for word in text.split(","):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            raise UsageError(f"--shard {text}: not a number, a list such as 3,5-7, or auto")
        begin, end = int(match[1]), int(match[2] or match[1])
        if end < begin or end >= shards:
            raise UsageError(f"--shard {text}: the plan has the shards 0 to {shards - 1}")
        numbers += range(begin, end + 1)
    return list(dict.fromkeys(numbers))


def _of_task(shards: int) -> list[int]:
    for variable in _VARIABLES:
        text = os.environ.get(variable.name, "")
        if not text.isdecimal() or int(text) < variable.first:
            continue
        number = int(text) - variable.first
        if number >= shards:
            raise UsageError(
                f"{variable.name} is {text}: the plan has {shards} shards, so the array is too long"
            )
        return list(range(number, shards, _stride(shards)))
    names = ", ".join(variable.name for variable in _VARIABLES)
    raise UsageError(f"--shard auto: none of {names} is set: give a number, or start a job array")


def _stride(shards: int) -> int:
    """How many tasks the array has, where each makes several; else the number of shards."""
    words = [os.environ.get(f"SLURM_ARRAY_TASK_{name}", "") for name in ("MIN", "MAX", "COUNT")]
    if not all(word.isdecimal() for word in words):
        return shards
    first, last, count = map(int, words)
    return count if first == 0 and last == count - 1 else shards

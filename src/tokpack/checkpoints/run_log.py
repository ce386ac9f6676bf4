"""The log of a training run, read back: what it was, and how it went."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokpack.errors import FormatError, InputError
from tokpack.files.foreign import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Record = dict[str, Any]


@dataclass
class RunLog:
    """The lines of log.jsonl, without those of steps that were made again after a resume.

    ``begins`` are in order, each at another iteration; ``steps`` are the records of steps by
    their iteration; ``evaluations`` and ``saves`` are in order.
    """

    begins: list[Record] = field(default_factory=list)
    steps: dict[int, Record] = field(default_factory=dict)
    evaluations: list[Record] = field(default_factory=list)
    saves: list[Record] = field(default_factory=list)

    def _add(self, record: Record) -> None:
        event, iteration = record.get("event"), record["iteration"]
        if event == "begin":
            self.begins = [one for one in self.begins if one["iteration"] < iteration]
            self.steps = {at: one for at, one in self.steps.items() if at <= iteration}
            self.evaluations = [one for one in self.evaluations if one["iteration"] <= iteration]
            self.saves = [one for one in self.saves if one["iteration"] <= iteration]
            self.begins.append(record)
        elif event == "step":
            self.steps[iteration] = record
        elif event == "evaluation":
            self.evaluations.append(record)
        elif event == "save":
            self.saves.append(record)


def read_log(path: Path) -> RunLog:
    """Read log.jsonl. InputError where it cannot be read; lines that are cut off are left out."""
    log = RunLog()
    for record in _records(path):
        log._add(record)
    return log


def _records(path: Path) -> Iterator[Record]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                with contextlib.suppress(FormatError):
                    values = parse_json(line, path)
                    if isinstance(values, dict) and isinstance(values.get("iteration"), int):
                        yield values
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None

"""The history of a run: its log read back, its samples, and the steps that used them. No torch."""

from __future__ import annotations

import contextlib
import math
import os
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tokpack.display import brief, shown
from tokpack.errors import FormatError, InputError, UsageError
from tokpack.look.page import is_page
from tokpack.quantities import counted
from tokpack.samples import fingerprint_of
from tokpack.samples.blend import entries, is_blend_file, open_blend, plan_of
from tokpack.storage import is_url, joined
from tokpack.storage.disk import (
    MAX_COUNT,
    Kind,
    begins_with,
    check_outputs,
    is_sealed,
    parse_json,
    replace_file,
    sealed,
)
from tokpack.tokenizers import TokenizerFiles

from ..config.config import Config
from ..config.data import spec_of_config
from ..config.schedule import RunPhase, Schedule, Steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.samples import BlendedDataset, GPTDataset
    from tokpack.samples.blend import BlendPlan, BlendSpec

    from ..config.schedule import Step

    Samples = GPTDataset | BlendedDataset


LOG = "log.jsonl"
_COUNTS = {"iteration", "consumed_samples", "data_parallel_size"}
Record = dict[str, Any]


@dataclass
class RunLog:
    """The lines of log.jsonl, without the lines of steps that were made again after a resume.

    ``begins`` are in order, each at another iteration; ``steps`` are the records of steps by
    iteration; ``evaluations`` and ``saves`` are in order.
    """

    begins: list[Record] = field(default_factory=list)
    steps: dict[int, Record] = field(default_factory=dict)
    evaluations: list[Record] = field(default_factory=list)
    saves: list[Record] = field(default_factory=list)

    def losses(self) -> dict[str, list[tuple[float, float]]]:
        """The losses as (iteration, loss): those of steps under "", those of an evaluated set under
        its name.
        """
        curves: dict[str, list[tuple[float, float]]] = {"": []}
        for record in (*(self.steps[at] for at in sorted(self.steps)), *self.evaluations):
            loss = record.get("loss")
            if isinstance(loss, (int, float)) and math.isfinite(loss):
                points = curves.setdefault(str(record.get("name", "")), [])
                points.append((record["iteration"], float(loss)))
        return curves

    def _add(self, record: Record) -> None:
        event, iteration = record.get("event"), record["iteration"]
        if event == "begin":
            self.begins = [one for one in self.begins if one["iteration"] < iteration] + [record]
            self.steps = {at: one for at, one in self.steps.items() if at <= iteration}
            self.evaluations = [one for one in self.evaluations if one["iteration"] <= iteration]
            self.saves = [one for one in self.saves if one["iteration"] <= iteration]
        elif event == "step":
            self.steps[iteration] = record
        elif event == "evaluation":
            self.evaluations.append(record)
        elif event == "save":
            self.saves.append(record)


def read_log(path: Path) -> RunLog:
    """The log of a run, read from log.jsonl. A line that is cut off is left out.

    InputError if it cannot be read, FormatError for a count that is not valid.
    """
    log = RunLog()
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                values = None
                with contextlib.suppress(FormatError):
                    values = parse_json(line, path)
                if not isinstance(values, dict) or "iteration" not in values:
                    continue
                for name in _COUNTS & values.keys():
                    value = values[name]
                    if type(value) is not int or not 0 <= value <= MAX_COUNT:
                        raise FormatError(
                            f"{path}:{number}: {name} is {brief(value)}, expected a count"
                        )
                log._add(values)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    return log


class LogRecord(NamedTuple):
    """The record of the log that covers the steps ``first`` to ``last`` together."""

    first: int
    last: int
    record: Record

    @property
    def loss(self) -> float | None:
        """The mean loss of these steps, in nats per token, or None if the record has none."""
        loss = self.record.get("loss")
        return loss if isinstance(loss, float) else None


@dataclass(frozen=True)
class RunHistory:
    """The plan of a run's data, the samples it trained on, its steps, and its log.

    ``tokenizer`` names the files of a tokenizer if no manifest names it.
    """

    plan: BlendPlan
    train: Samples
    steps: Steps
    log: RunLog
    tokenizer: TokenizerFiles

    def step(self, number: int) -> Step:
        """Step ``number``, from 1. UsageError if there is no such step.

        FormatError if the log has other samples for it than the configuration gives.
        """
        step = self.steps[number]
        logged = self.log.steps.get(number, {}).get("consumed_samples", step.samples.stop)
        if logged != step.samples.stop:
            raise FormatError(
                f"step {number:,} ends at sample {step.samples.stop:,} by the configuration, at "
                f"{logged:,} by the log: they do not belong together"
            )
        return step

    def logged(self, number: int) -> LogRecord | None:
        """The log record that covers a step, or None if there is none."""
        edges = sorted({*self.log.steps, *(begin["iteration"] for begin in self.log.begins)})
        place = bisect_left(edges, number)
        if place == len(edges) or edges[place] not in self.log.steps:
            return None
        first = edges[place - 1] + 1 if place else 1
        return LogRecord(first, edges[place], self.log.steps[edges[place]])

    def describe(self, step: Step) -> str:
        """The samples of a step, and its loss from the log: a mean since the previous line."""
        words = (
            f"samples {step.first:,} to {step.samples.stop - 1:,}, micro batches of "
            f"{step.micro:,} on {counted(step.ranks, 'rank')}"
        )
        logged = self.logged(step.number)
        if logged is None or logged.loss is None:
            return words
        many = (
            f" in steps {logged.first:,} to {logged.last:,}" if logged.first < logged.last else ""
        )
        return f"{words}, loss {logged.loss:.4f}{many}"

    @property
    def steps_made(self) -> int:
        """How many steps were made, by the log."""
        records = (*self.log.begins[-1:], *self.log.saves, *self.log.steps.values())
        return max((record["iteration"] for record in records), default=0)


def read_history(folder: str | os.PathLike[str]) -> RunHistory:
    """The history of the run that writes, or wrote, log.jsonl into ``folder``.

    InputError if there is no log, or if the data is missing or is not the data that it was trained
    on.
    """
    path = Path(folder) / LOG
    if not path.exists():
        raise InputError(
            f"{folder}: no {LOG} in it: name the folder that `tokpack train` was given with "
            "--log-dir, else with --save"
        )
    log = read_log(path)
    begins = _begins(log, path)
    last = _config(begins[-1], path)
    try:
        plan, train = open_training(spec_of_config(last))
    except InputError as error:
        names = (*last.data_path, *last.train_data_path)
        if all(is_url(name) or Path(name).is_absolute() for name in names):
            raise
        started = f": {shown(folder)}" if (folder := _started_in(begins[-1])) else ""
        raise InputError(
            f"{error}; the paths of {path} are relative to the folder in which the run was started"
            f"{started}"
        ) from None
    _check_data(path, train, [*begins, *log.saves])
    phases = [_phase(record, path, len(train)) for record in begins]
    files = last.tokenizer_files if train.tokenizer is None else TokenizerFiles()
    return RunHistory(plan, train, Steps(phases), log, files)


def spec_of_run(log: RunLog, path: Path) -> BlendSpec:
    """The data that a run asked for; ``log`` was read from ``path``, and nothing is opened."""
    return spec_of_config(_config(_begins(log, path)[-1], path))


def _begins(log: RunLog, path: Path) -> list[Record]:
    """The begin records that have a configuration; InputError if there is none."""
    begins = [record for record in log.begins if isinstance(record.get("config"), dict)]
    if not begins:
        raise InputError(f"{path}: has no configuration: an older tokpack wrote it")
    return begins


def open_training(spec: BlendSpec) -> tuple[BlendPlan, Samples]:
    """The data of training alone: data of the other parts may be missing."""
    plan = plan_of(spec.changed(allow_empty=True, valid_samples=0, test_samples=0))
    return plan, open_blend(plan).train


def _config(record: Record, path: Path) -> Config:
    """The configuration in a begin record, with paths from the folder in which the run was started,
    if that is known and still exists.
    """
    try:
        config, folder = Config.from_dict(record["config"]), _started_in(record)
        if not os.path.isdir(folder) or os.path.samefile(folder, os.curdir):
            return config
        names = ("data_path", "train_data_path", "valid_data_path", "test_data_path")
        paths: Record = {name: tuple(_from(folder, getattr(config, name))) for name in names}
        for name in ("data_cache_path", "vocab_file", "merge_file", "tokenizer_model"):
            file = getattr(config, name) and joined(folder, getattr(config, name))
            if file and (name != "tokenizer_model" or os.path.exists(file)):  # else a name
                paths[name] = file
        return replace(config, **paths)
    except UsageError as error:
        raise FormatError(f"{path}: {error}") from None


def _started_in(begin: Record) -> str:
    """The folder in which a run was started; "" if its log does not say so, because it is old."""
    folder = begin.get("folder")
    return folder if isinstance(folder, str) and "\0" not in folder else ""


def _from(folder: str, words: Sequence[str]) -> Iterator[str]:
    """The words of a request for data, with paths from a folder."""
    if any(map(is_blend_file, words)) or not words:
        yield from (joined(folder, word) for word in words)
        return
    for entry in entries(words):
        if entry.weight is not None:
            yield str(entry.weight)
        yield joined(folder, entry.prefix)


def _phase(begin: Record, path: Path, samples: int) -> RunPhase:
    numbers = {"iteration": 0, "consumed_samples": 0, "data_parallel_size": 1}
    for name, least in numbers.items():
        if begin.get(name, -1) < least:
            raise FormatError(f"{path}: a begin has {name} {brief(begin.get(name))}")
    config, (steps, consumed, ranks) = _config(begin, path), (begin[name] for name in numbers)
    return RunPhase(steps, consumed, Schedule(config, samples), config.micro_batch_size, ranks)


def _check_data(path: Path, train: Samples, records: list[Record]) -> None:
    """Raise InputError if the samples are not the ones that the log says the run has used."""
    candidates = [record for record in records if "fingerprint" in record]
    for record in sorted(candidates, key=lambda record: record["iteration"])[-1:]:
        if record["fingerprint"] != fingerprint_of(train, record.get("consumed_samples", 0)):
            raise InputError(
                f"{path}: its samples are not those of {train.path_prefix} as it is now: "
                "the data has changed since, or another blend has its name"
            )


# The files that a training run writes beside its checkpoints, and which of them may be replaced.

_MAKER = "tokpack train"


@dataclass(frozen=True)
class TrainingResult:
    """How far a run came, and its results.

    ``losses`` are the last ones, in nats per token: "training", as in the last log line, and those
    of the evaluated sets by name. ``checkpoint`` is the checkpoint of the last step, if that was
    saved.
    """

    iteration: int
    consumed_samples: int
    losses: dict[str, float]
    checkpoint: Path | None


def _is_log(path: str) -> bool:
    return os.path.getsize(path) == 0 or begins_with(path, b'{"event": "begin"')


_is_config = partial(is_sealed, maker=_MAKER)
CONFIG = Kind("a configuration as tokpack train wrote it", _is_config, kept=False, beside=True)
LOG_KIND = Kind("a log of tokpack train", _is_log, kept=False, beside=True)
_is_plot = partial(is_page, command="train")
PLOT = Kind("a plot of tokpack train", _is_plot, kept=False, beside=True)


def save_config(path: Path, text: str, inputs: Sequence[str]) -> None:
    """Write the YAML of a run's configuration; a file that the run itself reads is left as it
    is.
    """
    if path.exists() and any(os.path.exists(name) and path.samefile(name) for name in inputs):
        return
    check_outputs([(str(path), CONFIG)], (), overwrite=False)
    replace_file(path, [sealed(text, _MAKER).encode()])


def check_log(path: Path, inputs: Sequence[str]) -> None:
    """Raise OutputError if ``path`` is a file that is not the log of a run."""
    check_outputs([(str(path), LOG_KIND)], inputs, overwrite=False)


def save_plot(path: Path, page: str) -> None:
    """Write the plot of a run. OutputError."""
    check_outputs([(str(path), PLOT)], (), overwrite=False)
    replace_file(path, [page.encode()])

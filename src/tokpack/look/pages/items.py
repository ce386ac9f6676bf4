"""The items that pages show: datasets, blends and runs, opened on demand."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.dataset import MMapIndexedDataset, selection_dtype
from tokpack.dataset.format import document_lengths
from tokpack.dataset.overview import LengthStats, measure
from tokpack.dataset.sources import Sources, doubt
from tokpack.dataset.spelling import Spelling, find_tokenizer
from tokpack.dataset.table import import_parquet
from tokpack.encoding import UNFINISHED_SUFFIX, begun_prefix, run_status
from tokpack.errors import InputError, TokpackError, UsageError, worded
from tokpack.look import Stats, stats
from tokpack.look.facts import tokenizer_name
from tokpack.look.pages.run_pages import RunPoints
from tokpack.samples.blend import find_prefix, is_blend_file, plan_of, read_words
from tokpack.shards import ShardPlan, plan_path, prefix_of, survey
from tokpack.storage import is_url
from tokpack.storage.disk import did_you_mean
from tokpack.wall import entry_point

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from tokpack.encoding import RunStatus
    from tokpack.samples.blend import BlendPlan
    from tokpack.shards import ShardStatus
    from tokpack.tokenizers import TokenizerFiles
    from tokpack.trainer.checkpoints.history import RunHistory, RunLog, Samples


_LOG = "log.jsonl"  # a folder with this file is that of a training run

_ENDS = (".bin", ".idx", ".json", "_text_document.bin", "_text_document.idx")  # of a dataset
TOKENS = "tokens"  # every dataset can be sorted by this


def _runs() -> Any:
    """The trainer's history of runs."""
    return entry_point("history")


class Listing:
    """The documents of a dataset, filtered and sorted; the last results are kept."""

    def __init__(self, dataset: MMapIndexedDataset) -> None:
        self._dataset = dataset
        self._chosen = lru_cache(1)(self._evaluate)
        self._sorted = lru_cache(1)(self._sort)

    def numbers(self, where: str, sort: str) -> range | npt.NDArray[Any]:
        """The documents that ``where`` chooses, as for ``select``; all for "".

        ``sort`` is a column of the table, or ``tokens``; with - before it the highest come first,
        and "" is the order of the dataset. UsageError for an expression that cannot be evaluated or
        a column that cannot be sorted by, InputError without a table.
        """
        if sort:
            return self._sorted(where, sort)
        return self._chosen(where) if where else range(self._dataset.documents)

    def _evaluate(self, where: str) -> npt.NDArray[Any]:
        from tokpack.documents import documents_where  # needed only for filters

        numbers = documents_where(self._dataset, where)
        return numbers.astype(selection_dtype(self._dataset.documents))

    def _sort(self, where: str, sort: str) -> npt.NDArray[Any]:
        column, descending = sort.removeprefix("-"), sort.startswith("-")
        chosen: Any = self._chosen(where) if where else slice(None)
        if column == TOKENS:
            values = document_lengths(self._dataset.sizes, self._dataset.doc_idx)[chosen]
            order = np.argsort(~values if descending else values, kind="stable")
        else:
            order = _order(self._dataset.table([column])[column], chosen, descending)
        numbers: npt.NDArray[Any] = chosen[order] if where else order
        return numbers.astype(selection_dtype(self._dataset.documents))


def _order(values: Any, chosen: Any, descending: bool) -> npt.NDArray[Any]:
    """Places in an Arrow column, by its values; null comes last."""
    arrow = import_parquet()
    from pyarrow import compute

    if not isinstance(chosen, slice):
        values = values.take(arrow.array(chosen))
    way = "descending" if descending else "ascending"
    try:
        order: npt.NDArray[Any] = compute.sort_indices(values, sort_keys=[("", way)]).to_numpy()
    except (NotImplementedError, ValueError) as error:  # the bases of Arrow's errors
        raise UsageError(f"documents cannot be sorted by {values.type}: {error}") from None
    return order


_SILENT_SECONDS = 60


class DatasetItem:
    """A dataset. Opening takes constant time."""

    kind = "dataset"

    def __init__(self, prefix: str, tokenizer: TokenizerFiles) -> None:
        self.name, self._given = prefix, tokenizer
        self.dataset = MMapIndexedDataset(prefix)

    @cached_property
    def sources(self) -> Sources:
        """The origins of its documents."""
        return Sources(self.dataset)

    @cached_property
    def _spelling(self) -> tuple[Spelling | None, str]:
        lookup = find_tokenizer(self.dataset, **self._given)
        flags = {name: f"--{name.replace('_', '-')}" for name in self._given}
        note = worded(lookup.note, flags)  # for the user of `tokpack view`
        return Spelling(lookup.tokenizer) if lookup.tokenizer else None, note

    @property
    def spelling(self) -> Spelling | None:
        """Its tokens as text; None if its tokenizer is not known."""
        return self._spelling[0]

    @property
    def tokenizer(self) -> str:
        """The name of its tokenizer in the manifest."""
        with suppress(TokpackError):  # a broken manifest: the dataset's page says so
            return tokenizer_name(self.dataset.tokenizer)
        return tokenizer_name(None)

    @property
    def notes(self) -> list[str]:
        """What a user should know about its manifest and its tokenizer."""
        return [note for note in (doubt(self.dataset), self._spelling[1]) if note]

    @cached_property
    def listing(self) -> Listing:
        """Its documents, filtered and sorted."""
        return Listing(self.dataset)

    @cached_property
    def measures(self) -> LengthStats:
        """The lengths of its documents; reads every length."""
        return measure(self.dataset)

    @cached_property
    def stats(self) -> Stats:
        """All figures; reads every token."""
        return stats(self.dataset, self.spelling)


class BlendItem:
    """A blend file. Its datasets are opened, and their lengths read, when it is looked at."""

    kind = "blend"

    def __init__(self, path: str) -> None:
        self.name, self.spec = path, read_words([path])

    @property
    def prefixes(self) -> Iterator[str]:
        """The datasets that it names."""
        return (entry.prefix for _, entries in self.spec.groups() for entry in entries)

    @cached_property
    def plan(self) -> BlendPlan:
        """Its plan."""
        return plan_of(self.spec)

    @cached_property
    def train(self) -> Samples:
        """The samples of training."""
        return _runs().open_training(self.spec)[1]

    history: RunHistory | None = None


class RunItem:
    """A training run, by the folder of its log; the log may grow meanwhile."""

    kind = "run"

    def __init__(self, folder: str) -> None:
        self.name, self._path = folder, Path(folder) / _LOG
        self._read: tuple[tuple[int, int], RunPoints] | None = None
        self._history: RunHistory | None = None

    @property
    def log(self) -> RunLog:
        """Its log as it is now."""
        return self.points.log

    @property
    def points(self) -> RunPoints:
        """The points of its log as it is now."""
        stat, read = self._path.stat(), self._read
        state = stat.st_size, stat.st_mtime_ns
        if read is None or read[0] != state:
            read = self._read = state, RunPoints(_runs().read_log(self._path))
        return read[1]

    @property
    def state(self) -> str:
        """Finished, running, or stopped (silent for much longer than usual)."""
        points = self.points
        if points.end is not None and points.last.get("iteration", 0) >= points.end:
            return "finished"
        last_steps, pace = points.steps[-2:], points.last.get("seconds_per_step")
        usual = pace * (last_steps[-1] - last_steps[0]) if isinstance(pace, float) else 0.0
        silent = time.time() - self._path.stat().st_mtime
        return "running" if silent < max(_SILENT_SECONDS, 10 * usual) else "stopped"

    @property
    def prefixes(self) -> Iterator[str]:
        """The datasets that its last configuration names, if it is known."""
        try:
            groups = _runs().spec_of_run(self.log, self._path).groups()
        except TokpackError:
            return iter(())
        return (entry.prefix for _, entries in groups for entry in entries)

    @property
    def history(self) -> RunHistory:
        """Its samples and steps. InputError if the data does not exist."""
        log = self.log
        if self._history is None or len(self._history.log.begins) != len(log.begins):
            self._history = _runs().read_history(self._path.parent)
        return replace(self._history, log=log)

    @property
    def plan(self) -> BlendPlan:
        """The plan of its data."""
        plan: BlendPlan = self.history.plan
        return plan

    @property
    def train(self) -> Samples:
        """The samples of training."""
        return self.history.train


class EncodeItem:
    """A dataset that is being made, by a run on this machine or in shards by several."""

    kind = "encode"

    def __init__(self, prefix: str, tokenizer: TokenizerFiles) -> None:
        self.name, self._given = prefix, tokenizer
        self._names = {prefix}
        self._statuses: dict[str, list[ShardStatus]] = {}  # the last ones, by plan id

    def look(self) -> RunStatus | tuple[ShardPlan, list[ShardStatus]] | None:
        """The current state of the run or the shards; None if there is no run any more.

        InputError, FormatError and ResumeError.
        """
        run = run_status(self.name)
        if run is not None:
            keys = run.plan.options.get("keys", ()) if run.plan else ()
            self._names |= {f"{self.name}_{key}" for key in keys}
            return run
        if _is_planned(self.name) and not list(self.datasets()):
            plan = ShardPlan.load(self.name, any_version=True)
            statuses = survey(plan, self.name, self._statuses.get(plan.id, ()))
            self._statuses = {plan.id: statuses}
            self._names |= set(plan.whole(self.name).values())
            return plan, statuses
        return None

    def datasets(self) -> Iterator[DatasetItem]:
        """The resulting datasets, if they exist."""
        for name in sorted(self._names):
            with suppress(TokpackError):
                yield DatasetItem(find_prefix(name), self._given)


Item = DatasetItem | BlendItem | RunItem | EncodeItem


def open_items(paths: Sequence[str], tokenizer: TokenizerFiles) -> list[Item]:
    """The items that were named, followed by the existing datasets of blends and runs.

    InputError and FormatError for anything else.
    """
    items = [one for path in paths for one in _open(path, tokenizer)]
    names = {item.name for item in items}
    for item in list(items):
        for name in item.prefixes if isinstance(item, BlendItem | RunItem) else ():
            try:
                dataset = DatasetItem(find_prefix(name), tokenizer)
            except TokpackError:
                continue  # the blend's page says what is wrong
            if dataset.name not in names:
                names.add(dataset.name)
                items.append(dataset)
    return items


def _open(path: str, tokenizer: TokenizerFiles) -> list[Item]:
    """The items at a path: perhaps a dataset, and a run that is making it again."""
    if is_blend_file(path):
        return [BlendItem(path)]
    if (Path(path) / _LOG).exists():
        return [RunItem(path)]
    begun = begun_prefix(path)
    prefix = prefix_of(path) if begun is None else begun
    is_there = MMapIndexedDataset.exists(prefix)
    if begun is not None or (_is_planned(prefix) and not is_there):
        making: list[Item] = [EncodeItem(prefix, tokenizer)]
        return making + ([DatasetItem(find_prefix(prefix), tokenizer)] if is_there else [])
    # A folder of texts often has the same name as the dataset beside it.
    if os.path.isdir(path) and not MMapIndexedDataset.exists(path):
        above = Path(path).absolute().parent
        if (above / _LOG).exists():
            raise InputError(
                f"{path}: a checkpoint; open its run, the folder {os.path.relpath(above)}"
            )
        if inside := list(_inside(path, tokenizer)):
            return inside
        raise InputError(f"{path}: no dataset, blend or run in this folder")
    if not is_url(path) and not any(os.path.lexists(prefix + end) for end in ("", *_ENDS)):
        hint = did_you_mean(prefix, ".idx") or did_you_mean(path)
        raise InputError(f"{path}: no dataset, blend, run or folder has this name{hint}")
    return [DatasetItem(find_prefix(path), tokenizer)]


def _inside(folder: str, tokenizer: TokenizerFiles) -> Iterator[Item]:
    """The datasets, blends and runs in a folder."""
    paths = [os.path.normpath(os.path.join(folder, name)) for name in sorted(os.listdir(folder))]
    parts = map(os.path.splitext, paths)
    prefixes = dict.fromkeys(
        stem for stem, end in parts if end in (".idx", ".json", UNFINISHED_SUFFIX)
    )
    data = (one for one in prefixes if begun_prefix(one) or MMapIndexedDataset.exists(one))
    others = (one for one in paths if is_blend_file(one) or (Path(one) / _LOG).is_file())
    for path in (*data, *others):
        with suppress(TokpackError):
            yield from _open(path, tokenizer)


def _is_planned(prefix: str) -> bool:
    return not is_url(prefix) and os.path.exists(plan_path(prefix))

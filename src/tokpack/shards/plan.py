"""The plan of a dataset in shards, ``PREFIX.plan/plan.jsonl``, for all machines that make shards.

The first line says what to make and how; then each shard has a line with its inputs and its parts
of them. Shards are cut by size alone, so that their bytes do not depend on machines.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from tokpack import __version__
from tokpack.dataset import Manifest, bin_path, idx_path, manifest_path, own_tracks
from tokpack.dataset.manifest import MANIFEST
from tokpack.dataset.outputs import TABLE, TRACK
from tokpack.dataset.table import dropped_path, table_path
from tokpack.encoding import (
    REJECTS_KIND,
    EncodeOptions,
    Plan,
    deciding_options,
    described,
    rejects_path,
)
from tokpack.errors import FormatError, InputError, OutputError, ResumeError, UsageError, option
from tokpack.sources import Part, Source
from tokpack.storage import (
    StoredObject,
    TakenError,
    head,
    look,
    remove,
    shown,
    small_files,
    storage_of,
    versions_of,
)
from tokpack.storage import replace as replace_version
from tokpack.storage.disk import DATA, decode, parse_json
from tokpack.tokenizers import TOKENIZER_PATHS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tokpack.encoding import TokenizerSetup
    from tokpack.storage import ListedFile, Version
    from tokpack.storage.disk import Output

PLAN_FORMAT = 1
SUFFIX = ".plan"
NAME = "plan.jsonl"
_DIGITS = 5
_TOGETHER = 3  # the last digits of the numbers of shards that are listed together
_MOST_REPLACED = 100
_ID_BYTES = 90  # from the beginning of a plan to the end of its id
_TIME = re.compile(rb'"mtime_ns": \d+')  # of an input, in a line of the plan


class Work(Protocol):
    """Numbered shards that machines make, each by itself; its methods are those of ShardPlan."""

    @property
    def stage(self) -> str: ...  # what is made, for people
    @property
    def shards(self) -> int: ...
    @property
    def sizes(self) -> list[int]: ...
    def is_current(self, prefix: str) -> bool: ...
    def begins(self, prefix: str) -> list[str]: ...
    def made(self, prefix: str, files: Mapping[str, ListedFile]) -> list[int | None]: ...
    def command(self, prefix: str, which: str) -> list[str]: ...


@dataclass(frozen=True)
class ShardPlan:
    """The plan of ``shards`` datasets, from ``inputs`` files of ``size`` bytes in all.

    ``id`` is the sha256 of the rest except ``replaced``. ``options`` are the EncodeOptions common
    to all machines, ``deciding`` those that determine bytes, from ``deciding_options``, ``names``
    the names of the datasets by key.
    """

    version: str
    options: dict[str, Any]
    deciding: dict[str, Any]
    tokenizer: dict[str, Any]
    names: dict[str, str]
    inputs: int
    size: int
    shards: int
    body: bytes = b""  # a line for each shard
    id: str = ""
    replaced: tuple[str, ...] = field(default=(), compare=False)  # ids of earlier plans here
    stage: ClassVar[str] = "encode"

    @classmethod
    def load(cls, prefix: str, *, any_version: bool = False) -> ShardPlan:
        """The plan of the dataset ``prefix``.

        InputError if there is none, FormatError if it is damaged, ResumeError if it is from another
        version of tokpack and that matters.
        """
        path = plan_path(prefix)
        (content,) = small_files([path])
        if content is None:
            raise InputError(
                f"{shown(path)}: there is no plan: make one with "
                "`tokpack shards plan INPUT... -o PREFIX`"
            )
        first, _, body = content.partition(b"\n")
        values = parse_json(first, shown(path))
        if not isinstance(values, dict) or values.get("format") != PLAN_FORMAT:
            raise FormatError(f"{shown(path)}: not a plan of format {PLAN_FORMAT}")
        plan = replace(decode(cls, values, shown(path)), body=body).identified()
        if plan.id != values.get("id"):
            raise FormatError(f"{shown(path)}: the plan is damaged: its checksum does not match")
        if not plan._is_sound():
            raise FormatError(f"{shown(path)}: the plan cannot be understood")
        if plan.version != __version__ and not any_version:
            raise ResumeError(
                f"{shown(path)} was made by tokpack {plan.version}, this is {__version__}: all "
                "shards need the same version; install that one, or plan again with `tokpack "
                "shards plan --overwrite`"
            )
        return plan

    def identified(self) -> ShardPlan:
        """The same plan with its ``id``."""
        head = json.dumps(self._head(), sort_keys=True).encode()
        return replace(self, id=hashlib.sha256(head + b"\n" + self.body).hexdigest())

    def content(self) -> bytes:
        """The content of its file."""
        return self._first_line + b"\n" + self.body

    def is_same(self, other: ShardPlan) -> bool:
        """Whether another plan makes the same from the same inputs, whatever their times.

        But an input that several shards read must have the same time: see ``shared_sources``.
        """
        bodies = [_TIME.sub(b"", plan.body) for plan in (self, other)]
        heads = [{**plan._head(), "tokenizer": plan._tokenizer} for plan in (self, other)]
        if heads[0] != heads[1] or bodies[0] != bodies[1]:
            return False
        pairs = zip(self.each_shard(), other.each_shard(), strict=True)
        return all(
            not old.begins_inside_source or old.sources[0].mtime_ns == new.sources[0].mtime_ns
            for old, new in pairs
        )

    def is_current(self, prefix: str) -> bool:
        """Whether this is still the plan of the dataset ``prefix``. InputError."""
        begin = self._first_line[:_ID_BYTES]
        return head(plan_path(prefix), len(begin)) == begin

    def difference(self, other: ShardPlan) -> str:
        """How another plan differs from this one, in words."""
        if words := self._common.difference(other._common):
            return words
        if self.shards != other.shards:
            return f"it has {self.shards} shards, this one {other.shards}"
        for mine, its in zip(self.each_shard(), other.each_shard(), strict=True):
            for old, new in zip(mine.sources, its.sources, strict=False):
                if old.name != new.name:
                    return f"it reads {old.name}, this one {new.name}"
                if (old.size, old.mtime_ns) != (new.size, new.mtime_ns):
                    return f"{old.name} has changed since"
        return "options that do not change the bytes differ"

    def check_setup(self, options: EncodeOptions, setup: TokenizerSetup) -> None:
        """Raise ResumeError if this installation would not make the planned bytes."""
        here = replace(
            self._common,
            tokenizer=described(options, setup),
            options=deciding_options(
                options, setup, self.deciding.get("columns"), self.deciding.get("chat")
            ),
        )
        if words := self._common.difference(here):
            raise ResumeError(f"this machine would not make what was planned: {words}")

    @property
    def sizes(self) -> list[int]:
        """The stored bytes that each shard reads."""
        return [shard.bytes for shard in self.each_shard()]

    @property
    def item_size(self) -> int:
        """The bytes of an id: 2 for uint16."""
        return int(self.deciding["dtype"].lstrip("uint")) // 8

    def begins(self, prefix: str) -> list[str]:
        """What the files of shards begin with: of some at a time, since a listing takes long."""
        names = self.whole(prefix).values()
        firsts = range(0, self.shards, 10**_TOGETHER)
        return [self._numbered(name, n)[:-_TOGETHER] for name in names for n in firsts]

    def made(self, prefix: str, files: Mapping[str, ListedFile]) -> list[int | None]:
        """The tokens of each shard, by the size of its .bin among ``files``, None if one misses."""
        wholes, item_size = self.whole(prefix).values(), self.item_size

        def tokens(number: int) -> int | None:
            names = [self._numbered(whole, number) for whole in wholes]
            paths = (manifest_path, bin_path, idx_path)
            if all(path(name) in files for name in names for path in paths):
                return sum(files[bin_path(name)].size for name in names) // item_size
            return None

        return [tokens(number) for number in range(self.shards)]

    @staticmethod
    def command(prefix: str, which: str) -> list[str]:
        """What makes the shards ``which`` is."""
        return ["encode", "--plan", prefix, "--shard", which]

    @property
    def _common(self) -> Plan:
        """The part that the plans of all shards have in common."""
        return Plan(self.version, (), (), self.tokenizer, self.deciding, ())

    def shard(self, number: int) -> Plan:
        """The plan of one shard. UsageError if there is no such shard."""
        if not 0 <= number < self.shards:
            raise UsageError(f"there is no shard {number}: the plan has 0 to {self.shards - 1}")
        return self._shard(self._lines[number], number)

    def each_shard(self) -> Iterator[Plan]:
        """The plans of all shards, in order."""
        for number, line in enumerate(self._lines):
            yield self._shard(line, number)

    def shared_sources(self, shard: Plan) -> set[int]:
        """The sources of a shard that other shards read too: its first, last, both or none."""
        number = shard.options["shard"]
        shared = {0} if shard.begins_inside_source else set()
        if number + 1 < self.shards and self.shard(number + 1).begins_inside_source:
            shared.add(len(shard.sources) - 1)
        return shared

    def prefixes(self, prefix: str, number: int) -> dict[str, str]:
        """The datasets of a shard, by key; ``prefix`` is that of the plan."""
        return {key: self._numbered(name, number) for key, name in self.whole(prefix).items()}

    def whole(self, prefix: str) -> dict[str, str]:
        """The datasets that consist of all shards, by key."""
        return {key: beside(prefix, name) for key, name in self.names.items()}

    def outputs(self, prefix: str) -> Iterator[Output]:
        """The existing files with the names of shards, their reports, and the whole dataset.

        Manifests come first, so that no shard looks complete if its removal is interrupted. Tracks
        come even before, because only manifests distinguish them from other files.
        """
        tracks = self.encode_options(prefix, 0).token_tracks
        for number in range(self.shards if tracks else 0):
            for name in self.prefixes(prefix, number).values():
                yield from ((path, TRACK) for path in own_tracks(name))
        for name in self.whole(prefix).values():
            yield manifest_path(name), MANIFEST
        begins = [f"{plan_folder(prefix)}/", f"{prefix}-"]
        begins += [f"{name}-" for name in self.whole(prefix).values()]
        there = storage_of(prefix).listed(*begins)
        for number in range(self.shards):
            files = [(report_path(prefix, number), DATA)]
            for name in self.prefixes(prefix, number).values():
                files += [(manifest_path(name), MANIFEST), (idx_path(name), DATA)]
                files += [(bin_path(name), DATA), (table_path(name), TABLE)]
                files.append((dropped_path(name), TABLE))
            files.append((rejects_path(self.encode_options(prefix, number)), REJECTS_KIND))
            yield from (file for file in files if file[0] in there)

    def files(self) -> Iterator[str]:
        """The files that making it reads: inputs, and what its options name of a tokenizer."""
        yield from (source.path for shard in self.each_shard() for source in shard.sources)
        yield from filter(None, map(self.options.get, TOKENIZER_PATHS))

    def encode_options(self, prefix: str, number: int, **local: Any) -> EncodeOptions:
        """The request for one shard; each machine may choose ``local`` options."""
        names = self.prefixes(prefix, number)
        first = next(iter(names.values()))
        try:
            return EncodeOptions(
                **{**self.options, "keys": tuple(self.options["keys"])},
                inputs=(plan_path(prefix),),
                output=first if len(names) == 1 else self._numbered(prefix, number),
                output_names=names,
                **local,
            )
        except (KeyError, TypeError):
            where = shown(plan_path(prefix))
            raise FormatError(f"{where}: its options cannot be understood") from None

    def _numbered(self, name: str, number: int) -> str:
        return f"{name}-{number:0{max(_DIGITS, len(str(self.shards - 1)))}d}"

    @property
    def _tokenizer(self) -> dict[str, Any]:
        """The tokenizer, wherever its files lie."""
        return {key: value for key, value in self.tokenizer.items() if key != "files"}

    @property
    def _first_line(self) -> bytes:
        more = {"replaced": self.replaced} if self.replaced else {}
        return json.dumps({"format": PLAN_FORMAT, "id": self.id, **self._head(), **more}).encode()

    def _head(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _HEAD}

    @cached_property
    def _lines(self) -> list[bytes]:
        return self.body.splitlines()

    def _is_sound(self) -> bool:
        """Whether it names a tokenizer and datasets, no files in other folders, and all shards."""
        return (
            all(isinstance(self.tokenizer.get(name), str) for name in ("name", "sha256"))
            and bool(self.names)
            and not any(not name or "/" in name or "\0" in name for name in self.names.values())
            and self.shards == self.body.count(b"\n") > 0
        )

    def _shard(self, line: bytes, number: int) -> Plan:
        where = f"shard {number} of the plan"
        entry = parse_json(line, where)
        try:
            inputs = [dict(one) for one in entry["inputs"]]
            prints = tuple(str(one.pop("fingerprint")) for one in inputs)
            sources = tuple(Source(**one) for one in inputs)
            parts = tuple(Part(*row) for row in entry["parts"])
            is_sound = bool(parts) and all(part.fits_sources(len(sources)) for part in parts)
            is_sound = is_sound and all(source.is_sound for source in sources)
        except (KeyError, TypeError, ValueError, AttributeError):
            is_sound = False
        if not is_sound:
            raise FormatError(f"{where}: cannot be understood")
        options = {**self.deciding, "plan": self.id, "shard": number}
        return replace(
            self._common, sources=sources, fingerprints=prints, options=options, parts=parts
        )


_NOT_IN_HEAD = ("body", "id", "replaced")
_HEAD = tuple(one.name for one in fields(ShardPlan) if one.name not in _NOT_IN_HEAD)


def beside(prefix: str, name: str) -> str:
    """The path of a name in the folder of the dataset ``prefix``, written as that is."""
    return prefix[: len(prefix) - len(prefix.rpartition("/")[2])] + name


def plan_folder(prefix: str) -> str:
    """The folder of the plan of the dataset ``prefix``, and of what is reported of its shards."""
    return prefix + SUFFIX


def report_path(prefix: str, number: int) -> str:
    """Where the report of a shard of the dataset ``prefix`` lies."""
    return f"{plan_folder(prefix)}/{number:05d}.json"


def plan_path(prefix: str) -> str:
    """Where the plan of the dataset ``prefix`` lies."""
    return f"{plan_folder(prefix)}/{NAME}"


def prefix_of(text: str) -> str:
    """The prefix for a name given by a user: a prefix, its plan's folder, or its plan."""
    return text.removesuffix("/").removesuffix("/" + NAME).removesuffix(SUFFIX)


def load_plan(name: str | os.PathLike[str]) -> tuple[str, ShardPlan]:
    """The prefix that ``name`` stands for, see ``prefix_of``, and its plan. As ShardPlan.load."""
    prefix = prefix_of(os.fspath(name))
    return prefix, ShardPlan.load(prefix)


def save_plan(plan: ShardPlan, prefix: str, *, overwrite: bool = False) -> ShardPlan:
    """Write a plan where all machines find it. Returns the plan to follow.

    An existing equal plan is left alone, even if times of inputs differ. A different one is
    replaced, with its shards, only with ``overwrite``. OutputError.
    """
    path = plan_path(prefix)
    version = versions_of([path])[path]
    old = None if version is None else ShardPlan.load(prefix, any_version=True)
    if old is not None and old.is_same(plan):
        return old
    if old is not None and not overwrite:
        raise OutputError(
            f"{shown(path)} is another plan: {old.difference(plan)}; choose another output, or "
            f"replace it and its shards with {option('overwrite', True)}"
        )
    versions = _existing_outputs(plan, old, prefix, overwrite=overwrite)
    if old is None:
        for file, there in versions.items():
            _removed(file, there)
        if storage_of(path).put(path, plan.content(), "create") is None:  # another one is there now
            return save_plan(plan, prefix, overwrite=overwrite)
        return plan
    # Replace the plan first: runs under the old plan look at it again before they publish a
    # dataset, and notice the change.
    others = [one for one in (*old.replaced, old.id) if one != plan.id]
    plan = replace(plan, replaced=tuple(others[-_MOST_REPLACED:]))
    written = replace_version(path, plan.content(), version)
    if isinstance(written, StoredObject) and not written.ours:
        return plan  # another machine made the same plan, and removes the old shards
    # Remove only what was there before: there may be shards of the new plan by now.
    remove_replaced(plan, {*old.whole(prefix).values(), *plan.whole(prefix).values()})
    for file, there in versions.items():
        with suppress(TakenError):
            _removed(file, there)
    return plan


def _existing_outputs(
    plan: ShardPlan, old: ShardPlan | None, prefix: str, *, overwrite: bool
) -> dict[str, Version]:
    """The existing outputs of the old plan and under the new names, checked for removal."""
    outputs = dict(plan.outputs(prefix)) | dict(old.outputs(prefix) if old else ())
    return look(list(outputs.items()), plan.files(), overwrite=overwrite)


def _removed(file: str, version: Version) -> None:
    if version is not None:
        remove(file, version)


def remove_replaced(plan: ShardPlan, datasets: Iterable[str]) -> None:
    """Remove manifests of plans that this one replaced.

    The run that replaced a plan may have been stopped before it removed them, or a run under the
    old plan may have written one late. They must not be taken for shards of the new plan.
    """
    for path, version in versions_of(map(manifest_path, datasets)).items():
        manifest = None
        with suppress(FormatError):  # not of a plan
            manifest = Manifest.find(path.removesuffix(".json")) if version else None
        if manifest and manifest.options.get("plan") in plan.replaced:
            remove(path, version)


def check_current(plan: Work, prefix: str) -> None:
    """Raise OutputError if ``plan`` is no longer the plan of the dataset ``prefix``."""
    if not plan.is_current(prefix):
        raise OutputError(
            f"{shown(plan_path(prefix))} was replaced or removed meanwhile, so what was made by "
            "the old plan is not written; start again"
        )

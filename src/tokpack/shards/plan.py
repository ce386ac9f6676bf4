"""The plan of a dataset in shards, ``PREFIX.plan/plan.jsonl``, for any machine that makes one.

The first line says what is made, and how; then follows a line for each shard, with its inputs and
the parts of them that it takes. Shards are cut by size alone, so that their bytes do not depend on
the machine that makes them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tokpack import __version__
from tokpack.encoding.options import EncodeOptions
from tokpack.encoding.plan import Plan, deciding_options, described
from tokpack.errors import FormatError, InputError, OutputError, ResumeError, UsageError
from tokpack.files.foreign import parse_json
from tokpack.indexed import bin_path, idx_path, manifest_path, trace_path
from tokpack.shards import storage
from tokpack.sources import Part, Source
from tokpack.stores import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.encoding.plan import Means

PLAN_FORMAT = 1
SUFFIX = ".plan"
NAME = "plan.jsonl"
_DIGITS = 5
_TIME = re.compile(rb'"mtime_ns": \d+')  # of an input, in a line of the plan


@dataclass(frozen=True)
class ShardPlan:
    """What is to be made: ``shards`` datasets, from ``inputs`` files of ``size`` bytes in all.

    ``id`` is the sha256 of the rest. ``options`` are those of EncodeOptions that are the same on
    all machines, ``deciding`` those that decide the bytes, as ``deciding_options`` has them,
    ``names`` the names of the datasets by key.
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

    @classmethod
    def load(cls, prefix: str, *, any_version: bool = False) -> ShardPlan:
        """The plan of the dataset ``prefix``.

        InputError where there is none, FormatError where it is damaged, ResumeError where another
        version of tokpack has made it, unless that does not matter.
        """
        path = plan_path(prefix)
        content = storage.read(path)
        if content is None:
            raise InputError(
                f"{shown(path)}: there is no plan: make one with `tokpack plan INPUT... -o PREFIX`"
            )
        head, _, body = content.partition(b"\n")
        values = parse_json(head, shown(path))
        if not isinstance(values, dict) or values.get("format") != PLAN_FORMAT:
            raise FormatError(f"{shown(path)}: not a plan of format {PLAN_FORMAT}")
        try:
            plan = cls(**{**{name: values[name] for name in _HEAD}, "body": body}).identified()
        except (KeyError, TypeError):
            raise FormatError(f"{shown(path)}: the plan lacks what a plan has") from None
        if plan.id != values.get("id"):
            raise FormatError(f"{shown(path)}: the plan is damaged: its checksum is another one")
        if not plan._is_sound():
            raise FormatError(f"{shown(path)}: the plan cannot be understood")
        if plan.version != __version__ and not any_version:
            raise ResumeError(
                f"{shown(path)} was made by tokpack {plan.version}, this is {__version__}: all "
                "shards need one version; install that one, or make the plan again with --overwrite"
            )
        return plan

    def identified(self) -> ShardPlan:
        """The same with its ``id``."""
        head = json.dumps(self._head(), sort_keys=True).encode()
        return replace(self, id=hashlib.sha256(head + b"\n" + self.body).hexdigest())

    def content(self) -> bytes:
        """The file."""
        head = {"format": PLAN_FORMAT, "id": self.id, **self._head()}
        return json.dumps(head).encode() + b"\n" + self.body

    def is_same(self, other: ShardPlan) -> bool:
        """Whether another plan makes the same of the same inputs, whenever those were written."""
        bodies = [_TIME.sub(b"", plan.body) for plan in (self, other)]
        return self._head() == other._head() and bodies[0] == bodies[1]

    def difference(self, other: ShardPlan) -> str:
        """What distinguishes another plan from this one, in words."""
        if self.version != other.version:
            return f"tokpack {self.version} made it, this is {other.version}"
        if self.tokenizer != other.tokenizer:
            return (
                f"its tokenizer is {self.tokenizer['name']}, this one's {other.tokenizer['name']}"
            )
        for key in sorted({*self.deciding, *other.deciding}):
            before, now = self.deciding.get(key, False), other.deciding.get(key, False)
            if before != now:
                return f"its {key} is {before!r}, this one's {now!r}"
        if self.shards != other.shards:
            return f"it has {self.shards} shards, this one {other.shards}"
        return "its inputs, or options that do not change the bytes, are others"

    def shard(self, number: int) -> Plan:
        """The plan of one shard. UsageError where there is no such shard."""
        if not 0 <= number < self.shards:
            raise UsageError(f"there is no shard {number}: the plan has 0 to {self.shards - 1}")
        return self._shard(self._lines[number], number)

    def each_shard(self) -> Iterator[Plan]:
        """The plans of all shards, in order."""
        for number, line in enumerate(self._lines):
            yield self._shard(line, number)

    def prefixes(self, prefix: str, number: int) -> dict[str, str]:
        """The datasets of a shard, by key; ``prefix`` is that of the plan."""
        return {key: self._numbered(name, number) for key, name in self.whole(prefix).items()}

    def whole(self, prefix: str) -> dict[str, str]:
        """The datasets that consist of all shards, by key."""
        return {key: beside(prefix, name) for key, name in self.names.items()}

    def encode_options(
        self, prefix: str, number: int, *, workers: int = 0, scratch: str | None = None
    ) -> EncodeOptions:
        """The request for one shard."""
        names = self.prefixes(prefix, number)
        first = next(iter(names.values()))
        try:
            return EncodeOptions(
                **{**self.options, "keys": tuple(self.options["keys"])},
                inputs=(plan_path(prefix),),
                output=first if len(names) == 1 else self._numbered(prefix, number),
                output_names=names,
                workers=workers,
                scratch=scratch,
            )
        except (KeyError, TypeError):
            where = shown(plan_path(prefix))
            raise FormatError(f"{where}: its options cannot be understood") from None

    def _numbered(self, name: str, number: int) -> str:
        return f"{name}-{number:0{max(_DIGITS, len(str(self.shards - 1)))}d}"

    def _head(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _HEAD}

    @cached_property
    def _lines(self) -> list[bytes]:
        return self.body.splitlines()

    def _is_sound(self) -> bool:
        """Whether the head is of the right types, and names no files in other folders."""
        objects = (self.options, self.deciding, self.tokenizer, self.names)
        return (
            all(isinstance(value, dict) for value in objects)
            and bool(self.names)
            and all(isinstance(name, str) and name for name in self.names.values())
            and not any("/" in name or "\0" in name for name in self.names.values())
            and all(type(count) is int and count >= 0 for count in (self.inputs, self.size))
            and type(self.shards) is int
            and self.shards == self.body.count(b"\n") > 0
        )

    def _shard(self, line: bytes, number: int) -> Plan:
        where = f"shard {number} of the plan"
        entry = parse_json(line, where)
        try:
            inputs = [dict(one) for one in entry["inputs"]]
            prints = tuple(one.pop("fingerprint") for one in inputs)
            return Plan(
                version=self.version,
                sources=tuple(Source(**one) for one in inputs),
                fingerprints=prints,
                tokenizer=self.tokenizer,
                options={**self.deciding, "plan": self.id, "shard": number},
                parts=tuple(Part(*row) for row in entry["parts"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise FormatError(f"{where}: cannot be understood") from None


_HEAD = tuple(field.name for field in fields(ShardPlan) if field.name not in ("body", "id"))


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
    """The prefix that a user means who names it, its plan's folder or its plan."""
    return text.removesuffix("/").removesuffix("/" + NAME).removesuffix(SUFFIX)


def load_plan(name: str | os.PathLike[str]) -> tuple[str, ShardPlan]:
    """The prefix that ``name`` stands for, see ``prefix_of``, and its plan. As ShardPlan.load."""
    prefix = prefix_of(os.fspath(name))
    return prefix, ShardPlan.load(prefix)


def save_plan(plan: ShardPlan, prefix: str, *, overwrite: bool = False) -> ShardPlan:
    """Write a plan where all machines find it, and give the one to follow.

    One that is there already is left alone, also where only times of inputs are others. Another
    may be replaced only with ``overwrite``, and its shards with it. OutputError.
    """
    path = plan_path(prefix)
    if storage.create(path, plan.content()):
        return plan
    old = ShardPlan.load(prefix, any_version=True)
    if old.is_same(plan):
        return old
    if not overwrite:
        raise OutputError(
            f"{shown(path)} is another plan: {old.difference(plan)}; choose another output, or "
            "replace it and its shards with --overwrite"
        )
    for name in old.whole(prefix).values():
        storage.remove(manifest_path(name))
    for number in range(old.shards):
        # The manifest first: what is left when this is killed is not taken for a shard.
        for name in old.prefixes(prefix, number).values():
            for file in (manifest_path(name), idx_path(name), trace_path(name), bin_path(name)):
                storage.remove(file)
        storage.remove(report_path(prefix, number))
    storage.write(path, plan.content())
    return plan


def check_means(plan: ShardPlan, options: EncodeOptions, means: Means) -> None:
    """Raise ResumeError where what is installed here would not make the planned bytes."""
    here = described(options, means)
    for key in ("sha256", "frame"):
        if here.get(key) != plan.tokenizer.get(key):
            raise ResumeError(
                f"the tokenizer {plan.tokenizer['name']} is not the planned one on this machine: "
                f"its {key} is {here.get(key)}, planned is {plan.tokenizer.get(key)}"
            )
    deciding = deciding_options(options, means)
    for key in deciding:
        if deciding[key] != plan.deciding.get(key):
            raise ResumeError(
                f"{key} is {deciding[key]!r} on this machine, planned is {plan.deciding.get(key)!r}"
            )

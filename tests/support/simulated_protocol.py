"""Datasets in shards, whole ones and merged ones, made by simulated machines on a simulated store.

All of tokpack's own code runs but for one function: what encoding gives is kept from a real run of
each kind, so that a seed takes milliseconds.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from support.encoding_tools import byte_tokenizer
from support.simulated_machines import Machine, World
from support.simulated_store import Gated
from tokpack import machine
from tokpack.dataset import Manifest, bin_path, idx_path, manifest_path
from tokpack.dataset.manifest import now
from tokpack.dataset.merge import merge
from tokpack.encoding import EncodeOptions, run
from tokpack.encoding.setup import load_setup
from tokpack.errors import BusyError, TokpackError
from tokpack.progress import Progress
from tokpack.shards import cut
from tokpack.shards.committed import commit
from tokpack.shards.drive import BUSY, CommandResult
from tokpack.shards.plan import ShardPlan, save_plan
from tokpack.shards.take import free_shards
from tokpack.sources import parts
from tokpack.storage.objects import access, cache, upload, urls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from support.simulated_store import Content
    from tokpack.encoding.plan import PlannedRun
    from tokpack.encoding.send import Sender
    from tokpack.encoding.setup import TokenizerSetup

BUCKET = "s3://memory"
PILE = f"{BUCKET}/sets/pile"
WHOLE, MERGED = f"{BUCKET}/sets/whole", f"{BUCKET}/sets/merged"
ONE_TWO = (f"{BUCKET}/sets/one", f"{BUCKET}/sets/two")
INPUTS = (f"{BUCKET}/in/x.jsonl", f"{BUCKET}/in/y.jsonl")
OTHER = "other"  # begins the names of machines with another tokenizer
CREATED = re.compile(rb'"created": "[^"]*"')
_encode = run._encode  # itself
_SHARD_BYTES, _LEAST_BYTES = 190, 40
_PATHS = (bin_path, idx_path, manifest_path)


class _Inline:
    """Threads that are none: what they are given is done at once."""

    def map(self, act: Callable[[Any], Any], items: Any) -> list[Any]:
        return [act(item) for item in items]

    def submit(self, act: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(act(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done


def _unlocked(self: Any, instance: Any, _: object = None) -> Any:
    """A cached property without the lock of Python 3.11, for which all machines would wait."""
    if instance is None:
        return self
    if self.attrname not in instance.__dict__:
        instance.__dict__[self.attrname] = self.func(instance)
    return instance.__dict__[self.attrname]


class Studio:
    """What seeds share: tokenizers, plans, and what encoding gave. A context, in which all of
    tokpack uses ``world``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = World(0)
        self.tokenizer = str(byte_tokenizer(folder / "tokenizer.json"))
        self._other = str(folder / "other.json")
        text = Path(self.tokenizer).read_text(encoding="utf-8")
        Path(self._other).write_text(text.replace('"end"', '"dne"'), encoding="utf-8")
        self.contents = {
            url: b"".join(b'{"text": "%s %d"}\n' % (word, i) for i in range(count))
            for url, word, count in zip(INPUTS, (b"word", b"other"), (11, 4), strict=True)
        }
        self.plans: dict[str, ShardPlan] = {}
        self.states: dict[
            tuple[str, str], dict[str, Content]
        ] = {}  # of the store, by how far it is
        self.wanted: dict[str, dict[str, bytes]] = {}  # by plan: objects of the finished dataset
        self.files: dict[str, list[bytes]] = {}  # by what a manifest tells of the .bin
        self.kinds: dict[tuple[str, Any], str] = {}  # what it tells, by what was asked for
        self._loaded: dict[tuple[str, bool], TokenizerSetup] = {}
        self._made: dict[str, list[list[bytes]]] = {}  # by what is encoded: files of its datasets
        self._stack = ExitStack()

    def __enter__(self) -> Studio:
        inline = _Inline()
        for target, name, value in (
            (access.objects, "_backend", self._backend),
            *((access, name, inline) for name in ("threads", "copiers", "senders")),
            (cache, "cache_root", lambda: Path(self.own_folder(f"cache{machine.clock.pid()}"))),
            (cut, "MIN_PART_BYTES", 1),
            (parts, "_SMALL_GROUP", 0),
            (run, "_encode", self._encode),
            (cut, "load_setup", self._setup),
            (upload, "LEAST_PART", 64),
            (cached_property, "__get__", _unlocked),
            (machine, "clock", machine.clock),  # these two, which ``use`` replaces, as they were
            (urls, "PART_BYTES", urls.PART_BYTES),
        ):
            self._stack.enter_context(patch.object(target, name, value))
        self._stack.enter_context(
            patch.dict(parts.make_parts.__kwdefaults__ or {}, smallest_bytes=_LEAST_BYTES)
        )
        environment = {"TMPDIR": str(self.folder / "tmp"), "TOKPACK_STORE_TIMEOUT": "30"}
        self._stack.enter_context(patch.dict(os.environ, environment))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def use(self, world: World, *, part_bytes: int = urls.PART_BYTES) -> None:
        """Give tokpack another world."""
        self.world = machine.clock = world
        self._gated = Gated(world.model, world.gate)
        urls.PART_BYTES = part_bytes
        shutil.rmtree(self.folder / "machines", ignore_errors=True)
        for url, content in self.contents.items():
            world.model.place(url, content)

    def own_folder(self, name: str) -> str:
        """A folder of the machine whose thread this is."""
        folder = self.folder / "machines" / machine.clock.host() / name
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    def _backend(self, url: str) -> Gated:
        if not url.startswith(f"{BUCKET}/"):
            self.world.violate(f"{url} is asked for, which is elsewhere")
        return self._gated

    # -- what machines do

    def plan(self, kind: str, *, overwrite: bool = False) -> None:
        save_plan(self.plans[kind], PILE, overwrite=overwrite)

    def shard(self, number: int) -> None:
        plan = ShardPlan.load(PILE)
        cut.encode_shard(
            plan, PILE, number % plan.shards, workers=1, scratch=self.own_folder("scratch")
        )

    def take(self) -> None:
        """Make free shards until all are done."""
        plan = ShardPlan.load(PILE)
        for number, lease in free_shards(plan, PILE):
            scratch = self.own_folder("scratch")
            with suppress(BusyError):
                cut.encode_shard(plan, PILE, number, workers=1, scratch=scratch, lease=lease)
        for prefix in (
            name for n in range(plan.shards) for name in plan.prefixes(PILE, n).values()
        ):
            if any(path(prefix) not in self.world.model.objects for path in _PATHS):
                self.world.violate(f"who takes shards until all are done leaves {prefix}")

    def commit(self, *, overwrite: bool = False) -> None:
        commit(ShardPlan.load(PILE), PILE, overwrite=overwrite)

    def encode(self, output: str, inputs: Sequence[str] = INPUTS, **more: Any) -> None:
        run.encode(self.options(inputs, output, scratch=self.own_folder("scratch"), **more))

    def merge(self, inputs: Sequence[str], output: str, *, overwrite: bool = False) -> None:
        merge(inputs, output, overwrite=overwrite)

    def options(self, inputs: Sequence[str], output: str, **more: Any) -> EncodeOptions:
        more = {"tokenizer": self.tokenizer, "workers": 1, **more}
        return EncodeOptions(tuple(inputs), output=output, **more)

    # -- before the seeds

    def prepare(self, kinds: dict[str, dict[str, Any]]) -> None:
        """Make the datasets of all kinds on one machine without faults."""
        for kind, more in kinds.items():
            self.use(World(0))
            self.plans[kind] = cut.make_shard_plan(self.options(INPUTS, PILE, **more), _SHARD_BYTES)
            self.states[kind, "nothing"] = {}
            self.plan(kind)
            self.states[kind, "planned"] = dict(self.world.model.objects)
            for number in range(self.plans[kind].shards):
                self.shard(number)
            self.states[kind, "made"] = dict(self.world.model.objects)
            self.commit()
            self.states[kind, "committed"] = dict(self.world.model.objects)
            self.wanted[kind] = self.dataset()
        self.use(World(0))
        for kind, more in kinds.items():
            self.encode(f"{WHOLE}-{kind}", **more)
            manifest = self.world.model.objects[f"{WHOLE}-{kind}.json"]
            self.kinds["encode", kind] = told_of_bin(manifest.data)
        self.encode(f"{BUCKET}/sets/one", INPUTS[:1])
        self.encode(f"{BUCKET}/sets/two", INPUTS[1:])
        self.states["whole", "made"] = {
            url: one
            for url, one in self.world.model.objects.items()
            if url.startswith((f"{BUCKET}/sets/one", f"{BUCKET}/sets/two"))
        }
        for order in (ONE_TWO, ONE_TWO[::-1]):
            self.merge(order, MERGED, overwrite=True)
            objects = self.world.model.objects
            self._note([objects[path(MERGED)].data for path in _PATHS])
            self.kinds["merge", order] = told_of_bin(objects[manifest_path(MERGED)].data)

    def _note(self, files: list[bytes]) -> None:
        self.files[told_of_bin(files[-1])] = files[:-1]

    def dataset(self) -> dict[str, bytes]:
        """The dataset in shards that there is: what all ways to make it must give."""
        objects = self.world.model.objects
        return {
            url: CREATED.sub(b"", one.data)
            for url, one in objects.items()
            if url.startswith(PILE) and ".plan/" not in url and not url.endswith(".tokpack.tmp")
        }

    # -- in place of tokpack's own functions

    def _setup(self, options: EncodeOptions) -> TokenizerSetup:
        has_other = machine.clock.host().startswith(OTHER)
        name = self._other if has_other else self.tokenizer
        key = (name, options.append_eod)
        if key not in self._loaded:
            self._loaded[key] = load_setup(replace(options, tokenizer=name))
        return self._loaded[key]

    def _encode(
        self,
        planned: PlannedRun,
        asked: EncodeOptions,
        send: Sender,
        progress: Any,
        *,
        replaces: bool,
        check: Callable[[], None] | None = None,
    ) -> list[Manifest]:
        """As ``run._encode``: sources are read as it does, each once, and the result is known."""
        plan, setup, _ = planned
        contents = [
            bytes(access.objects.read(source._object, 0, source.size)).hex()
            if source.is_remote
            else Path(source.path).read_bytes().hex()
            for source in plan.sources
        ]
        given = [plan.options, [part.to_json() for part in plan.parts], contents]
        key = json.dumps([*given, setup.tokenizer.fingerprint], sort_keys=True)
        prefixes = list(asked.output_names.values())
        if key not in self._made:
            with patch.object(machine, "clock", machine.Clock()):
                _encode(planned, replace(asked, overwrite=True), send, None, replaces=True)
            self._made[key] = [
                [Path(path(one)).read_bytes() for path in _PATHS] for one in prefixes
            ]
            for files in self._made[key]:
                self._note(files)
        for _ in range(self.world.rng.randrange(3) if progress else 0):
            progress(Progress(stage="encode", done=1, total=9, seconds=1.0))
            machine.clock.sleep(self.world.rng.random() * 3)
        created = b'"created": "%s"' % now().encode()
        for prefix, files in zip(prefixes, self._made[key], strict=True):
            os.makedirs(os.path.dirname(prefix), exist_ok=True)
            for path, content in zip(_PATHS, files, strict=True):
                own = CREATED.sub(created, content) if path is manifest_path else content
                Path(path(prefix)).write_bytes(own)
        return [Manifest.load(prefix) for prefix in prefixes]


def told_of_bin(manifest: bytes) -> str:
    """What a manifest says of its .bin: the size and the checksum."""
    return json.dumps(json.loads(manifest).get("bin"), sort_keys=True)


class Engine:
    """Runs shards on machines of the world, some of which are lost, and some only seem to be."""

    def __init__(self, studio: Studio) -> None:
        self._studio = studio
        self._world = studio.world
        self._lost: set[Machine] = set()

    def start(self, arguments: Sequence[str]) -> Machine:
        which = arguments[arguments.index("--shard") + 1]
        name = f"node{len(self._world.machines)}"
        if which == "next":
            return self._world.start(name, self._studio.take)
        return self._world.start(name, lambda: self._studio.shard(int(which)))

    def ended(
        self, handles: Sequence[Machine], seconds: float
    ) -> list[tuple[Machine, CommandResult]]:
        self._world.sleep(self._world.rng.random() * seconds)
        if self._world.rng.random() < 0.02:  # a node that the cluster cannot see any more
            self._lost.add(self._world.rng.choice(list(handles)))
        return [
            (one, _result(one, is_lost=one in self._lost))
            for one in handles
            if one.has_ended or one in self._lost
        ]

    def cancel(self, handle: Machine) -> None:
        handle.is_dead = True

    def close(self) -> None:
        pass


def _result(one: Machine, *, is_lost: bool) -> CommandResult:
    if is_lost or one.is_dead:
        return CommandResult(None, "")
    if isinstance(one.error, BusyError):
        return CommandResult(BUSY, str(one.error))
    code = one.error.exit_code if isinstance(one.error, TokpackError) else 2
    return CommandResult(code if one.error else 0, str(one.error))

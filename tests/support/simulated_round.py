"""A seed of the protocol of datasets on a store: its machines, and what must hold at any time."""

from __future__ import annotations

import json
import random
import traceback
from collections import Counter
from typing import TYPE_CHECKING, Any

from support.simulated_machines import EndlessError, Killed, World
from support.simulated_protocol import BUCKET, MERGED, PILE, WHOLE, Studio, told_of_bin
from tokpack.encoding.status import LOST_SECONDS, parse_report
from tokpack.errors import TokpackError
from tokpack.shards.plan import plan_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from tokpack.encoding.status import Report

FAULTS = (0.0, 0.01, 0.03, 0.08)
_RESTARTED, _TRIES = 0.7, 3
EVIL = f"{BUCKET}/sets/evil"
_ID = slice(14, 86)  # of the plan, in its file
Step = tuple[str, "Callable[[], Any]"]
Scenario = tuple["Callable[[Round], None]", int]


class Round:
    """One seed: its machines, what they did, and whether that was right.

    It does one of ``scenarios``, by their weights.
    """

    def __init__(
        self,
        studio: Studio,
        seed: int,
        scenarios: Collection[Scenario],
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.studio = studio
        self.seed = seed
        self.rng = random.Random(f"round {seed}")
        self.world = World(seed, faults=self.rng.choice(FAULTS), tell=tell)
        self.world.model.changed = self._changed
        self.protected: dict[str, bytes] = {}
        self.committed: set[str] = set()  # ETags of manifests
        self.settled: dict[str, dict[str, bytes]] = {}  # finished datasets, which stay: their files
        self.may_replace = False  # somebody has --overwrite
        self.removes = False  # a rule of the store removes what is old
        self.has_leases = False  # nobody makes a shard that it has not taken
        self.leases: dict[str, tuple[Report | None, float]] = {}  # of shards: the report, and when
        self.done: Counter[str] = Counter()
        acts, weights = zip(*scenarios, strict=True)
        (self.scenario,) = self.rng.choices(acts, weights)
        studio.use(self.world, part_bytes=self.rng.choice((64, 1 << 24)))
        self._kept = dict(studio.contents)

    def run(self) -> list[str]:
        """What was wrong."""
        self.protected = dict(self.studio.contents)
        try:
            self.scenario(self)
        except EndlessError as error:
            self.world.violate(str(error))
        return self.world.violations

    # -- machines

    def start(self, name: str, steps: Sequence[Step]) -> None:
        """A machine that does these things one after the other, as a user does who tries again."""
        skew = self.rng.choice((0.0, 0.0, 7_200.0, -7_200.0)) * self.rng.random()
        wakes = self.world.at + self.rng.choice((0, 0, 10, 30)) * self.rng.random()
        self._start(name, list(steps), skew, wakes)

    def _start(self, name: str, steps: list[Step], skew: float, wakes: float) -> None:
        def act() -> None:
            while steps:
                self._do(name, steps)
                steps.pop(0)

        def work() -> None:
            try:
                act()
            except Killed:
                if self.rng.random() < _RESTARTED:
                    later = self.world.at + self.rng.random() * 3_000
                    self._start(name, steps, skew, later)
                raise

        self.world.start(name, work, skew=skew, wakes=wakes)

    def _do(self, name: str, steps: list[Step]) -> None:
        what, act = steps[0]
        me = self.world.current
        assert me
        me.may_replace = "--overwrite" in what
        for _ in range(_TRIES):
            try:
                self.world.say(f"{name}: {what}")
                act()
                self.done[what] += 1
                self._note(what)
                return
            except TokpackError as error:
                self.world.say(f"{name}: {what}: {type(error).__name__}: {error}")
                self.done[f"{what} {type(error).__name__}"] += 1
                if self.rng.random() < 0.5:
                    return
                me.expires = float("inf")
                self.world.sleep(self.rng.random() * 60)
            except Exception as error:
                self.world.say(traceback.format_exc())
                self.world.violate(f"{what}: a fault in tokpack: {type(error).__name__}: {error}")
                return

    def _note(self, what: str) -> None:
        """What a command has said to be done, which must stay."""
        objects = self.world.model.objects
        if what.startswith("commit") and f"{PILE}.json" in objects:
            self.committed.add(objects[f"{PILE}.json"].etag)
            self._check_committed()
        for prefix in (WHOLE, MERGED):
            if what.startswith(("encode", "merge")) and f"{prefix}.json" in objects:
                names = [f"{prefix}{suffix}" for suffix in (".bin", ".idx", ".json")]
                self.settled[prefix] = {n: objects[n].data for n in names if n in objects}

    def made(self, command: str, what: Any, prefix: str, act: Callable[[], Any]) -> None:
        """Do something; where nobody may replace it, what was asked for is there then."""
        act()
        manifest = self.world.model.objects.get(f"{prefix}.json")
        told = manifest and told_of_bin(manifest.data)
        if not self.may_replace and told != self.studio.kinds[command, what]:
            self.world.violate(f"{command} ends well, and {prefix} is not what it was to be")

    # -- what must hold

    def _changed(self, url: str) -> None:
        objects = self.world.model.objects
        there = objects[url].data if url in objects else None
        if self.protected.get(url, there) != there:
            self.world.violate(f"{url}, which is an input or another's, is changed or removed")
        actor = self.world.actor
        prefix = url.rpartition(".")[0]
        if self.settled.get(prefix, {}).get(url, there) != there:
            if not (actor and actor.may_replace):
                self.world.violate(f"{url}, which is of a finished dataset, is changed or removed")
            del self.settled[prefix]
        if url == f"{PILE}.json" and there is None:
            self.committed.clear()  # a late one that comes back has been removed with its shards
        if self.has_leases and prefix == f"{PILE}.plan/{url[-10:-5]}":
            self._check_lease(url, there)
        if prefix := _prefix_of(url):
            if prefix not in (PILE, EVIL) and not self._is_replaced(prefix):
                self._check_whole(prefix)
            self._check_committed()

    def _check_lease(self, url: str, there: bytes | None) -> None:
        """Nobody takes a shard from who has told not long ago that it makes it."""
        now = parse_report(there, url)
        old, written = self.leases.get(url, (None, 0.0))
        self.leases[url] = now, self.world.at
        if now and old and old.state == "running" and self.world.at - written < LOST_SECONDS:
            makers = [(one.host, one.pid, one.began) for one in (old, now)]
            if makers[0] != makers[1]:
                self.world.violate(f"{url}: {now.host} takes the shard, and {old.host} makes it")

    def _is_replaced(self, prefix: str) -> bool:
        """Whether it is a shard of a plan that another has replaced: whoever follows that removes
        its manifest, which may come after its files have been removed.
        """
        objects = self.world.model.objects
        manifest, plan = objects.get(f"{prefix}.json"), objects.get(plan_path(PILE))
        told = _told(manifest.data) if manifest else None
        if not (told and told["plan"] and plan):
            return False
        return plan.data[_ID] != f'"id": "{told["plan"]}"'.encode()

    def _check_committed(self) -> None:
        """What a command has said to be there is there; what a late one leaves is none of that."""
        manifest = self.world.model.objects.get(f"{PILE}.json")
        if manifest and manifest.etag in self.committed:
            self._check_whole(PILE)

    def _check_whole(self, prefix: str) -> None:
        """A manifest's files are there, with the bytes that it tells of."""
        objects = self.world.model.objects
        manifest = objects.get(f"{prefix}.json")
        told = _told(manifest.data) if manifest else None
        if told is None:
            return
        for name in told["pieces"] or ():
            own = f"{prefix.rpartition('/')[0]}/{name}"
            one = objects.get(f"{own}.json")
            if one and (_told(one.data) or told)["plan"] != told["plan"]:
                self.world.violate(f"{prefix}.json tells of {name}, which is of another plan")
            if f"{own}.json" not in objects and not self.removes:
                self.world.violate(f"{prefix}.json tells of {name}, which has no manifest")
            self._check_whole(own)
        if told["pieces"] is None:
            wanted = self.studio.files.get(told["bin"])
            for suffix, data in zip((".bin", ".idx"), wanted or (), strict=False):
                one = objects.get(prefix + suffix)
                if (one is None and not self.removes) or (one and one.data != data):
                    what = "missing" if one is None else "of other bytes"
                    self.world.violate(f"{prefix}{suffix} is {what} beside its manifest")

    def end(self) -> None:
        """Let all end; from then on nothing goes wrong."""
        self.world.run()
        self.world.faults = 0.0
        self.world.say("one machine without faults does what is left")

    def finish(self) -> None:
        """Let all end, and let one machine do what is left: then the dataset is whole."""
        self.end()
        studio = self.studio
        content = self.world.model.objects.get(plan_path(PILE))
        plans = {f'"id": "{one.id}"'.encode(): kind for kind, one in studio.plans.items()}
        kind = plans.get(content.data[_ID], "") if content else "plain"
        if studio.dataset() != studio.wanted.get(kind):
            try:
                if content is None:
                    studio.plan(kind)
                for number in range(studio.plans[kind].shards):
                    studio.shard(number)
                studio.commit()
            except TokpackError as error:
                self.world.violate(f"what is left cannot be done: {type(error).__name__}: {error}")
        made, wanted = studio.dataset(), studio.wanted[kind]
        for url in sorted(made.keys() | wanted.keys()):
            if made.get(url) != wanted.get(url) and url not in self.protected:
                what = "is not there" if url not in made else "is not what one machine makes"
                self.world.violate(f"{url} {what if url in wanted else 'is left over'}")


def _prefix_of(url: str) -> str:
    prefix, _, suffix = url.rpartition(".")
    return prefix if suffix in ("bin", "idx", "json") and ".plan/" not in url else ""


def _told(content: bytes) -> dict[str, Any] | None:
    """What a manifest says of its .bin, and the datasets that it lists; None for other JSON."""
    try:
        values = json.loads(content)
        pieces = [one["prefix"] for one in values["pieces"]] if "pieces" in values else None
        plan = values["options"].get("plan")
        return {"bin": told_of_bin(content), "pieces": pieces, "plan": plan}
    except (ValueError, KeyError, TypeError):
        return None

"""The protocol of datasets on a store under every fault, on simulated machines.

    python -m torture simulate --seed 1 --seeds 10000
    python -m torture simulate --seed 1234 --replay

A seed decides what several machines do at once, in which order their requests come, what goes
wrong with them, and how far apart their clocks are. Then one machine without faults does what is
left, and what is there must be what one machine makes. At each change of the store, what a manifest
tells of must be there.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.simulated_machines import Killed, World
from support.simulated_protocol import OTHER, PILE, Engine, Studio

from tokpack.errors import TokpackError
from tokpack.shards.drive import ShardRunner
from tokpack.shards.plan import ShardPlan, plan_path
from tokpack.shards.survey import survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

KINDS: dict[str, dict[str, Any]] = {"plain": {}, "bare": {"append_eod": False}}
FAULTS = (0.0, 0.01, 0.03, 0.08)
_RESTARTED, _TRIES = 0.7, 3
_ID = slice(14, 86)  # of the plan, in its file
Step = tuple[str, "Callable[[], Any]"]


class Round:
    """One seed: its machines, what they did, and whether that was right."""

    def __init__(
        self, studio: Studio, seed: int, tell: Callable[[str], None] | None = None
    ) -> None:
        self.studio = studio
        self.seed = seed
        self.rng = random.Random(f"round {seed}")
        self.world = World(seed, faults=self.rng.choice(FAULTS), tell=tell)
        self.world.model.changed = self._changed
        self.protected: dict[str, bytes] = {}
        self.committed: set[str] = set()  # ETags of manifests
        self.done: Counter[str] = Counter()
        studio.use(self.world, part_bytes=self.rng.choice((64, 1 << 24)))
        self._kept = dict(studio.contents)

    def run(self) -> list[str]:
        """What was wrong."""
        self.protected = dict(self.studio.contents)
        _SCENARIOS[self._scenario()](self)
        return self.world.violations

    def _scenario(self) -> str:
        names = list(_SCENARIOS)
        return self.rng.choices(names, [_WEIGHTS[name] for name in names])[0]

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
        for _ in range(_TRIES):
            try:
                self.world.say(f"{name}: {what}")
                act()
                self.done[what] += 1
                if what.startswith("commit") and f"{PILE}.json" in self.world.model.objects:
                    self.committed.add(self.world.model.objects[f"{PILE}.json"].etag)
                    self._check_committed()
                return
            except TokpackError as error:
                self.world.say(f"{name}: {what}: {type(error).__name__}: {error}")
                self.done[f"{what} {type(error).__name__}"] += 1
                if self.rng.random() < 0.5:
                    return
                current = self.world.current
                if current:
                    current.expires = float("inf")
                self.world.sleep(self.rng.random() * 60)
            except Exception as error:
                self.world.say(traceback.format_exc())
                self.world.violate(f"{what}: a fault in tokpack: {type(error).__name__}: {error}")
                return

    # -- what must hold

    def _changed(self, url: str) -> None:
        objects = self.world.model.objects
        if url in self.protected and getattr(objects.get(url), "data", None) != self.protected[url]:
            self.world.violate(f"{url}, which is an input or another's, is changed or removed")
        if prefix := _prefix_of(url):
            if prefix != PILE:
                self._check_whole(prefix)
            self._check_committed()

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
            if f"{own}.json" not in objects:
                self.world.violate(f"{prefix}.json tells of {name}, which has no manifest")
            self._check_whole(own)
        if told["pieces"] is None:
            wanted = self.studio.files.get(told["bin"])
            for suffix, data in zip((".bin", ".idx"), wanted or (), strict=False):
                one = objects.get(prefix + suffix)
                if one is None or one.data != data:
                    what = "missing" if one is None else "of other bytes"
                    self.world.violate(f"{prefix}{suffix} is {what} beside its manifest")

    def finish(self) -> None:
        """Let all end, and let one machine do what is left: then the dataset is whole."""
        self.world.run()
        self.world.faults = 0.0
        self.world.say("one machine without faults does what is left")
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
        return {"bin": json.dumps(values.get("bin"), sort_keys=True), "pieces": pieces}
    except (ValueError, KeyError, TypeError):
        return None


# -- what machines do


def _makers(own: Round) -> None:
    """Machines make the shards of one plan, of two plans, and commit; others look."""
    studio, rng = own.studio, own.rng
    state = rng.choice(("nothing", "planned", "made", "made", "committed"))
    own.world.model.objects |= studio.states["plain", state]
    if state == "committed":
        own.committed.add(own.world.model.objects[f"{PILE}.json"].etag)
    kinds = {"nothing": "mmmw", "planned": "mmmrwo", "made": "mrrcccw", "committed": "mrrcw"}[state]
    count = studio.plans["plain"].shards
    for number in range(rng.choice((2, 2, 2, 3, 4))):
        kind = rng.choice(kinds)
        shards = [(f"shard {n}", _call(studio.shard, n)) for n in rng.sample(range(count), count)]
        steps: list[Step] = []
        if kind in "mo":  # a maker, the other one with another tokenizer
            plan = rng.choice(list(KINDS)) if rng.random() < 0.1 else "plain"
            if state == "nothing" or rng.random() < 0.3:
                steps.append((f"plan {plan}", _call(studio.plan, plan)))
            steps += shards[: rng.choice((1, 1, 2, count))]
        elif kind == "r":  # who plans anew
            again = _call(studio.plan, "bare", overwrite=True)
            steps = [("plan bare --overwrite", again), *shards[: rng.randrange(count + 1)]]
        if kind == "w":  # who looks
            steps = [("status", _status)]
        elif kind == "c" or rng.random() < 0.5:
            steps.append(("commit", studio.commit))
        own.start(f"{OTHER if kind == 'o' else kind}{number}", steps)
    own.finish()


def _ray(own: Round) -> None:
    """A cluster makes the shards, and loses nodes; somebody makes shards beside it."""
    studio = own.studio

    def drive() -> None:
        ShardRunner(ShardPlan.load(PILE), PILE, Engine(studio)).run()

    own.start("head", [("plan", _call(studio.plan, "plain")), ("drive", drive)])
    if own.rng.random() < 0.5:
        own.start("beside", [(f"shard {n}", _call(studio.shard, n)) for n in (2, 0)])
    own.finish()


def _status() -> None:
    survey(ShardPlan.load(PILE), PILE)


def _call(act: Callable[..., Any], *arguments: Any, **more: Any) -> Callable[[], Any]:
    return lambda: act(*arguments, **more)


_SCENARIOS: dict[str, Callable[[Round], None]] = {"makers": _makers, "ray": _ray}
_WEIGHTS = {"makers": 85, "ray": 15}


# -- seeds


def rounds(
    seeds: Sequence[int], tell: Callable[[str], None] | None = None
) -> Iterator[tuple[int, Round, list[str]]]:
    """Run seeds; gives each with what was wrong."""
    logging.getLogger("tokpack").setLevel(logging.ERROR)
    place = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="tokpack-sim-", dir=place) as folder:
        (Path(folder) / "tmp").mkdir()
        with Studio(Path(folder)) as studio:
            studio.prepare(KINDS)
            for seed in seeds:
                one = Round(studio, seed, tell)
                yield seed, one, one.run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds; 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1000, help="how many, from --seed on")
    parser.add_argument("--replay", action="store_true", help="one seed, with each request")
    parser.add_argument("--go-on", action="store_true", help="also after a seed that failed")
    args = parser.parse_args(arguments)
    count = 1 if args.replay else args.seeds
    began, failed, done = time.process_time(), 0, Counter[str]()
    faults: Counter[str] = Counter()
    for seed, one, wrong in rounds(
        range(args.seed, args.seed + count), print if args.replay else None
    ):
        done += one.done
        faults.update(one.world.fault_counts)
        if wrong:
            failed += 1
            print(
                f"seed {seed}: {wrong[0]}" + (f" (and {len(wrong) - 1} more)" if wrong[1:] else "")
            )
            print(f"  python -m torture simulate --seed {seed} --replay", flush=True)
            if not args.go_on:
                break
    seconds = time.process_time() - began
    print(f"{count} seeds, {failed} failed, {1000 * seconds / count:.1f} ms of processor time each")
    print(f"  commands: {dict(sorted(done.items()))}\n  faults: {dict(sorted(faults.items()))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""The protocol of datasets on a store under every fault, on simulated machines.

    python -m torture.simulate --seed 1 --seeds 10000
    python -m torture.simulate --seed 1234 --replay

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
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.simulated_machines import EndlessError, Killed, World
from support.simulated_protocol import (
    BUCKET,
    INPUTS,
    MERGED,
    ONE_TWO,
    OTHER,
    PILE,
    WHOLE,
    Engine,
    Studio,
    told_of_bin,
)

from tokpack.errors import TokpackError
from tokpack.indexed import MMapIndexedDataset
from tokpack.operations import verify
from tokpack.shards import cut
from tokpack.shards.drive import ShardRunner
from tokpack.shards.plan import ShardPlan, plan_path, save_plan
from tokpack.shards.survey import survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

KINDS: dict[str, dict[str, Any]] = {"plain": {}, "bare": {"append_eod": False}}
FAULTS = (0.0, 0.01, 0.03, 0.08)
_RESTARTED, _TRIES = 0.7, 3
EVIL = f"{BUCKET}/sets/evil"
_ID = slice(14, 86)  # of the plan, in its file
Step = tuple[str, "Callable[[], Any]"]


class Round:
    """One seed: its machines, what they did, and whether that was right."""

    def __init__(
        self,
        studio: Studio,
        seed: int,
        tell: Callable[[str], None] | None = None,
        *,
        scenario: str = "",
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
        self.done: Counter[str] = Counter()
        names = list(_SCENARIOS)
        chosen = self.rng.choices(names, [_WEIGHTS[name] for name in names])[0]
        self.scenario = scenario or chosen
        studio.use(self.world, part_bytes=self.rng.choice((64, 1 << 24)))
        self._kept = dict(studio.contents)

    def run(self) -> list[str]:
        """What was wrong."""
        self.protected = dict(self.studio.contents)
        try:
            _SCENARIOS[self.scenario](self)
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
        if prefix := _prefix_of(url):
            if prefix not in (PILE, EVIL):
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
    started: list[tuple[str, list[Step]]] = []
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
        name = f"{OTHER if kind == 'o' else kind}{number}"
        if started and rng.random() < 0.15:  # another process of a machine, that does the same
            name, steps = rng.choice(started)
        started.append((name, steps))
        own.start(name, steps)
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


def _rules(own: Round) -> None:
    """The store removes what it takes for old: uploads, and files of shards."""
    own.removes = True
    objects, uploads = own.world.model.objects, own.world.model.uploads

    def remove() -> None:
        for _ in range(own.rng.randint(1, 4)):
            own.world.sleep(own.rng.random() * 20)
            uploads.clear()
            old = [url for url in sorted(objects) if url.startswith(f"{PILE}-")]
            if old and own.rng.random() < 0.5:
                url = own.rng.choice(old)
                own.world.say(f"a rule removes {url}")
                own.world.model.delete(url, None)

    own.world.start("rules", remove)
    _makers(own)


def _whole(own: Round) -> None:
    """Several runs to one output, of the same texts or of others; with and without --overwrite."""
    studio, rng = own.studio, own.rng
    objects = own.world.model.objects
    for url, one in studio.states["whole", "made"].items():
        objects[url] = one
        own.protected[url] = one.data
    merges = rng.random() < 0.3
    own.may_replace = rng.random() < 0.5  # some of them have --overwrite
    for number in range(rng.choice((2, 2, 3))):
        overwrite = own.may_replace and rng.random() < 0.6
        flag = " --overwrite" * overwrite
        if merges:
            order = ONE_TWO[:: rng.choice((1, -1))]
            act = _call(studio.merge, order, MERGED, overwrite=overwrite)
            step = (f"merge{flag}", _call(own.made, "merge", order, MERGED, act))
        else:
            kind = rng.choice(list(KINDS))
            act = _call(studio.encode, WHOLE, **KINDS[kind], overwrite=overwrite)
            step = (f"encode{flag}", _call(own.made, "encode", kind, WHOLE, act))
        host = number - 1 if number and rng.random() < 0.2 else number  # or a process beside it
        own.start(f"run{host}", [step] * rng.choice((1, 1, 2)))
    own.end()
    prefix = MERGED if merges else WHOLE
    if f"{prefix}.json" not in objects:  # what a killed run has left may be replaced
        own.settled.clear()
        if merges:
            studio.merge(ONE_TWO, MERGED, overwrite=True)
        else:
            studio.encode(WHOLE, overwrite=True)
    own._check_whole(prefix)
    if f"{prefix}.json" not in objects:
        own.world.violate(f"nothing is at {prefix}, though a run can make it")


def _others(own: Round) -> None:
    """Objects of others, and inputs, that have the names of outputs."""
    studio, rng = own.studio, own.rng
    text = studio.contents[INPUTS[0]]
    own.world.model.objects |= studio.states["plain", rng.choice(("nothing", "made"))]
    foreign = {
        "rejects": f"{WHOLE}.rejects.jsonl",
        "json": f"{WHOLE}.json",
        "trace": f"{WHOLE}.trace",
        "idx": f"{WHOLE}.idx",
        "pile": f"{PILE}.json",
        "shard": f"{PILE}-00000.json",
    }
    name = rng.choice(list(foreign))
    url = foreign[name]
    own.world.model.place(url, text)
    own.protected[url] = text
    inputs = (url,) if name == "idx" or rng.random() < 0.6 else INPUTS  # no .idx tells whose it is

    def plan() -> None:
        options = studio.options(inputs, PILE, input_format="jsonl", append_eod=False)
        save_plan(cut.make_shard_plan(options), PILE, overwrite=True)

    more = {"overwrite": True, "input_format": "jsonl"}
    if name in ("rejects", "json", "trace", "idx"):
        more |= {"on_error": "skip"} if name == "rejects" else {}
        steps = [("encode --overwrite", _call(studio.encode, WHOLE, inputs, **more))]
    else:
        steps = [
            ("plan --overwrite", plan),
            ("commit --overwrite", _call(studio.commit, overwrite=True)),
        ]
    own.start("careless", steps)
    own.end()


def _strange(own: Round) -> None:
    """A shard is not the planned one, or not whole: nobody may commit it."""
    studio, rng = own.studio, own.rng
    objects = own.world.model.objects
    objects |= studio.states["plain", "made"]
    shard = f"{PILE}-{rng.randrange(studio.plans['plain'].shards):05d}"
    what = rng.choice(("of another plan", "without its .bin", "with a short .bin"))
    own.world.say(f"{shard} is {what}")
    if what == "of another plan":
        other = studio.states["bare", "made"]
        objects.update((url, other[url]) for url in other if url.startswith(f"{shard}."))
    elif what == "without its .bin":
        del objects[f"{shard}.bin"]
    else:
        whole = objects[f"{shard}.bin"]
        objects[f"{shard}.bin"] = whole._replace(data=whole.data[:-2])
    for number in range(rng.choice((1, 2))):
        own.start(f"committer{number}", [("commit", studio.commit)])
    own.end()


def _foreign(own: Round) -> None:
    """A manifest of somebody lists datasets that lie elsewhere."""
    studio, rng = own.studio, own.rng
    own.world.model.objects |= studio.states["plain", "committed"]
    url = f"{EVIL}.json"
    content = json.loads(own.world.model.objects[f"{PILE}.json"].data)
    elsewhere = ("reference::file:///tmp/x", "http://127.0.0.1:9/x", "s3://else/x", "memory://x/x")
    content["pieces"][-1]["prefix"] = rng.choice(elsewhere)
    own.world.model.place(url, json.dumps(content).encode())
    steps = [
        ("open", _call(_opened, EVIL)),
        ("verify", _call(verify, EVIL)),
        ("merge", _call(studio.merge, [EVIL], MERGED)),
    ]
    own.start("curious", rng.sample(steps, 1))
    own.end()


def _opened(prefix: str) -> None:
    with MMapIndexedDataset(prefix) as dataset:
        dataset.document(0)


def _status() -> None:
    survey(ShardPlan.load(PILE), PILE)


def _call(act: Callable[..., Any], *arguments: Any, **more: Any) -> Callable[[], Any]:
    return lambda: act(*arguments, **more)


_SCENARIOS: dict[str, Callable[[Round], None]] = {
    "makers": _makers,
    "ray": _ray,
    "rules": _rules,
    "whole": _whole,
    "others": _others,
    "strange": _strange,
    "foreign": _foreign,
}
_WEIGHTS = {
    "makers": 60,
    "ray": 8,
    "rules": 8,
    "whole": 14,
    "others": 6,
    "strange": 2,
    "foreign": 2,
}


# -- seeds


@contextmanager
def prepared(folder: Path) -> Iterator[Studio]:
    """What seeds share, in a folder of its own."""
    logger = logging.getLogger("tokpack")
    level = logger.level
    (folder / "tmp").mkdir()
    try:
        logger.setLevel(logging.ERROR)
        with Studio(folder) as studio:
            studio.prepare(KINDS)
            yield studio
    finally:
        logger.setLevel(level)


def rounds(
    seeds: Sequence[int], tell: Callable[[str], None] | None = None
) -> Iterator[tuple[int, Round, list[str]]]:
    """Run seeds; gives each with what was wrong."""
    place = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="tokpack-sim-", dir=place) as folder,
        prepared(Path(folder)) as studio,
    ):
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
            print(f"  python -m torture.simulate --seed {seed} --replay", flush=True)
            if not args.go_on:
                break
    seconds = time.process_time() - began
    print(f"{count} seeds, {failed} failed, {1000 * seconds / count:.1f} ms of processor time each")
    print(f"  commands: {dict(sorted(done.items()))}\n  faults: {dict(sorted(faults.items()))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

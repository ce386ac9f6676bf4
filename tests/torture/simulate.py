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
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
)
from support.simulated_round import EVIL, Round, Scenario, Step

from tokpack.dataset import MMapIndexedDataset
from tokpack.dataset.verify import verify
from tokpack.shards import cut
from tokpack.shards.committed import survey
from tokpack.shards.drive import ShardRunner
from tokpack.shards.plan import ShardPlan, save_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

KINDS: dict[str, dict[str, Any]] = {"plain": {}, "bare": {"append_eod": False}}


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


def _takers(own: Round) -> None:
    """Machines take shards, each the next free one, until none is left; then one commits."""
    studio = own.studio
    own.world.model.objects |= studio.states["plain", "planned"]
    own.has_leases = True
    for number in range(own.rng.choice((2, 2, 3, 4))):
        host = number - 1 if number and own.rng.random() < 0.2 else number  # or a process beside it
        own.start(f"taker{host}", [("take", studio.take)])
    own.end()
    own.has_leases = False
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


def _slurm(own: Round) -> None:
    """Tasks of a cluster take shards, and nodes are lost; who started them may be, too."""
    studio = own.studio
    own.has_leases = True

    def drive() -> None:
        plan, takers = ShardPlan.load(PILE), own.rng.choice((1, 2, 3))
        ShardRunner(plan, PILE, Engine(studio), takers=takers).run()

    own.start("head", [("plan", _call(studio.plan, "plain")), ("drive", drive)])
    own.end()
    own.has_leases = False
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


def _listed(own: Round) -> None:
    """The inputs are what a folder of the store lists."""
    act = _call(own.studio.encode, WHOLE, (f"{BUCKET}/in/",))
    own.start("run", [("encode", _call(own.made, "encode", "plain", WHOLE, act))])
    own.end()
    own._check_whole(WHOLE)


def _edited(own: Round) -> None:
    """An input is replaced while shards are made of it."""
    studio, rng = own.studio, own.rng
    model = own.world.model
    model.objects |= studio.states["plain", "planned"]
    url = rng.choice(INPUTS)
    later = studio.contents[url].replace(b"word", b"drow").replace(b"other", b"rehto")

    def edit() -> None:
        own.world.sleep(rng.random() * 20)
        own.world.say(f"somebody replaces {url}")
        del own.protected[url]
        model.place(url, later)

    own.world.start("editor", edit)
    shards = [(f"shard {n}", _call(studio.shard, n)) for n in range(studio.plans["plain"].shards)]
    for number in range(2):
        own.start(f"m{number}", [*rng.sample(shards, len(shards)), ("commit", studio.commit)])
    own.end()
    if f"{PILE}.json" in model.objects and studio.dataset() != studio.wanted["plain"]:
        own.world.violate(f"{PILE} is of two versions of {url}")


def _opened(prefix: str) -> None:
    with MMapIndexedDataset(prefix) as dataset:
        dataset.document(0)


def _status() -> None:
    survey(ShardPlan.load(PILE), PILE)


def _call(act: Callable[..., Any], *arguments: Any, **more: Any) -> Callable[[], Any]:
    return lambda: act(*arguments, **more)


SCENARIOS: dict[str, Scenario] = {
    "makers": (_makers, 60),
    "ray": (_ray, 8),
    "slurm": (_slurm, 6),
    "takers": (_takers, 12),
    "rules": (_rules, 8),
    "whole": (_whole, 14),
    "others": (_others, 6),
    "strange": (_strange, 2),
    "foreign": (_foreign, 2),
    "listed": (_listed, 2),
    "edited": (_edited, 3),
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
            one = Round(studio, seed, SCENARIOS.values(), tell)
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

"""The protocol of datasets on a store, on simulated machines; see torture/simulate.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.simulated_machines import World
from support.simulated_protocol import CREATED, PILE, WHOLE, Studio
from torture import simulate

from tokpack.errors import OutputError
from tokpack.shards.plan import plan_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def right(seeds: range) -> None:
    for seed, _, wrong in simulate.rounds(seeds):
        assert not wrong, f"python -m torture.simulate --seed {seed} --replay"


@pytest.mark.promises
def test_a_few_seeds() -> None:
    right(range(20_000, 20_060))


@pytest.mark.slow
def test_many_seeds() -> None:
    """`make torture` draws thousands; bugs are planted in tests/shards/test_planted.py."""
    right(range(100))


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    with simulate.prepared(tmp_path_factory.mktemp("studio")) as studio:
        yield studio


class Deadly(World):
    """A world whose request ``at`` kills who makes it, before or behind it."""

    def __init__(self, at: int, fault: str) -> None:
        super().__init__(0)
        self.left, self.fault, self.last = at, fault, ""

    def _fault(self, name: str) -> str:
        self.left -= 1
        if self.left:
            return ""
        self.last = name
        return self.fault


def encode(studio: Studio) -> None:
    studio.encode(WHOLE)


def shard(studio: Studio) -> None:
    studio.shard(0)


@pytest.mark.parametrize("part_bytes", [64, 1 << 24])
@pytest.mark.parametrize("fault", ["kill", "kill behind"])
@pytest.mark.parametrize("act", [encode, shard])
def test_after_a_kill_at_any_request_the_same_command_makes_the_output(
    studio: Studio, act: Callable[[Studio], None], fault: str, part_bytes: int
) -> None:
    """And nothing of the killed one is left, in an upload or in the scratch folder."""

    def after(at: int) -> tuple[Deadly, dict[str, bytes], list[Path]]:
        world = Deadly(at, fault)
        studio.use(world, part_bytes=part_bytes)
        world.model.objects |= studio.states["plain", "planned"]
        for _ in range(2 if at else 1):
            one = world.start("machine", lambda: act(studio))
            world.run()
        assert one.error is None, (at, world.last)
        left = list((studio.folder / "machines").glob("*/scratch/**/*"))
        # Of an upload whose name nobody was told nothing is there but that.
        assert not any(one.parts for one in world.model.uploads.values()), (at, world.last)
        objects = {
            url: CREATED.sub(b"", one.data)
            for url, one in world.model.objects.items()
            if ".plan/" not in url
        }
        return world, objects, left

    _, wanted, _ = after(0)
    at, world = 0, None
    while world is None or world.left <= 0:
        at += 1
        world, made, left = after(at)
        assert made == wanted, (at, world.last)
        assert not left, (at, world.last)
    assert at > 20


def test_a_commit_whose_plan_was_replaced_meanwhile_is_taken_back(studio: Studio) -> None:
    """It looks at the plan before it writes, and again when it has written."""
    world = World(0)
    studio.use(world)
    world.model.objects |= studio.states["plain", "made"]
    other = studio.states["bare", "planned"][plan_path(PILE)].data

    def changed(url: str) -> None:
        if url == f"{PILE}.json" and url in world.model.objects:
            world.model.place(plan_path(PILE), other)

    world.model.changed = changed
    with pytest.raises(OutputError, match=r"/pile\.plan/plan\.jsonl "):
        studio.commit()
    assert f"{PILE}.json" not in world.model.objects

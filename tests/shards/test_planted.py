"""Bugs that are planted in the protocol, each of which the simulator has to find.

The code is changed in memory. ``most`` is a number of seeds in which each is found: about ten
times as many as it took. A bug that costs work and no data is none to the simulator.
"""

from __future__ import annotations

import contextlib
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import Mock, patch

import pytest
from support.simulated_machines import World
from torture import simulate

from tokpack.dataset import manifest
from tokpack.dataset.outputs import NewFiles
from tokpack.encoding import deliver
from tokpack.encoding.plan import Plan
from tokpack.shards import committed, cut, plan, take
from tokpack.shards.take import Lease
from tokpack.sources import Source
from tokpack.storage import outputs
from tokpack.storage.objects import access, upload
from tokpack.storage.objects.access import Objects
from tokpack.storage.objects.trouble import TransientError
from tokpack.storage.objects.urls import StoredObject
from tokpack.storage.outputs import NewObjects, versions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


pytestmark = pytest.mark.slow


class Bug(NamedTuple):
    """How tokpack is changed; ``scenario`` shows it, and ``most`` seeds of that are enough."""

    scenario: str
    most: int
    planted: Callable[[], contextlib.AbstractContextManager[Any]]


def method(owner: Any, name: str, bug: Callable[..., Any]) -> Callable[[], Any]:
    """Replace a method or function; ``bug`` is called with the real one first."""
    real = getattr(owner, name)
    return lambda: patch.object(owner, name, lambda *args, **more: bug(real, *args, **more))


def together(*bugs: Callable[[], Any]) -> Callable[[], Any]:
    """Plant several bugs, where one thing is guarded twice."""

    @contextmanager
    def planted() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for bug in bugs:
                stack.enter_context(bug())
            yield

    return planted


def instead(bug: Callable[..., Any], *owners_and_names: tuple[Any, str]) -> Callable[[], Any]:
    """Replace functions by one."""
    return together(*(partial(patch.object, *one, bug) for one in owners_and_names))


nothing = partial(instead, lambda *_, **__: None)


def _there(real: Any, self: Objects, url: str, content: Any, mode: Any = "overwrite") -> Any:
    """What another has written counts as written here: 412 is success."""
    return real(self, url, content, mode) or self.stat(url)


def _forever(_: Any, self: Objects, url: str, act: Any, **more: Any) -> Any:
    """Credentials that have expired are tried again as if that would pass."""
    while True:
        try:
            return Objects.__dict__["really_tried"](self, url, act, **more)
        except access.StoreError as error:
            if "expired" not in str(error):
                raise


def _manifest_first() -> Any:
    """The manifest is written before the data that it tells of."""
    write = NewObjects.write

    def later(self: NewObjects, *args: Any, **more: Any) -> None:
        self.__dict__.setdefault("waiting", []).append((args, more))

    def first(self: NewObjects, url: str, content: bytes) -> None:
        self._written[url] = outputs.replace(url, content, self._versions.get(url))
        for args, more in self.__dict__.pop("waiting", ()):
            write(self, *args, **more)

    return patch.multiple(NewObjects, write=later, write_last=first)


def _unchecked(_: Any, self: NewObjects, url: str, content: bytes) -> None:
    self._written[url] = outputs.replace(url, content, self._versions.get(url))


def _manifest_last(real: Any, self: NewFiles, *args: Any, **more: Any) -> None:
    real(self, *args, **more)
    self._stale.sort(key=lambda path: path.endswith(".json"))


def _conflict(real: Any, self: World, *request: Any) -> Any:
    """A 409 to a PUT is taken for its success."""
    fault, name, url, _ = request
    if fault == "409" and name == "put":
        return self.model.stat(url) or StoredObject(url, 0, "", 0)
    return real(self, *request)


def _cut_off(real: Any, store: Any, folder: str) -> Any:
    """A listing that broke off is taken for whole."""

    def below(url: str) -> Iterator[StoredObject]:
        with contextlib.suppress(TransientError):
            yield from store.below(url)

    return real(SimpleNamespace(below=below), folder)


def _any_version(real: Any, self: Objects, source: StoredObject, *span: int) -> Any:
    """An object is read as it is now, whichever was planned."""
    return real(self, self.stat(source.url) or source, *span)


def _looked_at(outputs: Any, *_: Any, **__: Any) -> Any:
    """Whatever is there may be replaced."""
    return versions_of(path for path, _ in outputs)


def _unseen(real: Any, plan: Any, prefix: str, before: Any = ()) -> Any:
    """What others make counts as done."""
    shards = real(plan, prefix, before)
    return [replace(one, state="done") if one.state == "running" else one for one in shards]


def _anyhow(real: Any, self: Lease, content: bytes) -> None:
    """Only the first report of a holder looks whether it is still its shard."""
    real(self, content)
    self._there = "overwrite"


BUGS: dict[str, Bug] = {
    "two may take a shard at the same moment": Bug(
        "takers",
        300,
        method(Lease, "__init__", lambda real, s, *args: real(s, *args[:2], "overwrite")),
    ),
    "who comes back when its lease has ended takes it again": Bug(
        "takers", 300, method(Lease, "_own", lambda _, s, __: s._storage.stats([s._path])[0])
    ),
    "who comes back when its lease has ended overwrites it": Bug(
        "takers", 1_500, method(Lease, "__call__", _anyhow)
    ),
    "the clock of a machine says who is lost": Bug(
        "takers",
        300,
        method(take, "_is_free", lambda real, one, age: one.state == "lost" or real(one, age)),
    ),
    "a lease ends after a moment": Bug(
        "takers", 300, lambda: patch.object(take, "LOST_SECONDS", 10.0)
    ),
    "who takes shards does not wait for what others make": Bug(
        "takers", 300, method(take, "survey", _unseen)
    ),
    "a manifest may name datasets elsewhere": Bug(
        "foreign", 20, instead(lambda *_: True, (manifest, "is_trusted"))
    ),
    "what goes with an output is replaced whatever it is": Bug(
        "others", 100, nothing((outputs, "check_replaceable"))
    ),
    "an input may be replaced": Bug(
        "others", 100, instead(lambda _: object(), (outputs, "object_of"))
    ),
    "plan and commit replace whatever is there": Bug(
        "others", 100, instead(_looked_at, (plan, "look"), (committed, "look"))
    ),
    "409 counts as success": Bug("makers", 1_500, method(World, "_faulty", _conflict)),
    "shards read whatever is there of an input": Bug(
        "edited",
        50,
        together(nothing((Source, "check_unchanged")), method(Objects, "read", _any_version)),
    ),
    "a listing that breaks off is taken for whole": Bug(
        "listed", 3_000, method(access, "_visible_below", _cut_off)
    ),
    "an object is written without its precondition": Bug(
        "whole", 1_500, method(Objects, "put", lambda real, s, url, data, _="": real(s, url, data))
    ),
    "an upload in parts replaces what is there": Bug(
        "whole",
        1_500,
        method(
            upload,
            "_in_parts",
            lambda real, url, some, _, **more: real(url, some, "overwrite", **more),
        ),
    ),
    "412 counts as success": Bug("whole", 1_500, method(Objects, "put", _there)),
    "nobody looks whether the plan is another by now": Bug(
        "makers", 300, nothing((cut, "check_current"), (committed, "check_current"))
    ),
    "the commit does not look whether the plan is another by now": Bug(
        "makers", 300, nothing((committed, "check_current"))
    ),
    "shards of a plan that was replaced stay": Bug(
        "makers", 300, nothing((cut, "remove_replaced"), (committed, "remove_replaced"))
    ),
    "any version is removed": Bug(
        "whole", 1_500, method(Objects, "delete", lambda real, s, url, _=None: real(s, url))
    ),
    "the manifest is sent before its .bin": Bug("makers", 300, _manifest_first),
    "data that is gone is not noticed before the manifest is sent": Bug(
        "whole", 1_500, method(NewObjects, "write_last", _unchecked)
    ),
    "the commit takes shards of another plan": Bug(
        "strange", 50, method(Plan, "matches", lambda *_: True)
    ),
    "the commit does not look at the sizes of files": Bug(
        "strange", 50, method(committed, "sizes", lambda *_: [])
    ),
    "two processes of a machine work in one scratch folder": Bug(
        "whole",
        1_500,
        lambda: patch.object(deliver, "Lock", lambda _: contextlib.nullcontext(Mock())),
    ),
    "a run that goes on removes what is whole": Bug(
        "whole", 1_500, method(deliver, "exists", lambda *_: False)
    ),
    "expired credentials are tried for ever": Bug(
        "makers",
        50,
        lambda: patch.multiple(
            Objects,
            really_tried=Objects._tried,
            _tried=lambda self, *args, **more: _forever(None, self, *args, **more),
            create=True,
        ),
    ),
    "merge removes the .idx before its manifest": Bug(
        "whole", 1_500, method(NewFiles, "__init__", _manifest_last)
    ),
}
# Seeds by which rare ones were found: they are tried first.
FOUND = {20, 126, 131, 159, 237, 239, 315, 381, 463, 565}


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[simulate.Studio]:
    with simulate.prepared(tmp_path_factory.mktemp("studio")) as studio:
        yield studio


@pytest.mark.parametrize("name", BUGS)
def test_it_is_found(studio: simulate.Studio, name: str) -> None:
    bug = BUGS[name]
    with bug.planted():
        scenario = simulate.SCENARIOS[bug.scenario]
        seeds = sorted(range(bug.most), key=lambda seed: seed not in FOUND)
        assert any(simulate.Round(studio, seed, [scenario]).run() for seed in seeds)

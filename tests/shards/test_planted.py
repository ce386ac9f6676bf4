"""Bugs that are planted in the protocol, each of which the simulator has to find.

The code is changed in memory. ``most`` is a number of seeds in which each is found: about ten
times as many as it took. A bug that costs work and no data is none to the simulator: such are in
docs/reliability.md.
"""

from __future__ import annotations

import contextlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import pytest
from torture import simulate

from tokpack.encoding import deliver
from tokpack.encoding.plan import Plan
from tokpack.indexed.new_files import NewFiles
from tokpack.shards import commit, work
from tokpack.stores import access, outputs, upload
from tokpack.stores.access import Objects
from tokpack.stores.outputs import NewObjects

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


def nothing(*owners_and_names: tuple[Any, str]) -> Callable[[], Any]:
    """Let functions do nothing."""

    @contextmanager
    def planted() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for owner, name in owners_and_names:
                stack.enter_context(patch.object(owner, name, lambda *_, **__: None))
            yield

    return planted


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


BUGS: dict[str, Bug] = {
    "an object is written without its precondition": Bug(
        "whole", 1_500, method(Objects, "put", lambda real, s, url, data, _="": real(s, url, data))
    ),
    "an upload in parts replaces what is there": Bug(
        "whole",
        1_500,
        method(
            upload, "_in_parts", lambda real, u, r, on, _, begun: real(u, r, on, "overwrite", begun)
        ),
    ),
    "412 counts as success": Bug("whole", 1_500, method(Objects, "put", _there)),
    "nobody looks whether the plan is another by now": Bug(
        "makers", 300, nothing((work, "check_current"), (commit, "check_current"))
    ),
    "the commit does not look whether the plan is another by now": Bug(
        "makers", 300, nothing((commit, "check_current"))
    ),
    "shards of a plan that was replaced stay": Bug(
        "makers", 300, nothing((work, "remove_replaced"), (commit, "remove_replaced"))
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
        "strange", 50, method(commit, "sizes", lambda *_: [])
    ),
    "two processes of a machine work in one scratch folder": Bug(
        "whole", 1_500, lambda: patch.object(deliver, "Lock", lambda _: contextlib.nullcontext())
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


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[simulate.Studio]:
    with simulate.prepared(tmp_path_factory.mktemp("studio")) as studio:
        yield studio


@pytest.mark.parametrize("name", BUGS)
def test_it_is_found(studio: simulate.Studio, name: str) -> None:
    bug = BUGS[name]
    with bug.planted():
        scenario = simulate.SCENARIOS[bug.scenario]
        assert any(simulate.Round(studio, seed, [scenario]).run() for seed in range(bug.most))

"""Objects in memory under every fault, with a clock that only counts: the code that stores run."""

from __future__ import annotations

from collections import Counter
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokpack.errors import OutputError, StoreError, UnreachableError
from tokpack.stores.access import Objects
from tokpack.stores.trouble import ChangedError, MissingError, TransientError, failure
from tokpack.stores.urls import StoredObject

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.stores.ranges import Range
    from tokpack.stores.urls import PutMode

URL = "s3://memory/x"


class Time:
    """A clock that stands still while nobody sleeps."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds

    def uniform(self, _least: float, most: float) -> float:
        return most


class Memory:
    """A backend whose requests fail as they are told: what is "lost" was done, unlike "broken"."""

    def __init__(self, faults: Iterator[str]) -> None:
        self.objects: dict[str, tuple[int, bytes]] = {}
        self.versions = 0
        self.requests: Counter[str] = Counter()
        self._faults = faults

    def stat(self, url: str) -> StoredObject | None:
        return self._fault("stat", self._version(url))

    def below(self, url: str) -> list[StoredObject]:
        raise NotImplementedError

    def level(self, url: str) -> tuple[list[str], list[StoredObject]]:
        raise NotImplementedError

    def read(self, source: StoredObject, begin: int, end: int) -> bytes:
        if (now := self._version(source.url)) is None:
            raise MissingError(source.url)
        if now != source:
            raise ChangedError(source.url)
        return self._fault("read", self.objects[source.url][1][begin:end])

    def put(self, url: str, content: bytes | Sequence[Range], mode: PutMode) -> StoredObject:
        assert isinstance(content, bytes)
        fault = next(self._faults)
        if fault in ("broken", "refused"):
            raise TransientError(fault, refused=fault == "refused")
        now = self._version(url)
        if mode != "overwrite" and now != (None if mode == "create" else mode):
            raise ChangedError(url)
        self.requests["put"] += 1
        version = self.place(url, content)
        if fault == "lost":
            raise TransientError("lost")
        return version

    def delete(self, url: str, version: StoredObject | None) -> None:
        now = self._version(url)
        if now is None or (version and now != version):
            raise ChangedError(url)
        del self.objects[url]
        self._fault("delete", None)

    def place(self, url: str, content: bytes) -> StoredObject:
        """Write without any fault."""
        self.versions += 1
        self.objects[url] = self.versions, content
        version = self._version(url)
        assert version
        return version

    def _version(self, url: str) -> StoredObject | None:
        if url not in self.objects:
            return None
        version, content = self.objects[url]
        return StoredObject(url, len(content), f'"{version}"', 0)

    def _fault(self, name: str, answer: Any) -> Any:
        self.requests[name] += 1
        if next(self._faults):
            raise TransientError(name)
        return answer


def simulated(faults: Sequence[str] = ()) -> tuple[Objects, Memory, Time]:
    """Objects on a memory whose first requests have these faults, "" for none."""
    memory, time = Memory(chain(faults, repeat(""))), Time()
    return Objects(lambda _: memory, time), memory, time


FAULTS = st.lists(st.sampled_from(["", "", "broken", "lost"]), max_size=12)


@given(FAULTS, st.sampled_from(["create", "version", "overwrite"]), st.booleans())
def test_of_two_writers_one_wins(faults: list[str], form: str, same: bool) -> None:
    """However many answers are lost: who is told that his bytes are there finds them there."""
    objects, memory, _ = simulated(faults)
    contents = [b"ours", b"ours" if same else b"theirs"]
    mode: Any = form
    if form == "version":
        mode = memory.place(URL, b"old")
    made = [objects.put(URL, content, mode) for content in contents]
    assert made[0] is not None
    assert (made[1] is None) == (form != "overwrite" and not same)
    assert memory.objects[URL][1] == contents[form == "overwrite"]
    assert objects.contents([URL, f"{URL}/none"], 9) == [contents[form == "overwrite"], None]


@pytest.mark.parametrize("fault", ["", "lost", "refused"])
def test_the_same_bytes_are_ours_where_an_answer_was_lost(fault: str) -> None:
    objects, memory, _ = simulated([fault])
    if fault != "lost":
        memory.place(URL, b"same")
    written = objects.put(URL, b"same", "create")
    assert written
    assert written.ours == (fault == "lost")


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (501, "NotImplemented", "If-None-Match"),
        (403, "RequestTimeTooSkewed", "clock of this machine is not that of the store"),
        (400, "ExpiredToken", "expired"),
    ],
)
def test_what_will_not_pass_is_not_asked_again(number: int, code: str, words: str) -> None:
    error = failure(URL, number, code, "")
    assert isinstance(error, StoreError)
    assert words in str(error)


@given(FAULTS)
def test_a_version_is_removed_once(faults: list[str]) -> None:
    objects, memory, _ = simulated(faults)
    old = memory.place(URL, b"old")
    new = memory.place(URL, b"new")
    assert not objects.delete(URL, old)
    assert objects.delete(URL, new)
    assert objects.delete(URL, new)  # it is gone
    assert memory.objects == {}
    with pytest.raises(StoreError, match="changed while it was read"):
        objects.read(new, 0, 3)


def test_what_fails_for_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """After four times the patience by the clock; a write whose bytes are there has succeeded."""
    monkeypatch.setenv("TOKPACK_STORE_TIMEOUT", "100")
    objects, memory, time = simulated(["read"] * 999)
    source = memory.place(URL, b"old")
    with pytest.raises(UnreachableError, match=r"s3://memory/x: read \(tried for \d+ s\)"):
        objects.read(source, 0, 3)
    assert 300 < time.at < 400
    assert memory.requests["read"] < 60
    for kind, written in (("broken", False), ("lost", True)):
        objects, memory, time = simulated([kind] * 46)
        if not written:
            with pytest.raises(OutputError, match=r"^cannot write s3://memory/x: broken \(tried"):
                objects.put(URL, b"new", "create")
            assert memory.objects == {}
        else:
            assert objects.put(URL, b"new", "create")
            assert memory.requests["put"] == 1
        assert time.at < 400


def test_a_store_that_never_answered_is_an_error_at_once() -> None:
    objects, memory, time = simulated()

    def silent(url: str) -> None:
        raise TransientError("does not answer", silent=True)

    memory.stat = silent  # type: ignore[assignment]
    with pytest.raises(StoreError, match=r"^s3://memory/x: does not answer$"):
        objects.stat(URL)
    assert time.at == 0

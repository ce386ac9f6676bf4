"""Objects in memory under every fault, with a clock that only counts: the code that stores run."""

from __future__ import annotations

from collections import Counter
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.simulated_store import Gated, S3Model

from tokpack import machine
from tokpack.errors import OutputError, StoreError, UnreachableError
from tokpack.storage.disk import durable
from tokpack.storage.objects import access, upload
from tokpack.storage.objects.access import Objects
from tokpack.storage.objects.trouble import TransientError, failure
from tokpack.storage.objects.upload import TakenError
from tokpack.storage.objects.urls import LocalFile, Range, etag_of_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

URL = "s3://memory/x"


class Time(machine.Clock):
    """A clock that stands still while nobody sleeps."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds

    def uniform(self, _least: float, most: float) -> float:
        return most


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "clock", machine.clock)  # which a test replaces


def simulated(faults: Sequence[str] = ()) -> tuple[Objects, S3Model, Time, Counter[str]]:
    """Objects on a model whose first requests have these faults, "" for none.

    What is "lost" was done, unlike what is "broken" or "refused"; a number is what the store
    answers. Counts what is done.
    """
    machine.clock = time = Time()
    model, left = S3Model(time.now), chain(faults, repeat(""))
    done: Counter[str] = Counter()

    def gate(name: str, url: str, act: Callable[[], Any]) -> Any:
        fault = next(left)
        if fault in ("broken", "refused"):
            raise TransientError(fault, refused=fault == "refused")
        if fault.isdigit():
            raise failure(url, int(fault), "", "")
        answer = act()
        done[name] += 1
        if fault:
            raise TransientError(fault)
        return answer

    return Objects(lambda _: Gated(model, gate)), model, time, done


FAULTS = st.lists(st.sampled_from(["", "", "broken", "lost"]), max_size=12)


@given(FAULTS, st.sampled_from(["create", "version", "overwrite"]), st.booleans())
def test_of_two_writers_one_wins(faults: list[str], form: str, same: bool) -> None:
    """However many answers are lost: who is told that his bytes are there finds them there."""
    objects, model, _, _ = simulated(faults)
    contents = [b"ours", b"ours" if same else b"theirs"]
    mode: Any = form
    if form == "version":
        mode = model.place(URL, b"old")
    made = [objects.put(URL, content, mode) for content in contents]
    assert made[0] is not None
    assert (made[1] is None) == (form != "overwrite" and not same)
    assert model.objects[URL].data == contents[form == "overwrite"]
    assert objects.contents([URL, f"{URL}/none"], 9) == [contents[form == "overwrite"], None]


@pytest.mark.parametrize("fault", ["", "lost", "refused"])
def test_the_same_bytes_are_ours_where_an_answer_was_lost(fault: str) -> None:
    objects, model, _, _ = simulated([fault])
    if fault != "lost":
        model.place(URL, b"same")
    written = objects.put(URL, b"same", "create")
    assert written
    assert written.ours == (fault == "lost")


@pytest.mark.parametrize("fault", ["", "lost", "refused"])
def test_of_an_upload_too(fault: str) -> None:
    objects, model, _, _ = simulated(["", "", fault])
    upload = objects.begin(URL)
    parts = [objects.part(URL, upload, 1, b"same")]
    whole = f'"{etag_of_parts(parts)}"'
    if fault != "lost":
        model.place(URL, b"same", whole)
    assert objects.complete(URL, upload, parts, "create") == (whole, fault == "lost")


@pytest.mark.parametrize(("fault", "may_be_done"), [("broken", True), ("refused", False)])
def test_a_write_without_an_answer_may_be_done(fault: str, *, may_be_done: bool) -> None:
    objects, _, _, _ = simulated([fault, "403"])
    with pytest.raises(OutputError, match=rf"{URL}: .*\(403 ") as caught:
        objects.put(URL, b"new", "create")
    assert isinstance(caught.value.__cause__, StoreError)
    assert caught.value.__cause__.may_be_done == may_be_done


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
    objects, model, _, _ = simulated(faults)
    old = model.place(URL, b"old")
    new = model.place(URL, b"new")
    assert not objects.delete(URL, old)
    assert objects.delete(URL, new)
    assert objects.delete(URL, new)  # it is gone
    assert model.objects == {}
    with pytest.raises(StoreError, match=rf"{URL} changed\b"):
        objects.read(new, 0, 3)


def test_what_was_to_be_replaced_and_is_gone_is_another_version() -> None:
    """S3 answers 404 then, to a PUT and to the end of an upload alike."""
    objects, model, _, _ = simulated()
    old = model.place(URL, b"old")
    assert objects.delete(URL, old)
    assert objects.put(URL, b"new", old) is None
    upload = objects.begin(URL)
    etag = objects.part(URL, upload, 1, b"new")
    assert objects.complete(URL, upload, [etag], old) is None
    assert model.objects == {}


def test_what_fails_for_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """After four times the patience by the clock; a write whose bytes are there has succeeded."""
    monkeypatch.setenv("TOKPACK_STORE_TIMEOUT", "100")
    objects, model, time, _ = simulated(["lost"] * 999)
    source = model.place(URL, b"old")
    with pytest.raises(UnreachableError, match=rf"{URL}: lost .* \d+ s\)"):
        objects.read(source, 0, 3)
    assert 300 < time.at < 400
    for kind, written in (("broken", False), ("lost", True)):
        objects, model, time, done = simulated([kind] * 46)
        if not written:
            with pytest.raises(OutputError, match=rf"{URL}: broken .* \d+ s\)"):
                objects.put(URL, b"new", "create")
            assert model.objects == {}
        else:
            assert objects.put(URL, b"new", "create")
            assert done["put"] == 1
        assert time.at < 400


@given(FAULTS, st.sampled_from(["create", "version", "overwrite"]), st.booleans())
def test_of_two_uploads_in_parts_one_wins(
    tmp_path_factory: pytest.TempPathFactory, faults: list[str], form: str, same: bool
) -> None:
    """As of two writers, but the same bytes are another's; of the one that does not win nothing
    stays under way.
    """
    folder = tmp_path_factory.mktemp("parts", numbered=True)
    objects, model, _, _ = simulated(faults)
    mode: Any = model.place(URL, b"old") if form == "version" else form
    source = model.place(f"{URL}/from", b"copied" * 10)
    made = []
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in (
            *((upload, "objects", objects), (access, "objects", objects)),
            *((upload, "LEAST_PART", 4), (upload.limits, "PART_BYTES", 4)),
        ):
            patch.setattr(module, name, value)
        for name in ("ours", "ours" if same else "theirs"):
            path = folder / name
            path.write_bytes(name.encode() * 5)
            file = LocalFile(str(path), durable.identity(path))
            ranges = [Range(file, 0, len(name) * 5), Range(source, 6, 48)]
            try:
                made.append(upload.compose(URL, ranges, mode=mode))
            except TakenError:
                made.append(None)
    contents = [name * 5 + b"copied" * 7 for name in (b"ours", b"theirs")]
    assert made[0] is not None
    assert (made[1] is None) == (form != "overwrite")
    assert model.objects[URL].data == contents[form == "overwrite" and not same]
    assert not any(one.parts for one in model.uploads.values())


def test_a_store_that_never_answered_is_an_error_at_once() -> None:
    objects, model, time, _ = simulated()

    def silent(url: str) -> None:
        raise TransientError("does not answer", silent=True)

    model.stat = silent  # type: ignore[assignment, method-assign]
    with pytest.raises(StoreError, match=r"^s3://memory/x: does not answer$"):
        objects.stat(URL)
    assert time.at == 0

"""What ``durable`` promises of names and identities, with real files."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any

import pytest
from support.faults import failure, plant

from tokpack.errors import OutputError
from tokpack.storage.disk import durable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_the_identity_is_that_of_the_contents_too(tmp_path: Path) -> None:
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    assert durable.identity(old) is durable.same_file(old) is durable.identity("a\0b") is None
    (tmp_path / "old").write_bytes(b"x")
    os.link(old, new)
    os.symlink(old, tmp_path / "sign")
    before = durable.identity(old)
    assert before is not None
    assert before == durable.identity(new) == durable.identity(str(tmp_path / "sign"))
    assert before != durable.identity(str(tmp_path / "sign"), follow_links=False)
    (tmp_path / "new").write_bytes(b"xy")
    assert durable.identity(old) != before
    assert durable.same_file(old) == before[:2]


def test_want_of_memory_is_not_the_fault_of_a_path() -> None:
    for number, kind in ((errno.ENOMEM, MemoryError), (errno.EIO, OutputError)):
        with pytest.raises(kind), durable.cannot_write("x"):
            raise failure(number)


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EIO, 2), (errno.ENOSPC, 2), (errno.ENOENT, 1), (errno.EACCES, 1)]
)
def test_the_exit_code_says_whether_the_machine_failed(number: int, code: int) -> None:
    with pytest.raises(OutputError) as caught, durable.cannot_write("x"):
        raise failure(number)
    assert (caught.value.errno, caught.value.exit_code) == (number, code)


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is asked of the system, by the names of files."""
    done: list[tuple[str, str]] = []

    def sync(file: int) -> None:
        done.append(("sync", os.path.basename(os.readlink(f"/proc/self/fd/{file}"))))

    def noted(what: str, real: Any) -> Any:
        def act(old: str, new: str) -> None:
            done.append((what, os.path.basename(new)))
            real(old, new)

        return act

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", noted("name", os.replace))
    monkeypatch.setattr(os, "link", noted("link", os.link))
    return done


def test_contents_are_synced_before_names_and_names_then(
    tmp_path: Path, order: list[tuple[str, str]]
) -> None:
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    synced, home = ("sync", f"a{durable.UNFINISHED}"), ("sync", tmp_path.name)
    open_files = os.listdir("/proc/self/fd")

    def took(act: Callable[..., Any], *arguments: Any, **more: Any) -> list[tuple[str, str]]:
        order.clear()
        act(*arguments, **more)
        assert os.listdir("/proc/self/fd") == open_files
        assert sorted(os.listdir(tmp_path)) in (["a"], ["a", "b"])
        return list(order)

    assert took(durable.replace_file, a, [b"x"]) == [synced, ("name", "a"), home]
    assert took(durable.replace_file, a, [b"y"], fsync=False) == [("name", "a")]
    assert took(durable.replace_json, a, {}) == [synced, ("name", "a"), home]
    os.unlink(a)
    (synced_beside, *rest) = took(durable.create_file, a, b"z")
    assert synced_beside[0] == "sync"
    assert synced_beside[1].endswith(durable.UNFINISHED)
    assert rest == [("link", "a"), home]
    assert not durable.create_file(a, b"other")
    assert (tmp_path / "a").read_bytes() == b"z"
    assert took(durable.rename, a, a) == [("name", "a"), home]
    assert took(durable.rename, a, a, fsync=False) == [("name", "a")]
    assert took(durable.sync_file, a) == [("sync", "a")]

    def both() -> None:
        with durable.AtomicFiles() as files:
            files.write(a, [b"1"])
            files.write(b, [b"2"])
            files.commit()

    names = [("name", "a"), home, ("name", "b"), home]
    assert took(both) == [synced, ("sync", f"b{durable.UNFINISHED}"), *names]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_only_some_file_systems_sync_no_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    assert durable.sync_folder(str(tmp_path))
    of_folder = lambda file: stat.S_ISDIR(os.fstat(file).st_mode)  # noqa: E731
    plant(os, "fsync", failure(number), when=of_folder, patch=monkeypatch)
    open_files = os.listdir("/proc/self/fd")
    if number == errno.EINVAL:
        assert not durable.sync_folder(str(tmp_path))
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            durable.sync_folder(str(tmp_path))
        with pytest.raises(OutputError, match="/a:"):  # a name that is not durable is none
            durable.create_file(str(tmp_path / "a"), b"")
    assert os.listdir("/proc/self/fd") == open_files
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("there", [(), ("a",), ("a", "b")])
def test_what_replaced_a_file_stays_if_only_the_last_sync_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...]
) -> None:
    for name in there:
        (tmp_path / name).write_bytes(b"old")
    of_folder = lambda file: stat.S_ISDIR(os.fstat(file).st_mode)  # noqa: E731
    plant(os, "fsync", failure(errno.EIO), when=of_folder, at=2, patch=monkeypatch)
    with durable.AtomicFiles() as files:
        for name in "ab":
            files.write(str(tmp_path / name), [b"new"])
        with pytest.raises(OutputError, match="/b:"):
            files.commit()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(
        there, b"new"
    )


@pytest.mark.promises
@pytest.mark.parametrize("there", [(), ("a",), ("a", "b")])
@pytest.mark.parametrize("at", [1, 2])
def test_of_several_files_all_have_their_names_or_none_of_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], at: int
) -> None:
    for name in there:
        (tmp_path / name).write_bytes(b"old")

    def write() -> None:
        with durable.AtomicFiles() as files:
            for name in "ab":
                files.write(str(tmp_path / name), [b"new"])
            files.commit()

    plant(os, "replace", OSError(errno.EIO, "broken"), at=at, times=1, patch=monkeypatch)
    with pytest.raises(OutputError, match=f"/{'_ab'[at]}: broken"):
        write()
    kept = {name: b"old" for name in there if at == 1 or name == "b"}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == kept

"""Passes that tasks make, against those of this process: the same bytes in any order and after
kills.
"""

from __future__ import annotations

import re
import signal
import subprocess
import tempfile
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import forked
from support.copies import flat, near_copies, write_all
from support.documents import DOCUMENTS, Documents
from support.faults import PLANT
from support.process_engine import ProcessEngine
from support.tasks import Here, directly, on

import tokpack
from tokpack.dataset import MMapIndexedDataset
from tokpack.dataset.results import NewResult, Result
from tokpack.dataset.verify import verify
from tokpack.documents import write_view
from tokpack.errors import FormatError, InputError, UsageError, WorkerError
from tokpack.look.statistics import stats
from tokpack.shards.plan import plan_path
from tokpack.shards.tasks import TaskList

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

KEYS = f"part*.keys-{'?' * 16}"
CREATED = re.compile(rb'"created": ?"[^"]*"')


def copied(folder: Path, seed: int = 1, count: int = 60, shards: int = 4) -> list[str]:
    """Datasets with near and exact copies within and across them, and documents without tokens."""
    documents = near_copies(seed, count)
    documents += [[], documents[3], [7], [7], documents[0]]
    return write_all(folder, [[[one] for one in documents[n::shards]] for n in range(shards)])


def made(output: Path) -> dict[str, bytes]:
    """What dedup wrote, but for the time, and the name."""
    written = {}
    for path in output.parent.glob(f"{output.name}.*"):
        content = CREATED.sub(b"", path.read_bytes()).replace(output.name.encode(), b"NAME")
        written[path.name.removeprefix(output.name)] = content
    return written


NEAR: tuple[Mapping[str, Any], ...] = (
    {},
    {"near": 0.8},
    {"near": 0.5, "ngram": 2, "bands": 20, "rows": 4},
    {"near": 0.7, "verify": False},
)


@given(
    st.integers(0, 10**6),
    st.sampled_from(NEAR),
    st.randoms(use_true_random=False),
    st.sampled_from((1, 3, 1 << 22)),
)
@settings(max_examples=10, deadline=None)
def test_tasks_in_any_order_with_lost_machines_make_the_same_bytes(
    seed: int, rules: Mapping[str, Any], random: Any, wait: int
) -> None:
    """However many pairs wait for a round of comparing, and whether tasks are named or taken."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("tokpack.documents.deduplication"), "_ROUND", wait)
        patch.setattr(import_module("tokpack.documents.alike"), "_TASK_PAIRS", 5)
        folder = Path(name)
        prefixes = copied(folder, seed, 25)
        tokpack.dedup(prefixes, folder / "whole", **rules)
        deaths = iter([random.random() < 0.5 for _ in range(3)])
        engine = Here(random.randrange, lambda: next(deaths, False))
        tasks = on(engine, folder / "clean", takers=random.choice((0, 2)))
        tokpack.dedup(prefixes, folder / "clean", **rules, tasks=tasks)
        assert made(folder / "clean") == made(folder / "whole")
        assert engine.begun
        assert len(list(folder.glob("*.keys-*"))) == len(list(folder.glob(KEYS))) == len(prefixes)
        for others in ("*.plan", "*.pairs-*", "*.alike-*"):
            assert not list(folder.glob(others))


def test_what_is_kept_beside_shards_is_used_again_and_no_token_read(tmp_path: Path) -> None:
    prefixes = copied(tmp_path)
    expected = {}
    for near in (0.6, 0.9):
        tokpack.dedup(prefixes, tmp_path / f"whole{near}", near=near, verify=False)
        expected[near] = made(tmp_path / f"whole{near}")[".selection"]
    engine = Here()
    tasks = on(engine, tmp_path / "clean")
    for near in (0.6, 0.9, 0.6):
        tokpack.dedup(
            prefixes, tmp_path / "clean", near=near, verify=False, tasks=tasks, overwrite=True
        )
        assert made(tmp_path / "clean")[".selection"] == expected[near]
        assert len(engine.begun) == len(prefixes)
    # Without a cluster they are used, too.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("tokpack.documents.keys"), "scan_documents", None)
        tokpack.dedup(prefixes, tmp_path / "again", near=0.6, verify=False)
    assert made(tmp_path / "again") == made(tmp_path / "whole0.6")


def test_a_shard_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    prefixes = copied(tmp_path)
    engine = Here()
    tokpack.dedup(prefixes, tmp_path / "clean", near=0.8, tasks=on(engine, tmp_path / "clean"))
    begun = len([one for one in engine.begun if ".keys-" in one[2]])
    write_all(tmp_path, [[[one] for one in near_copies(9, 20)]])
    tokpack.dedup(
        prefixes, tmp_path / "clean", near=0.8, tasks=on(engine, tmp_path / "clean"), overwrite=True
    )
    assert len([one for one in engine.begun if ".keys-" in one[2]]) == begun + 1
    for path in tmp_path.glob("*.keys-*"):
        path.unlink()
    tokpack.dedup(prefixes, tmp_path / "whole", near=0.8)
    assert made(tmp_path / "clean") == made(tmp_path / "whole")


def test_a_shard_that_is_replaced_meanwhile_is_an_error(tmp_path: Path) -> None:
    prefixes = copied(tmp_path)

    def replaced(kind: str, tasks: Sequence[Any]) -> None:
        write_all(tmp_path, [[[[1, 2, 3]]]])
        directly(kind, tasks)

    with pytest.raises(InputError, match="part0:"):
        tokpack.dedup(prefixes, tmp_path / "clean", near=0.8, tasks=replaced)
    assert not list(tmp_path.glob("clean*"))


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[:-9] + b"x" * 9])
def test_a_damaged_result_is_told(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    prefixes = copied(tmp_path)
    tokpack.dedup(prefixes, tmp_path / "clean", near=0.8, tasks=directly)
    path = sorted(tmp_path.glob("part2.keys-*"))[0]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FormatError, match=path.name):
        tokpack.dedup(prefixes, tmp_path / "again", near=0.8)
    path.write_bytes(b"not one")
    with pytest.raises(FormatError, match=path.name):
        Result(str(path))


@given(st.lists(DOCUMENTS, min_size=1, max_size=3), st.sampled_from("Hiq"))
@settings(max_examples=20, deadline=None)
def test_any_documents_virtual_datasets_and_views(parts: list[Documents], letter: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prefixes = write_all(folder, [*parts, *parts], letter)
        tokpack.merge(prefixes, folder / "virtual", virtual=True)
        documents = len(flat([*parts, *parts]))
        some = list(range(0, documents, 2)) or [0]
        inputs: list[Any] = [prefixes, [folder / "virtual"], [folder / "virtual", prefixes[0]]]
        if documents:
            with MMapIndexedDataset(folder / "virtual") as dataset:
                write_view(folder / "view", [dataset], np.array(some[::-1]), made_by={"test": 1})
            inputs.append([folder / "view"])
        for number, one in enumerate(inputs):
            for rules in NEAR[:2]:
                for path in folder.glob("*.keys-*"):
                    path.unlink()
                tokpack.dedup(one, folder / f"whole{number}", **rules, overwrite=True)
                tokpack.dedup(
                    one, folder / f"clean{number}", **rules, overwrite=True, tasks=directly
                )
                assert made(folder / f"clean{number}") == made(folder / f"whole{number}")


def test_processes_that_are_killed_and_a_command_that_is_stopped(tmp_path: Path) -> None:
    """The same command goes on: what is there is not made again."""
    prefixes = copied(tmp_path, count=200)
    tokpack.dedup(prefixes, tmp_path / "whole", near=0.8)
    engine = ProcessEngine(lose=2)

    class StopError(Exception):
        pass

    class Stopping(ProcessEngine):
        """Stops the command once a shard has its keys."""

        def ended(self, handles: Any, seconds: float) -> Any:
            if list(tmp_path.glob(KEYS)):
                raise StopError
            return super().ended(handles, seconds)

    stopping = on(Stopping(slots=1), tmp_path / "clean")
    with pytest.raises(StopError):
        tokpack.dedup(prefixes, tmp_path / "clean", near=0.8, tasks=stopping)
    assert list(tmp_path.glob("clean.keys-*.plan"))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob(KEYS)}
    assert before
    tokpack.dedup(prefixes, tmp_path / "clean", near=0.8, tasks=on(engine, tmp_path / "clean"))
    assert made(tmp_path / "clean") == made(tmp_path / "whole")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert not list(tmp_path.glob("clean.*.plan"))


def test_a_task_that_fails_ends_the_command_and_says_why(tmp_path: Path) -> None:
    prefixes = copied(tmp_path)
    path = Path(f"{prefixes[1]}.bin")

    def cut(kind: str, tasks: Sequence[Any]) -> None:
        path.write_bytes(path.read_bytes()[:-4])
        on(Here(), tmp_path / "clean")(kind, tasks)

    with pytest.raises(WorkerError, match=r"shard 1"):
        tokpack.dedup(prefixes, tmp_path / "clean", near=0.8, tasks=cut)
    assert not (tmp_path / "clean.json").exists()


@pytest.mark.parametrize("common", [0, 2, "30%"])
def test_evaluation_texts_are_found_by_tasks(tmp_path: Path, common: float | str) -> None:
    prefixes = copied(tmp_path, count=40)
    (tmp_path / "texts").mkdir()
    texts = write_all(tmp_path / "texts", [[[one] for one in near_copies(1, 40)[:9]]])
    tokpack.merge(prefixes[:3], tmp_path / "virtual", virtual=True)
    inputs = [tmp_path / "virtual", prefixes[3]]
    rules: dict[str, Any] = {"against": texts, "unit": "tokens", "common": common}
    expected = tokpack.decontaminate(inputs, tmp_path / "whole", **rules)
    engine = Here(lambda count: count - 1)
    tasks = on(engine, tmp_path / "clean")
    found = tokpack.decontaminate(inputs, tmp_path / "clean", **rules, tasks=tasks)
    assert made(tmp_path / "clean") == made(tmp_path / "whole")
    assert replace(found, manifest=None) == replace(expected, manifest=None)
    assert expected.spans
    assert len(engine.begun) == 4
    assert not list(tmp_path.glob("*.phrases-*"))
    with pytest.raises(UsageError, match="whole: a view"):
        tokpack.decontaminate(tmp_path / "whole", against=texts, unit="tokens", tasks=directly)


def test_figures_and_checks_of_shards_add_up(tmp_path: Path) -> None:
    prefixes = copied(tmp_path)
    tokpack.merge(prefixes, tmp_path / "virtual", virtual=True)
    tokpack.dedup(prefixes, tmp_path / "view")
    engine = Here(lambda count: count - 1)
    for name in ("virtual", "part0"):
        with MMapIndexedDataset(tmp_path / name) as dataset:
            expected = stats(dataset)
            assert stats(dataset, tasks=on(engine, tmp_path / name)) == expected
    for name in ("virtual", "part0", "view"):
        whole = verify(tmp_path / name)
        found = verify(tmp_path / name, tasks=on(engine, tmp_path / name))
        assert replace(found, seconds=whole.seconds) == whole
    with (
        MMapIndexedDataset(tmp_path / "view") as dataset,
        pytest.raises(UsageError, match="view:"),
    ):
        stats(dataset, tasks=directly)
    before = set(tmp_path.iterdir())
    path = tmp_path / "part2.idx"
    path.write_bytes(path.read_bytes()[:-1] + b"\7")
    with pytest.raises((FormatError, InputError)) as whole_error:
        verify(tmp_path / "virtual")
    with pytest.raises(whole_error.type) as error:
        verify(tmp_path / "virtual", tasks=on(engine, tmp_path / "virtual"))
    assert str(error.value) == str(whole_error.value)
    assert set(tmp_path.iterdir()) == before


def test_a_check_that_was_stopped_looks_again_at_what_has_changed(tmp_path: Path) -> None:
    prefixes = copied(tmp_path)
    tokpack.merge(prefixes, tmp_path / "virtual", virtual=True)

    def some(kind: str, tasks: Sequence[Any]) -> None:
        directly(kind, tasks[:3])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(tmp_path / "virtual", tasks=some)
    path = tmp_path / "part1.idx"
    path.write_bytes(path.read_bytes()[:-1] + b"\7")
    with pytest.raises(FormatError, match="part1"):
        verify(tmp_path / "virtual", tasks=on(Here(), tmp_path / "virtual"))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_result_with_other_bytes_is_an_error_or_the_same(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "result"
        arrays = [np.arange(5, dtype=np.uint64), np.zeros((0, 4), np.int64)]
        with NewResult(str(path)) as new:
            new.finish({"a": [1]}, arrays)
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
        try:
            result = Result(str(path))
            found = [result.array(number) for number in range(2)]
        except FormatError:
            return
        for one, other in zip(arrays, found, strict=True):
            assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"stage": 1}', b'{"tasks": [[1]]}'])
def test_a_list_of_tasks_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    path = Path(plan_path(str(tmp_path / "x")))
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(FormatError, match=re.escape(str(path))):
        TaskList.load(str(tmp_path / "x"))
    path.unlink()
    with pytest.raises(InputError, match=re.escape(str(path))):
        TaskList.load(str(tmp_path / "x"))


@pytest.mark.parametrize("call", ["open", "dup", "fsync", "replace"])
def test_a_task_that_is_killed_leaves_a_whole_result_or_none(tmp_path: Path, call: str) -> None:
    """At any of its system calls that change files; the next one makes it."""
    prefixes = copied(tmp_path, shards=1)
    tasks: list[Any] = []

    def told(kind: str, some: Sequence[Any]) -> None:
        tasks.extend(some)
        directly(kind, some)

    tokpack.dedup(prefixes, tmp_path / "whole", near=0.8, verify=False, tasks=told)
    (task,) = tasks
    path = Path(task.result)
    whole = path.read_bytes()
    code = f"{PLANT}import os, json\nfrom tokpack.dataset.results import Task\n"
    code += "from tokpack.cli.commands.shards_task import answer\n"
    killed = 0
    for at in range(1, 9):
        path.unlink(missing_ok=True)
        planted = f"plant(os, {call!r}, kill, at={at})\n"
        run = f"answer('keys', 1, Task(*{tuple(task)!r}), print)\n"
        dead = forked.Process(["-c", code + planted + run], stdout=subprocess.DEVNULL).wait()
        killed += dead == -signal.SIGKILL
        assert dead in (0, -signal.SIGKILL)
        assert not path.exists() or path.read_bytes() == whole
        directly("keys", [task])
        assert path.read_bytes() == whole
        if not dead:
            break
    assert killed

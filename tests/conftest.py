"""What all tests share: the folder of real data beside the repository, and a small tokenizer."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest
import zstandard
from hypothesis import HealthCheck, settings
from support.browser import Browser
from support.encoding_tools import byte_tokenizer
from support.optional import BARE, SHARED, program
from support.places import GOLDEN
from support.small_caches import use_small_caches
from support.stand_in import stand_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Whoever starts the tests in the background lets them ignore Ctrl-C, and so the commands that tests
# start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No example is timed: a machine may be slow, or busy with something else. One that judges a change
# must judge it alike every time, by examples that never change: half as many as in people's runs,
# which go on exploring.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("people", **UNTIMED)
settings.register_profile("ci", derandomize=True, max_examples=50, **UNTIMED)
settings.load_profile("ci" if os.environ.get("CI") else "people")

# Two workers of pytest-xdist on two cores gain nothing from more threads, and many lose much.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What users' processes write lies in buffers first, which can fail them at their end.
os.environ.pop("PYTHONUNBUFFERED", None)
# No test reads what an earlier one left in the home folder, nor leaves something there.
os.environ["TOKPACK_TOKENIZER_CACHE"] = "0"
use_small_caches()

# What tokpack writes it syncs, and to wait for a disk is most of the time of many tests. So
# temporary files lie in memory where there is room, but for TOKPACK_TESTS_ON_DISK=1.
MEMORY, ROOM = "/dev/shm", 4 << 30
ON_DISK = os.environ.get("TOKPACK_TESTS_ON_DISK") == "1"
if not ON_DISK and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM:
    tempfile.tempdir = MEMORY


# A bare run appends the tests that pass to this file; the next run leaves them out, unless they use
# what was hidden: .ci/run.
PASSED = os.environ.get("TOKPACK_TESTS_PASSED")
TIMES = int(os.environ.get("TOKPACK_TESTS_TIMES", "1"))  # as many examples: torture/examples.py
# Files that take long without a slow test; those that have one begin first, too.
LONG = {"test_layouts.py", "test_documented.py", "test_scripts.py", "test_stopped.py"}
HIDDEN = {"browser", "data", "index", "may_mount", "root", "shared"}  # fixtures


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    first = "PYTEST_XDIST_WORKER" not in os.environ  # it has the reports of all workers
    if PASSED and BARE and first and report.when == "call" and report.passed:
        with open(PASSED, "a", encoding="utf-8") as file:
            file.write(json.dumps(report.nodeid) + "\n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if TIMES > 1:
        drawing = [
            x for x in items if getattr(getattr(x, "obj", None), "is_hypothesis_test", False)
        ]
        config.hook.pytest_deselected(items=[x for x in items if x not in drawing])
        items[:] = drawing
        for own in {getattr(x.obj, "__func__", x.obj) for x in drawing}:  # type: ignore[attr-defined]
            usual = own._hypothesis_internal_use_settings
            more = settings(usual, max_examples=TIMES * usual.max_examples, derandomize=False)
            own._hypothesis_internal_use_settings = more
    # A long test that begins last would leave all workers but one idle. Whole files, as tests of
    # one share fixtures; they are few, so that short ones come behind them for every worker.
    long = {x.path for x in items if x.get_closest_marker("slow") or x.path.name in LONG}
    items.sort(key=lambda item: item.path not in long)
    if BARE or not PASSED or not os.path.exists(PASSED):
        return
    with open(PASSED, encoding="utf-8") as file:
        passed = set(map(json.loads, file))
    chosen = [x.nodeid not in passed or bool(HIDDEN & set(x.fixturenames)) for x in items]
    left_out = [x for x, again in zip(items, chosen, strict=True) if not again]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [x for x, again in zip(items, chosen, strict=True) if again]


@pytest.fixture(autouse=True)
def own_warnings() -> Iterator[None]:
    """What a test leaves open fails this test, and not another that runs when it is collected.

    What was there before is exempt from the collection, which would take long otherwise.
    """
    gc.freeze()
    yield
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)  # a failure's frames, which hold what it has opened
    gc.collect()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real corpora, tokenizers and datasets; skips the test where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("no real data here: the folder shared/data beside the repository is absent")
    return SHARED


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpora and tokenizers of ``shared``, or small ones in their place."""
    return SHARED if SHARED.is_dir() else stand_in(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A page of a real browser; skips the test where there is none."""
    chromium = program("chromium", "chromium-browser")
    if chromium is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with Browser(chromium, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="session")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small byte-level BPE, as a file of the Hugging Face library."""
    return byte_tokenizer(tmp_path_factory.mktemp("bpe") / "tokenizer.json")


@pytest.fixture(scope="session")
def edge_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of JSON lines with the odd and bad records that preprocessors meet."""
    folder = tmp_path_factory.mktemp("edge")
    for path in (GOLDEN / "edge").iterdir():
        (folder / path.stem).write_bytes(zstandard.decompress(path.read_bytes()))
    return folder


@pytest.fixture(params=["golden", "shared"] if SHARED.is_dir() else ["golden"])
def index(request: pytest.FixtureRequest) -> Path:
    """What other programs build from given datasets: some of it, and all that there is."""
    if request.param == "golden":
        return GOLDEN / "index"
    shared: Path = request.getfixturevalue("shared")
    return shared / "index"

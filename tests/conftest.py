"""What all tests share: the folder of real data beside the repository, and a small tokenizer."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
import zstandard
from hypothesis import HealthCheck, settings
from support.encoding_tools import byte_tokenizer
from support.places import GOLDEN, SHARED

if TYPE_CHECKING:
    from pathlib import Path

# Whoever starts the tests in the background lets them ignore Ctrl-C, and so the commands that tests
# start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No example is timed: a machine may be slow, or busy with something else. One that judges a change
# must judge it alike every time; people's runs go on exploring.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("people", **UNTIMED)
settings.register_profile("ci", derandomize=True, **UNTIMED)
settings.load_profile("ci" if os.environ.get("CI") else "people")

# Two workers of pytest-xdist on two cores gain nothing from more threads, and many lose much.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What users' processes write lies in buffers first, which can fail them at their end.
os.environ.pop("PYTHONUNBUFFERED", None)
# No test reads what an earlier one left in the home folder, nor leaves something there.
os.environ["TOKPACK_TOKENIZER_CACHE"] = "0"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real corpora, tokenizers and datasets; skips the test where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("no real data here: the folder shared/data beside the repository is absent")
    return SHARED


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


@pytest.fixture(params=["golden", "shared"])
def index(request: pytest.FixtureRequest) -> Path:
    """What other programs build from given datasets: some of it, and all that there is."""
    if request.param == "golden":
        return GOLDEN / "index"
    shared: Path = request.getfixturevalue("shared")
    return shared / "index"

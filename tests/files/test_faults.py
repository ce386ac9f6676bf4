"""A short round of faults at the calls of whatever writes (``make torture``: all, of commands)."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torture.cases import CASES, Case
from torture.faults import KINDS, Server, compiler, make_inputs, memory, rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs Linux and a C compiler")


# Each fills a cache and checks what it gets from it; it may end with an error of tokpack's.
CACHE = """
import os
os.environ |= {"TOKPACK_CACHE": %r, "TOKPACK_TOKENIZER_CACHE": "1"}
"""
COPY = """
from tokpack.storage import StoredObject
from tokpack.storage.objects.cache import copy_of
content = bytes(range(256)) * 5_000
found = StoredObject("s3://texts/x.idx", len(content), '"tag"', 0)
with open(copy_of(found, lambda: [content[:9], content[9:]]), "rb") as file:
    assert file.read() == content
"""
RANGE = """
from tokpack.storage import StoredObject
from tokpack.storage.objects.cache import keep_range, kept_range
content = bytes(range(256)) * 5_000
found = StoredObject("s3://texts/x.bin", len(content), '"tag"', 0)
keep_range(found, 7, 99_999, lambda _, begin, end: content[begin:end])
with open(kept_range(found, 7, 99_999), "rb") as file:
    assert file.read() == content[7:99_999]
"""
ARRAYS = """
import numpy as np
from tokpack.samples.cache import ChunkedArray, IndexCache
made = {"rows": np.arange(99_999), "lengths": np.arange(7, dtype=np.uint16)}
for _ in range(2):
    build = lambda: [ChunkedArray.of(*item) for item in made.items()]
    arrays = IndexCache(os.environ["TOKPACK_CACHE"]).entry("order", {"seed": 1}, build).arrays
    assert {name: array.tolist() for name, array in arrays.items()} == {
        name: array.tolist() for name, array in made.items()
    }
"""
DEFINITION = """
import numpy as np
from tokpack.tokenizers import definition
from tokpack.tokenizers.definition import ByteLevelSpec
vocab = [bytes([byte]) for byte in range(256)] + [b"ab"]
spec = ByteLevelSpec(
    vocab=vocab, merges=np.array([[97, 98, 256]], np.int32), added=(), pattern="gpt2"
)
for _ in range(2):
    assert definition.kept(b"x" * definition.LEAST_BYTES, lambda: spec).digest == spec.digest
"""
# What goes on without a cache that cannot be written.
CODES = {"copy": COPY, "range": RANGE, "arrays": ARRAYS, "definition": DEFINITION}
DOES_WITHOUT = ("arrays", "definition")


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Server, Path]]:
    """The process that runs commands with faults, and a folder with the inputs of these."""
    pytest.importorskip("pyarrow")
    with tempfile.TemporaryDirectory(prefix="tokpack-faults-", dir=memory()) as name:
        folder = Path(name)
        make_inputs(folder / "inputs")
        with Server(folder, "pyarrow.parquet", "pandas") as server:
            yield server, folder


@pytest.mark.promises
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_old_new_or_nothing(served: tuple[Server, Path], case: Case) -> None:
    server, folder = served
    chance = random.Random(case.name)
    met = rounds(server, case, folder / "case", folder / "inputs", lambda n: [chance.randint(1, n)])
    assert met.total() == len(case.kinds)


@pytest.mark.parametrize("name", CODES)
def test_a_cache_is_never_wrong(served: tuple[Server, Path], name: str) -> None:
    """A plain error or no cache: what is read later is whole, or made again.

    Each call meets two kinds of faults, the next one the others.
    """
    server, folder = served
    cache = folder / f"{name}-cache"
    code = ["python", CACHE % str(cache) + CODES[name]]

    def begin() -> None:
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir()

    begin()
    done = server.run(code, cache)
    calls = done["calls"]
    assert (done["code"], done["errors"]) == (0, "")
    assert calls > 2
    assert server.run(code, cache)["calls"] == 0  # it is there, and used
    for first, (kind, number) in enumerate(KINDS.items()):
        for at in range(1 + first % 2, calls + 1, 2):
            begin()
            done = server.run(code, cache, at, number)
            where = f"{name}, {kind} at call {at} {done['met']}: {done}"
            assert done["met"] or kind == "kill", where
            if kind == "kill":
                assert done["code"] == -9, where
            elif done["code"]:
                assert name not in DOES_WITHOUT, where
                [line] = done["errors"].splitlines()
                assert line.startswith("tokpack: error: "), where
                assert str(cache) in line, where
            again = server.run(code, cache)
            assert again["code"] == 0, f"{where}; then {again}"

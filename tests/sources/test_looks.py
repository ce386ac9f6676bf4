"""Many files are looked at several at a time where a look takes long, and nobody can tell by what
comes out.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from tokpack.errors import InputError
from tokpack.sources.find import map_concurrently

SECONDS = 0.004


class Look:
    """Takes a while for a number, and notes how many do at once."""

    def __init__(self, wrong: tuple[int, ...] = ()) -> None:
        self._wrong = wrong
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0

    def __call__(self, number: int) -> int:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        # Of those that are wrong, the later are found first.
        time.sleep(SECONDS * 10 if number == min(self._wrong, default=-1) else SECONDS)
        with self._lock:
            self._now -= 1
        if number in self._wrong:
            raise InputError(f"{number} is wrong")
        return number * number


def test_results_are_in_order_and_no_thread_stays() -> None:
    before, look = threading.active_count(), Look()
    assert list(map_concurrently(look, iter(range(200)))) == [n * n for n in range(200)]
    assert 1 < look.most <= 32
    assert threading.active_count() == before


def test_quick_looks_are_made_one_by_one() -> None:
    thread = threading.get_ident()
    assert set(map_concurrently(lambda _: threading.get_ident(), range(200))) == {thread}


def test_the_first_error_in_order_is_raised() -> None:
    before = threading.active_count()
    with pytest.raises(InputError, match=r"^40 is wrong$"):
        list(map_concurrently(Look((40, 41, 60)), range(200)))
    assert threading.active_count() == before


def test_looks_inside_of_looks_begin_no_threads() -> None:
    look = Look()

    def several(number: int) -> list[int]:
        return list(map_concurrently(look, range(number, number + 18)))

    assert list(map_concurrently(several, range(20)))[19] == [n * n for n in range(19, 37)]
    assert look.most <= 32


FEW_THREADS = """
import resource, threading, time
import concurrent.futures.thread
from tokpack.sources.find import map_concurrently
def look(number):
    time.sleep(0.002)
    return number
threading.stack_size(64 << 20)
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (200 << 20), resource.RLIM_INFINITY))
assert list(map_concurrently(look, range(100))) == list(range(100))
try:
    for _ in range(32):
        threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
except RuntimeError:
    print("no thread")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_where_the_system_gives_no_more_threads() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FEW_THREADS], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("no thread\n", "")

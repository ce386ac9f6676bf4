"""Several machines in one process: their real code, in threads of which one goes on at a time.

At each request to the store, and where one sleeps, a seed decides which machine goes on, and what
goes wrong. So a run is a function of its seed. The time stands still while a machine computes.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from support.simulated_store import S3Model
from tokpack import machine
from tokpack.storage.objects.trouble import TransientError, failure

if TYPE_CHECKING:
    from collections.abc import Callable

EPOCH = 1_700_000_000.0
MOST_STEPS = 20_000  # requests and naps of all machines
WRITES = frozenset(("put", "delete", "begin", "part", "copy_part", "complete", "abort"))
LISTS = frozenset(("below", "level"))
# What may go wrong with any request, with one that writes, with one that lists; several times the
# same is more often.
_ANY = ("broken", "503", "429", "kill", "pause", "nap", "expired")
_OF_WRITES = ("lost", "lost", "late", "late", "409", "403", "kill behind", "kill late")
_OF_LISTS = ("stale", "stale", "torn", "torn", "torn")


class Killed(BaseException):
    """Ends a machine's thread; whatever it asks for on its way out is not done."""


class EndlessError(AssertionError):
    """Something does not end."""


def _taken() -> threading.Lock:
    """A lock to wait for, which somebody else will release."""
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(eq=False)
class Machine:
    """One machine that does one thing; ``skew`` is how far its clock is ahead."""

    name: str
    pid: int
    act: Callable[[], Any]
    skew: float = 0.0
    expires: float = float("inf")  # when its credentials end
    wakes: float = 0.0
    is_dead: bool = False
    has_ended: bool = False
    error: BaseException | None = None
    value: Any = None
    steps: int = 0
    may_replace: bool = False  # what it does now has --overwrite
    go: threading.Lock = field(default_factory=_taken)


class World(machine.Clock):
    """Machines, a store, and the time; ``gate`` is that of the store's backend."""

    def __init__(
        self, seed: int, *, faults: float = 0.0, tell: Callable[[str], None] | None = None
    ):
        self.rng = random.Random(seed)
        self.at = EPOCH
        self.model = S3Model(self.now)
        self.faults = faults  # how often a request has one
        self.machines: list[Machine] = []
        self.fault_counts: dict[str, int] = {}
        self.violations: list[str] = []
        self.steps = 0
        self._stay = self.rng.choice((0.0, 0.5, 0.8, 0.95))  # how often a machine simply goes on
        self._late: list[tuple[Machine, Callable[[], Any]]] = []
        self._sender: Machine | None = None  # of a late request that arrives
        self._own = threading.local()
        self._all_ended = _taken()
        self._tell = tell

    # -- the clock

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at + (self.current.skew if self.current else 0.0)

    def sleep(self, seconds: float) -> None:
        if self.current is None:
            self.at += seconds
            return
        self.current.wakes = self.at + seconds
        self._pass()

    def uniform(self, least: float, most: float) -> float:
        return self.rng.uniform(least, most)

    def host(self) -> str:
        return self.current.name if self.current else "outside"

    def pid(self) -> int:
        return self.current.pid if self.current else 1

    def is_alive(self, pid: int) -> bool:
        return any(one.pid == pid and not one.has_ended for one in self.machines)

    # -- machines

    @property
    def current(self) -> Machine | None:
        """The machine whose thread this is."""
        return getattr(self._own, "machine", None)

    @property
    def actor(self) -> Machine | None:
        """Whose request is done now."""
        return self._sender or self.current

    def start(self, name: str, act: Callable[[], Any], **more: Any) -> Machine:
        """Let a machine do something, beside the others, from the next step on."""
        one = Machine(name, 100 + len(self.machines), act, **more)
        self.machines.append(one)
        threading.Thread(target=self._main, args=(one,), daemon=True).start()
        return one

    def run(self) -> None:
        """Go on until all machines have ended, and no request is on its way."""
        if any(not one.has_ended for one in self.machines):
            self._hand_over(None)
            self._all_ended.acquire()
        while self._late:
            self._deliver()
        for one in self.machines:
            if isinstance(one.error, EndlessError):
                raise one.error

    def _main(self, one: Machine) -> None:
        self._own.machine = one
        one.go.acquire()
        try:
            self._check(one)
            one.value = one.act()
        except Killed:
            one.is_dead = True
        except BaseException as error:
            one.error = error
        one.has_ended = True
        self._hand_over(None)

    def _pass(self) -> None:
        """Let any machine go on, the one whose thread this is among them."""
        me = self.current
        assert me
        self.steps += 1
        me.steps += 1
        if self.steps > MOST_STEPS:
            me.is_dead = True
            raise EndlessError(f"{me.name} does not end")
        if me.wakes <= self.at and self.rng.random() < self._stay:
            return
        self._hand_over(me)
        self._check(me)

    def _hand_over(self, me: Machine | None) -> None:
        while True:
            left = [one for one in self.machines if not one.has_ended]
            if not left:
                self._all_ended.release()
                return
            ready = [one for one in left if one.wakes <= self.at]
            choice = (
                self.rng.randrange(len(ready) + bool(self._late)) if ready or self._late else -1
            )
            if choice < 0 or (not ready and self.rng.random() < 0.5):
                self.at = min(one.wakes for one in left)
            elif choice == len(ready):
                self._deliver()
            else:
                chosen = ready[choice]
                if chosen is not me:
                    chosen.go.release()
                    if me:
                        me.go.acquire()
                return

    def _check(self, me: Machine) -> None:
        if me.is_dead:
            raise Killed

    def _deliver(self) -> None:
        self._sender, act = self._late.pop(self.rng.randrange(len(self._late)))
        self.say(f"{self._sender.name}: a late request arrives")
        try:
            act()
        except Exception as error:  # nobody hears of it
            self.say(f"it fails: {type(error).__name__}")
        finally:
            self._sender = None

    # -- requests

    def gate(self, name: str, url: str, act: Callable[[], Any]) -> Any:
        """Do a request now, later, or not at all."""
        me = self.current
        if me is None:
            return act()
        self._check(me)
        self.at += 0.01 + self.rng.random() * 0.2
        self._pass()
        fault = self._fault(name)
        self.say(f"{me.name}: {name} {url.rpartition('/')[2]} {fault}")
        if me.expires <= self.at:
            raise failure(url, 400, "ExpiredToken", "")
        if fault:
            return self._faulty(fault, name, url, act)
        return act()

    def violate(self, what: str) -> None:
        """Note that something was done that must never be."""
        self.say(f"VIOLATED: {what}")
        self.violations.append(what)

    def say(self, text: str) -> None:
        """Note what happens, for a run that is replayed."""
        if self._tell:
            self._tell(f"{self.at - EPOCH:10.2f} {text}")

    def _fault(self, name: str) -> str:
        writes = name in WRITES
        if not self.faults or self.rng.random() >= self.faults * (3 if writes else 1):
            return ""
        kind = self.rng.choice(
            _ANY + (_OF_WRITES if writes else _OF_LISTS if name in LISTS else ())
        )
        self.fault_counts[kind] = self.fault_counts.get(kind, 0) + 1
        return kind

    def _faulty(self, fault: str, name: str, url: str, act: Callable[[], Any]) -> Any:
        me = self.current
        assert me
        if fault.isdigit():
            raise failure(url, int(fault), "Injected", "")
        if fault in ("pause", "nap"):
            me.wakes = self.at + self.rng.random() * (20_000 if fault == "pause" else 20)
            self._hand_over(me)
            self._check(me)
            return act()
        if fault == "stale":
            self.model.age = self.rng.randint(1, 5)
            try:
                return act()
            finally:
                self.model.age = 0
        if fault == "torn":
            return self._torn(name, url, act)
        if fault == "expired":
            me.expires = self.at
            raise failure(url, 400, "ExpiredToken", "")
        if fault in ("lost", "kill behind"):
            act()
        if fault in ("late", "kill late"):
            self._late.append((me, act))
        if fault.startswith("kill"):
            me.is_dead = True
            raise Killed
        raise TransientError(f"the connection broke off ({fault})")

    def _torn(self, name: str, url: str, act: Callable[[], Any]) -> Any:
        error = failure(url, 0, "", "HTTP InternalError", broken=True)
        if name == "level":
            raise error
        found = act()

        def some() -> Any:
            yield from found[: len(found) // 2]
            raise error

        return some()

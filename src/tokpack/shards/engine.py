"""What an engine, which runs the tasks of a dataset in shards, has to be able to do.

A task is a command line of tokpack, so an engine knows nothing of shards: it runs commands on
machines that see the inputs and the output, and says how they ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

BUSY = 75  # exit code: another process is at it; as sysexits.h has it for "try later"


class CommandResult(NamedTuple):
    """How a command ended: its exit code, None where its machine was lost, and what it said."""

    code: int | None
    said: str


class ShardEngine(Protocol):
    """Runs commands somewhere."""

    def start(self, arguments: Sequence[str]) -> Any:
        """Run ``tokpack ARGUMENTS`` as soon as there is room; gives a handle."""

    def ended(self, handles: Sequence[Any], seconds: float) -> list[tuple[Any, CommandResult]]:
        """Those of the commands that have ended, waiting for one so long at most."""

    def cancel(self, handle: Any) -> None:
        """End a command, as Ctrl-C would; it may have ended."""

    def close(self) -> None:
        """End all commands that are left, and let go of the machines."""

"""What a command line asks of a run: resolved once, and pickled for every rank."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .flags import resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .config import Config


@dataclass(frozen=True)
class RunRequest:
    """A configuration, the processes that ``--nproc`` asks for, and what came with it.

    ``inputs`` are files that it was perhaps read from, which the run does not replace. ``words``
    are those that were typed.
    """

    config: Config
    processes: int | None
    inputs: tuple[str, ...]
    words: tuple[str, ...]

    @classmethod
    def of(cls, argv: Sequence[str], world_size: int = 1) -> RunRequest:
        """What ``argv`` asks for, in a world of so many processes unless it says how many."""
        config, processes = resolve(argv, world_size)
        files = (word.partition("=")[2] or word for word in argv)
        return cls(config, processes, tuple(filter(os.path.isfile, files)), tuple(argv))

"""What a command line asks of a run: resolved once, and handed as it is to every rank."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .config import UNSAVED, Config
from .flags import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
    def of(
        cls, argv: Sequence[str], world_size: int = 1, values: Mapping[str, Any] | None = None
    ) -> RunRequest:
        """What ``argv``, or ``values`` in Python, ask for.

        In a world of so many processes unless they say how many.
        """
        config, processes = resolve(argv, world_size, values)
        files = (word.partition("=")[2] or word for word in argv)
        return cls(config, processes, tuple(filter(os.path.isfile, files)), tuple(argv))

    def to_json(self) -> bytes:
        """All of it, for the standard input of a rank."""
        more = {name: getattr(self.config, name) for name in UNSAVED}
        values = [self.config.to_dict(), more, self.processes, self.inputs, self.words]
        return json.dumps(values).encode()

    @classmethod
    def from_json(cls, text: bytes) -> RunRequest:
        """The reverse of ``to_json``."""
        saved, more, processes, inputs, words = json.loads(text)
        more["notes"] = tuple(more["notes"])
        config = replace(Config.from_dict(saved), **more)
        return cls(config, processes, tuple(inputs), tuple(words))

"""What a command line asks of a run: resolved once, and handed as it is to every rank."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .config import FIELDS, UNSAVED, Config
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
        unsaved = {name: getattr(self.config, name) for name in UNSAVED}
        config = self.config.to_dict() | unsaved
        return json.dumps([config, self.processes, self.inputs, self.words]).encode()

    @classmethod
    def from_json(cls, text: bytes) -> RunRequest:
        """The reverse of ``to_json``."""
        config, processes, inputs, words = json.loads(text)
        return cls(Config(**_typed(config)), processes, tuple(inputs), tuple(words))


def _typed(config: dict[str, Any]) -> dict[str, Any]:
    """Values of a Config, whose tuples JSON has as lists."""
    tuples = {name for name, setting in FIELDS.items() if setting.many} | {"notes"}
    return {k: tuple(v) if k in tuples and v is not None else v for k, v in config.items()}

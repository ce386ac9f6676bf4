"""What a command line asks of a run: resolved once, and handed as it is to every rank."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tokpack.configuration.config import UNSAVED, Config

if TYPE_CHECKING:
    from tokpack.configuration.hardware import Cluster


@dataclass(frozen=True)
class RunRequest:
    """A configuration, the processes that ``--nproc`` asks for, and what came with it.

    ``inputs`` are files that it was perhaps read from, which the run does not replace. ``words``
    are those that were typed. With a ``cluster`` the run is only planned, and the plan printed as
    JSON if so ``as_json`` says.
    """

    config: Config
    processes: int | None = None
    inputs: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    cluster: Cluster | None = None
    as_json: bool = False

    def to_json(self) -> bytes:
        """All that a rank needs, for its standard input."""
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

"""``tokpack train`` that writes down what its steps are given: ``FOLDER -- FLAGS``, as a script.

FOLDER/STEP.RANK.npz has the arrays of a step's micro batches, [micro batches, micro batch, S].
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np


def record(folder: Path) -> None:
    """Let every later run of this process write its batches into ``folder``."""
    from tokpack.trainer import loop

    begin = loop.TrainingRun.begin

    def begun(run: Any) -> None:
        begin(run)
        train_batch = run.engine.train_batch

        def recorded(batches: Any, lr: float) -> Any:
            stacked = {name: np.stack([b[name].numpy() for b in batches]) for name in batches[0]}
            path = folder / f"{run.step + 1}.{run.topology.data_rank}.npz"
            np.savez(path, **stacked)
            return train_batch(batches, lr)

        run.engine.train_batch = recorded

    loop.TrainingRun.begin = begun  # type: ignore[method-assign]


if __name__ == "__main__":
    from tokpack.trainer.__main__ import main

    record(Path(sys.argv.pop(1)))
    sys.exit(main())

"""A checkpoint of any topology goes on in any other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from support.parallel_tools import in_processes  # noqa: E402
from support.rounding import EXACT  # noqa: E402
from support.trainer_checkpoint_tools import load, make, resume_everywhere, state, steps  # noqa: E402
from support.trainer_model_tools import NEOX, model_of  # noqa: E402

from tokpack.trainer.checkpoint import CheckpointWrite  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    """As in the processes of ``in_processes``."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "settings",
    [
        {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "num_layers": 4},
        # And two data ranks, which share what is in a checkpoint.
        {"pipeline_model_parallel_size": 2, "num_layers": 4, "zero_stage": 2, **NEOX},
    ],
    ids=["TP2 PP2 tied", "PP2 DP2 untied"],
)
def test_any_topology_goes_on(tmp_path: Path, settings: dict[str, Any]) -> None:
    one = {key: value for key, value in settings.items() if "parallel_size" not in key}
    engine = make(**one)
    expected = steps(engine, 0, 3)
    CheckpointWrite(engine, tmp_path / "one", state(engine, 3, **one)).finish()
    expected += steps(engine, 3, 6)
    job = (4, resume_everywhere, (str(tmp_path), settings, expected))
    in_processes([job], float64=True)
    again = make(**one, seed=7)
    found = load(again, tmp_path / "many", model_of(**one))
    assert found is not None
    assert replace(found, scalars={}, files={}) == state(again, 6, **one)
    losses = steps(again, 6, 3)
    assert max(abs(a - b) for a, b in zip(losses, expected[6:], strict=True)) < EXACT

"""What the tests of the DeepSpeed engine share."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

# Other processes import it: the tests' own would wait for that too.
INSTALLED = find_spec("deepspeed") is not None
needs_deepspeed = pytest.mark.skipif(not INSTALLED, reason="needs DeepSpeed")
# Small parameters would stay whole on every rank.
SPLIT = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}


def zero(stage: int, **settings: Any) -> dict[str, Any]:
    """Settings of the DeepSpeed engine with a stage of ZeRO."""
    base: dict[str, Any] = {"engine": "deepspeed", "zero_stage": stage, "deepspeed_json": SPLIT}
    return base | settings

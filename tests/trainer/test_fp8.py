"""Products in fp8: where they are refused, and that torchao's are the blocks'."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from support.parallel_tools import (
    BATCHES,
    LLAMA,
    TP,
    Run,
    batches,
    in_processes,
    open_engine,
    train,
)
from support.rounding import UNIT

from tokpack.errors import UsageError
from tokpack.trainer import engine_torch, fp8
from tokpack.trainer.config.config import Config

FP8: dict[str, Any] = {"fp8": True, "precision": "bf16"}


def test_what_cannot_compute_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first step, with the reason."""
    with pytest.raises(UsageError, match=r"^fp8 .* 8\.9 .*\bCPU\b"):
        open_engine(FP8)
    for wrong in ({"precision": "fp16"}, {"precision": "fp32"}, {"engine": "deepspeed"}):
        with pytest.raises(UsageError, match=r"^fp8 .*\bprecision bf16 and engine torch, "):
            Config(fp8=True, **wrong)
    model = open_engine({"precision": "bf16"}).model
    gpu = type("Place", (), {"device": torch.device("cuda")})()
    monkeypatch.setattr(model, "topology", gpu)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    with pytest.raises(UsageError, match=r"^fp8 .* 8\.9 .*\bNVIDIA A100 .*\b8\.0:"):
        fp8.use_fp8(Config(fp8=True), model)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    with pytest.raises(UsageError, match=r"^fp8 .*\b16 .*\bmicro batch: 12$"):
        fp8.use_fp8(Config(fp8=True, seq_length=3, micro_batch_size=4), model)


def emulated(run: Run) -> dict[str, Any]:
    """The losses of a run that computes as such a GPU does, and how many products do."""
    engine_torch.use_fp8 = lambda _, model: fp8.convert(model, emulate=True)  # type: ignore[assignment]
    engine = open_engine(run.settings)
    data = batches(run, engine.topology.data_rank, engine.topology.data_size)
    steps = [engine.train_batch(data[step % BATCHES], 1e-3) for step in range(run.steps)]
    products = [m for m in engine.model.modules() if getattr(m, "product", None) is not None]
    return {"loss": [float(step.loss) for step in steps], "products": len(products)}


@pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao")
def test_the_products_of_blocks_are_in_fp8() -> None:
    """A factor of three bits more than its first: the loss moves, by less than they say; it learns.

    With ZeRO and tensor ranks too, which gather bf16 weights and sum bf16 results.
    """
    layouts: list[tuple[dict[str, Any], int]] = [({}, 1), ({"zero_stage": 3}, 2), (TP, 2)]
    runs = [Run({**LLAMA, **FP8, **layout}, n, 5) for layout, n in layouts]
    jobs = [(run.world, emulated, run) for run in runs]
    plain = (1, train, Run({**LLAMA, "precision": "bf16"}, 1, 5))
    bf16, *found = [ranks[0] for ranks in in_processes([plain, *jobs])]
    for one in found:
        assert one["products"] == 2 * 4  # qkv, out, up, down of two blocks
        # Each factor is rounded to 4 significant bits, and errors of a sum have random signs.
        apart = [abs(a - b) / b for a, b in zip(one["loss"], bf16["loss"], strict=True)]
        assert 0 < max(apart) < UNIT["float8"]
        assert one["loss"][-1] < one["loss"][0] - 0.1  # of the same batch

"""Data parallelism of the torch engine: sums begin in the backward pass; state and memory."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from support.parallel_tools import TINY, VOCABULARY, Run, batches, in_processes, open_engine
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tokpack.trainer.config.config import Config
from tokpack.trainer.config.estimate import Layout, data_bytes, states_of
from tokpack.trainer.config.model import ModelConfig

CLIP = {"clip_grad": 0.3}


def zero(stage: int, **settings: Any) -> dict[str, Any]:
    return {"zero_stage": stage, **CLIP, **settings}


class Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each collective over whole tensors, with the bytes that go once around a ring."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[tuple[str, int]] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = KINDS.get(op.name().partition(".")[0])
        if kind is not None and (size := max(map(nbytes, tree_leaves(args)))) >= SMALL:
            self.events.append((kind, size))
        return op(*args, **(kwargs or {}))


KINDS = {
    "c10d::_allgather_base_": "gather",
    "c10d::_reduce_scatter_base_": "cut sum",
    "c10d::allreduce_": "sum",
}
SMALL = 256  # bytes: losses and norms are less


def nbytes(x: Any) -> int:
    return x.nbytes if isinstance(x, torch.Tensor) else 0


def noted(settings: dict[str, Any]) -> list[tuple[str, int]]:
    """The collectives of a second step of two micro batches, and "end" after each backward pass."""
    engine, mode = open_engine(settings), Collectives()
    backward = torch.autograd.backward

    def noted_backward(*args: Any) -> None:
        backward(*args)
        mode.events.append(("end", 0))

    torch.autograd.backward = noted_backward  # type: ignore[assignment]
    mine = batches(Run(settings), engine.topology.data_rank, engine.topology.data_size)
    engine.train_batch(mine[0], 1e-3)
    mode.events.clear()
    with mode:
        engine.train_batch(mine[1], 1e-3)
    return mode.events


def sizes(settings: dict[str, Any]) -> tuple[float, float, float]:
    """Bytes of this rank's weights, and of what the optimizer keeps; and those of a plan."""
    engine = open_engine(settings)
    layout = Layout.of(engine.config, engine.topology.data_size, "cpu")
    engine.train_batch(batches(Run(settings), engine.topology.data_rank, 2)[0], 1e-3)
    states = [
        x for one in engine._optimizers for kinds in one.state.values() for x in kinds.values()
    ]
    weights = sum(one.parameter.nbytes for one in engine.data.held.values())
    state = sum(x.nbytes for x in states if x.ndim)
    return weights, state, states_of(engine.model.model, layout, 0)[2]


def planned(settings: dict[str, Any]) -> float:
    config = Config(**{**TINY, **settings})
    return data_bytes(ModelConfig.of(config, VOCABULARY), Layout.of(config, 2, "cpu"))


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_what_is_sent_is_what_a_plan_says(precision: str) -> None:
    """Vectors, which no rank shares and a plan counts as the rest, are less than a 50th."""
    runs = [zero(stage, precision=precision) for stage in range(4)]
    totals = []
    for settings, ranks in zip(runs, in_processes([(2, noted, one) for one in runs]), strict=True):
        # Without ZeRO whole weights are "cut" and gathered in groups of one process.
        cut = 1 if settings["zero_stage"] else 0
        times = {"sum": 2, "cut sum": cut, "gather": cut, "end": 0}
        found = [sum(times[kind] * size for kind, size in events) / 2 for events in ranks]
        assert found[0] == found[1] == pytest.approx(planned(settings), rel=0.02)
        totals.append(found[0])
    assert totals[1] < totals[0] or precision == "fp32"
    assert totals[0] < totals[2] < totals[3]


def test_what_is_kept_is_what_a_plan_says() -> None:
    jobs = [(2, sizes, zero(stage, precision="bf16")) for stage in range(4)]
    for stage, ranks in enumerate(in_processes(jobs)):
        for weights, state, plan in ranks:
            assert state == 2 * weights == pytest.approx(plan, rel=0.05), stage


def test_sums_begin_before_the_backward_pass_has_ended() -> None:
    """Of the last micro batch, block after block; from stage 2 on of each."""
    jobs = [(2, noted, {"zero_stage": stage}) for stage in range(4)]
    for stage, ranks in enumerate(in_processes(jobs)):
        for events in ranks:
            kind = "cut sum" if stage else "sum"
            words = "".join({kind: "s", "end": "|"}.get(word, "") for word, _ in events)
            # Two blocks, then what is outside of them: without ZeRO after the backward pass.
            sums = "sss" if stage else "ss"
            first, last, rest = words.split("|")
            assert (first, last) == (sums if stage > 1 else "", sums), (stage, events)
            assert (rest != "") is (stage == 0)

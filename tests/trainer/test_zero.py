"""Data parallelism of the torch engine: sums begin in the backward pass; state and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from support.parallel_tools import (
    PP,
    Run,
    batches,
    in_processes,
    open_engine,
)

from tokpack.configuration.cost import Layout, data_bytes, states_of

if TYPE_CHECKING:
    from collections.abc import Iterable

CLIP = {"clip_grad": 0.3}
MUON: dict[str, Any] = {"optimizer": "muon", "muon_extra_scale_factor": 0.2}


def zero(stage: int, **settings: Any) -> dict[str, Any]:
    return {"zero_stage": stage, **CLIP, **settings}


def launches(settings: dict[str, Any]) -> list[str]:
    """What happens in a step of two micro batches: sums that begin, backward passes that end."""
    from tokpack.trainer import buckets

    engine = open_engine(settings)
    begin_sum, backward, found = buckets.begin_sum, torch.autograd.backward, list[str]()

    def noted_sum(x: Any, cut: bool, topology: Any) -> Any:
        found.append(f"sum {len(x)}")
        return begin_sum(x, cut, topology)

    def noted_backward(*args: Any) -> None:
        backward(*args)
        found.append("end")

    buckets.begin_sum, torch.autograd.backward = noted_sum, noted_backward
    engine.train_batch(batches(Run(settings), engine.topology.data_rank, 2)[0], 1e-3)
    return found


def found_and_planned(settings: dict[str, Any]) -> list[tuple[float, float]]:
    """Bytes that a step sends to other data ranks, counted, and by the formula of a plan.

    And those of weights, of gradients that stay between steps, and of the optimizer.
    """
    engine = open_engine(settings)
    topology = engine.topology
    mine = batches(Run(settings), topology.data_rank, topology.data_size)[0]
    layout = Layout.of(engine.config, topology.data_size, "cpu")
    stage = (engine.model.model, layout, topology.pipeline_rank)
    sent, held = engine.train_batch(mine, 1e-3).sent, engine._buckets._buckets
    weights = total_bytes(x for one in held for x in (one.working, one.kept))
    gradients = total_bytes(one.summed if one.grads is None else one.grads for one in held)
    kept = [kinds for one in engine._optimizers for kinds in one.state.values()]
    state = total_bytes(x for kinds in kept for x in kinds.values() if x.ndim)
    found = (sent, weights, gradients, state)
    return list(zip(found, (data_bytes(*stage), *states_of(*stage)), strict=True))


def total_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Of all that lie in memory, those that share it once."""
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
    storages.pop(0, None)
    return sum(storages.values())


def test_what_is_sent_and_kept_is_what_a_plan_says() -> None:
    """On both stages, each with a copy of the embedding; and in fp32, where nothing is copied."""
    runs = [(4, zero(stage, **PP, precision="bf16")) for stage in range(4)]
    runs += [(2, zero(stage)) for stage in (1, 3)]
    jobs = [(world, found_and_planned, settings) for world, settings in runs]
    totals = []
    for (_, settings), ranks in zip(runs, in_processes(jobs), strict=True):
        for rank in ranks:
            (sent, planned), weights, gradients, state = rank
            assert sent == planned > 0
            assert state[0] == state[1]
            # A plan has what is there in the midst of a step as well.
            for (now, then), stage in ((gradients, 2), (weights, 3)):
                assert now < then if settings["zero_stage"] >= stage else now == then
        totals.append(ranks[0][0][0])
    assert totals[1] < totals[0] < totals[2]  # of two micro batches


def test_sums_begin_before_the_backward_pass_has_ended() -> None:
    """Of the last micro batch, block after block; from stage 2 on of each."""
    block, words, positions, vectors = 12 * 64 * 64, 512 * 64, 64 * 64, 2 * 13 * 64 + 2 * 64
    order = [f"sum {size}" for size in (block, block, vectors, positions, words)]
    jobs = [(2, launches, {"zero_stage": stage}) for stage in range(4)]
    for before, ranks in zip(([], [], order, order), in_processes(jobs), strict=True):
        for found in ranks:
            assert found == [*before, "end", *order, "end"]

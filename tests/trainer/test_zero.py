"""Data parallelism of the torch engine: sums begin in the backward pass, ZeRO changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from support.parallel_tools import (
    LLAMA,
    PP,
    TP,
    Run,
    batches,
    check,
    check_precision,
    go_on,
    in_processes,
    open_engine,
    save_state,
    train,
    train_many,
)
from support.rounding import EXACT

from tokpack.configuration.cost import Layout, data_bytes, states_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

CLIP = {"clip_grad": 0.3}
MUON: dict[str, Any] = {"optimizer": "muon", "muon_extra_scale_factor": 0.2}


def zero(stage: int, **settings: Any) -> dict[str, Any]:
    return {"zero_stage": stage, **CLIP, **settings}


def test_fifty_steps_are_those_of_one_process() -> None:
    check([Run(CLIP, 1, 50, 2), Run(zero(1), 2, 50, 2)])


def test_zero_with_other_grids() -> None:
    """A tied embedding on two stages; split layers, recomputed in parts; three data ranks."""
    parts = {"checkpoint_activations": True, "partition_activations": True}
    grids = [zero(1, **PP), zero(3, **PP), zero(3, **TP, **parts)]
    check([Run(CLIP), *(Run(grid, 4) for grid in grids)])
    odd = {**LLAMA, "qk_layernorm": True, "global_batch_size": 6}
    check([Run({**odd, **zero(s)}, n, 8, micro_batches=3) for s, n in ((0, 1), (2, 3), (3, 3))])


def test_half_precision_is_near_in_all_stages() -> None:
    """That copies of pieces, gathered, are those of the whole: see test_precision.py."""
    bf16 = [Run(zero(stage, precision="bf16"), 2) for stage in range(4)]
    check_precision([Run(CLIP), *bf16])
    fp16 = {"precision": "fp16", "initial_loss_scale": 2.0**24, "hysteresis": 1}
    for figures in train_many([Run(zero(stage, **fp16), 2, 10) for stage in (1, 3)]):
        skipped = int(sum(figures["skipped"]))
        assert 4 < skipped < 10
        assert figures["steps"] == [10 - skipped]
        assert figures["loss"][0] == figures["loss"][4]  # nothing was changed


def test_state_goes_from_any_ranks_to_any_others(tmp_path: Path) -> None:
    """Between stages and numbers of ranks; bit by bit in the same layout, in bf16 too."""
    path, base = str(tmp_path / "state"), {**LLAMA, **CLIP}
    half = {"precision": "bf16"}
    sources = {
        "one": (1, base),
        "muon": (2, {**base, **MUON, "zero_stage": 1}),
        "two": (2, {**base, "zero_stage": 3}),
    }
    saves = [(n, save_state, (Run(s, steps=3), f"{path}.{k}")) for k, (n, s) in sources.items()]
    in_processes(saves, float64=True)
    targets = [
        ("one", 2, {**base, "zero_stage": 1}),
        ("two", 1, base),
        ("two", 2, {**base, "zero_stage": 1}),
        ("two", 2, sources["two"][1]),
        ("muon", 1, {**base, **MUON}),
        ("muon", 2, {**base, **MUON, "zero_stage": 2}),
    ]
    resumes = [(n, go_on, (Run(s, steps=3), [f"{path}.{name}.0"])) for name, n, s in targets]
    straight = [(2, train, Run(sources[name][1], steps=6)) for name in ("two", "muon")]
    *found, adam, muon = in_processes([*resumes, *straight], float64=True)
    for (name, *_), ranks in zip(targets, found, strict=True):
        wanted = (muon if name == "muon" else adam)[0]["loss"][3:]
        assert max(abs(a - b) for a, b in zip(ranks[0], wanted, strict=True)) < EXACT, name
    assert found[3][0] == adam[0]["loss"][3:]
    run = Run({**base, **half, "zero_stage": 3}, 2, 3)
    in_processes([(2, save_state, (run, f"{path}.half"))])
    again, whole = in_processes(
        [(2, go_on, (run, [f"{path}.half.0"])), (2, train, replace(run, steps=6))]
    )
    assert again[0] == whole[0]["loss"][3:]


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

"""The torch engine: shapes, dropout, recomputation and state, over several ranks."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch
from support.parallel_tools import (
    LLAMA,
    PP,
    TP,
    Run,
    check,
    difference,
    go_on,
    in_processes,
    save_state,
    train_many,
)
from support.rounding import EXACT, likely

from tokpack.configuration.config import Config
from tokpack.errors import UsageError
from tokpack.trainer import parallel

if TYPE_CHECKING:
    from pathlib import Path

RECOMPUTE = {"checkpoint_activations": True, "checkpoint_num_layers": 3}
DROPOUT = {"num_layers": 4, "hidden_dropout": 0.1, "attention_dropout": 0.1}


def test_other_shapes_of_the_model_and_of_the_pipeline() -> None:
    """Grouped queries, gated MLP, wide heads with norms and biases, another padding of the
    vocabulary, scaled rope, unequal stages.
    """
    heads = {"qk_layernorm": True, "add_qkv_bias": True, "kv_channels": 24}
    llama = {**LLAMA, "num_layers": 4, **heads, "use_rope_scaling": True}
    uneven = {**PP, "pipeline_split": (1, 3)}
    check([Run(llama, 1, 6), Run({**llama, **TP}, 2, 6), Run({**llama, **uneven}, 2, 6)])


def test_fewer_micro_batches_than_stages() -> None:
    four = {"num_layers": 4}
    stages = {**four, "pipeline_model_parallel_size": 4}
    check([Run(four, micro_batches=2), Run(stages, 4, micro_batches=2)])


def test_documents_reach_all_ranks() -> None:
    """And, of norms over heads with biases, what tensor ranks learn of their own heads."""
    normed = {"qk_layernorm": True}
    check([Run(normed, documents=True), Run({**normed, **TP, **PP}, 4, documents=True)])


def test_dropout_is_a_function_of_the_batch() -> None:
    """Data and pipeline ranks, and a second computation, drop what one process drops."""
    recompute = {**DROPOUT, **RECOMPUTE}
    others = [{**DROPOUT, **PP}, DROPOUT, recompute, {**recompute, "checkpoint_in_cpu": True}]
    worlds = (2, 2, 1, 1)
    found = check([Run(DROPOUT), *map(Run, others, worlds)])
    assert difference(found[0], train_many([Run({"num_layers": 4})], float64=True)[0]) > 1e-3


def test_activations_in_parts_and_in_the_cpus_memory() -> None:
    base = {**DROPOUT, **TP}
    parts = {**base, **RECOMPUTE, "partition_activations": True}
    runs = [base, {**base, **RECOMPUTE}, parts, {**parts, "checkpoint_in_cpu": True}]
    check([Run(settings, 2, 4, 2) for settings in runs])


def test_a_sequence_in_parts() -> None:
    """Between layers; dropped are the elements that one process drops, with recomputation too."""
    parts = {**TP, "sequence_parallel": True}
    base = {**RECOMPUTE, "num_layers": 4, "hidden_dropout": 0.1, "clip_grad": 0.3}
    both = {**base, **parts, **PP, "partition_activations": True}
    check([Run(base, steps=6), Run(both, 4, 6)])
    llama = {**LLAMA, "qk_layernorm": True}
    check([Run(llama, 1, 6), Run({**llama, **parts, "zero_stage": 3}, 4, 6)])


def test_state_goes_from_any_ranks_to_any_others(tmp_path: Path) -> None:
    many, one = Run({**LLAMA, **TP, **PP}, 4, 3), Run(LLAMA, steps=3)
    path = str(tmp_path / "state")
    saves = [(4, save_state, (many, path)), (1, save_state, (one, f"{path}.one"))]
    in_processes(saves, float64=True)
    whole = [f"{path}.0", f"{path}.1"]
    to_one, to_two, alone = in_processes(
        [(1, go_on, (one, whole)), (2, go_on, (one, whole)), (1, go_on, (one, [f"{path}.one.0"]))],
        float64=True,
    )
    straight = train_many([replace(one, steps=6)], float64=True)[0]["loss"][3:]
    assert alone[0] == straight  # bit by bit in the same topology
    for losses in (to_one[0], *to_two):
        assert max(abs(a - b) for a, b in zip(losses, straight, strict=True)) < EXACT


def test_processes_that_do_not_divide_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "6")
    with pytest.raises(UsageError, match=r"6 processes do not divide by .* 2 x .* 2; .* of 4"):
        parallel.start(Config(**TP, **PP))


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UsageError, match=r"no GPU here .* --device cpu"):
        parallel.start(Config(device="cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UsageError, match="process 2 of this machine finds 2 GPUs"):
        parallel.start(Config())


def test_a_port_in_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        for name, value in {**where, "WORLD_SIZE": "2", "RANK": "0"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(UsageError, match=rf"127\.0\.0\.1:{port}: .*; is the port in use"):
            parallel.start(Config(device="cpu"))


def test_one_process_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    topology = parallel.start(Config(device="cpu"))
    assert topology == parallel.Topology()
    assert topology.is_main
    assert topology.first_stage
    assert topology.last_stage


def test_the_norm_of_a_large_tensor_is_exact() -> None:
    """On the CPU, torch adds up the squares of one tensor in fp32, one after the other."""
    grad = torch.randn(6_000_000, generator=torch.Generator().manual_seed(1)) * 1e-3
    wanted = grad.double().norm().item()
    found = parallel.global_norm([grad, grad], parallel.Topology()).item()
    bound = likely((1 << 16) + 2 * 92, "float32")  # of pieces of 65,536, and of 2 x 92 norms
    assert found == pytest.approx(2**0.5 * wanted, rel=bound)

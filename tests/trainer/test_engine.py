"""The torch engine: its state over several ranks, and what it refuses."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch
from support.parallel_tools import PP, TP
from support.rounding import likely

from tokpack.errors import UsageError
from tokpack.trainer import parallel
from tokpack.trainer.config.config import Config


def test_processes_that_do_not_divide_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "6")
    with pytest.raises(UsageError, match=r"^6 processes .*_size 2 x .*_size 2; .* of 4$"):
        parallel.start(Config(**TP, **PP))


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UsageError, match=r"\bno GPU\b.*\bdevice cpu$"):
        parallel.start(Config(device="cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UsageError, match=r"^process 2 .*\b2 GPUs\b"):
        parallel.start(Config())


def test_a_port_in_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        for name, value in {**where, "WORLD_SIZE": "2", "RANK": "0"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(UsageError, match=rf" 127\.0\.0\.1:{port}: .*\bport\b"):
            parallel.start(Config(device="cpu"))


def test_one_process_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    topology = parallel.start(Config(device="cpu"))
    assert replace(topology, mesh=None) == parallel.Topology()
    assert topology.is_main
    assert topology.first_stage
    assert topology.last_stage


def test_the_norm_of_a_large_tensor_is_exact() -> None:
    """On the CPU, torch adds up the squares of one tensor in fp32, one after the other."""
    grad = torch.randn(6_000_000, generator=torch.Generator().manual_seed(1)) * 1e-3
    wanted = grad.double().norm().item()
    found = parallel.norms_of({"head": [grad, grad]}, parallel.Topology()).item()
    bound = likely((1 << 16) + 2 * 92, "float32")  # of pieces of 65,536, and of 2 x 92 norms
    assert found == pytest.approx(2**0.5 * wanted, rel=bound)

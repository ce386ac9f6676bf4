"""The network interface of gloo: chosen where a host's name misleads it, and named in an error."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from support.trainer_tools import finish, start, write_tokens

from tokpack.trainer import parallel

if TYPE_CHECKING:
    from pathlib import Path

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "LOCAL_WORLD_SIZE", "LOCAL_SIZE")


def outer() -> tuple[str, str]:
    """An interface of this machine that leads out, and its address."""
    name = parallel._outgoing_interface(
        parallel._ANYWHERE, [name for _, name in socket.if_nameindex()]
    )
    if name is None:
        pytest.skip("this machine has no network")
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.connect((parallel._ANYWHERE, 9))
        return name, probe.getsockname()[0]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """One of two processes on two machines."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.1.1")
    return monkeypatch


def test_a_name_that_means_this_machine_alone(cluster: pytest.MonkeyPatch) -> None:
    name, address = outer()
    for master in (address, "127.0.1.1", "no-such-host.invalid"):
        cluster.setenv("MASTER_ADDR", master)
        cluster.delenv(parallel.VARIABLE, raising=False)
        parallel.choose_interface()
        assert os.environ[parallel.VARIABLE] == name, master


def test_what_is_said_is_not_changed(cluster: pytest.MonkeyPatch) -> None:
    cluster.setenv(parallel.VARIABLE, "ib0")
    parallel.choose_interface()
    assert os.environ[parallel.VARIABLE] == "ib0"


@pytest.mark.parametrize("words", ["=lo", "lo", "none-such,lo"])
def test_what_nccl_was_told(cluster: pytest.MonkeyPatch, words: str) -> None:
    cluster.setenv("NCCL_SOCKET_IFNAME", words)
    parallel.choose_interface()
    assert os.environ[parallel.VARIABLE] == "lo"


@pytest.mark.parametrize(("world", "here"), [("2", "2"), ("1", "1")])
def test_one_machine_needs_none(cluster: pytest.MonkeyPatch, world: str, here: str) -> None:
    cluster.setenv("WORLD_SIZE", world)
    cluster.setenv("LOCAL_WORLD_SIZE", here)
    parallel.choose_interface()
    assert parallel.VARIABLE not in os.environ


def test_an_interface_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = write_tokens(tmp_path / "corpus", documents=20)
    monkeypatch.setenv(parallel.VARIABLE, "nowhere0")
    for code, said in finish(start(2, "--data-path", prefix), 300):
        assert code == 1
        assert "GLOO_SOCKET_IFNAME, which names its interface, is nowhere0" in said
        assert "Traceback" not in said

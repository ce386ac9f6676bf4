"""Choosing the network interface for gloo where the processes of a run are on several machines.

By default gloo takes the interface with the address of the host's name. That is 127.0.1.1 in
Debian's /etc/hosts, where no other machine can reach this one.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

VARIABLE = "GLOO_SOCKET_IFNAME"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
_ANYWHERE = "192.0.2.1"  # reserved for documentation: the route to it leads out of this machine


def choose_interface() -> None:
    """Set GLOO_SOCKET_IFNAME, unless it is set, to NCCL's interface or the one that leads out."""
    if VARIABLE in os.environ or not _several_machines():
        return
    name = _told_to_nccl(os.environ.get("NCCL_SOCKET_IFNAME", ""))
    if name is None and _is_local(_address(socket.gethostname())):
        name = _leading_to(os.environ.get("MASTER_ADDR", ""))
    if name is not None:
        os.environ[VARIABLE] = name


def _several_machines() -> bool:
    """Whether some processes are elsewhere, as far as the launcher says."""
    here = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE")
    if here is None:
        return not _is_local(_address(os.environ.get("MASTER_ADDR", "")))
    return int(os.environ.get("WORLD_SIZE", "1")) > int(here)


def _told_to_nccl(words: str) -> str | None:
    """The first interface that NCCL_SOCKET_IFNAME means: =NAME, or beginnings of names."""
    names = [name for _, name in socket.if_nameindex()]
    for word in words.removeprefix("=").split(","):
        for name in names:
            if name == word or (word and not words.startswith("=") and name.startswith(word)):
                return name
    return None


def _leading_to(master: str) -> str | None:
    """The interface that leads to the first machine; from that machine itself, to any other."""
    for target in (master, _ANYWHERE):
        with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))  # chooses a route, and sends nothing
            own = probe.getsockname()[0]
            if not _is_local(own) and (name := _with_address(own)):
                return name
    return None


def _with_address(address: str) -> str | None:
    """The interface that has this IPv4 address; None where the system does not tell."""
    for _, name in socket.if_nameindex() if fcntl is not None else ():
        request = struct.pack("256s", name.encode()[:15])
        with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as probe:
            answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def _address(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return ""


def _is_local(address: str) -> bool:
    return not address or ipaddress.ip_address(address).is_loopback

"""The network interface of gloo where the processes of a run are on several machines.

gloo itself takes the one with the address of the host's name, which in Debian's /etc/hosts is
127.0.1.1, where no other machine can reach this one.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from contextlib import suppress

VARIABLE = "GLOO_SOCKET_IFNAME"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
_ANYWHERE = "192.0.2.1"  # reserved for documentation: the route to it leads out of this machine


def choose_interface() -> None:
    """Set GLOO_SOCKET_IFNAME, unless it is set, to NCCL's interface or the one that leads out."""
    here = os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE"))
    master = os.environ.get("MASTER_ADDR", "localhost")
    alone = master in ("127.0.0.1", "localhost") or here == os.environ.get("WORLD_SIZE")
    if VARIABLE in os.environ or alone:
        return
    prefixes = os.environ.get("NCCL_SOCKET_IFNAME", "").removeprefix("=").split(",")
    names = [name for _, name in socket.if_nameindex()]
    fitting = (name for word in prefixes for name in names if word and name.startswith(word))
    # From the first machine itself, the one that leads to any other.
    chosen = (
        next(fitting, None)
        or _outgoing_interface(master, names)
        or _outgoing_interface(_ANYWHERE, names)
    )
    if chosen is not None:
        os.environ[VARIABLE] = chosen


def _outgoing_interface(host: str, names: list[str]) -> str | None:
    """The interface that leads to another machine; None where this is this machine itself."""
    with suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # chooses a route, and sends nothing
        address = socket.inet_aton(probe.getsockname()[0])
        for name in names:
            with suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)[20:24]
                if answer == address and not name.startswith("lo"):
                    return name
    return None

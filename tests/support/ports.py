"""Ports of this machine for servers that are told where to listen."""

from __future__ import annotations

import socket


def own_port() -> int:
    """A port of 127.0.0.1 that nobody else is given while this process lives.

    A socket holds it without listening. The system gives it to nobody who asks for any port, and a
    server that sets SO_REUSEADDR, as torch's store and moto do, can listen there when it starts.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    port = int(holder.getsockname()[1])
    holder.detach()
    return port

"""The process that opens stores for one that may fork: see ``tokpack.stores.helper``."""

import socket
import sys

from tokpack.stores.access import objects
from tokpack.stores.backends import Backend, backend_of
from tokpack.stores.helper import serve
from tokpack.stores.urls import StoredObject


def _backend(what: str | StoredObject) -> Backend:
    return backend_of(what.url if isinstance(what, StoredObject) else what, objects.chunks)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), _backend)

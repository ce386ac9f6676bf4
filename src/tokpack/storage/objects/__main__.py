"""The process that opens stores for one that may fork: see ``tokpack.storage.objects.helper``."""

import socket
import sys

from tokpack.storage.objects.access import objects
from tokpack.storage.objects.backends import Backend, backend_of
from tokpack.storage.objects.helper import serve
from tokpack.storage.objects.urls import StoredObject


def _backend(what: str | StoredObject) -> Backend:
    return backend_of(what.url if isinstance(what, StoredObject) else what, objects.chunks)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), _backend)

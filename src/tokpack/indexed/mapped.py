"""Files, or copies of objects, mapped read-only."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from tokpack import _core
from tokpack.errors import InputError
from tokpack.files import durable
from tokpack.files.mistaken import not_a_dataset
from tokpack.stores import StoredObject, check_root, copies, is_url, located

if TYPE_CHECKING:
    from typing import BinaryIO

    from tokpack.stores import Identity

_ADVICE = (
    "a dataset is PREFIX.bin and PREFIX.idx, and is opened by its PREFIX; a run that did not "
    "finish leaves none, and can be run again"
)


_TRIES = 100  # of a copy that others remove before it is open


def map_file(
    path: str, stored: StoredObject | None = None, advice: str = _ADVICE
) -> tuple[bytes | mmap.mmap, Identity]:
    """Map a whole file read-only, whatever happens to its name; of a URL a copy. InputError.

    ``stored`` is the object of the URL, where it was looked up before; ``advice`` ends the error
    about a missing file.
    """
    try:
        if is_url(path):
            stored = stored or located(path)
        if stored is None and not stat.S_ISREG(
            os.stat(path).st_mode
        ):  # a pipe would block for ever
            raise InputError(f"{path}: not a regular file")
        with _opened(path, stored) as file:
            status = os.fstat(file.fileno())
            size, identity = status.st_size, stored or durable.Identity.of(status)
            if size == 0:  # cannot be mapped
                return b"", identity
            _core.watch_bus_errors()  # a library may have taken the signal since
            if sys.version_info >= (3, 13):  # keeps no second descriptor open
                buffer = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ, trackfd=False)
            else:
                buffer = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
            return buffer, identity
    except FileNotFoundError:
        if is_url(path):
            check_root(path)
        mistaken = "" if is_url(path) else not_a_dataset(path.removesuffix(".idx"))
        raise InputError(mistaken or f"{path}: no such file; {advice}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a NUL, or half of a surrogate pair
        raise InputError(f"{path!r}: no file has such a name: {error}") from None


def _opened(path: str, stored: StoredObject | None) -> BinaryIO:
    for _ in range(_TRIES):
        name = path if stored is None else copies([stored])[0]
        with suppress(FileNotFoundError):  # others needed the place of the copy
            return open(name, "rb", buffering=0)
        if stored is None:
            break
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

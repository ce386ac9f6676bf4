"""Copying ranges of files inside the kernel."""

from __future__ import annotations

import errno
import os

_BLOCK = 1 << 20
_NOT_HERE = (
    errno.EXDEV,
    errno.ENOSYS,
    errno.EINVAL,
    errno.EOPNOTSUPP,
    errno.EPERM,
    errno.EBADF,
    errno.ETXTBSY,
)


def copy_range(source: int, target: int, begin: int, end: int, at: int) -> None:
    """Copy bytes [begin, end) of one file to offset ``at`` of another. Raises OSError."""
    if not hasattr(os, "copy_file_range"):
        _copy_by_hand(source, target, begin, end, at)
        return
    while begin < end:
        try:
            count = os.copy_file_range(source, target, end - begin, begin, at)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            count = 0
        if not count:  # some file systems copy nothing without an error
            _copy_by_hand(source, target, begin, end, at)
            return
        begin += count
        at += count


def _copy_by_hand(source: int, target: int, begin: int, end: int, at: int) -> None:
    while begin < end:
        block = os.pread(source, min(_BLOCK, end - begin), begin)
        if not block:
            raise OSError(errno.EIO, "the file is shorter than it was")
        begin += len(block)
        view = memoryview(block)
        while view:
            count = os.pwrite(target, view, at)
            view = view[count:]
            at += count

"""What ``durable`` promises of names and identities, with real files."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from tokpack.errors import OutputError
from tokpack.files import durable

if TYPE_CHECKING:
    from pathlib import Path


def test_the_identity_is_that_of_the_contents_too(tmp_path: Path) -> None:
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    assert durable.identity(old) is durable.same_file(old) is durable.identity("a\0b") is None
    (tmp_path / "old").write_bytes(b"x")
    os.link(old, new)
    os.symlink(old, tmp_path / "sign")
    before = durable.identity(old)
    assert before is not None
    assert before == durable.identity(new) == durable.identity(str(tmp_path / "sign"))
    assert before != durable.identity(str(tmp_path / "sign"), follow_links=False)
    (tmp_path / "new").write_bytes(b"xy")
    assert durable.identity(old) != before
    assert durable.same_file(old) == before[:2]


def test_want_of_memory_is_not_the_fault_of_a_path() -> None:
    for number, kind in ((errno.ENOMEM, MemoryError), (errno.EIO, OutputError)):
        with pytest.raises(kind), durable.cannot_write("x"):
            raise OSError(number, os.strerror(number))

"""Hostile files, and those that convert can do without; see messages.txt too."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.converting import run, same
from support.documents import plain
from support.indexed_twin import write_plainly

from tokpack.errors import FormatError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_pickle_is_not_loaded_and_metadata_may_be_absent(tmp_path: Path) -> None:
    write_plainly(tmp_path / "all", plain([[[1, 2]], [[3]]]))
    run(tmp_path / "all", tmp_path / "x.ds")
    os.unlink(f"{tmp_path}/x.ds.metadata")
    run(tmp_path / "x.ds", tmp_path / "again")  # it can do without
    same(tmp_path / "again", tmp_path / "all")

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "pickle was loaded"),)

    np.save(tmp_path / "evil.npy", np.array([Evil()], object), allow_pickle=True)
    with pytest.raises(FormatError, match=r"evil\.npy"):
        run(tmp_path / "evil.npy", tmp_path / "no")
    assert not (tmp_path / "pickle was loaded").exists()
    assert not list(tmp_path.glob("no*"))

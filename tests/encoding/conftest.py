"""Places for runs that are stopped, and disks that are soon full."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from support.small_disk import small_disk
from support.stopped_runs import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def tokenizer(bpe: Path) -> Path:
    return bpe


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def place(tmp_path: Path, tokenizer: Path, kept: Path) -> Place:
    return Place(tmp_path, tokenizer, kept)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Makes file systems of so many bytes; skips the test where that is not allowed."""
    with ExitStack() as stack:

        def mount(size: int) -> Path:
            try:
                return stack.enter_context(small_disk(tmp_path / "disk", size))
            except PermissionError as error:
                pytest.skip(str(error))

        yield mount

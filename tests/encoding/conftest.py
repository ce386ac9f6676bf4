"""Places for runs that are stopped, and disks that are soon full."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from support.chatml_twin import Chats, ChatTwin, chat_tokenizer
from support.faults import small_disk
from support.optional import BARE
from support.small_parts import in_small_parts
from support.stopped_runs import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def tokenizer(bpe: Path) -> Path:
    return bpe


@pytest.fixture(scope="session")
def chatty(bpe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer that has a template."""
    return chat_tokenizer(tmp_path_factory.mktemp("chat") / "chatty", bpe)


@pytest.fixture(scope="session")
def twin(chatty: Path) -> ChatTwin:
    return ChatTwin(chatty)


@pytest.fixture
def chats(tmp_path: Path, chatty: Path, twin: ChatTwin) -> Chats:
    return Chats(tmp_path, chatty, twin)


@pytest.fixture
def small_parts() -> Iterator[None]:
    """Parts and segments of 256 KiB: files of 800 kB are cut, as those of 12 MB are without it."""
    with in_small_parts(1 << 18):
        yield


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def place(tmp_path: Path, tokenizer: Path, kept: Path) -> Place:
    return Place(tmp_path, tokenizer, kept)


@pytest.fixture(scope="session")
def may_mount(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips the test where no small file system can be mounted."""
    if BARE:
        pytest.skip("cannot mount a small file system here")
    try:
        with small_disk(tmp_path_factory.mktemp("mount") / "disk", 4096):
            pass
    except PermissionError as error:
        pytest.skip(str(error))


@pytest.fixture
def mount(tmp_path: Path, may_mount: None) -> Iterator[Callable[[int], Path]]:
    """Makes file systems of so many bytes."""
    with ExitStack() as stack:
        yield lambda size: stack.enter_context(small_disk(tmp_path / "disk", size))

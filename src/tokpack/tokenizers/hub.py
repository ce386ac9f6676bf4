"""The files of named tokenizers: in tokpack's cache, a Hugging Face cache, or a checked
download.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tokpack.display import first_line
from tokpack.errors import TokenizerError
from tokpack.machine import cache_root
from tokpack.progress import without_widgets
from tokpack.storage.disk import cannot_write, rename, sync_file, sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_TIMEOUT = 5.0  # seconds within which a server must answer
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_repository(name: str) -> bool:
    """Whether a name has the form of a Hugging Face repository, owner/name."""
    return _REPOSITORY.fullmatch(name) is not None


def cache_folder(name: str) -> Path:
    """The folder with the files of a named tokenizer: $TOKPACK_CACHE/tokenizers/NAME."""
    return cache_root() / "tokenizers" / name.replace("/", "--")


def hub_snapshots(repository: str) -> Iterator[Path]:
    """The folders of a repository in this machine's Hugging Face cache; the newest ``main``
    first.
    """
    folder = hub_cache() / f"models--{repository.replace('/', '--')}"
    snapshots = folder / "snapshots"
    try:
        main = snapshots / (folder / "refs" / "main").read_text().strip()
        newest = sorted(snapshots.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return
    yield from sorted(newest, key=lambda path: path != main)


def known_files(snapshot: Path) -> set[str]:
    """The files of a snapshot, and those that the hub is known not to have."""
    absent = snapshot.parent.parent / ".no_exist" / snapshot.name
    return {path.name for folder in (snapshot, absent) for path in folder.glob("*")}


def hub_cache() -> Path:
    """The folder in which ``huggingface_hub`` keeps downloads on this machine."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    home = os.environ.get("HF_HOME")
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return (Path(home).expanduser() if home else default) / "hub"


class UnavailableError(Exception):
    """A download was not made; the message is the reason, one phrase. Internal."""


def download(
    repository: str,
    choices: Sequence[tuple[str, ...]],
    folder: Path,
    check: Callable[[Path], object] = lambda folder: None,
    beside: Sequence[str] = (),
) -> None:
    """Download the first set of files that the repository has into ``folder``, all of them or none.

    Those of ``beside`` that it has are downloaded, too. Every file is compared with the checksum
    that the server announced; then ``check`` is called with the folder and may refuse it. Raises
    UnavailableError, or what ``check`` raises.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise UnavailableError("HF_HUB_OFFLINE is set")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
    except OSError as error:
        raise TokenizerError(
            f"{folder.parent}: cannot write the cache of tokenizers: {error.strerror}; "
            "set TOKPACK_CACHE to a folder that can be written"
        ) from None
    try:
        _fetch_first(repository, choices, beside, partial)
        shutil.rmtree(partial / "hub")
        check(partial)
        partial.chmod(0o755)
        _move_into_place(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _move_into_place(partial: Path, folder: Path) -> None:
    for path in partial.iterdir():
        sync_file(str(path))
    with cannot_write(folder):
        try:
            rename(partial, folder, fsync=False)
        except OSError:
            # The folder exists: another process was faster, or it has other files of the user.
            for path in partial.iterdir():
                rename(path, folder / path.name, fsync=False)
            sync_folder(str(folder))
        sync_folder(str(folder.parent))


def _fetch_first(
    repository: str, choices: Sequence[tuple[str, ...]], beside: Sequence[str], partial: Path
) -> None:
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    for files in choices:
        try:
            for name in files:
                _fetch(repository, name, partial)
            for name in beside:
                try:
                    _fetch(repository, name, partial)
                except LocalEntryNotFoundError:
                    raise
                except EntryNotFoundError:
                    continue
        except LocalEntryNotFoundError as error:
            raise UnavailableError(first_line(error)) from None
        except EntryNotFoundError:
            continue
        except GatedRepoError:
            raise UnavailableError("it is gated: accept its terms and set HF_TOKEN") from None
        except RepositoryNotFoundError:
            raise UnavailableError("no such repository, or a private one (set HF_TOKEN)") from None
        except Exception as error:
            raise UnavailableError(first_line(error)) from None
        return
    expected = " nor ".join(" with ".join(files) for files in choices)
    raise UnavailableError(f"the repository has neither {expected}")


def _fetch(repository: str, name: str, partial: Path) -> None:
    """Download one file. Its metadata are requested first: only that fails at once, without
    retries.
    """
    with without_widgets():
        import huggingface_hub
        from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    url = huggingface_hub.hf_hub_url(repository, name)
    metadata = huggingface_hub.get_hf_file_metadata(url, timeout=_TIMEOUT)
    path = huggingface_hub.hf_hub_download(
        repository,
        name,
        revision=metadata.commit_hash,
        cache_dir=partial / "hub",
        etag_timeout=_TIMEOUT,
    )
    content = Path(path).read_bytes()
    check_etag(content, metadata.etag, f"{repository}/{name}")
    (partial / name).write_bytes(content)


def check_etag(content: bytes, etag: str | None, what: str) -> None:
    """Compare with the server's checksum: sha256 for a large file, git's sha1 for any other."""
    if etag and re.fullmatch("[0-9a-f]{64}", etag):
        actual = hashlib.sha256(content).hexdigest()
    elif etag and re.fullmatch("[0-9a-f]{40}", etag):
        blob = b"blob %d\0" % len(content) + content
        actual = hashlib.sha1(blob, usedforsecurity=False).hexdigest()
    else:
        raise TokenizerError(f"{what}: refused, because the server gives no checksum ({etag!r})")
    if actual != etag:
        raise TokenizerError(f"{what}: the download is broken: checksum {actual}, announced {etag}")

"""Which files a run may replace: one rule for every command that writes.

An existing output is replaced if its content shows that the same command made it, or on request
(overwrite, --overwrite). An input of the same run is never replaced, under any name. Kinds of
outputs differ in how they are recognized, and whether a recognized one is replaced without a
request: a report is, token ids are not.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokpack.errors import OutputError, UsageError, option
from tokpack.storage.disk.durable import (
    NAMES,
    UNFINISHED,
    AtomicFiles,
    cannot_write,
    open_regular,
    remove_file,
    same_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import BinaryIO


@dataclass(frozen=True)
class Kind:
    """A kind of file that is written.

    ``recognizes`` tells from the content of a file whether tokpack wrote it; None if the content
    cannot show it. A recognized file is replaced without a request, unless ``kept``. ``beside`` is
    for files that accompany an output without being named by the user: if not made by tokpack, they
    are never replaced.
    """

    what: str  # for messages: "a manifest"
    recognizes: Callable[[str], bool] | None = None
    kept: bool = True
    beside: bool = False


_SEALED_BYTES = 1 << 26
_BLOCK = 1 << 20

DATA = Kind("an output of tokpack")  # its content does not show who made it

Output = tuple[str, Kind]  # a path and what is written there


def remove_partial(paths: Sequence[str]) -> None:
    """Remove the outputs of a run that was killed between its renames.

    A note beside the last output lists these files by device and inode. A different file that now
    has one of the names came later, and stays. Raises OutputError.
    """
    note = paths[-1] + NAMES
    if not os.path.isfile(note):
        return
    try:
        with open(note, encoding="ascii") as file:
            files = json.loads(file.read(_SEALED_BYTES))
    except (OSError, ValueError, RecursionError):
        files = {}
    if isinstance(files, dict) and not os.path.lexists(paths[-1]):
        for path in paths:
            if files.get(os.path.abspath(path)) == list(same_file(path) or ()):
                remove_file(path)
    remove_file(note)


def check_outputs(
    outputs: Sequence[Output], inputs: Iterable[str], *, overwrite: bool, detail: str = ""
) -> None:
    """Raise if the rule forbids an output; the files of ``outputs`` appear together, in this order.

    ``detail`` is added to the message about an existing file. ``inputs`` are all files that the run
    reads, or folders of such; missing ones are ignored. UsageError for an input that is an output,
    or two outputs with one name; OutputError for an existing file that must not be replaced.
    """
    seen: dict[str, str] = {}
    for path, _ in outputs:
        real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        if real in seen:
            raise UsageError(
                f"{seen[real]} and {path} are the same file: give the outputs different names"
            )
        seen[real] = path
    check_not_inputs([path for path, _ in outputs], inputs)
    for path, kind in outputs:
        scheme, colon, _ = path.partition("://")
        if scheme == "hf":
            raise UsageError(
                f"{path}: name an output on the hub hf://datasets/OWNER/REPOSITORY/PREFIX"
            )
        if colon:  # the rest may contain a password
            raise UsageError(
                f"an output is {scheme}://...: only datasets can be written to stores; name a file "
                "on a disk, and copy it there"
            )
        if not os.path.lexists(path):
            continue
        if os.path.isdir(path):
            raise OutputError(f"{path} is a folder: choose another output")
        if os.path.exists(path) and not os.path.isfile(path):  # opening a pipe would block
            raise OutputError(f"{path} is not a regular file: choose another output")
        check_replaceable(path, kind, overwrite=overwrite, detail=detail)


def check_replaceable(path: str, kind: Kind, *, overwrite: bool, detail: str = "") -> None:
    """Raise OutputError if an existing file or object must not be replaced."""
    is_ours = kind.recognizes is not None and kind.recognizes(path)
    if kind.beside and not is_ours:
        raise OutputError(
            f"{path}: exists and is not {kind.what}, so it is not overwritten: choose "
            "another output"
        )
    if not overwrite and (kind.kept or not is_ours):
        raise OutputError(
            f"{path} exists{detail}: choose another output, or replace it with "
            f"{option('overwrite', True)}"
        )


def write_output(
    path: str, chunks: Iterable[bytes], inputs: Iterable[str], *, overwrite: bool
) -> None:
    """Write ``chunks`` to ``path``, whole and durably, if the rule allows it.

    A file that already has exactly these bytes is left alone.
    """
    inputs = tuple(inputs)
    check_not_inputs([path], inputs)
    with AtomicFiles() as staged:
        file = staged.write(path, chunks)
        with cannot_write(path):
            file.flush()
        if _same_bytes(path, file):
            return
        check_outputs([(path, DATA)], inputs, overwrite=overwrite)
        staged.commit()


def check_not_inputs(outputs: Iterable[str], inputs: Iterable[str]) -> None:
    """Raise UsageError if an output, or the name of its unfinished file, is an input.

    ``file://PATH`` is another name of a file, which fsspec can read and write.
    """
    written = {}
    for path in outputs:
        for name in (path, path + UNFINISHED):
            file = same_file(_on_disk(name))
            if file is not None:
                written[file] = name
    if not written:
        return
    for name in inputs:
        for path, file in _files(_on_disk(name)):
            output = None if file is None else written.get(file)
            if output is None:
                continue
            other = "" if output == path else f" under the name {path}"
            raise UsageError(f"{output} is an input{other} and an output: choose another output")


def begins_with(path: str, text: bytes) -> bool:
    """Whether a file can be read and begins with ``text``."""
    try:
        with open_regular(path) as file:
            return file.read(len(text)) == text
    except OSError:
        return False


def sealed(text: str, maker: str) -> str:
    """The text after a comment line that lets ``is_sealed`` see if somebody edited it."""
    import xxhash  # late: help pages need not load it

    digest = xxhash.xxh3_64(text.encode()).hexdigest()
    return f"# {maker} replaces this file as long as it is unchanged: {digest}\n{text}"


def is_sealed(path: str, maker: str) -> bool:
    """Whether a file is what ``sealed`` made for the same ``maker``, byte for byte."""
    try:
        with open_regular(path) as file:
            head = file.readline(_SEALED_BYTES).decode()
            text = file.read(_SEALED_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        return False
    return head + text == sealed(text, maker)


def _same_bytes(path: str, file: BinaryIO) -> bool:
    try:
        with open(path, "rb") as there:
            if os.fstat(there.fileno()).st_size != os.fstat(file.fileno()).st_size:
                return False
            file.seek(0)
            while block := file.read(_BLOCK):
                if there.read(len(block)) != block:
                    return False
    except OSError:  # it does not exist, or cannot be read
        return False
    return True


def _on_disk(name: str) -> str:
    """The path that fsspec opens for a ``file://`` or ``local://`` URL; any other name as it is."""
    scheme, colon, path = name.partition("://")
    return os.path.expanduser(path) if colon and scheme.lower() in ("file", "local") else name


def _files(name: str) -> Iterator[tuple[str, tuple[int, int] | None]]:
    """A file, or a folder and the files in it, each with its device and inode."""
    try:
        status = os.stat(name)  # once: there may be a million inputs on a slow file system
    except (OSError, ValueError):
        return
    yield name, (status.st_dev, status.st_ino)
    if stat.S_ISDIR(status.st_mode):
        with os.scandir(name) as entries:
            yield from ((entry.path, same_file(entry.path)) for entry in entries)

"""Archives made in memory."""

from __future__ import annotations

import io
import tarfile
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def tar(
    files: Mapping[str, bytes], format_: int = tarfile.PAX_FORMAT, *, folder: bool = True
) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=format_) as archive:
        if folder:
            entry = tarfile.TarInfo("d")
            entry.type = tarfile.DIRTYPE
            archive.addfile(entry)
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return raw.getvalue()


def zipped(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return raw.getvalue()


def dat(texts: Iterable[bytes]) -> bytes:
    return b"".join(b"%016d" % len(text) + text for text in texts)

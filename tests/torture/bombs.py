"""Files that are small and become huge: a document of gigabytes inside each kind of container."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from typing import TYPE_CHECKING

import zstandard

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

FIRST, LAST = '{"text": "first"}', '{"text": "last"}'
KINDS = ("jsonl.zst", "frames.jsonl.zst", "txt.zst", "jsonl.gz", "json.zst", "tar.zst", "zip")
_BLOCK = 1 << 24
_ZSTD = zstandard.ZstdCompressor(level=1)

# One run with all bad records let pass; says what it counted and the memory that it took, in MiB.
_CHILD = """
import json, resource, sys, tokpack
rss = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
options = json.loads(sys.argv[1])
warm = options.pop("warm")
tokpack.encode(**{**options, "inputs": warm, "output": options["output"] + "-warm"})
before = rss()
manifest = tokpack.encode(**options)
print(json.dumps([manifest.records, manifest.documents, manifest.rejected, rss() - before]))
"""


def make(path: Path, kind: str, size: int) -> Path:
    """A file ``kind`` in which one document of ``size`` bytes lies between two small ones."""
    path = path.with_name(f"{path.name}.{kind}")
    if kind == "frames.jsonl.zst":
        frame = _ZSTD.compress(bytes(_BLOCK))
        ends = [_ZSTD.compress(f"{line}\n".encode()) for line in (FIRST, f"\n{LAST}")]
        path.write_bytes(ends[0] + frame * (size // _BLOCK) + ends[1])
    elif kind.startswith(("tar", "zip")):
        _archive(path, size)
    else:
        with _opened(path) as file:
            array = kind.startswith("json.")
            file.write(f'[{FIRST},{{"text": "'.encode() if array else f"{FIRST}\n".encode())
            for _ in range(size // _BLOCK):
                file.write((b"x" if array else b"\0") * _BLOCK)
            file.write(f'"}},{LAST}]'.encode() if array else f"\n{LAST}\n".encode())
    return path


def _opened(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return gzip.open(path, "wb", 1)
    return zstandard.open(path, "wb", cctx=_ZSTD)


class _Zeros(io.RawIOBase):
    def read(self, size: int = -1) -> bytes:
        return bytes(size)


def _archive(path: Path, size: int) -> None:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("first.txt", "first")
            with archive.open("huge.txt", "w", force_zip64=True) as file:
                for _ in range(size // _BLOCK):
                    file.write(bytes(_BLOCK))
            archive.writestr("last.txt", "last")
        return
    with (
        zstandard.open(path, "wb", cctx=_ZSTD) as file,
        tarfile.open(fileobj=file, mode="w|") as archive,
    ):
        for name, length in (("first.txt", 5), ("huge.txt", size), ("last.txt", 4)):
            info = tarfile.TarInfo(name)
            info.size = length
            archive.addfile(info, _Zeros() if length == size else io.BytesIO(b"words"))


def encode(path: Path, warm: Path, tokenizer: Path, output: Path) -> tuple[int, int, int, int]:
    """Records, documents, rejects, and MiB of memory more than for the small file ``warm``."""
    options = {
        "inputs": str(path),
        "warm": str(warm),
        "output": str(output),
        "tokenizer": str(tokenizer),
        "on_error": "skip",
        "max_document_bytes": 1 << 20,
        "workers": 1,
    }
    command = [sys.executable, "-c", _CHILD, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    records, documents, rejected, more = json.loads(done.stdout)
    return records, documents, rejected, more

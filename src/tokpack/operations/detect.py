"""The format of a dataset of token ids, by its content."""

from __future__ import annotations

import os
from contextlib import suppress

from tokpack.errors import InputError, UsageError
from tokpack.files.durable import cannot_read
from tokpack.files.mistaken import pointer_in
from tokpack.indexed.dataset import MMapIndexedDataset
from tokpack.indexed.format import HEADER_BYTES, idx_path, parse_header
from tokpack.indexed.prefix import prefix_of
from tokpack.operations import foreign, lists
from tokpack.operations.neox import is_neox
from tokpack.operations.olmo import olmo_parts
from tokpack.stores import head, identity, is_file, is_url

_HEAD = 64


def detect(name: str) -> str:
    """The format of a dataset, by its content: a prefix of .bin/.idx, or a file.

    FormatError for a format that cannot be read, UsageError where nothing tells the format.
    """
    if name.startswith(("http://", "https://")):
        # First what is named: a signature is of this file alone, and to ask for others may fail.
        with suppress(InputError):
            if form := _by_magic(_head(name)):
                return form
    if is_neox(name):
        return "neox"
    prefix = prefix_of(name)
    if index := identity(idx_path(prefix)):
        head = _head(idx_path(prefix))[:HEADER_BYTES]
        parse_header(head, index.size, idx_path(prefix))  # other programs' are refused by name
        return "mmap"
    if MMapIndexedDataset.exists(prefix):  # a virtual one
        return "mmap"
    return _detect_folder(name) if os.path.isdir(name) else _detect_file(name)


def _detect_file(name: str) -> str:
    if not is_file(name):
        raise InputError(
            f"{name}: no such file, nor {idx_path(prefix_of(name))}; name a dataset by its prefix, "
            "anything else by its file"
        )
    begin = _head(name)
    if pointer := pointer_in(begin):
        raise InputError(f"{name}: this is {pointer}")
    form = _by_magic(begin)
    # Ids may be the mark of an Arrow stream, or a number of llm.c.
    is_told = form in ("npy", "parquet", "arrow") and not begin.startswith(lists.ARROW_STREAM)
    if not is_told and is_file(f"{name}.index"):
        return "datatrove"
    if form:
        return form
    if name.endswith(".npy"):
        raise UsageError(
            f"{name}: a .npy without numpy's header: say --from olmo if OLMo-core or dolma wrote "
            "it, else --from raw; either takes --input-dtype uint16 --eod ID"
        )
    raise UsageError(
        f"{name}: nothing in it tells its format; if it is token ids and nothing else, say "
        "--from raw --input-dtype uint16 --eod ID"
    )


def _detect_folder(name: str) -> str:
    if lists.is_arrow_folder(name):
        return "arrow"
    if olmo_parts(name):
        return "olmo"
    raise UsageError(
        f"{name}: nothing in this folder tells its format: neither {lists.STATE} of Hugging Face's "
        "datasets nor token_ids_part_0000.npy of open-instruct"
    )


def _by_magic(head: bytes) -> str:
    """The format of a file that begins so, "" where that does not tell it."""
    if head.startswith(foreign.NPY_MAGIC):
        return "npy"
    if head.startswith(lists.MAGIC):
        return "parquet"
    if head.startswith((lists.ARROW_FILE, lists.ARROW_STREAM)):
        return "arrow"
    return "llm.c" if foreign.is_shard(head) else ""


def _head(path: str) -> bytes:
    if is_url(path):
        return head(path, _HEAD)
    with cannot_read(path), open(path, "rb") as file:
        return file.read(_HEAD)

"""The datasets of a blend: found by name, identified, and cut into what a split leaves of them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from tokpack.display import nearest
from tokpack.errors import FormatError, InputError, UsageError
from tokpack.indexed import Manifest, MMapIndexedDataset, manifest_path
from tokpack.indexed.format import bin_path, idx_path
from tokpack.samples.orders.stateless import fingerprint
from tokpack.samples.split import SPLITS, parse_split, split_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.samples.split import Range

_SUFFIXES = ("", "_text_document", "_text_sentence")
_CHUNK = 1 << 20
_LISTED = 10_000  # files of a folder, in which a name is looked for that was typed wrong
_MANY = 2**40  # sequences, of which any share that is meant leaves some


@dataclass(frozen=True)
class Member:
    """One dataset of a blend.

    ``fingerprint``, 16 hexadecimal digits, is of the data: all lengths, and tokens of three places.
    It is what the stateless order depends on, is measured whenever the dataset is opened, and is
    the same for every copy. ``checksum`` is the xxh3_128 of the whole .bin as the manifest states
    it, None without a manifest; ``tokpack verify`` compares it with the file.
    """

    prefix: str
    documents: int
    tokens: int
    fingerprint: str
    checksum: str | None
    tokenizer: str | None  # sha256 of its definition, where a manifest says it
    tokenizer_name: str | None
    dataset: MMapIndexedDataset = field(compare=False, repr=False)


@dataclass(frozen=True)
class Portion:
    """What one dataset has for one purpose: sequences ``begin`` to ``end``."""

    member: Member
    begin: int
    end: int
    documents: int
    tokens: int
    labels: str | None = None  # a dataset with a label for each token
    _pieces: dict[int, int] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def prefix(self) -> str:
        """The name of the dataset."""
        return self.member.prefix

    def pieces(self, seq_length: int) -> int:
        """Samples of one sequence each, of which longer ones make several."""
        if seq_length in self._pieces:
            return self._pieces[seq_length]
        sizes, total = self.member.dataset.sizes, 0
        for begin in range(self.begin, self.end, _CHUNK):
            part = sizes[begin : min(begin + _CHUNK, self.end)].astype(np.int64)
            total += int(np.sum(-(-np.maximum(part - 1, 0) // seq_length)))
        self._pieces[seq_length] = total
        return total


def find_prefix(name: str) -> str:
    """The dataset that a user means: NAME, NAME.idx, NAME.bin or NAME_text_document."""
    base = name[:-4] if name.endswith((".idx", ".bin")) else name
    for suffix in _SUFFIXES:
        if MMapIndexedDataset.exists(base + suffix):
            return base + suffix
    tried = ", ".join(f"{base}{suffix}.idx" for suffix in _SUFFIXES)
    hint = _neighbours(base)
    raise InputError(f"{name}: no such dataset; looked for {tried}, each with its .bin{hint}")


def _neighbours(base: str) -> str:
    """What a missing dataset was probably meant to be: a hint for the end of a message."""
    folder, name = os.path.split(base)
    try:
        with os.scandir(folder or ".") as entries:
            known = [one.name[:-4] for one in islice(entries, _LISTED) if one.name[-4:] == ".idx"]
    except OSError:
        return f"; there is no folder {folder}" if folder and not os.path.isdir(folder) else ""
    near = nearest(name, known)
    return f"; did you mean {os.path.join(folder, near)}?" if near else ""


def read_member(name: str) -> Member:
    """Open a dataset and note what identifies it.

    InputError where it is missing, has no tokens, or has other sizes than its manifest says.
    """
    prefix = find_prefix(name)
    dataset = MMapIndexedDataset(prefix)
    tokens = int(np.sum(dataset.sizes, dtype=np.int64))
    if tokens == 0:
        raise InputError(f"{prefix}: no tokens in it: leave it out, or encode it again")
    manifest = _manifest(prefix)
    return Member(
        prefix=prefix,
        documents=len(dataset.doc_idx) - 1,
        tokens=tokens,
        fingerprint=f"{fingerprint(dataset):016x}",
        checksum=None if manifest is None else manifest.bin["xxh3_128"],
        tokenizer=None if manifest is None else manifest.tokenizer.get("sha256"),
        tokenizer_name=None if manifest is None else manifest.tokenizer.get("name"),
        dataset=dataset,
    )


def _manifest(prefix: str) -> Manifest | None:
    """The manifest, where there is one; its sizes must be those of the files."""
    if not os.path.exists(manifest_path(prefix)):
        return None
    try:
        manifest = Manifest.load(prefix)
    except FormatError:  # somebody else's file
        return None
    for path, said in ((bin_path(prefix), manifest.bin), (idx_path(prefix), manifest.idx)):
        if not os.path.exists(path):  # a virtual dataset checks its pieces itself
            continue
        if (found := os.path.getsize(path)) != said["bytes"]:
            raise InputError(
                f"{path} has {found:,} bytes, its manifest says {said['bytes']:,}: the dataset is "
                f"not what was written; `tokpack verify {prefix}` says more"
            )
    return manifest


def check_tokenizers(members: Sequence[Member]) -> None:
    """UsageError for datasets whose manifests name different tokenizers."""
    known = [member for member in members if member.tokenizer is not None]
    for member in known[1:]:
        if member.tokenizer != known[0].tokenizer:
            raise UsageError(
                f"{known[0].prefix} and {member.prefix} were made with different tokenizers, "
                f"{_tokenizer(known[0])} and {_tokenizer(member)}: ids of one mean nothing in the "
                "other; encode one of them again"
            )


def _tokenizer(member: Member) -> str:
    return f"{member.tokenizer_name} (sha256 {str(member.tokenizer)[:12]})"


def whole(member: Member) -> Portion:
    """All of a dataset."""
    return Portion(member, 0, len(member.dataset), member.documents, member.tokens)


def wanted_parts(split: str) -> list[bool]:
    """Whether a split string means to leave something for training, validation and test."""
    parts = parse_split(split, _MANY)
    if len(parts) > SPLITS:
        raise UsageError(
            f"split {split!r} has {len(parts)} ranges, expected up to {SPLITS}: training, "
            "validation and test"
        )
    return [number < len(parts) and parts[number] is not None for number in range(SPLITS)]


def split_member(member: Member, split: str, split_by: str, rule: str) -> list[Portion]:
    """What a split string leaves of a dataset for each purpose, perhaps nothing."""
    sizes = member.dataset.sizes
    if split_by == "tokens":
        ranges = split_tokens(split, sizes)
    else:
        ranges = parse_split(split, len(sizes), rule)
    return [_portion(member, found) for found in ranges]


def _portion(member: Member, found: Range | None) -> Portion:
    begin, end = found or (0, 0)
    tokens = int(np.sum(member.dataset.sizes[begin:end], dtype=np.int64))
    doc_idx = member.dataset.doc_idx
    first, last = np.searchsorted(doc_idx[1:], [begin, end - 1], side="right").tolist()
    return Portion(member, begin, end, last + 1 - first if end > begin else 0, tokens)

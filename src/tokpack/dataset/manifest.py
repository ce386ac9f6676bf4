"""The manifest ``PREFIX.json``: what a dataset was made from, and checksums of its files.

Trainers do not need it. Readers ignore unknown keys; a change that would mislead them gets a new
version.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
from collections import Counter, deque
from collections.abc import (
    Mapping,  # noqa: TC003 - decode evaluates annotations
    Sequence,  # noqa: TC003 - decode evaluates annotations
)
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Required, TypedDict, TypeGuard

import numpy as np
import ujson
import xxhash

from tokpack import __version__, machine
from tokpack.counts import FOUND, READ, Counts, counts_last, records_of, without_zeros
from tokpack.dataset.format import storage_dtype
from tokpack.display import brief, drawn
from tokpack.errors import FormatError, InputError, UsageError
from tokpack.storage import exists, head, is_url, joined, open_file, place_of
from tokpack.storage.disk import (
    MAX_BYTES,
    Kind,
    cannot_read,
    check_outputs,
    decode,
    parse_json,
    replace_file,
)
from tokpack.storage.disk.blocks import BlockSums, checksum_of_sums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tokpack.dataset.shards import Shard


_READ = 1 << 20


class FileDigest(TypedDict, total=False):
    """Size and checksum of a file, as a whole or by blocks (``disk.blocks``).

    A .bin joined by a store has the digests of its ``pieces`` instead, in order.
    """

    bytes: Required[int]
    xxh3_128: str
    xxh3_blocks: str
    pieces: list[FileDigest]


class TrackDigest(FileDigest):
    """The digest of a track, with numpy's name of its dtype."""

    dtype: str


def check_size(path: str, size: int, digest: FileDigest) -> None:
    """Raise FormatError if a file does not have the size that the manifest says."""
    recorded = digest["bytes"]
    if size != recorded:
        raise FormatError(
            f"{path}: {size} bytes, expected {recorded}, as the manifest says: "
            f"{'cut off' if size < recorded else 'too long'}, or the files do not belong together"
        )


def checksum_of(digest: FileDigest) -> str:
    """The checksum in a digest, 32 hexadecimal digits; "" if it has none.

    For a file with pieces it is that of their sizes and checksums, each on a line.
    """
    if "pieces" in digest:
        lines = "".join(f"{one['bytes']} {checksum_of(one)}\n" for one in digest["pieces"])
        return xxhash.xxh3_128_hexdigest(lines.encode())
    return digest.get("xxh3_blocks") or digest.get("xxh3_128", "")


class PieceSums:
    """Compares the bytes of a file, in order, with its digest or those of its pieces.

    FormatError, about ``path``, for bytes that have another checksum.
    """

    def __init__(self, path: str, digest: FileDigest) -> None:
        self._path, self._digests = path, digest.get("pieces", [digest])
        self._left = deque(self._digests)
        self._begin = self._at = 0
        self._start()

    def _start(self) -> None:
        self._add: Callable[[memoryview], None]
        self._checksum: Callable[[], str]
        if self._left and "xxh3_blocks" in self._left[0]:
            blocks = BlockSums()
            self._add, self._checksum = blocks.add, lambda: checksum_of_sums(blocks.finish())
        else:
            state = xxhash.xxh3_128()
            self._add, self._checksum = state.update, state.hexdigest

    def add(self, data: memoryview) -> None:
        """Add the next bytes."""
        while len(data):
            self.finish()
            if not self._left:
                return
            some = data[: self._begin + self._left[0]["bytes"] - self._at]
            self._add(some)
            self._at += len(some)
            data = data[len(some) :]

    def finish(self) -> None:
        """Compare the pieces that end here, also those without bytes."""
        while self._left and self._at == self._begin + self._left[0]["bytes"]:
            where = f", bytes {self._begin:,} to {self._at:,}" if len(self._digests) > 1 else ""
            check_file_digest(self._path + where, self._checksum(), self._left.popleft())
            self._begin = self._at
            self._start()


def has_digest(path: str, digest: FileDigest) -> bool:
    """Whether a file has this size and these checksums. InputError if it cannot be read."""
    sums, size = PieceSums(path, digest), 0
    try:
        for block in _blocks(path):
            sums.add(block)
            size += len(block)
        sums.finish()
    except FormatError:
        return False
    return size == digest["bytes"]


def check_file_digest(path: str, checksum: str, digest: FileDigest) -> None:
    """Raise FormatError if the checksum of a file's bytes is not that of its digest."""
    recorded = checksum_of(digest)
    if checksum != recorded:
        kind = "xxh3_blocks" if "xxh3_blocks" in digest else "xxh3_128"
        raise FormatError(
            f"{path}: {kind} is {checksum}, expected {recorded}, as the manifest says: its bytes "
            "have changed, or the files do not belong together"
        )


def digest_file(path: str | os.PathLike[str]) -> FileDigest:
    """The size and XXH3-128 (32 hexadecimal digits) of a file, read once, in constant memory."""
    state, size = xxhash.xxh3_128(), 0
    for block in _blocks(path):
        state.update(block)
        size += len(block)
    return {"bytes": size, "xxh3_128": state.hexdigest()}


def _blocks(path: str | os.PathLike[str]) -> Iterator[memoryview]:
    """The bytes of a file, in blocks that are valid until the next. InputError if it cannot be
    read.
    """
    buffer = memoryview(bytearray(_READ))
    with cannot_read(path), open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            yield buffer[:count]


class HashingReader:
    """Passes the chunks of a file on, and computes their digest."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self._state = xxhash.xxh3_128()
        self._bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self._state.update(chunk)
            self._bytes += len(chunk)
            yield chunk

    @property
    def digest(self) -> FileDigest:
        """The size and checksum of the chunks so far."""
        return {"bytes": self._bytes, "xxh3_128": self._state.hexdigest()}


def write_digested(
    path: str,
    chunks: Iterable[bytes],
    write: Callable[[str, Iterable[bytes]], object] = replace_file,
) -> FileDigest:
    """Write a file and return its digest, computed from what was written, not by reading it
    back.
    """
    digested = HashingReader(chunks)
    write(path, digested)
    return digested.digest


# What the manifest of a virtual dataset says about each of its datasets.
#
# Manifests and messages call such a dataset a piece; the code calls it a shard, and its entry in
# the manifest a record.

_OPTIONAL = ("fingerprint", "tracks")


@dataclass(frozen=True)
class ShardRecord:
    """A dataset in a virtual one, with its facts when the manifest was written."""

    prefix: str  # relative to the folder of the manifest
    sequences: int
    documents: int  # entries of the document index - 1
    tokens: int
    bin_bytes: int
    idx_bytes: int
    xxh3_128: str  # of the .bin, from the piece's own manifest, or ""
    fingerprint: str = ""  # of its documents; only in views
    tracks: Mapping[str, str] = field(default_factory=dict)  # the checksum of each

    @classmethod
    def of(cls, shard: Shard, manifest: Manifest | None, fingerprint: str = "") -> ShardRecord:
        """The facts of an opened shard, with the checksums in its ``manifest``."""
        return cls(
            prefix=shard.prefix,
            sequences=len(shard),
            documents=shard.index.header.entries - 1,
            tokens=len(shard.tokens),
            bin_bytes=shard.tokens.nbytes,
            idx_bytes=shard.idx_bytes,
            xxh3_128=checksum_of(manifest.bin) if manifest else "",
            fingerprint=fingerprint,
            tracks=manifest.track_sums if manifest else {},
        )

    def __post_init__(self) -> None:
        if not self.prefix or "\0" in self.prefix:
            raise ValueError(f"prefix is {self.prefix!r}, which no file can have")

    def to_json(self) -> dict[str, Any]:
        """The record as a manifest has it."""
        values = asdict(self)
        return {key: value for key, value in values.items() if value or key not in _OPTIONAL}


MANIFEST_VERSION = 2  # from 2 on a .bin may have xxh3_blocks
PIECES_VERSION = 3  # the .bin may have digests of pieces; nothing else is new
VIEW_VERSION = 4  # views: the selection lists documents of the pieces
TRACKS_VERSION = 5  # tracks: a reader that ignored them would train on all tokens
# Options of commands that select or join documents: before manifests had ``pairs``, these could
# separate pairs.
_COULD_TEAR = ("merged", "split", "select", "dedup", "decontaminate")
# Who speaks in conversations; "" is for text of the template outside turns.
ROLES = ("", "system", "developer", "user", "assistant", "tool", "function")


class TrackKind(NamedTuple):
    """A track that a dataset may have: a value for each token. docs/format.md says its meaning."""

    dtype: np.dtype[Any]
    least: float
    most: float  # for labels only if no vocabulary is known
    allowed: str  # these values, in words
    trained: int | None = None  # tokens with less are untrained; None if it does not decide that
    absent: str = ""  # how tokens of datasets without it count; "": no effect


TRACKS = {
    "mask": TrackKind(np.dtype("u1"), 0, 1, "0 or 1", 1, "all of its tokens are trained"),
    "weights": TrackKind(
        *(np.dtype("<f2"), -65504.0, 65504.0, "finite numbers of float16"),
        absent="all of its tokens weigh 1",
    ),
    "labels": TrackKind(
        *(np.dtype("<i4"), -(1 << 31), (1 << 31) - 1, "int32"),
        *(0, "its tokens are their own labels"),
    ),
    "roles": TrackKind(np.dtype("u1"), 0, len(ROLES) - 1, f"0 to {len(ROLES) - 1}"),
}
TRACK_DTYPES = {name: kind.dtype for name, kind in TRACKS.items()}
LOSS_TRACKS = tuple(name for name, kind in TRACKS.items() if kind.absent)
TRAINED_TRACKS = tuple(name for name, kind in TRACKS.items() if kind.trained is not None)

_START = re.compile(rb'\s*\{\s*"tokpack"\s*:')
_HEAD_BYTES = 256
_LINES = 1000  # entries of a long list made into text at once


def manifest_path(prefix: str | os.PathLike[str]) -> str:
    """The path of the manifest of the dataset ``prefix``."""
    return os.fsdecode(prefix) + ".json"


@dataclass(frozen=True)
class _TokenizerFile:
    path: str


@dataclass(frozen=True)
class _TokenizerEntry:
    """The keys in a manifest's ``tokenizer`` whose types are checked, if they exist."""

    name: str | None = None
    kind: str | None = None
    special_ids: Mapping[str, int] | None = None
    files: Sequence[_TokenizerFile] | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Manifest(Counts):
    """What is known about a dataset besides its bytes.

    The counts add up: ``records == documents + empty + rejected``, where ``documents`` are in the
    dataset and ``empty`` ones were left out because they have no tokens. If ``where`` left out
    ``left_out`` records, and ``map`` left out ``mapped_out`` rows and added ``mapped_in``, that sum
    is ``records - left_out - mapped_out + mapped_in``: see ``adds_up``. ``reasons`` counts
    conversations without a document, including bad ones, by a phrase that says why. ``roles`` has
    the ``tokens`` and ``trained`` tokens of each of ROLES; a token belongs to the turn in which it
    begins. With ``pairs``, documents 2i and 2i + 1 are the preferred and the rejected answer of one
    record.
    """

    tokpack_version: str
    created: str  # ISO 8601, with the offset from UTC
    tokenizer: dict[str, Any]  # name, type, sha256, vocab_size, special ids
    options: dict[str, Any]  # resolved, in the form in which users give them
    inputs: Sequence[Any]  # objects: name, size, fingerprint, records, documents, tokens
    records: int  # in all inputs
    documents: int
    sequences: int
    tokens: int
    empty: int
    rejected: int
    text_bytes: int  # UTF-8 text of the documents, as it was read
    dtype: str
    bin: FileDigest
    idx: FileDigest
    tracks: Mapping[str, TrackDigest] = field(default_factory=dict)  # by name: PREFIX.NAME
    trained: int | None = None  # trained tokens, if tracks say which are
    table: FileDigest | None = None  # of PREFIX.docs.parquet
    dropped: FileDigest | None = None  # of PREFIX.dropped.parquet
    pieces: tuple[ShardRecord, ...] | None = None  # of a virtual dataset, or of a view
    selection: FileDigest | None = None  # of PREFIX.selection, of a view
    reasons: Mapping[str, int] = field(default_factory=dict)
    roles: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    pairs: bool = False
    format_version: int = MANIFEST_VERSION

    def __post_init__(self) -> None:
        if self.tracks:
            object.__setattr__(self, "format_version", TRACKS_VERSION)
        may_be_torn = self.selection is not None or any(map(self.options.get, _COULD_TEAR))
        if self.options.get("pairs") and not may_be_torn:
            object.__setattr__(self, "pairs", True)

    @classmethod
    def new(cls, facts: Mapping[str, Any], **more: Any) -> Manifest:
        """The manifest of a dataset that is made now; ``more`` overrides ``facts``."""
        return cls(**{"tokpack_version": __version__, "created": now(), **facts, **more})

    def __repr__(self) -> str:
        return (
            f"<Manifest: {self.documents:,} documents, {self.tokens:,} tokens as {self.dtype}, "
            f"tokenizer {self.tokenizer.get('name')}>"
        )

    _repr_html_ = drawn

    @property
    def bin_files(self) -> int:
        """How many .bin files the dataset has."""
        return max(1, len(self.pieces or ()))

    def token_fact(self, key: str) -> int | None:
        """A number of the tokenizer in the manifest, vocab_size or eod_id, or None."""
        value = self.tokenizer.get(key)
        return value if _is_count(value) and value < 1 << 31 else None

    @property
    def frame(self) -> tuple[list[int], list[int]] | None:
        """The ids before and after every document with tokens, or None if unknown."""
        frame = self.tokenizer.get("frame")
        if isinstance(frame, dict):
            before, after = frame.get("before"), frame.get("after")
            return (before, after) if _are_counts(before) and _are_counts(after) else None
        if not isinstance(appended := self.options.get("append_eod"), bool):
            return None
        eod = self.token_fact("eod_id") if appended else None
        return [], [] if eod is None else [eod]

    @property
    def adds_up(self) -> bool:
        """Whether each record that was read is counted once."""
        return bool(self.records == records_of(vars(self)))

    @property
    def kept_empty(self) -> int:
        """The number of documents without tokens that have an entry in the index."""
        return self.empty if self.options.get("empty") == "document" else 0

    def record(self, prefix: str) -> ShardRecord:
        """The record of this dataset, as ``prefix``, for the manifest of a virtual one."""
        return ShardRecord(
            prefix=prefix,
            sequences=self.sequences,
            documents=self.documents + self.kept_empty,
            tokens=self.tokens,
            bin_bytes=self.bin["bytes"],
            idx_bytes=self.idx["bytes"],
            xxh3_128=checksum_of(self.bin),
            tracks=self.track_sums,
        )

    @property
    def track_dtypes(self) -> dict[str, np.dtype[Any]]:
        """The dtype of each track."""
        return {name: TRACK_DTYPES[name] for name in self.tracks}

    @property
    def track_sums(self) -> dict[str, str]:
        """The checksum of each track."""
        return {name: checksum_of(digest) for name, digest in self.tracks.items()}

    def to_json(self) -> str:
        """The manifest as a JSON object, which begins with its version."""
        return b"".join(self.chunks()).decode()

    def chunks(self) -> Iterator[bytes]:
        """The JSON in pieces, since there may be a million inputs."""
        values = counts_last({one.name: getattr(self, one.name) for one in fields(self)})
        if self.pieces is not None:
            values["pieces"] = [record.to_json() for record in self.pieces]
        for key in (
            "tracks",
            "trained",
            "reasons",
            "roles",
            "table",
            "dropped",
            "pieces",
            "selection",
        ):
            if values[key] in (None, {}):
                del values[key]
        if not self.pairs:
            del values["pairs"]
        values = without_zeros(values)
        versions = {
            "manifest": values.pop("format_version"),
            "version": values.pop("tokpack_version"),
        }
        # A possibly long list is written line by line, which is a hundred times as fast.
        long = {key: values[key] for key in ("inputs", "pieces") if values.get(key)}
        rest = json.dumps({"tokpack": versions, **values, **{key: [] for key in long}}, indent=2)
        for key, entries in long.items():
            before, rest = rest.split(f'\n  "{key}": []', 1)
            yield f'{before}\n  "{key}": ['.encode()
            left, end = iter(entries), ""
            while lines := [_line(entry) for entry in itertools.islice(left, _LINES)]:
                yield (end + "\n" + ",\n".join(lines)).encode()
                end = ","
            rest = f"\n  ]{rest}"
        yield f"{rest}\n".encode()

    @classmethod
    def from_json(cls, text: str | bytes, name: str = "manifest") -> Manifest:
        """Parse a manifest. FormatError, with ``name``, if it is invalid or of a newer version."""
        values = parse_json(text, name)
        versions = values.get("tokpack") if isinstance(values, dict) else None
        if not isinstance(versions, dict):
            raise FormatError(not_a_manifest(name))
        version: Any = versions.get("manifest")
        if not _is_count(version) or version == 0:
            raise FormatError(f"{name}: manifest version is {brief(version)}, expected a number")
        if version > TRACKS_VERSION:
            raise FormatError(
                f"{name}: manifest version is {version}, this tokpack knows {TRACKS_VERSION}: "
                "upgrade tokpack; the dataset itself can be read without its manifest"
            )
        values |= {"format_version": version, "tokpack_version": versions.get("version")}
        tracks = values.get("tracks")
        if isinstance(tracks, dict):  # unknown tracks are ignored
            values["tracks"] = {track: tracks[track] for track in TRACK_DTYPES if track in tracks}
        manifest = decode(cls, values, name)
        decode(_TokenizerEntry, manifest.tokenizer, f"{name}: tokenizer")
        _check_digests(manifest, name)
        if manifest.pieces is not None:
            _check_sums(manifest, name)
        elif manifest.selection is not None:
            raise FormatError(f"{name}: has a selection, but names no pieces to select from")
        return manifest

    @classmethod
    def load(cls, prefix: str | os.PathLike[str]) -> Manifest:
        """Read the manifest of the dataset ``prefix``.

        InputError if there is none, FormatError if it is broken, of a newer version, or another
        kind of file.
        """
        path = manifest_path(prefix)
        text = _read(path)
        if not _START.match(text):
            raise FormatError(not_a_manifest(path))
        return cls.from_json(text, path)

    @classmethod
    def find(cls, prefix: str | os.PathLike[str]) -> Manifest | None:
        """The manifest of the dataset ``prefix``, or None if there is none.

        A file of that name with clearly different JSON does not count. FormatError if the manifest
        is broken or of a newer version, InputError if it cannot be read.
        """
        try:
            return cls.load(prefix)
        except InputError:
            path = manifest_path(prefix)
            if exists(path) if is_url(path) else os.path.lexists(path):
                raise
            return None
        except FormatError:
            begin = _read(manifest_path(prefix)).lstrip()
            if begin.startswith((b"{", b"[")) and b'"tokpack"' not in begin:
                return None
            raise

    def save(self, prefix: str | os.PathLike[str]) -> None:
        """Write the manifest of the dataset ``prefix`` atomically.

        OutputError if the file exists and is not a manifest: it may be the input.
        """
        path = manifest_path(prefix)
        check_outputs([(path, MANIFEST)], (), overwrite=True)
        replace_file(path, self.chunks())


def facts_of_pieces(pieces: Sequence[ShardRecord]) -> dict[str, Any]:
    """The entries for files in the manifest of a virtual dataset: pieces, and their sums."""
    return {
        "bin": FileDigest(bytes=sum(one.bin_bytes for one in pieces), xxh3_128=""),
        "idx": FileDigest(bytes=sum(one.idx_bytes for one in pieces), xxh3_128=""),
        "tracks": tracks_of_pieces(pieces, sum(one.tokens for one in pieces)),
        "pieces": tuple(pieces),
    }


def tracks_of_pieces(pieces: Iterable[ShardRecord], tokens: int) -> dict[str, TrackDigest]:
    """The entries for tracks in the manifest of a dataset made of pieces: those of any piece."""
    names = {name for piece in pieces for name in piece.tracks}
    return {
        name: TrackDigest(bytes=tokens * dtype.itemsize, xxh3_128="", dtype=str(dtype))
        for name, dtype in TRACK_DTYPES.items()
        if name in names
    }


def _line(entry: dict[str, Any]) -> str:
    """An entry of a long list as from ``json.dumps``, in a fifth of the time."""
    text: str = ujson.dumps(entry, escape_forward_slashes=False, separators=(", ", ": "))
    return "    " + text.replace("\x7f", "\\u007f")


def plain_input(name: str, documents: int, tokens: int, size: int) -> dict[str, Any]:
    """The entry of a manifest for an input that is a dataset of ``size`` bytes."""
    return {
        "name": os.path.basename(name),
        "size": size,
        "format": "dataset",
        "records": documents,
        "documents": documents,
        "tokens": tokens,
    }


def plain_facts(name: str, documents: int, tokens: int, size: int) -> dict[str, Any]:
    """The manifest's keys for a dataset without a manifest: only its files are known."""
    return {
        "tokenizer": {},
        "options": {},
        "inputs": [plain_input(name, documents, tokens, size)],
        "records": documents,
        "documents": documents,
        "empty": 0,
        "rejected": 0,
        "text_bytes": 0,
    }


def summed(manifests: Sequence[Manifest]) -> dict[str, Any]:
    """The counts in the manifest of a dataset made of others: sums of theirs.

    ``roles`` are unknown if they are unknown for a dataset with tokens. If some datasets say what
    is trained, all tokens of the others count as trained.
    """
    facts: dict[str, Any] = {
        name: sum(getattr(one, name) for one in manifests) for name in (*READ, *FOUND)
    }
    facts["reasons"] = dict(sum((Counter(one.reasons) for one in manifests), Counter()))
    if all(one.roles for one in manifests if one.tokens):
        roles: dict[str, Counter[str]] = {}
        for manifest in manifests:
            for role, counts in manifest.roles.items():
                roles.setdefault(role, Counter()).update(counts)
        facts["roles"] = {role: dict(counts) for role, counts in roles.items()}
    if any(one.trained is not None for one in manifests):
        trained = (one.tokens if one.trained is None else one.trained for one in manifests)
        facts["trained"] = sum(trained)
    return facts


def check_tokenizers(
    named: Iterable[tuple[str, Mapping[str, Any] | None]], advice: str = "encode one again"
) -> None:
    """Raise UsageError for different tokenizers, given with the names of their datasets."""
    first: tuple[str, Mapping[str, Any]] | None = None
    for name, tokenizer in named:
        if tokenizer and tokenizer.get("sha256"):
            first = first or (name, tokenizer)
            if tokenizer["sha256"] != first[1]["sha256"]:
                raise UsageError(
                    f"{first[0]} was made with the tokenizer {_tokenizer_words(first[1])}, "
                    f"{name} with {_tokenizer_words(tokenizer)}: their ids mean different "
                    f"things; {advice}"
                )


def _tokenizer_words(tokenizer: Mapping[str, Any]) -> str:
    name, eod = tokenizer.get("name", "unknown"), tokenizer.get("eod_id")
    return f"{name} ({tokenizer['sha256'][:12]}, EOD {eod})"


def is_manifest(path: str) -> bool:
    """Whether a file begins like a manifest; False also if it cannot be read."""
    return _START.match(head(path, _HEAD_BYTES)) is not None


MANIFEST = Kind("a manifest", is_manifest, beside=True)


def now() -> str:
    """The current time in the form of manifests: ISO 8601 with the offset from UTC."""
    return (
        datetime.fromtimestamp(machine.clock.wall(), UTC).astimezone().isoformat(timespec="seconds")
    )


def not_a_manifest(path: str) -> str:
    """Why a file with the name of a manifest is not read as one."""
    return f'{path}: not a manifest: expected an object with the key "tokpack"'


def _read(path: str) -> bytes:
    """The content of a file if it begins like a manifest, else its first bytes."""
    with cannot_read(path), open_file(path) as file:
        begin = file.read(_HEAD_BYTES)
        # A different file may be data of any size: read no more of it.
        return begin + file.read(MAX_BYTES) if _START.match(begin) else begin


def _check_digests(manifest: Manifest, name: str) -> None:
    """Raise FormatError for an invalid digest of a file, or a track with another dtype."""
    for key in ("bin", "idx", "table", "dropped", "selection"):
        digest = getattr(manifest, key)
        if digest is not None and not _is_digest(digest):
            raise FormatError(f"{name}: {key} is {brief(digest)}, expected bytes and a checksum")
    for track, digest in manifest.tracks.items():
        if not _is_digest(digest) or digest.get("dtype") != str(TRACK_DTYPES[track]):
            raise FormatError(
                f"{name}: the track {track} is {brief(digest)}, expected bytes, a checksum and the "
                f"dtype {TRACK_DTYPES[track]}"
            )


def _check_sums(manifest: Manifest, name: str) -> None:
    """Compare the counts of a virtual dataset or view with those of its pieces. FormatError."""
    try:
        storage_dtype(manifest.dtype)
    except (TypeError, UsageError):
        raise FormatError(f"{name}: dtype is {manifest.dtype!r}, which no dataset has") from None
    for what in ("sequences", "tokens") if manifest.selection is None else ():
        total = sum(getattr(record, what) for record in manifest.pieces or ())
        if total != getattr(manifest, what):
            raise FormatError(
                f"{name}: {what} are {getattr(manifest, what)}, expected {total}, "
                "the sum of the pieces"
            )


def _is_digest(value: object) -> bool:
    if not isinstance(value, dict) or not _is_count(value.get("bytes")):
        return False
    sums = [value[name] for name in ("xxh3_128", "xxh3_blocks", "pieces") if name in value]
    if len(sums) != 1 or not isinstance(sums[0], list):
        return len(sums) == 1 and isinstance(sums[0], str)
    whole = all(_is_digest(one) and "pieces" not in one for one in sums[0])
    return whole and sum(one["bytes"] for one in sums[0]) == value["bytes"]


def _are_counts(values: object) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(map(_is_count, values))


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# Anybody may have written a manifest, so it may only name files in its own folder, and below places
# that the user trusts. Without this rule, just looking at a manifest could make a command send
# requests to other hosts with the user's credentials.

TRUST = "TOKPACK_TRUST"  # folders and URLs, separated by commas


def piece_path(manifest: str, prefix: str) -> str:
    """The path of the piece that a manifest calls ``prefix``.

    FormatError if it is neither in the folder of the manifest nor below a place in $TOKPACK_TRUST.
    """
    path = joined(os.path.dirname(manifest), prefix)
    if not is_url(path) and ".." in path.split("/"):  # after a link, .. leads elsewhere
        path = os.path.normpath(path)
    if not is_trusted(manifest, path):
        raise FormatError(
            f"{manifest}: its piece {brief(prefix)} is outside the manifest's folder, so it is not "
            f"opened; if you trust its origin, set {trust_setting([path])}"
        )
    return path


def is_trusted(manifest: str, path: str) -> bool:
    """Whether a file named by a manifest may be read."""
    trusted = (os.path.expanduser(text.strip()) for text in os.environ.get(TRUST, "").split(","))
    roots = (os.path.dirname(manifest) or os.curdir, *filter(None, trusted))
    return any(_is_below(path, root) for root in roots)


def trust_setting(paths: Iterable[str]) -> str:
    """The setting of the variable that allows a manifest to name these paths."""
    folders = {os.path.dirname(path if is_url(path) else os.path.abspath(path)) for path in paths}
    outermost = [
        one for one in folders if not any(_is_below(one, other) for other in folders - {one})
    ]
    return f"{TRUST}={shlex.quote(','.join(sorted(outermost)))}"


def _is_below(path: str, root: str) -> bool:
    if is_url(path) != is_url(root):
        return False
    if not is_url(path):
        top = os.path.join(os.path.abspath(root), "")
        return os.path.abspath(path).startswith(top)
    place, top_place = place_of(path), place_of(root)
    folder = f"{top_place.key.rstrip('/')}/" if top_place.key else ""
    inside = place[:2] == top_place[:2] and place.key.startswith(folder)
    return inside and ".." not in place.key.split("/")

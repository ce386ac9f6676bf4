"""The manifest ``PREFIX.json``: what a dataset was made from, and checksums of its files.

Programs read the dataset without it. What reads it ignores keys that it does not know; a change
that would mislead such a reader gets a new version number.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, fields
from typing import Any, TypedDict

import xxhash

from tokpack.errors import FormatError, InputError
from tokpack.files.durable import replace_file
from tokpack.files.outputs import Kind, check_outputs

MANIFEST_VERSION = 1

_START = re.compile(rb'\s*\{\s*"tokpack"\s*:')
_HEAD_BYTES = 256
_READ = 1 << 20


class FileDigest(TypedDict):
    """Size and checksum of one file."""

    bytes: int
    xxh3_128: str


def digest_file(path: str | os.PathLike[str]) -> FileDigest:
    """Size and XXH3-128 (32 hexadecimal digits) of a file, read once, in constant memory."""
    state = xxhash.xxh3_128()
    size = 0
    block = memoryview(bytearray(_READ))
    try:
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(block):
                state.update(block[:count])
                size += count
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    return {"bytes": size, "xxh3_128": state.hexdigest()}


def manifest_path(prefix: str | os.PathLike[str]) -> str:
    """Where the manifest of the dataset ``prefix`` lies."""
    return os.fsdecode(prefix) + ".json"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What is known about a dataset besides its bytes.

    The counts add up: ``records == documents + empty + rejected``, where ``documents`` are those in
    the dataset, ``empty`` those left out because they have no token.
    """

    tokpack_version: str
    created: str  # ISO 8601, with the offset from UTC
    tokenizer: dict[str, Any]  # name, type, sha256, vocab_size, special ids
    options: dict[str, Any]  # resolved, as a user would give them
    inputs: list[dict[str, Any]]  # in order: name, size, fingerprint, records, documents, tokens
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
    trace: FileDigest | None = None  # of PREFIX.trace, where there is one
    format_version: int = MANIFEST_VERSION

    def to_json(self) -> str:
        """The manifest as a JSON object, which begins with its version."""
        values = asdict(self)
        if self.trace is None:
            del values["trace"]
        versions = {
            "manifest": values.pop("format_version"),
            "version": values.pop("tokpack_version"),
        }
        return json.dumps({"tokpack": versions, **values}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, name: str = "manifest") -> Manifest:
        """Parse a manifest; FormatError, with ``name``, where it is none or of a newer version."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:  # malformed, not UTF-8, or too deep
            raise FormatError(f"{name}: not JSON: {error}") from None
        versions = values.get("tokpack") if isinstance(values, dict) else None
        if not isinstance(versions, dict):
            raise FormatError(f'{name}: not a manifest: expected an object with the key "tokpack"')
        version: Any = versions.get("manifest")
        if not _is_count(version) or version == 0:
            raise FormatError(f"{name}: manifest version is {version!r}, expected 1")
        if version > MANIFEST_VERSION:
            raise FormatError(
                f"{name}: manifest version is {version}, this tokpack knows {MANIFEST_VERSION}: "
                "upgrade tokpack; the dataset itself can be read without its manifest"
            )
        values |= {"format_version": version, "tokpack_version": versions.get("version")}
        return cls(**_checked(values, name))

    @classmethod
    def load(cls, prefix: str | os.PathLike[str]) -> Manifest:
        """Read the manifest of the dataset ``prefix``; InputError where there is none."""
        path = manifest_path(prefix)
        try:
            with open(path, "rb") as file:
                if not _START.match(head := file.read(_HEAD_BYTES)):  # perhaps somebody's huge data
                    raise FormatError(
                        f'{path}: not a manifest: expected an object with the key "tokpack"'
                    )
                text = head + file.read()
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
        return cls.from_json(text, path)

    def save(self, prefix: str | os.PathLike[str]) -> None:
        """Write the manifest of the dataset ``prefix`` atomically.

        OutputError where the file exists and is no manifest: it may be the very input.
        """
        path = manifest_path(prefix)
        check_outputs([(path, MANIFEST)], (), overwrite=True)
        replace_file(path, [self.to_json().encode()])


def is_manifest(path: str) -> bool:
    """Whether a file begins like a manifest; False also where there is none that can be read."""
    try:
        with open(path, "rb") as file:
            return _START.match(file.read(_HEAD_BYTES)) is not None
    except OSError:
        return False


MANIFEST = Kind("a manifest", is_manifest, beside=True)


_TYPES: dict[str, type] = {
    **dict.fromkeys(("tokpack_version", "created", "dtype"), str),
    **dict.fromkeys(("tokenizer", "options", "bin", "idx", "trace"), dict),
    "inputs": list,
}


def _checked(values: dict[str, Any], name: str) -> dict[str, Any]:
    """The known keys of a manifest, all there, each of its type."""
    known: dict[str, Any] = {field.name: values.get(field.name) for field in fields(Manifest)}
    if known["trace"] is None:
        del known["trace"]
    for key, value in known.items():
        expected = _TYPES.get(key)
        if not (_is_count(value) if expected is None else isinstance(value, expected)):
            wanted = "a count" if expected is None else f"a value of type {expected.__name__}"
            raise FormatError(f"{name}: {key} is {value!r}, expected {wanted}")
    for key in ("bin", "idx", "trace"):
        if key in known and not _is_digest(known[key]):
            raise FormatError(f"{name}: {key} is {known[key]!r}, expected bytes and xxh3_128")
    return known


def _is_digest(value: dict[str, Any]) -> bool:
    return _is_count(value.get("bytes")) and isinstance(value.get("xxh3_128"), str)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

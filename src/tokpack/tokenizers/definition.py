"""The definition of a BPE in the form that the native core takes."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from functools import cache, cached_property
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tokpack.display import brief
from tokpack.errors import OutputError, TokenizerError
from tokpack.machine import cache_root
from tokpack.storage.disk import open_regular, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt


NormalForm = Literal["", "NFC", "NFD", "NFKC", "NFKD"]
NormalizerStep = tuple[str, str, str]  # a name that the core knows, and two texts in base64

MAX_ID = (1 << 24) - 1  # far above any real vocabulary, and far below what exhausts memory
# The most bytes of a token that is looked for in words: a hostile one would take quadratic time.
LONGEST = 512


class NotNativeError(Exception):
    """The native core cannot handle this tokenizer; the message is the reason, one phrase.
    Internal.
    """


@dataclass(frozen=True)
class AddedToken:
    """A token that is cut out of the text before BPE; ``normalized``: out of the normalized text.

    With ``lstrip`` and ``rstrip`` it takes the white space before and after it along; a
    ``single_word`` has no word character beside it.
    """

    content: str
    id: int
    special: bool
    normalized: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False

    @property
    def looks_around(self) -> bool:
        """Whether the text around it matters."""
        return self.lstrip or self.rstrip or self.single_word


@dataclass(frozen=True, eq=False)
class BpeSpec:
    """The vocabulary, merges and added tokens of a BPE.

    ``vocab`` has the bytes of each id, or None for an id that merging does not use. ``merges`` is
    int32 [m, 3], (left, right, product) in rank order, each (left, right) once.
    """

    vocab: list[bytes | None]
    merges: npt.NDArray[np.int32]
    added: tuple[AddedToken, ...]

    def id_of(self, token: str) -> int | None:
        """The id of a token, first looked for among added ones, or None."""
        if token in self._added_ids:
            return self._added_ids[token]
        try:
            return self.vocab.index(token.encode("utf-8", "surrogatepass"))
        except ValueError:
            return None

    @cached_property
    def _added_ids(self) -> dict[str, int]:
        return {token.content: token.id for token in self.added}

    def settings(self) -> dict[str, Any]:
        """All other settings as JSON, and the added tokens."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        del values["vocab"], values["merges"]
        return {**values, "added": [astuple(token) for token in self.added]}

    @cached_property
    def digest(self) -> str:
        """The sha256 of the definition itself; the formatting of its files does not matter."""
        digest = hashlib.sha256()
        for chunk in self.chunks():
            digest.update(chunk)
        return digest.hexdigest()

    def chunks(self) -> tuple[bytes, bytes, bytes, bytes]:
        """The definition as bytes: settings in JSON, lengths of tokens, their bytes, merges."""
        lengths = [-1 if token is None else len(token) for token in self.vocab]
        return (
            json.dumps(self.settings(), sort_keys=True).encode(),
            np.array(lengths, "<i4").tobytes(),
            b"".join(token for token in self.vocab if token is not None),
            self.merges.astype("<i4").tobytes(),
        )


@dataclass(frozen=True, eq=False)
class ByteLevelSpec(BpeSpec):
    """A byte-level BPE; ``pattern`` is one of ``_core.patterns()``, or steps as JSON.

    ``form`` is the normal form of text, or ``steps`` are what normalizes it. With a ``suffix`` the
    last token of a word is one that ends with it. Where ``changes_text``, tokens in a row are not
    the text, or its normal form. ``definition`` is the sha256 of the tokenizer.json's
    definition if its pattern has no name, its form is not NFC, an added token looks around, or it
    has byte fallback.
    """

    pattern: str
    form: NormalForm = ""
    ignore_merges: bool = False
    steps: tuple[NormalizerStep, ...] = ()
    suffix: bytes = b""
    changes_text: bool = False
    definition: str = ""

    def settings(self) -> dict[str, Any]:
        return {
            **({"definition": self.definition} if self.definition else {}),
            "added": [list(astuple(t) if t.looks_around else astuple(t)[:4]) for t in self.added],
            "ignore_merges": self.ignore_merges,
            "nfc": self.form == "NFC",
            **({"form": self.form} if self.form not in ("", "NFC") else {}),
            "pattern": self.pattern,
            **({"steps": self.steps} if self.steps else {}),
            **({"suffix": self.suffix.hex()} if self.suffix else {}),
            **({"changes_text": True} if self.changes_text else {}),
        }


@dataclass(frozen=True, eq=False)
class JsonSpec(BpeSpec):
    """Any other tokenizer.json, for a class ``encoder`` of ``_core``.

    ``arguments`` are those of the class, in the form of JSON, besides the vocabulary, the merges of
    a BPE, and the added tokens. ``definition`` is the sha256 of the tokenizer.json's definition.
    """

    encoder: str
    arguments: dict[str, Any]
    definition: str


def _byte_of_character() -> npt.NDArray[np.int16]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, U+0100 and up for the other bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    table = np.full(256 + len(rest) + 1, -1, np.int16)
    table[printable] = printable
    table[256 : 256 + len(rest)] = rest
    return table


_BYTE_OF_CHARACTER = _byte_of_character()


def decode_alphabet(tokens: Sequence[str]) -> list[bytes | None]:
    """The bytes of tokens that are written in GPT-2's alphabet; None for any other token."""
    characters = np.frombuffer("".join(tokens).encode("utf-32-le", "surrogatepass"), "<u4")
    values = _BYTE_OF_CHARACTER[np.minimum(characters, len(_BYTE_OF_CHARACTER) - 1)]
    raw = values.astype(np.uint8).tobytes()
    ends = np.cumsum(np.fromiter(map(len, tokens), np.int64, count=len(tokens)))
    foreign = np.searchsorted(ends, np.flatnonzero(values < 0), side="right")
    result: list[bytes | None] = []
    begin = 0
    for end in ends.tolist():
        result.append(raw[begin:end])
        begin = end
    for index in set(foreign.tolist()):
        result[index] = None
    return result


def encode_alphabet(tokens: Sequence[bytes | None]) -> list[str | None]:
    """The bytes of tokens, written in GPT-2's alphabet; None for None."""
    character = np.argsort(_BYTE_OF_CHARACTER, kind="stable")[-256:].astype("<u4")
    text = b"".join(token for token in tokens if token is not None)
    written = character[np.frombuffer(text, np.uint8)].tobytes().decode("utf-32-le")
    result: list[str | None] = []
    begin = 0
    for token in tokens:
        end = begin if token is None else begin + len(token)
        result.append(None if token is None else written[begin:end])
        begin = end
    return result


def check_ids(
    vocab: Mapping[str, int], where: str, wrong: type[Exception] = TokenizerError
) -> None:
    """Raise the error ``wrong`` unless all values are ids, and each is used once."""
    if not isinstance(vocab, dict) or not vocab:
        raise wrong(f"{where}: the vocabulary is empty")
    ids = list(vocab.values())
    if set(map(type, ids)) - {int}:
        token, bad = next((t, i) for t, i in vocab.items() if type(i) is not int)
        raise wrong(f"{where}: the id of '{token}' is {brief(bad)}, not a whole number")
    seen: dict[object, str] = dict(zip(ids, vocab, strict=True))
    if len(seen) < len(vocab):
        first, bad = next((t, i) for t, i in vocab.items() if seen[i] != t)
        raise wrong(f"{where}: '{first}' and '{seen[bad]}' have the same id {bad}")
    if min(ids) < 0 or max(ids) > MAX_ID:
        token, bad = next((t, i) for t, i in vocab.items() if not 0 <= i <= MAX_ID)
        raise wrong(f"{where}: the id of '{token}' is {brief(bad)}, outside 0 to {MAX_ID}")


def vocab_by_id(vocab: Mapping[str, int], size: int) -> list[bytes | None]:
    """The bytes of each id; None for unused ids, and for tokens outside of GPT-2's alphabet.

    ``vocab`` must have passed ``check_ids``.
    """
    table: list[bytes | None] = [None] * size
    for token_id, token in zip(vocab.values(), decode_alphabet(list(vocab)), strict=True):
        table[token_id] = token
    return table


def missing_bytes(vocab: Sequence[bytes | None]) -> list[int]:
    """The byte values that occur in UTF-8 and have no token."""
    single = {token[0] for token in vocab if token is not None and len(token) == 1}
    possible = [*range(0xC0), *range(0xC2, 0xF5)]
    return [byte for byte in possible if byte not in single]


def byte_level_spec(
    vocab: Mapping[str, int],
    pairs: tuple[Sequence[str], Sequence[str]],
    added: tuple[AddedToken, ...],
    *,
    pattern: str,
    form: NormalForm = "",
    ignore_merges: bool = False,
) -> ByteLevelSpec:
    """The definition of a BPE whose tokens are written in GPT-2's alphabet. NotNativeError.

    ``vocab`` must use each id once; ``pairs`` are the left and right tokens of the merges.
    """
    merges = merges_to_ids(*pairs, vocab)
    table = vocab_by_id(vocab, max([*vocab.values(), *(token.id for token in added)]) + 1)
    if missing := missing_bytes(table):
        raise NotNativeError(f"its vocabulary has no token for the byte 0x{missing[0]:02X}")
    foreign = [token_id for token_id, token in enumerate(table) if token is None]
    if foreign and np.isin(merges, foreign).any():
        raise NotNativeError("a merge has a character outside the byte-level alphabet")
    return ByteLevelSpec(table, merges, added, pattern, form=form, ignore_merges=ignore_merges)


def split_pairs(merges: str) -> tuple[list[str], list[str]] | None:
    """The left and right tokens of lines "left right", or None if a line has another form."""
    raw = np.frombuffer(merges.encode("utf-8", "surrogatepass"), np.uint8)
    at = np.flatnonzero((raw == 0x20) | (raw == 0x0A))
    separators = raw[at]
    good = (
        len(at) % 2 == 1
        and bool((separators[::2] == 0x20).all())
        and bool((separators[1::2] == 0x0A).all())
        and bool((np.diff(at, prepend=-1, append=len(raw)) > 1).all())
    )
    if not good:
        return ([], []) if not len(raw) else None
    flat = merges.replace("\n", " ").split(" ")
    return flat[::2], flat[1::2]


def merges_to_ids(
    left: Sequence[str], right: Sequence[str], vocab: Mapping[str, int], *, prefix: str = ""
) -> npt.NDArray[np.int32]:
    """The merges as ids, int32 [m, 3]: left, right and product. A repeated pair has its last rank.

    As in the library, a product is without as many bytes of its right part as ``prefix`` has.
    NotNativeError names the first pair that does not fit the vocabulary.
    """
    behind = right
    if prefix:
        size = len(prefix.encode())
        behind = [token.encode()[size:].decode("utf-8", "replace") for token in right]
    try:
        columns = (
            [vocab[token] for token in left],
            [vocab[token] for token in right],
            [vocab[a + b] for a, b in zip(left, behind, strict=True)],
        )
    except KeyError:
        for rank, (a, b, c) in enumerate(zip(left, right, behind, strict=True)):
            for token in (a, b, a + c):
                if token not in vocab:
                    raise NotNativeError(
                        f"its vocabulary does not fit its merges: merge {rank + 1} "
                        f"('{a}' + '{b}') needs the token '{token}'"
                    ) from None
        raise
    merges = np.array(columns, np.int32).T.reshape(-1, 3)
    keys = merges[:, 0].astype(np.int64) << 32 | merges[:, 1]
    _, last = np.unique(keys[::-1], return_index=True)
    if len(last) < len(keys):
        merges = merges[np.sort(len(keys) - 1 - last)]
    return np.ascontiguousarray(merges)


def to_json(spec: ByteLevelSpec, pre_tokenizer: dict[str, Any]) -> bytes:
    """The tokenizer.json with which the Hugging Face library does the same; it cuts by
    ``pre_tokenizer``.

    If added tokens are to be text, they must not be in ``spec``. TokenizerError for one that the
    library would confuse with another token.
    """
    written = encode_alphabet(spec.vocab)
    vocab = {token: i for i, token in enumerate(written) if token is not None}
    for token in spec.added:
        if token.content in vocab and not token.content.isascii():
            raise TokenizerError(
                f"the special token {token.content!r} is also what the Hugging Face library writes "
                "for the bytes of another token, and the ids of one of them would be wrong: name "
                "the special token in another way"
            )
    # The library gives its own ids to tokens outside of the vocabulary, so special tokens are put
    # into it, too. As an entry of the vocabulary such a token never matches: texts are cut at added
    # tokens before.
    vocab.update({token.content: token.id for token in spec.added})
    halves = spec.merges[:, 0].tolist(), spec.merges[:, 1].tolist()
    definition = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token.id,
                "content": token.content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": token.normalized,
                "special": token.special,
            }
            for token in sorted(spec.added, key=lambda token: token.id)
        ],
        "normalizer": {"type": spec.form} if spec.form else None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": spec.ignore_merges,
            "vocab": vocab,
            "merges": [f"{written[a]} {written[b]}" for a, b in zip(*halves, strict=True)],
        },
    }
    return json.dumps(definition, ensure_ascii=False, separators=(",", ":")).encode()


# Definitions that were read from large files are kept in the user's cache folder.
#
# The name of an entry is a sha256 of the tokenizer's file and of the code that reads it, including
# the library that is asked how it changes characters (``tokenizer_json``). Its folder may be
# written only by its owner, and it has its own checksum. An entry that cannot be trusted is
# ignored, and one that cannot be written is left out.

OFF = "TOKPACK_TOKENIZER_CACHE"  # 0 switches the cache off
LEAST_BYTES = 1 << 20  # of a file; a smaller one is read as fast
_MOST_ENTRIES = 16  # only the newest stay
_MOST_HEAD = 1 << 26
_MOST_BYTES = 1 << 30  # of an entry


def kept(raw: bytes, build: Callable[[], BpeSpec]) -> BpeSpec:
    """The definition that ``build`` makes from a tokenizer's file, or the one in the cache."""
    path = _entry(raw)
    if path is None:
        return build()
    spec = _read(path)
    if spec is None:
        spec = build()
        _write(path, spec)
    return spec


def _entry(raw: bytes) -> Path | None:
    """The path in the cache for the definition of a file, or None if it should not be kept."""
    if len(raw) < LEAST_BYTES or os.environ.get(OFF) == "0" or not hasattr(os, "geteuid"):
        return None
    try:
        digest = hashlib.sha256(raw)
        digest.update(_code())
        return cache_root() / "definitions" / digest.hexdigest()
    except (OSError, RuntimeError):  # there are no source files, or the user has no home
        return None


@cache
def _code() -> bytes:
    """The sha256 of the code that reads a file: Python's version, the library, and this room."""
    digest = hashlib.sha256(sys.version.encode())
    library = find_spec("tokenizers")  # does not load it; to ask its version would take longer
    if library and library.origin:
        status = os.stat(library.origin)
        digest.update(f"{library.origin} {status.st_size} {status.st_mtime_ns}".encode())
    digest.update(Path(__file__).read_bytes())  # OSError if there are no source files
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()


def _read(path: Path) -> BpeSpec | None:
    try:
        if not _is_safe(os.lstat(path.parent)):
            return None
        with open_regular(str(path)) as file:
            status = os.fstat(file.fileno())
            if not _is_safe(status):
                return None
            head = json.loads(file.readline(_MOST_HEAD))
            sizes = (head["head"], 4 * head["ids"], head["bytes"], 12 * head["merges"])
            if head["entry"] != path.name or file.tell() + sum(sizes) != status.st_size:
                return None
            if min(sizes) < 0 or sum(sizes) > _MOST_BYTES:
                return None
            chunks = [file.read(size) for size in sizes]
            expected = head["sha256"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return _spec(expected, *chunks) if digest.hexdigest() == expected else None


def _is_safe(status: os.stat_result) -> bool:
    """Whether only this user may write to a folder."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _spec(digest: str, head: bytes, lengths: bytes, text: bytes, merges: bytes) -> BpeSpec:
    settings: dict[str, Any] = json.loads(head)
    added = tuple(AddedToken(*token) for token in settings.pop("added"))
    sizes = np.frombuffer(lengths, "<i4")
    ends = np.cumsum(np.maximum(sizes, 0), dtype=np.int64).tolist()
    vocab: list[bytes | None] = [text[begin:end] for begin, end in pairwise([0, *ends])]
    for id_ in np.flatnonzero(sizes < 0).tolist():
        vocab[id_] = None
    pairs = np.frombuffer(merges, "<i4").astype(np.int32, copy=False).reshape(-1, 3)
    kind: type[BpeSpec] = JsonSpec
    if "pattern" in settings:
        kind = ByteLevelSpec
        nfc = settings.pop("nfc")
        settings.setdefault("form", "NFC" if nfc else "")
        settings["suffix"] = bytes.fromhex(settings.get("suffix", ""))
    spec = kind(vocab=vocab, merges=pairs, added=added, **settings)
    spec.__dict__["digest"] = digest  # else it would be computed from the same bytes again
    return spec


def _write(path: Path, spec: BpeSpec) -> None:
    chunks = spec.chunks()
    head = {
        "entry": path.name,
        "sha256": spec.digest,
        "head": len(chunks[0]),
        "ids": len(spec.vocab),
        "bytes": len(chunks[2]),
        "merges": len(spec.merges),
    }
    with suppress(OSError, OutputError):
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if _is_safe(os.lstat(path.parent)):
            # Not synced: what a power loss leaves would have another checksum.
            replace_file(path, [json.dumps(head).encode() + b"\n", *chunks], fsync=False)
            path.chmod(0o600)
            keep_newest(path.parent, _MOST_ENTRIES)


def keep_newest(folder: str | os.PathLike[str], count: int) -> None:
    """Remove all files of a folder but the newest ones. Raises OSError."""
    entries = [entry for entry in os.scandir(folder) if entry.is_file()]
    entries.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
    for entry in entries[count:]:
        os.unlink(entry)

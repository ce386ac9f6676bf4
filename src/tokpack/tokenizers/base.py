"""The interface of every tokenizer: documents in, packed ids out."""

from __future__ import annotations

import hashlib
import operator
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np

from tokpack.display import brief
from tokpack.errors import InputError, OutputError, TokenizerError, UsageError
from tokpack.machine import cache_root
from tokpack.storage import is_url, joined, located, near
from tokpack.storage.disk import MAX_BYTES, open_regular, replace_file
from tokpack.tokenizers.definition import OFF, keep_newest
from tokpack.tokenizers.frame import Frame, frame_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import numpy.typing as npt
    import transformers

    from tokpack.tokenizers.native import TokenBytes


# A manifest names the files of its tokenizer, and anybody may have written it. So a file that it
# names is used only if its content has the recorded checksum. It is looked for in tokpack's cache,
# in folders that the caller knows, and last at the recorded absolute path, which is opened only if
# a regular file of the recorded size is there.

_SHA256 = re.compile("[0-9a-f]{64}")
_MOST_COPIES = 256


@dataclass(frozen=True)
class FileRecord:
    """A file of a tokenizer: its absolute path, or the name of a file on a store; and its
    checksum.
    """

    path: str
    bytes: int
    sha256: str

    @property
    def copy(self) -> str | None:
        """The path of its copy in the cache. It keeps the suffix, which shows the kind of a file of
        ranks.
        """
        if os.environ.get(OFF) == "0":
            return None
        name = self.sha256 + os.path.splitext(self.path)[1]
        try:
            return str(cache_root() / "tokenizers" / "copies" / name)
        except RuntimeError:  # the user has no home
            return None

    def matches_file(self, path: str) -> bool:
        """Whether a regular file has this content. OSError."""
        if os.stat(path).st_size != self.bytes:
            return False
        with open_regular(path) as file:
            return hashlib.sha256(file.read(self.bytes)).hexdigest() == self.sha256


def records_of(files: Mapping[str, Path], *, on_store: bool) -> list[FileRecord]:
    """The records for a manifest of files by their names, without those that no longer exist."""
    records = []
    for name, file in files.items():
        try:
            raw = file.read_bytes()
        except OSError:
            return []
        # A file from the cache or a store is recorded by its name only: the path means nothing.
        path = name if on_store or file.name != name else os.path.abspath(file)
        records.append(FileRecord(path, len(raw), hashlib.sha256(raw).hexdigest()))
    return records


def keep_copies(files: Mapping[str, Path], records: Iterable[FileRecord]) -> None:
    """Copy files into the cache, if that can be written; only the newest stay there."""
    for file, record in zip(files.values(), records, strict=False):
        path = record.copy
        if path is None:
            return
        with suppress(OSError):
            if record.matches_file(path):
                os.utime(path)  # so that it counts as new
                continue
        with suppress(OSError, OutputError):
            raw = file.read_bytes()
            if hashlib.sha256(raw).hexdigest() != record.sha256:
                return  # the file was replaced meanwhile
            os.makedirs(os.path.dirname(path), exist_ok=True)
            replace_file(path, [raw], fsync=False)  # after a power loss the checksum would differ
            keep_newest(os.path.dirname(path), _MOST_COPIES)


def find_copies(entries: object, folders: Sequence[str]) -> dict[str, str]:
    """The local paths of files with the recorded content, by their recorded names.

    ``folders`` may be on a store, and may have files with the recorded names. TokenizerError if one
    is not found.
    """
    records = [*map(_record, entries)] if isinstance(entries, list) else []
    if not records:
        raise TokenizerError("its files are not recorded")
    return {os.path.basename(record.path): _find(record, folders) for record in records}


def _find(record: FileRecord, folders: Sequence[str]) -> str:
    others = False
    for place in _places(record, folders):
        # A dataset can be used without its tokenizer, so a store that fails is no error here.
        with suppress(OSError, InputError, ValueError):
            if is_url(place) and located(place).size != record.bytes:
                others = True
                continue
            path = near(place)
            if record.matches_file(path):
                return path
            others = True
    if others:
        raise TokenizerError("what is there now is another one (its sha256 differs)")
    raise TokenizerError(f"{record.path} is not there, and no copy of it is on this machine")


def _places(record: FileRecord, folders: Sequence[str]) -> Iterator[str]:
    if record.copy:
        yield record.copy
    yield from (joined(folder, os.path.basename(record.path)) for folder in folders)
    if os.path.isabs(record.path):
        yield record.path


def _record(entry: Any) -> FileRecord:
    """An entry of a manifest. TokenizerError if it is invalid."""
    values = entry if isinstance(entry, dict) else {}
    path, size, digest = (values.get(key) for key in ("path", "bytes", "sha256"))
    if (
        isinstance(path, str)
        and os.path.basename(path) not in ("", ".", "..")
        and type(size) is int
        and 0 < size <= MAX_BYTES
        and isinstance(digest, str)
        and _SHA256.fullmatch(digest)
    ):
        return FileRecord(path, size, digest)
    raise TokenizerError("its files are not recorded as files")


SpecialMode = Literal["text", "encode"]
IdType = Literal["uint16", "int32"]


class TokenizerOptions(NamedTuple):
    """The options of a request for a tokenizer; None: as its own files say."""

    special: SpecialMode | None = None
    eod_token: str | int | None = None
    pattern: str | None = None
    with_folder: bool = False  # a file stands for its folder, and the EOD is its eos_token


class Encoded(Protocol):
    """Token ids of some documents."""

    @property
    def ids(self) -> npt.NDArray[Any]:
        """The tokens of all documents, one after the other, uint16 or int32."""

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """[n] tokens of document i, EOD included; 0 for a document without tokens."""

    @property
    def special(self) -> npt.NDArray[np.int64]:
        """The document of every special token found in the text, whether it was encoded as one or
        not.
        """


@dataclass(frozen=True, eq=False)
class PackedIds:
    """The :class:`Encoded` of tokenizers that are not native."""

    ids: npt.NDArray[Any]
    lengths: npt.NDArray[np.int32]
    special: npt.NDArray[np.int64]


class Encoder(Protocol):
    """Encodes blocks of documents. It belongs to one process, and to one thread at a time."""

    def encode(self, data: npt.NDArray[np.uint8], spans: npt.NDArray[np.int64]) -> Encoded:
        """Encode the documents data[spans[i, 0]:spans[i, 1]], which are valid UTF-8."""


class DocumentsError(TokenizerError):
    """Documents that a tokenizer's library cannot encode.

    ``reasons`` has the reason for each of them, by its index in the block.
    """

    def __init__(self, reasons: dict[int, str]) -> None:
        super().__init__(next(iter(reasons.values())))
        self.reasons = reasons

    def __reduce__(self) -> tuple[type[DocumentsError], tuple[dict[int, str]]]:
        return type(self), (self.reasons,)


class UnencodableError(TokenizerError):
    """A document that shows that the tokenizer is the wrong one, and not that the record is bad.

    ``document`` is its index in the block, so that a caller can name the line.
    """

    def __init__(self, message: str, document: int) -> None:
        super().__init__(message)
        self.document = document

    def __reduce__(self) -> tuple[type[UnencodableError], tuple[str, int]]:
        return type(self), (str(self), self.document)


class Tokenizer(ABC):
    """Text to ids and back.

    ``vocab_size`` counts added tokens and unused ids, and no padding: every id is less. ``eod_id``
    is the end-of-document token, None if the tokenizer has none. ``special_ids`` are the ids of
    special tokens by their text. ``special_tokens_default`` is the meaning of the mode ``auto`` for
    this tokenizer. ``why_not_native`` is the reason, in one phrase, why a slower library encodes;
    "" if the core does. ``notes`` are what a user should know about how its folder was read.
    ``arguments`` are those that ``load_tokenizer`` needs besides ``name`` to load the same
    tokenizer again, from the ``files`` that it was read from, by their names.
    """

    name: str
    kind: str
    vocab_size: int
    eod_id: int | None
    special_ids: dict[str, int]
    special_tokens_default: SpecialMode = "encode"
    native: bool = False
    why_not_native: str = ""
    notes: tuple[str, ...] = ()
    arguments: Mapping[str, str | int] = MappingProxyType({})
    files: Mapping[str, Path] = MappingProxyType({})
    # The function of as_hf. ``accelerated`` sets it, because it imports all kinds of tokenizers.
    accelerate: ClassVar[Callable[[Tokenizer], Any]]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.kind}, {self.vocab_size} ids)"

    def encoder(
        self,
        *,
        dtype: str,
        append_eod: bool = False,
        special_tokens: str = "auto",
        frame: Frame | None = None,
    ) -> Encoder:
        """Build an encoder, in the process that will use it.

        ``dtype`` of the ids is ``uint16`` or ``int32``. ``frame`` is put around each document that
        has a token; by default it is the EOD, or nothing. ``special_tokens`` is how a special token
        inside a document is treated: ``text``, ``encode`` (as its id), or ``auto``, which is what
        this tokenizer's own tools do. ``error`` encodes: the caller must stop if
        ``Encoded.special`` is not empty. Raises TokenizerError if the dtype is too small, or if
        there is no EOD to append.
        """
        mode, width = self.special_mode(special_tokens), self.check_dtype(dtype)
        return self._encoder(width, mode, frame or frame_of(self, append_eod=append_eod))

    @abstractmethod
    def _encoder(self, dtype: IdType, mode: SpecialMode, frame: Frame) -> Encoder:
        """Build the encoder; the settings have been checked."""

    def encode(self, text: str, *, special_tokens: str = "auto") -> list[int]:
        """The ids of one text, without an EOD; for many use ``encoder``. TokenizerError.

        UsageError for anything but a text, and for a lone surrogate, which UTF-8 cannot have.
        """
        if not isinstance(text, str):
            raise UsageError(
                f"encode takes one text, a str, not {type(text).__name__}: decode bytes first, and "
                "give several texts to encode_batch"
            )

        settings = "int32", False, special_tokens
        ids: list[int] = encode_texts(self, [as_utf8(text, "the text")], settings).ids.tolist()
        return ids

    def encode_batch(
        self,
        texts: Sequence[str],
        *,
        dtype: str = "int32",
        append_eod: bool = False,
        special_tokens: str = "auto",
        threads: int = 1,
    ) -> EncodedBatch:
        """The ids of many texts in one array, and where each begins; options as for ``encoder``.

        ``threads`` of this process share the work, each with its own cache of words. Raises as
        ``encode`` does.
        """

        return encode_batch(
            self,
            texts,
            dtype=dtype,
            append_eod=append_eod,
            special_tokens=special_tokens,
            threads=threads,
        )

    def as_hf(self) -> transformers.PreTrainedTokenizerFast:
        """The same tokenizer as one of transformers, whose texts the core encodes.

        It has the chat template and the special tokens of a tokenizer_config.json beside its files.
        UsageError without transformers, TokenizerError for a tokenizer without a tokenizer.json.
        """
        wrapped: transformers.PreTrainedTokenizerFast = Tokenizer.accelerate(self)
        return wrapped

    @abstractmethod
    def token_to_id(self, token: str) -> int | None:
        """The id of a token by its text, or None if there is no such token."""

    def special_frame(self) -> Frame:
        """The tokens that the tokenizer's own post-processor adds around a text. TokenizerError."""
        return Frame()

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The text of ids as UTF-8, which may begin or end inside of a character.

        TokenizerError for an id that no token has, UsageError for anything but a row of ids.
        """
        try:
            numbers = list(map(operator.index, ids))
        except TypeError:
            raise UsageError(
                f"decode takes whole numbers in a row, as [464, 3797], not {brief(ids)}"
            ) from None
        for token_id in numbers:
            if not 0 <= token_id < self.vocab_size:
                raise self.no_such_id(token_id)
        return self._decode_bytes(numbers)

    @abstractmethod
    def _decode_bytes(self, ids: list[int]) -> bytes:
        """The text of ids below ``vocab_size``. TokenizerError for an unused one."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; bytes that are no character become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def token_bytes(self) -> TokenBytes | None:
        """The bytes of each token, if the text of ids is simply these in a row; else None."""
        return None

    def pieces(self) -> list[bytes]:
        """The text of each id after other text; b"" for special tokens and unused ids.

        It may begin or end inside of a character.
        """
        known = {*self.special_ids.values(), self.eod_id}
        return [b"" if i in known else text for i, text in enumerate(self._pieces_behind())]

    def _pieces_behind(self) -> Iterable[bytes]:
        """The text of each id below ``vocab_size`` after a word."""
        word = next((i for i in range(self.vocab_size) if self._alone([i]).isalpha()), None)
        first = [] if word is None else [word]
        before = self._alone(first)
        for i in range(self.vocab_size):
            text = self._alone([*first, i])
            yield text[len(before) :] if text.startswith(before) else self._alone([i])

    def _alone(self, ids: list[int]) -> bytes:
        try:
            return self._decode_bytes(ids)
        except TokenizerError:
            return b""

    @cached_property
    def fingerprint(self) -> str:
        """The sha256, in hex, of all that decides ids, and of nothing else."""
        parts = (self.kind, self.definition_digest(), self.special_tokens_default, self.eod_id)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    @abstractmethod
    def definition_digest(self) -> str:
        """The sha256, in hex, of vocabulary and rules; the form of the files does not matter."""

    def describe(self) -> dict[str, Any]:
        """The entry for the tokenizer in a manifest."""
        files = [asdict(record) for record in self._file_records]
        return {
            "name": self.name,
            "kind": self.kind,
            "sha256": self.fingerprint,
            "vocab_size": self.vocab_size,
            "eod_id": self.eod_id,
            "special_ids": self.special_ids,
            **({"arguments": dict(self.arguments)} if self.arguments else {}),
            **({"files": files} if files else {}),
        }

    def keep_copies(self) -> None:
        """Keep copies of the files in the cache, where readers of a manifest will find them."""
        keep_copies(self.files, self._file_records)

    @cached_property
    def _file_records(self) -> list[FileRecord]:
        return records_of(self.files, on_store=is_url(self.name))

    def special_mode(self, special_tokens: str) -> SpecialMode:
        """How ``encoder`` treats special tokens in a mode. UsageError for an unknown mode."""
        modes: dict[str, SpecialMode] = {
            "auto": self.special_tokens_default,
            "text": "text",
            "encode": "encode",
            "error": "encode",
        }
        if special_tokens not in modes:
            raise UsageError(
                f"special tokens mode '{special_tokens}' is unknown: "
                "use auto, text, encode or error"
            )
        return modes[special_tokens]

    def check_dtype(self, dtype: str) -> IdType:
        """The dtype, if it can hold all ids. UsageError, TokenizerError."""
        if dtype not in ("uint16", "int32"):
            raise UsageError(f"token ids cannot be stored as '{dtype}': use uint16 or int32")
        if dtype == "uint16" and self.vocab_size > 1 << 16:
            raise TokenizerError(
                f"tokenizer {self.name} has {self.vocab_size} ids, and uint16 holds 65536: "
                "use int32"
            )
        return cast("IdType", dtype)

    def no_such_id(self, token_id: int) -> TokenizerError:
        """The error for an id that no token has."""
        unused = 0 <= token_id < self.vocab_size
        why = "the id is unused" if unused else f"ids are below {self.vocab_size}"
        return TokenizerError(f"tokenizer {self.name} has no token {token_id}: {why}")


def as_utf8(text: str, name: str) -> bytes:
    """A text as UTF-8. UsageError, with ``name``, for a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        at = error.start
        raise UsageError(
            f"{name} has a lone surrogate, {text[at]!r}, at character {at}, which is none of UTF-8"
        ) from None


def texts_of(data: npt.NDArray[np.uint8], spans: npt.NDArray[np.int64]) -> list[str]:
    """The documents as Python strings."""
    view = np.ascontiguousarray(data).data
    return [str(view[begin:end], "utf-8") for begin, end in spans.tolist()]


def pack(
    rows: Sequence[list[int]], *, dtype: str, frame: Frame, special: npt.NDArray[np.int64]
) -> PackedIds:
    """Join the ids of documents, with ``frame`` around each that has any."""
    if frame != Frame():
        rows = [[*frame.before, *row, *frame.after] if row else row for row in rows]
    lengths = np.fromiter(map(len, rows), np.int32, count=len(rows))
    flat = chain.from_iterable(rows)
    ids = np.fromiter(flat, np.dtype(dtype), count=int(lengths.sum(dtype=np.int64)))
    return PackedIds(ids, lengths, special)


class SpecialFinder:
    """Finds special tokens in documents: if several begin at one place, the longest."""

    def __init__(self, contents: Iterable[str]) -> None:
        longest_first = sorted((c.encode() for c in contents if c), key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first)))
        self._empty = not longest_first

    def find(
        self, data: npt.NDArray[np.uint8], spans: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """The document of every occurrence, ascending."""
        view = np.ascontiguousarray(data).data
        # The whole block is searched first: hardly any block has a special token.
        if self._empty or self._pattern.search(view) is None:
            return np.empty(0, np.int64)
        documents = [
            index
            for index, (begin, end) in enumerate(spans.tolist())
            for _ in self._pattern.finditer(view[begin:end])
        ]
        return np.array(documents, np.int64)


@dataclass(frozen=True, eq=False)
class TextEncoder:
    """An encoder that passes the texts of a block to a library.

    ``rows_of`` returns the ids of each text; ``special`` finds the special tokens that count.
    """

    rows_of: Callable[[list[str]], Sequence[list[int]]]
    dtype: IdType
    frame: Frame
    special: SpecialFinder

    def encode(self, data: npt.NDArray[np.uint8], spans: npt.NDArray[np.int64]) -> PackedIds:
        rows = self.rows_of(texts_of(data, spans))
        return pack(
            rows, dtype=self.dtype, frame=self.frame, special=self.special.find(data, spans)
        )


# Many texts are encoded at once into numpy arrays, without lists, by threads that share no lock.

T = TypeVar("T")

_RUN_BYTES = 1 << 18  # of texts in one call, so that text and ids stay in the cache


class EncodedBatch(NamedTuple):
    """Ids of n texts: those of text i are ``ids[offsets[i]:offsets[i + 1]]``."""

    ids: npt.NDArray[Any]  # uint16 or int32
    offsets: npt.NDArray[np.int64]  # [n + 1]


Settings = tuple[str, bool, str]  # dtype, append_eod, special_tokens of an encoder

# Idle encoders by tokenizer and purpose; as many as threads have used at once. They are not
# attributes of tokenizers, because they cannot be pickled.
_idle: WeakKeyDictionary[Tokenizer, dict[Any, list[Any]]] = WeakKeyDictionary()


@contextmanager
def borrowed(tokenizer: Tokenizer, purpose: Any, build: Callable[[], T]) -> Iterator[T]:
    """An encoder for this thread alone: an idle one, or a new one.

    What ``build`` makes takes milliseconds and megabytes, so it is kept as long as the tokenizer.
    """
    idle = _idle.setdefault(tokenizer, {}).setdefault(purpose, [])
    try:
        encoder = idle.pop()
    except IndexError:
        encoder = build()
    yield encoder
    idle.append(encoder)  # not after an error


def encode_batch(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    dtype: str,
    append_eod: bool,
    special_tokens: str,
    threads: int,
) -> EncodedBatch:
    """The ids of many texts, as ``Tokenizer.encode_batch`` returns them."""
    if threads < 1:
        raise UsageError(f"threads is {threads}, expected 1 or more")
    if isinstance(texts, str):
        raise UsageError("encode_batch takes several texts, not one str: use encode, or a list")
    if not isinstance(texts, Sequence):
        raise UsageError(f"encode_batch takes texts in a list, not {_kind(texts)}: give list(...)")
    settings = dtype, append_eod, special_tokens

    def encode(run: list[bytes]) -> Encoded:
        return encode_texts(tokenizer, run, settings)

    if threads == 1:
        results = [encode(run) for run in _runs(texts)]
    else:
        with ThreadPoolExecutor(threads) as pool:
            results = list(pool.map(encode, _runs(texts)))
    if not results:
        return EncodedBatch(np.empty(0, tokenizer.check_dtype(dtype)), np.zeros(1, np.int64))
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.concatenate([one.lengths for one in results]), out=offsets[1:])
    return EncodedBatch(np.concatenate([one.ids for one in results]), offsets)


def encode_texts(tokenizer: Tokenizer, texts: list[bytes], settings: Settings) -> Encoded:
    """Encode texts, UTF-8."""
    dtype, append_eod, mode = settings

    def build() -> Encoder:
        return tokenizer.encoder(dtype=dtype, append_eod=append_eod, special_tokens=mode)

    with borrowed(tokenizer, settings, build) as encoder:
        return encoder.encode(*_joined(texts))


def _runs(texts: Sequence[str]) -> Iterator[list[bytes]]:
    """The texts as UTF-8, some at a time."""
    run: list[bytes] = []
    size = 0
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UsageError(f"text {number} is {brief(text)}, no str: decode bytes first")
        run.append(as_utf8(text, f"text {number}"))
        size += len(run[-1])
        if size >= _RUN_BYTES:
            yield run
            run, size = [], 0
    if run:
        yield run


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _joined(texts: list[bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    return np.frombuffer(b"".join(texts), np.uint8), np.stack([begins, ends], axis=1)

"""What every tokenizer is to the rest of tokpack: documents in, packed ids out."""

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
from tokpack.storage import joined, located, near
from tokpack.storage.disk import MAX_BYTES, open_regular, replace_file
from tokpack.storage.disk.cache_root import cache_root
from tokpack.storage.objects.urls import is_url
from tokpack.tokenizers.definition import OFF, keep_newest
from tokpack.tokenizers.frame import Frame, frame_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import numpy.typing as npt
    import transformers

    from tokpack.tokenizers.native import TokenBytes


# Copies of the files of tokenizers, by their checksums, and what a manifest says of such files.
#
# A manifest may be anybody's. So a file that it names is used only where its content is the
# recorded one, and is looked for in tokpack's cache, in folders that the caller knows, and last at
# the absolute path that is recorded, which is opened only where a regular file of the recorded size
# is.

_SHA256 = re.compile("[0-9a-f]{64}")
_MOST_COPIES = 256


@dataclass(frozen=True)
class FileRecord:
    """A file of a tokenizer: its absolute path, or of a file on a store its name; its content."""

    path: str
    bytes: int
    sha256: str

    @property
    def copy(self) -> str | None:
        """Where its copy lies; the suffix, which says what a file of ranks is, stays."""
        if os.environ.get(OFF) == "0":
            return None
        name = self.sha256 + os.path.splitext(self.path)[1]
        try:
            return str(cache_root() / "tokenizers" / "copies" / name)
        except RuntimeError:  # a user without a home
            return None

    def matches_file(self, path: str) -> bool:
        """Whether a regular file has this content. OSError."""
        if os.stat(path).st_size != self.bytes:
            return False
        with open_regular(path) as file:
            return hashlib.sha256(file.read(self.bytes)).hexdigest() == self.sha256


def records_of(files: Mapping[str, Path], *, on_store: bool) -> list[FileRecord]:
    """What a manifest says of files by their names: nothing where one is not there any more."""
    records = []
    for name, file in files.items():
        try:
            raw = file.read_bytes()
        except OSError:
            return []
        # A copy in the cache, or of an object on a store, is known by its name alone.
        path = name if on_store or file.name != name else os.path.abspath(file)
        records.append(FileRecord(path, len(raw), hashlib.sha256(raw).hexdigest()))
    return records


def keep_copies(files: Mapping[str, Path], records: Iterable[FileRecord]) -> None:
    """Copy files into the cache, where that can be written; the newest stay there."""
    for file, record in zip(files.values(), records, strict=False):
        path = record.copy
        if path is None:
            return
        with suppress(OSError):
            if record.matches_file(path):
                os.utime(path)  # it is among the newest
                continue
        with suppress(OSError, OutputError):
            raw = file.read_bytes()
            if hashlib.sha256(raw).hexdigest() != record.sha256:
                return  # it was replaced meanwhile
            os.makedirs(os.path.dirname(path), exist_ok=True)
            replace_file(path, [raw], fsync=False)  # what a power loss leaves has another checksum
            keep_newest(os.path.dirname(path), _MOST_COPIES)


def find_copies(entries: object, folders: Sequence[str]) -> dict[str, str]:
    """The paths of files on this machine that have the recorded content, by their recorded names.

    ``folders`` may be on a store, and may have files of the recorded names. TokenizerError where
    there is none.
    """
    records = [*map(_record, entries)] if isinstance(entries, list) else []
    if not records:
        raise TokenizerError("its files are not recorded")
    return {os.path.basename(record.path): _find(record, folders) for record in records}


def _find(record: FileRecord, folders: Sequence[str]) -> str:
    others = False
    for place in _places(record, folders):
        # A dataset can be looked at without its tokenizer, so a store may fail here.
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
    """An entry of a manifest. TokenizerError for what is none."""
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
    """What a request says of a tokenizer beside where it is; None: as its own files have it."""

    special: SpecialMode | None = None
    eod_token: str | int | None = None
    pattern: str | None = None
    with_folder: bool = False  # a file means its folder, whose eos_token is the EOD


class Encoded(Protocol):
    """Token ids of some documents."""

    @property
    def ids(self) -> npt.NDArray[Any]:
        """Tokens of all documents one after the other, uint16 or int32."""

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """[n] tokens of document i, EOD included; 0 for a document without tokens."""

    @property
    def special(self) -> npt.NDArray[np.int64]:
        """Document index of every special token found in the text, whatever became of it."""


@dataclass(frozen=True, eq=False)
class PackedIds:
    """The :class:`Encoded` of tokenizers that are not native."""

    ids: npt.NDArray[Any]
    lengths: npt.NDArray[np.int32]
    special: npt.NDArray[np.int64]


class Encoder(Protocol):
    """Encodes blocks of documents; belongs to one process, and to one thread at a time."""

    def encode(self, data: npt.NDArray[np.uint8], spans: npt.NDArray[np.int64]) -> Encoded:
        """Encode the documents data[spans[i, 0]:spans[i, 1]], which are valid UTF-8."""


class DocumentsError(TokenizerError):
    """Documents that a tokenizer's library cannot encode.

    ``reasons`` has the index in the block of every one of them, and why.
    """

    def __init__(self, reasons: dict[int, str]) -> None:
        super().__init__(next(iter(reasons.values())))
        self.reasons = reasons

    def __reduce__(self) -> tuple[type[DocumentsError], tuple[dict[int, str]]]:
        return type(self), (self.reasons,)


class UnencodableError(TokenizerError):
    """A document that shows a tokenizer to be the wrong one; it is no bad record.

    ``document`` is the document's index in the block, so that a caller can name the line.
    """

    def __init__(self, message: str, document: int) -> None:
        super().__init__(message)
        self.document = document

    def __reduce__(self) -> tuple[type[UnencodableError], tuple[str, int]]:
        return type(self), (str(self), self.document)


class Tokenizer(ABC):
    """Text to ids and back.

    ``vocab_size`` counts added tokens and unused ids, and no padding: every id is below it.
    ``eod_id`` is the end-of-document token, None where the tokenizer has none. ``special_ids`` has
    the ids of special tokens by their text. ``special_tokens_default`` is what the mode ``auto``
    means for this tokenizer. ``why_not_native`` says in one phrase why a slower library does the
    work; "" for the native core. ``notes`` say what a user should know of how its folder was read.
    ``arguments`` are what ``load_tokenizer`` needs beside ``name``
    to load the same tokenizer again, from the ``files`` that it was read from, by their names.
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
    # What as_hf does; ``accelerated`` sets it, which knows the tokenizers of all kinds.
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

        ``dtype`` of the ids is ``uint16`` or ``int32``. ``frame`` goes around each document that
        has a token; without it that is the EOD, or nothing. ``special_tokens`` says what a special
        token inside a document becomes: ``text``, ``encode`` (its id), or ``auto``, which is what
        this tokenizer's own tools do. ``error`` encodes: the caller stops when ``Encoded.special``
        is not empty. Raises TokenizerError when the dtype is too small, or there is no EOD to
        append.
        """
        mode, width = self.special_mode(special_tokens), self.check_dtype(dtype)
        return self._encoder(width, mode, frame or frame_of(self, append_eod=append_eod))

    @abstractmethod
    def _encoder(self, dtype: IdType, mode: SpecialMode, frame: Frame) -> Encoder:
        """Build what ``encoder`` promises, of settings that are checked."""

    def encode(self, text: str, *, special_tokens: str = "auto") -> list[int]:
        """The ids of one text, without an EOD; ``encoder`` is for many. TokenizerError.

        UsageError for what is no text, and for a lone surrogate, which no UTF-8 text has.
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
        """The ids of many texts in one array, and where each begins; options as ``encoder`` has.

        ``threads`` of this process share the work; each with a cache of words of its own. Raises as
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
        """The id of a token by its text; None where there is no such token."""

    def special_frame(self) -> Frame:
        """What the tokenizer's own post-processor adds around a text; TokenizerError."""
        return Frame()

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The text of ids as UTF-8, which may be cut inside a character at either end.

        TokenizerError for an id that no token has, UsageError for what is no row of ids.
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
        """The text of ids below ``vocab_size``; TokenizerError for one that is unused."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; bytes that are no character become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def token_bytes(self) -> TokenBytes | None:
        """The bytes of each token, where those of a text's tokens are the text; else None."""
        return None

    def pieces(self) -> list[bytes]:
        """What each id writes behind other text; b"" for special tokens, and ids that are unused.

        It may be cut inside a character at either end.
        """
        known = {*self.special_ids.values(), self.eod_id}
        return [b"" if i in known else text for i, text in enumerate(self._pieces_behind())]

    def _pieces_behind(self) -> Iterable[bytes]:
        """What each id below ``vocab_size`` writes behind a word."""
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
        """sha256, in hex, over everything that decides ids, and over nothing else."""
        parts = (self.kind, self.definition_digest(), self.special_tokens_default, self.eod_id)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    @abstractmethod
    def definition_digest(self) -> str:
        """sha256, in hex, over the vocabulary and the rules, whatever their files look like."""

    def describe(self) -> dict[str, Any]:
        """What a manifest says of a tokenizer."""
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
        """Keep copies of the files in the cache, where a manifest's reader finds them."""
        keep_copies(self.files, self._file_records)

    @cached_property
    def _file_records(self) -> list[FileRecord]:
        return records_of(self.files, on_store=is_url(self.name))

    def special_mode(self, special_tokens: str) -> SpecialMode:
        """What ``encoder`` does with special tokens in a mode; UsageError for an unknown mode."""
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
        """The dtype, if it can hold all ids; UsageError, TokenizerError."""
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
    """A text as UTF-8; UsageError, which calls it ``name``, for a lone surrogate."""
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
    """Join the ids of documents; ``frame`` goes around each that has any."""
    if frame != Frame():
        rows = [[*frame.before, *row, *frame.after] if row else row for row in rows]
    lengths = np.fromiter(map(len, rows), np.int32, count=len(rows))
    flat = chain.from_iterable(rows)
    ids = np.fromiter(flat, np.dtype(dtype), count=int(lengths.sum(dtype=np.int64)))
    return PackedIds(ids, lengths, special)


class SpecialFinder:
    """Finds special tokens in documents: of several at one place the longest."""

    def __init__(self, contents: Iterable[str]) -> None:
        longest_first = sorted((c.encode() for c in contents if c), key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first)))
        self._empty = not longest_first

    def find(
        self, data: npt.NDArray[np.uint8], spans: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Index of the document of every occurrence, ascending."""
        view = np.ascontiguousarray(data).data
        # One search over the whole block first: nearly no block has a special token at all.
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
    """An encoder that gives the texts of a block to a library.

    ``rows_of`` makes the ids of each text; ``special`` finds the special tokens that count.
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


# Many texts at once: numpy arrays in the place of lists, and threads that share no lock.

T = TypeVar("T")

_RUN_BYTES = 1 << 18  # of texts that are encoded at a time: text and ids stay in the cache


class EncodedBatch(NamedTuple):
    """Ids of n texts: those of text i are ``ids[offsets[i]:offsets[i + 1]]``."""

    ids: npt.NDArray[Any]  # uint16 or int32
    offsets: npt.NDArray[np.int64]  # [n + 1]


Settings = tuple[str, bool, str]  # dtype, append_eod, special_tokens of an encoder

# Encoders that nobody uses now, by what they are for: as many as threads have used at once. They
# are beside tokenizers, not in them, since they have no pickle.
_idle: WeakKeyDictionary[Tokenizer, dict[Any, list[Any]]] = WeakKeyDictionary()


@contextmanager
def borrowed(tokenizer: Tokenizer, purpose: Any, build: Callable[[], T]) -> Iterator[T]:
    """An encoder for this thread alone: one that nobody uses now, or a new one.

    What ``build`` makes takes milliseconds and megabytes, and is kept as long as the tokenizer.
    """
    idle = _idle.setdefault(tokenizer, {}).setdefault(purpose, [])
    try:
        encoder = idle.pop()
    except IndexError:
        encoder = build()
    yield encoder
    idle.append(encoder)  # after an error it is not


def encode_batch(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    dtype: str,
    append_eod: bool,
    special_tokens: str,
    threads: int,
) -> EncodedBatch:
    """What ``Tokenizer.encode_batch`` does."""
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

"""Tokenizers that the native core does not know, through the Hugging Face library."""

from __future__ import annotations

import _thread
import contextlib
import hashlib
import itertools
import json
import os
import re
import tempfile
import threading
import time
from functools import cached_property, lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import ujson

from tokpack.display import brief, message
from tokpack.errors import TokenizerError
from tokpack.tokenizers.base import (
    DocumentsError,
    SpecialFinder,
    TextEncoder,
    Tokenizer,
    UnencodableError,
)
from tokpack.tokenizers.definition import decode_alphabet, encode_alphabet
from tokpack.tokenizers.frame import FRAMED_BY_HAND, Frame, find_eod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import tokenizers

    from tokpack.tokenizers.base import Encoder, IdType, SpecialMode


_PREFIXED = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')
_INSIDE = {bytes([byte]) for byte in range(0x80, 0xC0)}  # UTF-8's bytes inside of a character
_MOST_GROWTH = 1000  # times; NFKD makes 18 from one, and a mark for a space has 3 bytes


def check_merges(raw: bytes, where: str) -> None:
    """Refuse merges whose second half the library would cut inside of a character. TokenizerError.

    It removes as many bytes as continuing_subword_prefix has. If the rest is no UTF-8, its message
    about that would abort the process.
    """
    if not _PREFIXED.search(raw):
        return
    try:
        model = json.loads(raw)["model"]
        size = len(model["continuing_subword_prefix"].encode())
        pairs = [m.split(" ", 1) if isinstance(m, str) else m for m in model["merges"]]
        cut = [pair for pair in pairs if pair[1].encode()[size : size + 1] in _INSIDE]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return  # malformed, which the library will report
    if cut:
        raise TokenizerError(
            f"{where}: the merge {cut[0]} does not fit continuing_subword_prefix "
            f"{model['continuing_subword_prefix']!r}"
        )


def check_definition(definition: dict[str, Any], where: str) -> None:
    """Refuse a tokenizer.json that no dataset can be made with. TokenizerError.

    With BPE dropout a text has different ids each time. Steps that make a huge text from a small
    one could take all memory, and the library aborts the process then.
    """
    if isinstance(dropout := definition["model"].get("dropout"), (int, float)) and dropout:
        raise TokenizerError(
            f"{where}: its model leaves out merges at random (dropout is {dropout:.4g}), so no two "
            "runs would make the same dataset: set model.dropout to null in a copy of the file"
        )
    for what in ("normalizer", "decoder"):
        growth = 1.0
        with contextlib.suppress(KeyError, TypeError, AttributeError, ValueError):  # malformed
            growth = _growth(definition.get(what) or {})
        if growth > _MOST_GROWTH:
            raise TokenizerError(
                f"{where}: its {what} may make a text {growth:.3g} times as long, more than "
                f"{_MOST_GROWTH:,} times: it is broken, or meant to harm"
            )


def _growth(step: dict[str, Any]) -> float:
    """The most bytes that replacements may make from one byte."""
    growth = 1.0
    for inner in step.get("normalizers") or step.get("decoders") or ():
        growth *= _growth(inner)
    if step.get("type") == "Replace":
        pattern, added = step["pattern"], len(step["content"].encode())
        literal = pattern.get("String", "")  # an expression may match between all characters
        growth *= max(1, added / len(literal.encode())) if literal else 1 + added
    return growth


Result = TypeVar("Result")

_LOOK_SECONDS = 0.5  # between two looks at the time that a call has taken so far
_BATCH_CHARACTERS = 1 << 18  # the library's results take about 50 bytes per token
_ADDS = re.compile(rb'"(Template|Bert|Roberta)Processing"')
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # the token of a byte without any other token
_NO_CHARACTER = "\N{REPLACEMENT CHARACTER}".encode()
_TRIED = 1000  # ids, for a text that has a token
# Seconds of processor time for a text, and again for each megabyte of it: far more than any needs.
# If a batch takes a fraction of this, its texts are encoded one by one.
MOST_SECONDS = 30.0
_PATIENCE = 0.1
_IDS_DO_NOT_DEPEND_ON = ("decoder", "padding", "post_processor", "truncation", "version")


class TooLongError(Exception):
    """A call took more processor time than allowed. Its thread goes on, because nothing can end
    it.
    """


def load_library(what: str = "") -> Any:
    """Import ``tokenizers``, with one thread a process.

    Its own threads would compete with tokpack's workers, and it warns when a process that has used
    them forks. A TOKENIZERS_PARALLELISM that is already set is respected. TokenizerError if it has
    version 1, which only encodes and decodes, where ``what`` needs more of it.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    if what and not hasattr(tokenizers.Tokenizer, "from_str"):
        raise TokenizerError(
            f"{what} needs an older tokenizers library than {tokenizers.__version__}: "
            "pip install 'tokenizers<1'"
        )
    return tokenizers


class _Version1:
    """A tokenizer of the library's version 1, with those methods of version 0 that are used here.

    Version 1 tells nothing of its vocabulary and of the tokens that it adds, so they are read from
    the ``definition``.
    """

    encode_special_tokens = False

    def __init__(self, raw: bytes, definition: dict[str, Any]) -> None:
        self._tokenizer = _loaded(raw)
        vocab = definition["model"]["vocab"]
        self._added = {one["id"]: one for one in definition.get("added_tokens") or ()}
        ids = vocab if isinstance(vocab, dict) else {one[0]: i for i, one in enumerate(vocab)}
        self._ids = {**{one["content"]: i for i, one in self._added.items()}, **ids}
        self.token_to_id = self._ids.get
        # Of two tokens with one id it is the first.
        self.id_to_token = {i: token for token, i in reversed(self._ids.items())}.get
        self._raw = raw
        self.encode_batch(["a"], add_special_tokens=False)  # it refuses some patterns only here

    def encode_batch(self, texts: list[str], *, add_special_tokens: bool) -> Any:
        return self._tokenizer.encode_batch(
            texts,
            add_special_tokens=add_special_tokens,
            encode_special_tokens=self.encode_special_tokens,
            padding=None,
            truncation=None,
        )

    def encode(self, text: str, *, add_special_tokens: bool) -> Any:
        framed, plain = (
            self.encode_batch([text], add_special_tokens=added)[0].ids
            for added in (add_special_tokens, False)
        )
        size = len(plain)
        places = (i for i in range(len(framed) - size + 1) if framed[i : i + size] == plain)
        begin = next(places, len(framed))
        mask = [int(not begin <= i < begin + size) for i in range(len(framed))]
        return SimpleNamespace(ids=framed, special_tokens_mask=mask)

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def get_vocab(self, *, with_added_tokens: bool) -> dict[str, int]:
        assert with_added_tokens
        return self._ids

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        return {i: SimpleNamespace(**one) for i, one in self._added.items()}

    def save(self, path: str) -> None:
        Path(path).write_bytes(self._raw)


@lru_cache(2)
def _loaded(raw: bytes) -> Any:
    """Version 1's tokenizer for a file's content. A fork of a process that has loaded one must not
    load it again: it would wait for threads that it does not have.
    """
    with tempfile.NamedTemporaryFile(suffix=".json") as file:  # it reads nothing but files
        file.write(raw)
        file.flush()
        return load_library().Tokenizer.from_file(file.name)


def build(raw: bytes, *, special_tokens: SpecialMode, where: str) -> tokenizers.Tokenizer:
    """The library's tokenizer for a tokenizer.json, without truncation and padding."""
    library = load_library()
    check_merges(raw, where)
    try:
        if hasattr(library.Tokenizer, "from_str"):
            tokenizer: Any = library.Tokenizer.from_str(raw.decode("utf-8"))
            tokenizer.no_truncation()
            tokenizer.no_padding()
        else:
            tokenizer = _Version1(raw, json.loads(raw))
    except BaseException as error:
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        raise TokenizerError(
            f"{where}: tokenizers {library.__version__} cannot read it: {message(str(error))}"
        ) from None
    tokenizer.encode_special_tokens = special_tokens == "text"
    return tokenizer  # type: ignore[no-any-return]


def assembled(where: str, **parts: Any) -> tokenizers.Tokenizer:
    """The library's tokenizer with some parts of a tokenizer.json; its BPE has no vocabulary."""
    model = {"type": "BPE", "vocab": {}, "merges": []}
    definition = {"version": "1.0", "model": model, **parts}
    return build(json.dumps(definition).encode(), special_tokens="text", where=where)


def normalizing(normalizer: dict[str, Any]) -> Callable[[str], str]:
    """A function for what a normalizer of the library makes of a text."""
    flags = dict.fromkeys(("add_prefix_space", "trim_offsets", "use_regex"), False)
    step = {"type": "ByteLevel", **flags}
    alphabet = encode_alphabet([bytes([byte]) for byte in range(256)])
    vocab = {character: i for i, character in enumerate(alphabet)}
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    parts = {"normalizer": normalizer, "pre_tokenizer": step, "decoder": step, "model": model}
    library: Any = assembled("a normalizer", **parts)
    if hasattr(library, "normalizer"):
        return lambda text: str(library.normalizer.normalize_str(text))
    # Version 1 gives no normalizer, but what it has made of the text, as bytes.
    return lambda text: str(
        library.decode(encode_batch(library, [text])[0], skip_special_tokens=False)
    )


def _is_panic(error: BaseException) -> bool:
    """Whether Rust code has panicked. Such an error is no Exception in Python and has no module."""
    return type(error).__name__ == "PanicException"


@contextlib.contextmanager
def failures(what: str) -> Iterator[None]:
    """Raise TokenizerError, which begins with ``what``, if the library fails or panics."""
    try:
        yield
    except BaseException as error:
        # The errors of the library have no class of their own; in version 1 they are ValueErrors.
        if type(error) not in (Exception, ValueError) and not _is_panic(error):
            raise
        raise TokenizerError(f"{what}: {message(str(error))}") from None


def encode_batch(tokenizer: tokenizers.Tokenizer, texts: list[str]) -> list[list[int]]:
    """The plain ids of texts, without those that a post_processor would add.

    DocumentsError names the texts at which the library fails or panics, UnencodableError the first
    one that takes it too long.
    """
    return _of_each(partial(_ids, tokenizer), texts)


def encode_with_offsets(
    tokenizer: tokenizers.Tokenizer, texts: list[str]
) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """As ``encode_batch``, but each id with the characters [begin, end) of its text that it stands
    for.

    A character without a part in any token (a mark that normalization joins to a letter) belongs to
    none. The post_processor of the tokenizer is removed, because it would cut white space off.
    """
    processors = load_library("finding the characters of tokens").processors
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return _of_each(partial(_ids_and_offsets, tokenizer), texts)


def _of_each(encode: Callable[..., list[Result]], texts: list[str]) -> list[Result]:
    """The result of encode(texts, seconds) for each text: of all at once or, if that fails, one by
    one.
    """
    with contextlib.suppress(TokenizerError, TooLongError):
        return encode(texts, _most_seconds(texts) * _PATIENCE)
    rows: list[Result] = []
    reasons: dict[int, str] = {}
    for number, text in enumerate(texts):
        try:
            rows += encode([text], _most_seconds([text]))
        except TokenizerError as error:
            reasons[number] = str(error)
        except TooLongError:
            raise UnencodableError(
                f"more than {_most_seconds([text]):.0f} s of processor time for "
                f"{len(text.encode()):,} bytes",
                number,
            ) from None
    if reasons:
        raise DocumentsError(reasons)
    return rows


def _ids(
    tokenizer: tokenizers.Tokenizer, texts: list[str], seconds: float = MOST_SECONDS
) -> list[list[int]]:
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    with failures("the tokenizers library cannot encode a text"):
        call = partial(encode, texts, add_special_tokens=False)
        return [encoding.ids for encoding in bounded(call, seconds)]


def _ids_and_offsets(
    tokenizer: tokenizers.Tokenizer, texts: list[str], seconds: float = MOST_SECONDS
) -> list[tuple[list[int], list[tuple[int, int]]]]:
    with failures("the tokenizers library cannot encode a text"):
        call = partial(tokenizer.encode_batch, texts, add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in bounded(call, seconds)]


def _most_seconds(texts: list[str]) -> float:
    return MOST_SECONDS * (1 + sum(map(len, texts)) / 1e6)


def post_processed(raw: bytes, *, where: str) -> Frame:
    """The tokens that the post_processor of a tokenizer.json adds around a text. TokenizerError."""
    if _ADDS.search(raw) is None:
        return Frame()
    library = build(raw, special_tokens="encode", where=where)
    with failures(f"{where}: the tokenizers library cannot add its special tokens"):
        # Any text with a token of its own shows them. Several are tried, because a small vocabulary
        # may have no token for the first.
        some = (library.decode([i], skip_special_tokens=False) for i in range(_TRIED))
        plain = ((text, _ids(library, [text])[0]) for text in itertools.chain("a0", some))
        text, ids = next(((text, ids) for text, ids in plain if ids), ("", []))
        framed = library.encode(text, add_special_tokens=True)
    positions = [i for i, added in enumerate(framed.special_tokens_mask) if not added]
    if not positions or framed.ids[positions[0] : positions[-1] + 1] != ids:
        raise TokenizerError(
            f"{where}: its post_processor does more than to put ids in front of a text and behind "
            f"it: {FRAMED_BY_HAND}"
        )
    return Frame(tuple(framed.ids[: positions[0]]), tuple(framed.ids[positions[-1] + 1 :]))


def digest_of(definition: dict[str, Any]) -> str:
    """The sha256, in hex, of all that decides ids in a tokenizer.json."""
    deciding = {k: v for k, v in definition.items() if k not in _IDS_DO_NOT_DEPEND_ON}
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


class HuggingFaceTokenizer(Tokenizer):
    """Any tokenizer.json; ``raw`` is its text.

    ``raw_of_text`` is another one for texts in which special tokens are plain text, or None if it
    is the same.
    """

    kind = "Hugging Face tokenizers"

    def __init__(
        self,
        name: str,
        raw: bytes,
        *,
        why_not_native: str,
        raw_of_text: bytes = b"",
        eod_token: str | int | None = None,
    ) -> None:
        self.name = name
        self.raw = raw
        self.raw_of_text = raw_of_text
        self.why_not_native = why_not_native
        added = self._library.get_added_tokens_decoder()
        self.special_ids = {t.content: i for i, t in sorted(added.items()) if t.special}
        ids = self._library.get_vocab(with_added_tokens=True).values()
        self.vocab_size = max(ids, default=-1) + 1
        if self.vocab_size > 1 << 31:
            raise TokenizerError(
                f"tokenizer {name} has the id {self.vocab_size - 1}: ids are stored as int32"
            )
        self.eod_id = find_eod(self, eod_token)

    @cached_property
    def _library(self) -> tokenizers.Tokenizer:
        return build(self.raw, special_tokens="encode", where=f"tokenizer {self.name}")

    def token_to_id(self, token: str) -> int | None:
        try:
            number: int | None = self._library.token_to_id(token)
        except UnicodeEncodeError:  # for a lone surrogate
            return None
        return number

    def special_frame(self) -> Frame:
        return post_processed(self.raw, where=f"tokenizer {self.name}")

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_library"}

    def _encoder(self, dtype: IdType, mode: SpecialMode, frame: Frame) -> Encoder:
        raw = (self.raw_of_text or self.raw) if mode == "text" else self.raw
        library = build(raw, special_tokens=mode, where=f"tokenizer {self.name}")
        rows_of = partial(_rows, library, self.arguments.get("pattern"))
        return TextEncoder(rows_of, dtype, frame, SpecialFinder(self.special_ids))

    def _decode_bytes(self, ids: list[int]) -> bytes:
        with failures(f"tokenizer {self.name}: the tokenizers library cannot decode ids"):
            text: str = self._library.decode(ids, skip_special_tokens=False)
        return text.encode()

    def _pieces_behind(self) -> Iterator[bytes]:
        """The text of each id after a word. Bytes that the library decodes to U+FFFD stay as they
        are.
        """
        for i, piece in enumerate(super()._pieces_behind()):
            token = self._library.id_to_token(i) if _NO_CHARACTER in piece else None
            if token is None:
                yield piece
            elif found := _BYTE.fullmatch(token):
                yield bytes.fromhex(found[1])
            else:
                yield decode_alphabet([token])[0] or piece

    def definition_digest(self) -> str:
        return digest_of(ujson.loads(self.raw))  # two strict readers have accepted it before


def _rows(
    tokenizer: tokenizers.Tokenizer, pattern: str | int | None, texts: list[str]
) -> list[list[int]]:
    """The ids of each text; ``pattern`` is the user's own, if the tokenizer cuts by one.

    DocumentsError for texts that cannot be encoded, UnencodableError for one that takes too long.
    """
    cause = "" if pattern is None else f"the pattern {brief(str(pattern))}"
    rows: list[list[int]] = []
    reasons: dict[int, str] = {}
    for batch in _batches(texts):
        try:
            rows.extend(encode_batch(tokenizer, batch))
        except DocumentsError as error:
            for number, reason in error.reasons.items():
                reasons[len(rows) + number] = f"{cause}: {reason}" if cause else reason
            rows.extend([] for _ in batch)
        except UnencodableError as error:
            reason = (
                f"{cause or 'the tokenizers library'} runs away at this document "
                f"({error}): leave the document out, or use another "
                f"{'pattern' if cause else 'tokenizer'}"
            )
            raise UnencodableError(reason, len(rows) + error.document) from None
    if reasons:
        raise DocumentsError(reasons)
    return rows


def _batches(texts: list[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class _Call(Generic[Result]):
    """A call in a thread that does not keep the process from ending.

    Not a threading.Thread: an interrupt of its ``start``, which waits for a Condition, may come out
    as a RuntimeError of a lock.
    """

    result: Result
    error: BaseException | None = None
    _clock: int | None = None  # the clock of the thread, if the system has such clocks

    def __init__(self, function: Callable[[], Result]) -> None:
        self._function = function
        self._began = time.process_time()
        self._running = threading.Lock()
        self._running.acquire()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            if hasattr(time, "pthread_getcpuclockid"):
                self._clock = time.pthread_getcpuclockid(threading.get_ident())
            self.result = self._function()
        except BaseException as error:  # a panic of Rust code is not an Exception
            self.error = error
        finally:
            self._running.release()

    def ends_within(self, seconds: float) -> bool:
        """Wait so long at most."""
        return self._running.acquire(timeout=seconds)

    def seconds(self) -> float:
        """The processor time of the call, or of the whole process if threads have no clocks."""
        if self._clock is None:
            return time.process_time() - self._began
        with contextlib.suppress(OSError):  # the thread has just ended
            return time.clock_gettime(self._clock)
        return 0.0


def bounded(function: Callable[[], Result], seconds: float) -> Result:
    """What ``function`` returns or raises; TooLongError after ``seconds`` of processor time.

    The function must release the GIL. Ctrl-C ends the wait, as an error does.
    """
    call = _Call(function)
    while not call.ends_within(min(seconds, _LOOK_SECONDS)):
        if call.seconds() > seconds:
            raise TooLongError
    if call.error is not None:
        raise call.error
    return call.result

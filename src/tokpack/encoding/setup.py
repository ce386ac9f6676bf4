"""What turns text into ids: a tokenizer, what frames a document, the type of the ids."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokpack.dataset import best_fitting_dtype
from tokpack.dataset.table import import_parquet
from tokpack.errors import UsageError
from tokpack.tokenizers import Frame, Tokenizer, frame_of, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tokpack.encoding.options import EncodeOptions


# Unicode is mended, and documents are split into sentences, between reading and encoding. Every
# document becomes a Python string for this, so it is far slower than the native path.

Bytes = npt.NDArray[np.uint8]
Spans = npt.NDArray[np.int64]


class TextTransform:
    """(data, spans) of documents -> (data, spans, counts) of their sentences.

    ``counts`` int64 [n] says how many of the new spans each document has; it is all ones unless
    sentences are split. Raises UsageError when a library or the sentence model is missing.
    """

    def __init__(self, options: EncodeOptions) -> None:
        self._fix = _ftfy() if options.ftfy else None
        self._split: Callable[[str], Iterable[str]] | None = None
        if options.split_sentences:
            self._split = sentence_splitter(options.lang, options.keep_newlines)

    def __call__(self, data: Bytes, spans: Spans) -> tuple[Bytes, Spans, Spans]:
        texts: list[bytes] = []
        counts = np.ones(len(spans), dtype=np.int64)
        view = data.data
        for i, (begin, end) in enumerate(spans.tolist()):
            text = str(view[begin:end], "utf-8")
            if self._fix is not None:
                text = self._fix(text)
            pieces = [text] if self._split is None else list(self._split(text))
            counts[i] = len(pieces)
            texts += [piece.encode("utf-8", "replace") for piece in pieces]
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        ends = np.cumsum(lengths)
        joined = np.frombuffer(b"".join(texts), dtype=np.uint8)
        return joined, np.stack((ends - lengths, ends), axis=1), counts


def join_sentences(
    ids: npt.NDArray[Any],
    lengths: npt.NDArray[np.int32],
    per_document: npt.NDArray[np.int64],
    frame: Frame,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """(ids, lengths, sequences of each document) from encoded sentences; empty ones are dropped.

    The frame is put before the first sentence of a document and after the last.
    """
    owner = np.repeat(np.arange(len(per_document)), per_document)
    owner = owner[lengths > 0]
    lengths = lengths[lengths > 0]
    sequences = np.bincount(owner, minlength=len(per_document)).astype(np.int32)
    before, after = frame.before, frame.after
    if (before or after) and len(lengths):
        stop = np.cumsum(sequences)[sequences > 0]
        first = stop - sequences[sequences > 0]
        ends = np.cumsum(lengths, dtype=np.int64)
        begin = (ends - lengths)[first]
        places = [begin] * len(before) + [ends[stop - 1]] * len(after)
        ids = np.insert(ids, np.stack(places, axis=1).ravel(), (*before, *after) * len(first))
        lengths = lengths.copy()
        lengths[first] += len(before)
        lengths[stop - 1] += len(after)
    return ids, lengths, sequences


def versions(options: EncodeOptions) -> dict[str, str]:
    """The versions of libraries whose choices decide the bytes."""
    libraries = {}
    if options.ftfy:
        import ftfy

        libraries["ftfy"] = ftfy.__version__
    if options.split_sentences:
        import nltk

        libraries["nltk"] = nltk.__version__
    return libraries


def make_transform(options: EncodeOptions) -> TextTransform | None:
    """The transform that the options request, or None."""
    return TextTransform(options) if options.ftfy or options.split_sentences else None


def sentence_splitter(lang: str, keep_newlines: bool) -> Callable[[str], list[str]]:
    """A function that splits a text into sentences: NLTK's Punkt for a language.

    With ``keep_newlines`` a sentence keeps the space after it.
    """
    try:
        from nltk.tokenize import punkt
    except ImportError:
        raise UsageError(
            "splitting sentences needs NLTK: pip install 'tokpack[sentences]'"
        ) from None
    try:
        splitter = punkt.PunktTokenizer(lang)
    except (LookupError, ValueError, OSError):
        raise UsageError(
            f"no Punkt sentence model for {lang!r}; get the models with: "
            "python -m nltk.downloader punkt_tab"
        ) from None
    if keep_newlines:
        splitter._lang_vars = space_keeping_rules()
    tokenize: Callable[[str], list[str]] = splitter.tokenize
    return tokenize


@functools.cache
def space_keeping_rules() -> Any:
    """Punkt's rules with the space after a sentence counted as part of it, as Megatron-LM has them.

    Where Punkt looks ahead for "space, then a word", the space moves in front of the look-ahead,
    and so into the sentence that it follows.
    """
    from nltk.tokenize import punkt

    class SpaceKeeping(punkt.PunktLanguageVars):  # type: ignore[misc]
        _period_context_fmt = (
            r"\S* %(SentEndChars)s \s* (?=(?P<after_tok> %(NonWord)s | (?P<next_tok>\S+) ))"
        )

    return SpaceKeeping()


def _ftfy() -> Callable[[str], str]:
    try:
        import ftfy
    except ImportError:
        raise UsageError("ftfy is not installed: pip install 'tokpack[ftfy]'") from None
    fix: Callable[[str], str] = ftfy.fix_text
    return fix


class TokenizerSetup(NamedTuple):
    """The tokenizer and frame of a request, and the ``dtype`` of the ids."""

    tokenizer: Tokenizer
    frame: Frame
    dtype: str

    def has_usual_frame(self, options: EncodeOptions) -> bool:
        """Whether nothing but the EOD, if requested, is put around a document."""
        return self.frame == frame_of(self.tokenizer, append_eod=bool(options.append_eod))


def described(options: EncodeOptions, setup: TokenizerSetup) -> dict[str, Any]:
    """What plans and manifests say of the tokenizer."""
    setup.tokenizer.keep_copies()
    entry = setup.tokenizer.describe()
    if not setup.has_usual_frame(options):
        entry["frame"] = setup.frame.to_json()
    return entry


def special_mode(options: EncodeOptions, setup: TokenizerSetup) -> str:
    """How special tokens inside a document are treated, with "auto" resolved."""
    mode = options.special_tokens
    return mode if mode == "error" else setup.tokenizer.special_mode(mode)


def load_setup(options: EncodeOptions) -> TokenizerSetup:
    """The tokenizer of a request, loaded, with its frame. TokenizerError, InputError."""
    make_transform(options)  # to learn before any work whether a library for it is missing
    if options.has_table:
        import_parquet()
    tokenizer = load_tokenizer(**options.for_tokenizer)
    frame = frame_of(tokenizer, **options.for_frame)
    dtype: str = options.dtype
    if dtype == "auto":
        dtype = best_fitting_dtype(tokenizer.vocab_size).name
    return TokenizerSetup(tokenizer, frame, dtype)

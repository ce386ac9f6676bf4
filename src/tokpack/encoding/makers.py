"""Documents -> ids: as they are, sentence by sentence, or conversations with their masks.

A run has one maker, chosen by its options. All makers turn a batch into the same kind of result:
the arrays for the tracks of a piece.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tokpack.counts import OF_CONVERSATIONS
from tokpack.dataset.manifest import ROLES
from tokpack.errors import UsageError
from tokpack.tokenizers import DocumentsError, Frame, UnencodableError, self_check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tokpack.encoding.options import EncodeOptions
    from tokpack.encoding.setup import TokenizerSetup
    from tokpack.sources import BadRecord, DocumentBatch, Documents


# Counts of conversations: tokens and trained tokens of each role, and more, see Counts.
SAID_COLUMNS = (
    *(f"{what} of {role}" for role in ROLES for what in ("tokens", "trained")),
    *OF_CONVERSATIONS,
)


class EncodedDocuments(NamedTuple):
    """The documents of one key of a batch, encoded.

    ``ids`` are those of all sequences, one after the other; ``lengths`` int32 the tokens of each
    sequence, which may be 0; ``sequences`` int32 [n] the sequences with tokens of each document.
    ``special`` int64 has the document number of each special token found. ``values`` are arrays
    with a value for each token, in the order of ``EncodeOptions.token_tracks``. ``left_out``
    documents were encoded, but are not in ``documents``; ``counts`` has everything else that was
    counted.
    """

    documents: Documents
    ids: npt.NDArray[Any]
    lengths: npt.NDArray[np.int32]
    sequences: npt.NDArray[np.int32]
    special: npt.NDArray[np.int64]
    values: Sequence[npt.NDArray[Any]] = ()
    left_out: Sequence[BadRecord] = ()
    counts: Mapping[str, int] = {}


class Maker(Protocol):
    """Turns documents into ids. Each process has one; making it may be slow.

    ``is_seen``: the run's self-check has seen the documents of the first parts as they are encoded.
    If not, each process checks its own first documents.
    """

    is_seen: bool

    def documents(self, batches: Iterable[DocumentBatch]) -> Iterable[DocumentBatch]:
        """The batches with documents, made from their rows if necessary."""

    def check(self, documents: Documents) -> None:
        """Compare the ids of the first documents with the library's. TokenizerError."""

    def encode(self, documents: Documents) -> EncodedDocuments:
        """The documents encoded. DocumentsError and UnencodableError name documents by number."""


class TextMaker:
    """Encodes each document as one sequence, repaired by ftfy if requested."""

    is_seen = True

    def __init__(self, options: EncodeOptions, setup: TokenizerSetup) -> None:
        self._options, self._setup = options, setup
        self._transform = transform_of(options)
        self._encoder = setup.encoder(options)

    def documents(self, batches: Iterable[DocumentBatch]) -> Iterable[DocumentBatch]:
        return batches

    def check(self, documents: Documents) -> None:
        mode, tokenizer = self._options.special_tokens, self._setup.tokenizer
        self_check(tokenizer, documents.data, documents.spans, special_tokens=mode)

    def encode(self, documents: Documents) -> EncodedDocuments:
        data, spans = documents.data, documents.spans
        if self._transform is not None:
            data, spans, _ = self._transform(data, spans)
        encoded = self._encoder.encode(data, spans)
        lengths = encoded.lengths
        sequences = (lengths > 0).astype(np.int32)
        return EncodedDocuments(documents, encoded.ids, lengths, sequences, encoded.special)


class SentenceMaker(TextMaker):
    """Encodes the sentences of documents, each a sequence."""

    def encode(self, documents: Documents) -> EncodedDocuments:
        assert self._transform is not None
        data, spans, counts = self._transform(documents.data, documents.spans)
        owners = np.repeat(np.arange(len(counts)), counts)
        try:
            encoded = self._encoder.encode(data, spans)
        except UnencodableError as error:
            raise UnencodableError(str(error), int(owners[error.document])) from None
        except DocumentsError as error:
            raise DocumentsError(
                {int(owners[i]): why for i, why in error.reasons.items()}
            ) from None
        joined = join_sentences(encoded.ids, encoded.lengths, counts, self._setup.frame)
        return EncodedDocuments(documents, *joined, owners[encoded.special])


# Repairing Unicode and splitting sentences happen between reading and encoding. Every document
# becomes a Python string for this, which is far slower than the native path.

Bytes = npt.NDArray[np.uint8]
Spans = npt.NDArray[np.int64]


class TextTransform:
    """(data, spans) of documents -> (data, spans, counts) of their sentences.

    ``counts`` int64 [n] is the number of new spans of each document, all 1 unless sentences are
    split. UsageError if a library or the sentence model is missing.
    """

    def __init__(self, options: EncodeOptions) -> None:
        self._fix: Callable[[str], str] | None = None
        if options.ftfy:
            try:
                import ftfy
            except ImportError:
                raise UsageError("ftfy is not installed: pip install 'tokpack[ftfy]'") from None
            self._fix = ftfy.fix_text
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


def transform_of(options: EncodeOptions) -> TextTransform | None:
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
    """Punkt's rules with the space after a sentence as part of it, as in Megatron-LM.

    Punkt looks ahead for "space, then a word". Here the space is moved in front of the look-ahead,
    and so into the sentence before.
    """
    from nltk.tokenize import punkt

    class SpaceKeeping(punkt.PunktLanguageVars):  # type: ignore[misc]
        _period_context_fmt = (
            r"\S* %(SentEndChars)s \s* (?=(?P<after_tok> %(NonWord)s | (?P<next_tok>\S+) ))"
        )

    return SpaceKeeping()

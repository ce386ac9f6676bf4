"""Texts of evaluation sets, as the words or the tokens that they are inside of documents."""

from __future__ import annotations

from contextlib import closing, suppress
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.errors import InputError, TokenizerError, UsageError, option
from tokpack.indexed import MMapIndexedDataset
from tokpack.indexed.prefix import prefix_of
from tokpack.indexed.table import plain_ids
from tokpack.sources import discover, make_parts, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tokpack.sources import DocumentBatch, Source
    from tokpack.tokenizers import Tokenizer

    Shown = Callable[[int, int], str]

Int64s = npt.NDArray[np.int64]
Ids = npt.NDArray[Any]
UnitName = Literal["words", "tokens"]

# What may stand before and behind a text inside of a document, and changes the tokens beside it.
_BEFORE = ("", " ")
_BEHIND = ("", "\n", "\n\n")
_VARIANTS = tuple("".join(pair) for pair in product(_BEFORE, _BEHIND))
_STEP = 1000  # texts encoded at a time
# 50 characters of a script without spaces count as 13 words.
_WORD, _CHARACTER = 50, 13
# How punctuation is left out that a document may lack: put white space for it, or nothing.
_WITHOUT_PUNCTUATION: tuple[Literal["spaces", "nothing"], ...] = ("spaces", "nothing")


class Form(NamedTuple):
    """What a text may be inside of a document.

    ``tokens`` are those that are compared, ``sizes`` how much each counts, of ``Unit.size``, and
    ``shown`` is what is written for [begin, end) of them.
    """

    tokens: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint8]
    shown: Shown


class Unit(Protocol):
    """What documents and evaluation texts are compared by."""

    name: UnitName
    size: int  # of the largest

    def of_texts(self, texts: Sequence[bytes]) -> Iterator[list[Form]]:
        """The forms of each text, the plain one first."""

    def of_document(self, tokens: Ids) -> list[Form]:
        """Those of a document of an evaluation set, without what frames it."""

    def find(self, phrases: _core.Phrases, tokens: Ids, spans: Int64s) -> Int64s:
        """Where phrases are in documents: (document, begin, end, phrase) in tokens, [hits, 4]."""


class Words:
    """Words, as `_core.words` cuts text: of documents by their tokens, of texts as they are.

    A text has other forms where words are joined or cut at its punctuation, and where the tokenizer
    does not give it back as it is.
    """

    name: UnitName = "words"
    size = _WORD

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._pieces = tokenizer.pieces()
        ends = np.cumsum([len(piece) for piece in self._pieces], dtype=np.int64)
        self._core = _core.TokenWords(b"".join(self._pieces), ends)
        self._encoder = tokenizer.encoder(dtype="int32")

    def of_texts(self, texts: Sequence[bytes]) -> Iterator[list[Form]]:
        for text in texts:
            forms = _forms_of_text(text)
            with suppress(TokenizerError):  # it needs not be a text of the tokenizer
                encoded = self._encoder.encode(np.frombuffer(text, np.uint8), _whole(text))
                ids = np.array(encoded.ids, np.uint32)
                given_back = self._text(ids)
                if not np.array_equal(self._core.hashes(ids), forms[0].tokens):
                    forms.append(_form(given_back))
            yield forms

    def of_document(self, tokens: Ids) -> list[Form]:
        return _forms_of_text(self._text(tokens))

    def find(self, phrases: _core.Phrases, tokens: Ids, spans: Int64s) -> Int64s:
        return self._core.find(phrases, tokens, spans)

    def _text(self, tokens: Ids) -> bytes:
        count = len(self._pieces)
        return b"".join(self._pieces[i] or b"\n" if i < count else b"\n" for i in tokens.tolist())


class Tokens:
    """Tokens: a text is encoded with each of what may stand beside it."""

    name: UnitName = "tokens"
    size = 1

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._encoder = tokenizer.encoder(dtype="int32") if tokenizer else None

    def of_texts(self, texts: Sequence[bytes]) -> Iterator[list[Form]]:
        assert self._encoder is not None
        spelled = [
            before.encode() + text + behind.encode()
            for text in texts
            for before, behind in product(_BEFORE, _BEHIND)
        ]
        ends = np.cumsum([0, *(len(one) for one in spelled)])
        spans = np.stack([ends[:-1], ends[1:]], axis=1)
        encoded = self._encoder.encode(np.frombuffer(b"".join(spelled), np.uint8), spans)
        ids = np.array(encoded.ids, np.uint64)
        each = np.split(ids, np.cumsum(encoded.lengths, dtype=np.int64)[:-1])
        for begin in range(0, len(each), len(_VARIANTS)):
            yield [self._form(one) for one in each[begin : begin + len(_VARIANTS)]]

    def of_document(self, tokens: Ids) -> list[Form]:
        return [self._form(tokens.astype(np.uint64))]

    def find(self, phrases: _core.Phrases, tokens: Ids, spans: Int64s) -> Int64s:
        return phrases.find(tokens, spans)

    def _form(self, tokens: npt.NDArray[np.uint64]) -> Form:
        def shown(begin: int, end: int) -> str:
            return spelled(tokens[begin:end].tolist(), self._tokenizer)

        return Form(tokens, np.ones(len(tokens), np.uint8), shown)


def _whole(text: bytes) -> Int64s:
    return np.array([[0, len(text)]])


def _forms_of_text(text: bytes) -> list[Form]:
    plain = _form(text)
    others = [_form(text, how) for how in _WITHOUT_PUNCTUATION]
    return [plain, *(one for one in others if not np.array_equal(one.tokens, plain.tokens))]


def _form(text: bytes, punctuation: Literal["", "spaces", "nothing"] = "") -> Form:
    """The words of a text as they are in a document that has its punctuation, or not."""
    hashes, are_characters, places = _core.words(text, punctuation)

    def shown(begin: int, end: int) -> str:
        return text[places[begin, 0] : places[end - 1, 1]].decode("utf-8", "replace")

    return Form(hashes, np.where(are_characters, _CHARACTER, _WORD).astype(np.uint8), shown)


def spelled(ids: list[int], tokenizer: Tokenizer | None) -> str:
    """The text of tokens; "" where no tokenizer says."""
    try:
        return tokenizer.decode(ids) if tokenizer is not None else ""
    except TokenizerError:  # ids that the tokenizer does not have
        return ""


class EvaluationText(NamedTuple):
    """A text of an evaluation set; ``line`` is its record or document, from 1, in ``source``."""

    source: int
    line: int


class EvaluationSet:
    """The phrases of evaluation texts, and where each comes from.

    ``names`` are the sources; ``texts`` counts all texts, ``short`` those of fewer than
    ``shortest`` words or tokens, which have no phrase.
    """

    def __init__(self, unit: Unit, ngram: int, shortest: int) -> None:
        self.unit = unit
        self.names: list[str] = []
        self.texts = 0
        self.short = 0
        self._ngram, self._shortest = ngram, shortest
        self._forms: list[Form] = []
        self._origins: list[EvaluationText] = []  # of each form

    def add(self, origin: EvaluationText, forms: Sequence[Form]) -> None:
        """Take in a text, first as it is for itself, then as it is beside other text."""
        self.texts += 1
        plain, *others = forms
        least = self._shortest * self.unit.size
        if self.unit.name == "tokens":
            chosen = [plain, *_parts_of_variants(plain, others, self._ngram)]
        else:
            chosen = [*forms] if int(plain.sizes.sum()) >= least else []
        chosen = [one for one in chosen if int(one.sizes.sum()) >= least]
        self.short += not chosen
        self._forms += chosen
        self._origins += [origin] * len(chosen)

    def phrases(self) -> Phrases:
        """What is searched for. UsageError where there is nothing."""
        if not self._forms:
            raise UsageError(
                f"{', '.join(self.names)}: none of {self.texts} texts has {self._shortest} "
                f"{self.unit.name}, so there is nothing to search for"
            )
        ends = np.cumsum([len(one.tokens) for one in self._forms])
        tokens, sizes = (
            np.concatenate([getattr(one, name) for one in self._forms])
            for name in ("tokens", "sizes")
        )
        core = _core.Phrases(tokens, ends, self._ngram, self._shortest, sizes, self.unit.size)
        begins, lengths = core.phrases.T
        numbers = np.searchsorted(ends, begins, side="right")
        origins = np.array(self._origins, np.int64)[numbers]
        inside = begins - np.concatenate([[0], ends])[numbers]
        sources, lines = origins.T
        return Phrases(core, sources, lines, self._forms, numbers, inside, lengths)


class Phrases(NamedTuple):
    """Phrases by number: the source and line of the first text with each, and where it is there."""

    core: _core.Phrases
    sources: Int64s
    lines: Int64s
    forms: Sequence[Form]
    numbers: Int64s  # of the form of each
    begins: Int64s
    lengths: Int64s

    def shown(self, phrase: int) -> str:
        """A phrase as text."""
        begin = int(self.begins[phrase])
        form = self.forms[int(self.numbers[phrase])]
        return form.shown(begin, begin + int(self.lengths[phrase]))


def _parts_of_variants(plain: Form, others: Iterable[Form], ngram: int) -> Iterator[Form]:
    """Of other encodings of a text what has n-grams that it has not for itself."""
    short, tokens = [plain.tokens], plain.tokens
    for form in others:
        other = form.tokens
        if len(tokens) < ngram:
            # A short text is matched whole, and has an n-gram where its own tokens are more here;
            # with another's tokens beside them it would be matched for these.
            if len(other) < ngram or not any(_is_inside(one, other) for one in short):
                short.append(other)
                yield form
            continue
        most = min(len(tokens), len(other))
        differs = np.flatnonzero(tokens[:most] != other[:most])
        same_begin = int(differs[0]) if len(differs) else most
        differs = np.flatnonzero(tokens[::-1][:most] != other[::-1][:most])
        same_end = int(differs[0]) if len(differs) else most
        begin = max(0, same_begin - ngram + 1)
        end = min(len(other), len(other) - same_end + ngram - 1)
        if same_begin == len(other) or same_end == len(other):
            continue  # all of it is in the plain text
        if end - begin >= ngram or len(other) < ngram:
            sizes = form.sizes[begin:end]
            yield Form(other[begin:end], sizes, _behind(form.shown, begin))
        else:
            yield form


def _behind(shown: Shown, offset: int) -> Shown:
    return lambda begin, end: shown(offset + begin, offset + end)


def _is_inside(part: npt.NDArray[Any], whole: npt.NDArray[Any]) -> bool:
    """Whether ``whole`` has the tokens of ``part``, one after the other."""
    if not 0 < len(part) <= len(whole):
        return not len(part)
    windows = np.lib.stride_tricks.sliding_window_view(whole, len(part))
    return bool((windows == part).all(axis=1).any())


def read_evaluation_sets(
    names: Sequence[str],
    unit: Unit,
    why_no_text: str,
    like: MMapIndexedDataset,
    *,
    keys: Sequence[str],
    ngram: int,
    shortest: int,
) -> EvaluationSet:
    """Read the texts of files, as encode reads them, and of datasets.

    ``unit`` is of the tokenizer of the datasets that are searched, of which ``like`` is one;
    ``why_no_text`` says why texts cannot be encoded, if they cannot. InputError for a bad record,
    TokenizerError where texts cannot be encoded, UsageError for a dataset of another tokenizer.
    """
    result = EvaluationSet(unit, ngram, shortest)
    for name in names:
        if MMapIndexedDataset.exists(name):
            _add_dataset(result, name, like)
            continue
        if why_no_text:
            raise TokenizerError(f"{name}: its texts cannot be encoded: {why_no_text}")
        for source in discover([name]):
            _add_source(result, source, keys)
    return result


def check_tokenizers(datasets: Sequence[MMapIndexedDataset], advice: str) -> None:
    """UsageError where manifests say that datasets were made with different tokenizers."""
    named = [(one.path_prefix, one.tokenizer) for one in datasets]
    tokenizers = [(prefix, one) for prefix, one in named if one is not None and one.get("sha256")]
    for prefix, tokenizer in tokenizers:
        first, other = tokenizers[0]
        if tokenizer["sha256"] != other["sha256"]:
            raise UsageError(
                f"{prefix}: made with the tokenizer {tokenizer.get('name')}, {first} with "
                f"{other.get('name')}: their ids mean different things; {advice}"
            )


def _add_source(result: EvaluationSet, source: Source, keys: Sequence[str]) -> None:
    number = len(result.names)
    result.names.append(source.name)
    lines = 0
    for part in make_parts([source], ways=1):
        read_lines = 0
        with closing(read(source, part, keys)) as batches:
            for batch in batches:
                texts = _texts_in(batch, source.name, lines)
                for begin in range(0, len(texts), _STEP):
                    some = texts[begin : begin + _STEP]
                    each = result.unit.of_texts([text for _, text in some])
                    for (line, _), forms in zip(some, each, strict=True):
                        result.add(EvaluationText(number, line), forms)
                read_lines += batch.lines
        lines += read_lines


def _texts_in(batch: DocumentBatch, name: str, lines: int) -> list[tuple[int, bytes]]:
    """The line, from 1, and the text of each document of a batch before which were ``lines``."""
    for bad in batch.bad:
        there = bad.keys_there and f"; {bad.keys_there}: name one with {option('keys')}"
        raise InputError(f"{name}:{lines + bad.line + 1}: {bad.reason}{there}")
    return [
        (lines + int(line) + 1, documents.text(index).strip())
        for documents in batch.documents.values()
        for index, line in enumerate(documents.lines.tolist())
    ]


def _add_dataset(result: EvaluationSet, name: str, like: MMapIndexedDataset) -> None:
    number = len(result.names)
    result.names.append(prefix_of(name))
    with MMapIndexedDataset(name, verify=True) as dataset:
        check_tokenizers([dataset, like], "name the texts in place of the evaluation set's dataset")
        frame = dataset.manifest.frame if dataset.manifest else None
        before, behind = map(len, frame or ([], []))
        for document in range(dataset.documents):
            tokens = plain_ids(dataset.document(document))
            inner = tokens[before : len(tokens) - behind]
            result.add(EvaluationText(number, document + 1), result.unit.of_document(inner))

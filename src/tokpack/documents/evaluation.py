"""Texts of evaluation sets, as the tokens that they are inside of documents."""

from __future__ import annotations

from contextlib import closing
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.documents.passes import plain_ids
from tokpack.errors import InputError, TokenizerError, UsageError, option
from tokpack.indexed import MMapIndexedDataset
from tokpack.indexed.prefix import prefix_of
from tokpack.sources import discover, make_parts, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tokpack.sources import DocumentBatch, Source
    from tokpack.tokenizers import Tokenizer

Int64s = npt.NDArray[np.int64]

# What may stand before and behind a text inside of a document, and changes the tokens beside it.
_BEFORE = ("", " ")
_BEHIND = ("", "\n", "\n\n")
_VARIANTS = tuple("".join(pair) for pair in product(_BEFORE, _BEHIND))
_STEP = 1000  # texts encoded at a time


class EvaluationText(NamedTuple):
    """A text of an evaluation set; ``line`` is its record or document, from 1, in ``source``."""

    source: int
    line: int


class EvaluationSet:
    """The phrases of evaluation texts, and where each comes from.

    ``names`` are the sources; ``texts`` counts all texts, ``short`` those of fewer than
    ``shortest`` tokens, which have no phrase.
    """

    def __init__(self, ngram: int, shortest: int) -> None:
        self.names: list[str] = []
        self.texts = 0
        self.short = 0
        self._ngram, self._shortest = ngram, shortest
        self._tokens: list[npt.NDArray[Any]] = []
        self._origins: list[EvaluationText] = []  # of each entry of _tokens

    def add(self, origin: EvaluationText, variants: Iterable[npt.NDArray[Any]]) -> None:
        """Take in a text, first as it is for itself, then as it is beside other text."""
        self.texts += 1
        plain, *others = variants
        chosen = [plain, *_parts_of_variants(plain, others, self._ngram)]
        chosen = [one for one in chosen if len(one) >= self._shortest]
        self.short += not chosen
        self._tokens += chosen
        self._origins += [origin] * len(chosen)

    def phrases(self) -> Phrases:
        """What is searched for. UsageError where there is nothing."""
        if not self._tokens:
            raise UsageError(
                f"{', '.join(self.names)}: none of {self.texts} texts has {self._shortest} tokens, "
                "so there is nothing to search for"
            )
        ends = np.cumsum([len(one) for one in self._tokens])
        tokens = np.concatenate([one.astype(np.uint32, copy=False) for one in self._tokens])
        core = _core.Phrases(tokens, ends, self._ngram, self._shortest)
        phrases = core.phrases
        texts = np.searchsorted(ends, phrases[:, 0], side="right")
        origins = np.array(self._origins, np.int64)[texts]
        return Phrases(core, phrases[:, 1], origins[:, 0], origins[:, 1], tokens, phrases[:, 0])


class Phrases(NamedTuple):
    """Phrases by number: the tokens of each, and the source and line of the first text with it."""

    core: _core.Phrases
    lengths: Int64s
    sources: Int64s
    lines: Int64s
    tokens: npt.NDArray[np.uint32]
    begins: Int64s

    def ids(self, phrase: int) -> list[int]:
        """The tokens of a phrase."""
        begin = int(self.begins[phrase])
        ids: list[int] = self.tokens[begin : begin + int(self.lengths[phrase])].tolist()
        return ids


def _parts_of_variants(
    plain: npt.NDArray[Any], others: Iterable[npt.NDArray[Any]], ngram: int
) -> Iterator[npt.NDArray[Any]]:
    """Of other encodings of a text what has n-grams that it has not for itself."""
    short = [plain]
    for other in others:
        if len(plain) < ngram:
            # A short text is matched whole, and has an n-gram where its own tokens are more here;
            # with another's tokens beside them it would be matched for these.
            if len(other) < ngram or not any(_is_inside(one, other) for one in short):
                short.append(other)
                yield other
            continue
        most = min(len(plain), len(other))
        differs = np.flatnonzero(plain[:most] != other[:most])
        same_begin = int(differs[0]) if len(differs) else most
        differs = np.flatnonzero(plain[::-1][:most] != other[::-1][:most])
        same_end = int(differs[0]) if len(differs) else most
        begin = max(0, same_begin - ngram + 1)
        end = min(len(other), len(other) - same_end + ngram - 1)
        if same_begin == len(other) or same_end == len(other):
            continue  # all of it is in the plain text
        part = other[begin:end]
        yield part if len(part) >= ngram or len(other) < ngram else other


def _is_inside(part: npt.NDArray[Any], whole: npt.NDArray[Any]) -> bool:
    """Whether ``whole`` has the tokens of ``part``, one after the other."""
    if not 0 < len(part) <= len(whole):
        return not len(part)
    windows = np.lib.stride_tricks.sliding_window_view(whole, len(part))
    return bool((windows == part).all(axis=1).any())


def read_evaluation_sets(
    names: Sequence[str],
    tokenizer: Tokenizer | str,
    like: MMapIndexedDataset,
    *,
    keys: Sequence[str],
    ngram: int,
    shortest: int,
) -> EvaluationSet:
    """Read the texts of files, as encode reads them, and of datasets.

    ``tokenizer`` is that of the datasets that are searched, of which ``like`` is one; a str says
    why there is none. InputError for a bad record, TokenizerError where texts cannot be encoded,
    UsageError for a dataset of another tokenizer.
    """
    result = EvaluationSet(ngram, shortest)
    for name in names:
        if MMapIndexedDataset.exists(name):
            _add_dataset(result, name, like)
            continue
        if isinstance(tokenizer, str):
            raise TokenizerError(f"{name}: its texts cannot be encoded: {tokenizer}")
        for source in discover([name]):
            _add_source(result, source, tokenizer, keys)
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


def _add_source(
    result: EvaluationSet, source: Source, tokenizer: Tokenizer, keys: Sequence[str]
) -> None:
    number = len(result.names)
    result.names.append(source.name)
    encoder = tokenizer.encoder(dtype="int32")
    lines = 0
    for part in make_parts([source], ways=1):
        read_lines = 0
        with closing(read(source, part, keys)) as batches:
            for batch in batches:
                texts = _texts_in(batch, source.name, lines)
                for begin in range(0, len(texts), _STEP):
                    some = texts[begin : begin + _STEP]
                    for (line, _), variants in zip(some, _encoded(encoder, some), strict=True):
                        result.add(EvaluationText(number, line), variants)
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


def _encoded(encoder: Any, texts: list[tuple[int, bytes]]) -> Iterator[list[npt.NDArray[Any]]]:
    """The tokens of each text in all its variants, the plain one first."""
    spelled = [
        before.encode() + text + behind.encode()
        for _, text in texts
        for before, behind in product(_BEFORE, _BEHIND)
    ]
    ends = np.cumsum([0, *(len(one) for one in spelled)])
    spans = np.stack([ends[:-1], ends[1:]], axis=1)
    encoded = encoder.encode(np.frombuffer(b"".join(spelled), np.uint8), spans)
    ids = np.array(encoded.ids, np.uint32)
    each = np.split(ids, np.cumsum(encoded.lengths, dtype=np.int64)[:-1])
    for begin in range(0, len(each), len(_VARIANTS)):
        yield each[begin : begin + len(_VARIANTS)]


def _add_dataset(result: EvaluationSet, name: str, like: MMapIndexedDataset) -> None:
    number = len(result.names)
    result.names.append(prefix_of(name))
    with MMapIndexedDataset(name, verify=True) as dataset:
        check_tokenizers([dataset, like], "name the texts in place of the evaluation set's dataset")
        frame = dataset.manifest.frame if dataset.manifest else None
        before, behind = map(len, frame or ([], []))
        for document in range(dataset.documents):
            tokens = plain_ids(dataset.document(document))
            inner = np.array(tokens[before : len(tokens) - behind], np.uint32)
            result.add(EvaluationText(number, document + 1), [inner])

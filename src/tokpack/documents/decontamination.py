"""Find what evaluation sets and datasets have in common, and leave those documents out."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import xxhash

from tokpack import _core
from tokpack.dataset import MMapIndexedDataset, check_tokenizers
from tokpack.dataset.format import document_ends, prefix_of, prefixes_of
from tokpack.dataset.outputs import NewFiles, dataset_files
from tokpack.dataset.results import (
    NewResult,
    Result,
    Task,
    everywhere,
    forget,
    open_unchanged,
    pieces_of,
    shard_tasks,
)
from tokpack.dataset.spelling import find_tokenizer
from tokpack.dataset.table import import_parquet, plain_ids
from tokpack.documents.base import as_share, scan_documents
from tokpack.documents.write import BESIDE_VIEW, NAMED_TABLE, NewTable, NewViews, ViewSpec
from tokpack.errors import InputError, TokenizerError, UsageError, option
from tokpack.progress import ProgressStage, with_bar
from tokpack.sources import discover, make_parts, read
from tokpack.storage import paths_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Unpack

    from tokpack.dataset import Manifest
    from tokpack.dataset.results import RunTasks
    from tokpack.progress import Show
    from tokpack.sources import Source
    from tokpack.storage import PathLike
    from tokpack.tokenizers import Tokenizer, TokenizerFiles

    Shown = Callable[[int, int], str]


Int64s = npt.NDArray[np.int64]
Ids = npt.NDArray[Any]
UnitName = Literal["words", "tokens"]

# Characters before and after an evaluation text in a document, which may change adjacent tokens.
_BEFORE = ("", " ")
_BEHIND = ("", "\n", "\n\n")
_VARIANTS = tuple("".join(pair) for pair in product(_BEFORE, _BEHIND))
_TEXTS_AT_ONCE = 1000  # texts that are encoded at a time
# 50 characters of a script without spaces count as 13 words.
_WORD, _CHARACTER = 50, 13
# Punctuation that a document may lack: replaced by white space, or removed.
_WITHOUT_PUNCTUATION: tuple[Literal["spaces", "nothing"], ...] = ("spaces", "nothing")


class Form(NamedTuple):
    """A form in which a text may occur inside of a document.

    ``tokens`` are compared, ``sizes`` are how much each counts, as in ``Unit.size``, and ``shown``
    returns the text of tokens [begin, end).
    """

    tokens: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint8]
    shown: Shown


class Words:
    """Words, as `_core.words` cuts text: documents by their tokens, texts as they are.

    A text has other forms if punctuation joins or cuts words, and if the tokenizer does not decode
    it to the same text.
    """

    name: UnitName = "words"
    size = _WORD  # how much one word counts at most

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._pieces = tokenizer.pieces()
        ends = np.cumsum([len(piece) for piece in self._pieces], dtype=np.int64)
        self._core = _core.TokenWords(b"".join(self._pieces), ends)
        self._encoder = tokenizer.encoder(dtype="int32")

    def of_texts(self, texts: Sequence[bytes]) -> Iterator[list[Form]]:
        """The forms of each text, the plain one first."""
        for text in texts:
            forms = _forms_of_text(text)
            with suppress(TokenizerError):  # the tokenizer may not be able to encode it
                whole = np.array([[0, len(text)]])
                encoded = self._encoder.encode(np.frombuffer(text, np.uint8), whole)
                ids = np.array(encoded.ids, np.uint32)
                if not np.array_equal(self._core.hashes(ids), forms[0].tokens):
                    forms.append(_form(self._text(ids)))
            yield forms

    def of_document(self, tokens: Ids) -> list[Form]:
        """The forms of a document of an evaluation set, without its frame."""
        return _forms_of_text(self._text(tokens))

    def find(self, phrases: _core.Phrases, tokens: Ids, spans: Int64s) -> Int64s:
        """The places of phrases in documents: (document, begin, end, phrase) in tokens, [hits,
        4].
        """
        return self._core.find(phrases, tokens, spans)

    def _text(self, tokens: Ids) -> bytes:
        count = len(self._pieces)
        return b"".join(self._pieces[i] or b"\n" if i < count else b"\n" for i in tokens.tolist())


class Tokens:
    """Tokens: a text is encoded once with each possible context.

    The methods are those of ``Words``.
    """

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


Unit = Words | Tokens  # in which documents and evaluation texts are compared


def _forms_of_text(text: bytes) -> list[Form]:
    plain = _form(text)
    others = [_form(text, how) for how in _WITHOUT_PUNCTUATION]
    return [plain, *(one for one in others if not np.array_equal(one.tokens, plain.tokens))]


def _form(text: bytes, punctuation: Literal["", "spaces", "nothing"] = "") -> Form:
    """The words of a text in a document with or without its punctuation."""
    hashes, are_characters, places = _core.words(text, punctuation)

    def shown(begin: int, end: int) -> str:
        return text[places[begin, 0] : places[end - 1, 1]].decode("utf-8", "replace")

    return Form(hashes, np.where(are_characters, _CHARACTER, _WORD).astype(np.uint8), shown)


def spelled(ids: list[int], tokenizer: Tokenizer | None) -> str:
    """The text of tokens; "" without a tokenizer."""
    try:
        return tokenizer.decode(ids) if tokenizer is not None else ""
    except TokenizerError:  # the tokenizer does not have these ids
        return ""


class EvaluationSet:
    """The phrases of evaluation texts, and the origin of each.

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
        self._origins: list[tuple[int, int]] = []  # the source and the line of each form

    def add(self, line: int, forms: Sequence[Form]) -> None:
        """Add a text in all its forms, the plain one first.

        ``line`` is its record or document in the last source, counted from 1.
        """
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
        self._origins += [(len(self.names) - 1, line)] * len(chosen)

    def digest(self) -> str:
        """A checksum of all texts as they are compared."""
        state = xxhash.xxh3_128()
        for form in self._forms:
            state.update(len(form.tokens).to_bytes(8, "little") + form.tokens.tobytes())
            state.update(form.sizes.tobytes())
        return state.hexdigest()

    def phrases(self) -> Phrases:
        """The phrases to search for. UsageError if there are none."""
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
    """Phrases by number: the source and line of the first text with it, and its place there."""

    core: _core.Phrases
    sources: Int64s
    lines: Int64s
    forms: Sequence[Form]
    numbers: Int64s  # the number of each phrase's form
    begins: Int64s
    lengths: Int64s

    def shown(self, phrase: int) -> str:
        """The text of a phrase."""
        begin = int(self.begins[phrase])
        form = self.forms[int(self.numbers[phrase])]
        return form.shown(begin, begin + int(self.lengths[phrase]))


def _parts_of_variants(plain: Form, others: Iterable[Form], ngram: int) -> Iterator[Form]:
    """The parts of other encodings of a text with n-grams that the plain one lacks."""
    short, tokens = [plain.tokens], plain.tokens
    for form in others:
        other = form.tokens
        if len(tokens) < ngram:
            # A short text is matched as a whole. Use a longer encoding of it only if it contains
            # none of the forms so far: otherwise it is such a form plus tokens of the context, and
            # an n-gram might match just because of the context.
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
            continue  # nothing new
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


def _add_source(result: EvaluationSet, source: Source, keys: Sequence[str]) -> None:
    """Add the texts of a file, as encode reads them. InputError for a bad record."""
    result.names.append(source.name)
    lines = 0
    for part in make_parts([source], ways=1):
        read_lines = 0
        with closing(read(source, part, keys)) as batches:
            for batch in batches:
                for bad in batch.bad:
                    more = bad.keys_there and f"; {bad.keys_there}: name one with {option('keys')}"
                    raise InputError(f"{source.name}:{lines + bad.line + 1}: {bad.reason}{more}")
                texts = [
                    (lines + int(line) + 1, documents.text(index).strip())
                    for documents in batch.documents.values()
                    for index, line in enumerate(documents.lines.tolist())
                ]
                for begin in range(0, len(texts), _TEXTS_AT_ONCE):
                    some = texts[begin : begin + _TEXTS_AT_ONCE]
                    each = result.unit.of_texts([text for _, text in some])
                    for (line, _), forms in zip(some, each, strict=True):
                        result.add(line, forms)
                read_lines += batch.lines
        lines += read_lines


def _add_dataset(result: EvaluationSet, name: str, like: MMapIndexedDataset) -> None:
    """Add the documents of a dataset. UsageError if it is of another tokenizer than ``like``."""
    result.names.append(prefix_of(name))
    with MMapIndexedDataset(name, verify=True) as dataset:
        named = [(one.path_prefix, one.tokenizer) for one in (like, dataset)]
        check_tokenizers(named, "name the texts in place of the evaluation set's dataset")
        frame = dataset.manifest.frame if dataset.manifest else None
        before, behind = map(len, frame or ([], []))
        for document in range(dataset.documents):
            tokens = plain_ids(dataset.document(document))
            inner = tokens[before : len(tokens) - behind]
            result.add(document + 1, result.unit.of_document(inner))


SPANS_SUFFIX = ".spans.parquet"
_EXAMPLES = 3  # common phrases in the result
_TEXT_TOKENS = 64  # tokens of a span whose text is in the table
_STEP = 1 << 12  # spans that are written at a time


@dataclass(frozen=True)
class DecontaminationShare:
    """The counts of one dataset: ``read == kept + matched + partners``.

    ``partners`` are documents of pairs without a match, whose other document has one.
    """

    prefix: str
    read: int
    kept: int
    matched: int
    partners: int
    read_tokens: int
    kept_tokens: int


@dataclass(frozen=True)
class Decontamination:
    """The result of a search.

    ``manifest`` is the view's, None without an output. Of the ``texts`` in the evaluation sets,
    ``short`` ones were left out. ``phrases`` are n-grams and whole short texts; ``common`` ones are
    frequent in a dataset, so they are no match there. ``spared`` documents are kept in spite of
    common phrases; ``examples`` are the most frequent phrases.
    """

    manifest: Manifest | None
    datasets: tuple[DecontaminationShare, ...]
    spans: int
    texts: int
    short: int
    phrases: int
    common: int
    spared: int
    examples: tuple[str, ...]


@with_bar
def decontaminate(
    inputs: PathLike | Iterable[PathLike],
    output: PathLike | None = None,
    *,
    against: PathLike | Iterable[PathLike],
    table: PathLike | None = None,
    keys: str | Sequence[str] = "text",
    unit: UnitName = "words",
    ngram: int = 13,
    shortest: int = 8,
    common: float | str = 50,
    threads: int = 0,
    overwrite: bool = False,
    progress: Show | bool | None = None,
    tasks: RunTasks | None = None,
    **tokenizer: Unpack[TokenizerFiles],
) -> Decontamination:
    """Find documents of datasets that contain an n-gram of an evaluation set.

    ``against`` are files, as encode reads them, with texts under ``keys``, or datasets of the same
    tokenizer. Every ``ngram`` consecutive words of a text are searched for; a text with fewer is
    searched for as a whole, unless it has fewer than ``shortest``. Words are compared without case,
    accents, punctuation and markup, as docs/dedup.md says, and 50 characters of a script without
    spaces count as 13 words. With ``unit="tokens"`` tokens are compared as they are, also at the
    beginning and the end of a text. A phrase that is in more than ``common`` documents of a
    dataset, or in more than this share of them (0.05, "5%"), is no contamination of it (0: nothing
    is common).

    ``output`` becomes a view of the other documents; OUTPUT.spans.parquet, or the file ``table``
    (with which no output is needed), has each matched span. Of pairs (a preferred and a rejected
    answer) both documents are left out. The tokenizer is the manifest's, or named as for ``stats``.
    The result does not depend on ``threads`` (0: all cores). ``tasks`` reads the datasets
    elsewhere, and the evaluation sets there, too. ``progress`` is told bytes of .bin. InputError
    for a bad record of an evaluation set, UsageError for a tokenizer other than the datasets',
    TokenizerError if there is none; otherwise as ``dedup``.
    """
    keys = [keys] if isinstance(keys, str) else list(keys)
    common = _checked(unit, ngram, shortest, common)
    prefixes, sets = prefixes_of(paths_of(inputs)), paths_of(against, option("against"))
    if not prefixes or not sets:
        raise UsageError(
            "nothing to compare: name datasets by their prefixes, and evaluation sets with "
            + option("against")
        )
    path = None if table is None else os.fspath(table)
    if path is None and output is not None:
        path = os.fspath(output) + SPANS_SUFFIX
    rules: dict[str, Any] = {"against": sets, "unit": unit, "ngram": ngram}
    rules |= {"shortest": shortest, "common": common}
    with ExitStack() as stack:
        datasets = [stack.enter_context(MMapIndexedDataset(one)) for one in prefixes]
        view = files = None  # a view with its table, the table alone, or nothing
        if path is not None:
            import_parquet()
            read_sets = [file for one in sets for file in _files_of(one)]
            if output is not None:
                prefix = os.fspath(output)
                beside = (path, BESIDE_VIEW if path == prefix + SPANS_SUFFIX else NAMED_TABLE)
                view = NewViews(
                    [prefix], datasets, overwrite=overwrite, beside=[beside], read=read_sets
                )
                files = stack.enter_context(view).files
            else:
                inner = [file for one in datasets for file in dataset_files(one.path_prefix)]
                outputs = [(path, NAMED_TABLE)]
                files = NewFiles(outputs, [*inner, *read_sets], overwrite=overwrite)
                stack.enter_context(files)
        for dataset in datasets:
            dataset.validate()
        named = [(one.path_prefix, one.tokenizer) for one in datasets]
        check_tokenizers(named, "compare those of each tokenizer by themselves")
        asked: dict[str, Any] = {"sets": sets, "keys": keys, "unit": unit}
        asked |= {"ngram": ngram, "shortest": shortest, "tokenizer": tokenizer}
        evaluation, known = _evaluation(datasets[0], **asked)
        search = _Search(datasets, evaluation, common)
        sums = view.base.sums if view else None
        if tasks is None:
            search.run(progress, threads, sums)
        else:
            asked["sets"] = [*map(everywhere, sets)]
            asked["tokenizer"] = {
                name: everywhere(one) if isinstance(one, str) and os.path.exists(one) else one
                for name, one in tokenizer.items()
            }
            search.run_by(tasks, asked, sums)
        if path is not None and files is not None:
            search.write(path, files, {"inputs": prefixes, **rules}, known)
        manifest = None
        if view is not None:
            spec = ViewSpec(os.fspath(output or ""), search.kept, {"decontaminate": rules})
            manifest = view.write(spec)
            view.publish()
        elif files is not None:
            files.publish()
        return search.result(manifest, prefixes)


def _evaluation(
    like: MMapIndexedDataset,
    *,
    sets: Sequence[str],
    keys: Sequence[str],
    unit: str,
    ngram: int,
    shortest: int,
    tokenizer: Mapping[str, Any],
) -> tuple[EvaluationSet, Tokenizer | None]:
    """The texts of evaluation sets, and the tokenizer of the dataset ``like``, if it is known."""
    lookup = find_tokenizer(like, **tokenizer)
    if lookup.tokenizer and lookup.note:
        raise UsageError(f"{lookup.note}: texts would get other ids than in the dataset")
    if unit == "tokens":
        compared: Unit = Tokens(lookup.tokenizer)
    elif lookup.tokenizer is not None:
        compared = Words(lookup.tokenizer)
    else:
        raise TokenizerError(f"{lookup.note}; to compare ids alone, use {option('unit', 'tokens')}")
    evaluation = EvaluationSet(compared, ngram, shortest)
    for name in sets:
        if MMapIndexedDataset.exists(name):
            _add_dataset(evaluation, name, like)
            continue
        if lookup.tokenizer is None:
            raise TokenizerError(f"{name}: its texts cannot be encoded: {lookup.note}")
        for source in discover([name]):
            _add_source(evaluation, source, keys)
    return evaluation, lookup.tokenizer


def phrases_task(task: Task, threads: int, progress: Show) -> None:
    """Search a shard for the phrases of evaluation sets, and write where they are."""
    facts = dict(task.facts)
    prefix, files, digest = (facts.pop(name) for name in ("prefix", "files", "digest"))
    with NewResult(task.result) as new, open_unchanged(prefix, files) as dataset:
        evaluation, _ = _evaluation(dataset, **facts)
        if evaluation.digest() != digest:
            raise InputError(
                f"{', '.join(evaluation.names)}: these texts, or the tokenizer, differ from "
                "those on the machine that started the command"
            )
        stage, sums = ProgressStage(progress, "phrases", task.size), dict[str, str]()
        unit, core = evaluation.unit, evaluation.phrases().core
        runs = _matches(dataset, unit, core, stage.add, threads, sums)
        found = [np.zeros((0, 4), np.int64), *runs]
        new.finish({"sum": sums.get(dataset.path_prefix, "")}, [np.concatenate(found)])


def _matches(  # noqa: PLR0917
    dataset: MMapIndexedDataset,
    unit: Unit,
    core: _core.Phrases,
    on_bytes: Callable[[int], None],
    threads: int,
    sums: dict[str, str] | None,
    ends: Int64s | None = None,
) -> Iterator[Int64s]:
    """The places of phrases in runs of documents, as of ``Unit.find``.

    ``on_bytes``, ``sums`` and ``ends`` are those of ``scan_documents``.
    """

    def look(first: int, tokens: npt.NDArray[Any], spans: Int64s) -> Int64s:
        matches = unit.find(core, tokens, spans)
        matches[:, 0] += first
        return matches

    return scan_documents(dataset, look, on_bytes, ends=ends, threads=threads, sums=sums)


def _checked(unit: str, ngram: int, shortest: int, common: float | str) -> float:
    """``common`` as a number of documents, or a share below 1; 0 for no limit.

    UsageError for options outside of their range.
    """
    number = as_share("common", common) or 0
    if isinstance(common, str) and common.endswith("%") and number >= 1:
        number = 0
    if unit not in get_args(UnitName):
        raise UsageError(f"{option('unit', unit)}: expected one of {', '.join(get_args(UnitName))}")
    if not 1 <= shortest <= ngram:
        raise UsageError(
            f"{option('shortest', shortest)}: expected at least 1 and at most "
            f"{option('ngram', ngram)}"
        )
    if number < 0:
        raise UsageError(
            f"{option('common', number)}: expected a number of documents, a share below 1, or 0"
        )
    return number


def _files_of(evaluation_set: str) -> list[str]:
    if MMapIndexedDataset.exists(evaluation_set):
        return dataset_files(prefix_of(evaluation_set))
    return [evaluation_set]


class _Spans:
    """Matched spans in documents of one dataset, with an array entry for each."""

    def __init__(self, hits: Int64s) -> None:
        """Join hits (document, begin, end, phrase) that overlap."""
        hits = hits[np.lexsort(hits[:, :3].T[::-1])]
        document, begin, end, phrase = hits.T
        # Place documents so far apart that spans of different documents cannot overlap.
        offset = document * (int(end.max(initial=0)) + 1)
        reach = np.maximum.accumulate(end + offset) if len(hits) else end
        is_first = np.ones(len(hits), bool)
        is_first[1:] = begin[1:] + offset[1:] >= reach[:-1]
        first = np.flatnonzero(is_first)
        last = np.append(first[1:], len(hits)) - 1
        self.document, self.begin, self.phrase = document[first], begin[first], phrase[first]
        self.end = (reach[last] - offset[last]) if len(hits) else end
        self.matches = last - first + 1

    def __len__(self) -> int:
        return len(self.document)


class _Search:
    """Searches datasets for the phrases of an evaluation set."""

    def __init__(
        self, datasets: Sequence[MMapIndexedDataset], evaluation: EvaluationSet, common: float
    ) -> None:
        self._datasets, self._evaluation, self._common = datasets, evaluation, common
        self._phrases: Phrases = evaluation.phrases()
        self._ends = [document_ends(dataset.sizes, dataset.doc_idx) for dataset in datasets]
        self._spans: list[_Spans] = []
        self._documents_with = np.zeros(len(self._phrases.lengths), np.int64)  # the most of a set
        self._is_common = np.zeros(len(self._phrases.lengths), np.bool_)  # in any of them
        self._spared = 0

    def run(self, progress: Show | bool | None, threads: int, sums: dict[str, str] | None) -> None:
        """Read all datasets; ``sums`` are those of ``scan_documents``."""
        size = sum(
            int(ends[-1]) * dataset.dtype.itemsize
            for ends, dataset in zip(self._ends, self._datasets, strict=True)
        )
        stage = ProgressStage(progress, "decontaminate", size)
        for dataset, ends in zip(self._datasets, self._ends, strict=True):
            unit, core = self._evaluation.unit, self._phrases.core
            self._add(ends, _matches(dataset, unit, core, stage.add, threads, sums, ends))

    def run_by(self, run: RunTasks, asked: Mapping[str, Any], sums: dict[str, str] | None) -> None:
        """Let tasks read all shards; ``asked`` is what they need to read the evaluation sets."""
        every, asked = [], {**asked, "digest": self._evaluation.digest()}
        for dataset in self._datasets:
            if dataset.view is not None:
                raise UsageError(
                    f"{dataset.path_prefix}: a view is searched on one machine: leave out "
                    f"{option('engine')}, or search the datasets under it"
                )
            pieces = pieces_of(dataset.path_prefix, dataset.records)
            every.append(shard_tasks("phrases", pieces, **asked))
        flat = {task.result: task for tasks in every for task in tasks}
        run("phrases", [*flat.values()])
        for dataset, ends, tasks in zip(self._datasets, self._ends, every, strict=True):
            self._add(ends, self._found(dataset, tasks, sums))
        forget(flat)

    @staticmethod
    def _found(
        dataset: MMapIndexedDataset, tasks: Sequence[Task], sums: dict[str, str] | None
    ) -> Iterator[Int64s]:
        """What tasks have found in each shard of a dataset."""
        first = 0
        for task, shard in zip(tasks, dataset.shards(), strict=True):
            found = Result(task.result)
            if sums is not None and found.facts["sum"]:
                sums[shard.prefix] = found.facts["sum"]
            matches = found.array(0)
            matches[:, 0] += first
            yield matches
            first += shard.index.header.entries - 1

    def _add(self, ends: Int64s, runs: Iterable[Int64s]) -> None:
        """Add the matches in runs of documents of the next dataset, which come in order."""
        most = self._common if self._common >= 1 else self._common * (len(ends) - 1)
        counts = np.zeros(len(self._phrases.lengths), np.int64)
        is_spared = np.zeros(len(ends) - 1, np.bool_)
        hits: list[Int64s] = []
        for matches in runs:
            if not len(matches):
                continue
            is_spared[matches[:, 0]] = True
            here = (matches[:, 0] - matches[0, 0]) * len(counts) + matches[:, 3]
            np.add.at(counts, np.unique(here) % len(counts), 1)
            # Drop hits of phrases that are common by now, to save memory.
            hits.append(matches[_is_rare(counts, most)[matches[:, 3]]])
        np.maximum(self._documents_with, counts, out=self._documents_with)
        rare = _is_rare(counts, most)
        self._is_common |= ~rare
        none = np.zeros((0, 4), np.int64)
        kept = np.concatenate([none, *(one[rare[one[:, 3]]] for one in hits)])
        is_spared[kept[:, 0]] = False
        self._spared += int(np.count_nonzero(is_spared))
        self._spans.append(_Spans(kept))

    @property
    def kept(self) -> Int64s:
        """The documents without a span, numbered through all datasets."""
        return np.flatnonzero(np.concatenate([*map(self._are_kept, range(len(self._datasets)))]))

    def _are_kept(self, number: int) -> npt.NDArray[np.bool_]:
        """Whether each document of a dataset, and the other one of its pair, has no span."""
        are_kept = np.ones(len(self._ends[number]) - 1, np.bool_)
        are_kept[self._spans[number].document] = False
        if self._datasets[number].pairs:
            are_kept = np.repeat(are_kept[::2] & are_kept[1::2], 2)
        return are_kept

    def write(
        self, path: str, files: NewFiles, made_by: Mapping[str, Any], tokenizer: Tokenizer | None
    ) -> None:
        """Write the table of spans."""
        numbers = ("document", "begin", "end", "matches")
        kinds: dict[str, str | Sequence[str]] = {
            "dataset": [dataset.path_prefix for dataset in self._datasets],
            **dict.fromkeys(numbers, "int64"),
            "against": self._evaluation.names,
            "line": "int64",
            "text": "string",
        }
        table = NewTable(path, files, kinds, made_by)
        for number, (dataset, spans) in enumerate(zip(self._datasets, self._spans, strict=True)):
            for begin in range(0, len(spans), _STEP):
                part = slice(begin, begin + _STEP)
                phrase = spans.phrase[part]
                places = (spans.document[part], spans.begin[part], spans.end[part])
                texts = []  # of the first tokens of each span
                for document, first, end in zip(*(one.tolist() for one in places), strict=True):
                    tokens = dataset.document(document)[first : min(end, first + _TEXT_TOKENS)]
                    texts.append(spelled(tokens.tolist(), tokenizer))
                columns: dict[str, npt.NDArray[Any]] = {
                    "dataset": np.full(len(phrase), number),
                    **{name: getattr(spans, name)[part] for name in numbers},
                    "against": self._phrases.sources[phrase],
                    "line": self._phrases.lines[phrase],
                    "text": np.array(texts, object),
                }
                table.append(columns)
        table.close()

    def result(self, manifest: Manifest | None, prefixes: Sequence[str]) -> Decontamination:
        """All counts."""
        shares = []
        for number, prefix in enumerate(prefixes):
            lengths, are_kept = np.diff(self._ends[number]), self._are_kept(number)
            matched = len(np.unique(self._spans[number].document))
            kept = int(np.count_nonzero(are_kept))
            shares.append(
                DecontaminationShare(
                    prefix,
                    read=len(lengths),
                    kept=kept,
                    matched=matched,
                    partners=len(lengths) - kept - matched,
                    read_tokens=int(lengths.sum()),
                    kept_tokens=int(lengths[are_kept].sum()),
                )
            )
        counts = np.where(self._is_common, self._documents_with, 0)
        order = np.argsort(-counts, kind="stable")[:_EXAMPLES]
        shown = [number for number in order.tolist() if self._is_common[number]]
        return Decontamination(
            manifest,
            tuple(shares),
            spans=sum(map(len, self._spans)),
            texts=self._evaluation.texts,
            short=self._evaluation.short,
            phrases=len(self._phrases.lengths),
            common=int(np.count_nonzero(self._is_common)),
            spared=self._spared,
            examples=tuple(map(self._phrases.shown, shown)),
        )


def _is_rare(counts: Int64s, most: float) -> npt.NDArray[np.bool_]:
    """Whether each phrase is in at most ``most`` documents; 0: no limit."""
    return counts <= most if most else np.ones(len(counts), bool)

"""Find what evaluation sets and datasets have in common, and leave those documents out."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from tokpack.documents.arguments import as_share
from tokpack.documents.evaluation import (
    Tokens,
    UnitName,
    Words,
    check_tokenizers,
    read_evaluation_sets,
    spelled,
)
from tokpack.documents.passes import scan_documents
from tokpack.documents.tables import BESIDE_VIEW, NAMED_TABLE, NewTable
from tokpack.documents.write import NewViews, ViewSpec
from tokpack.errors import TokenizerError, UsageError, option
from tokpack.indexed import MMapIndexedDataset
from tokpack.indexed.lengths import document_ends
from tokpack.indexed.new_files import NewFiles
from tokpack.indexed.outputs import dataset_files
from tokpack.indexed.prefix import prefix_of, prefixes_of
from tokpack.indexed.table import import_parquet
from tokpack.progress import ProgressStage, with_bar
from tokpack.report import find_tokenizer
from tokpack.stores import paths_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Unpack

    from tokpack.documents.evaluation import EvaluationSet, Phrases
    from tokpack.indexed import Manifest
    from tokpack.progress import Show
    from tokpack.stores.storage import PathLike
    from tokpack.tokenizers import Tokenizer, TokenizerFiles

Int64s = npt.NDArray[np.int64]

SPANS_SUFFIX = ".spans.parquet"
_EXAMPLES = 3  # common phrases that are shown
_TEXT_TOKENS = 64  # of a span, whose text the table has
_STEP = 1 << 12  # spans written at a time


@dataclass(frozen=True)
class DecontaminationShare:
    """What became of the documents of one dataset: ``read == kept + matched + partners``.

    ``partners`` are documents of pairs of which only the other one has a match.
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
    """What was found.

    ``manifest`` is that of the view, None where none was asked for. Of ``texts`` in the evaluation
    sets ``short`` ones were passed over. ``phrases`` are n-grams and whole short texts, of which
    ``common`` were passed over in a dataset, and ``spared`` documents are kept though they have one
    of these; ``examples`` are the most frequent ones.
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
    **tokenizer: Unpack[TokenizerFiles],
) -> Decontamination:
    """Find documents of datasets that contain an n-gram of an evaluation set.

    ``against`` are files, as encode reads them, whose texts lie under ``keys``, or datasets of the
    same tokenizer. Every ``ngram`` words in a row of a text are searched for; a text with fewer is
    searched for whole, unless it has fewer than ``shortest``. Words are compared without case,
    accents, punctuation and markup, as docs/dedup.md says, and 50 characters of a script without
    spaces count as 13 words. With ``unit="tokens"`` tokens are compared as they are, also at the
    beginning and the end of a text. What is in more than ``common`` documents of a dataset, or in
    more than this share of them (0.05, "5%"), is no contamination of it (0: nothing is common).

    ``output`` becomes a view of the other documents; OUTPUT.spans.parquet, or the file ``table``
    (with which there need be no output), has each matched span. Of pairs (a preferred and a
    rejected answer) both documents are left out. The tokenizer is the manifest's,
    or named as for ``stats``. The result does not depend on ``threads`` (0: all cores).
    ``progress`` is told bytes of .bin. InputError for a bad record of an evaluation set, UsageError
    for another tokenizer than the datasets', TokenizerError where there is none; otherwise as
    ``dedup``.
    """
    keys = [keys] if isinstance(keys, str) else list(keys)
    common = _common_of(common)
    _check(unit, ngram, shortest, common)
    prefixes, sets = prefixes_of(paths_of(inputs)), paths_of(against, option("against"))
    if not prefixes or not sets:
        raise UsageError(
            "nothing to compare: name datasets by their prefixes, and evaluation sets with "
            + option("against")
        )
    path = _table_path(output, table)
    rules: dict[str, Any] = {"against": sets, "unit": unit, "ngram": ngram}
    rules |= {"shortest": shortest, "common": common}
    with ExitStack() as stack:
        datasets = [stack.enter_context(MMapIndexedDataset(one)) for one in prefixes]
        view, files = _new_files(stack, datasets, sets, output, path, overwrite=overwrite)
        for dataset in datasets:
            dataset.validate()
        check_tokenizers(datasets, "compare those of each tokenizer by themselves")
        lookup = find_tokenizer(datasets[0], **tokenizer)
        if lookup.tokenizer and lookup.note:
            raise UsageError(f"{lookup.note}: texts would have other ids than in the dataset")
        if unit == "words" and lookup.tokenizer is None:
            raise TokenizerError(
                f"{lookup.note}; datasets of ids alone are compared with {option('unit', 'tokens')}"
            )
        evaluation = read_evaluation_sets(
            sets,
            Words(lookup.tokenizer)
            if unit == "words" and lookup.tokenizer
            else Tokens(lookup.tokenizer),
            "" if lookup.tokenizer else lookup.note,
            datasets[0],
            keys=keys,
            ngram=ngram,
            shortest=shortest,
        )
        search = _Search(datasets, evaluation, common)
        search.run(progress, threads, view.base.sums if view else None)
        if path is not None and files is not None:
            search.write(path, files, {"inputs": prefixes, **rules}, lookup.tokenizer)
        manifest = None
        if view is not None:
            spec = ViewSpec(os.fspath(output or ""), search.kept, {"decontaminate": rules})
            manifest = view.write(spec)
            view.publish()
        elif files is not None:
            files.publish()
        return search.result(manifest, prefixes)


def _common_of(value: float | str) -> float:
    """A number of documents, or a share of them below 1; 0 for any number. UsageError."""
    number = as_share("common", value) or 0
    is_all = isinstance(value, str) and value.endswith("%") and number >= 1
    return 0 if is_all else number


def _check(unit: str, ngram: int, shortest: int, common: float) -> None:
    if unit not in get_args(UnitName):
        raise UsageError(f"{option('unit', unit)}: expected one of {', '.join(get_args(UnitName))}")
    if not 1 <= shortest <= ngram:
        raise UsageError(
            f"{option('shortest', shortest)}: expected 1 to {option('ngram', ngram)}, below which "
            "a text is searched for whole"
        )
    if common < 0:
        raise UsageError(
            f"{option('common', common)}: expected a number of documents, a share below 1, or 0"
        )


def _table_path(output: PathLike | None, table: PathLike | None) -> str | None:
    if table is not None:
        return os.fspath(table)
    return None if output is None else os.fspath(output) + SPANS_SUFFIX


def _new_files(
    stack: ExitStack,
    datasets: Sequence[MMapIndexedDataset],
    sets: Sequence[str],
    output: PathLike | None,
    path: str | None,
    *,
    overwrite: bool,
) -> tuple[NewViews | None, NewFiles | None]:
    """What is written: a view with its table, the table alone, or nothing."""
    if path is None:
        return None, None
    import_parquet()
    sets = [file for one in sets for file in _files_of(one)]
    if output is not None:
        prefix = os.fspath(output)
        kind = BESIDE_VIEW if path == prefix + SPANS_SUFFIX else NAMED_TABLE
        new = NewViews([prefix], datasets, overwrite=overwrite, beside=[(path, kind)], read=sets)
        stack.enter_context(new)
        return new, new.files
    read = [file for dataset in datasets for file in dataset_files(dataset.path_prefix)]
    files = NewFiles([(path, NAMED_TABLE)], [*read, *sets], overwrite=overwrite)
    return None, stack.enter_context(files)


def _files_of(evaluation_set: str) -> list[str]:
    if MMapIndexedDataset.exists(evaluation_set):
        return dataset_files(prefix_of(evaluation_set))
    return [evaluation_set]


class _Spans:
    """Matched spans of documents of one dataset, one array entry each."""

    def __init__(self, hits: Int64s) -> None:
        """Of hits (document, begin, end, phrase), joins those that overlap."""
        hits = hits[np.lexsort(hits[:, :3].T[::-1])]
        document, begin, end, phrase = hits.T
        # Far enough apart that the end of one document is before the beginning of the next.
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
            hits = self._hits(dataset, ends, stage, threads, sums)
            self._spans.append(_Spans(hits))

    @property
    def kept(self) -> Int64s:
        """The documents without a span, numbered through all datasets."""
        return np.flatnonzero(np.concatenate([*map(self._are_kept, range(len(self._datasets)))]))

    def _are_kept(self, number: int) -> npt.NDArray[np.bool_]:
        """Which documents of a dataset have no span, nor has the other of their pair."""
        are_kept = np.ones(len(self._ends[number]) - 1, np.bool_)
        are_kept[self._spans[number].document] = False
        if self._datasets[number].pairs:
            are_kept = np.repeat(are_kept[::2] & are_kept[1::2], 2)
        return are_kept

    def _hits(
        self,
        dataset: MMapIndexedDataset,
        ends: Int64s,
        stage: ProgressStage,
        threads: int,
        sums: dict[str, str] | None,
    ) -> Int64s:
        """Where phrases are that are not common: (document, begin, end, phrase), [hits, 4]."""
        unit, core = self._evaluation.unit, self._phrases.core
        most = self._common if self._common >= 1 else self._common * (len(ends) - 1)
        counts = np.zeros(len(self._phrases.lengths), np.int64)
        is_spared = np.zeros(len(ends) - 1, np.bool_)
        hits: list[Int64s] = []

        def look(first: int, tokens: npt.NDArray[Any], spans: Int64s) -> Int64s:
            matches = unit.find(core, tokens, spans)
            matches[:, 0] += first
            return matches

        for size, matches in scan_documents(dataset, ends, look, threads=threads, sums=sums):
            stage.add(size)
            if not len(matches):
                continue
            is_spared[matches[:, 0]] = True
            here = (matches[:, 0] - matches[0, 0]) * len(counts) + matches[:, 3]
            np.add.at(counts, np.unique(here) % len(counts), 1)
            # What is common by now is not kept, so that little is.
            hits.append(matches[_is_rare(counts, most)[matches[:, 3]]])
        np.maximum(self._documents_with, counts, out=self._documents_with)
        rare = _is_rare(counts, most)
        self._is_common |= ~rare
        kept = np.concatenate([np.zeros((0, 4), np.int64), *(one[rare[one[:, 3]]] for one in hits)])
        is_spared[kept[:, 0]] = False
        self._spared += int(np.count_nonzero(is_spared))
        return kept

    def write(
        self, path: str, files: NewFiles, made_by: Mapping[str, Any], tokenizer: Tokenizer | None
    ) -> None:
        """Write the table of spans."""
        arrow = import_parquet()
        names = arrow.dictionary(arrow.int32(), arrow.string())
        numbers = ("document", "begin", "end", "matches")
        schema = {
            "dataset": names,
            **dict.fromkeys(numbers, arrow.int64()),
            "against": names,
            "line": arrow.int64(),
            "text": arrow.string(),
        }
        prefixes = [dataset.path_prefix for dataset in self._datasets]
        texts = {"dataset": prefixes, "against": self._evaluation.names}
        table = NewTable(path, files, schema, made_by, texts)
        for number, (dataset, spans) in enumerate(zip(self._datasets, self._spans, strict=True)):
            for begin in range(0, len(spans), _STEP):
                part = slice(begin, begin + _STEP)
                phrase = spans.phrase[part]
                columns: dict[str, npt.NDArray[Any]] = {
                    "dataset": np.full(len(phrase), number),
                    **{name: getattr(spans, name)[part] for name in numbers},
                    "against": self._phrases.sources[phrase],
                    "line": self._phrases.lines[phrase],
                    "text": _texts(dataset, spans, part, tokenizer),
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
    """Which phrases are in no more than ``most`` documents; 0: any number is few."""
    return counts <= most if most else np.ones(len(counts), bool)


def _texts(
    dataset: MMapIndexedDataset, spans: _Spans, part: slice, tokenizer: Tokenizer | None
) -> npt.NDArray[Any]:
    """How spans begin, as text; "" where no tokenizer says."""
    result = []
    triples = (spans.document[part], spans.begin[part], spans.end[part])
    for document, begin, end in zip(*(one.tolist() for one in triples), strict=True):
        tokens = dataset.document(document)[begin : min(end, begin + _TEXT_TOKENS)]
        result.append(spelled(tokens.tolist(), tokenizer))
    return np.array(result, object)

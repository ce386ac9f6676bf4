"""Figures about all tokens and documents of a dataset."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.display import shown
from tokpack.indexed.lengths import document_ends
from tokpack.report.counts import count_tokens
from tokpack.report.duplicates import CrossDuplicates, DuplicateFinder, Duplicates, find_duplicates
from tokpack.report.lengths import Bin, Lengths, histogram, summarize, tally
from tokpack.report.sources import bytes_per_token, own_manifest, shares

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tokpack.indexed import MMapIndexedDataset
    from tokpack.progress import Show
    from tokpack.report.sources import SourceShare
    from tokpack.report.spelling import Spelling

TOP = 30
_POINTS = 160
_UNKNOWN = ("<unk>", "[UNK]", "<|unk|>")
_DOCUMENTS_SHOWN, _TOKENS_SHOWN = 10, 60
_MORE = "\N{HORIZONTAL ELLIPSIS}"


@dataclass(frozen=True)
class Token:
    """A token, how often it occurs, and its text ("" where no tokenizer says)."""

    id: int
    count: int
    text: str


@dataclass(frozen=True)
class Frequency:
    """How often tokens occur.

    used      different ids that occur
    top       the most frequent ones
    zipf      (rank, count), ranks spread evenly on a logarithmic scale
    coverage  how many of the most frequent ids make up 50, 90 and 99 percent of all tokens
    entropy   bits a token, of the distribution of ids
    """

    used: int
    top: tuple[Token, ...]
    zipf: tuple[tuple[int, int], ...]
    coverage: dict[int, int]
    entropy: float


@dataclass(frozen=True)
class Eods:
    """Where EOD tokens are that do not end a document, and documents that do not end with one."""

    id: int
    inside: int
    examples: tuple[tuple[int, int], ...]  # document, position of the first EOD inside
    without: int


@dataclass(frozen=True)
class Packed:
    """Samples that best-fit packing makes, and the share of them that is filled.

    ``cut`` sequences are longer than a sample.
    """

    samples: int
    fill: float
    cut: int


@dataclass(frozen=True)
class Stats:
    """The figures of one dataset; what is not known is None.

    ``empty`` counts documents in the index without a token, ``outside`` ids that no vocabulary
    has, or that the dataset's does not; ``shared`` is what other datasets have too.
    ``trained`` counts the tokens that are, where a mask or labels say it, ``trained_texts`` are
    what is trained of the first documents with a mask, by their numbers. ``roles`` has of each role
    in conversations (name, tokens, trained tokens). ``truncated`` conversations were cut to length
    when they were encoded; ``packed`` is known where somebody has packed the dataset.
    """

    prefix: str
    dtype: str
    tokenizer: str
    documents: int
    sequences: int
    tokens: int
    empty: int
    vocab_size: int | None
    bytes_per_token: float | None
    lengths: Lengths | None
    histogram: tuple[Bin, ...]
    frequency: Frequency
    duplicates: Duplicates
    eods: Eods | None
    unknown: int | None
    outside: int
    sources: tuple[SourceShare, ...]
    shared: CrossDuplicates | None = None
    trained: int | None = None
    trained_texts: tuple[tuple[int, str], ...] = ()
    roles: tuple[tuple[str, int, int], ...] = ()
    truncated: int = 0
    packed: Packed | None = None

    def __repr__(self) -> str:
        return f"Stats({self.prefix!r}, {self.documents} documents, {self.tokens} tokens)"

    def with_packing(self, packing: Any) -> Stats:
        """The same figures with ``packing``, the PackingStats of a GPTDataset."""
        return replace(self, packed=Packed(packing.samples, packing.fill, packing.cut))

    def to_json(self) -> dict[str, Any]:
        """A form that ``json`` can write."""
        return asdict(self)


def stats(
    dataset: MMapIndexedDataset,
    spelling: Spelling | None = None,
    *,
    threads: int = 0,
    progress: Show | bool | None = None,
    across: DuplicateFinder | None = None,
) -> Stats:
    """Read a whole dataset and count; ``threads`` 0 is one for each core, 8 at most.

    The vocabulary and its special tokens are those of ``spelling``, else of the manifest. Raises
    FormatError where the index is broken. ``progress`` is told how many tokens are read, and
    ``across``, which compares several datasets, of the documents.
    """
    special: dict[str, Any] = {}
    vocab_size, eod, name = None, None, ""
    if manifest := own_manifest(dataset):
        vocab_size, eod = manifest.token_fact("vocab_size"), manifest.token_fact("eod_id")
        name = str(manifest.tokenizer.get("name", ""))
        special = manifest.tokenizer.get("special_ids") or {}
    if spelling:
        tokenizer = spelling.tokenizer
        name, special = tokenizer.name, tokenizer.special_ids
        vocab_size, eod = tokenizer.vocab_size, tokenizer.eod_id
    dataset.validate()
    ends = document_ends(dataset.sizes, dataset.doc_idx)
    lengths = np.diff(ends)
    scan, hashes = count_tokens(
        dataset, ends, vocab_size=vocab_size, eod=eod, threads=threads, progress=progress
    )
    if across:
        across.add(lengths, hashes)
    counts, lengths_tally = scan.counts, tally([lengths])
    beyond = int(counts[vocab_size:].sum()) if vocab_size is not None else 0
    unknown = next((special[token] for token in _UNKNOWN if token in special), None)
    return Stats(
        prefix=dataset.path_prefix,
        dtype=str(dataset.dtype),
        tokenizer=name,
        documents=dataset.documents,
        sequences=len(dataset),
        tokens=dataset.token_count,
        empty=int(np.count_nonzero(lengths == 0)),
        vocab_size=vocab_size,
        bytes_per_token=_bytes_per_token(dataset, spelling, counts, eod),
        lengths=summarize(*lengths_tally),
        histogram=tuple(histogram(*lengths_tally)),
        frequency=_frequency(counts, spelling),
        duplicates=find_duplicates(dataset, lengths, hashes, spelling),
        eods=None
        if eod is None
        else Eods(eod, scan.inner_eods, tuple(scan.inner), scan.without_eod),
        unknown=_occurrences(counts, unknown),
        outside=scan.outside + beyond,
        sources=tuple(shares(dataset)),
        trained=manifest.trained if manifest else None,
        trained_texts=tuple(_trained_texts(dataset, spelling)) if spelling else (),
        roles=tuple(
            (role, counts["tokens"], counts["trained"])
            for role, counts in (manifest.roles.items() if manifest else ())
        ),
        truncated=manifest.truncated if manifest else 0,
    )


def _trained_texts(dataset: MMapIndexedDataset, spelling: Spelling) -> Iterator[tuple[int, str]]:
    """What is trained of the first documents, by their numbers; nothing without a mask."""
    mask = dataset.mask
    if mask is None:
        return
    for number in range(min(_DOCUMENTS_SHOWN, dataset.documents)):
        first, end = dataset.doc_idx[number : number + 2].tolist()
        parts = []
        for i in range(first, end):
            ids, marks = dataset[i], mask[i].astype(np.int8)
            cuts = np.flatnonzero(np.diff(marks, prepend=0, append=0)).tolist()
            for begin, stop in zip(cuts[::2], cuts[1::2], strict=True):
                text = spelling.text(ids[begin : min(stop, begin + _TOKENS_SHOWN)])
                parts.append(shown(text) + ("" if stop <= begin + _TOKENS_SHOWN else _MORE))
        yield number, f" {_MORE} ".join(parts)


def hash_documents(
    dataset: MMapIndexedDataset, across: DuplicateFinder, *, progress: Show | bool | None = None
) -> None:
    """Read a whole dataset for a comparison with others. FormatError where it is broken."""
    dataset.validate()
    ends = document_ends(dataset.sizes, dataset.doc_idx)
    _, hashes = count_tokens(dataset, ends, vocab_size=None, eod=None, progress=progress)
    across.add(np.diff(ends), hashes)


def _occurrences(counts: npt.NDArray[np.int64], token: object) -> int | None:
    if not isinstance(token, int):
        return None
    return int(counts[token]) if 0 <= token < len(counts) else 0


def _bytes_per_token(
    dataset: MMapIndexedDataset,
    spelling: Spelling | None,
    counts: npt.NDArray[np.int64],
    eod: int | None,
) -> float | None:
    """From the manifest, else from a vocabulary in which each token has bytes of its own."""
    ratio = bytes_per_token(dataset)
    if ratio is not None or spelling is None or spelling.table is None:
        return ratio
    in_vocabulary = counts[: len(spelling.table)].copy()
    sizes = np.array([len(word) for word in spelling.table[: len(in_vocabulary)]], np.int64)
    total = int(in_vocabulary.sum())
    if eod is not None and eod < len(in_vocabulary):
        in_vocabulary[eod] = 0
    return float(in_vocabulary @ sizes) / total if total else None


def _frequency(counts: npt.NDArray[np.int64], spelling: Spelling | None) -> Frequency:
    order = np.argsort(-counts, kind="stable")
    ranked = counts[order]
    used = int(np.count_nonzero(ranked))
    ranked = ranked[:used]
    total = int(ranked.sum())
    if not total:
        return Frequency(0, (), (), {}, 0.0)
    shares = ranked / total
    running = np.cumsum(ranked)
    ranks = np.unique(np.round(np.geomspace(1, used, _POINTS)).astype(np.int64))
    coverage = {
        share: int(np.searchsorted(running, -(-total * share // 100))) + 1 for share in (50, 90, 99)
    }
    top = tuple(
        Token(int(i), int(counts[i]), shown(spelling.alone(int(i))) if spelling else "")
        for i in order[: min(TOP, used)]
    )
    zipf = tuple((int(rank), int(ranked[rank - 1])) for rank in ranks)
    return Frequency(used, top, zipf, coverage, float(-(shares * np.log2(shares)).sum()))

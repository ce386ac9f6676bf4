"""Samples of one dataset for training a language model, by number."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from operator import index as as_integer
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.dataset import MMapIndexedDataset, trained_ends
from tokpack.display import drawn
from tokpack.errors import InputError, Remark, UsageError, option
from tokpack.option import options_of, show_options
from tokpack.samples.batch import Assembler, Batch, SampleDataset, first_places
from tokpack.samples.cache import identify
from tokpack.samples.fim import FillInTheMiddle
from tokpack.samples.gather import Gatherer
from tokpack.samples.orders import make_order
from tokpack.samples.settings import Settings
from tokpack.samples.tracks import LossTracks

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator
    from typing import Unpack

    from tokpack.keywords import SampleOptions
    from tokpack.samples.batch import Sample
    from tokpack.samples.cache import CacheEntry
    from tokpack.samples.orders import Numbers, PackingStats, Rows
    from tokpack.samples.settings import Range

_log = logging.getLogger(__name__)


class GPTDataset(SampleDataset):
    """Samples of ``seq_length`` tokens: the sequences of a dataset, shuffled, joined and cut.

    ``ds[k]`` is a dict of new arrays, S = ``seq_length``:

        tokens        int64 [S]
        labels        int64 [S]    tokens moved by one; it shares the memory of tokens
        loss_mask     float32 [S]  1 where the label counts
        position_ids  int64 [S]

    and with ``document_boundaries``, for attention inside documents, taken from the index:

        cu_seqlens    int32 [S + 1]  where documents begin in the sample, then S to the end
        max_seqlen    int32 []       tokens of the longest

    also with ``reset_attention_mask``, taken from EOD; attention_mask makes a dense mask of them.

    With ``packing`` the pieces of a sample are separate documents, as with ``document_boundaries``.

    It is a map-style dataset for torch's DataLoader, but does not need torch. Its pickle contains
    settings and path, no data.

    ``dataset`` is an MMapIndexedDataset or its prefix. Its tracks, if it has any, decide which
    labels count, see LossTracks: a mask and weights multiply ``loss_mask``, labels take the place
    of the tokens, and do not count below 0. ``labels`` is another dataset with a label for every
    token, in place of a track. ``num_samples`` is Megatron's name of ``samples``.

    The stateless order has no end: sample k depends on the data, the split, ``seq_length``,
    ``add_extra_token`` and ``seed``, and on nothing else; the length is that of ``epochs`` (1), or
    ``samples``, and changing it moves no sample. In an epoch each token occurs at most once.

    The order "stateless-blocks" has the same properties, and takes consecutive samples from the
    same 256 megabytes, for data on a store or a slow disk; see BlockOrder.

    The other orders are those of programs of the Megatron family, bit for bit, see MegatronOrder:
    their samples do depend on ``samples``, and there may be more of them.

    ``tokens`` are those of the chosen part of ``dataset``; ``samples_per_epoch`` is the number of
    samples before a token occurs again; ``limit`` is the largest number of samples, None in the
    stateless orders, which have no end. ``packing_stats`` is the result of packing documents,
    ``cached`` the file that the order's arrays are mapped from; both may be None.

    UsageError for a request that cannot be met, InputError for a dataset that is missing or has
    no tokens.
    """

    def __init__(
        self,
        dataset: MMapIndexedDataset | str | os.PathLike[str],
        seq_length: int,
        *,
        num_samples: int | None = None,
        labels: MMapIndexedDataset | str | os.PathLike[str] | None = None,
        **options: Unpack[SampleOptions],
    ) -> None:
        if num_samples is not None:
            if options.get("samples") is not None:
                raise UsageError("num_samples is another name of samples: give one of them")
            options["samples"] = num_samples
        settings = self._settings = Settings(seq_length=seq_length, **options)
        if not isinstance(dataset, MMapIndexedDataset):
            dataset = MMapIndexedDataset(dataset)
        self.dataset = dataset
        self.path_prefix: str = dataset.path_prefix
        tracks = self._tracks = LossTracks(dataset, labels, every_token=settings.loss == "all")
        self.has_labels = tracks.labels is not None
        self._check_tracks()
        self.seq_length = seq_length = settings.seq_length
        self.order = settings.order
        self.on_store = dataset.on_store or tracks.on_store
        eod = self._eod() if settings.needs_eod else None
        self._range = self._part()
        self._data = dataset.fingerprint
        try:
            order = self._order = make_order(settings, dataset, self._range, tracks.labels)
        except UsageError as error:
            raise UsageError(f"{self.path_prefix}: {error.args[0]}") from None
        self.tokens = order.tokens
        self.packing_stats: PackingStats | None = getattr(order, "stats", None)
        self.cached: CacheEntry | None = getattr(order, "cached", None)
        self.samples_per_epoch = max(self.tokens - settings.extra, 0) // seq_length
        if self.packing_stats is not None:
            self.samples_per_epoch = order.samples
            if settings.packing_rules.group > 1 and self.packing_stats.cut:
                self.packing_stats = self._untrained(self.packing_stats)
        self.group = settings.packing_rules.group
        self._fim: FillInTheMiddle | None = None
        if settings.fim is not None and eod is not None:
            key = (settings.seed, self._data, *self._range)
            self._fim = FillInTheMiddle(settings.fim, eod, seq_length + settings.extra, key)
        blocks = getattr(order, "blocks", None)
        self.multiple = settings.pad_to_multiple_of
        self._gatherer = Gatherer(dataset, blocks, multiple=self.multiple)
        tracks.open(blocks, self.multiple)
        self._assembler = Assembler(settings, eod, joined=order.joined)
        self._size = order.samples
        if settings.rules.endless:
            self._size = settings.samples or order.samples * (settings.epochs or 1)
        self.limit = None if settings.rules.endless else self._size

    @property
    def is_masked(self) -> bool:
        """Whether a mask, weights or labels beside the tokens decide which labels count."""
        return bool(self._tracks)

    def locate(self, number: int) -> Rows:
        """The places of the tokens of sample ``number``: int64 [k, 3], sequence, first token,
        tokens.

        The last row ends with the token that is the last label; ``fim`` rearranges tokens after
        this.
        """
        return self._order.locate_many([number])[0]

    def parts(self, number: int) -> tuple[Sample, Rows]:
        """Sample ``number``, and the rows that its tokens come from, as ``locate`` returns them.

        With ``fim`` the number of tokens of each row is that after rearranging.
        """
        batch = self.empty(1)
        rows = self.fill(batch, [number])
        return batch.at(0), rows

    def find(self, sequences: range, samples: int) -> Iterator[int]:
        """The numbers of the samples below ``samples`` with tokens of ``sequences``, in order.

        The stateless orders compute them by their inverse, in a pass over the lengths for each
        epoch; with packing, and in orders of other programs, every sample is located.
        """
        return self._order.find(sequences, samples)

    def empty(self, samples: int, *, labels: bool = False) -> Batch:
        """The arrays of a batch whose values are not set yet; with ``labels`` also for labels."""
        return self._assembler.empty(samples, labels=labels or self.has_labels)

    def fill(self, batch: Batch, numbers: Numbers, places: Numbers | None = None) -> Rows:
        """Write samples ``numbers`` to ``places`` of a batch, by default one after the other.

        Returns the rows that their tokens come from, see ``parts``.
        """
        where = first_places(len(numbers)) if places is None else np.asarray(places, np.int64)
        rows, counts = self._order.locate_many(numbers)
        self._gatherer.fill(batch.text, rows, counts, where)
        if self._fim is not None:
            rows = self._fim.fill(batch.text, rows, counts, where, numbers)
        self._assembler.fill(batch, rows, counts, where)
        if self._tracks or batch.label_text is not None:
            values = self._assembler.text(len(where))
            self._tracks.fill(batch, rows, counts, where, values)
        return rows

    def ask(self, numbers: Numbers) -> None:
        """Request the tokens of samples from the store, before ``fill`` needs them."""
        if self.on_store:
            rows, _ = self._order.locate_many(numbers)
            self._gatherer.ask(rows)
            self._tracks.ask(rows)

    @property
    def tokenizer(self) -> dict[str, Any] | None:
        """The entry of the tokenizer in the manifest, or None if there is no manifest."""
        return self.dataset.tokenizer

    @property
    def fingerprint(self) -> str:
        """The identity of everything that determines samples: a version, 32 hex digits."""
        names = ["order", "seed", "seq_length", "extra", "packing"]
        if self.limit is not None:
            names += ["epochs", "samples", "drop_last"]
        deciding = {name: getattr(self._settings, name) for name in names}
        # Options that are off are left out, so that a new option of tokpack changes no fingerprint.
        if self._settings.fim is not None:
            deciding["fim"] = self._settings.fim.identity
        if self._settings.pad_id is not None:
            deciding["pad_id"] = self._settings.pad_id
        if self.multiple > 1:
            deciding["multiple"] = self.multiple
        deciding |= self._tracks.identity
        return identify({"data": self._data, "sequences": self._range, **deciding})

    def __reduce__(self) -> tuple[Callable[..., GPTDataset], tuple[MMapIndexedDataset]]:
        settings = dict(vars(self._settings))
        if self._tracks.label_dataset is not None:
            settings["labels"] = self._tracks.label_dataset
        return partial(type(self), **settings), (self.dataset,)

    def __repr__(self) -> str:
        return f"GPTDataset({self.path_prefix!r}, {self._size} samples of {self.seq_length})"

    _repr_html_ = drawn

    def _check_tracks(self) -> None:
        """Raise UsageError for options that require the tokens as labels."""
        tracks, settings = self._tracks, self._settings
        for name in ("fim", "pad_id"):
            if tracks.label_dataset is not None and getattr(settings, name) is not None:
                raise UsageError(
                    f"{name} is for labels that are the tokens themselves: give {name} or labels"
                )
        if settings.fim is not None and tracks.names:
            raise UsageError(
                f"{self.path_prefix}: fim moves tokens, and their {' and '.join(tracks.names)} "
                f"would not move with them: leave it out, or give {option('loss', 'all')}"
            )
        if settings.pad_id is not None and self.has_labels:
            raise UsageError(
                f"{self.path_prefix} has labels, and {option('pad_id')} is for labels that are the "
                f"tokens themselves: leave it out, or give {option('loss', 'all')}"
            )

    def _untrained(self, stats: PackingStats) -> PackingStats:
        """Count the answers without a trained token after they were cut."""
        begin, end = self._range
        lengths = self.dataset.sizes[begin:end]
        ends = self.dataset.tokens_in(0, begin) + np.cumsum(lengths, dtype=np.int64)
        capacity = self.seq_length + self._settings.extra
        first = (ends - lengths)[lengths > capacity]
        # The first token of a sample is not a label.
        places = np.stack([first + 1, first + capacity], axis=1).ravel()
        names = [name for name in self._tracks.names if name != "weights"]
        trained = trained_ends(self.dataset.shards(), names, places) if names else places
        count = int(np.count_nonzero(np.diff(trained)[::2] == 0))
        if count:
            _log.warning(
                Remark(
                    f"{self.path_prefix}: {count} of {stats.samples} answers have no trained token "
                    f"within {option('seq_length', self.seq_length)}, so their samples have no "
                    "loss: make samples longer, or leave such pairs out with `tokpack encode "
                    "--max-length`"
                )
            )
        return replace(stats, untrained=count)

    def _eod(self) -> int:
        eod = self._settings.eod_id
        if eod is None:
            eod = (self.tokenizer or {}).get("eod_id")
        if eod is None:
            raise UsageError(
                f"{self.path_prefix}: {option('eod_mask_loss')}, {option('reset_position_ids')}, "
                f"{option('reset_attention_mask')} and fim need {option('eod_id')}: its manifest "
                "names none, or it has no manifest"
            )
        return int(eod)

    def _part(self) -> Range:
        """The sequences of the part of the split."""
        number, count = self._settings.split_index, len(self.dataset)
        text, dataset = self._settings.split, self.dataset
        if not dataset.tokens_in(0, count):
            raise InputError(f"{self.path_prefix}: no tokens in {count} sequences: nothing to read")
        if text is None:
            begin, end = map(as_integer, self._settings.sequences or (0, count))
            if not 0 <= begin < end <= count:
                raise UsageError(
                    f"{self.path_prefix}: sequences {begin} to {end} of {count}: expected at least "
                    "one"
                )
            return begin, end
        parts = self._settings.ranges(dataset)
        if not 0 <= number < len(parts):
            raise UsageError(f"split_index is {number}, expected 0 to {len(parts) - 1} in {text!r}")
        part = parts[number]
        if part is None:
            raise UsageError(
                f"{self.path_prefix}: split {text!r} leaves nothing for part {number} of "
                f"{count} sequences: give it more, or leave it out"
            )
        return part


_OPTIONS = [one for name, one in options_of(Settings).items() if name != "seq_length"]
show_options(GPTDataset.__init__, _OPTIONS, of=GPTDataset)

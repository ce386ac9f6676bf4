"""Samples of one dataset for training a language model, by their number."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from inspect import getdoc
from operator import index as as_integer
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.errors import InputError, UsageError, option
from tokpack.indexed import MMapIndexedDataset
from tokpack.samples.batch import Assembler, Batch, first_places
from tokpack.samples.fim import FillInTheMiddle
from tokpack.samples.gather import Gatherer
from tokpack.samples.identity import identify
from tokpack.samples.labels import Labels
from tokpack.samples.map_style import MapStyle
from tokpack.samples.orders.blocks import BlockOrder
from tokpack.samples.orders.by_name import make_order
from tokpack.samples.orders.packing import PackedOrder, PackingStats
from tokpack.samples.settings import Settings
from tokpack.signatures import show_options

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator
    from typing import Unpack

    import numpy.typing as npt

    from tokpack.samples.batch import Sample
    from tokpack.samples.cache import CacheEntry
    from tokpack.samples.orders.rows import Numbers, Rows
    from tokpack.samples.orders.rules import OrderName
    from tokpack.samples.request import SampleOptions
    from tokpack.samples.split_string import Range


class GPTDataset(MapStyle):
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

    It is a map-style dataset, as torch's DataLoader takes it, and needs no torch. A pickle of it
    holds the settings and the path, no data.

    ``dataset`` is an MMapIndexedDataset or its prefix, ``labels`` another with a label for every
    token, see Labels. ``num_samples`` is Megatron's name of ``samples``.

    The stateless order has no end: sample k depends on the data, the split, ``seq_length``,
    ``add_extra_token`` and ``seed``, and on nothing else; the length is that of ``epochs`` (1), or
    ``samples``, and changing it moves no sample. In every epoch each token comes at most once.

    The order "stateless-blocks" has the same properties, and takes samples that follow each other
    from the same 256 megabytes, for data on a store or a slow disk; see BlockOrder.

    The other orders are those of programs of the Megatron family, bit by bit, see MegatronOrder:
    their samples do depend on ``samples``, and there may be more of them.

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
        self._settings = Settings(seq_length=seq_length, **options)
        if self._settings.fim is not None and labels is not None:
            raise UsageError("fim moves tokens away from their labels: give fim or labels")
        if self._settings.pad_id is not None and labels is not None:
            raise UsageError("pad_id is for labels that are tokens: give pad_id or labels")
        if not isinstance(dataset, MMapIndexedDataset):
            dataset = MMapIndexedDataset(dataset)
        self._dataset = dataset
        self._labels = None if labels is None else Labels(labels, dataset)
        eod = self._eod() if self._settings.needs_eod else None
        self._range = self._part()
        self._data = dataset.fingerprint
        of_labels = None if self._labels is None else self._labels.dataset
        try:
            self._order = make_order(self._settings, dataset, self._range, of_labels)
        except UsageError as error:
            raise UsageError(f"{self.path_prefix}: {error.args[0]}") from None
        self._fim = self._new_fim(eod)
        blocks = self._order.blocks if isinstance(self._order, BlockOrder) else None
        self._gatherer = Gatherer(dataset, blocks)
        self._assembler = Assembler(self._settings, eod, joined=self._order.joined)
        self._size = self._count()

    def locate(self, number: int) -> Rows:
        """Where the tokens of sample ``number`` lie: int64 [k, 3], sequence, first token, tokens.

        The last row ends with the token that is the last label; ``fim`` moves tokens after this.
        """
        return self._order.locate_many([number])[0]

    def parts(self, number: int) -> tuple[Sample, Rows]:
        """Sample ``number``, and the rows that its tokens come from, as ``locate`` gives them.

        With ``fim`` the number of tokens of each row is the one after it was rearranged.
        """
        batch = self.empty(1)
        rows = self._fill(batch, [number], first_places(1))
        return batch.sample(0), rows

    def find(self, sequences: range, samples: int) -> Iterator[int]:
        """Which of the first ``samples`` have tokens of any of ``sequences``, in order.

        The stateless orders compute them by their inverse, in a pass over the lengths for each
        epoch; with packing and in the orders of other programs every sample is located.
        """
        return self._order.find(sequences, samples)

    def empty(self, samples: int) -> Batch:
        """Arrays of a batch whose values are not set yet."""
        return self._assembler.empty(samples, labels=self._labels is not None)

    def fill(self, batch: Batch, numbers: Numbers, places: Numbers | None = None) -> None:
        """Write samples ``numbers`` to ``places`` of a batch, by default one after the other."""
        where = first_places(len(numbers)) if places is None else np.asarray(places, np.int64)
        self._fill(batch, numbers, where)

    def ask(self, numbers: Numbers) -> None:
        """Have the tokens of samples read from the store that ``fill`` will want."""
        if self.on_store:
            rows, _ = self._order.locate_many(numbers)
            self._gatherer.ask(rows)
            if self._labels is not None:
                self._labels.ask(rows)

    def _fill(self, batch: Batch, numbers: Numbers, where: npt.NDArray[np.int64]) -> Rows:
        """Write samples, and say where their tokens come from."""
        rows, counts = self._order.locate_many(numbers)
        self._gatherer.fill(batch.text, rows, counts, where)
        if self._fim is not None:
            rows = self._fim.fill(batch.text, rows, counts, where, numbers)
        self._assembler.fill(batch, rows, counts, where)
        if self._labels is not None:
            self._labels.fill(batch, rows, counts, where)
        return rows

    @property
    def dataset(self) -> MMapIndexedDataset:
        """The dataset whose tokens these are."""
        return self._dataset

    @property
    def on_store(self) -> bool:
        """Whether tokens, or their labels, lie on a store."""
        labels = self._labels is not None and self._labels.dataset.on_store
        return self._dataset.on_store or labels

    @property
    def path_prefix(self) -> str:
        """The name of the dataset."""
        return self._dataset.path_prefix

    @property
    def seq_length(self) -> int:
        """Tokens in each sample."""
        return self._settings.seq_length

    @property
    def samples_per_epoch(self) -> int:
        """How many samples there are until a token comes a second time."""
        if isinstance(self._order, PackedOrder):
            return self._order.samples
        return max(self.tokens - self._settings.extra, 0) // self._settings.seq_length

    @property
    def order(self) -> OrderName:
        """The name of the order."""
        return self._settings.order

    @property
    def tokens(self) -> int:
        """Tokens in the chosen part of the dataset."""
        return self._order.tokens

    @property
    def limit(self) -> int | None:
        """How many samples there are at most; None in the stateless orders, which have no end."""
        return None if self._settings.rules.endless else self._size

    @property
    def fingerprint(self) -> str:
        """Identifies all that decides the tokens of sample k: a version, 32 hexadecimal digits."""
        names = ["order", "seed", "seq_length", "extra", "packing"]
        if self.limit is not None:
            names += ["epochs", "samples", "drop_last"]
        deciding = {name: getattr(self._settings, name) for name in names}
        # What is off is left out: samples keep their fingerprint when an option is added.
        if self._settings.fim is not None:
            deciding["fim"] = self._settings.fim.identity
        if self._settings.pad_id is not None:
            deciding["pad_id"] = self._settings.pad_id
        if self._labels is not None:
            deciding["labels"] = self._labels.dataset.fingerprint
        return identify({"data": self._data, "sequences": self._range, **deciding})

    @property
    def packing_stats(self) -> PackingStats | None:
        """What best-fit packing, or one document a sample, made of the data; None without."""
        return self._order.stats if isinstance(self._order, PackedOrder) else None

    @property
    def cached(self) -> CacheEntry | None:
        """Where the order's arrays are mapped from; None without a cache, or without arrays."""
        return getattr(self._order, "cached", None)

    @property
    def tokenizer(self) -> dict[str, Any] | None:
        """What the manifest says of the tokenizer; None where there is no manifest."""
        return self._dataset.tokenizer

    def __reduce__(self) -> tuple[Callable[..., GPTDataset], tuple[MMapIndexedDataset]]:
        settings = dict(vars(self._settings))
        if self._labels is not None:
            settings["labels"] = self._labels.dataset
        return partial(type(self), **settings), (self._dataset,)

    def __repr__(self) -> str:
        return f"GPTDataset({self.path_prefix!r}, {self._size} samples of {self.seq_length})"

    def _new_fim(self, eod: int | None) -> FillInTheMiddle | None:
        fim, settings = self._settings.fim, self._settings
        if fim is None or eod is None:
            return None
        key = (settings.seed, self._data, *self._range)
        return FillInTheMiddle(fim, eod, settings.seq_length + settings.extra, key)

    def _eod(self) -> int:
        given = self._settings.eod_id
        known = given if given is not None else (self._dataset.tokenizer or {}).get("eod_id")
        if known is None:
            raise UsageError(
                f"{self.path_prefix}: {option('eod_mask_loss')}, {option('reset_position_ids')}, "
                f"{option('reset_attention_mask')} and fim need {option('eod_id')}: its manifest "
                "names none, or it has no manifest"
            )
        return int(known)

    def _part(self) -> Range:
        """The sequences that the split leaves."""
        number, count = self._settings.split_index, len(self._dataset)
        text, dataset = self._settings.split, self._dataset
        if not dataset.tokens_in(0, count):
            raise InputError(f"{self.path_prefix}: no tokens in {count} sequences: nothing to read")
        if text is None:
            begin, end = map(as_integer, self._settings.sequences or (0, count))
            if not 0 <= begin < end <= count:
                raise UsageError(
                    f"{self.path_prefix}: sequences {begin} to {end} of {count}: there are none"
                )
            return begin, end
        parts = self._settings.ranges(dataset)
        if not 0 <= number < len(parts):
            raise UsageError(f"split_index is {number}, expected 0 to {len(parts) - 1} in {text!r}")
        found = parts[number]
        if found is None:
            raise UsageError(
                f"{self.path_prefix}: split {text!r} leaves nothing for part {number} of "
                f"{count} sequences: give it more, or leave it out"
            )
        return found

    def _count(self) -> int:
        if not self._settings.rules.endless:
            return self._order.samples
        wanted = self._settings.samples
        if wanted is not None:
            return wanted
        return self._order.samples * (self._settings.epochs or 1)


_OPTIONS = [one for one in fields(Settings) if one.name != "seq_length"]
show_options(GPTDataset.__init__, _OPTIONS)
GPTDataset.__doc__ = f"{getdoc(GPTDataset)}\n\nOptions:\n\n" + "".join(
    f"- ``{one.name}``: {one.metadata['help']}\n" for one in _OPTIONS
)

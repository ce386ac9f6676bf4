"""From a request to a plan: inputs found, tokenizer loaded, parts cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tokpack.encoding.options import worker_count
from tokpack.encoding.plan import TokenizerSetup, cut, make_plan
from tokpack.encoding.transforms import make_transform
from tokpack.indexed import best_fitting_dtype
from tokpack.sources import discover
from tokpack.tokenizers import frame_of, load_tokenizer

if TYPE_CHECKING:
    from tokpack.encoding.options import EncodeOptions
    from tokpack.encoding.plan import Plan
    from tokpack.sources import Source


class PlannedRun(NamedTuple):
    """A plan, and what it was made with; ``workers`` is how many processes are to follow it."""

    plan: Plan
    means: TokenizerSetup
    workers: int


def plan_run(options: EncodeOptions, source: Source | None = None) -> PlannedRun:
    """The plan that ``encode`` would follow. Raises as that does before it begins any work.

    ``source`` is an object of this process, where one takes the place of the inputs.
    """
    sources = [source] if source else _discover(options)
    means = load_means(options)
    # The first N records are the same for any number of workers when one takes them in turn.
    workers = worker_count(options) if options.limit is None else 1
    return PlannedRun(make_plan(options, sources, cut(sources, workers), means), means, workers)


def _discover(options: EncodeOptions) -> list[Source]:
    return discover(options.inputs, input_format=options.input_format, hf_split=options.hf_split)


def load_means(options: EncodeOptions) -> TokenizerSetup:
    """The tokenizer that is asked for, with what frames a document. TokenizerError, InputError."""
    make_transform(options)  # what is missing for it is said before anything is begun
    tokenizer = load_tokenizer(**options.for_tokenizer)
    frame = frame_of(tokenizer, **options.for_frame)
    dtype: str = options.dtype
    if dtype == "auto":
        dtype = best_fitting_dtype(tokenizer.vocab_size).name
    return TokenizerSetup(tokenizer, frame, dtype)

"""Which files a run of encode may replace."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tokpack.errors import FormatError, InputError
from tokpack.files.outputs import Kind
from tokpack.indexed import Manifest
from tokpack.indexed.outputs import dataset_outputs
from tokpack.stores import is_url
from tokpack.stores.outputs import look
from tokpack.stores.storage import head

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.encoding.options import EncodeOptions
    from tokpack.encoding.plan import Plan
    from tokpack.sources import Source
    from tokpack.stores.storage import Version

_REJECT = re.compile(rb'\{"source": "(?:[^"\\]|\\.)*", "line": \d+, "reason": "')
_HEAD_BYTES = 1 << 16


def rejects_path(options: EncodeOptions) -> str:
    """Where the bad records of a run go."""
    return options.output + ".rejects.jsonl"


def is_rejects(path: str) -> bool:
    """Whether a file begins like a list of bad records."""
    return _REJECT.match(head(path, _HEAD_BYTES)) is not None


REJECTS = Kind("a list of bad records", is_rejects, kept=False, beside=True)


def check_replaced(
    options: EncodeOptions, sources: Sequence[Source], plan: Plan | None = None
) -> dict[str, Version]:
    """Refuse to replace what the run reads, or what it was not told to. UsageError, OutputError.

    Gives the versions that may be replaced. With the ``plan`` the message says what makes a
    finished dataset another one.
    """
    inputs = list(_inputs(options, sources))
    versions: dict[str, Version] = {}
    for prefix in options.output_names.values():
        outputs = dataset_outputs(prefix, trace=options.trace)[:: -1 if is_url(prefix) else 1]
        difference = _found(plan, prefix) if plan and not options.overwrite else ""
        versions |= look(outputs, inputs, overwrite=options.overwrite, detail=difference)
    if options.on_error == "skip" or is_rejects(rejects_path(options)):
        rejects = [(rejects_path(options), REJECTS)]
        versions |= look(rejects, inputs, overwrite=options.overwrite)
    return versions


def output_kinds(options: EncodeOptions) -> dict[str, Kind]:
    """What each output of a run is."""
    kinds = {rejects_path(options): REJECTS}
    for prefix in options.output_names.values():
        kinds |= dataset_outputs(prefix, trace=options.trace)
    return kinds


def _found(plan: Plan, prefix: str) -> str:
    """What makes the dataset that has the name another one, for the message; "" where unknown."""
    try:
        difference = plan.difference_of(Manifest.load(prefix))
    except (InputError, FormatError):
        return ""
    return f" and is another dataset ({difference})" if difference else ""


def _inputs(options: EncodeOptions, sources: Sequence[Source]) -> Iterator[str]:
    yield from (source.path for source in sources if source.memory is None)
    yield from (text[1:] for text in options.inputs if text.startswith("@"))  # lists of inputs
    yield from options.tokenizer_files

"""Which files a run of encode may replace."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tokpack.errors import FormatError, InputError
from tokpack.files.durable import open_regular
from tokpack.files.outputs import Kind, check_outputs
from tokpack.indexed import Manifest
from tokpack.indexed.outputs import dataset_outputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.encoding.options import EncodeOptions
    from tokpack.encoding.plan import Plan
    from tokpack.sources import Source

_REJECT = re.compile(rb'\{"source": "(?:[^"\\]|\\.)*", "line": \d+, "reason": "')
_HEAD_BYTES = 1 << 16


def rejects_path(options: EncodeOptions) -> str:
    """Where the bad records of a run go."""
    return options.output + ".rejects.jsonl"


def is_rejects(path: str) -> bool:
    """Whether a file begins like a list of bad records."""
    try:
        with open_regular(path) as file:
            return _REJECT.match(file.read(_HEAD_BYTES)) is not None
    except OSError:
        return False


REJECTS = Kind("a list of bad records", is_rejects, kept=False, beside=True)


def check_replaced(
    options: EncodeOptions, sources: Sequence[Source], plan: Plan | None = None
) -> None:
    """Refuse to replace what the run reads, or what it was not told to. UsageError, OutputError.

    With the ``plan`` the message says what makes a finished dataset another one.
    """
    inputs = list(_inputs(options, sources))
    for prefix in options.output_names.values():
        outputs = dataset_outputs(prefix, trace=options.trace)
        found = _found(plan, prefix) if plan and not options.overwrite else ""
        check_outputs(outputs, inputs, overwrite=options.overwrite, found=found)
    if options.on_error == "skip" or is_rejects(rejects_path(options)):
        rejects = [(rejects_path(options), REJECTS)]
        check_outputs(rejects, inputs, overwrite=options.overwrite)


def _found(plan: Plan, prefix: str) -> str:
    """What makes the dataset that has the name another one, for the message; "" where unknown."""
    try:
        difference = plan.difference_of(Manifest.load(prefix))
    except (InputError, FormatError):
        return ""
    return f" and is another dataset ({difference})" if difference else ""


def _inputs(options: EncodeOptions, sources: Sequence[Source]) -> Iterator[str]:
    yield from (source.path for source in sources)
    yield from (text[1:] for text in options.inputs if text.startswith("@"))  # lists of inputs
    yield from options.tokenizer_files

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
    from tokpack.files.outputs import Output
    from tokpack.sources import Source
    from tokpack.stores.storage import Version

_REJECT = re.compile(rb'\{"source": "(?:[^"\\]|\\.)*", "line": \d+, "reason": "')
_HEAD_BYTES = 1 << 16
_PIECE = re.compile(r"-\d{5,}-of-\d{5,}")


def piece_names(prefix: str, files: int) -> list[str]:
    """The prefixes of the .bin files of a dataset that has so many: its own, if it has one."""
    if files == 1:
        return [prefix]
    return [f"{prefix}-{number:05d}-of-{files:05d}" for number in range(files)]


def is_piece_name(name: str, whole: str) -> bool:
    """Whether ``piece_names`` gives a name for one of several files of ``whole``."""
    return name.startswith(whole) and bool(_PIECE.fullmatch(name[len(whole) :]))


def rejects_path(options: EncodeOptions) -> str:
    """Where the bad records of a run go."""
    return options.output + ".rejects.jsonl"


def is_rejects(path: str) -> bool:
    """Whether a file begins like a list of bad records."""
    return _REJECT.match(head(path, _HEAD_BYTES)) is not None


REJECTS = Kind("a list of bad records", is_rejects, kept=False, beside=True)


def check_replaced(
    options: EncodeOptions, plan: Plan, *, files: int = 0, tells: bool = True
) -> dict[str, Version]:
    """Refuse to replace what the run reads, or what it was not told to. UsageError, OutputError.

    Gives the versions that may be replaced, or are to be removed: the files of a dataset that had
    another number of them. ``files`` is how many .bin files there will be, where not as many as in
    the plan. The message ``tells`` what makes a finished dataset another one than the plan's.
    """
    inputs = list(_inputs(options, plan.sources))
    versions: dict[str, Version] = {}
    for prefix in options.output_names.values():
        outputs = _outputs(options, prefix, files or len(plan.files))
        outputs = outputs[:: -1 if is_url(prefix) else 1]
        difference = _found(plan, prefix) if tells and not options.overwrite else ""
        versions |= look(outputs, inputs, overwrite=options.overwrite, detail=difference)
    if options.on_error == "skip" or is_rejects(rejects_path(options)):
        rejects = [(rejects_path(options), REJECTS)]
        versions |= look(rejects, inputs, overwrite=options.overwrite)
    return versions


def output_kinds(options: EncodeOptions, files: int) -> dict[str, Kind]:
    """What each output of a run is."""
    kinds = {rejects_path(options): REJECTS}
    for prefix in options.output_names.values():
        kinds |= _outputs(options, prefix, files)
    return kinds


def _outputs(options: EncodeOptions, prefix: str, files: int) -> list[Output]:
    """All files of a dataset that is made, and of several files those of one that goes."""
    pieces = piece_names(prefix, files) if files > 1 else []
    if options.overwrite:
        pieces += [name for name in _pieces_there(prefix) if name not in pieces]
    names = [prefix, *pieces]
    return [
        output
        for name in names
        for output in dataset_outputs(name, tracks=options.token_tracks, table=options.has_table)
    ]


def _pieces_there(prefix: str) -> list[str]:
    """The files of a dataset that a run has left in several."""
    try:
        manifest = Manifest.load(prefix)
    except (InputError, FormatError):
        return []
    records = manifest.pieces or () if manifest.selection is None else ()  # a view's are others'
    whole = prefix.rpartition("/")[2]
    names = [record.prefix for record in records if is_piece_name(record.prefix, whole)]
    return [prefix[: len(prefix) - len(whole)] + name for name in names]


def _found(plan: Plan, prefix: str) -> str:
    """What makes the dataset that has the name another one, for the message; "" where unknown."""
    try:
        manifest = Manifest.load(prefix)
        difference = plan.manifest_difference(manifest) or plan.other_files(
            len(manifest.pieces or "1")
        )
    except (InputError, FormatError):
        return ""
    return f" and is another dataset ({difference})" if difference else ""


def _inputs(options: EncodeOptions, sources: Sequence[Source]) -> Iterator[str]:
    yield from (source.path for source in sources if source.memory is None)
    yield from (text[1:] for text in options.inputs if text.startswith("@"))  # lists of inputs
    yield from options.tokenizer_files

"""A dataset as what a run reads and what it writes."""

from __future__ import annotations

from tokpack.errors import FormatError, InputError
from tokpack.files.outputs import DATA, Kind, Output
from tokpack.indexed.format import bin_path, idx_path
from tokpack.indexed.manifest import MANIFEST, Manifest, manifest_path
from tokpack.indexed.shards import is_virtual, piece_prefix
from tokpack.indexed.trace import is_trace, trace_path

TRACE = Kind("a trace", is_trace, beside=True)


def dataset_outputs(prefix: str, *, trace: bool = False) -> list[Output]:
    """The files that a new dataset ``prefix`` replaces; with ``trace`` it has one itself.

    A trace that is there goes even when the new dataset has none; a file of that name which is no
    trace stays then.
    """
    path = trace_path(prefix)
    traces = [(path, TRACE)] if trace or is_trace(path) else []
    data = [(bin_path(prefix), DATA), (idx_path(prefix), DATA)]
    return [*traces, *data, (manifest_path(prefix), MANIFEST)]


def dataset_files(prefix: str) -> list[str]:
    """The files that reading the dataset ``prefix`` may read: also its pieces', its tokenizer's.

    Raises FormatError for a virtual dataset that is broken.
    """
    prefixes = [prefix]
    if is_virtual(prefix):
        pieces = Manifest.load(prefix).pieces or ()
        prefixes += [piece_prefix(prefix, piece) for piece in pieces]
    names = (bin_path, idx_path, manifest_path, trace_path)
    own = [str(name(one)) for one in prefixes for name in names]
    return [*own, *(file for one in prefixes for file in _tokenizer_files(one))]


def _tokenizer_files(prefix: str) -> list[str]:
    """What the manifest names as its tokenizer: a file, GPT-2's two, or a folder."""
    try:
        name = Manifest.load(prefix).tokenizer.get("name")
    except (InputError, FormatError):
        return []
    if not isinstance(name, str):
        return []
    beside = name.replace("vocab.json", "merges.txt").replace("encoder.json", "vocab.bpe")
    return [name, beside]

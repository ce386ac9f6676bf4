"""What datasets are called, where nobody says so."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tokpack.errors import UsageError
from tokpack.stores import is_url, shown

if TYPE_CHECKING:
    from collections.abc import Sequence


def megatron_names(prefix: str, keys: Sequence[str], *, sentences: bool) -> dict[str, str]:
    """Dataset prefixes as Megatron's preprocess_data names them: PREFIX_text_document."""
    level = "sentence" if sentences else "document"
    return {key: f"{prefix}_{key}_{level}" for key in keys}


def default_output(inputs: Sequence[str]) -> str:
    """A name in the current folder: of the one input, or of the folder that all inputs are in.

    Raises UsageError where the inputs give none.
    """
    names = [name for text in inputs for name in _listed(text)]
    names = [shown(name) if is_url(name) else name for name in names]  # no name has a secret
    if "-" in names:
        raise UsageError("standard input has no name: say where to write with output (-o PREFIX)")
    if len(names) == 1 and not _is_pattern(names[0]):
        name = os.path.basename(os.path.abspath(names[0]))
        if not os.path.isdir(names[0]):
            name = _stem(name)
    else:
        folders = {os.path.dirname(os.path.abspath(_before_pattern(name))) for name in names}
        name = os.path.basename(os.path.commonpath(folders))
    if not name:
        raise UsageError("the inputs give no name for the dataset: set output (-o PREFIX)")
    if os.path.abspath(name + ".json") in map(os.path.abspath, names):
        name += "_tokens"  # the manifest must not take an input's place
    return name


def _listed(text: str) -> list[str]:
    if os.path.exists(text) or "," not in text:
        return [text.removeprefix("@") if text.startswith("@") else text.strip()]
    return [name.strip() for name in text.split(",") if name.strip()]


def _is_pattern(text: str) -> bool:
    return any(mark in text for mark in "*?[") and not os.path.exists(text)


def _before_pattern(text: str) -> str:
    while _is_pattern(os.path.dirname(text)):
        text = os.path.dirname(text)
    return text


def _stem(name: str) -> str:
    from tokpack.sources.compression import SUFFIXES  # the flags need no more than the record
    from tokpack.sources.detect import DOCUMENT_SUFFIXES

    stem, suffix = os.path.splitext(name)
    while stem and suffix.lower() in (*DOCUMENT_SUFFIXES, *SUFFIXES):
        name = stem
        stem, suffix = os.path.splitext(name)
    return name

"""Datasets as people write them: weights and prefixes, or a blend file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.errors import UsageError
from tokpack.indexed import MMapIndexedDataset, prefix_of
from tokpack.samples.blend.file import read_blend
from tokpack.samples.blend.spec import BlendSpec, Entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.samples.blend.spec import Entries


def is_blend_file(word: str) -> bool:
    """Whether a word names a blend file, not a dataset."""
    return word.endswith((".yaml", ".yml"))


def read_words(words: Sequence[str]) -> BlendSpec:
    """What the inputs ask for: a blend file, or datasets with or without weights."""
    files = [word for word in words if is_blend_file(word)]
    if files and len(words) > 1:
        raise UsageError(
            f"{files[0]}: a blend file must be the only input, given: {' '.join(words)}"
        )
    return read_blend(files[0]) if files else BlendSpec(datasets=entries(words))


def entries(words: Sequence[str]) -> Entries:
    """Datasets with weights, where every first of two words is a number; else datasets alone."""
    if not words:
        raise UsageError("no datasets: give WEIGHT PREFIX [WEIGHT PREFIX ...], or prefixes alone")
    weights = [_as_number(word) for word in words[::2]]
    if len(words) % 2 == 0 and None not in weights:
        return tuple(map(Entry, words[1::2], weights))
    if any(weight is not None for weight in weights):
        raise UsageError(
            f"weights and datasets do not alternate in: {' '.join(words)}; give a weight before "
            "each dataset, or none at all"
        )
    for name, word in zip(words[::2], words[1::2], strict=False):
        if _as_number(word) is not None and not MMapIndexedDataset.exists(word):
            raise UsageError(f"a weight comes before its dataset: {word} {name}, not {name} {word}")
    return tuple(map(Entry, _prefixes(words)))


def _prefixes(words: Sequence[str]) -> list[str]:
    """The datasets whose files a pattern found, each once; other names as they are."""
    prefixes: list[str] = []
    seen: set[str] = set()
    for word in words:
        base = prefix_of(word)
        if base == word or not MMapIndexedDataset.exists(base):
            prefixes.append(word)
        elif base not in seen:
            seen.add(base)
            prefixes.append(base)
    return prefixes


def _as_number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None

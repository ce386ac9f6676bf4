"""The inputs of commands: datasets by a pattern, texts in a format, a tokenizer."""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING, Any

from tokpack.cli import terminal
from tokpack.cli.parser import Flag, Group, flags_from
from tokpack.encoding import EncodeOptions
from tokpack.errors import InputError
from tokpack.option import options_of
from tokpack.storage import find, is_url
from tokpack.storage.disk import cannot_read

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from tokpack.dataset import MMapIndexedDataset
    from tokpack.dataset.spelling import Spelling
    from tokpack.tokenizers import TokenizerFiles

ENCODE = options_of(EncodeOptions)
encode_flag = flags_from(ENCODE)


def encode_flags(
    group: str, without: tuple[str, ...] = (), **special: dict[str, Any]
) -> tuple[Flag, ...]:
    """The flags of a group of options of encode, in order; ``special`` ones with settings."""
    names = [name for name, one in ENCODE.items() if one.group == group and name not in without]
    return tuple(encode_flag(name, **special.get(name, {})) for name in names)


# The flags that name a tokenizer, the same in all commands.

FILES = tuple(
    map(encode_flag, ("vocab_file", "merge_file", "tokenizer_model", "tokenizer_type", "pattern"))
)
SPECIAL_TOKENS_COUNT = encode_flag("special_tokens_count")


def tokenizer_flag(otherwise: str) -> Flag:
    """``--tokenizer``; ``otherwise`` is the tokenizer that is used without it, in words."""
    return encode_flag("tokenizer", otherwise=otherwise)


RARE = Group("other ways to name a tokenizer", FILES, rare=True)


def of_dataset(title: str = "tokenizer") -> tuple[Group, Group]:
    """``--tokenizer`` with the manifest's as its default, and the rare flags of a tokenizer."""
    return Group(title, (tokenizer_flag("as the manifest says"),)), RARE


def tokenizer_given(arguments: argparse.Namespace) -> TokenizerFiles:
    """The tokenizer that flags name, in the form of load_tokenizer's arguments."""
    return {
        "tokenizer": arguments.tokenizer,
        "vocab_file": arguments.vocab_file,
        "merge_file": arguments.merge_file,
        "tokenizer_type": arguments.tokenizer_type,
        "tokenizer_model": arguments.tokenizer_model,
        "pattern": arguments.pattern,
    }


def tokenizer_paths(arguments: argparse.Namespace) -> list[str]:
    """The files, folders or names of a tokenizer that the flags name."""
    from tokpack.tokenizers import TOKENIZER_PATHS

    return [path for name in TOKENIZER_PATHS if (path := getattr(arguments, name))]


INPUT_FORMAT = encode_flag("input_format")
_PAIR = (".bin", ".idx")
_FILES = (*_PAIR, ".json")


def datasets_in(folder: str) -> list[str]:
    """The datasets in a folder, by name, as Megatron-LM's merge_datasets.py takes them.

    InputError if there is none, or a .bin or .idx without the other.
    """
    with cannot_read(folder), os.scandir(folder) as entries:
        names = {entry.name for entry in entries if entry.is_file()}
    stems = {os.path.splitext(name)[0] for name in names if name.endswith(_PAIR)}
    for stem in sorted(stems):
        for missing in (stem + suffix for suffix in _PAIR if stem + suffix not in names):
            raise InputError(
                f"{os.path.join(folder, missing)}: missing, while the dataset's other file is "
                "there: put it back, or take the other one out of the folder"
            )
    if not stems:
        raise InputError(f"{folder}: there is no .bin with its .idx in this folder")
    return [os.path.join(folder, stem) for stem in sorted(stems)]


def matching_datasets(names: Iterable[str]) -> list[str]:
    """The names, with patterns that the shell has not expanded replaced by the datasets that match.

    InputError if none does.
    """
    from tokpack.dataset import MMapIndexedDataset
    from tokpack.dataset.format import prefixes_of

    result = []
    for name in names:
        if not glob.has_magic(name) or any(os.path.exists(name + end) for end in ("", *_FILES)):
            result.append(name)
            continue
        stem, suffix = os.path.splitext(name)
        stem = stem if suffix in _FILES else name
        if is_url(name):
            listed = [one.url for some in find(f"{stem}.*") for one in some.objects]
            paths = [path for path in listed if path.endswith(_FILES)]
        else:
            paths = [path for end in _FILES for path in glob.glob(stem + end, recursive=True)]
        prefixes = sorted(set(prefixes_of(paths)))
        prefixes = [one for one in prefixes if MMapIndexedDataset.exists(one)]
        if not prefixes:
            raise InputError(f"{name}: no dataset matches this pattern")
        result += prefixes
    return result


MAX_TOKENS = 256  # of a document, by default


def load(prefix: str, arguments: argparse.Namespace) -> tuple[MMapIndexedDataset, Spelling | None]:
    """Open a dataset and its tokenizer, and warn if something is missing."""
    from tokpack.dataset import MMapIndexedDataset
    from tokpack.dataset.sources import doubt
    from tokpack.dataset.spelling import Spelling, find_tokenizer

    dataset = MMapIndexedDataset(prefix)
    if why := doubt(dataset):
        terminal.note(why)
    tokenizer, note = find_tokenizer(dataset, **tokenizer_given(arguments))
    if note:
        terminal.note(note)
    return dataset, Spelling(tokenizer) if tokenizer else None

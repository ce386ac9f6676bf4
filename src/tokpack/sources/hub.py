"""Hugging Face datasets, saved on disk or named, as the Arrow files that they consist of."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from tokpack.display import brief
from tokpack.errors import InputError, option
from tokpack.progress import without_widgets
from tokpack.sources.base import printable
from tokpack.storage.disk import read_object

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMEOUT = 5.0  # seconds within which the hub must answer
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_PLAIN_SPLIT = re.compile(r"[\w.-]+")


def is_saved_dataset(folder: str) -> bool:
    """Whether ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk`` wrote this folder."""
    return any(
        os.path.isfile(os.path.join(folder, name)) for name in ("state.json", "dataset_dict.json")
    )


def saved_files(folder: str, split: str | None = None) -> tuple[str, list[str]]:
    """The name and the Arrow files of a dataset on disk, or of one split of a dict of datasets.

    InputError if there are several splits and none is named.
    """
    described = os.path.join(folder, "dataset_dict.json")
    if os.path.isfile(described):
        named = read_object(described, wrong=InputError).get("splits", [])
        one = _one_split(folder, _inside(folder, named), split)
        files = _split_files(os.path.join(folder, one))
    else:
        files = _split_files(folder)
    if not files:
        raise InputError(f"{printable(folder)}: the saved dataset has no data files")
    return printable(folder), files


def _one_split(folder: str, splits: list[str], split: str | None) -> str:
    if split is None and len(splits) == 1:
        return splits[0]
    if split in splits:
        return split
    shown = printable(folder)
    if not splits:
        raise InputError(f"{shown}: the saved dataset has no splits")
    trouble = f"has no split {split!r}" if split else "has several splits, which are not joined"
    raise InputError(
        f"{shown}: {trouble}: name one of {', '.join(splits)}, as the input "
        f"{os.path.join(shown, splits[0])} or with {option('hf_split', splits[0])}"
    )


def hub_files(name: str, default_split: str | None = None) -> tuple[str, list[str]]:
    """Load ``name[:split]`` with ``datasets``. Returns its name to show, and the Arrow files in its
    cache.

    ``default_split`` is the split if the name has none.
    """
    path, _, split = name.partition(":")
    split = split or default_split or ""
    if split and not _PLAIN_SPLIT.fullmatch(split):
        raise InputError(
            f"hf://{name}: {split!r} is not the name of a split; slices are not supported"
        )
    try:
        with without_widgets():
            import datasets
    except ImportError as error:
        raise InputError(
            f"hf://{printable(path)}: a Hugging Face dataset needs a package: "
            "pip install 'tokpack[hf]'"
        ) from error
    silence = "" if os.path.exists(path) else _silence(datasets.config.HF_ENDPOINT)
    try:
        with _offline() if silence else nullcontext():
            dataset: Any = datasets.load_dataset(path, split=split or None)
    except Exception as error:  # a loader or the network may raise anything
        raise InputError(
            f"hf://{printable(path)}: cannot be loaded as a Hugging Face dataset: {error}{silence}"
        ) from error
    if isinstance(dataset, dict):
        if "train" not in dataset and len(dataset) > 1:
            raise InputError(
                f"hf://{path}: name a split of {', '.join(dataset)}: hf://{path}:SPLIT"
            )
        split = "train" if "train" in dataset else next(iter(dataset))
        dataset = dataset[split]
    files = [cached["filename"] for cached in dataset.cache_files]
    if not files:
        raise InputError(f"hf://{path}: the dataset was loaded without files in the cache")
    return f"hf://{path}:{split}", files


def _silence(endpoint: str) -> str:
    """Why the hub does not answer, in words; "" if it does, or must not be asked.

    One request is made here, because ``datasets`` would retry for half a minute.
    """
    import datasets

    if datasets.config.HF_HUB_OFFLINE:
        return ""
    import http.client  # late: takes 20 ms
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(endpoint, timeout=_TIMEOUT):
            return ""
    except urllib.error.HTTPError:
        return ""
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"; {endpoint} does not answer ({getattr(error, 'reason', error)})"


@contextmanager
def _offline() -> Iterator[None]:
    """Let ``datasets`` use only its cache, and no network."""
    import datasets
    import huggingface_hub.constants as hub

    settings: tuple[Any, ...] = (datasets.config, hub)
    before = [one.HF_HUB_OFFLINE for one in settings]
    for one in settings:
        one.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for one, value in zip(settings, before, strict=True):
            one.HF_HUB_OFFLINE = value


def _split_files(folder: str) -> list[str]:
    state = read_object(os.path.join(folder, "state.json"), wrong=InputError)
    if state.get("_indices_data_files"):
        raise InputError(
            f"{printable(folder)}: this dataset is a selection of rows; save it "
            "again after flatten_indices()"
        )
    entries = state.get("_data_files", [])
    names = [entry.get("filename") for entry in entries] if _all_are(entries, dict) else [None]
    return [os.path.join(folder, name) for name in _inside(folder, names)]


def _inside(folder: str, names: Any) -> list[str]:
    """The names of files or folders that lie in ``folder`` itself. InputError for any other."""
    if not _all_are(names, str):
        raise InputError(f"{printable(folder)}: not a saved dataset: its files are {brief(names)}")
    for name in names:
        if name != os.path.basename(name) or name in ("", ".", "..") or "\0" in name:
            raise InputError(
                f"{printable(folder)}: the saved dataset names {brief(name)}, which is not in its "
                "folder"
            )
    return list(names)


def _all_are(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)

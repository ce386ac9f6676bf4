"""The blend that a configuration asks for. No torch here."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tokpack.dataset.manifest import Manifest
from tokpack.errors import TokpackError, UsageError, option
from tokpack.samples.blend import entries, read_words
from tokpack.samples.orders import rules_of
from tokpack.tokenizers import count_ids

from .names import BLEND

if TYPE_CHECKING:
    from tokpack.samples.blend import BlendSpec

    from .config import Config


def spec_of_config(config: Config) -> BlendSpec:
    """The data that a run asks for: its blend file, overridden by the configuration."""
    if bool(config.data_path) == bool(config.train_data_path):
        raise UsageError(
            f"say where the data is: either {option('data_path')} or {option('train_data_path')}"
        )
    spec = read_words(config.data_path or config.train_data_path)
    settings = {k: v for k, v in _settings(config).items() if v is not None or k == "split"}
    return spec.changed(**settings)


def vocabulary_of(config: Config, size: int | None) -> int | None:
    """The number of ids, or None if nothing gives it: the setting, the ``size`` of the datasets'
    tokenizer, or a file's.

    UsageError if two of these contradict each other.
    """
    file, in_file = config.vocab_file, None
    if file is not None and os.path.exists(file):
        in_file = count_ids(file)
    if in_file is not None and size is not None and in_file != size:
        raise UsageError(
            f"{file} has {in_file:,} ids, the tokenizer of the data {size:,}: give the file that "
            "the data was made with, or none"
        )
    configured = config.vocab_size
    if size is not None and configured is not None and configured < size:
        raise UsageError(
            f"{option('vocab_size')} is {configured:,}, the tokenizer of the data has {size:,} ids"
        )
    return configured or size or in_file


def size_of_data(config: Config) -> int | None:
    """The vocabulary size that a manifest of a dataset names, or None if none does."""
    with suppress(TokpackError):
        for one in read_words(config.data_path or config.train_data_path).datasets:
            with suppress(TokpackError):
                size = Manifest.load(one.prefix).tokenizer.get("vocab_size")
                if isinstance(size, int):
                    return size
    return None


def _settings(config: Config) -> dict[str, Any]:
    """The settings of a blend that the configuration gives."""
    apart = config.train_data_path or config.valid_data_path or config.test_data_path
    batch, evaluated = config.global_batch_size, None
    iterations = (config.train_iters or 0) * batch
    # In orders of other programs, all evaluations together decide the number of samples.
    if not rules_of(config.order).endless or not config.eval_iters:
        evaluated = config.eval_iters * batch
    times = (config.train_samples or iterations) // batch // config.eval_interval + 1
    settings = {name: getattr(config, name) for name in BLEND.split()} | {
        "split": None if apart else config.split,
        "samples": config.train_samples or iterations or None,
        "valid_samples": evaluated and evaluated * times,
        "test_samples": evaluated,
        "cache": config.data_cache_path,
    }
    if config.valid_data_path:
        valid = entries(config.valid_data_path)
        blend = valid[0].weight is not None
        settings["valid"] = {"valid": valid} if blend else {one.prefix: (one,) for one in valid}
    if config.test_data_path:
        settings["test"] = entries(config.test_data_path)
    return settings

"""What tokpack's functions train, load_model, import_model and export call; ``tokpack.api``
documents them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tokpack.errors import TokenizerError, needs_extra
from tokpack.storage.disk import release

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path
    from typing import Unpack

    from torch import nn

    from tokpack.progress import Show
    from tokpack.storage import PathLike
    from tokpack.tokenizers import TokenizerFiles

    from .checkpoints.history import TrainingResult
    from .config.config import Config


def import_model(
    model: PathLike,
    output: PathLike,
    *,
    vocab_size: int | None,
    config: str | None,
    accept_argument: Collection[str],
    progress: Show | None,
    **tokenizer: Unpack[TokenizerFiles],
) -> Path:
    """Convert a model of another program to a checkpoint."""
    with needs_extra("train"):
        from .checkpoints import importing

        weights = importing.open_model(
            model, config=config, vocab_size=vocab_size, accept_argument=accept_argument
        )
        described, _ = importing.describe_tokenizer(model, **tokenizer)
        return importing.import_model(weights, output, tokenizer=described, progress=progress)


def export(
    checkpoint: PathLike,
    output: PathLike,
    *,
    average: int,
    dtype: str,
    max_shard_size: int,
    overwrite: bool,
    progress: Show | None,
    **tokenizer: Unpack[TokenizerFiles],
) -> str:
    """Write a checkpoint as a Hugging Face model."""
    with needs_extra("train"):
        from .checkpoints import export

        weights, loaded = export.open_checkpoint(checkpoint, average, **tokenizer)
        return export.export(
            weights,
            output,
            tokenizer=None if isinstance(loaded, TokenizerError) else loaded,
            dtype=dtype,
            max_shard_size=max_shard_size,
            overwrite=overwrite,
            inputs=[os.fspath(checkpoint)],
            progress=progress,
        )


def train(config: Config | PathLike | Mapping[str, Any]) -> TrainingResult:
    """Train from a file of settings, from a mapping of them, or from a Config."""
    from .__main__ import run
    from .config.config import Config
    from .config.flags import RunRequest, resolve

    world = int(os.environ.get("WORLD_SIZE", "1"))
    if isinstance(config, Config):
        request = RunRequest(config)
    elif isinstance(config, (str, os.PathLike)):
        request = resolve([os.fspath(config)], world, {})
    else:
        request = resolve([], world, config)
    try:
        return run(request, world)
    finally:
        release()


def load_model(checkpoint: PathLike, *, device: str) -> nn.Module:
    """The model in a checkpoint, as a ``torch.nn.Module``."""
    with needs_extra("train"):
        from .checkpoints.export import open_weights
        from .generate import load_model
        from .parallel import device_of

        return load_model(open_weights(checkpoint), device_of(device))

"""Convert models of other programs to a checkpoint that ``tokpack train`` continues from."""

from __future__ import annotations

import os
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tokpack.dataset.manifest import digest_file
from tokpack.errors import FormatError, InputError, OutputError, TokenizerError, UsageError, option
from tokpack.progress import ProgressStage
from tokpack.storage.disk import cannot_write, remove_file
from tokpack.tokenizers import TokenizerFiles, load_tokenizer

from . import folder as folders
from .files import RunState, file_of, state_text, write_tensors
from .history import save_config
from .huggingface import CONFIG, HubWeights
from .ranks import RankWeights, find_files, open_ranks

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Unpack

    from torch import Tensor

    from tokpack.progress import Show

_FIRST = "step_00000000"


def open_model(
    folder: str | os.PathLike[str],
    *,
    config: str | None = None,
    vocab_size: int | None = None,
    accept_argument: Collection[str] = (),
) -> HubWeights | RankWeights:
    """The weights of another program's model, opened: shapes and names are checked, no tensor is
    read.

    The folder has config.json of ``transformers``; or layer files of GPT-NeoX, with its YAML as
    ``config``; or mp_rank_* files of Megatron, with ``config`` if they do not contain their shape.
    Rows of the vocabulary from ``vocab_size`` on are padding. InputError if it is none of these,
    UsageError for a model that cannot be computed here, FormatError for a broken one. An unknown
    argument or key is refused, unless ``accept_argument`` has its name.
    """
    names = [accept_argument] if isinstance(accept_argument, str) else accept_argument
    accepted = {name.replace("-", "_") for name in names}
    weights: HubWeights | RankWeights | None = None
    path = Path(folder)
    if (path / CONFIG).exists():
        if config is not None:
            raise UsageError(
                f"{path}: its {CONFIG} describes the model: leave out {option('config')}"
            )
        weights = HubWeights(path, vocab_size, accepted)
    elif not path.is_dir():
        raise InputError(
            f"{folder}: no such folder; a model of the Hugging Face hub has to be downloaded first"
        )
    for one in () if weights else folders.foreign_folders(path):
        if files := find_files(one):
            weights = open_ranks(one, files, config, vocab_size, accepted)
            break
    if weights is None:
        raise InputError(
            f"{folder}: no model: neither {CONFIG} of transformers, nor layer_XX-model_YY files of "
            "GPT-NeoX, nor mp_rank_XX of Megatron"
        )
    if spare := sorted(accepted - {*weights.accepted}):
        raise UsageError(
            f"{option('accept_argument', spare[0])}: {folder} has no such argument, or it is "
            "not refused: leave it out"
        )
    return weights


def describe_tokenizer(
    folder: str | os.PathLike[str], **options: Unpack[TokenizerFiles]
) -> tuple[dict[str, Any] | None, str]:
    """The given tokenizer, or the one in a folder, as a manifest describes it; or None and the
    reason.

    None if the folder has no tokenizer that can be read. TokenizerError if the given one cannot be
    read.
    """
    is_given = any(options.values())
    try:
        tokenizer = load_tokenizer(
            **(options if is_given else {"tokenizer": os.path.realpath(folder)})
        )
        tokenizer.keep_copies()
        return tokenizer.describe(), ""
    except (TokenizerError, InputError, FormatError) as error:
        if is_given:
            raise
        return None, error.args[0]


def import_model(
    weights: HubWeights | RankWeights,
    output: str | os.PathLike[str],
    *,
    tokenizer: dict[str, Any] | None = None,
    progress: Show | bool | None = None,
) -> Path:
    """The checkpoint written from ``weights``: the first one in the folder ``output``.

    ``output``/config.yaml has the model's settings. It and state.json have the accepted arguments
    of the other program. The checkpoint is complete or absent. It has no moments: a run that loads
    it begins at step 0. One layer at a time is in memory. ``progress`` is told how many parameters
    are written. OutputError if ``output`` has a checkpoint or anything else in it, FormatError for
    weights that are not finite.
    """
    root = Path(output)
    if (occupied := _occupied(root)) is not None:
        raise OutputError(f"{occupied} exists: choose another output")
    with cannot_write(root):
        root.mkdir(parents=True, exist_ok=True)
    target, config = root / _FIRST, root / "config.yaml"
    work, model = folders.begin(target), asdict(weights.model)
    stage = ProgressStage(progress, "import", weights.model.parameters, "parameters")
    try:
        files = {}
        for file, group in groupby(weights.model.layout.items(), lambda item: file_of(item[0])):
            write_tensors(work / file, {name: _read(weights, name, stage) for name, _ in group})
            files[file] = digest_file(work / file)
        notes = [f"# passed over: {one}: {value}\n" for one, value in weights.accepted.items()]
        # It says the most positions, and not a length to train at: that is the data's.
        settings = {name: value for name, value in model.items() if name != "seq_length"}
        save_config(config, "".join(notes) + yaml.safe_dump(settings, sort_keys=False), ())
        try:
            state = RunState(0, 0, {}, {}, model, tokenizer, dict(weights.accepted))
            folders.commit(target, state_text(state, files), keep=0)
        except BaseException:
            remove_file(str(config))
            raise
    except BaseException:
        folders.abandon(target)
        raise
    return target


def _occupied(root: Path) -> Path | None:
    """The path that prevents a first checkpoint, or None. Leftovers of a killed import do not
    prevent it.
    """
    try:
        checkpoint = folders.find(root)
    except InputError:
        return root
    died = checkpoint == root / _FIRST and not (root / "latest").exists()
    return None if died else checkpoint


def _read(weights: HubWeights | RankWeights, name: str, stage: ProgressStage) -> Tensor:
    """The tensor of a parameter. FormatError if a value is not finite."""
    tensor = weights.read(name)["parameter"]
    finite = int(tensor.isfinite().sum())
    if finite < tensor.numel():
        raise FormatError(
            f"{weights.path}: {tensor.numel() - finite:,} of {tensor.numel():,} values of {name} "
            "are not finite"
        )
    stage.add(tensor.numel())
    return tensor

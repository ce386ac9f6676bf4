"""Save and load a run, by all of its processes together."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import torch

from tokpack.dataset.manifest import FileDigest, digest_file
from tokpack.errors import InputError, TokpackError, TrainingError, UsageError, option
from tokpack.storage.disk import UNFINISHED, cannot_write, hold

from .checkpoints import folder as folders
from .checkpoints.files import (
    Checkpoint,
    RunState,
    differences,
    file_of,
    key_of,
    state_text,
    write_tensors,
)
from .parallel import agree, gather, on_main, rank_and_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from .config.config import Config
    from .config.model import ModelConfig
    from .engine import Engine

    AnyPath = str | os.PathLike[str]

# Settings that may differ between a checkpoint's model and the model that loads it.
_FREE = (
    "seq_length make_vocab_size_divisible_by hidden_dropout attention_dropout init_method_std "
    "output_init_method_std"
)


def origin(config: Config) -> tuple[str | None, bool]:
    """The folder to load from, or None; and whether only weights are loaded. Collective.

    A run with ``finetune`` that finds its own checkpoints in the folder it saves to continues from
    them: so the same command both starts and resumes it.
    """
    if not (config.finetune and config.load and config.save):
        return config.load, config.finetune
    folder, base = config.save, os.path.realpath(config.load)

    def is_own() -> bool:
        latest = folders.find(folder)
        if latest is None or os.path.realpath(folder) == base:
            return False
        before = Checkpoint(latest).state.config
        return bool(before.get("finetune")) and os.path.realpath(before["load"] or "") == base

    return (folder, False) if on_main(is_own) else (config.load, True)


def claim(folder: str, load: str | None) -> None:
    """Lock the folder that this run saves to until this process ends; collective.

    Raises UsageError if it holds checkpoints of another run than the one at ``load``: checkpoints
    of two runs are never mixed.
    """
    with cannot_write(folder):
        agree(lambda: os.makedirs(folder, exist_ok=True))
    on_main(lambda: hold(Path(folder)))
    on_main(lambda: folders.check_own(folder, load))


class CheckpointWrite:
    """A checkpoint that is being written to ``folder``/step_X.

    The constructor and ``finish`` are collectives. The checkpoint is complete after ``finish``, and
    absent if the run dies before. After that all but the last ``keep`` checkpoints are removed,
    none with 0. With ``later`` each rank copies its tensors and a thread writes the copies while
    training continues; otherwise they are written at once. Both calls raise on every rank and
    remove what was begun: OutputError if it cannot be written, TrainingError if a value is not
    finite.
    """

    def __init__(
        self, engine: Engine, folder: AnyPath, meta: RunState, *, keep: int = 0, later: bool = False
    ) -> None:
        self._target = Path(folder) / f"step_{meta.step:08d}"
        self._meta, self._keep, self._later = replace(meta, scalars=engine.scalars()), keep, later
        self._files: dict[str, FileDigest] = {}
        self._copies: dict[str, dict[str, Tensor]] = {}  # by file
        self._failure: Exception | None = None
        self._work = on_main(lambda: folders.begin(self._target))
        self._or_abandon(lambda: agree(lambda: self._take(engine)))
        self._thread = Thread(target=self._write_copies, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def is_written(self) -> bool:
        """Whether this rank has written its part, or failed to: then ``finish`` does not wait for
        it.
        """
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Wait for all ranks, and complete the checkpoint."""
        self._thread.join()
        self._or_abandon(self._commit)

    def _take(self, engine: Engine) -> None:
        """Write or copy the layers of this rank.

        A rank whose disk is full continues to the end: gathering tensors is collective, and the
        other ranks would wait for it for ever.
        """
        failure: TokpackError | None = None
        for file, parameters in groupby(engine.full_state(), lambda item: file_of(item[0])):
            tensors = {key_of(n, kind): x for n, whole in parameters for kind, x in whole.items()}
            if tensors and failure is None:
                try:
                    _check_finite(tensors, self._work)
                    if self._later:
                        self._copies[file] = tensors
                    else:
                        self._write(file, tensors)
                except TokpackError as error:
                    failure = error
        if failure is not None:
            raise failure

    def _write(self, file: str, tensors: dict[str, Tensor]) -> None:
        write_tensors(self._work / file, tensors)
        self._files[file] = digest_file(self._work / file)

    def _write_copies(self) -> None:
        try:
            while self._copies:
                self._write(*self._copies.popitem())
        except Exception as error:  # raised by ``finish``
            self._failure = error

    def _commit(self) -> None:
        def written() -> dict[str, FileDigest]:
            if self._failure is not None:
                raise self._failure
            return self._files

        files = {name: one for part in gather(agree(written)) for name, one in part.items()}
        text = state_text(self._meta, files)
        on_main(lambda: folders.commit(self._target, text, self._keep))

    def _or_abandon(self, work: Callable[[], None]) -> None:
        try:
            work()
        except TokpackError:
            on_main(lambda: folders.abandon(self._target))
            raise


def _check_finite(tensors: dict[str, Tensor], work: Path) -> None:
    """Raise TrainingError if a value is not finite: no run could continue from such a
    checkpoint.
    """
    for key, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            count = tensor.numel() - int(torch.isfinite(tensor).sum())
            name = work.name.removesuffix(UNFINISHED)
            raise TrainingError(
                f"{work.parent}: {name} was not saved: {count:,} of {tensor.numel():,} values of "
                f"{key} are not finite; lower the learning rate or {option('clip_grad')}, and go "
                "on from an earlier checkpoint"
            )


def open_latest(
    folder: AnyPath, model: ModelConfig, *, finetune: bool = False
) -> Checkpoint | None:
    """The latest checkpoint of ``folder``, verified, or None if there is no checkpoint yet;
    collective.

    Raises on every rank: FormatError for a broken file, UsageError for a checkpoint of another
    model, InputError if there is none to ``finetune``.
    """
    path = on_main(lambda: folders.find(folder))
    if path is None:
        if finetune:
            raise InputError(f"{folder}: there is no checkpoint to finetune")
        return None
    return agree(lambda: _open(path, model, finetune))


def load(engine: Engine, weights: Checkpoint, *, finetune: bool = False) -> RunState:
    """The state of the run in a checkpoint, after loading its tensors into ``engine``, whatever the
    topology; collective.

    With ``finetune`` only weights are loaded and counters begin at 0. UsageError, before anything
    is loaded, if the optimizer is another one.
    """
    if finetune or not weights.state.scalars:  # an imported model
        engine.load_full_state(lambda name, _: weights.read(name), optimizer=False)
        return RunState(0, 0, {}, {}, asdict(weights.model))
    there = weights.state.config.get("optimizer", "adam")  # the only one when it was not recorded
    if there != (here := engine.config.optimizer):
        raise UsageError(
            f"{weights.path}: the checkpoint has the state of optimizer {there}, this run uses "
            f"{here}: use the same, or load only the weights with {option('finetune', True)}"
        )
    engine.load_full_state(weights.read, optimizer=True)
    engine.load_scalars(weights.state.scalars)
    return weights.state


def _open(path: Path, model: ModelConfig, finetune: bool) -> Checkpoint:
    """The checkpoint, verified: each rank reads a share of the files for their checksums."""
    checkpoint = Checkpoint(path)
    _check_model(path, checkpoint.model, model, finetune)
    rank, ranks = rank_and_size()
    checkpoint.verify(list(checkpoint.state.files)[rank::ranks])
    return checkpoint


def _check_model(path: Path, there: ModelConfig, here: ModelConfig, finetune: bool) -> None:
    """Raise UsageError that names all settings in which two models differ.

    With ``finetune`` the base of rope may be larger than the checkpoint's, for longer sequences. A
    smaller base is refused: it is more likely a default that the user did not think of.
    """
    free = _FREE.split()
    if here.position_embedding_type == "rope":
        larger = finetune and here.rotary_base > there.rotary_base
        free += ["max_position_embeddings", *["rotary_base"] * larger]
    names = " ".join(name for name in asdict(here) if name not in free)
    if different := differences(asdict(there), asdict(here), names):
        settings, cure = path.parent / "config.yaml", "set these as they are there"
        if settings.exists():
            cure = f"train with {settings}, which has its settings, and change none of these"
        raise UsageError(f"{path}: the checkpoint is of another model: {different}; {cure}")

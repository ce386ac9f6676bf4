"""The commands as functions with the same names and options.

Here are those that need several rooms; other functions belong to one room (see
``tokpack.__all__``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tokpack.display import nearest
from tokpack.encoding import EncodeOptions
from tokpack.errors import UsageError, option
from tokpack.option import options_of, show_options
from tokpack.progress import shown, with_bar
from tokpack.shards import SHARD_BYTES
from tokpack.wall import entry_point

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path
    from typing import Unpack

    from torch import nn

    from tokpack.dataset import Manifest
    from tokpack.keywords import EncodeRequest, PlanRequest
    from tokpack.look import Stats
    from tokpack.progress import Show
    from tokpack.shards import ShardPlan, ShardStatus
    from tokpack.sources import ArrowStream, Source
    from tokpack.storage import PathLike
    from tokpack.tokenizers import TokenizerFiles
    from tokpack.trainer.checkpoints.history import TrainingResult
    from tokpack.trainer.config.config import Config

_Function = TypeVar("_Function", bound="Callable[..., Any]")
_FILTER = "where=, an expression in SQL, or map=, a function that leaves records out"
_LIKELY = {"filter": _FILTER, "filter_fn": _FILTER, "columns": "keep="}


def _takes_options(*without: str) -> Callable[[_Function], _Function]:
    """Gives a function that passes options on to EncodeOptions their signature and their help."""

    def document(function: _Function) -> _Function:
        taken = {*signature(function).parameters, *without}
        options = options_of(EncodeOptions).values()
        show_options(function, [one for one in options if one.name not in taken])
        return function

    return document


@overload
def encode(
    inputs: PathLike | Iterable[Any] | ArrowStream | None = None,
    output: PathLike | None = None,
    *,
    texts: Iterable[str] | None = None,
    keys: str = "text",
    resume_key: str | None = None,
    progress: Show | bool | None = None,
    **options: Unpack[EncodeRequest],
) -> Manifest: ...
@overload
def encode(
    inputs: PathLike | Iterable[Any] | ArrowStream | None = None,
    output: PathLike | None = None,
    *,
    texts: Iterable[str] | None = None,
    keys: list[str] | tuple[str, ...],
    resume_key: str | None = None,
    progress: Show | bool | None = None,
    **options: Unpack[EncodeRequest],
) -> dict[str, Manifest]: ...
@_takes_options()
def encode(
    inputs: PathLike | Iterable[Any] | ArrowStream | None = None,
    output: PathLike | None = None,
    *,
    texts: Iterable[str] | None = None,
    keys: str | list[str] | tuple[str, ...] = "text",
    resume_key: str | None = None,
    progress: Show | bool | None = None,
    **options: Unpack[EncodeRequest],
) -> Manifest | dict[str, Manifest]:
    """Turn documents into PREFIX.bin, .idx and .json, and return the manifest.

    With a list of ``keys`` it returns a dict with the manifest for each key; each of several keys
    becomes a dataset of its own, ``PREFIX_<key>``. A key is one of JSON (a.b: b inside of a), or a
    column.

    ``inputs`` are files, folders, patterns or Hugging Face datasets (``hf://NAME``): a str, a path,
    or a list of them; ``output`` is PREFIX, by default made from their names. Or they are documents
    in this process, for which ``output`` is needed: a generator or another iterable of str, one of
    mappings, also a list; a ``datasets.Dataset`` or ``IterableDataset``, or a dict of one split; a
    pyarrow Table, RecordBatchReader or Dataset; a pandas or polars DataFrame. A list of str always
    names files: texts are given as ``texts`` instead of ``inputs``.

    A run that was stopped continues where it was; one that is finished returns at once. An iterable
    that can be read only once is recognized by ``resume_key``, a name for its content: a stopped
    run then reads past the documents that it has. A function of ``map`` is recognized only by
    ``map_version``: without it a stopped run starts from scratch, and an existing output is
    refused. ``progress`` is called a few times a second; True shows a bar, in a terminal or a
    notebook.
    Raises a TokpackError, or what an iterable raises.
    """
    from tokpack.encoding import encode as run

    more = {"resume_key": resume_key, "texts": texts}
    request, source = _request("encode", inputs, output, {**options, "keys": keys}, **more)
    with shown(progress) as show:
        results = run(request, source=source, progress=show)
    manifests = [replace(one, inputs=list(one.inputs)) for one in results]
    if isinstance(keys, str):
        return manifests[0]
    return dict(zip(request.output_names, manifests, strict=True))


@_takes_options("files", "report_to", "scratch", "workers")
def plan(
    inputs: PathLike | Iterable[PathLike],
    output: PathLike,
    *,
    shard_size: int = SHARD_BYTES,
    keys: str | list[str] | tuple[str, ...] = "text",
    **options: Unpack[PlanRequest],
) -> ShardPlan:
    """Cut a run of ``encode`` into shards of about ``shard_size`` bytes of text.

    Writes OUTPUT.plan. With it ``encode_shard`` makes each shard on any machine, and ``commit``
    makes one dataset of all. Raises as ``encode`` does before any work, UsageError for inputs that
    cannot be cut, and OutputError if another plan exists.
    """
    from tokpack.shards import make_shard_plan, save_plan

    request, source = _request("plan", inputs, output, {**options, "keys": keys})
    if source is not None:
        raise UsageError(
            "a plan needs files that every machine can read: write what is in memory to parquet "
            "files first, or use encode in this process"
        )
    shard_plan = make_shard_plan(request, shard_size)
    return save_plan(shard_plan, request.output, overwrite=request.overwrite)


def encode_shard(
    prefix: PathLike,
    shard: int,
    *,
    workers: int = 0,
    scratch: str | None = None,
    overwrite: bool = False,
    progress: Show | bool | None = None,
) -> dict[str, Manifest]:
    """Make shard number ``shard`` of the plan of the dataset ``prefix``, unless it exists.

    With ``overwrite`` it is made in any case, in place of a dataset with its name. Returns the
    manifest for each key. Raises as ``encode`` does, ResumeError if this machine would not make the
    planned bytes, and BusyError if another process makes it on the same disk.
    """
    from tokpack.shards import encode_shard as run
    from tokpack.shards import load_plan

    name, whole = load_plan(prefix)
    more: Any = {"workers": workers, "scratch": scratch, "overwrite": overwrite}
    with shown(progress) as show:
        manifests = run(whole, name, shard, progress=show, **more)
    return dict(zip(whole.names, manifests, strict=True))


def status(prefix: PathLike) -> list[ShardStatus]:
    """The progress of each shard of the plan of the dataset ``prefix``, in order.

    InputError if there is no plan, FormatError if it is damaged.
    """
    from tokpack.shards import load_plan, survey

    name, whole = load_plan(prefix)
    return survey(whole, name)


def commit(prefix: PathLike, *, overwrite: bool = False) -> dict[str, Manifest]:
    """Make one dataset of all shards of the plan of the dataset ``prefix``; copies nothing.

    Returns the manifest for each key, which lists the shards. InputError if shards are missing or
    have too many bad records, FormatError if one is not as planned, OutputError if another dataset
    with the name exists.
    """
    from tokpack.shards import commit as run
    from tokpack.shards import load_plan

    name, whole = load_plan(prefix)
    return dict(zip(whole.names, run(whole, name, overwrite=overwrite), strict=True))


@with_bar
def stats(
    prefix: PathLike,
    *,
    seq_length: int | None = None,
    threads: int = 0,
    progress: Show | bool | None = None,
    **tokenizer: Unpack[TokenizerFiles],
) -> Stats:
    """Figures about all documents and tokens of a dataset: lengths, frequencies, duplicates.

    The tokenizer, which gives the tokens their texts, is named as for load_tokenizer, by
    ``tokenizer``, ``vocab_file``, ``merge_file``, ``tokenizer_type``, ``tokenizer_model`` and
    ``pattern``; by default it is the manifest's. With ``seq_length``, in tokens, documents are also
    packed, best-fit, to see how full samples are. ``threads`` 0 is one for each core, 8 at most.
    ``progress`` is told the tokens that are read. FormatError if the dataset is broken,
    TokenizerError if a tokenizer that is named cannot be loaded.
    """
    from tokpack.dataset import MMapIndexedDataset
    from tokpack.dataset.spelling import Spelling, find_tokenizer
    from tokpack.look import stats as run

    dataset = MMapIndexedDataset(prefix)
    loaded = find_tokenizer(dataset, **tokenizer).tokenizer
    result = run(dataset, Spelling(loaded) if loaded else None, threads=threads, progress=progress)
    if seq_length is None:
        return result
    from tokpack.samples import GPTDataset

    return result.with_packing(GPTDataset(prefix, seq_length, packing="best_fit").packing_stats)


@with_bar
def import_model(
    model: PathLike,
    output: PathLike,
    *,
    vocab_size: int | None = None,
    config: str | None = None,
    accept_argument: Collection[str] = (),
    progress: Show | bool | None = None,
    **tokenizer: Unpack[TokenizerFiles],
) -> Path:
    """Write a model of another program as a checkpoint of `tokpack train`. Returns its path.

    ``model`` is a folder of ``transformers``, of GPT-NeoX's layer files, whose YAML is ``config``,
    or of Megatron's mp_rank_* files. Rows of its vocabulary from ``vocab_size`` on are padding. The
    tokenizer, named as for ``stats``, is by default the one in the folder. An unknown argument or
    key of the model is refused, unless ``accept_argument`` has its name. ``output``/config.yaml has
    the model's settings. InputError if there is no model, UsageError for one that cannot be
    computed here, FormatError for a broken one, OutputError if ``output`` contains anything.
    """
    checkpoint: Path = entry_point("import_model")(
        model,
        output,
        vocab_size=vocab_size,
        config=config,
        accept_argument=accept_argument,
        progress=progress,
        **tokenizer,
    )
    return checkpoint


@with_bar
def export(
    checkpoint: PathLike,
    output: PathLike,
    *,
    average: int = 1,
    dtype: str = "fp32",
    max_shard_size: int = 5_000_000_000,
    overwrite: bool = False,
    progress: Show | bool | None = None,
    **tokenizer: Unpack[TokenizerFiles],
) -> str:
    """Write a checkpoint as a Hugging Face model. Returns the class that loads it.

    ``checkpoint`` is a folder that `tokpack train` saved to, or one of its step_... folders; with
    ``average`` the mean of so many weights, of this and the checkpoints before. ``dtype`` is fp32,
    bf16 or fp16. The tokenizer, named as for ``stats``, is by default that of the checkpoint;
    without one only the model is written. UsageError for a model that no class of ``transformers``
    computes, InputError and FormatError for a checkpoint that is missing or broken, OutputError if
    ``output`` exists.
    """
    written: str = entry_point("export")(
        checkpoint,
        output,
        average=average,
        dtype=dtype,
        max_shard_size=max_shard_size,
        overwrite=overwrite,
        progress=progress,
        **tokenizer,
    )
    return written


def train(config: Config | PathLike | Mapping[str, Any]) -> TrainingResult:
    """Train as `tokpack train` does, from ``config``, a file of settings or a mapping of them.

    The names are those of the flags, with underscores: ``{"data_path": "wiki", "num_layers": 4}``;
    other programs' names are accepted, too. Or it is a ``tokpack.trainer.config.config.Config``,
    whose fields are all settings. Under torchrun every process calls this. SIGTERM stops at the
    next step, with a checkpoint. Returns losses and the checkpoint; messages go to stderr. Raises
    UsageError, InputError and FormatError before the first step, TrainingError if the run cannot
    continue.
    """
    result: TrainingResult = entry_point("train")(config)
    return result


def load_model(checkpoint: PathLike, *, device: str = "auto") -> nn.Module:
    """The model of a checkpoint as a ``torch.nn.Module``, fp32, in evaluation mode.

    ``model(tokens)`` takes ids, int64 [B, S] with S up to ``model.model.max_position_embeddings``,
    and returns logits, float32 [B, S, V]; those at position i are for the next token. Parameters
    have the names of the checkpoint, and can be trained. ``checkpoint`` is as for ``export``,
    ``device`` is auto, cpu or cuda. InputError and FormatError for a checkpoint that is missing or
    broken.
    """
    model: nn.Module = entry_point("load_model")(checkpoint, device=device)
    return model


def _request(
    called: str,
    inputs: Any,
    output: PathLike | None,
    options: Mapping[str, Any],
    **in_memory: Any,
) -> tuple[EncodeOptions, Source | None]:
    """The request, and the source that replaces files, or None."""
    from tokpack.encoding import columns_in_process
    from tokpack.sources import Source, in_process

    valid = options_of(EncodeOptions)
    unknown = sorted({*options}.difference(valid))
    if unknown:
        likely = _LIKELY.get(unknown[0]) or nearest(unknown[0], valid)
        hint = f"; did you mean {likely}?" if likely else ""
        raise TypeError(f"{called}() got an unexpected keyword argument {unknown[0]!r}{hint}")
    names = options.get("output_names") or {}
    place = "" if output is None else os.fspath(output)
    keys = options["keys"]
    if not isinstance(keys, Iterable):
        raise UsageError(f"{option('keys')} is {keys!r}; it is a key, or a list of keys")
    several = [keys] if isinstance(keys, str) else list(keys)
    source = in_process(inputs, several, columns=columns_in_process(options), **in_memory)
    if not isinstance(source, Source):
        return EncodeOptions(source, place, **{**options, "output_names": names}), None
    if not place and not names:
        raise UsageError(f"{source.name}: no file gives the dataset a name: set {option('output')}")
    for name in ("input_format", "hf_split", "json_path"):
        if options.get(name) not in (None, "auto"):
            raise UsageError(f"{option(name)} is for files, but the input is in memory")
    return EncodeOptions((source.name,), place, **{**options, "output_names": names}), source

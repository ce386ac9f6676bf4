"""What a run says and writes: lines, log.jsonl, TensorBoard, and the plot of its loss."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokpack.errors import UsageError
from tokpack.samples import GPTDataset

from .data import members
from .metrics import memory_estimate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .config import Config
    from .data import Data
    from .model import ModelConfig
    from .parallel import Topology
    from .schedule import Schedule


def line(values: Mapping[str, Any], steps: int) -> str:
    """A log line for people."""
    unit = "GPU" if values["device"] == "cuda" else "process"
    loss, mfu = values["loss"], values["mfu"]
    words = [
        f"iteration {values['iteration']:,}/{steps:,}",
        f"{values['consumed_samples']:,} samples",
        "loss -" if loss is None else f"loss {loss:.4f}",
        f"grad norm {values['grad_norm']:.3f}",
        f"loss scale {values['loss_scale']:g}",
        f"lr {values['lr']:.3e}",
        f"{values['tokens_per_second']:,.0f} tokens/s",
        f"{values['tokens_per_second_per_gpu']:,.0f} a {unit}",
        f"{values['tflops_per_gpu']:.3g} TFLOP/s a {unit}",
        *([f"MFU {mfu:.1%}"] if mfu else []),
        f"peak {values['peak_memory_bytes'] / 1e9:.2f} GB",
        f"data wait {values['data_wait']:.2%}",
        *([f"{values['skipped']} skipped"] if values["skipped"] else []),
    ]
    return " | ".join(words)


class Log:
    """What rank 0 says and writes; the other ranks have one that is silent."""

    def __init__(self, config: Config, topology: Topology, steps: int, first: int) -> None:
        folder = config.log_dir or config.save
        self._main = topology.is_main
        self.steps, self._timers = steps, config.log_timers_to_tensorboard
        self._sizes, self._ppl = (
            config.log_batch_size_to_tensorboard,
            config.log_validation_ppl_to_tensorboard,
        )
        self._folder = Path(folder) if folder and self._main else None
        self._file = None
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
            self._file = (self._folder / "log.jsonl").open("a", encoding="utf-8")
        self._board = _board(config, first) if config.tensorboard_dir and self._main else None
        live = self._main and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._live = _progress(steps, first) if live else None

    def say(self, text: str) -> None:
        """A line to stderr, from rank 0."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        elif self._main:
            print(text, file=sys.stderr, flush=True)

    def progress(self, step: int) -> None:
        """Move the progress bar of a terminal."""
        if self._live is not None:
            self._live.update(self._live.task_ids[0], completed=step)

    def record(self, event: str, **values: Any) -> None:
        """A line of log.jsonl."""
        if self._file is not None:
            self._file.write(json.dumps({"event": event, **values}) + "\n")
            self._file.flush()

    def step(self, values: dict[str, Any]) -> None:
        """The numbers of the last steps: a line, a record, and TensorBoard's curves."""
        self.say(line(values, self.steps))
        self.record("step", **values)
        names = {"loss": "lm loss", "grad_norm": "grad-norm", "lr": "learning-rate"}
        names |= {"loss_scale": "loss-scale", "tokens_per_second": "tokens-per-second"}
        if self._sizes:
            names["batch_size"] = "batch-size"
        if self._timers:
            names |= {"seconds_per_step": "iteration-time", "data_wait": "data-wait-share"}
        self._plot({name: values[key] for key, name in names.items()}, values)

    def evaluation(self, name: str, loss: float, at: dict[str, Any]) -> None:
        """Loss and perplexity of a validation or test set."""
        ppl = math.exp(min(loss, 700.0))
        self.say(f"iteration {at['iteration']:,} | {name} loss {loss:.4f} | perplexity {ppl:.4g}")
        self.record("evaluation", name=name, loss=loss, perplexity=ppl, **at)
        curves = {f"lm loss {name}": loss} | ({f"lm loss {name} ppl": ppl} if self._ppl else {})
        self._plot(curves, at)

    def _plot(self, curves: Mapping[str, float | None], at: dict[str, Any]) -> None:
        for name, value in curves.items():
            if self._board is not None and value is not None:
                self._board.add_scalar(name, value, at["iteration"])
                self._board.add_scalar(f"{name} vs samples", value, at["consumed_samples"])

    def close(self, entropy: float | None = None) -> None:
        """End the bar, close the files, and draw loss.png."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._board is not None:
            self._board.close()
        if self._file is not None and self._folder is not None:
            self._file.close()
            if drawn := draw(self._folder, entropy):
                self.say(drawn)


def _progress(steps: int, first: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    bar = Progress(
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task("steps", total=steps, completed=first)
    bar.start()
    return bar


def _board(config: Config, first: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError(
            "tensorboard_dir needs the package tensorboard: pip install tensorboard"
        ) from error
    return SummaryWriter(
        config.tensorboard_dir,
        purge_step=first + 1 if first else None,
        max_queue=config.tensorboard_queue_size,
    )


def draw(folder: Path, entropy: float | None) -> str:
    """Draw FOLDER/loss.png from FOLDER/log.jsonl; what to say of it."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "no loss.png: matplotlib is not installed"
    curves: dict[str, dict[int, float]] = {}
    for text in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines():
        values = json.loads(text)
        if values.get("loss") is not None:  # a step made again after a resume counts once
            curves.setdefault(values.get("name", "training"), {})[values["iteration"]] = values[
                "loss"
            ]
    if not curves:
        return ""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="iteration", ylabel="loss (nats a token)")
    for name, points in curves.items():
        steps = sorted(points)
        mark = "." if len(steps) < 50 else ""
        axes.plot(steps, [points[step] for step in steps], marker=mark, label=name)
    if entropy is not None:
        axes.axhline(entropy, linestyle="--", color="grey", label="unigram entropy")
    axes.legend()
    figure.savefig(folder / "loss.png", dpi=120)
    return f"plot: {folder / 'loss.png'}"


def describe(
    config: Config,
    topology: Topology,
    data: Data,
    model: ModelConfig,
    schedule: Schedule,
    *,
    consumed: int,
    entropy: float,
) -> Iterator[str]:
    """Every number that follows from the configuration and the data, before the first step."""
    ranks, micro, batch = topology.data_size, config.micro_batch_size, config.global_batch_size
    samples, steps, length = schedule.train_samples, schedule.count_steps(), config.seq_length
    left = schedule.count_steps(consumed)
    half = (config.precision or ("bf16" if topology.device.type == "cuda" else "fp32")) != "fp32"
    states, activations = memory_estimate(config, model, topology, half)
    yield (
        f"model: {model.parameters:,} parameters, {model.num_layers} layers of "
        f"{model.hidden_size}, vocabulary {model.vocab_size:,} padded to "
        f"{model.padded_vocab_size(topology.tensor_size):,}, "
        f"{model.flops_per_token / 1e6:,.4g} MFLOPs a token"
    )
    yield (
        f"processes: {topology.world_size} = tensor {topology.tensor_size} x pipeline "
        f"{topology.pipeline_size} x data {ranks}, on {topology.device.type}, engine "
        f"{config.engine}"
    )
    yield (
        f"memory: about {states / 1e9:.3g} GB of weights, gradients and moments and "
        f"{activations / 1e9:.3g} GB of activations on each process"
    )
    yield (
        f"step: {batch} samples of {length} = {batch * length:,} tokens: micro batch {micro} x "
        f"{ranks} ranks x {batch // (micro * ranks)}"
        + (f", from {schedule.batch_size(0)} samples on" if config.rampup_batch_size else "")
    )
    yield f"run: {samples:,} samples = {samples * length:,} tokens in {steps:,} steps"
    if consumed:
        yield f"resumed: {consumed:,} samples are consumed, {left:,} steps left"
    datasets = members(data.train)
    counts = [samples] if isinstance(data.train, GPTDataset) else data.train.counts(samples)
    for dataset, count in zip(datasets, counts, strict=True):
        yield (
            f"data: {dataset.path_prefix}: {count:,} samples, "
            f"{count / max(dataset.samples_per_epoch, 1):.3g} epochs of {dataset.tokens:,} tokens"
        )
    for name, held_out in {**data.valid, **data.test}.items():
        used = min(config.eval_iters * batch, len(held_out)) // (micro * ranks) * micro * ranks
        yield f"{name}: {used:,} of {len(held_out):,} samples"
    yield (
        f"unigram entropy: {entropy:.4f} nats a token (perplexity {math.exp(entropy):,.4g}): what "
        "a model reaches that knows frequencies only"
    )

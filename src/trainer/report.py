"""What a run says and writes: lines, log.jsonl, TensorBoard, and the plot of its loss."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokpack.errors import UsageError

from .metrics import memory_estimate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .config import Config
    from .data import Data
    from .model import ModelConfig
    from .parallel import Topology
    from .schedule import Schedule


LINE = (
    "iteration {iteration:,}/{steps:,} | {consumed_samples:,} samples | loss {loss:.4f} | "
    "grad norm {grad_norm:.3f} | loss scale {loss_scale:g} | lr {lr:.3e} | "
    "{tokens_per_second:,.0f} tokens/s | {tokens_per_second_per_gpu:,.0f} a {unit} | "
    "{tflops_per_gpu:.3g} TFLOP/s a {unit} | MFU {mfu:.1%} | peak {peak_gb:.2f} GB | "
    "data wait {data_wait:.2%} | {skipped} skipped"
)
CURVES = {
    "loss": "lm loss",
    "lr": "learning-rate",
    "grad_norm": "grad-norm",
    "loss_scale": "loss-scale",
    "tokens_per_second": "tokens-per-second",
}


def line(values: Mapping[str, Any], steps: int) -> str:
    """A log line for people; what is not known is left out."""
    unit = "GPU" if values["device"] == "cuda" else "process"
    more = {"steps": steps, "unit": unit, "peak_gb": values["peak_memory_bytes"] / 1e9}
    known = {key: value for key, value in values.items() if value is not None} | more
    gaps = [f"{{{key}:" for key in ("loss", "mfu") if key not in known]
    gaps += ["{skipped"] if not values["skipped"] else []
    parts = [part for part in LINE.split(" | ") if not any(gap in part for gap in gaps)]
    return " | ".join(parts).format(**known)


class Log:
    """What rank 0 says and writes; the other ranks have one that is silent."""

    def __init__(self, config: Config, topology: Topology, steps: int, first: int) -> None:
        self._main, self._config, self._steps = topology.is_main, config, steps
        folder = config.log_dir or config.save
        self._folder = Path(folder) if folder and self._main else None
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
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
        """A line of log.jsonl; JSON has no infinity, so what is not finite is null there."""
        for key, value in values.items():
            if isinstance(value, float) and not math.isfinite(value):
                values[key] = None
        if self._folder is not None:
            with (self._folder / "log.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"event": event, **values}) + "\n")

    def step(self, values: dict[str, Any]) -> None:
        """The numbers of the last steps: a line, a record, and TensorBoard's curves."""
        self.say(line(values, self._steps))
        self.record("step", **values)
        names = dict(CURVES)
        if self._config.log_batch_size_to_tensorboard:
            names["batch_size"] = "batch-size"
        if self._config.log_timers_to_tensorboard:
            names |= {"seconds_per_step": "iteration-time", "data_wait": "data-wait-share"}
        self._plot({name: values[key] for key, name in names.items()}, values)

    def evaluation(self, name: str, loss: float, at: dict[str, Any]) -> None:
        """Loss and perplexity of a validation or test set."""
        ppl = math.exp(min(loss, 700.0))
        self.say(f"iteration {at['iteration']:,} | {name} loss {loss:.4f} | perplexity {ppl:.4g}")
        self.record("evaluation", name=name, loss=loss, perplexity=ppl, **at)
        curves = {f"lm loss {name}": loss}
        if self._config.log_validation_ppl_to_tensorboard:
            curves[f"lm loss {name} ppl"] = ppl
        self._plot(curves, at)

    def _plot(self, curves: Mapping[str, float | None], at: dict[str, Any]) -> None:
        for name, value in curves.items():
            if self._board is not None and value is not None:
                self._board.add_scalar(name, value, at["iteration"])
                self._board.add_scalar(f"{name} vs samples", value, at["consumed_samples"])

    def close(self, entropy: float) -> None:
        """End the bar and the curves, and draw loss.png."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._board is not None:
            self._board.close()
        if self._folder is not None and (self._folder / "log.jsonl").exists():
            self.say(draw(self._folder, entropy))


def _progress(steps: int, first: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task("steps", total=steps, completed=first)
    bar.start()
    return bar


def _board(config: Config, first: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        message = "tensorboard_dir needs the package tensorboard: pip install tensorboard"
        raise UsageError(message) from error
    size, again = config.tensorboard_queue_size, first + 1 if first else None
    return SummaryWriter(config.tensorboard_dir, purge_step=again, max_queue=size)


def draw(folder: Path, entropy: float) -> str:
    """Draw FOLDER/loss.png from FOLDER/log.jsonl; what to say of it."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "no loss.png: matplotlib is not installed"
    curves: dict[str, dict[int, float]] = {}
    for text in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines():
        values = json.loads(text)
        if values.get("loss") is not None:  # a step made again after a resume counts once
            points = curves.setdefault(values.get("name", "training"), {})
            points[values["iteration"]] = values["loss"]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="iteration", ylabel="loss (nats a token)")
    for name, points in curves.items():
        mark = "." if len(points) < 50 else ""
        axes.plot(*zip(*sorted(points.items()), strict=True), marker=mark, label=name)
    axes.axhline(entropy, linestyle="--", color="grey", label="unigram entropy")
    axes.legend()
    figure.savefig(folder / "loss.png", dpi=120)
    return f"plot: {folder / 'loss.png'}"


def describe(  # noqa: PLR0917
    config: Config,
    topology: Topology,
    data: Data,
    model: ModelConfig,
    schedule: Schedule,
    consumed: int,
    entropy: float,
) -> Iterator[str]:
    """Every number that follows from the configuration and the data, before the first step."""
    t, samples, length = topology, schedule.train_samples, config.seq_length
    batch, micro = config.global_batch_size, config.micro_batch_size
    step = micro * t.data_size
    states, activations = memory_estimate(config, model, topology)
    padded, flops = model.padded_vocab_size(t.tensor_size), model.flops_per_token / 1e6
    yield (
        f"model: {model.parameters:,} parameters, {model.num_layers} layers of "
        f"{model.hidden_size}, vocabulary {model.vocab_size:,} padded to {padded:,}, "
        f"{flops:,.4g} MFLOPs a token"
    )
    yield (
        f"processes: {t.world_size} = tensor {t.tensor_size} x pipeline {t.pipeline_size} x data "
        f"{t.data_size}, on {t.device.type}, engine {config.engine}"
    )
    yield (
        f"memory: about {states / 1e9:.3g} GB of weights, gradients and moments and "
        f"{activations / 1e9:.3g} GB of activations on each process"
    )
    yield (
        f"step: {batch} samples of {length} = {batch * length:,} tokens: micro batch {micro} x "
        f"{t.data_size} ranks x {batch // step}"
        + (f", from {schedule.batch_size(0)} samples on" if schedule.rampup else "")
    )
    tokens, steps = samples * length, schedule.count_steps()
    yield f"run: {samples:,} samples = {tokens:,} tokens in {steps:,} steps"
    if consumed:
        left = schedule.count_steps(consumed)
        yield f"resumed: {consumed:,} samples are consumed, {left:,} steps left"
    for prefix, count, epochs, tokens in data.shares():
        yield f"data: {prefix}: {count:,.0f} samples, {epochs:.3g} epochs of {tokens:,} tokens"
    for name, held_out in {**data.valid, **data.test}.items():
        used = min(config.eval_iters * batch, len(held_out)) // step * step
        yield f"{name}: {used:,} of {len(held_out):,} samples"
    yield (
        f"unigram entropy: {entropy:.4f} nats a token (perplexity {math.exp(entropy):,.4g}): what "
        "a model reaches that knows frequencies only"
    )

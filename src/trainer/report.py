"""What a run says and writes: lines, log.jsonl, TensorBoard, and the plot of its loss."""

from __future__ import annotations

import io
import json
import math
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokpack.checkpoints.run_files import PNG_METADATA, check_log, save_config, save_plot
from tokpack.errors import OutputError, UsageError
from tokpack.files.durable import cannot_write

from .metrics import memory_estimate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tokpack.configuration.config import Config

    from .loop import Run
    from .parallel import Topology

LINE = (
    "iteration {iteration:,}/{steps:,} | {consumed_samples:,} samples | loss {loss:.4f} | "
    "grad norm {grad_norm:.3f} | loss scale {loss_scale:g} | lr {lr:.3e} | "
    "{tokens_per_second:,.0f} tokens/s | {tokens_per_second_per_gpu:,.0f} a {unit} | "
    "{tflops_per_gpu:.3g} TFLOP/s a {unit} | MFU {mfu:.1%} | peak {peak_gb:.2f} GB | "
    "data wait {data_wait:.2%} | {skipped} skipped"
)
CURVES = (  # what a step has, its name in TensorBoard, and the flag that asks for it
    ("loss", "lm loss", ""),
    ("lr", "learning-rate", ""),
    ("grad_norm", "grad-norm", ""),
    ("loss_scale", "loss-scale", ""),
    ("tokens_per_second", "tokens-per-second", ""),
    ("batch_size", "batch-size", "log_batch_size_to_tensorboard"),
    ("seconds_per_step", "iteration-time", "log_timers_to_tensorboard"),
    ("data_wait", "data-wait-share", "log_timers_to_tensorboard"),
)
CLEAR = "\r\x1b[K"  # the last line of a terminal


def line(values: Mapping[str, Any], steps: int) -> str:
    """A log line for people; what is not known is left out."""
    unit = "GPU" if values["device"] == "cuda" else "process"
    more = {"steps": steps, "unit": unit, "peak_gb": values["peak_memory_bytes"] / 1e9}
    absent = [f"{{{key}" for key in ("loss:", "mfu:") if values[key[:-1]] is None]
    absent += [] if values["skipped"] else ["{skipped"]
    parts = [part for part in LINE.split(" | ") if not any(key in part for key in absent)]
    return " | ".join(parts).format(**values, **more)


class Log:
    """What rank 0 says and writes; the other ranks have one that is silent.

    ``steps`` are the one to go on from and the last one; ``inputs`` are files that the run reads.
    """

    def __init__(
        self,
        config: Config,
        topology: Topology,
        entropy: float,
        steps: tuple[int, int],
        inputs: Sequence[str] = (),
    ) -> None:
        first, self._steps = steps
        self.entropy, self._config, self._first = entropy, config, first
        self._main, self._begin = topology.is_main, time.monotonic()
        self._live = self._main and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        folder = config.log_dir or config.save
        self._folder = Path(folder) if folder and self._main else None
        if self._folder is not None:
            with cannot_write(str(self._folder)):
                self._folder.mkdir(parents=True, exist_ok=True)
            check_log(self._folder / "log.jsonl", inputs)
            save_config(self._folder / "config.yaml", config.to_yaml(), inputs)
        self.record("begin", iteration=first, steps=self._steps, unigram_entropy=entropy)
        self._board = _board(config, first) if config.tensorboard_dir and self._main else None

    def say(self, text: str) -> None:
        """A line to stderr, from rank 0."""
        if self._main:
            sys.stderr.write(f"{CLEAR if self._live else ''}{text}\n")

    def progress(self, step: int) -> None:
        """How far the run is, on the last line of a terminal."""
        if self._live:
            pace = (time.monotonic() - self._begin) / (step - self._first)
            left = timedelta(seconds=round(pace * (self._steps - step)))
            sys.stderr.write(f"{CLEAR}{step:,} of {self._steps:,} steps, {left} left")

    def record(self, event: str, **values: Any) -> None:
        """A line of log.jsonl; JSON has no infinity, so what is not finite is null there."""
        unknown = [k for k, v in values.items() if isinstance(v, float) and not math.isfinite(v)]
        if self._folder is not None:
            text = json.dumps({"event": event, **values, **dict.fromkeys(unknown)})
            path = self._folder / "log.jsonl"
            with cannot_write(str(path)), path.open("a", encoding="utf-8") as file:
                file.write(text + "\n")

    def step(self, values: dict[str, Any]) -> None:
        """The numbers of the last steps: a line, a record, and TensorBoard's curves."""
        self.say(line(values, self._steps))
        self.record("step", **values)
        for key, name, flag in CURVES:
            if not flag or getattr(self._config, flag):
                self._point(name, values[key], values)

    def evaluation(self, name: str, loss: float, at: dict[str, Any]) -> None:
        """Loss and perplexity of a validation or test set."""
        ppl = math.exp(min(loss, 700.0))
        self.say(f"iteration {at['iteration']:,} | {name} loss {loss:.4f} | perplexity {ppl:.4g}")
        self.record("evaluation", name=name, loss=loss, perplexity=ppl, **at)
        self._point(f"lm loss {name}", loss, at)
        if self._config.log_validation_ppl_to_tensorboard:
            self._point(f"lm loss {name} ppl", ppl, at)

    def _point(self, curve: str, value: float | None, at: dict[str, Any]) -> None:
        if self._board is not None and value is not None:
            self._board.add_scalar(curve, value, at["iteration"])
            self._board.add_scalar(f"{curve} vs samples", value, at["consumed_samples"])

    def close(self) -> None:
        """End the progress and the curves, and draw loss.png."""
        if self._live:
            sys.stderr.write(CLEAR)
        if self._board is not None:
            self._board.close()
        if self._folder is not None and (self._folder / "log.jsonl").exists():
            try:
                self.say(draw(self._folder, self.entropy))
            except (
                OSError,
                OutputError,
            ) as error:  # another error may be on its way, and is the one to hear of
                self.say(f"no loss.png: {error}")


def _board(config: Config, first: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        message = "tensorboard_dir needs the package tensorboard: pip install tensorboard"
        raise UsageError(message) from error
    size, again = config.tensorboard_queue_size, first + 1 if first else None
    with cannot_write(config.tensorboard_dir or ""):
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
    if not curves:
        return "no loss.png: no step was made"
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="iteration", ylabel="loss (nats a token)")
    for name, points in curves.items():
        axes.plot(*zip(*sorted(points.items()), strict=True), marker=".", label=name)
    axes.axhline(entropy, linestyle="--", color="grey", label="unigram entropy")
    axes.legend()
    content = io.BytesIO()
    figure.savefig(content, dpi=120, metadata=PNG_METADATA)
    save_plot(folder / "loss.png", content.getvalue())
    return f"plot: {folder / 'loss.png'}"


def describe(run: Run) -> Iterator[str]:
    """Every number that follows from the configuration and the data, before the first step."""
    config, model, schedule, t = run.config, run.model, run.schedule, run.topology
    batch, length, samples = config.global_batch_size, config.seq_length, schedule.train_samples
    states, activations = memory_estimate(config, model, t)
    for note in (*config.notes, *run.data.notes):
        yield f"note: {note}"
    yield (
        f"model: {model.parameters:,} parameters, {model.num_layers} layers of "
        f"{model.hidden_size}, vocabulary {model.vocab_size:,} padded to "
        f"{model.padded_vocab_size(t.tensor_size):,}, "
        f"{model.flops_per_token / 1e6:,.4g} MFLOPs a token"
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
        f"step: {batch} samples of {length} = {batch * length:,} tokens: micro batch "
        f"{config.micro_batch_size} x {t.data_size} ranks x {batch // run.smallest}"
        + (f", from {schedule.batch_size(0)} samples on" if config.rampup_batch_size else "")
    )
    tokens, steps = samples * length, schedule.count_steps()
    yield f"run: {samples:,} samples = {tokens:,} tokens in {steps:,} steps"
    train = run.data.plan.train
    for one, count, epochs in zip(train.portions, train.member_samples, train.epochs, strict=True):
        amount = f"{count:,.0f} samples, {epochs:.3g} epochs of {one.tokens:,} tokens"
        yield f"data: {one.prefix}: {amount}"
    for name, held_out in {**run.data.valid, **run.data.test}.items():
        used = min(config.eval_iters * batch, len(held_out)) // run.smallest * run.smallest
        yield f"{name}: {used:,} of {len(held_out):,} samples"
    yield (
        f"unigram entropy: {run.entropy:.4f} nats a token (perplexity "
        f"{math.exp(run.entropy):,.4g}): what a model reaches that knows frequencies only"
    )

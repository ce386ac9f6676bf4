"""The log of a run: lines on stderr, log.jsonl, curves on boards, and a plot."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tokpack.display import tell
from tokpack.errors import OutputError, TokpackError, UsageError, needs_extra, option, worded
from tokpack.look.page import curves_page
from tokpack.look.plots import Curve
from tokpack.machine import free_memory
from tokpack.quantities import count_text
from tokpack.storage.disk import cannot_write

from .checkpoints.history import check_log, read_log, save_config, save_plot
from .config.estimate import Layout, memory_of, run_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .config.config import Config
    from .config.estimate import Memory
    from .parallel import Topology
    from .run import TrainingRun


# Curves of a run for TensorBoard, which Weights & Biases reads too. Names are Megatron's.


class Board:
    """Curves over steps and over samples, in TensorBoard's files; without a folder nothing is
    written.
    """

    def __init__(self, config: Config, first: int, say: Callable[[str], None]) -> None:
        """Open the curves, to continue after step ``first``. Raises UsageError and OutputError."""
        self._folder, self._run, self._writer = config.tensorboard_dir or "", None, None
        if config.wandb_project:
            self._run = _begin_run(config)
            self._folder = self._folder or os.path.join(self._run.dir, "tensorboard")
            offline = f"offline, in {self._run.dir}" if self._run.offline else self._run.url
            say(f"Weights & Biases: {offline or 'disabled'}")
        if self._folder:
            self._writer = self._open(first + 1 if first else None)

    def add(self, points: Mapping[str, float | None], step: int, samples: int) -> None:
        """Add a point to each curve that has one. Raises OSError, and begins a new file the next
        time.
        """
        if not self._folder:
            return
        writer = self._writer or self._open(None)
        self._writer = None  # if writing fails, its thread has ended
        for name, value in points.items():
            if value is not None:
                writer.add_scalar(name, value, step)
                writer.add_scalar(f"{name} vs samples", value, samples)
        self._writer = writer

    def close(self) -> None:
        """Write and send what is left. Raises OSError."""
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            if self._run is not None:
                with telling_of_a_wait("Weights & Biases: still sending curves"):
                    self._run.finish()

    def _open(self, purge_step: int | None) -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError(
                f"{option('tensorboard_dir')} needs a package: pip install tensorboard"
            ) from error
        with cannot_write(self._folder):
            return SummaryWriter(self._folder, purge_step=purge_step)


def _begin_run(config: Config) -> Any:
    """A run of Weights & Biases, configured also by its environment variables.

    Raises OutputError, and UsageError for instance without an account.
    """
    with needs_extra("wandb"):
        import wandb
    try:
        with telling_of_a_wait("Weights & Biases does not answer yet; training is waiting for it"):
            return wandb.init(
                project=config.wandb_project,
                name=config.wandb_exp_name,
                group=config.wandb_group,
                entity=config.wandb_entity,
                dir=config.wandb_save_dir or config.log_dir or config.save,
                config=config.to_dict(),
                settings=wandb.Settings(silent=True),
                sync_tensorboard=True,
            )
    except wandb.errors.UsageError as error:
        hint = "log in with `wandb login`, or set WANDB_MODE=offline"
        reason = str(error).rstrip(".")
        raise UsageError(f"{option('wandb_project')}: {reason}; {hint}") from None
    except (wandb.Error, OSError) as error:
        raise OutputError(f"Weights & Biases: {error}") from error


@contextmanager
def telling_of_a_wait(text: str, seconds: float = 10.0) -> Iterator[None]:
    """A context that says why nothing happens if its body takes so many ``seconds``: the client of
    Weights & Biases, for instance, retries in silence.
    """
    timer = threading.Timer(seconds, tell, [f"tokpack: note: {text}"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


CURVES = {  # numbers of a step, and their names on a board
    "loss": "lm loss",
    "lr": "learning-rate",
    "grad_norm": "grad-norm",
    "loss_scale": "loss-scale",
    "tokens_per_second": "tokens-per-second",
    "batch_size": "batch-size",
    "seconds_per_step": "iteration-time",
    "data_wait": "data-wait-share",
}
CLEAR = "\r\x1b[K"  # empties the last line of a terminal


class Log:
    """What rank 0 prints and writes; on other ranks it does nothing.

    ``steps`` are the step to continue from and the last step; ``data_state`` is the state of the
    SampleIterator at the first of them; ``inputs`` are files that the run reads. After the start, a
    file that cannot be written is only a warning: it does not end the run.
    """

    def __init__(
        self,
        config: Config,
        topology: Topology,
        entropy: float | None,
        steps: tuple[int, int],
        *,
        data_state: dict[str, Any],
        inputs: Sequence[str] = (),
    ) -> None:
        first, self._steps = steps
        self.entropy, self._config, self._first = entropy, config, first
        self._main, self._begin = topology.is_main, time.monotonic()
        self._live = self._main and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        folder = config.log_dir or config.save
        self._folder = Path(folder) if folder and self._main else None
        self._lines: Lines | None = None
        self._failed: set[str] = set()
        if self._folder is not None:
            with cannot_write(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
            check_log(self._folder / "log.jsonl", inputs)
            save_config(self._folder / "config.yaml", config.to_yaml(), inputs)
            path = self._folder / "log.jsonl"
            if not first and path.exists() and path.stat().st_size:
                self.say(
                    f"note: {path} has the log of an earlier run, and this one is appended from "
                    f"iteration 1 on: give {option('log_dir')} another folder to keep them apart"
                )
            self._lines = Lines(path)
            begin = {
                "iteration": first,
                "steps": self._steps,
                "unigram_entropy": entropy,
                **data_state,
                "data_parallel_size": topology.data_size,
                "folder": os.getcwd(),
                "config": config.to_dict(),
            }
            self._lines.add(_json("begin", **begin))
            self._lines.write()
        self._board = Board(config, first, self.say) if self._main else None

    def say(self, text: str) -> None:
        """Print a line to stderr, on rank 0."""
        if self._main:
            tell(worded(text, self._config.flags), before=CLEAR if self._live else "")

    def progress(self, step: int) -> None:
        """Show how far the run is, on the last line of a terminal."""
        if self._live:
            pace = (time.monotonic() - self._begin) / (step - self._first)
            left = timedelta(seconds=round(pace * (self._steps - step)))
            sys.stderr.write(f"{CLEAR}{step:,} of {self._steps:,} steps, {left} left")

    def record(self, event: str, **values: Any) -> None:
        """Add a line to log.jsonl."""
        if self._lines is not None:
            self._lines.add(_json(event, **values))
            self._try("log.jsonl", self._lines.write, "its lines are kept, and written when it can")

    def step(self, values: dict[str, Any]) -> None:
        """Report the numbers of the last steps: a line, a record, and points of curves."""
        self.say(line(values, self._steps))
        self.record("step", **values)
        points = {name: values[key] for key, name in CURVES.items()}
        for room, norm in values.get("grad_norms", {}).items():
            points[f"grad-norm/{room}"] = norm
        self._draw_points(points, values)

    def evaluation(self, name: str, loss: float, at: dict[str, Any]) -> None:
        """Report loss and perplexity of a validation or test set."""
        ppl = math.exp(min(loss, 700.0))
        self.say(f"iteration {at['iteration']:,} | {name} loss {loss:.4f} | perplexity {ppl:.4g}")
        self.record("evaluation", name=name, loss=loss, perplexity=ppl, **at)
        self._draw_points({f"lm loss {name}": loss, f"lm loss {name} ppl": ppl}, at)

    def close(self) -> None:
        """End the progress line and the curves, and draw the losses.

        It raises nothing: another error may be on its way, and that one is to be reported.
        """
        if self._live:
            sys.stderr.write(CLEAR)
        if self._board is not None:
            self._try("TensorBoard's curves", self._board.close, "the last points are lost")
        if self._lines is None or self._folder is None:
            return
        self._try("log.jsonl", self._lines.write, "its last lines are lost")
        try:
            self.say(draw(self._folder, self.entropy))
        except (OSError, ValueError, OverflowError, TokpackError) as error:
            self.say(f"no loss.html: {error}")

    def _draw_points(self, points: Mapping[str, float | None], at: dict[str, Any]) -> None:
        if self._board is not None:
            add = partial(self._board.add, points, at["iteration"], at["consumed_samples"])
            self._try("TensorBoard's curves", add, "points are lost until it can be written again")

    def _try(self, name: str, write: Callable[[], None], consequence: str) -> None:
        """Call ``write`` for a file of the log. A failure is said once, and again only after a
        success.
        """
        try:
            write()
        except (OutputError, OSError) as error:
            if name not in self._failed:
                self.say(f"warning: {name}: {error}; {consequence}")
            self._failed.add(name)
        else:
            self._failed.discard(name)


def line(values: Mapping[str, Any], steps: int) -> str:
    """A log line for people, of at most 100 characters, without values that are not known.

    log.jsonl has everything.
    """
    step, mfu, skipped = values["iteration"], values["mfu"], values["skipped"]
    parts = (
        f"iteration {step}/{steps}",
        "" if values["loss"] is None else f"loss {values['loss']:.4f}",
        f"lr {values['lr']:.2e}",
        f"{skipped} skipped" if skipped else f"norm {values['grad_norm']:.3g}",
        f"{count_text(values['tokens_per_second'])} tokens/s",
        "" if mfu is None else f"MFU {mfu:.1%}",
        f"ETA {_rough(values['seconds_per_step'] * (steps - step))}" if step < steps else "",
    )
    return "  ".join(filter(None, parts))


def _rough(seconds: float) -> str:
    """A duration in the largest unit that gives at least two of it: below days at most 99."""
    for unit, size, most in (("s", 1, 100), ("min", 60, 100), ("h", 3600, 48)):
        if seconds < most * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


class Lines:
    """A file to which whole lines are added. Lines that cannot be written are kept for the next
    time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[str] = []

    def add(self, text: str) -> None:
        self._waiting.append(text)

    def write(self) -> None:
        """Write all lines that wait. Raises OutputError, after removing any part of a line that it
        wrote.
        """
        with cannot_write(self._path), self._path.open("ab+", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            text = "".join(f"{one}\n" for one in self._waiting)
            if end:
                file.seek(end - 1)
                if file.read(1) != b"\n":  # a run that was killed left a part of a line
                    text = f"\n{text}"
            rest = memoryview(text.encode())
            try:
                while rest:  # a disk that is nearly full takes a part
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(end)
                raise
        self._waiting.clear()


def _json(event: str, **values: Any) -> str:
    """A line for log.jsonl. JSON has no infinity, so a number that is not finite becomes null."""
    unknown = [k for k, v in values.items() if isinstance(v, float) and not math.isfinite(v)]
    return json.dumps({"event": event, **values, **dict.fromkeys(unknown)})


def draw(folder: Path, entropy: float | None) -> str:
    """A message about FOLDER/loss.html, which was drawn from FOLDER/log.jsonl."""
    losses = read_log(folder / "log.jsonl").losses()
    places = [place for points in losses.values() for place, _ in points]
    if not places:
        return "no loss.html: no step was made"
    if entropy is not None:
        losses["unigram entropy"] = [(min(places), entropy), (max(places), entropy)]
    curves = [
        Curve(name or "training", points, number, "dashed" if number else "")
        for number, (name, points) in enumerate(losses.items())
    ]
    page = curves_page(f"Loss of {folder}", "nats per token", curves)
    save_plot(folder / "loss.html", page)
    return f"plot: {folder / 'loss.html'}"


# What a run prints before its first step.


def _scarcity(memory: Memory, topology: Topology) -> Iterator[str]:
    """A warning if this machine has too little memory for the run. It is no error: the optimizer
    may keep less than is counted, other processes may end, and there may be swap.
    """
    free: int | None
    if topology.device.type == "cuda":
        free, ranks = torch.cuda.mem_get_info(topology.device)[0], 1
    else:
        free, ranks = free_memory(), int(os.environ.get("LOCAL_WORLD_SIZE", topology.world_size))
    needed = ranks * (memory.states + memory.activations + memory.logits)
    if free is not None and needed > free:
        many = f" of its {ranks} processes here" if ranks > 1 else ""
        yield (
            f"warning: too little memory: the run needs {needed / 1e9:.3g} GB{many}, "
            f"{free / 1e9:.3g} GB are free, and the system may kill it: lower "
            f"{option('micro_batch_size')}, {option('num_layers')} or {option('hidden_size')}, or "
            f"recompute with {option('checkpoint_activations')}"
        )


def describe(run: TrainingRun) -> Iterator[str]:
    """The numbers that follow from configuration and data, as lines to print before the first
    step.
    """
    config, model, schedule, t = run.config, run.model, run.schedule, run.topology
    layout, device = Layout.of(config, t.data_size, t.device.type), t.device.type
    length, samples = config.seq_length, schedule.train_samples
    for note in filter(None, (config.unlike, *config.notes, *run.data.notes)):
        yield f"note: {note}"
    if not config.save:
        yield f"note: no checkpoint will be saved: {option('save', 'DIR')} keeps them"
    if config.precision == "fp16" and device == "cpu":
        yield "note: a CPU computes fp16 many times slower than fp32 or bf16: only for trials"
    yield from run_lines(config, model, layout, device)
    memory = memory_of(model, layout)
    yield (
        f"memory: about {memory.states / 1e9:.3g} GB of weights, gradients and moments and "
        f"{(memory.activations + memory.logits) / 1e9:.3g} GB of activations on the fullest process"
    )
    yield from _scarcity(memory, t)
    tokens, steps = samples * length, schedule.count_steps()
    yield f"run: {samples:,} samples = {tokens:,} tokens in {steps:,} steps"
    for one in run.data.plan.train.usage:
        amount = f"{one.samples:,.0f} samples, {one.epochs:.3g} epochs"
        yield f"data: {one.portion.prefix}: {amount} of {one.portion.tokens:,} tokens"
    plan = run.data.plan
    parts = (f"{name} {count:,}" for name, count in plan.documents.items())
    yield f"split: {plan.spec.split or 'none'}, of documents: {', '.join(parts)}"
    evaluated = config.eval_iters * config.global_batch_size
    for name, held_out in {**run.data.valid, **run.data.test}.items():
        used = min(evaluated, len(held_out)) // run.smallest * run.smallest
        yield f"{name}: {used:,} of {len(held_out):,} samples"
    if run.entropy is not None:
        yield (
            f"unigram entropy: {run.entropy:.4f} nats per token (perplexity "
            f"{math.exp(run.entropy):,.4g}): the loss of a model that knows only token frequencies"
        )

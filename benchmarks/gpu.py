"""What the trainer is on a GPU, in an hour at most: is it right, does it wait, how fast, and why.

    python benchmarks/gpu.py -o report        # one GPU; report.md, report.png, rows
    python benchmarks/gpu.py -o report --toy  # the same in toy sizes, on a CPU too: some seconds

Parity: kernels and types on the device against fp32 on the CPU. Waiting: steps in which torch calls
a synchronisation with the device an error. Compilation: graph breaks, and what is compiled again
after the first step. Profile: where the time of a step goes. Sizes: tokens/s, MFU and memory, with
micro batches to the memory's limit. Nothing is downloaded. The exit code is 1 where something is
wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing as mp
import pickle
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from common import append_rows, machine, versions
from torch import Tensor

from tokpack.configuration.config import Config
from tokpack.configuration.model import ModelConfig
from tokpack.trainer import parallel, vocabulary
from tokpack.trainer.attention import fastest_kernel, kernel_of
from tokpack.trainer.engine import make_engine
from tokpack.trainer.metrics import Meter, peak_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokpack.trainer.engine import Engine

Row = dict[str, Any]
Settings = dict[str, Any]

LLAMA = {
    "position_embedding_type": "rope",
    "num_query_groups": 2,
    "activation": "swiglu",
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "qk_layernorm": True,
}
# What is compared with fp32 on the CPU: settings, documents, rows of logits at a time, and how far
# a loss may be from there, relative to it; a norm of gradients thirty times as far.
CASES: dict[str, tuple[Settings, bool, int, float]] = {
    "fp32": ({"precision": "fp32"}, False, 0, 1e-5),
    "fp32, documents, dense mask": ({"precision": "fp32", "compile": False}, True, 0, 1e-5),
    "bf16": ({}, False, 0, 1e-3),
    "bf16, not compiled": ({"compile": False}, False, 0, 1e-3),
    "bf16, documents": ({}, True, 0, 1e-3),
    "bf16, documents, dense mask": ({"compile": False}, True, 0, 1e-3),
    "bf16, head in chunks": ({}, False, 100, 1e-3),
    "bf16, recomputed": ({"checkpoint_activations": True}, False, 0, 1e-3),
    "bf16, Llama's shape, norms of heads": (LLAMA, True, 0, 1e-3),
    "bf16, Muon": ({"optimizer": "muon", "muon_extra_scale_factor": 0.2}, False, 0, 1e-3),
    "fp16, dynamic loss scale": ({"precision": "fp16", "loss_scale_window": 2}, False, 0, 2e-4),
}
# Layers, hidden size, heads, vocabulary, sequence.
SIZES = {
    "124M": (12, 768, 12, 50257, 2048),
    "345M": (24, 1024, 16, 50257, 2048),
    "1.3B": (24, 2048, 16, 50257, 2048),
    "toy": (2, 64, 4, 500, 64),
}
SMALL = (2, 256, 4, 4096, 512)  # for parity
PARTS = {  # what belongs to a part of the profile, by words in the names of kernels
    "attention": ("flash", "fmha", "sdpa", "flex", "scaled_dot"),
    "matrix products": ("gemm", "nvjet", "cutlass", "aten::mm", "addmm", "bmm", "matmul"),
    "optimizer": ("adam", "multi_tensor", "foreach"),
    "copies": ("memcpy", "memset", "copy_", "fill_", "zero_"),
}
WARM_UP = 3


def config_of(size: tuple[int, ...], device: str, micro: int, **more: Any) -> Config:
    """A run of two micro batches a step."""
    layers, hidden, heads, vocabulary_size, length = size
    settings = {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "vocab_size": vocabulary_size,
        "seq_length": length,
        "micro_batch_size": micro,
        "global_batch_size": 2 * micro,
        "device": device,
    }
    return Config(**{**settings, "precision": "bf16", **more})


def open_engine(config: Config) -> Engine:
    """An engine alone in its process."""
    model = ModelConfig.of(config, config.vocab_size or 0)
    return make_engine(config, model, parallel.start(config))


def batches(config: Config, step: int, documents: bool = False) -> list[dict[str, Tensor]]:
    """The micro batches of a step: random tokens, of three documents in a sample if asked."""
    draw = torch.Generator().manual_seed(step)
    found, length = [], config.seq_length
    for _ in range(config.global_batch_size // config.micro_batch_size):
        shape = (config.micro_batch_size, length + 1)
        ids = torch.randint(config.vocab_size or 0, shape, generator=draw)
        batch = {"tokens": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}
        batch["loss_mask"] = torch.ones(batch["tokens"].shape)
        if documents:
            edges = torch.full(shape, length, dtype=torch.int32)
            edges[:, :3] = torch.tensor([0, length // 3, length // 2])
            batch["cu_seqlens"] = edges
        if config.device == "cuda":
            batch = {name: x.pin_memory() for name, x in batch.items()}
        found.append(batch)
    return found


def parity(name: str, size: tuple[int, ...], device: str) -> Row:
    """How far the losses of four steps are from those of fp32 on the CPU."""
    settings, documents, chunk, bound = CASES[name]
    reference = {**settings, "precision": "fp32", "compile": False}
    losses, norms = list[list[float]](), list[list[float]]()
    kernel = ""
    for where, what, rows in (("cpu", reference, 0), (device, settings, chunk)):
        config = config_of(size, where, 2, **what)
        engine = open_engine(config)
        chunks = {where: rows} if rows else {}
        with patch.dict(vocabulary.CHUNKS, chunks), fastest_kernel(engine.topology.device):
            data = batches(config, 0, documents)  # the same, so that something is learned
            steps = [engine.train_batch(data, 3e-3) for _ in range(4)]
        losses.append([float(step.loss) for step in steps])
        norms.append([float(step.grad_norm) for step in steps])
        kernel = kernel_of(engine.model, engine.dtype, 2, documents)  # type: ignore[attr-defined]
    apart = max(abs(a - b) / b for a, b in zip(losses[1], losses[0], strict=True))
    norm = max(abs(a - b) / b for a, b in zip(norms[1], norms[0], strict=True))
    row = {"case": name, "attention": kernel, "loss": losses[1][-1], "apart": apart, "norm": norm}
    return {**row, "bound": bound, "right": apart <= bound and norm <= 30 * bound}


def waiting(name: str, size: tuple[int, ...], device: str) -> Row:
    """Whether a step waits for the device: torch raises where it does."""
    settings, documents, _, _ = CASES[name]
    config = config_of(size, device, 2, **settings)
    engine = open_engine(config)
    data = [batches(config, step, documents) for step in range(WARM_UP)]
    found = "never"
    with fastest_kernel(engine.topology.device):
        for batch in data:
            engine.train_batch(batch, 1e-3)
        mode = torch.cuda.set_sync_debug_mode if device == "cuda" else (lambda _: None)
        mode("error")
        try:
            engine.train_batch(data[0], 1e-3)
        except RuntimeError as error:
            found = str(error).splitlines()[0]
        mode("default")
    if device != "cuda":
        return {"case": name, "waits": "not measured"}
    return {"case": name, "waits": found, "right": found == "never"}


def compilation(name: str, size: tuple[int, ...], device: str) -> Row:
    """Graph breaks, and graphs that are compiled after the first step and the first evaluation."""
    from torch._dynamo.utils import counters

    settings, documents, _, _ = CASES[name]
    config = config_of(size, device, 2, **{**settings, "compile": True})
    engine = open_engine(config)
    counters.clear()
    graphs = []
    with fastest_kernel(engine.topology.device):
        for step in range(4):
            engine.train_batch(batches(config, step, documents), 1e-3)
            engine.evaluate(batches(config, step, documents))
            graphs.append(counters["stats"]["unique_graphs"])
    breaks, again = sum(counters["graph_break"].values()), graphs[-1] - graphs[0]
    row = {"case": name, "graphs": graphs[0], "breaks": breaks, "again": again}
    return {**row, "right": not (breaks or again)}


def profile(name: str, size: tuple[int, ...], device: str, micro: int) -> Row:
    """Shares of the device's time in a step, and of the time in which it had nothing to do."""
    config = config_of(size, device, micro)
    engine, data = open_engine(config), batches(config, 0)
    cuda = device == "cuda"
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if cuda else []
    with fastest_kernel(engine.topology.device):
        for _ in range(WARM_UP):
            float(engine.train_batch(data, 1e-4).loss)
        with torch.profiler.profile(activities=activities) as traced:
            begin = time.perf_counter()
            float(engine.train_batch(data, 1e-4).loss)
            seconds = time.perf_counter() - begin
    parts = dict.fromkeys((*PARTS, "everything else"), 0.0)
    for event in traced.key_averages():
        taken = event.self_device_time_total if cuda else event.self_cpu_time_total
        on_device = str(event.device_type).endswith("CUDA") if cuda else True
        if on_device and taken:
            words = event.key.lower()
            part = next((p for p, names in PARTS.items() if any(n in words for n in names)), None)
            parts[part or "everything else"] += taken / 1e6
    busy = sum(parts.values())
    shares = {part: taken / busy for part, taken in parts.items()}
    idle = max(0.0, 1 - busy / seconds) if cuda else None
    return {"size": name, "micro_batch": micro, "seconds": seconds, "shares": shares, "idle": idle}


def speed(name: str, size: tuple[int, ...], device: str, micro: int, steps: int) -> Row:
    """Tokens/s, MFU and memory at one micro batch; "does not fit" where memory is too small."""
    row: Row = {"size": name, "micro_batch": micro, "sequence": size[-1]}
    config = config_of(size, device, micro)
    try:
        engine, data = open_engine(config), batches(config, 0)
        meter = Meter(engine.model.model.flops_per_token, size[-1], engine.topology)
        with fastest_kernel(engine.topology.device):
            for step in range(WARM_UP + steps):
                meter.add(engine.train_batch(data, 1e-4), 2 * micro, 1e-4)
                if step == WARM_UP - 1:
                    meter.read()
                    meter.restart()
            found = meter.read()
    except RuntimeError as error:
        if "out of memory" not in str(error).lower():
            raise
        return {**row, "failed": "does not fit"}
    names = ("seconds_per_step", "tokens_per_second", "tflops_per_gpu", "mfu")
    row |= {name: found[name] for name in names}
    row["parameters"] = engine.model.model.parameters
    return {**row, "peak_memory": peak_memory(engine.topology.device)}


def in_process(function: Callable[..., Row], name: str, *arguments: Any) -> Row:
    """Call it in a fresh process, so that nothing before has left memory or compiled code."""
    try:
        with mp.get_context("spawn").Pool(1) as pool:
            return pool.apply(function, (name, *arguments))
    except Exception as error:  # the other parts are still worth to be known
        return {"case": name, "failed": repr(error)[:200], "right": False}


def at_once(function: Callable[..., Row], name: str, *arguments: Any) -> Row:
    """Call it here, with what would go to another process and come back."""
    function, arguments = pickle.loads(pickle.dumps((function, arguments)))
    result: Row = pickle.loads(pickle.dumps(function(name, *arguments)))
    return result


def measure(call: Callable[..., Row], device: str, toy: bool, deadline: float) -> dict[str, Any]:
    """All sections: lists of rows by name."""
    small = SIZES["toy"] if toy else SMALL
    found: dict[str, list[Row]] = {name: [] for name in ("parity", "waiting", "compilation")}
    for name in CASES:
        found["parity"].append(_shown(call(parity, name, small, device)))
    for name in ("bf16", "bf16, documents", "bf16, Muon"):
        found["waiting"].append(_shown(call(waiting, name, small, device)))
    compiled = ("bf16", "bf16, documents", "bf16, Llama's shape, norms of heads")
    for name in compiled[-1:] if toy else compiled:
        found["compilation"].append(_shown(call(compilation, name, small, device)))
    found["sizes"], found["profile"] = [], []
    for name, size in SIZES.items():
        if (name == "toy") is not toy:
            continue
        best: Row = {}
        for micro in (1, 2) if toy else (2, 4, 8, 16, 32, 64, 128):
            row: Row = {"size": name, "micro_batch": micro, "failed": "not measured: no time left"}
            if time.monotonic() < deadline:
                row = call(speed, name, size, device, micro, 2 if toy else 10)
            found["sizes"].append(_shown(row))
            if "failed" in row:
                break
            best = max(best, row, key=lambda one: one.get("tokens_per_second", 0))
        if best:
            found["profile"].append(_shown(call(profile, name, size, device, best["micro_batch"])))
    return found


def _shown(row: Row) -> Row:
    sys.stdout.write(f"{row}\n")
    sys.stdout.flush()
    return row


def best_rows(found: dict[str, Any]) -> list[Row]:
    """Of each size that was measured, the row with the most tokens a second."""
    best: dict[str, Row] = {}
    for row in found["sizes"]:
        if "failed" not in row:
            before = best.get(row["size"], row)
            best[row["size"]] = max(before, row, key=lambda one: one["tokens_per_second"])
    return list(best.values())


def write_report(folder: Path, found: dict[str, Any], device: str) -> None:
    """FOLDER/report.md, and FOLDER/report.png where matplotlib is installed."""
    name = torch.cuda.get_device_name() if device == "cuda" else machine()["cpu"]
    lines = [f"# The trainer on {name}", "", f"torch {torch.__version__}", ""]
    for row in best_rows(found):
        mfu = "MFU not known" if row["mfu"] is None else f"{row['mfu']:.1%} MFU"
        lines += [
            f"- {row['size']}: {row['tokens_per_second']:,.0f} tokens/s, {mfu}, "
            f"{row['peak_memory'] / 1e9:.1f} GB with a micro batch of {row['micro_batch']}."
        ]
    for row in found["profile"]:
        if "failed" in row:
            continue
        shares = sorted(row["shares"].items(), key=lambda item: -item[1])
        idle = "" if row["idle"] is None else f"; the GPU has nothing to do {row['idle']:.0%} of it"
        words = ", ".join(f"{share:.0%} {part}" for part, share in shares)
        lines += [
            f"- What limits {row['size']}: of a step of {row['seconds']:.3g} s {words}{idle}."
        ]
    for section in ("parity", "waiting", "compilation", "sizes"):
        lines += ["", f"## {section.capitalize()}", "", *_table(found[section])]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with contextlib.suppress(ImportError):
        _draw(folder / "report.png", found)


def _table(rows: list[Row]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    texts = [[_cell(row.get(name)) for name in names] for row in rows]
    return [f"| {' | '.join(cells)} |" for cells in (names, ["---"] * len(names), *texts)]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def _draw(path: Path, found: dict[str, Any]) -> None:
    """Tokens/s by micro batch, and shares of a step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    speeds, shares = figure.subplots(1, 2)
    for size in dict.fromkeys(row["size"] for row in found["sizes"]):
        rows = [row for row in found["sizes"] if row["size"] == size and "failed" not in row]
        pairs = [(row["micro_batch"], row["tokens_per_second"]) for row in rows]
        if pairs:
            speeds.plot(*zip(*pairs, strict=True), marker="o", label=size)
    speeds.set(xlabel="micro batch", ylabel="tokens/s", xscale="log", yscale="log")
    speeds.legend()
    profiles = [row for row in found["profile"] if "failed" not in row]
    ends = dict.fromkeys((row["size"] for row in profiles), 0.0)
    for part in (*PARTS, "everything else"):
        widths = [row["shares"][part] for row in profiles]
        shares.barh(list(ends), widths, left=list(ends.values()), label=part)
        ends = {size: end + width for (size, end), width in zip(ends.items(), widths, strict=True)}
    shares.set(xlabel="share of a step")
    shares.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def main(argv: list[str] | None = None) -> int:
    """Measure everything, write the report, append rows; 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("report"), metavar="DIR")
    parser.add_argument("--toy", action="store_true", help="toy sizes, on whatever is here")
    parser.add_argument("--minutes", type=float, default=60, help="no new size after 3/4 of these")
    parser.add_argument("--no-rows", action="store_true", help="append no rows")
    args = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not args.toy:
        parser.error("there is no GPU here that torch can use: try --toy")
    with contextlib.ExitStack() as stack:
        if args.toy:
            torch.set_num_threads(1)
            # What is compiled is looked at, and left to the interpreter.
            stack.enter_context(patch("torch.compile", partial(torch.compile, backend="eager")))
            stack.callback(torch._dynamo.reset)  # type: ignore[no-untyped-call]
        deadline = time.monotonic() + 45 * args.minutes
        found = measure(at_once if args.toy else in_process, device, args.toy, deadline)
    write_report(args.output, found, device)
    rows = [{"benchmark": kind, "kind": device, **row} for kind in found for row in found[kind]]
    if not (args.no_rows or args.toy):
        append_rows("gpu", rows, versions("torch"))
    wrong = [row for row in rows if row.get("right") is False]
    sys.stdout.write(f"{args.output}/report.md; wrong: {len(wrong)}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

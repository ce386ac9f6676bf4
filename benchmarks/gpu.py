"""What the trainer is on a GPU, in an hour at most: is it right, does it wait, how fast, and why.

    python benchmarks/gpu.py -o report        # one GPU; report.md, report.png, rows
    python benchmarks/gpu.py -o report --toy  # the same in toy sizes, on a CPU too: some seconds

Parity: kernels and types on the device against fp32 on the CPU. Waiting: steps in which torch calls
a synchronisation with the device an error. Compilation: graph breaks, and what is compiled again
after the first step. Layouts: ZeRO, tensor ranks and stages against one process, where there are
enough GPUs or NCCL may put several ranks on one (``gpu_layouts.py``). Profile: where the time of a
step goes. Sizes: tokens/s, MFU and memory, with micro batches to the memory's limit. What is not
timed runs side by side. Nothing is downloaded. The exit code is 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing as mp
import os
import pickle
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from common import append_rows, versions
from gpu_layouts import LAYOUTS, in_ranks, layout
from gpu_report import PARTS, write_report
from gpu_steps import batches, config_of, furthest, open_engine, waits

from tokpack.trainer import vocabulary
from tokpack.trainer.attention import fastest_kernel
from tokpack.trainer.metrics import StepMeter, peak_memory

if TYPE_CHECKING:
    from collections.abc import Callable


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
# What is compared with fp32 on the CPU: settings, documents, and rows of logits at a time.
CASES: dict[str, tuple[Settings, bool, int]] = {
    "fp32": ({"precision": "fp32"}, False, 0),
    "fp32, documents, dense mask": ({"precision": "fp32", "compile": False}, True, 0),
    "bf16": ({}, False, 0),
    "bf16, not compiled": ({"compile": False}, False, 0),
    "bf16, documents": ({}, True, 0),
    "bf16, documents, dense mask": ({"compile": False}, True, 0),
    "bf16, head in chunks": ({}, False, 100),
    "bf16, recomputed": ({"checkpoint_activations": True}, False, 0),
    "bf16, Llama's shape, norms of heads": (LLAMA, True, 0),
    "bf16, Muon": ({"optimizer": "muon", "muon_extra_scale_factor": 0.2}, False, 0),
    "fp16, dynamic loss scale": ({"precision": "fp16", "loss_scale_window": 2}, False, 0),
}
# How far a device may be from fp32 on the CPU: so many times as far as its precision takes the CPU
# itself in the same steps, and what two orders of a sum in fp32 come to.
TIMES, ROUNDING = 5, 1e-5
# Layers, hidden size, heads, vocabulary, sequence.
SIZES = {
    "124M": (12, 768, 12, 50257, 2048),
    "345M": (24, 1024, 16, 50257, 2048),
    "1.3B": (24, 2048, 16, 50257, 2048),
    "toy": (2, 64, 4, 500, 64),
}
SMALL = (2, 256, 4, 4096, 512)  # for parity
WARM_UP = 3


def parity(name: str, size: tuple[int, ...], device: str) -> Row:
    """How far losses and norms of four steps are from those of fp32 on the CPU."""
    settings, documents, chunk = CASES[name]
    plain = {**settings, "compile": False}
    runs = [("cpu", {**plain, "precision": "fp32"}, 0), ("cpu", plain, chunk)]
    found, kernel = list[list[float]](), ""
    for where, what, rows in (*runs, (device, settings, chunk)):
        config = config_of(size, where, 2, **what)
        engine = open_engine(config)
        chunks = {where: rows} if rows else {}
        with patch.dict(vocabulary.CHUNKS, chunks), fastest_kernel(engine.topology.device):
            data = batches(config, 0, documents)  # the same, so that something is learned
            steps = [engine.train_batch(data, 3e-4) for _ in range(4)]
        found += [[float(step.loss) for step in steps], [float(step.grad_norm) for step in steps]]
        kernel = engine.model.attention_kernel(engine.dtype, 2, documents)  # type: ignore[attr-defined]
    row: Row = {"case": name, "attention": kernel, "loss": found[4][-1], "right": True}
    for what, exact, cpu, here in zip(
        ("loss", "norm"), found[:2], found[2:4], found[4:], strict=True
    ):
        bound = ROUNDING + TIMES * furthest(cpu, exact)
        row |= {f"{what}_apart": furthest(here, exact), f"{what}_bound": bound}
        row["right"] &= row[f"{what}_apart"] <= bound
    return row


def waiting(name: str, size: tuple[int, ...], device: str) -> Row:
    """Whether a step waits for the device: torch raises where it does."""
    settings, documents, _ = CASES[name]
    config = config_of(size, device, 2, **settings)
    engine = open_engine(config)
    data = [batches(config, step, documents) for step in range(WARM_UP)]
    with fastest_kernel(engine.topology.device):
        for batch in data:
            engine.train_batch(batch, 1e-3)
        found = waits(lambda: engine.train_batch(data[0], 1e-3), device)
    if device != "cuda":
        return {"case": name, "waits": "not measured"}
    return {"case": name, "waits": found, "right": found == "never"}


def compilation(name: str, size: tuple[int, ...], device: str) -> Row:
    """Graph breaks, and graphs that are compiled after the first step and the first evaluation."""
    from torch._dynamo.utils import counters

    settings, documents, _ = CASES[name]
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
        meter = StepMeter(engine.model.model.flops_per_token, size[-1], engine.topology)
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


def untimed(call: Callable[..., Row], device: str, toy: bool, jobs: int) -> dict[str, list[Row]]:
    """What is right or wrong, ``jobs`` at a time: lists of rows by section."""
    small = SIZES["toy"] if toy else SMALL
    compiled = ("bf16", "bf16, documents", "bf16, Llama's shape, norms of heads")
    work: list[tuple[str, Callable[..., Row], str]] = [("parity", parity, name) for name in CASES]
    work += [("waiting", waiting, name) for name in ("bf16", "bf16, documents", "bf16, Muon")]
    work += [("compilation", compilation, name) for name in (compiled[-1:] if toy else compiled)]
    shared = os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
    room = 4 if toy or shared else torch.cuda.device_count()
    layouts = [name for name, (_, ranks) in LAYOUTS.items() if ranks <= room]
    found: dict[str, list[Row]] = {"parity": [], "waiting": [], "compilation": [], "layouts": []}
    with ThreadPoolExecutor(jobs) as pool:
        rows = [
            (section, pool.submit(call, what, name, small, device)) for section, what, name in work
        ]
        alone = pool.submit(in_ranks, {}, 1, small, device)  # before those that wait for it
        rows += [
            ("layouts", pool.submit(layout, name, small, device, alone))
            for name in (layouts[-1:] if toy else layouts)
        ]
        for section, row in rows:
            found[section].append(_shown(row.result()))
    return found


def measure(
    call: Callable[..., Row], device: str, toy: bool, deadline: float, micro_batches: list[int]
) -> dict[str, Any]:
    """Tokens a second and profiles, one after the other: lists of rows by section."""
    found: dict[str, list[Row]] = {"sizes": [], "profile": []}
    for name, size in SIZES.items():
        if (name == "toy") is not toy:
            continue
        best: Row = {}
        for micro in (1, 2) if toy else micro_batches:
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


def main(argv: list[str] | None = None) -> int:
    """Measure everything, write the report, append rows; 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("report"), metavar="DIR")
    parser.add_argument("--toy", action="store_true", help="toy sizes, on whatever is here")
    parser.add_argument("--minutes", type=float, default=60, help="no new size after 3/4 of these")
    parser.add_argument("--jobs", type=int, default=4, help="cases that are not timed, at once")
    parser.add_argument("--only", choices=("right", "speed"), help="what is right, or how fast")
    parser.add_argument(
        "--micro-batches", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64, 128], metavar="N"
    )
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
        call = at_once if args.toy else in_process
        found: dict[str, list[Row]] = {}
        if args.only != "speed":
            found |= untimed(call, device, args.toy, 1 if args.toy else args.jobs)
        if args.only != "right":
            found |= measure(call, device, args.toy, deadline, args.micro_batches)
    write_report(args.output, found, device)
    gpu = torch.cuda.get_device_name() if device == "cuda" else ""
    rows = [{"benchmark": kind, "gpu": gpu, **row} for kind in found for row in found[kind]]
    if not (args.no_rows or args.toy):
        append_rows("gpu", rows, versions("torch"))
    wrong = [row for row in rows if row.get("right") is False]
    sys.stdout.write(f"{args.output}/report.md; wrong: {len(wrong)}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

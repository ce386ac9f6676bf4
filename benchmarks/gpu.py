"""What the trainer is on a GPU, in an hour at most: is it right, does it wait, how fast, and why.

    python benchmarks/gpu.py              # one GPU
    python benchmarks/gpu.py --gpus 8     # several GPUs of a node, by gpus.py
    python benchmarks/gpu.py --fp8        # one GPU, in fp8 too
    python benchmarks/gpu.py --toy        # the same in toy sizes, on a CPU too: some seconds

Parity: kernels and types on the device against fp32 on the CPU. Steady: steps in which torch calls
a synchronisation with the device an error, graph breaks, and what is compiled after the first step.
Profile: where the time of a step goes. Sizes: tokens/s, MFU and memory, with
micro batches to the memory's limit. What is not timed runs side by side. Nothing is downloaded. The
exit code is 1 where something is wrong.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import common
import torch
from common import Row

from tokpack.trainer import parallel, tensor
from tokpack.trainer.blocks import fastest_kernel
from tokpack.trainer.config.config import Config
from tokpack.trainer.config.model import ModelConfig
from tokpack.trainer.engine import make_engine
from tokpack.trainer.metrics import StepMeter, peak_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from tokpack.trainer.engine import Engine

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
# What belongs to a part of the profile, by words in the names of kernels; the first that fits.
PARTS = {
    "attention": ("flash", "fmha", "sdpa", "flex", "scaled_dot", "cudnn"),
    "matrix products": ("gemm", "nvjet", "cutlass", "splitk", "aten::mm", "addmm", "bmm", "matmul"),
    "optimizer": ("adam", "fusedoptimizer"),
    "softmax of the head": ("softmax",),
    "casts to fp8": ("scaled_mm", "abs_"),
    "norms and activations": ("layer_norm", "layernorm", "gammabeta", "gelu", "silu", "rms_norm"),
    "copies and sums of gradients": (
        "memcpy", "memset", "copy", "_cat", "cat_", "fillfunctor", "functor_add", "multi_tensor"
    ),
}  # fmt: skip


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
    """An engine, and with others in other processes where the environment names them."""
    model = ModelConfig.of(config, config.vocab_size or 0)
    return make_engine(config, model, parallel.start(config))


def batches(
    config: Config, step: int, documents: bool = False, count: int = 2
) -> list[dict[str, Tensor]]:
    """Micro batches of a step: random tokens, of three documents in a sample if asked."""
    draw = torch.Generator().manual_seed(step)
    found, length = [], config.seq_length
    for _ in range(count):
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


def waits(step: Callable[[], object], device: str) -> str:
    """Where a step waits for the device, of which torch makes an error; "never"."""
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    return "never"


def furthest(found: list[float], exact: list[float]) -> float:
    """The largest relative difference."""
    return max(abs(a - b) / b for a, b in zip(found, exact, strict=True))


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
        with patch.dict(tensor.CHUNKS, chunks), fastest_kernel(engine.topology.device):
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


def steady(name: str, size: tuple[int, ...], device: str) -> Row:
    """Whether a step waits for the device, has graph breaks, or is compiled after the first one."""
    from torch._dynamo.utils import counters

    settings, documents, _ = CASES[name]
    config = config_of(size, device, 2, **{**settings, "compile": True})
    engine = open_engine(config)
    counters.clear()
    graphs = []
    with fastest_kernel(engine.topology.device):
        for step in range(4):
            data = batches(config, step, documents)
            engine.train_batch(data, 1e-3)
            engine.evaluate(data)
            graphs.append(counters["stats"]["unique_graphs"])
        found = waits(lambda: engine.train_batch(data, 1e-3), device)
    breaks, again = sum(counters["graph_break"].values()), graphs[-1] - graphs[0]
    row = {"case": name, "graphs": graphs[0], "breaks": breaks, "again": again, "waits": found}
    return {**row, "right": not (breaks or again) and found == "never"}


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
        if on_device and taken and not event.is_user_annotation:  # a range of kernels, not one
            words = event.key.lower()
            part = next((p for p, names in PARTS.items() if any(n in words for n in names)), None)
            parts[part or "everything else"] += taken / 1e6
    busy = sum(parts.values())
    shares = {part: taken / busy for part, taken in parts.items()}
    idle = max(0.0, 1 - busy / seconds) if cuda else None
    return {"size": name, "micro_batch": micro, "seconds": seconds, "shares": shares, "idle": idle}


def speed(
    name: str, size: tuple[int, ...], device: str, micro: int, steps: int, **more: Any
) -> Row:
    """Tokens/s, MFU and memory at one micro batch; "does not fit" where memory is too small."""
    row: Row = {"size": name, "micro_batch": micro, "sequence": size[-1]}
    row |= {"fp8": True} if more.get("fp8") else {}
    config = config_of(size, device, micro, **more)
    try:
        engine = open_engine(config)
        count = config.global_batch_size // (micro * engine.topology.data_size)
        data = batches(config, 0, count=count)
        meter = StepMeter(engine.model.model.flops_per_token, size[-1], engine.topology)
        with fastest_kernel(engine.topology.device):
            for step in range(WARM_UP + steps):
                meter.add(engine.train_batch(data, 1e-4), config.global_batch_size, 1e-4)
                if step == WARM_UP - 1:
                    meter.read()
                    meter.restart()
            found = meter.read()
    except RuntimeError as error:
        if "out of memory" not in str(error).lower():
            raise
        return {**row, "failed": "does not fit"}
    names = ("seconds_per_step", "tokens_per_second", "tokens_per_second_per_gpu")
    names += ("tflops_per_gpu", "mfu")
    row |= {name: found[name] for name in names}
    row["parameters"] = engine.model.model.parameters
    return {**row, "peak_memory": peak_memory(engine.topology.device)}


def learnable(config: Config, steps: int) -> list[dict[str, Tensor]]:
    """A micro batch for each step, in which most tokens follow from the one before."""
    draw, kinds = torch.Generator().manual_seed(0), 97
    samples = steps * config.micro_batch_size
    ids = torch.randint(kinds, (config.seq_length + 1, samples), generator=draw)
    follows = torch.rand(ids.shape, generator=draw) < 0.8
    for place in range(config.seq_length):
        ids[place + 1] = torch.where(follows[place], (ids[place] * 3 + 1) % kinds, ids[place + 1])
    parts = ids.T.contiguous().split(config.micro_batch_size)
    ones = torch.ones((config.micro_batch_size, config.seq_length))
    return [{"tokens": x[:, :-1], "labels": x[:, 1:], "loss_mask": ones} for x in parts]


def curve(name: str, size: tuple[int, ...], device: str, steps: int) -> Row:
    """The loss of a small model in bf16 and in fp8 over as many steps of the same data.

    Means of the last tenth of the steps, and how far those of any tenth lie apart.
    """
    row: Row = {"case": name, "steps": steps}
    tenths = []
    for word, more in (("bf16", {}), ("fp8", {"fp8": True})):
        config = config_of(size, device, 8, **more)
        engine = open_engine(config)
        losses = [engine.train_batch([x], 1e-3).loss for x in learnable(config, steps)]
        tenths.append(torch.stack(losses).float().cpu().view(10, -1).mean(1).tolist())
        row[word] = tenths[-1][-1]
    return {**row, "apart": furthest(tenths[1], tenths[0])}


def in_process(function: Callable[..., Row], name: str, *arguments: Any) -> Row:
    """Call it in a fresh process, so that nothing before has left memory or compiled code."""
    try:
        with mp.get_context("spawn").Pool(1) as pool:
            return pool.apply(function, (name, *arguments))
    except Exception as error:  # the other parts are still worth to be known
        return {"case": name, "failed": repr(error)[:200], "right": False}


def untimed(call: Callable[..., Row], device: str, toy: bool, jobs: int) -> list[Row]:
    """Rows of what is right or wrong, ``jobs`` at a time."""
    small = SIZES["toy"] if toy else SMALL
    compiled = ("bf16", "bf16, documents", "bf16, Muon", "bf16, Llama's shape, norms of heads")
    work: list[tuple[Callable[..., Row], str]] = [(parity, name) for name in CASES]
    work += [(steady, name) for name in (compiled[-1:] if toy else compiled)]
    with ThreadPoolExecutor(jobs) as pool:
        rows = [(what, pool.submit(call, what, name, small, device)) for what, name in work]
        return [{"benchmark": what.__name__, **row.result()} for what, row in rows]


def timed(
    call: Callable[..., Row],
    device: str,
    toy: bool,
    deadline: float,
    micro_batches: list[int],
    *,
    fp8: bool,
) -> list[Row]:
    """Rows of tokens a second and of profiles, one after the other."""
    rows: list[Row] = []
    for name, size in SIZES.items():
        if (name == "toy") is not toy:
            continue
        best: Row = {}
        for micro in (1, 2) if toy else micro_batches:
            row: Row = {"size": name, "micro_batch": micro, "failed": "not measured: no time left"}
            if time.monotonic() < deadline:
                row = call(speed, name, size, device, micro, 2 if toy else 10)
            rows.append({"benchmark": "sizes", **row})
            if "failed" in row:
                break
            best = max(best, row, key=lambda one: one.get("tokens_per_second", 0))
        if best:
            row = call(profile, name, size, device, best["micro_batch"])
            rows.append({"benchmark": "profile", **row})
        if best and fp8:
            row = call(partial(speed, fp8=True), name, size, device, best["micro_batch"], 10)
            rows.append({"benchmark": "sizes", **row})
    if fp8:
        rows.append({"benchmark": "curve", **call(curve, "small", SMALL, device, 2000)})
    return rows


def main(argv: list[str] | None = None) -> int:
    """Measure everything, print it, append rows; 1 where something is wrong."""
    parser = common.parser(__doc__, data=False, work=False)
    parser.add_argument("--toy", action="store_true", help="toy sizes, on whatever is here")
    parser.add_argument("--gpus", type=int, help="measure layouts on so many, and nothing else")
    parser.add_argument("--fp8", action="store_true", help="each size in fp8 too, and its loss")
    parser.add_argument("--minutes", type=float, default=60, help="no new size after 3/4 of these")
    parser.add_argument("--jobs", type=int, default=4, help="cases that are not timed, at once")
    parser.add_argument("--only", choices=("right", "speed"), help="what is right, or how fast")
    parser.add_argument(
        "--micro-batches", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64, 128], metavar="N"
    )
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
        call = (lambda function, *more: function(*more)) if args.toy else in_process
        rows: list[Row] = []
        if args.gpus:
            from gpus import measure

            rows, args.only = measure(args.gpus, args.toy), "layouts"
        if args.only not in ("speed", "layouts"):
            rows += untimed(call, device, args.toy, 1 if args.toy else args.jobs)
        if args.only not in ("right", "layouts"):
            rows += timed(call, device, args.toy, deadline, args.micro_batches, fp8=args.fp8)
    gpu = torch.cuda.get_device_name() if device == "cuda" else ""
    rows = [{"gpu": gpu, **row} for row in rows]
    common.show(rows)
    if not (args.no_save or args.toy):
        common.append_rows("gpu", rows, common.versions("torch"))
    wrong = [row for row in rows if row.get("right") is False]
    print(f"wrong: {len(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

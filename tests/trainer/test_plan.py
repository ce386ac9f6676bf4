"""``tokpack train --plan``: estimates are as far from published runs as docs/train-plan.md says."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.places import ROOT

from tokpack.cli.main import main
from tokpack.configuration.config import Config
from tokpack.configuration.cost import Layout, memory_of, mfu_of, time_of
from tokpack.configuration.hardware import GPUS, Cluster, cluster_of
from tokpack.configuration.layouts import plan_of
from tokpack.configuration.model import ModelConfig
from tokpack.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

A100, H100 = GPUS["a100-80"], GPUS["h100"]


def model(layers: int, width: int, heads: int, **more: Any) -> ModelConfig:
    settings = {"seq_length": 2048, "vocab_size": 51200, **more}
    config = Config(num_layers=layers, hidden_size=width, num_attention_heads=heads, **settings)
    return ModelConfig.of(config, settings["vocab_size"])


def megatron(
    sizes: tuple[int, int, int], layout: Layout, nodes: int, tflops: float = 0, seconds: float = 0
) -> tuple[ModelConfig, Layout, Cluster, float]:
    """A run of Megatron-LM on A100s, from its TFLOP/s of a GPU, or its seconds of a step."""
    layers, width, _ = sizes
    length, ids = 2048, 51200
    shares = 1 + length / (6 * width) + ids / (16 * layers * width)  # Narayanan et al., section 5.1
    flops = 96 * layout.batch * length * layers * width**2 * shares
    seconds = seconds or flops / (tflops * 1e12 * nodes * 8)
    layout = replace(layout, group=1, scores=True, scattered=True)
    return model(*sizes), layout, replace(A100, nodes=nodes), seconds


def single(sizes: tuple[int, int, int], micro: int, batch: int) -> tuple[ModelConfig, Layout]:
    """A run of llm.c: one node, no recomputation."""
    return model(*sizes, seq_length=1024, vocab_size=50257), Layout(1, 1, 8, micro, batch)


NEOX = {
    "vocab_size": 50257,
    "position_embedding_type": "rope",
    "untie_embeddings_and_output_weights": True,
}
LLAMA = {
    "seq_length": 8192,
    "vocab_size": 128256,
    "num_query_groups": 8,
    "ffn_hidden_size": 14336,
    "activation": "swiglu",
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    **{key: NEOX[key] for key in NEOX if key != "vocab_size"},
}
N, K = "Narayanan et al. 2021", "Korthikanti et al. 2022"
PUBLISHED = {
    f"{N} 1.7B": megatron((24, 2304, 24), Layout(1, 1, 32, 16, 512), 4, 137),
    f"{N} 3.6B": megatron((30, 3072, 32), Layout(2, 1, 32, 16, 512), 8, 138),
    f"{N} 7.5B": megatron((36, 4096, 32), Layout(4, 1, 32, 16, 512), 16, 142),
    f"{N} 18B": megatron((40, 6144, 48), Layout(8, 1, 32, 8, 1024), 32, 135),
    f"{N} 39B": megatron((48, 8192, 64), Layout(8, 2, 32, 4, 1536), 64, 138),
    f"{N} 76B": megatron((60, 10240, 80), Layout(8, 4, 32, 2, 1792, interleaved=3), 128, 140),
    f"{N} 145B": megatron((80, 12288, 96), Layout(8, 8, 24, 2, 2304, interleaved=2), 192, 148),
    f"{N} 310B": megatron((96, 16384, 128), Layout(8, 16, 15, 1, 2160, interleaved=2), 240, 155),
    f"{N} 530B": megatron((105, 20480, 128), Layout(8, 35, 9, 1, 2520, interleaved=3), 315, 163),
    f"{N} 1T": megatron((128, 25600, 160), Layout(8, 64, 6, 1, 3072), 384, 163),
    f"{K} 22B": megatron((48, 6144, 64), Layout(8, 1, 1, 4, 4), 1, seconds=1.42),
    f"{K} 175B": megatron((96, 12288, 96), Layout(8, 8, 1, 1, 64, interleaved=3), 8, seconds=18.13),
    f"{K} 530B": megatron(
        (105, 20480, 128), Layout(8, 35, 1, 1, 280, interleaved=3), 35, seconds=49.05
    ),
    f"{K} 1T": megatron((128, 25600, 160), Layout(8, 64, 1, 1, 512), 64, seconds=94.42),
    "GPT-NeoX 20B": (
        model(44, 6144, 64, **NEOX),
        Layout(2, 4, 12, 4, 1536, 1, 1, deepspeed=True, scores=True),
        replace(GPUS["a100-40"], nodes=12, network_bandwidth=100),
        1830 * 3600 / 150_000,
    ),
    "llm.c 124M": (*single((12, 768, 12), 64, 512), A100, 0.30),
    "llm.c 350M": (*single((24, 1024, 16), 64, 512), A100, 0.82),
    "llm.c 774M": (*single((36, 1280, 20), 32, 512), A100, 1.7),
    "llm.c 1558M": (*single((48, 1600, 25), 16, 1024), H100, 2.80),
    "llm-foundry 1.3B": (
        model(24, 2048, 16, vocab_size=50368),
        Layout(1, 1, 8, 8, 512, zero=3, deepspeed=True),
        H100,
        512 * 2048 / (8 * 45455),
    ),
    "torchtitan 8B": (
        model(32, 4096, 32, **LLAMA),
        Layout(1, 1, 8, 1, 8, zero=3, deepspeed=True),
        H100,
        8 * 8192 / (8 * 6667),
    ),
}


def test_published_runs() -> None:
    """A line in docs/train-plan.md for each, and the limits that the page names."""
    page = (ROOT / "docs/train-plan.md").read_text()
    for name, (shape, layout, cluster, measured) in PUBLISHED.items():
        seconds = time_of(shape, layout, cluster).total
        error = seconds / measured - 1
        ranks = f"{layout.tensor} x {layout.pipeline} x {layout.data}"
        mfu = mfu_of(shape, layout, cluster, seconds)
        line = f"| {name} | {ranks} | {measured:.2f} | {seconds:.2f} | {error:+.0%} | {mfu:.0%} |"
        assert line in page, line
        assert abs(error) <= (0.10 if cluster.peak_tflops == 312 else 0.25), name
        # They ran, so they fit.
        assert memory_of(shape, layout).total < cluster.gpu_memory * 1e9, name
    assert "within 10% on A100" in page
    assert "within 25% on H100" in page


def test_own_runs() -> None:
    """A line in docs/train-plan.md for each size that benchmarks/gpu.py measured on an H100."""
    page = (ROOT / "docs/train-plan.md").read_text()
    shapes = {"124M": (12, 768, 12), "345M": (24, 1024, 16), "1.3B": (24, 2048, 16)}
    rows = map(json.loads, (ROOT / "benchmarks/results/gpu.jsonl").read_text().splitlines())
    measured = [row for row in rows if "seconds_per_step" in row]
    assert measured
    for row in measured:
        micro, seconds, used = (row[n] for n in ("micro_batch", "seconds_per_step", "peak_memory"))
        shape, layout = (
            model(*shapes[row["size"]], vocab_size=50257),
            Layout(1, 1, 1, micro, 2 * micro),
        )
        time = time_of(shape, layout, replace(H100, gpus_per_node=1)).total
        memory = memory_of(shape, layout)
        inside = memory.states + memory.activations + memory.logits
        line = (
            f"| {row['size']} | {micro} | {seconds:.3f} | {time:.3f} | {time / seconds - 1:+.0%} "
            f"| {used / 1e9:.1f} | {inside / 1e9:.1f} | {inside / used - 1:+.1%} |"
        )
        assert line in page, line
        assert abs(time / seconds - 1) < 0.2
        assert abs(inside / used - 1) < 0.03


@pytest.mark.parametrize("name", [f"{K} {size}" for size in ("22B", "175B", "530B", "1T")])
def test_without_recomputation_these_do_not_fit(name: str) -> None:
    """Figure 1 of Korthikanti et al.; with their formula for what a block keeps."""
    shape, layout, cluster, _ = PUBLISHED[name]
    shape = replace(shape, hidden_dropout=0.1)
    needed = memory_of(shape, replace(layout, group=0))
    assert needed.total > cluster.gpu_memory * 1e9
    s, b, h, a, t = 2048, layout.micro, shape.hidden_size, shape.num_attention_heads, layout.tensor
    block = s * b * h * (10 + 24 / t + 5 * a * s / (h * t))
    blocks = shape.num_layers / layout.pipeline * min(layout.pipeline, layout.micro_batches)
    assert needed.activations == pytest.approx(block * blocks + 4 * s * b * h)


def test_what_does_not_fit_on_one_gpu() -> None:
    """Weights, gradients and moments of each engine and stage of ZeRO, in bytes a parameter."""
    shape = model(24, 2048, 16)
    for zero, weights, gradients, optimizer in (
        (1, 2, 2, 3),
        (2, 2, 0.5, 3),
        (3, 0.5, 0.5, 3),
    ):
        found = memory_of(shape, Layout(1, 1, 4, 1, 4, zero=zero, deepspeed=True))
        assert found.weights == pytest.approx(weights * shape.parameters)
        assert found.gradients == pytest.approx(gradients * shape.parameters)
        assert found.optimizer == pytest.approx(optimizer * shape.parameters)
    whole = memory_of(shape, Layout(1, 1, 4, 1, 4, half=False))
    assert whole.weights == pytest.approx(4 * shape.parameters)
    # Of four stages the first has four micro batches under way, and the word embedding.
    staged = memory_of(shape, Layout(1, 4, 1, 1, 8))
    assert staged.weights > 6 * shape.parameters / 4


def test_a_sequence_in_parts_keeps_less() -> None:
    """The formula of Korthikanti et al. with sequence parallelism: all of it over tensor ranks."""
    shape = model(24, 2048, 16, hidden_dropout=0.1)
    found = memory_of(shape, Layout(8, 1, 1, 2, 2, sequence=True)).activations
    assert found == pytest.approx((34 * 24 + 4) * 2048 * 2 * 2048 / 8)


FLAGS = ["--num-layers=24", "--hidden-size=2048", "--num-attention-heads=16", "--seq-length=2048"]


def test_the_best_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", *FLAGS, "--vocab-size", "50257", "--global-batch-size", "512"]
    words += ["--tensor-model-parallel-size", "2", "--micro-batch-size", "8"]
    assert main([*words, "--plan", "--gpu", "H100", "--nodes", "2", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["estimated"] is True
    rows = plan["layouts"]
    fits = [row["fits"] for row in rows]
    assert fits == sorted(fits, reverse=True)
    times = [row["seconds"]["total"] for row in rows if row["fits"]]
    assert times == sorted(times)
    assert sum(row["asked"] for row in rows) == 1
    for row in rows:
        assert row["tensor"] * row["pipeline"] * row["data"] == 16
        assert row["batch"] % (row["micro"] * row["data"]) == 0
        parts = row["seconds"]
        total = sum(value for name, value in parts.items() if name != "total")
        assert parts["total"] == pytest.approx(total)
        # Its flags are what `tokpack train` understands, and lead to the same layout.
        cluster = cluster_of("h100", {"nodes": 2})
        if row in rows[:3]:
            again = plan_of([*FLAGS, "--vocab-size", "50257", *row["flags"].split()], cluster)
            asked = next(one for one in again.estimates if one.asked)
            assert asked.to_json()["seconds"] == parts
    assert main([*words, "--plan", "--gpu=h100", "--nodes", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("*   2   1     8      8") for line in lines)
    assert "estimated from formulas, not measured" in lines[2]


def test_rows_say_whose_engine_they_are_of(capsys: pytest.CaptureFixture[str]) -> None:
    """The flags of a row lead to it also behind those that ask for DeepSpeed."""
    words = [*FLAGS, "--vocab-size", "50257", "--deepspeed", "--micro-batch-size", "4"]
    for one in plan_of(words, H100).estimates[:6]:
        again = plan_of([*words, *one.flags().split()], H100).estimates
        assert next(other.layout for other in again if other.asked) == one.layout
    assert main(["train", *words, "--plan", "--gpu", "h100"]) == 0
    assert "ds  trained by DeepSpeed" in capsys.readouterr().out


def test_what_cannot_be_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("num_layers: 96\nhidden_size: 12288\nnum_attention_heads: 96\nsplit: 1,1,1\n")
    numbers = "--peak-tflops 100 --gpu-memory 24 --memory-bandwidth 1000 --link-bandwidth 30"
    numbers += " --network_bandwidth 10 --efficiency 0.5 --nodes 1"
    words = ["train", str(config), "--plan", "--tensor-model-parallel-size=16", "--precision=fp32"]
    assert main([*words, *numbers.split()]) == 1
    done = capsys.readouterr()
    assert "no layout fits into 24 GB; the smallest:" in done.out
    assert "the layout of the flags is none of these GPUs" in done.err
    assert "a vocabulary of 50,257 is assumed" in done.err
    assert "times are those of bf16" in done.err
    for more, message in (
        ([], "no GPU: add --gpu with one of a100-40"),
        (["--gpu", "h10"], "GPU h10 is not known, only .*; did you mean h100?"),
        (["--gpu", "h100", "--nodes", "0"], "--nodes is 0, expected a number above 0"),
        (["--gpu", "h100", "--gpu-memory", "nan"], "--gpu-memory is nan, expected"),
        (["--gpu", "h100", "--nproc", "8"], "with --plan, say --nodes and --gpus-per-node"),
        (["--gpu", "h100", "--num-layer", "8"], "unknown flag --num-layer; did you mean"),
    ):
        assert main(["train", "--plan", *more]) == 1
        assert message.split(".*")[0] in capsys.readouterr().err
    # Fewer samples than GPUs: they share layers. Without anything to share there is no layout.
    small = ["--global-batch-size", "7", "--vocab-size", "99"]
    assert {one.layout.data for one in plan_of(small, H100).estimates} == {1}
    with pytest.raises(UsageError, match="global_batch_size 7, 5 layers and 3 heads cannot be"):
        plan_of([*small, "--num-layers", "5", "--num-attention-heads", "3"], H100)

"""``tokpack train --plan``: estimates are as far from published runs as docs/train-plan.md says."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from support.manifests import manifest_for
from support.places import ROOT
from support.rounding import equal

from tokpack.cli.main import main
from tokpack.trainer.config.config import Config
from tokpack.trainer.config.estimate import Layout, memory_of, mfu_of, time_of
from tokpack.trainer.config.hardware import GPUS, Cluster
from tokpack.trainer.config.model import ModelConfig

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
    """A line in benchmarks/lab-book.md for each, and the limits that docs/train-plan.md names."""
    page = (ROOT / "docs/train-plan.md").read_text()
    book = (ROOT / "benchmarks/lab-book.md").read_text()
    for name, (shape, layout, cluster, measured) in PUBLISHED.items():
        seconds = time_of(shape, layout, cluster).total
        error = seconds / measured - 1
        ranks = f"{layout.tensor} x {layout.pipeline} x {layout.data}"
        mfu = mfu_of(shape, layout, cluster, seconds)
        line = f"| {name} | {ranks} | {measured:.2f} | {seconds:.2f} | {error:+.0%} | {mfu:.0%} |"
        assert line in book, line
        # No rounding: how good the model of a run is.
        assert abs(error) <= (0.10 if cluster.peak_tflops == 312 else 0.25), name
        # They ran, so they fit.
        assert memory_of(shape, layout).total < cluster.gpu_memory * 1e9, name
    assert "within 10% on A100" in page
    assert "within 25% on H100" in page


def test_own_runs() -> None:
    """A line in benchmarks/lab-book.md for each size that benchmarks/gpu.py measured in bf16."""
    book = (ROOT / "benchmarks/lab-book.md").read_text()
    shapes = {"124M": (12, 768, 12), "345M": (24, 1024, 16), "1.3B": (24, 2048, 16)}
    rows = map(json.loads, (ROOT / "benchmarks/results/gpu.jsonl").read_text().splitlines())
    measured = [row for row in rows if "seconds_per_step" in row and not row.get("fp8")]
    assert measured
    for row in measured:
        micro, seconds, used = (row[n] for n in ("micro_batch", "seconds_per_step", "peak_memory"))
        shape, layout = (
            model(*shapes[row["size"]], vocab_size=50257),
            Layout(1, 1, 1, micro, 2 * micro),
        )
        time = time_of(shape, layout, replace(GPUS["h200"], gpus_per_node=1)).total
        memory = memory_of(shape, layout)
        inside = memory.states + memory.activations + memory.logits
        line = (
            f"| {row['size']} | {micro} | {seconds:.3f} | {time:.3f} | {time / seconds - 1:+.0%} "
            f"| {used / 1e9:.1f} | {inside / 1e9:.1f} | {inside / used - 1:+.1%} |"
        )
        assert line in book, line
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
    assert needed.activations == equal(block * blocks + 4 * s * b * h, 40)


def test_what_does_not_fit_on_one_gpu() -> None:
    """Weights, gradients and moments of each engine and stage of ZeRO, in bytes a parameter."""
    shape = model(24, 2048, 16)
    for zero, weights, gradients, optimizer in ((1, 2, 2, 3), (2, 2, 0.5, 3), (3, 0.5, 0.5, 3)):
        found = memory_of(shape, Layout(1, 1, 4, 1, 4, zero=zero, deepspeed=True))
        assert found.weights == equal(weights * shape.parameters, 40)
        assert found.gradients == equal(gradients * shape.parameters, 40)
        assert found.optimizer == equal(optimizer * shape.parameters, 40)
    whole = memory_of(shape, Layout(1, 1, 4, 1, 4, half=False))
    assert whole.weights > 7 * shape.parameters  # and gathered copies of the blocks'
    alone = memory_of(shape, Layout(1, 1, 1, 1, 4, half=False))
    assert alone.weights == equal(4 * shape.parameters, 40)
    # Of four stages the first has four micro batches under way, and the word embedding.
    staged = memory_of(shape, Layout(1, 4, 1, 1, 8))
    assert staged.weights > 6 * shape.parameters / 4


def test_a_sequence_in_parts_keeps_less() -> None:
    """The formula of Korthikanti et al. with sequence parallelism: all of it over tensor ranks."""
    shape = model(24, 2048, 16, hidden_dropout=0.1)
    found = memory_of(shape, Layout(8, 1, 1, 2, 2, sequence=True)).activations
    assert found == equal((34 * 24 + 4) * 2048 * 2 * 2048 / 8, 40)


FLAGS = ["--num-layers=24", "--hidden-size=2048", "--num-attention-heads=16", "--seq-length=2048"]


def test_the_run_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", *FLAGS, "--vocab-size", "50257", "--global-batch-size", "512"]
    words += ["--tensor-model-parallel-size", "2", "--micro-batch-size", "8", "--plan"]
    assert main([*words, "--gpu", "H100", "--nodes", "2", "--json"]) == 0
    estimate = json.loads(capsys.readouterr().out)
    assert estimate["estimated"] is True
    assert estimate["fits"] is True
    layout = Layout(2, 1, 8, 8, 512)
    shape, cluster = model(24, 2048, 16, vocab_size=50257), replace(H100, nodes=2)
    assert {name: getattr(layout, name) for name in estimate["layout"]} == estimate["layout"]
    memory, time = memory_of(shape, layout), time_of(shape, layout, cluster)
    assert estimate["memory_bytes"]["total"] == memory.total
    assert estimate["seconds"] == {**asdict(time), "total": time.total}
    assert main([*words, "--gpu=h100", "--nodes", "2"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(map(len, lines)) <= 100
    assert "\nprocesses: 16 = tensor 2 x pipeline 1 x data 8, on cuda, engine torch" in out
    rate = f"{512 * 2048 / time.total:,.0f} tokens/s"
    assert f"fullest GPU: {memory.total / 1e9:.1f} GB of 84.9: " in out
    assert rate in out
    assert "estimated from formulas, not measured" in lines[-1]


def test_the_vocabulary_is_that_of_the_data(
    tmp_path: Path, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(f"{tmp_path}/wiki.bin").hardlink_to(f"{prefix}.bin")
    Path(f"{tmp_path}/wiki.idx").hardlink_to(f"{prefix}.idx")
    manifest_for(tmp_path / "wiki", {"vocab_size": 12345})
    blend = tmp_path / "blend.yaml"
    blend.write_text("datasets: {elsewhere: 0.3, wiki: 0.7}\n")
    config = tmp_path / "run.yaml"
    config.write_text(f"data_path: {blend}\n")
    data = (["--data-path", f"{tmp_path}/wiki"], [str(blend)], [str(config)])
    for words in (*data, ["--train-data-path", "0.3", "elsewhere", "0.7", f"{tmp_path}/wiki"]):
        assert main(["train", *FLAGS, "--plan", "--gpu=h100", *words]) == 0
        done = capsys.readouterr()
        assert "vocabulary 12,345 padded" in done.out
        assert "vocabulary" not in done.err


def test_a_run_that_fills_a_card_fits(capsys: pytest.CaptureFixture[str]) -> None:
    """80 GB of an H100 are GiB, of which programs get 79.1: more than 80 GB."""
    words = ["train", *FLAGS, "--vocab-size=51200", "--micro-batch-size=15", "--plan"]
    assert main([*words, "--gpu=h100"]) == 0
    assert "fullest GPU: 81.9 GB of 84.9: " in capsys.readouterr().out


def test_a_run_that_does_not_fit_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Its memory and what would make it smaller, no time; the exit code of a wrong request."""
    words = ["train", "--num-layers=96", "--hidden-size=12288", "--num-attention-heads=96"]
    words += ["--vocab-size=50257", "--plan", "--gpu=h100"]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "GB of 84.9: weights" in out
    assert "does not fit: try a larger --tensor-model-parallel-size" in out
    assert "--checkpoint-activations" in out
    assert "tokens/s" not in out
    smaller = ["--checkpoint-activations", "--zero-stage=3", "--micro-batch-size=1"]
    assert main([*words, *smaller]) == 1
    out = capsys.readouterr().out.replace("\n  ", " ")
    assert (
        "try a larger --tensor-model-parallel-size or --pipeline-model-parallel-size, or more"
        in out
    )
    assert main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["fits"] is False


def test_the_engine_is_that_of_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSpeed's ZeRO, with the stage that it is given; of a pipeline it is torch's."""
    words = ["train", *FLAGS, "--vocab-size", "50257", "--deepspeed", "--plan", "--gpu", "h100"]
    assert main([*words, "--bf16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layout"]["zero"] == 1
    assert main(words) == 0
    done = capsys.readouterr()
    assert "engine deepspeed, ZeRO 1" in done.out
    assert "--zero-stage 1 is used" in done.err
    assert main([*words, "--zero-stage=2", "--pipeline-model-parallel-size=2"]) == 0
    assert "engine torch, ZeRO 2" in capsys.readouterr().out


def test_what_cannot_be_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("num_layers: 96\nhidden_size: 12288\nnum_attention_heads: 96\nsplit: 1,1,1\n")
    gpu = tmp_path / "gpu.yaml"
    numbers = {"peak_tflops": 100, "gpu_memory": 24, "memory_bandwidth": 1000}
    numbers |= {"link_bandwidth": 30, "network_bandwidth": 10, "efficiency": 0.5}
    gpu.write_text(json.dumps(numbers))
    words = ["train", str(config), "--plan", "--precision=fp32", "--optimizer=muon"]
    words += ["--pipeline-model-parallel-size=2", "--pipeline-split", "50", "46"]
    assert main([*words, "--gpu", str(gpu)]) == 1
    done = capsys.readouterr()
    assert "GB of 24" in done.out
    assert "assuming a vocabulary of 50,257: set --vocab-size\n" in done.err
    assert "times are those of bf16" in done.err
    assert "stages are counted as equal" in done.err
    assert "the optimizer is counted as adam" in done.err
    for more, message in (
        ([], "no GPU is named: give --gpu, one of a100-40"),
        (["--gpu", str(gpu), "--nodes", "x"], "--nodes x: expected a whole number"),
        (["--gpu", "h10"], "GPU h10 is not known, only .*; did you mean h100?"),
        (["--gpu", "h100", "--nodes", "0"], "--nodes is 0, expected at least 1"),
        (["--gpu", "h100", "--nproc", "8"], "with --plan, say --nodes and --gpus-per-node"),
        (["--gpu", "h100", "--num-layer", "8"], "unknown flag --num-layer; did you mean"),
        (
            ["--gpu", "h100", "--tensor-model-parallel-size", "3"],
            "size 1; it counts 8 GPUs of a node: --gpus-per-node says how many there are",
        ),
        (
            ["--gpu", "h100", "--global-batch-size", "7"],
            "7 is not a multiple of --micro-batch-size 4 x 8 data parallel processes; it counts 8",
        ),
        (
            ["--gpu", "h100", "--global-batch-size", "7", "--gpus-per-node", "2"],
            "7 is not a multiple of --micro-batch-size 1 x 2 data parallel processes\n",
        ),
    ):
        assert main(["train", "--plan", *more]) == 1
        assert message.split(".*")[0] in capsys.readouterr().err
    for changed, message in (
        ({"gpu": "h10"}, "GPU h10 is not known"),
        ({"gpu_memory": -1}, "gpu.yaml: gpu_memory is -1, expected a number above 0"),
        ({"speed": 1}, "gpu.yaml: expected numbers for efficiency, "),
    ):
        gpu.write_text(json.dumps({**numbers, **changed}))
        assert main(["train", "--plan", "--gpu", str(gpu)]) == 1
        assert message in capsys.readouterr().err
    gpu.write_text(json.dumps({"gpu_memory": 80}))
    assert main(["train", "--plan", "--gpu", str(gpu)]) == 1
    assert "no numbers for peak_tflops, memory_bandwidth" in capsys.readouterr().err
    gpu.write_text(json.dumps({"gpu": "a100-40", "network_bandwidth": 100}))
    assert main(["train", "--plan", "--gpu", str(gpu), "--nodes", "2"]) == 0
    assert "2 x 8 GPUs: 312 TFLOP/s, 42.3 GB" in capsys.readouterr().out
    assert main(["train", "--gpu", "h100"]) == 1
    assert "--gpu needs --plan" in capsys.readouterr().err

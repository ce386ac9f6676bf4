"""``tokpack train``: a blend -> a GPT, on one CPU or many GPUs."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

from tokpack.cli import ranks
from tokpack.configuration.flags import resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

SUMMARY = "Train a GPT on datasets that tokpack made, in one process or many."
USAGE = "usage: tokpack train [config.yaml...] [blend.yaml] [flags]"
COLUMN = 34

# What a page shows: a flag with its value, and what it says. All else that is accepted is in
# docs/train.md: the names of Megatron-LM, Megatron-DeepSpeed and GPT-NeoX.
GROUPS = {
    "data": {
        "data-path [W] PREFIX...": "datasets with weights, one dataset, or a saved blend",
        "train-data-path [W] PREFIX...": "datasets of the training alone, not split",
        "valid-data-path [W] PREFIX...": "datasets of the validation alone",
        "test-data-path [W] PREFIX...": "datasets of the test alone",
        "split 969,30,1": "weights of training, validation and test (969,30,1)",
        "allow-empty": "leave out a dataset where the split has no sample of it",
        "order NAME": "the order of samples: stateless, or another program's (stateless)",
        "seed N": "seed of order and initialisation (1234)",
        "data-cache-path DIR": "indices of other orders and of packing, kept and shared",
        "reset-position-ids": "positions begin anew with each document",
        "reset-attention-mask": "attention stays between EODs, as in Megatron",
        "document-boundaries": "attention and positions stay inside documents, by the index",
        "calculate-per-token-loss": "a step's loss is a mean over labels, not over micro batches",
        "eod-mask-loss": "no loss behind the end of a document",
        "eod-id N": "the token that ends a document, where no manifest names it",
        "vocab-file FILE": "the vocabulary, where no manifest names it",
        "vocab-size N": "the size of the vocabulary, where nothing else says it",
    },
    "model": {
        "num-layers N": "transformer blocks (12)",
        "hidden-size N": "width (768)",
        "num-attention-heads N": "heads (12)",
        "num-query-groups N": "heads of keys and values (num-attention-heads)",
        "ffn-hidden-size N": "width inside the MLP (4 x hidden-size)",
        "seq-length N": "tokens of a sample (1024)",
        "max-position-embeddings N": "positions (seq-length)",
        "position-embedding-type T": "learned_absolute or rope (learned_absolute)",
        "rotary-percent P": "share of a head that rope turns (1)",
        "rotary-base B": "base of rope (10000)",
        "untie-embeddings-and-output-weights": "a head of its own",
        "parallel-residual": "attention and MLP side by side, as GPT-NeoX",
        "embed-layernorm": "a norm behind the embedding, as BigScience",
        "normalization T": "LayerNorm or RMSNorm (LayerNorm)",
        "activation T": "gelu (its tanh form), gelu_erf or swiglu (gelu)",
        "no-add-bias-linear": "no biases in linear layers",
        "hidden-dropout P": "dropout of residual branches (0)",
        "attention-dropout P": "dropout of attention (0)",
        "layernorm-epsilon E": "epsilon of the norms (1e-5)",
        "init-method-std S": "standard deviation of the initial weights (0.02)",
        "output-init-method-std S": "of residual outputs (init-method-std / sqrt(2 num-layers))",
        "make-vocab-size-divisible-by N": "the vocabulary is padded to a multiple of N x TP (128)",
    },
    "batch": {
        "micro-batch-size N": "samples of one pass of one data parallel process (up to 4)",
        "global-batch-size N": "samples of a step (a micro batch of each process)",
        "rampup-batch-size S I N": "begin with S samples, grow by I, over N samples",
        "train-samples N": "samples of the run (one epoch)",
        "train-iters N": "or steps",
    },
    "optimizer": {
        "lr X": "learning rate (3e-4)",
        "min-lr X": "where it ends (0)",
        "lr-decay-style T": "constant, linear, cosine or inverse-square-root (linear)",
        "lr-decay-samples N": "samples until min-lr (all); or --lr-decay-iters",
        "lr-decay-iters N": "",
        "lr-warmup-samples N": "samples of warm-up (0); or --lr-warmup-iters",
        "lr-warmup-iters N": "",
        "lr-warmup-fraction F": "or a share of the decay",
        "weight-decay X": "of weights, not of biases and norms (0.01)",
        "adam-beta1 X": "(0.9)",
        "adam-beta2 X": "(0.999)",
        "adam-eps X": "(1e-8)",
        "clip-grad X": "largest norm of the gradient, 0 for any (1)",
    },
    "precision": {
        "precision T": "fp32, bf16 or fp16; --bf16 and --fp16 too (bf16 on a GPU, else fp32)",
        "loss-scale X": "fp16: a fixed loss scale, 0 for a dynamic one (0)",
        "initial-loss-scale X": "where the dynamic one begins (65536)",
        "loss-scale-window N": "good steps until it doubles (1000)",
        "hysteresis N": "overflows until it halves (2)",
        "min-loss-scale X": "its lowest value (1)",
    },
    "parallel": {
        "nproc N": "start N processes on this machine",
        "tensor-model-parallel-size N": "processes that share each layer (1)",
        "pipeline-model-parallel-size N": "stages of layers (1)",
        "pipeline-split N...": "layers of each stage (equal)",
        "engine T": "torch or deepspeed (torch)",
        "zero-stage N": "DeepSpeed's ZeRO: 0, 1, 2 or 3 (0)",
        "deepspeed-config FILE": "DeepSpeed's JSON; the flags must not contradict it",
        "distributed-timeout-minutes N": "wait for another process so long (10)",
        "device T": "auto, cpu or cuda (auto)",
        "[no-]compile": "torch.compile of the blocks (on a GPU)",
    },
    "activations": {
        "checkpoint-activations": "compute them again in the backward pass",
        "checkpoint-num-layers N": "blocks between two that are kept (1)",
        "partition-activations": "each tensor parallel process keeps a part",
        "checkpoint-in-cpu": "keep them in the CPU's memory",
    },
    "run": {
        "save DIR": "checkpoints, log.jsonl and loss.png go here",
        "load DIR": "continue from here; an empty folder is a fresh start",
        "save-interval N": "steps between checkpoints (the last one only)",
        "extra-save-iters N...": "steps at which to save as well, 0 for the beginning",
        "keep-checkpoints N": "older ones are deleted, 0 for none (5)",
        "finetune": "load weights only, and begin at sample 0",
        "eval-interval N": "steps between evaluations (1000)",
        "eval-iters N": "batches of one, 0 for none (100)",
        "log-interval N": "steps between log lines (10)",
        "exit-interval N": "save and exit at a multiple of N steps",
        "exit-duration-in-mins X": "save and exit after X minutes",
        "kill-switch-path FILE": "save and exit when this file is there",
        "log-dir DIR": "log.jsonl and loss.png go here instead",
        "tensorboard-dir DIR": "and TensorBoard's events here",
        "tensorboard-queue-size N": "events until it writes (1000)",
        "log-timers-to-tensorboard": "",
        "log-batch-size-to-tensorboard": "",
        "log-validation-ppl-to-tensorboard": "",
        "debug": "show the traceback of an error",
    },
}

EPILOG = """\
The flags of Megatron-LM, Megatron-DeepSpeed and GPT-NeoX, and their files, are understood under
their own names too. torchrun and deepspeed start the same program as -m tokpack.trainer.

examples:
  tokpack train --data-path 0.35 wiki 0.65 owt --save run --train-samples 100_000
  tokpack train config.yaml --lr 1e-4
  tokpack train --nproc 2 --tensor-model-parallel-size 2 --data-path wiki
  torchrun --nproc_per_node 8 -m tokpack.trainer --data-path wiki
"""


def run(argv: Sequence[str]) -> int:
    """Run ``tokpack train ARGV``."""
    if {"-h", "--help"} & set(argv):
        sys.stdout.write(page())
        return 0
    if "WORLD_SIZE" not in os.environ:
        _, nproc = resolve(argv)
        if nproc is not None and nproc > 1:
            return ranks.start([sys.executable, "-m", "tokpack.trainer", *argv], nproc)
    # By name: the command line and the trainer do not import each other.
    code: int = importlib.import_module("tokpack.trainer.__main__").run(argv)
    return code


def page() -> str:
    """The help page."""
    width = max(70, min(shutil.get_terminal_size().columns, 100))
    lines = [SUMMARY, "", USAGE]
    for title, flags in GROUPS.items():
        lines += ["", f"{title}:"]
        for flag, text in flags.items():
            wrapped = textwrap.wrap(text, width - COLUMN, break_on_hyphens=False) or [""]
            first = f"  --{flag}"
            if len(first) >= COLUMN - 1:
                lines.append(first)
                first = ""
            for part in wrapped:
                lines.append(f"{first:<{COLUMN}}{part}".rstrip())
                first = ""
    return "\n".join([*lines, "", EPILOG])

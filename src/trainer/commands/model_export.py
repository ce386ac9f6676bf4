"""``tokpack model export``: a checkpoint -> a folder that ``transformers`` loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokpack.cli import terminal
from tokpack.cli.inputs import RARE, tokenizer_flag, tokenizer_given, tokenizer_paths
from tokpack.cli.parser import Group, Page, flags, given_options, number
from tokpack.errors import needs_extra
from tokpack.quantities import count_text

if TYPE_CHECKING:
    import argparse


# Shared by export and generate: flags for the parts of a checkpoint, and how it is opened.

PARTS = (
    Group("where the checkpoint does not say it", (tokenizer_flag("that of its training data"),)),
    RARE,
)
CHECKPOINTS = """\
CHECKPOINT is a folder that `tokpack train` saved to or `tokpack model import` made (its latest
checkpoint counts), or one of the step_... folders in it.
"""


def open_named(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """The weights that the flags name, and their tokenizer or the reason why there is none."""
    with needs_extra("train"):
        from ..checkpoints.export import open_checkpoint

    average = getattr(arguments, "average", 1)
    return open_checkpoint(arguments.inputs[0], average, **tokenizer_given(arguments))


PAGE = Page(
    "model export",
    "Write a checkpoint as a Hugging Face model: safetensors, config.json and the tokenizer.",
    (
        Group(
            "flags",
            flags(
                """
                -o, --output DIR        the folder to make
                --average N             average the weights of the last N checkpoints (1)
                --dtype fp32|bf16|fp16  type of the weights (fp32)
                --max-shard-size SIZE   bytes of one file (5GB)
                --overwrite             replace what is there
                """,
                average={"type": number(1), "default": 1},
                dtype={"default": "fp32"},
                max_shard_size={"default": 5_000_000_000},
            ),
        ),
        *PARTS,
    ),
    CHECKPOINTS
    + """
The folder loads with AutoModelForCausalLM.from_pretrained(DIR), as GPT2LMHeadModel,
GPTNeoXForCausalLM, LlamaForCausalLM, Qwen2ForCausalLM or Qwen3ForCausalLM, and gives the same
logits.

examples:
  tokpack model export run -o my-gpt
  tokpack model export run/step_00010000 -o my-gpt --dtype bf16
  tokpack model export run -o my-gpt --average 5
""",
    usage="CHECKPOINT -o DIR [flags]",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack model export``."""
    weights, tokenizer = open_named(arguments)
    missing = isinstance(tokenizer, Exception)
    from ..checkpoints.export import export

    options = given_options(export, arguments) | {
        "tokenizer": None if missing else tokenizer,
        "inputs": [*arguments.inputs, *tokenizer_paths(arguments)],
    }
    with terminal.Reporter() as report:
        model_class = export(weights, arguments.output, **options, progress=report)
    if missing:
        terminal.note(f"the model has no tokenizer: {tokenizer}")
    count = count_text(weights.model.parameters)
    terminal.say(f"{arguments.output}: {model_class}, {count} parameters as {arguments.dtype}")
    terminal.print_paths(arguments.output)
    return 0

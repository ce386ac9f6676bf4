"""``tokpack model import``: a model of another program -> a checkpoint to train on from."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tokpack.cli import terminal
from tokpack.cli.inputs import RARE, tokenizer_flag, tokenizer_given
from tokpack.cli.parser import Group, Page, flags
from tokpack.errors import needs_extra
from tokpack.quantities import count_text

if TYPE_CHECKING:
    import argparse

PAGE = Page(
    "model import",
    "Convert another program's model to a checkpoint that `tokpack train` can continue from.",
    (
        Group(
            "flags",
            flags(
                """
                -o, --output DIR  the folder to make
                --vocab-size N    ids in the vocabulary: the rows after them are padding, and are
                                  left out (all rows)
                --config FILE     the model of GPT-NeoX's or Megatron's files, as a YAML of flags
                --accept-argument NAME  ignore this argument of the model, which would be
                                  refused as unknown; may be repeated
                """,
                accept_argument={"action": "append"},
            ),
        ),
        Group("tokenizer", (tokenizer_flag("the one in its folder"),)),
        RARE,
    ),
    """\
MODEL is a folder of transformers with config.json and safetensors (GPT-2, GPT-NeoX, Llama,
Mistral, Qwen2, Qwen3), of GPT-NeoX's layer files, or of Megatron's mp_rank_* files. Logits are the
same.
DIR/config.yaml has the model's settings, for `tokpack train`.

examples:
  tokpack model import pythia-160m -o base
  tokpack train base/config.yaml --load base --finetune --save run --data-path wiki
  tokpack model import 20B_checkpoints --config 20B.yml -o neox
""",
    "MODEL -o DIR [flags]",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack model import``."""
    (folder,), output = arguments.inputs, arguments.output
    with needs_extra("train"):
        from ..checkpoints import importing

    weights = importing.open_model(
        folder,
        config=arguments.config,
        vocab_size=arguments.vocab_size,
        accept_argument=arguments.accept_argument or (),
    )
    tokenizer, reason = importing.describe_tokenizer(folder, **tokenizer_given(arguments))
    with terminal.Reporter() as report:
        importing.import_model(weights, output, tokenizer=tokenizer, progress=report)
    for note in weights.notes:
        terminal.note(note)
    for name, value in weights.accepted.items():
        terminal.note(f"{name} {value} was ignored: the model may compute something else")
    if tokenizer is None:
        terminal.note(f"the checkpoint does not name a tokenizer: {reason}")
    count = count_text(weights.model.parameters)
    terminal.say(f"{output}: {count} parameters, {weights.model.vocab_size:,} ids")
    name = shlex.quote(output)
    terminal.say("config.yaml has the model's settings, to go on with:")
    words = f"{name}/config.yaml --load {name} --finetune --save ... --data-path ..."
    terminal.say(f"  tokpack train {words}")
    terminal.print_paths(output)
    return 0

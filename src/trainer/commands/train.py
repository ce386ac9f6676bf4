"""``tokpack train``: a blend -> a GPT, on one CPU or many GPUs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tokpack.cli.parser import Flag, Group, Page, flags_from

from ..config.config import GROUPS
from ..config.flags import SETTINGS, resolve
from . import ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.option import Option


_flag_of = flags_from(SETTINGS)
_VALUES = {int: "N", float: "X", str: "T"}  # of settings that name no other


def _flag(one: Option) -> Flag:
    """A setting as its help page shows it; ``config.flags`` parses it."""
    value = one.value or _VALUES.get(one.kind)
    return _flag_of(one.name, **({"metavar": value} if value else {}))


PAGE = Page(
    "train",
    "Train a GPT on datasets that tokpack made, in one process or many.",
    (
        *(
            Group(
                title,
                tuple(_flag(one) for one in SETTINGS.values() if one.group == title and one.help),
            )
            for title in (*GROUPS, "plan")
        ),
        Group("", tuple(_flag(one) for one in SETTINGS.values() if not one.help), hidden=True),
    ),
    """\
Flags and configuration files of Megatron-LM, Megatron-DeepSpeed and GPT-NeoX work too, under their
own names. torchrun and deepspeed can start the same program as -m tokpack.trainer.

examples:
  tokpack train --data-path 0.35 wiki 0.65 owt --save run --train-samples 100_000
  tokpack train config.yaml --lr 1e-4
  tokpack train --nproc 2 --tensor-model-parallel-size 2 --data-path wiki
  torchrun --nproc_per_node 8 -m tokpack.trainer --data-path wiki
  tokpack train config.yaml --plan --gpu h100 --nodes 4
""",
    "[config.yaml...] [blend.yaml] [flags]",
    takes_words=True,
)


def run(argv: Sequence[str]) -> int:
    """Run ``tokpack train ARGV``."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    request = resolve(argv, world)
    if request.cluster is not None:
        from .run_estimate import show

        return show(request.config, request.cluster, as_json=request.as_json)
    if "WORLD_SIZE" not in os.environ and (request.processes or 1) > 1:
        command = [sys.executable, "-m", "tokpack.trainer", "-"]
        return ranks.start(command, request.processes or 1, request.to_json())
    # Torch's threads on a processor spin while they wait, which a busy machine has no time for.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from ..__main__ import run as run_rank

    run_rank(request, world)
    return 0

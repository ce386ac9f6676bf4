"""The flags of a blend that its commands share; each is a key of a blend file too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokpack.cli.parser import flag, number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

SAMPLES = flag(
    "--samples", "--num-samples", type=number(1), metavar="N", help="samples of training"
)
SEQ_LENGTH = flag("--seq-length", type=number(1), metavar="S", help="tokens of a sample (2048)")
SPLIT = flag("--split", metavar="STRING", help="shares of each dataset, such as 969,30,1")
EVALUATED = (
    flag(
        "--valid-samples",
        type=number(0),
        metavar="N",
        help="samples of each validation set, 0: none (as many as come once)",
    ),
    flag(
        "--test-samples",
        type=number(0),
        metavar="N",
        help="samples of the test set, 0: none (as many as come once)",
    ),
)
ORDER = (
    flag("--order", metavar="NAME", help="stateless, stateless-blocks, megatron, ... (stateless)"),
    flag("--seed", type=number(0), metavar="N", help="seed of the order (1234)"),
    flag("--packing", metavar="NAME", help="none, best_fit, document (none)"),
)


def given(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The settings of these names that flags say."""
    values = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}

"""The plan of a blend as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.cli.figures import sentence, table
from tokpack.cli.terminal import put
from tokpack.display import shown
from tokpack.quantities import count_text, percent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokpack.look import CrossDuplicates
    from tokpack.samples.blend.plan import BlendPlan, Mixture

_MOST_SHARES = 8


def print_plan(plan: BlendPlan) -> None:
    """Print what each dataset gives, how weights change, and what each split has."""
    train, length = plan.train, plan.spec.seq_length
    _print_datasets(train)
    tokens = count_text(train.samples * length)
    padded = "" if train.filled == 1 else f", {1 - train.filled:.0%} of them padding"
    put(f"{train.samples:,} samples of {length:,} tokens: {tokens} tokens{padded}")
    if train.changes:
        put()
        for phase in train.phases:
            sentence(f"from sample {phase.first:,}: {_shares(train, phase.shares)}")
    if len(plan.mixtures) > 1:
        put()
        _print_splits(plan)


def print_shared(plan: BlendPlan, shared: Mapping[str, CrossDuplicates]) -> None:
    """Print how many documents of each dataset are in another one as well."""
    sizes = {dataset.path_prefix: dataset.token_count for dataset in plan.datasets}
    put()
    rows = [["documents shared", "documents", "tokens", ""]]
    rows += [
        [shown(prefix), f"{one.documents:,}", f"{one.tokens:,}", percent(one.tokens, sizes[prefix])]
        for prefix, one in shared.items()
    ]
    table(rows)


def _print_datasets(mixture: Mixture) -> None:
    usage = mixture.usage
    share = "share" if mixture.spec.by == "tokens" else "share of samples"
    rows = [["dataset", "documents", "tokens", "weight", share, "samples", "epochs"]]
    rows += [
        [
            shown(portion.prefix),
            f"{portion.documents:,}",
            count_text(portion.tokens),
            "by size" if portion.weight is None else f"{portion.weight:.6g}",
            f"{share:.2%}",
            f"{samples:,.0f}",
            f"{epochs:.2f}",
        ]
        for portion, share, samples, epochs in usage
    ]
    total = f"{mixture.documents:,}", count_text(mixture.tokens), "", "100.00%"
    rows.append(["together", *total, f"{mixture.samples:,}", ""])
    if mixture.spec.by == "trained":
        trained = [one.portion.trained for one in usage]
        cells = ["trained", *map(count_text, trained), count_text(sum(trained))]
        for row, cell in zip(rows, cells, strict=True):
            row.insert(3, cell)
    table(rows, bars=[one.share for one in usage])


def _shares(mixture: Mixture, shares: tuple[float, ...]) -> str:
    pairs = [
        (portion.prefix, share)
        for portion, share in zip(mixture.portions, shares, strict=True)
        if share
    ]
    words = [f"{shown(prefix)} {share:.2%}" for prefix, share in pairs[:_MOST_SHARES]]
    more = len(pairs) - _MOST_SHARES
    return ", ".join(words) + (f" and {more} more" if more > 0 else "")


def _print_splits(plan: BlendPlan) -> None:
    rows = [["split", "datasets", "documents", "tokens", "samples", ""]]
    rows += [
        [
            shown(mixture.name),
            f"{len(mixture.portions):,}",
            f"{mixture.documents:,}",
            count_text(mixture.tokens),
            f"{mixture.samples:,}",
            f"nothing from {', '.join(shown(p.prefix) for p in mixture.missing)}"
            if mixture.missing
            else "",
        ]
        for mixture in plan.mixtures
    ]
    table(rows, left=(0, 5))

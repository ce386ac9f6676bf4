"""What runs of the trainer have to agree on: losses, norms, copies of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.parallel_tools import (
    BATCHES,
    TINY,
    Figures,
    Run,
    batches,
    first_weights,
    open_engine,
    train_apart,
    train_many,
)
from support.rounding import EXACT, PRODUCTS, TERMS, gamma, likely
from tokpack.trainer.config.config import Config

if TYPE_CHECKING:
    from pathlib import Path

HALVES = {"bf16": "bfloat16", "fp16": "float16"}


def check_copies(run: Run) -> None:
    """After each step, what products read is this rank's and the others' fp32, rounded.

    Bit by bit: no processor has a choice in rounding a number. Vectors are not rounded.
    """
    import torch

    engine = open_engine(run.settings)
    data = batches(run, engine.topology.data_rank, engine.topology.data_size)
    for step in range(run.steps):
        engine.train_batch(data[step % BATCHES], 1e-3)
        for number, block in engine.model.blocks.items():
            whole = {
                name: held.whole(held.parameter.detach())
                for name, held in engine.data.held.items()
                if name.startswith(f"blocks.{number}.")
            }
            block.unshard()
            for name, working in block.named_parameters(prefix=f"blocks.{number}"):
                dtype = torch.float32 if working.ndim < 2 else engine.dtype
                assert torch.equal(working, whole.pop(name).to(dtype)), name
                assert working.dtype == dtype
            assert not whole
            block.reshard()


def difference(one: Figures, other: Figures, name: str = "loss") -> float:
    """The largest difference of two runs at the same step."""
    return max(abs(a - b) for a, b in zip(one[name], other[name], strict=True))


def check(runs: list[Run]) -> list[Figures]:
    """In float64, all runs must give the losses and norms of the first, which learns."""
    found = train_many(runs, float64=True)
    _compare(runs, found, found[0], EXACT)
    return found


def check_against_twin(runs: list[Run], apart: Path | None = None) -> None:
    """All runs must give the losses and norms of support.gpt_twin, to about 1e-12 of a loss.

    torch's default type has to be float64. With a folder ``apart`` ranks share nothing.
    """
    found = train_many(runs, float64=True) if apart is None else train_apart(runs, apart)
    # Of four steps in both programs. Errors of random signs, not of one as in EXACT; AdamW's own
    # are below.
    bound = 2 * 16 * likely(BATCHES * 2 * PRODUCTS * TERMS, "float64")
    _compare(runs, found, _of_twin(runs[0]), bound)


def _of_twin(run: Run) -> Figures:
    from support.gpt_twin import Twin
    from tokpack.trainer.config.schedule import Schedule

    settings = {**TINY, **run.settings}
    config = Config(**settings)
    twin = Twin(first_weights(config), settings)
    data = batches(run, 0, 1)
    schedule, found = Schedule(config, 1000), []
    for (_, size), step in zip(schedule.steps(), range(run.steps), strict=False):
        found.append(twin.train(data[step % BATCHES][: size // 2], 1e-3))
    losses, norms = map(list, zip(*found, strict=True))
    evaluation = [twin.loss(data[0]).item()]
    return {"loss": losses, "norm": norms, "norms": twin.norms, "evaluation": evaluation}


def check_precision(runs: list[Run]) -> list[Figures]:
    """The first step of each must be that of the first run, in fp32, as near as its type is.

    Later ones are not compared: AdamW turns the rounding of small gradients into steps, for which
    no bound is known. But all must learn.
    """
    found = train_many(runs)
    for run, figures in zip(runs, found, strict=True):
        for name, ways in (("loss", 1), ("norm", 2)):  # forward; and back
            value = found[0][name][0]
            apart = abs(figures[name][0] - value)
            allowed = value * (_first_step(runs[0], ways) + _first_step(run, ways))
            assert apart <= allowed, f"{name} of {run} is {apart} from the first, not {allowed}"
        assert figures["loss"][-1] < figures["loss"][0], run
    return found


def _first_step(run: Run, ways: int) -> float:
    """The relative error of a first loss (which is above twice each logit) or norm of gradients."""
    settings = {**TINY, **run.settings}
    products = 6 * settings["num_layers"] + 1  # in a row, as in support.rounding
    bound = likely(ways * products * TERMS, "float32")
    if (half := HALVES.get(settings.get("precision", "fp32"))) is not None:
        # Rounded are both factors and the result of a product, and two sums in each layer.
        bound += gamma(ways * (3 * products + 2 * settings["num_layers"]), half)
    return bound


def _compare(runs: list[Run], found: list[Figures], wanted: Figures, allowed: float) -> None:
    assert wanted["evaluation"][0] < wanted["loss"][0] - 0.1  # of the same batch: it learns
    for run, figures in zip(runs, found, strict=True):
        for name in ("loss", "evaluation", "norm", *(["norms"] if figures["norms"] else [])):
            apart = difference(figures, wanted, name)
            assert apart <= allowed, f"{name} of {run} is {apart} apart, not {allowed}"

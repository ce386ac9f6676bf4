"""The schedule of a run against a slow twin that follows Megatron's own arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st
from support.rounding import gamma

from tokpack.trainer.config.config import Config
from tokpack.trainer.config.schedule import Schedule


def config(**settings: Any) -> Config:
    return Config(**{"micro_batch_size": 1, **settings})


def twin_steps(samples: int, batch: int, rampup: tuple[int, int, int] | None) -> list[int]:
    """Batch sizes of all steps, counted as a calculator that is told after each step."""
    sizes, consumed = [], 0
    while True:
        size = batch
        if rampup is not None and consumed <= rampup[2] and rampup[2] and batch > rampup[0]:
            rises = (batch - rampup[0]) / rampup[1]
            size = rampup[0] + int(consumed / (rampup[2] / rises)) * rampup[1]
        if consumed + size > samples:
            return sizes
        sizes.append(size)
        consumed += size


@st.composite
def rampups(draw: st.DrawFn) -> tuple[int, tuple[int, int, int]]:
    start, increment, rises = (draw(st.integers(1, 6)) for _ in range(3))
    samples = draw(st.integers(0, 300))
    return start + increment * (rises - 1), (start, increment, samples)


@given(st.one_of(rampups(), st.tuples(st.integers(1, 9), st.none())), st.integers(1, 500))
def test_steps_are_the_twins(shape: Any, samples: int) -> None:
    batch, rampup = shape
    expected = twin_steps(samples, batch, rampup)
    assume(expected)
    schedule = Schedule(
        config(global_batch_size=batch, rampup_batch_size=rampup, train_samples=samples), 1
    )
    steps = list(schedule.steps())
    assert [size for _, size in steps] == expected
    for number, (first, _) in enumerate(steps):
        assert first == sum(expected[:number])
        assert schedule.count_steps(first) == len(steps) - number
        assert list(schedule.steps(first)) == steps[number:]
        assert schedule.step(len(steps) - 1 - number, first) == steps[-1]
        assert schedule.step(len(steps) - number, first) is None
    taken = [number for number, (_, size) in enumerate(steps) for _ in range(size)]
    assert [schedule.step_with(sample) for sample in range(len(taken))] == taken
    assert schedule.step_with(len(taken)) is None


def test_the_ramp_of_bigscience() -> None:
    schedule = Schedule(
        config(global_batch_size=16, rampup_batch_size=(2, 2, 1000), train_samples=10_000), 1
    )
    assert [schedule.batch_size(k) for k in (0, 142, 143, 999, 1000, 1001)] == [2, 2, 4, 14, 16, 16]
    assert {size for _, size in schedule.steps()} == set(range(2, 17, 2))


def twin_lr(c: Config, schedule: Schedule, k: int) -> float:
    s = schedule
    if s.warmup and k <= s.warmup:
        return c.lr * k / s.warmup
    if c.lr_decay_style == "constant":
        return c.lr
    if k > s.decay:
        return c.min_lr
    ratio = (k - s.warmup) / (s.decay - s.warmup)
    if c.lr_decay_style == "WSD":
        assert c.lr_wsd_decay_samples is not None
        return c.min_lr + twin_wsd(c, s.decay, c.lr_wsd_decay_samples, k) * (c.lr - c.min_lr)
    return {
        "linear": c.min_lr + (1 - ratio) * (c.lr - c.min_lr),
        "cosine": c.min_lr + (c.lr - c.min_lr) * 0.5 * (math.cos(math.pi * ratio) + 1),
        "inverse-square-root": max(c.min_lr, c.lr * max(s.warmup, 1) ** 0.5 / max(k, 1) ** 0.5),
    }[c.lr_decay_style]


def twin_wsd(c: Config, decay: int, ending: int, k: int) -> float:
    start = decay - ending
    if k <= start:
        return 1.0
    ratio = (k - start) / ending
    if c.lr_wsd_decay_style == "linear":
        return 1.0 - ratio
    if c.lr_wsd_decay_style == "cosine":
        return 0.5 * (math.cos(math.pi * ratio) + 1.0)
    if c.lr_wsd_decay_style == "exponential":
        return 2.0 * math.pow(0.5, ratio) - 1.0
    assert c.lr_wsd_decay_style == "minus_sqrt"
    return 1.0 - math.sqrt(ratio)


STYLES = ("constant", "linear", "cosine", "inverse-square-root")
ENDINGS = ("linear", "cosine", "exponential", "minus_sqrt")


@given(
    st.sampled_from([*((style, "linear") for style in STYLES), *(("WSD", end) for end in ENDINGS)]),
    st.tuples(st.integers(0, 90), st.integers(1, 200), st.integers(1, 200)),
    st.floats(1e-6, 1),
    st.floats(0, 1),
    st.integers(0, 500),
)
def test_learning_rates(
    style: tuple[str, str], lengths: tuple[int, int, int], top: float, share: float, k: int
) -> None:
    warmup, decay, ending = lengths
    assume(warmup < decay and ending <= decay)
    settings = config(
        lr_decay_style=style[0],
        lr_wsd_decay_style=style[1],
        lr_wsd_decay_samples=ending,
        lr=top,
        min_lr=top * share,
        lr_warmup_samples=warmup,
        lr_decay_samples=decay,
        train_samples=500,
    )
    schedule = Schedule(settings, 1)
    slack = 2 * gamma(16) * top  # of differences of terms that are at most top
    assert abs(schedule.lr(k) - twin_lr(settings, schedule, k)) <= slack
    assert 0 <= schedule.lr(k) <= top + slack
    if k > warmup:
        assert schedule.lr(k) >= top * share - slack
        assert schedule.lr(k + 1) <= schedule.lr(k) + slack
    assert abs(schedule.lr(warmup) - top) <= slack


def test_iterations_and_fractions_are_samples() -> None:
    base = config(global_batch_size=8, train_iters=100, lr_decay_style="cosine")
    by_iterations = Schedule(replace(base, lr_warmup_iters=5, lr_decay_iters=50), 1)
    assert (by_iterations.train_samples, by_iterations.warmup, by_iterations.decay) == (
        800,
        40,
        400,
    )
    assert by_iterations.count_steps() == 100
    by_share = Schedule(replace(base, lr_warmup_fraction=0.01), 1)
    assert (by_share.warmup, by_share.decay) == (8, 800)
    assert Schedule(config(global_batch_size=8), 83).count_steps() == 10  # one epoch

"""Training in any layout and with either engine is that of one plain model, in float64.

Real processes on gloo, and a tiny model. The reference is support.gpt_twin, which shares no code
with the trainer; of what depends on dropout it is the first run of a case.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

from support.deepspeed_tools import INSTALLED, zero
from support.parallel_checks import (
    check,
    check_against_twin,
    check_copies,
    check_precision,
    difference,
)
from support.parallel_tools import LLAMA, NEOX, PP, RAMP, TINY, TP, Run, in_processes, train_many

from tokpack.trainer.config.config import Config
from tokpack.trainer.config.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    Layouts = Sequence[tuple[dict[str, Any], int]]  # settings, and processes

CLIP = {"clip_grad": 0.3}
RECOMPUTE = {"checkpoint_activations": True, "checkpoint_num_layers": 3}
DROPOUT = {"num_layers": 4, "hidden_dropout": 0.1, "attention_dropout": 0.1}
SEQUENCE = {**TP, "sequence_parallel": True}
HEADS = {"qk_layernorm": True, "add_qkv_bias": True, "kv_channels": 24, "use_rope_scaling": True}
FP16, BF16 = {"precision": "fp16"}, {"precision": "bf16"}


def ours(stage: int, **more: Any) -> dict[str, Any]:
    """ZeRO of the torch engine."""
    return {"zero_stage": stage, **more}


# By what is trained: the settings of all its runs, the number of steps and of micro batches, the
# layout of the reference, and those that must equal it, with DeepSpeed last.
CASES: dict[str, tuple[dict[str, Any], tuple[int, int], Layouts, Layouts]] = {
    "gpt2": (
        {"num_layers": 4, **CLIP},
        (4, 4),
        [
            *(({}, 1), ({}, 2), (RECOMPUTE, 1), ({**TP, **PP}, 8)),
            *((ours(2, **TP), 4), (ours(1, **PP), 4), (ours(3, **PP), 4)),
            *((ours(3, **TP, **RECOMPUTE), 4), ({**SEQUENCE, **PP, **RECOMPUTE}, 4)),
        ],
        [*((zero(stage), 2) for stage in range(3)), (zero(1, **TP), 2)],
    ),
    "neox, untied": (NEOX, (4, 2), [({}, 1), (TP, 2), (PP, 2), (ours(3), 2)], []),
    "llama, uneven stages": (
        {**LLAMA, **HEADS, "num_layers": 4},
        (6, 4),
        [({}, 1), ({**SEQUENCE, **ours(3)}, 4), ({**PP, "pipeline_split": (1, 3)}, 2)],
        [(zero(3), 1)],
    ),
    "three data ranks, whose parts are not even": (
        {**LLAMA, **CLIP, "qk_layernorm": True, "global_batch_size": 6},
        (6, 3),
        [({}, 1), (ours(1), 3), (ours(2), 3), (ours(3), 3)],
        [],
    ),
    "gpt2, gathered over data and tensor ranks": (CLIP, (4, 4), [({}, 1)], [(zero(3, **TP), 4)]),
    "a growing batch": (
        RAMP,
        (6, 4),
        [({}, 1), ({**TP, **PP}, 4), ({}, 2)],
        [(zero(1), 2), (zero(2), 2), (zero(3), 2)],
    ),
    "fewer micro batches than stages": (
        {"num_layers": 4},
        (4, 2),
        [({}, 1), ({"pipeline_model_parallel_size": 4}, 4)],
        [],
    ),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", CASES)
def test_every_layout_is_the_model(name: str) -> None:
    base, (steps, micro_batches), layouts, of_deepspeed = CASES[name]
    layouts = [*layouts, *(of_deepspeed if INSTALLED else [])]
    check_against_twin([Run({**base, **layout}, n, steps, micro_batches) for layout, n in layouts])


@pytest.mark.usefixtures("float64")
def test_ranks_that_share_nothing_are_the_model(tmp_path: Path) -> None:
    """On machines of a cluster sets of names have other orders; gradients must not."""
    layouts = (*(ours(stage) for stage in range(4)), TP, SEQUENCE, PP)
    runs = [Run({"num_layers": 4, **CLIP, **layout}, 2) for layout in layouts]
    check_against_twin(runs, tmp_path)


@pytest.mark.usefixtures("float64")
def test_documents_are_apart_in_every_layout() -> None:
    normed: dict[str, Any] = {**LLAMA, "qk_layernorm": True}
    layouts: Layouts = [({}, 1), (ours(2), 2), ({**TP, **PP}, 4), ({**SEQUENCE, **RECOMPUTE}, 2)]
    check_against_twin([Run({**normed, **one}, n, documents=True) for one, n in layouts])


def test_dropout_of_tensor_ranks_is_the_same_again() -> None:
    layouts: Layouts = [(TP, 2), ({**TP, **RECOMPUTE}, 2)]
    if INSTALLED:
        layouts = [*layouts, (zero(2, **TP, **RECOMPUTE), 2)]
    check([Run({**DROPOUT, **layout}, n, 4, 2) for layout, n in layouts])


def test_the_cases_are_what_they_are_named() -> None:
    found = train_many([Run({"num_layers": 4, **CLIP}, 1, 1)])
    assert max(found[0]["norm"]) > CLIP["clip_grad"]  # clipping does something
    sizes = (size for _, size in Schedule(Config(**{**TINY, **RAMP}), epoch=1000).steps())
    assert list(islice(sizes, 6)) == [4] * 3 + [8] * 3


def test_documents_and_dropout_are_those_of_one_process() -> None:
    """Data and pipeline ranks, and a second computation, drop what one process drops."""
    layouts: Layouts = [({}, 1), ({}, 2), (PP, 2), (RECOMPUTE, 1)]
    if INSTALLED:
        layouts = [*layouts, *((zero(stage, **RECOMPUTE), 2) for stage in (2, 3))]
    found = check([Run({**DROPOUT, **one}, n, 4, 2, documents=True) for one, n in layouts])
    plain = train_many([Run({"num_layers": 4}, 1, 4, 2, documents=True)], float64=True)
    assert difference(found[0], plain[0]) > 1e-3


def test_fp32_is_fp32() -> None:
    base = {**NEOX, "num_layers": 4}
    layouts: Layouts = [({}, 1), (TP, 2), (PP, 2), ({}, 2), (RECOMPUTE, 1)]
    check_precision([Run({**base, **layout}, n, 4, 2) for layout, n in layouts])
    if INSTALLED:
        layouts = [({}, 1), (zero(1), 2), (zero(3), 2)]
        check_precision([Run({**CLIP, **layout}, n) for layout, n in layouts])


def test_half_precision_is_near() -> None:
    """That copies of pieces, gathered, are those of the whole: see the next test."""
    layouts: Layouts = [({}, 1), (TP, 2), (PP, 2), *((ours(stage), 2) for stage in range(4))]
    if INSTALLED:
        layouts = [*layouts, (zero(1), 2), (zero(2), 2), (zero(3), 2)]
    bf16 = [Run({**layout, **BF16}, n) for layout, n in layouts]
    fp16 = [Run({**layout, **FP16}, n) for layout, n in (layouts[1], layouts[-1])]
    check_precision([Run({}), *bf16, *fp16])


def test_copies_are_the_rounded_weights() -> None:
    """Made once a step, in all stages of ZeRO, of pieces on several ranks; recomputed too."""
    runs = [Run({**NEOX, **half, "checkpoint_activations": True}) for half in (BF16, FP16)]
    runs += [Run({**BF16, **ours(stage)}, 2) for stage in range(4)]
    in_processes([(run.world, check_copies, run) for run in runs])


def test_only_fp16_has_a_loss_scale() -> None:
    """Also where it would grow with every step: it would leave fp32 behind after 64 of them."""
    base = {"loss_scale_window": 1}
    found = train_many([Run(base, steps=3), Run({**base, **BF16}, 1, 3)])
    assert all(set(figures["scale"]) == {1.0} for figures in found)
    fixed = {**base, **FP16, "loss_scale": 64.0}
    assert train_many([Run(fixed, steps=3)])[0]["scale"] == [64.0] * 3


def test_all_ranks_skip_a_step_that_overflows() -> None:
    base = {**FP16, "initial_loss_scale": 2.0**23, "hysteresis": 1}
    layouts: Layouts = [({}, 1), ({**TP, **PP}, 4), (ours(1), 2), (ours(3), 2)]
    if INSTALLED:
        layouts = [*layouts, (zero(2), 2), (zero(3), 2)]
    runs = [Run({**base, **layout}, n, 7) for layout, n in layouts]
    for run, figures in zip(runs, train_many(runs), strict=True):
        skipped = int(sum(figures["skipped"]))
        assert 4 <= skipped < 7, run
        assert figures["steps"] == [7 - skipped]
        assert figures["scale"][:3] == [2.0**23, 2.0**22, 2.0**21]
        assert not math.isfinite(figures["norm"][0])
        assert figures["loss"][0] == figures["loss"][4], run  # nothing was changed

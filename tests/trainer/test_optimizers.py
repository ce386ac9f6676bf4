"""Muon against a plain twin, over all ranks, and in checkpoints; what AdamW left is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from support.parallel_checks import check  # noqa: E402
from support.parallel_tools import LLAMA, PP, TP, Run, go_on, in_processes, save_state, train  # noqa: E402
from support.rounding import EXACT  # noqa: E402
from support.trainer_checkpoint_tools import batch, load, make, state, steps  # noqa: E402
from support.trainer_model_tools import model_of  # noqa: E402

from tokpack.errors import UsageError  # noqa: E402
from tokpack.trainer.checkpoint import CheckpointWrite  # noqa: E402
from tokpack.trainer.config.config import Config  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

MUON: dict[str, Any] = {"optimizer": "muon", "muon_extra_scale_factor": 0.2}
QUINTIC = (3.4445, -4.7750, 2.0315)


def twin_direction(x: Tensor, mode: str, steps: int) -> Tensor:
    """Singular values through the polynomial, the singular vectors as they are."""
    u, values, v = torch.linalg.svd(x, full_matrices=False)
    values = values / values.norm()
    for _ in range(steps):
        values = sum(c * values ** (2 * i + 1) for i, c in enumerate(QUINTIC))
    rows, columns = x.shape
    scale = {"spectral": max(rows, columns), "unit_rms_norm": rows / columns}
    return (u * values) @ v * scale.get(mode, max(1.0, rows / columns)) ** 0.5


def twin_of(x: Tensor, name: str, settings: dict[str, Any]) -> Tensor:
    mode, count = settings.get("muon_scale_mode", "spectral"), settings.get("muon_num_ns_steps", 5)
    if not name.endswith("qkv.weight") or not settings.get("muon_split_qkv", True):
        return twin_direction(x, mode, count)
    # 2 groups of 2 queries, a key and a value, each of 16 rows.
    rows = torch.arange(len(x)).view(2, 4, 16)
    result = torch.empty_like(x)
    for part in (rows[:, :2], rows[:, 2], rows[:, 3]):
        result[part.flatten()] = twin_direction(x[part.flatten()], mode, count)
    return result


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"muon_nesterov": True, "muon_scale_mode": "unit_rms_norm", "muon_num_ns_steps": 3},
        {"muon_split_qkv": False, "muon_scale_mode": "shape_scaling", "muon_momentum": 0.5},
    ],
)
def test_muon_is_its_twin(settings: dict[str, Any]) -> None:
    """And what is no matrix of a layer goes the way of AdamW."""
    model = {"num_layers": 1, "num_query_groups": 2, "weight_decay": 0.1, "clip_grad": 0.0}
    engine, other = (make(**model, **more) for more in ({**MUON, **settings}, {}))
    beta = settings.get("muon_momentum", 0.95)
    momenta: dict[str, Tensor] = {}
    for step in range(3):
        weights = {n: p.detach().clone() for n, p in engine.model.named_parameters()}
        for one in (engine, other):
            one.train_batch([batch(step, 0)], 1e-2)
        for name, p in engine.model.named_parameters():
            if not name.startswith("blocks") or p.ndim < 2:
                continue
            grad = engine.data.held[name].parameter.grad
            before = momenta.get(name, torch.zeros_like(p))
            momenta[name] = now = beta * before + (1 - beta) * grad
            ahead = beta * now + (1 - beta) * grad if settings.get("muon_nesterov") else now
            wanted = weights[name] * (1 - 1e-2 * 0.1)
            wanted -= 1e-2 * 0.2 * twin_of(ahead, name, settings)
            torch.testing.assert_close(p.detach(), wanted, atol=EXACT, rtol=0)
        if step == 0:  # later the gradients are others
            for name in ("embedding.word.weight", "norm.weight", "blocks.0.mlp.up.bias"):
                ours, theirs = (one.model.get_parameter(name) for one in (engine, other))
                torch.testing.assert_close(ours, theirs, atol=EXACT, rtol=0)


def test_muon_is_one_on_all_ranks(tmp_path: Path) -> None:
    """Matrices are orthogonalised whole; the state goes from any ranks to any others."""
    base = {**LLAMA, **MUON, "qk_layernorm": True}
    shared = Run({**base, "zero_stage": 3}, 2, 6)
    check([Run(base, 1, 6), Run({**base, **TP}, 4, 6), shared])  # TP and two data ranks; ZeRO
    many, one = Run({**base, **PP, "zero_stage": 1}, 4, 2), Run(base, steps=2)
    path = str(tmp_path / "state")
    jobs = [(4, save_state, (many, path)), (1, go_on, (one, [f"{path}.0", f"{path}.1"]))]
    _, moved, straight = in_processes([*jobs, (1, train, Run(base, steps=4))], float64=True)
    pairs = zip(moved[0], straight[0]["loss"][2:], strict=True)
    assert max(abs(a - b) for a, b in pairs) < EXACT


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    engine = make(**MUON)
    steps(engine, 0, 2)
    meta = replace(state(engine, 2), config=engine.config.to_dict())
    CheckpointWrite(engine, tmp_path, meta).finish()
    expected = steps(engine, 2, 2)
    again, adam = make(**MUON, seed=7), make(seed=7)
    before = [p.detach().clone() for p in adam.model.parameters()]
    with pytest.raises(UsageError, match=r"\boptimizer muon, .* adam: .* finetune=True"):
        load(adam, tmp_path, model_of())
    assert all(map(torch.equal, before, adam.model.parameters()))
    assert load(adam, tmp_path, model_of(), finetune=True) is not None
    assert load(again, tmp_path, model_of()) is not None
    assert steps(again, 2, 2) == expected


def test_muon_needs_the_torch_engine() -> None:
    with pytest.raises(UsageError, match=r"^optimizer muon .*engine torch, .*deepspeed"):
        Config(optimizer="muon", engine="deepspeed")

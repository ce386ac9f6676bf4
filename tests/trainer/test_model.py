"""The model's parts against plain torch, in one process."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.parallel_tools import LLAMA, NEOX, TINY, VOCABULARY, micro_batch
from support.rounding import EXACT
from torch.nn import functional

from tokpack.trainer import tensor
from tokpack.trainer.blocks import described, document_mask
from tokpack.trainer.config.config import Config
from tokpack.trainer.config.model import ModelConfig
from tokpack.trainer.engine_torch import LossScale
from tokpack.trainer.model import Stage
from tokpack.trainer.parallel import Topology

QWEN3 = {**LLAMA, "qk_layernorm": True, "kv_channels": 24}
QWEN2 = {**LLAMA, "add_qkv_bias": True, "use_rope_scaling": True}
FAMILIES = pytest.mark.parametrize(
    "family", [{}, NEOX, LLAMA, QWEN3, QWEN2], ids=["gpt2", "neox", "llama", "qwen3", "qwen2"]
)


pytestmark = pytest.mark.usefixtures("float64")


def assert_same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=EXACT, rtol=0)


def stage_of(settings: dict[str, Any], topology: Topology | None = None) -> Stage:
    """A whole model with weights."""
    model = ModelConfig.of(Config(**{**TINY, **settings}), VOCABULARY)
    stage = Stage(model, topology or Topology())
    stage.initialise(1)
    return stage


def some_batch(documents: bool = False) -> dict[str, torch.Tensor]:
    """Random tokens, all counted."""
    tokens = torch.randint(VOCABULARY, (2, 65), generator=torch.Generator().manual_seed(3))
    return micro_batch(tokens, torch.ones(2, 65), documents)


def test_weights_are_the_same_whatever_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = stage_of(NEOX)
        torch.set_num_threads(4)
        four = stage_of(NEOX)
    finally:
        torch.set_num_threads(before)
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, four.get_parameter(name)), name
        assert parameter.requires_grad


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.integers(1, 12), st.integers(0, 3), st.integers(0, 2**31))
def test_head_loss_is_cross_entropy(rows: int, valid: int, padding: int, seed: int) -> None:
    """In chunks of 7 rows, with padding of the vocabulary and positions that do not count."""
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, 4, generator=draw)
    weight = torch.randn(valid + padding, 4, generator=draw)
    labels = torch.randint(valid, (rows,), generator=draw)
    mask = (torch.rand(rows, generator=draw) > 0.3).double()
    leaves = [x.clone().requires_grad_() for x in (hidden, weight, hidden, weight)]
    rest = (labels, mask, valid, Topology(), tensor.softmax, True)
    with patch.dict(tensor.CHUNKS, cpu=7):
        mine = tensor.HeadLoss.apply(leaves[0], leaves[1], *rest)
    losses = functional.cross_entropy(leaves[2] @ leaves[3][:valid].T, labels, reduction="none")
    wanted = (losses * mask).sum() / mask.sum().clamp(min=1)
    assert_same(mine, wanted)
    (mine * 3).backward()
    (wanted * 3).backward()
    assert_same(leaves[0].grad, leaves[2].grad)
    assert_same(leaves[1].grad, leaves[3].grad)


@FAMILIES
def test_a_document_is_learned_as_if_it_were_alone(family: dict[str, Any]) -> None:
    stage = stage_of({**family, "init_method_std": 0.1})
    batch = some_batch(documents=True)
    batch["position_ids"] = batch["position_ids"].clone()
    batch["position_ids"][0, 20:] -= 20
    batch["loss_mask"] = torch.zeros(2, 64)
    batch["loss_mask"][0, 20:] = 1
    alone = {k: x[:1, 20:] for k, x in batch.items() if k != "cu_seqlens"}
    alone["position_ids"] = torch.arange(44)[None]
    assert_same(stage(batch), stage(alone))
    del batch["cu_seqlens"]
    assert abs(stage(batch) - stage(alone)) > 1e4 * EXACT  # so the boundary mattered


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 700), max_size=9), st.sampled_from([640, 641, 127, 128, 600]))
def test_the_block_mask_is_that_of_all_pairs(cuts: list[int], length: int) -> None:
    """Documents that end with a block, empty ones, lengths that are no multiple of a block."""
    from torch.nn.attention.flex_attention import create_block_mask

    edges = torch.full((2, length + 1), length, dtype=torch.int32)
    edges[:, 0] = 0
    inner = torch.tensor(sorted(min(cut, length) for cut in cuts), dtype=torch.int32)
    edges[0, 1 : 1 + len(cuts)] = inner
    mask = document_mask(edges, length, flex=True)
    wanted = create_block_mask(mask.mask_mod, 2, None, length, length, "cpu")
    assert mask.seq_lengths == wanted.seq_lengths
    for kind in ("kv", "full_kv", "q", "full_q"):
        numbers, others = (getattr(one, f"{kind}_num_blocks") for one in (mask, wanted))
        assert torch.equal(numbers, others), kind
        lists, others = (getattr(one, f"{kind}_indices") for one in (mask, wanted))
        for place in numbers.nonzero().tolist():
            count = numbers[*place]
            assert torch.equal(lists[*place][:count], others[*place][:count]), kind


def test_the_kernel_of_attention_is_known() -> None:
    """On a CPU there are two: one for what is causal, and one that computes everything."""
    names = [
        stage_of(family).attention_kernel(torch.float32, 2, documents)
        for family in ({}, LLAMA, {"attention_dropout": 0.1})
        for documents in (False, True)
    ]
    assert set(names) <= {"FLASH_ATTENTION", "MATH"}
    assert names[4:] == ["MATH", "MATH"]
    assert described("MATH", torch.device("cpu")) == "attention: MATH"
    assert described("FlexAttention", torch.device("cuda")) == "attention: FlexAttention"
    assert described("MATH", torch.device("cuda")).startswith("warning: attention: MATH, which is")


def test_block_mask_allows_what_the_dense_mask_allows() -> None:
    cu_seqlens = some_batch(documents=True)["cu_seqlens"]
    dense, block = (document_mask(cu_seqlens, 64, flex) for flex in (False, True))
    place = torch.arange(64)
    for sample in range(2):
        allowed = block.mask_mod(torch.tensor(sample), None, place[:, None], place[None, :])
        assert torch.equal(allowed, dense[sample, 0])
    assert dense[1, 0, 45].nonzero().flatten().tolist() == [40, 41, 42, 43, 44, 45]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@FAMILIES
def test_flex_attention_gives_the_same_loss(family: dict[str, Any]) -> None:
    """Forward only: its way back needs a GPU."""
    stage, batch = stage_of({**family, "init_method_std": 0.1}), some_batch(documents=True)
    with torch.no_grad():
        dense = stage(batch)
        stage.flex = True
        assert_same(stage(batch), dense)


@FAMILIES
def test_logits_are_causal_and_agree_with_the_loss(family: dict[str, Any]) -> None:
    stage, batch = stage_of(family), some_batch()
    logits = stage.logits(batch)
    assert logits.shape == (2, 64, VOCABULARY)
    wanted = functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    assert_same(stage(batch), wanted)
    changed = {"tokens": batch["tokens"].clone()}
    changed["tokens"][:, 40:] = 0
    assert_same(stage.logits(changed)[:, :40], logits[:, :40])


@FAMILIES
def test_weights_do_not_depend_on_the_topology(family: dict[str, Any]) -> None:
    whole = dict(stage_of(family).named_parameters())
    for rank in range(2):
        part = stage_of(family, Topology(tensor_size=2, tensor_rank=rank))
        for name, parameter in part.named_parameters():
            rows = VOCABULARY if name in ("embedding.word.weight", "head.weight") else None
            wanted = part.own_part(name, whole[name][:rows])
            assert torch.equal(parameter, wanted), name


@FAMILIES
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_layout_says_what_the_model_has(family: dict[str, Any], ranks: int) -> None:
    """All names, in order; of a split parameter each rank has its part, and of the others all."""
    stage = stage_of(family, Topology(tensor_size=ranks))
    padded = stage.model.padded_vocab_size(ranks)
    wanted = {}
    for name, (shape, split) in stage.model.layout.items():
        whole = (padded, *shape[1:]) if split == 0 and shape[0] == VOCABULARY else shape
        wanted[name] = [n // ranks if dim == split else n for dim, n in enumerate(whole)]
    found = {name: list(parameter.shape) for name, parameter in stage.named_parameters()}
    assert list(found.items()) == list(wanted.items())


def test_initialisation_has_megatrons_spread() -> None:
    settings = {"num_layers": 4, "hidden_size": 256, "init_method_std": 0.01}
    weights = dict(stage_of(settings).named_parameters())
    # Six standard errors of the standard deviation of n draws.
    up, down = (weights[f"blocks.0.mlp.{name}.weight"] for name in ("up", "down"))
    bound = 6 / (2 * up.numel()) ** 0.5
    assert up.std().item() == pytest.approx(0.01, rel=bound)
    assert down.std().item() == pytest.approx(0.01 / 8**0.5, rel=bound)
    assert not weights["embedding.word.weight"][VOCABULARY:].any()
    assert weights["blocks.3.attention_norm.weight"].eq(1).all()
    assert not weights["blocks.3.attention.qkv.bias"].any()


def test_counts_of_gpt2_small() -> None:
    config = Config(num_layers=12, hidden_size=768, num_attention_heads=12, seq_length=1024)
    model = ModelConfig.of(config, 50257)
    assert model.parameters == 124_439_808
    assert (model.padded_vocab_size(), model.padded_vocab_size(8)) == (50304, 51200)
    products = 12 * 12 * 768**2 + 50257 * 768
    assert model.flops_per_token == 6 * products + 12 * 12 * 768 * 1024


def test_loss_scale_halves_after_patience_and_doubles_after_a_window() -> None:
    config = Config(loss_scale_window=3, hysteresis=2, min_loss_scale=4.0)
    scale = LossScale(16.0, config.hysteresis)
    seen = []
    for overflow in (True, True, False, False, False, True, True, True, True, True):
        scale.update(overflow, config)
        seen.append(scale.value)
    assert seen == [16, 8, 8, 8, 16, 16, 8, 4, 4, 4]

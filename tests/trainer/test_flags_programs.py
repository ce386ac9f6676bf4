"""Words of Megatron-LM, Megatron-DeepSpeed and GPT-NeoX that mean another thing here, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.flags_tools import config, write
from support.rounding import equal

from tokpack.errors import UsageError
from tokpack.trainer.config.config import FIELDS, Config
from tokpack.trainer.config.derive import Overrides, configure
from tokpack.trainer.config.model import ModelConfig
from tokpack.trainer.config.names import ALONE

if TYPE_CHECKING:
    from pathlib import Path

NEOX_FILE = {"pipe_parallel_size": 1}  # enough to be known as one


def derived(neox: bool, **settings: Any) -> Config:
    return configure(Overrides(settings), 1, neox)


# Names of weights, and their standard deviations for sigma, layers and width.
TWIN = {
    "normal": lambda s, n, h: s,
    "scaled_normal": lambda s, n, h: s / (2 * n) ** 0.5,
    "single_residual_scaled_normal": lambda s, n, h: s / n**0.5,
    "small_init": lambda s, n, h: (2 / (5 * h)) ** 0.5,
    "wang_init": lambda s, n, h: 2 / (n * h**0.5),
}
METHODS = st.none() | st.sampled_from(sorted(TWIN))


@given(METHODS, METHODS, st.floats(1e-3, 1), st.integers(1, 90), st.integers(1, 99))
def test_first_weights(
    first: str | None, last: str | None, std: float, layers: int, heads: int
) -> None:
    sizes = {"num_layers": layers, "hidden_size": 8 * heads, "num_attention_heads": heads}
    words = {"init_method": first, "output_layer_init_method": last}
    settings = {**sizes, **{k: v for k, v in words.items() if v}, "init_method_std": std}
    model = ModelConfig.of(derived(True, **settings), 100)
    expected = TWIN[first or "normal"](std, layers, 8 * heads)
    assert model.init_method_std == equal(expected, 5)
    expected = TWIN[last or "scaled_normal"](std, layers, 8 * heads)
    assert model.output_init_method_std == equal(expected, 5)


def test_first_weights_that_nobody_scales(tmp_path: Path) -> None:
    """Megatron's are scaled by the depth; a flag replaces what a file says of them."""
    model = ModelConfig.of(config("--init-method-std 0.1 --num-layers 8"), 100)
    assert (model.init_method_std, model.output_init_method_std) == (0.1, 0.1 / 4)
    words = {"init_method": "small_init", "output_layer_init_method": "wang_init"}
    path = write(tmp_path / "neox.yml", words)
    found = config(f"{path} --init-method-std 0.1 --output-init-method-std 0.2")
    assert (found.init_method_std, found.output_init_method_std) == (0.1, 0.2)
    for name in words:
        with pytest.raises(UsageError, match=f"^{name} .*'orthogonal', .* normal, "):
            config(write(tmp_path / "neox.yml", {name: "orthogonal"}))


ERF, TANH = "gelu_erf", "gelu"


@pytest.mark.parametrize(
    ("file", "flags", "form", "said"),
    [
        ({}, "", TANH, ""),
        ({}, "--no-bias-gelu-fusion", ERF, "erf form, as Megatron"),
        ({}, "--bias-gelu-fusion", TANH, "tanh form, as Megatron computes it with"),
        ({}, "--openai-gelu --no-bias-gelu-fusion", TANH, "tanh form"),
        ({}, "--disable-bias-linear", ERF, "erf form, as Megatron computes it without"),
        ({}, "--no-add-bias-linear", TANH, ""),
        ({"disable_bias_linear": True}, "--add-bias-linear", TANH, ""),
        ({"activation": "gelu"}, "", TANH, ""),
        (NEOX_FILE, "", ERF, "erf form, as GPT-NeoX computes it without"),
        ({**NEOX_FILE, "activation": "gelu"}, "", ERF, "erf form, as GPT-NeoX"),
        ({**NEOX_FILE, "bias-gelu-fusion": False}, "", ERF, "erf form, as GPT-NeoX"),
        ({**NEOX_FILE, "bias-gelu-fusion": True}, "", TANH, "tanh form, as GPT-NeoX computes"),
        (NEOX_FILE, "--bias-gelu-fusion", TANH, "tanh form, as GPT-NeoX"),
        ({**NEOX_FILE, "bias-gelu-fusion": False}, "--activation gelu", TANH, ""),
        ({**NEOX_FILE, "bias-gelu-fusion": True}, "--activation gelu_erf", ERF, ""),
        ({"activation": "gelu_erf"}, "--bias-gelu-fusion", ERF, "does not concern activation gelu"),
        ({}, "--swiglu --no-bias-gelu-fusion", "swiglu", "does not concern activation swiglu"),
        ({}, "--glu-activation swiglu", "swiglu", ""),
        ({}, "--swiglu --disable-bias-linear", "swiglu", ""),
    ],
)
def test_forms_of_gelu(
    tmp_path: Path, file: dict[str, Any], flags: str, form: str, said: str
) -> None:
    found = config(f"{write(tmp_path / 'c.yml', file)} {flags}")
    assert found.activation == form
    notes = [note for note in found.notes if "gelu" in note]
    assert len(notes) == (1 if said else 0)
    assert all(said in note for note in notes)
    (tmp_path / "saved.yaml").write_text(found.to_yaml())
    assert config(str(tmp_path / "saved.yaml")) == found


def test_names_that_only_neox_has() -> None:
    """None is a name of ours, which a saved configuration would have."""
    assert not ALONE["neox"] & set(FIELDS)


def rounded(value: int, multiple: int) -> int:
    while value % multiple:
        value += 1
    return value


@given(
    st.none() | st.integers(3, 5000),
    st.none() | st.integers(1, 64),
    st.booleans(),
    st.integers(1, 40),
)
def test_widths_of_neox(size: int | None, multiple: int | None, gated: bool, heads: int) -> None:
    """Its two layers are rounded apart; where they do not fit, it cannot train either."""
    sizes = {"hidden_size": 8 * heads, "num_attention_heads": heads}
    words = {"intermediate_size": size, "mlp_multiple_of": multiple}
    settings = {**sizes, **{k: v for k, v in words.items() if v}}
    settings["activation"] = "swiglu" if gated else "gelu"
    rows, step = size or 32 * heads, multiple or 1
    rows = int(rows * 2 / 3) if gated else rows
    columns = rounded(rows // 2 if gated else rows, step)
    rows = rounded(rows, 2 * step)
    made = rows // 2 if gated else rows
    if made != columns:
        if size or multiple or gated:
            said = rf"\b{made} rows and {columns} columns\b.*\bffn_hidden_size$"
            with pytest.raises(UsageError, match=said):
                derived(True, **settings)
        return
    found = derived(True, **settings)
    assert ModelConfig.of(found, 100).ffn_hidden_size == columns
    assert any("a third of" in note for note in found.notes) == gated


@pytest.mark.parametrize(
    ("words", "width", "hidden"),
    [
        ({"intermediate_size": 32768, "mlp_multiple_of": 256}, 11008, 4096),  # llama/7B.yml
        ({"intermediate_size": 40960, "mlp_multiple_of": 256}, 13824, 5120),  # llama/13B.yml
        ({"mlp_type": "llama", "activation": "silu"}, 11008, 4096),  # before 2024-09
        ({"mlp_type": "llama", "activation": "silu", "intermediate_size": 14336}, 14336, 4096),
        ({"mlp_multiple_of": 256}, 2816, 2048),
    ],
)
def test_the_width_of_llama(tmp_path: Path, words: dict[str, Any], width: int, hidden: int) -> None:
    values = {"activation": "swiglu", "hidden_size": hidden, "num_attention_heads": 32, **words}
    biases = {"use_bias_in_attn_linear": False, "use_bias_in_norms": False, "norm": "rmsnorm"}
    biases |= {} if "mlp_type" in words else {"use_bias_in_mlp": False}
    path = write(tmp_path / "c.yml", {**values, **biases, "rms_norm_epsilon": 1e-6})
    found = config(path)
    assert (found.activation, found.ffn_hidden_size) == ("swiglu", width)
    assert (found.add_bias_linear, found.layernorm_epsilon) == (False, 1e-6)
    assert config(f"{path} --ffn-hidden-size 64").ffn_hidden_size == 64


def test_kept_checkpoints_are_said(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yml", {"extra_save_iters": [1, 2]})
    assert any("the last 5 checkpoints are kept" in note for note in config(path).notes)
    assert not config(f"{path} --keep-checkpoints 0").notes
    assert not config(path).to_dict()["save_interval"]
    assert config(path).adam_beta2 == 0.999

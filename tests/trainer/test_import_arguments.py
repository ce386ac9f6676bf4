"""An argument of another program's model that is not known is refused by name."""

from __future__ import annotations

import json
import sys
from enum import Enum
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import yaml

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from support.trainer_megatron_tools import write_megatron  # noqa: E402
from support.trainer_model_tools import LLAMA, NEOX, VOCAB, Memory, model_of  # noqa: E402
from support.trainer_neox_tools import write_neox  # noqa: E402

from tokpack.cli.main import main  # noqa: E402
from tokpack.errors import UsageError  # noqa: E402
from tokpack.trainer.checkpoints.files import Checkpoint  # noqa: E402
from tokpack.trainer.checkpoints.huggingface import _table  # noqa: E402
from tokpack.trainer.checkpoints.importing import import_model, open_model  # noqa: E402
from tokpack.trainer.checkpoints.ranks import _READ  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

SIZES = {"num_layers": 4}


def written(folder: Path, core: bool = True, **arguments: Any) -> Path:
    """Files of Megatron whose arguments have these besides."""
    settings = {**LLAMA, **SIZES} if core else SIZES
    run = write_megatron(folder, Memory(model_of(**settings)), core=core)
    for path in run.glob("*/model_optim_rng.pt"):
        content = torch.load(path, weights_only=False)
        vars(content["args"]).update(arguments)
        torch.save(content, path)
    return folder


# Arguments that change what a model computes, in the releases that have them.
CHANGING: dict[str, Any] = {
    "window_size": (4, 0),
    "window_attn_skip_freq": 2,
    "no_rope_freq": [0, 1, 1, 1],
    "softmax_type": "off-by-one",
    "softmax_scale": 0.5,
    "qk_l2_norm": True,
    "qk_layernorm": True,
    "glu_linear_offset": 1.0,
    "activation_func_clamp_value": 7.0,
    "use_mup": True,
    "mup_embedding_mult": 10.0,
    "mup_output_mult": 0.25,
    "mup_attn_scale_power": 0.5,
    "quick_geglu": True,
    "squared_relu": True,
    "glu_activation": "geglu",
    "apply_layernorm_1p": True,
    "layernorm_zero_centered_gamma": True,
    "apply_residual_connection_post_layernorm": True,
    "rotary_interleaved": True,
    "rotary_seq_len_interpolation_factor": 2,
    "rotary_scaling_factor": 4.0,
    "mscale": 0.7,
    "rope_type": "yarn",
    "multi_latent_attention": True,
    "attention_output_gate": True,
    "num_experts": 4,
    "num_key_value_heads": 1,
    "mtp_num_layers": 1,
    "hybrid_override_pattern": "M*-",
    "hybrid_attention_ratio": 0.5,
    "linear_attention_freq": 4,
    "experimental_attention_variant": "dsa",
    "heterogeneous_layers_config_path": "layers.json",
    "retro_add_retriever": True,
    "spec": ["my.model", "spec"],
    "embedding_multiplier": 12.0,  # of nobody's release
    "attention_mask_type": "no_mask",
}


def test_what_changes_a_model_is_refused_by_its_name(tmp_path: Path) -> None:
    run = written(tmp_path / "run")
    first = run / "iter_0000100/mp_rank_00_000/model_optim_rng.pt"
    plain = torch.load(first, weights_only=False)
    for name, value in CHANGING.items():
        content = {**plain, "args": type(plain["args"])(**{**vars(plain["args"]), name: value})}
        torch.save(content, first)
        with pytest.raises(UsageError, match=rf"model_optim_rng.pt: {name} .*accept_argument"):
            open_model(run, vocab_size=VOCAB)


def test_what_changes_nothing_passes(tmp_path: Path) -> None:
    off = dict.fromkeys(CHANGING)
    for name in ("window_size", "use_mup", "glu_linear_offset", "spec", "rope_type"):
        off[name] = {"use_mup": False, "glu_linear_offset": 0.0, "spec": []}.get(name)
    defaults = {
        "softmax_type": "vanilla",
        "mup_embedding_mult": 1.0,
        "mup_output_mult": 1,
        "rotary_scaling_factor": 1.0,
        "mscale": 1.0,
        "rope_type": "rope",
        "num_experts": [1],
        "num_key_value_heads": 4,
        "moe_router_topk": 2,
        "mamba_state_dim": 128,
        "params_dtype": torch.bfloat16,
        "lr": 1e-4,
        "save": "/runs/x",
        "world_size": 64,
        "data_path": ["a", "b"],
        "apply_query_key_layer_scaling": True,
        "rank": 3,
        "log_of_a_later_release": True,
        "moe_of_a_later_release": 2,
    }
    run = written(tmp_path / "run", **{**off, **defaults})
    assert open_model(run, vocab_size=VOCAB).accepted == {}


@pytest.mark.parametrize("by_name", [False, True])
def test_words_of_megatron_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_name: bool
) -> None:
    """The files of all its releases have values of such enums among the arguments.

    They are pickled by their value, and by Python 3.11.0 to 3.11.3 by their name.
    """

    class Word(Enum):
        def __reduce_ex__(self, _: object) -> tuple[Any, ...]:
            kind = type(self)
            return (getattr, (kind, self.name)) if by_name else (kind, (self.value,))

    for name in ("megatron", "megatron.core", "megatron.core.transformer"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    words = {}
    for argument, place in (
        ("model_type", "enums.ModelType"),
        ("attention_backend", "AttnBackend"),
    ):
        inner, _, kind = place.rpartition(".")
        module = ModuleType(f"megatron.core.{inner or 'transformer.enums'}")
        setattr(module, kind, Word(kind, {"one": 1}, module=module.__name__))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        words[argument] = getattr(module, kind).one
    run = written(tmp_path / "run", **words)
    monkeypatch.undo()
    assert open_model(run, vocab_size=VOCAB).accepted == {}


def test_what_is_accepted_is_written_down(tmp_path: Path) -> None:
    run = written(tmp_path / "run", core=False, window_size=(4, 0), mine="x\n- y: 1")
    with pytest.raises(UsageError, match=r": mine 'x.*, window_size|: window_size .*, mine"):
        open_model(run, vocab_size=VOCAB)
    with pytest.raises(UsageError, match=r": mine 'x"):
        open_model(run, vocab_size=VOCAB, accept_argument=["window_size"])
    with pytest.raises(UsageError, match="accept_argument='other'"):
        open_model(run, vocab_size=VOCAB, accept_argument=["window_size", "mine", "other"])
    out, flags = tmp_path / "out", ["--accept-argument", "window-size", "--accept-argument", "mine"]
    command = ["model", "import", str(run), "-o", str(out), "--vocab-size", str(VOCAB), *flags]
    assert main(command) == 0
    accepted = {"window_size": "(4, 0)", "mine": r"'x\n- y: 1'"}
    assert Checkpoint(out / "step_00000000").state.accepted == accepted
    text = (out / "config.yaml").read_text()
    assert "# passed over: window_size: (4, 0)\n" in text
    assert yaml.safe_load(text)["num_layers"] == SIZES["num_layers"]


def test_a_switch_is_true_or_false(tmp_path: Path) -> None:
    run = written(tmp_path / "run", swiglu=torch.tensor([1.0, 2.0]))
    with pytest.raises(UsageError, match=r"model_optim_rng\.pt: swiglu"):
        open_model(run, vocab_size=VOCAB)


def test_the_base_of_rope_by_its_other_name(tmp_path: Path) -> None:
    run = written(tmp_path / "run", rope_theta=5e5)
    assert open_model(run, vocab_size=VOCAB).model.rotary_base == 5e5


def test_a_file_of_flags_is_looked_at_as_arguments_are(tmp_path: Path) -> None:
    write_neox(tmp_path / "run/global_step7", Memory(model_of(**NEOX)))
    (tmp_path / "run/latest").write_text("global_step7")
    flags = {**NEOX, "num_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 64}

    def opened(accept: tuple[str, ...] = (), **more: Any) -> Any:
        (tmp_path / "model.yml").write_text(json.dumps({**flags, **more}))
        config = str(tmp_path / "model.yml")
        return open_model(tmp_path / "run", config=config, vocab_size=VOCAB, accept_argument=accept)

    passed = {"git_hash": "abc", "dpo_beta": 0.1, "mup-attn-temp": 1.0, "opt_pos_emb_offset": 0}
    passed |= {"soft_prompt_tuning": None, "tau": False, "lr-decay-fraction": 0.5}
    assert opened(**passed).accepted == {}
    for name, value in {
        "opt-pos-emb-offset": 2,
        "mup-embedding-mult": 10.0,
        "soft_prompt_tuning": {"enabled": True},
        "no_rope_freq": 4,
        "window_size": [4, 0],
        "logit_scale": 0.1,
    }.items():
        inner = name.replace("-", "_")
        with pytest.raises(UsageError, match=rf"model\.yml: {inner}[. ].*accept_argument"):
            opened(**{name: value})
    assert opened(("logit_scale",), logit_scale=0.1).accepted == {"logit_scale": "0.1"}
    with pytest.raises(UsageError, match="gpt_j_tied"):
        opened(gpt_j_tied=True)
    assert opened(("gpt-j-tied",), gpt_j_tied=True).accepted == {"gpt_j_tied": "True"}


def test_the_arguments_of_a_file_count_beside_a_config(tmp_path: Path) -> None:
    run = written(tmp_path / "run", core=False, softmax_scale=0.5)
    config = tmp_path / "model.yml"
    config.write_text("num_layers: 4\nhidden_size: 64\nnum_attention_heads: 4\nseq_length: 64\n")
    with pytest.raises(UsageError, match=r"model_optim_rng\.pt: softmax_scale"):
        open_model(run, config=str(config), vocab_size=VOCAB)


GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 100,
    "n_positions": 8,
    "n_embd": 8,
    "n_layer": 1,
    "n_head": 2,
    "architectures": ["GPT2LMHeadModel"],
    "n_ctx": 8,
    "summary_type": "cls_index",
    "task_specific_params": {"text-generation": {"do_sample": True}},
    "embd_pdrop": 0.1,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "use_cache": True,
    "bos_token_id": 50256,
}
LLAMA_HUB = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 8,
    "is_llama_config": True,
    "rope_interleaved": False,
    "pretraining_tp": 1,
    "dtype": "bfloat16",
    "transformers.js_config": {"dtype": {}},
    "unsloth_version": "2025.1",
    "torch_dtype": "x",
    "partial_rotary_factor": 1.0,
    "eos_token_id": [1, 2],
    "quantization_config": None,
    "layer_types": ["full_attention"],
    "_attn_implementation_autoset": True,
}
UNKNOWN: dict[str, Any] = {
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
    "embedding_multiplier": 12.0,
    "logits_scaling": 8.0,
    "residual_multiplier": 0.22,
    "query_pre_attn_scalar": 256,
    "no_rope_layers": [1, 1, 0],
    "attn_temperature_tuning": True,
    "use_qk_norm": True,
    "layer_types": ["full_attention", "linear_attention"],
    "auto_map": {"AutoModelForCausalLM": "modeling.Mine"},
    "pruned_heads": {"0": [1]},
    "quantization": {"bits": 4},
    "num_local_experts": 8,
}


@pytest.mark.parametrize("family", [GPT2, LLAMA_HUB], ids=["gpt2", "llama"])
def test_keys_of_config_json(family: dict[str, Any], tmp_path: Path) -> None:
    def opened(accept: tuple[str, ...] = (), **more: Any) -> Any:
        (tmp_path / "config.json").write_text(json.dumps({**family, **more}))
        return open_model(tmp_path, accept_argument=accept)

    with pytest.raises(Exception, match=r"model\.safetensors"):  # all keys are known
        opened()
    for name, value in UNKNOWN.items():
        with pytest.raises(UsageError, match=rf"config\.json: {name} .*accept_argument"):
            opened(**{name: value})
        with pytest.raises(Exception, match=r"model\.safetensors"):
            opened((name,), **{name: value})
    other = {"num_hidden_layers": 2} if family is GPT2 else {"partial_rotary_factor": 0.5}
    with pytest.raises(UsageError, match=rf"config\.json: {next(iter(other))} "):
        opened(**other)


def test_the_table_has_none_of_what_changes_a_model() -> None:
    free = {name for names in _table().values() for name, words in names.items() if not words}
    starts = tuple(name[:-1] for name in free if name.endswith("*"))
    assert len(free) > 800 < 20 * len(starts)
    for name in _READ | CHANGING.keys() | UNKNOWN.keys():
        assert name not in free, name
        assert not name.startswith(starts), name


def test_an_import_of_what_was_accepted(tmp_path: Path) -> None:
    run = written(tmp_path / "run", softmax_scale=0.5)
    weights = open_model(run, vocab_size=VOCAB, accept_argument=["softmax_scale"])
    import_model(weights, tmp_path / "out")
    again = open_model(run, vocab_size=VOCAB, accept_argument=["softmax_scale"])
    assert again.model == Checkpoint(tmp_path / "out/step_00000000").model

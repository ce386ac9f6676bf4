"""Models of other programs become checkpoints with the same logits, or are refused in one line."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402
from support.rounding import EXACT, gamma  # noqa: E402
from support.trainer_checkpoint_tools import load  # noqa: E402
from support.trainer_megatron_tools import write_megatron  # noqa: E402
from support.trainer_model_tools import (  # noqa: E402
    LLAMA,
    NEOX,
    VOCAB,
    Memory,
    float64,
    logits_of_transformers,
    model_of,
    tokens,
)
from support.trainer_neox_tools import rounded_by_neox, write_neox  # noqa: E402

import tokpack  # noqa: E402
from tokpack.cli.main import main  # noqa: E402
from tokpack.errors import FormatError, InputError, OutputError, UsageError  # noqa: E402
from tokpack.trainer.checkpoints.export import open_weights  # noqa: E402
from tokpack.trainer.checkpoints.importing import import_model, open_model  # noqa: E402
from tokpack.trainer.config.flags import resolve  # noqa: E402
from tokpack.trainer.config.model import ModelConfig  # noqa: E402
from tokpack.trainer.engine import make_engine  # noqa: E402
from tokpack.trainer.generate import load_model  # noqa: E402
from tokpack.trainer.parallel import CPU, Topology  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor

    from tokpack.progress import Progress

HF_GPT2 = {"vocab_size": VOCAB, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4}
HF = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}
LLAMA_31 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", HF_GPT2),
    "gpt2, untied, gelu": (
        "GPT2",
        {**HF_GPT2, "tie_word_embeddings": False, "activation_function": "gelu", "n_inner": 100},
    ),
    "neox": ("GPTNeoX", HF),
    "neox, sequential, all rotary": (
        "GPTNeoX",
        {**HF, "use_parallel_residual": False, "rotary_pct": 1.0, "hidden_act": "gelu_fast"},
    ),
    "llama, grouped": ("Llama", {**HF, "num_key_value_heads": 2, "rms_norm_eps": 1e-3}),
    "llama, tied": ("Llama", {**HF, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {**HF, "num_key_value_heads": 2, "head_dim": 16}),
    "qwen3, wide heads": ("Qwen3", {**HF, "num_key_value_heads": 2, "head_dim": 32}),
    "qwen2": ("Qwen2", {**HF, "num_key_value_heads": 2}),
    "llama 3.1": ("Llama", {**HF, "head_dim": 12, "rope_parameters": LLAMA_31}),
    "mistral, a window": (
        "Mistral",
        {**HF, "num_key_value_heads": 2, "max_position_embeddings": 99, "sliding_window": 64},
    ),
}


def make(folder: Path, kind: str, settings: dict[str, Any], **how: Any) -> Tensor:
    """A random model of ``transformers`` in a folder, and its logits."""
    torch.manual_seed(3)
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
    settings = settings if kind == "GPT2" else {**rope, **settings}
    if kind == "GPTNeoX":
        share = settings.get("rotary_pct", 0.25)
        settings["rope_parameters"] = {**rope["rope_parameters"], "partial_rotary_factor": share}
    config = getattr(transformers, f"{kind}Config")(**settings)
    name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        model = getattr(transformers, name)(config).eval()
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
        model.save_pretrained(folder, **how)
        return logits_of_transformers(model)


def logits_of(folder: Path) -> Tensor:
    with float64(), torch.no_grad():
        return load_model(open_weights(folder), CPU).logits({"tokens": tokens()})


@pytest.mark.parametrize(("kind", "settings"), MODELS.values(), ids=MODELS)
def test_logits_are_equal(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    expected = make(tmp_path / "model", kind, settings)
    weights = open_model(tmp_path / "model")
    assert weights.model.max_position_embeddings == 64
    told: list[Progress] = []
    tokpack.import_model(tmp_path / "model", tmp_path / "out", progress=told.append)
    assert told[-1].done == told[-1].total == weights.model.parameters
    found = logits_of(tmp_path / "out")
    assert expected.std() > 0.1
    assert (found - expected).abs().max() <= EXACT
    # A run takes its model from config.yaml, and the export has the weights as they were.
    settings = (tmp_path / "out/config.yaml").read_text()
    assert "max_position_embeddings: 64\n" in settings
    assert "seq_length" not in settings  # which is the data's
    config = resolve([str(tmp_path / "out/config.yaml")]).config
    assert ModelConfig.of(config, VOCAB) == weights.model
    tokpack.export(tmp_path / "out", tmp_path / "again", progress=told.append)
    assert (told[-1].stage, told[-1].done) == ("export", weights.model.parameters)
    if kind != "Mistral":
        before, after = (load_file(tmp_path / n / "model.safetensors") for n in ("model", "again"))
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_files_and_types(tmp_path: Path) -> None:
    """Several files, bf16 and fp16, names without their prefix, padding of the vocabulary."""
    expected = make(tmp_path / "model", "Llama", HF, max_shard_size="40KB")
    assert (tmp_path / "model/model.safetensors.index.json").exists()
    whole: dict[str, Tensor] = {}
    for path in (tmp_path / "model").glob("*.safetensors"):
        whole |= load_file(path)
    import_model(open_model(tmp_path / "model"), tmp_path / "out")
    assert (logits_of(tmp_path / "out") - expected).abs().max() <= EXACT
    cut = open_model(tmp_path / "model", vocab_size=VOCAB - 7)
    assert cut.read("head.weight")["parameter"].tolist() == whole["lm_head.weight"][:-7].tolist()
    with pytest.raises(UsageError, match=r"/model: .*\bconfig\.json .*\bconfig$"):
        open_model(tmp_path / "model", config="model.yml")
    with pytest.raises(UsageError, match="vocab_size"):
        open_model(tmp_path / "model", vocab_size=VOCAB + 1)
    (tmp_path / "half").mkdir()
    shutil.copy(tmp_path / "model/config.json", tmp_path / "half")
    kinds = (torch.bfloat16, torch.float16, torch.float64)
    half = {n: x.to(kinds[i % 3]) for i, (n, x) in enumerate(sorted(whole.items()))}
    named = {name.removeprefix("model."): tensor for name, tensor in half.items()}
    named["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(3)
    save_file(named, tmp_path / "half/model.safetensors")
    weights = open_model(tmp_path / "half")
    words = weights.read("embedding.word.weight")["parameter"]
    assert torch.equal(words, half["model.embed_tokens.weight"].float())
    gate, up = (whole[f"model.layers.1.mlp.{n}_proj.weight"] for n in ("gate", "up"))
    rows = weights.read("blocks.1.mlp.up.weight")["parameter"]
    for found, stored in ((rows[::2], gate), (rows[1::2], up)):
        assert ((found - stored).abs() <= gamma(1, "bfloat16") * stored.abs()).all()


def _header(path: Path, change: Any) -> None:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    values = json.loads(raw[8 : 8 + length])
    change(values)
    text = json.dumps(values).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])


def _tensors(path: Path, change: Any) -> None:
    values = load_file(path)
    change(values)
    save_file(values, path)


_WTE = "transformer.wte.weight"
_LN = "transformer.h.1.ln_1.weight"
_BROKEN = r"/model\.safetensors: .*\([\d,]+ bytes\): "
HOSTILE: dict[str, tuple[Any, str]] = {
    "cut": (
        lambda p: p.write_bytes(p.read_bytes()[:-5]),
        _BROKEN,
    ),
    "longer": (lambda p: p.write_bytes(p.read_bytes() + b"x"), _BROKEN),
    "header": (lambda p: p.write_bytes(b"\xff" * 8 + b"{}"), _BROKEN),
    "empty": (lambda p: p.write_bytes(b""), _BROKEN),
    "no JSON": (lambda p: p.write_bytes(b"\2\0\0\0\0\0\0\0{x"), _BROKEN),
    "entry": (lambda p: _header(p, lambda v: v.update({_LN: 3})), _BROKEN),
    "negative": (
        lambda p: _header(p, lambda v: v[_LN].update(data_offsets=[-4, 9])),
        _BROKEN,
    ),
    "beyond": (lambda p: _header(p, lambda v: v[_LN].update(data_offsets=[0, 10**15])), _BROKEN),
    "shape": (lambda p: _header(p, lambda v: v[_LN].update(shape=[65])), _BROKEN),
    "type": (
        lambda p: _header(p, lambda v: v[_LN].update(dtype="I32")),
        rf"model\.safetensors: {_LN} .*'I32'",
    ),
    "another shape": (
        lambda p: _tensors(p, lambda v: v.update({_LN: torch.ones(8, 8)})),
        rf"model\.safetensors: {_LN} .*\[8, 8\], .*\[64\]$",
    ),
    "missing": (lambda p: _tensors(p, lambda v: v.pop(_LN)), r"\bh\.1\.ln_1\.weight\b"),
    "too much": (
        lambda p: _tensors(p, lambda v: v.update(score=torch.ones(2))),
        r"\bGPT2LMHeadModel .*\b1 .*: score$",
    ),
    "a head": (
        lambda p: _tensors(p, lambda v: v.update({"lm_head.weight": v[_WTE] + 1})),
        r"\blm_head\.weight .*\btie_word_embeddings false\b",
    ),
    "not finite": (
        lambda p: _tensors(p, lambda v: v[_LN].__setitem__(0, float("nan"))),
        r"\b1 of 64 .*\bblocks\.1\.attention_norm\.weight .*\bfinite$",
    ),
    "gone": (lambda p: p.unlink(), r" model\.safetensors: .*\bsafe_serialization=True"),
    "pickle": (lambda p: p.rename(p.with_name("x.bin")), r" model\.safetensors, .* x\.bin, "),
}
CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "another model": ({"model_type": "gemma"}, r"\bmodel_type 'gemma' .* gpt2, gpt_neox, "),
    "quantized": ({"quantization_config": {"bits": 4}}, r"\bquantization_config\b"),
    "activation": ({"activation_function": "relu"}, r"\bactivation_function 'relu' .* gelu, "),
    "scale": ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True"),
    "missing": ({"n_embd": None}, r"config\.json: n_embd .*\bNone, "),
    "type": ({"n_layer": "2"}, r"config\.json: n_layer .*'2', "),
    "heads": ({"n_head": 5}, r"config\.json: hidden_size 64 .*\bnum_attention_heads 5$"),
    "zero": ({"n_head": 0}, r"config\.json: num_attention_heads .*\b0, .* 1$"),
    "vocabulary": ({"n_inner": 2**62}, rf"\bblocks\.0\.mlp\.up\.weight .*\b{2**62}x64$"),
    "layers": ({"n_layer": 10**12}, r"\b1,000,000,000,000 layers\b"),
    "rope": (
        {**HF, "model_type": "llama", "rope_scaling": {**LLAMA_31, "low_freq_factor": 2.0}},
        r"config\.json: rope_scaling \{.*'llama3'.* rope_type default",
    ),
    "rope's key": (
        {**HF, "model_type": "llama", "rope_parameters": {"factor": 8.0}},
        r"config\.json: rope_parameters \{'factor': 8\.0\} ",
    ),
    "two ropes": (
        {**HF, "model_type": "llama", "rope_scaling": {**LLAMA_31, "factor": 4.0}}
        | {"rope_parameters": LLAMA_31},
        r"config\.json: factor .* 4\.0 in rope_scaling .* 8\.0 in rope_parameters:",
    ),
    "head_dim": ({**HF, "model_type": "mistral", "head_dim": "x"}, r"\bhead_dim .*'x', "),
    "biases": ({**HF, "model_type": "llama", "attention_bias": True}, "attention_bias True"),
}


def test_hostile_folders(tmp_path: Path) -> None:
    good, folder = tmp_path / "good", tmp_path / "model"
    make(good, "GPT2", HF_GPT2)
    config = json.loads((good / "config.json").read_text())

    def attempt(message: str) -> None:
        with pytest.raises((FormatError, InputError, UsageError), match=message) as error:
            import_model(open_model(folder), tmp_path / "out")
        assert "\n" not in str(error.value)
        assert str(folder) in str(error.value)
        assert not list((tmp_path / "out").glob("*.yaml")) + list((tmp_path / "out").glob("step*"))

    for change, message in HOSTILE.values():
        shutil.copytree(good, folder)
        change(folder / "model.safetensors")
        attempt(message)
        shutil.rmtree(folder)
    shutil.copytree(good, folder)
    for values, message in CONFIGS.values():
        base = config if values.get("model_type", "gpt2") == "gpt2" else {}
        (folder / "config.json").write_text(json.dumps({**base, **values}))
        attempt(message)
    shutil.copy(good / "config.json", folder)
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    index = folder / "model.safetensors.index.json"
    for where, message in (
        ([], r"\.index\.json: .*\bweight_map\b"),
        ({_LN: "../good/model.safetensors"}, r"\.index\.json: .*\bweight_map\b"),
        ({_LN: "none.safetensors"}, r"/none\.safetensors: "),
        ({_LN: "part.safetensors", "x": "part.safetensors"}, r"/part\.safetensors: .* x, "),
    ):
        index.write_text(json.dumps({"weight_map": where}))
        attempt(message)
    # After all these failures the folder is free for the model.
    index.write_text(json.dumps({"weight_map": {_LN: "part.safetensors"}}))
    import_model(open_model(folder), tmp_path / "out")
    with pytest.raises(OutputError, match="step_00000000"):
        import_model(open_model(folder), tmp_path / "out")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/letter").touch()
    with pytest.raises(OutputError, match="/home "):
        import_model(open_model(folder), tmp_path / "home")


def test_a_run_goes_on_from_it(tmp_path: Path) -> None:
    """Without --finetune too: there are no moments to load, and the first step is step 1."""
    make(tmp_path / "model", "GPTNeoX", HF)
    model = open_model(tmp_path / "model")
    for _ in range(2):  # killed before its last file, an import begins anew
        import_model(model, tmp_path / "out")
        (tmp_path / "out/latest").rename(tmp_path / "latest")
    (tmp_path / "latest").rename(tmp_path / "out/latest")
    with pytest.raises(OutputError):
        import_model(model, tmp_path / "out")
    words = [str(tmp_path / "out/config.yaml"), "--micro-batch-size", "2", "--device", "cpu"]
    config = resolve(words).config
    engine = make_engine(config, ModelConfig.of(config, VOCAB), Topology())
    for finetune in (False, True):
        state = load(engine, tmp_path / "out", engine.model.model, finetune=finetune)
        assert state is not None
        assert (state.step, state.consumed_samples) == (0, 0)
    whole = load_model(open_weights(tmp_path / "out"), CPU)
    for name, parameter in engine.model.named_parameters():
        assert torch.equal(parameter, whole.get_parameter(name)), name


def test_what_describes_the_ids_goes_with_the_model(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = data / "tokenizers/20B_tokenizer.json"
    ids = Tokenizer.from_file(str(tokenizer)).get_vocab_size()  # any of which may be generated
    make(tmp_path / "model", "Llama", {**HF, "vocab_size": ids})
    shutil.copy(tokenizer, tmp_path / "model/tokenizer.json")
    capsys.readouterr()  # what a library says once, when it is loaded
    assert main(["model", "import", str(tmp_path / "model"), "-o", str(tmp_path / "out")]) == 0
    done = capsys.readouterr()
    assert done.out == f"{tmp_path / 'out'}\n"
    assert f"{tmp_path / 'out'}/config.yaml --load {tmp_path / 'out'} --finetune" in done.err
    assert "tokenizer" not in done.err
    assert main(["generate", str(tmp_path / "out"), "--prompt", "A", "--tokens", "2"]) == 0


def test_layer_files_of_neox(tmp_path: Path) -> None:
    weights = Memory(model_of(**NEOX))
    write_neox(tmp_path / "run/global_step7", weights)
    (tmp_path / "run/latest").write_text("global_step7")
    flags = {**NEOX, "num_layers": 3, "hidden_size": 64, "num_attention_heads": 4}
    (tmp_path / "model.yml").write_text(json.dumps({**flags, "seq_length": 64}))
    how = ["--config", str(tmp_path / "model.yml"), "--vocab-size", str(VOCAB)]
    assert main(["import", str(tmp_path / "run"), "-o", str(tmp_path / "out"), *how]) == 0
    read = open_weights(tmp_path / "out").read
    for name in weights.model.layout:
        wanted = weights.read(name)["parameter"]
        found = torch.as_tensor(read(name)["parameter"])
        assert ((found - wanted).abs() <= rounded_by_neox(wanted)).all(), name


@pytest.mark.parametrize(
    ("core", "settings"),
    [(False, {"num_layers": 4}), (True, {**LLAMA, "num_layers": 4}), (True, {"num_layers": 4})],
)
def test_megatron(tmp_path: Path, core: bool, settings: dict[str, Any]) -> None:
    weights = Memory(model_of(**settings))
    folder = write_megatron(tmp_path / "run", weights, core=core)
    import_model(open_model(tmp_path / "run", vocab_size=VOCAB), tmp_path / "out")
    assert (logits_of(tmp_path / "out") - weights.logits(tokens())).abs().max() <= EXACT
    evil = folder / "mp_rank_00_000/model_optim_rng.pt"
    torch.save({"model": {}, "other": Path("x")}, evil)
    with pytest.raises(FormatError, match=r"/model_optim_rng\.pt: .*\bpathlib\.\w+,"):
        open_model(tmp_path / "run")
    torch.save({"model": {}, "checkpoint_version": 1.0}, evil)
    with pytest.raises(UsageError, match=r"checkpoint_version 1\.0"):
        open_model(tmp_path / "run")
    os.unlink(evil)
    with pytest.raises(FormatError, match=r"/iter_0000100: .*\bstage 0 .*\[1\], .*\b0 to 1$"):
        open_model(tmp_path / "run")


def test_nothing_to_import(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"/EleutherAI/pythia: .*Hugging Face"):
        open_model(tmp_path / "EleutherAI/pythia")
    with pytest.raises(InputError, match=rf"^{tmp_path}: .*\bconfig\.json\b.*\bmp_rank_XX\b"):
        open_model(tmp_path)

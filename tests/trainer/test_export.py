"""Exported models compute the same logits in ``transformers``."""

from __future__ import annotations

import json
import shutil
import warnings
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from safetensors.torch import load_file  # noqa: E402
from support.rounding import EXACT, PRODUCTS, TERMS, likely  # noqa: E402
from support.tiny_tokenizers import added, save, tiny  # noqa: E402
from support.trainer_checkpoint_tools import make, state  # noqa: E402
from support.trainer_model_tools import (  # noqa: E402
    LLAMA,
    NEOX,
    VOCAB,
    Memory,
    logits_of_transformers,
    model_of,
    tokens,
)

import tokpack  # noqa: E402
from tokpack.errors import FormatError, InputError, OutputError, UsageError  # noqa: E402
from tokpack.storage.disk import lock  # noqa: E402
from tokpack.tokenizers import load_tokenizer  # noqa: E402
from tokpack.trainer.checkpoint import CheckpointWrite  # noqa: E402
from tokpack.trainer.checkpoints.export import export, open_weights  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


def logits_of(folder: Path) -> Tensor:
    """What ``transformers`` computes from a folder, which must fit its class exactly."""
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, output_loading_info=True, dtype=torch.float32
        )
    problems = {key: found for key, found in info.items() if found}
    assert not problems
    return logits_of_transformers(model)


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {}),
    "gpt2, gelu by erf": ("GPT2LMHeadModel", {"activation": "gelu_erf"}),
    "gpt2, untied": ("GPT2LMHeadModel", {"untie_embeddings_and_output_weights": True}),
    "gpt2, embed_layernorm": ("GPT2LMHeadModel", {"embed_layernorm": True}),
    "gpt2, embed_layernorm, untied": (
        "GPT2LMHeadModel",
        {"embed_layernorm": True, "untie_embeddings_and_output_weights": True},
    ),
    "gpt2, more positions, other width": (
        "GPT2LMHeadModel",
        {"max_position_embeddings": 80, "ffn_hidden_size": 100},
    ),
    "neox": ("GPTNeoXForCausalLM", NEOX),
    "neox, tanh": ("GPTNeoXForCausalLM", {**NEOX, "activation": "gelu"}),
    "neox, sequential": ("GPTNeoXForCausalLM", {**NEOX, "parallel_residual": False}),
    "neox, tied": ("GPTNeoXForCausalLM", {**NEOX, "untie_embeddings_and_output_weights": False}),
    "neox, all rotary": (
        "GPTNeoXForCausalLM",
        {**NEOX, "rotary_percent": 1.0, "rotary_base": 500.0, "layernorm_epsilon": 1e-3},
    ),
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama, all heads": ("LlamaForCausalLM", {**LLAMA, "num_query_groups": None}),
    "llama, untied": (
        "LlamaForCausalLM",
        {**LLAMA, "untie_embeddings_and_output_weights": True, "embed_layernorm": True},
    ),
    "qwen3": ("Qwen3ForCausalLM", {**LLAMA, "qk_layernorm": True, "rotary_base": 500.0}),
    "qwen3, wide heads": ("Qwen3ForCausalLM", {**LLAMA, "qk_layernorm": True, "kv_channels": 24}),
    "qwen2": ("Qwen2ForCausalLM", {**LLAMA, "add_qkv_bias": True}),
    "llama 3.1": (
        "LlamaForCausalLM",
        {**LLAMA, "use_rope_scaling": True, "rope_scaling_factor": 32.0, "kv_channels": 8},
    ),
}


@pytest.mark.parametrize(("architecture", "settings"), MODELS.values(), ids=MODELS)
def test_logits_are_equal(tmp_path: Path, architecture: str, settings: dict[str, Any]) -> None:
    weights = Memory(model_of(**settings))
    assert export(weights, tmp_path / "out") == architecture
    found, expected = logits_of(tmp_path / "out"), weights.logits(tokens())
    assert found.shape[-1] == VOCAB
    assert expected.std() > 0.1
    bound = EXACT
    if "embed_layernorm" in settings:  # the words are stored as the norm has left them, in fp32
        bound = likely(PRODUCTS * TERMS, "float32") * expected.abs().max()
    assert (found - expected).abs().max() <= bound


def test_large_models_are_cut_into_files(tmp_path: Path) -> None:
    weights = Memory(model_of())
    export(weights, tmp_path / "out", max_shard_size=100_000)
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == files
    assert all((tmp_path / "out" / f).stat().st_size < 140_000 for f in files)
    found, expected = logits_of(tmp_path / "out"), weights.logits(tokens())
    assert (found - expected).abs().max() <= EXACT


def test_half_precision(tmp_path: Path) -> None:
    weights = Memory(model_of())
    export(weights, tmp_path / "out", dtype="bf16")
    stored = load_file(tmp_path / "out/model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "bfloat16"
    assert torch.equal(
        stored["transformer.wte.weight"],
        weights.read("embedding.word.weight")["parameter"].bfloat16(),
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"parallel_residual": True},
        {"num_query_groups": 2},
        {"add_bias_linear": False},
        {"normalization": "RMSNorm"},
        {**LLAMA, "rotary_percent": 0.5},
        {**LLAMA, "parallel_residual": True},
        {**LLAMA, "position_embedding_type": "learned_absolute"},
        {**LLAMA, "add_qkv_bias": True, "qk_layernorm": True},
        {**NEOX, "kv_channels": 24},
    ],
)
def test_models_that_no_class_computes(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"\btransformers .*: position_embedding_type .*; Llama "):
        export(Memory(model_of(**settings)), tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("settings", "family"), [({}, "GPT2"), (NEOX, "GPTNeoX")])
def test_what_a_class_lacks_is_named(tmp_path: Path, settings: dict[str, Any], family: str) -> None:
    lacking = rf" {family}\w+ .*\battention\.k_norm .*\battention\.q_norm\. .* Qwen3 .* qk_"
    with pytest.raises(UsageError, match=lacking):
        export(Memory(model_of(**settings, qk_layernorm=True)), tmp_path / "out")


def test_an_output_is_whole_or_absent(tmp_path: Path) -> None:
    class Broken(Memory):
        def read(self, name: str) -> dict[str, Tensor]:
            if name.startswith("norm"):
                raise FormatError("broken")
            return super().read(name)

    output = tmp_path / "out"
    with pytest.raises(FormatError):
        export(Broken(model_of()), output)
    assert not output.exists()
    export(Memory(model_of()), output)
    with pytest.raises(OutputError):
        export(Memory(model_of(num_layers=2)), output)
    assert json.loads((output / "config.json").read_text())["n_layer"] == 3
    export(Memory(model_of(num_layers=2)), output, overwrite=True)
    assert json.loads((output / "config.json").read_text())["n_layer"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (tmp_path / "home").mkdir()
    (tmp_path / "home/letter").touch()
    with pytest.raises(OutputError, match=r"/home .*\(exported model\)"):
        export(Memory(model_of()), tmp_path / "home", overwrite=True)
    assert (tmp_path / "home/letter").exists()


TEXT = "Hello  world, it's 2026:\n\tnaïve façade 🙂<|endoftext|>Next."


@pytest.mark.parametrize("kind", ["gpt2", "json"])
def test_the_tokenizer_goes_with_the_model(tmp_path: Path, shared: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    files = shared / "tokenizers"
    tokenizer = (
        load_tokenizer(
            vocab_file=files / "gpt2-vocab.json",
            merge_file=files / "gpt2-merges.txt",
            tokenizer_type="HFGPT2Tokenizer",
        )
        if kind == "gpt2"
        else load_tokenizer(vocab_file=files / "20B_tokenizer.json")
    )
    export(Memory(model_of()), tmp_path / "out", tokenizer=tokenizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    data = torch.frombuffer(bytearray(TEXT.encode()), dtype=torch.uint8).numpy()
    spans = torch.tensor([[0, len(data)]]).numpy()
    ids = tokenizer.encoder(dtype="int32", append_eod=False).encode(data, spans).ids.tolist()
    assert loaded(TEXT, add_special_tokens=False)["input_ids"] == ids
    assert loaded(TEXT)["input_ids"] == ids
    assert loaded.decode(ids) == TEXT
    assert loaded.eos_token_id == tokenizer.eod_id
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["eos_token_id"] == tokenizer.eod_id


CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.mark.parametrize("place", ["config", "file"])
def test_the_chat_template_goes_with_the_model(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "chat"
    definition = tiny()
    first = max(token["id"] for token in definition["added_tokens"]) + 1
    names = ("<|im_start|>", "<|im_end|>", "<|pad|>")
    definition["added_tokens"] += [added(name, first + i) for i, name in enumerate(names)]
    folder.mkdir()
    save(folder, definition)
    config = {"eos_token": "<|im_end|>", "pad_token": "<|pad|>"}
    if place == "config":
        config["chat_template"] = CHAT
    else:
        (folder / "chat_template.jinja").write_text(CHAT)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(folder)
    end = tokenizer.token_to_id("<|im_end|>")
    assert tokenizer.eod_id not in (None, end)
    export(Memory(model_of()), tmp_path / "out", tokenizer=tokenizer)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    original = transformers.AutoTokenizer.from_pretrained(folder)
    said = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "abc"}]
    expected = original.apply_chat_template(said, tokenize=False)
    assert loaded.apply_chat_template(said, tokenize=False) == expected
    assert (loaded.eos_token, loaded.pad_token, loaded.bos_token) == ("<|im_end|>", "<|pad|>", None)
    for name in ("config.json", "generation_config.json"):
        values = json.loads((tmp_path / "out" / name).read_text())
        assert values["eos_token_id"] == [end, tokenizer.eod_id]
    assert not caplog.messages

    # Copies of a tokenizer's files lie without the file of its template.
    alone = tmp_path / "copies"
    shutil.copytree(folder, alone, ignore=shutil.ignore_patterns("*.jinja"))
    weights = Memory(model_of())
    weights.tokenizer = tokenizer.describe()
    export(weights, tmp_path / "other", tokenizer=load_tokenizer(alone))
    warned = [text for text in caplog.messages if "has no chat template" in text]
    assert len(warned) == (place == "file")


def test_the_bos_goes_with_the_model(tmp_path: Path, shared: Path) -> None:
    tokenizer = load_tokenizer(vocab_file=shared / "tokenizers" / "20B_tokenizer.json")
    weights = Memory(model_of())
    weights.tokenizer = {"frame": {"before": [1], "after": [0]}}
    export(weights, tmp_path / "out", tokenizer=tokenizer)
    for name in ("config.json", "generation_config.json"):
        values = json.loads((tmp_path / "out" / name).read_text())
        assert (values["bos_token_id"], values["eos_token_id"]) == (1, 0)
    values = json.loads((tmp_path / "out/tokenizer_config.json").read_text())
    assert values["bos_token"] == "<|padding|>"
    assert values["eos_token"] == "<|endoftext|>"


def test_checkpoints_are_averaged(tmp_path: Path) -> None:
    """In fp64, whatever the order: the last of them and those before it, tensor by tensor."""
    engine, found = make(num_layers=1), []
    for step in range(1, 5):
        with torch.no_grad():
            for parameter in engine.model.parameters():
                parameter.mul_(1 + step / 7)
        found.append({n: p.detach().double().clone() for n, p in engine.model.named_parameters()})
        CheckpointWrite(engine, tmp_path / "run", state(engine, step, num_layers=1)).finish()
    for path, average, steps in (
        (tmp_path / "run", 3, (1, 2, 3)),
        (tmp_path / "run", 4, range(4)),
        (tmp_path / "run/step_00000002", 2, (0, 1)),
    ):
        weights = open_weights(path, average)
        for name in weights.model.layout:
            mean = (sum(found[step][name] for step in steps) / average).float()
            rows = weights.model.layout[name].shape[0]
            assert torch.equal(weights.read(name)["parameter"], mean[:rows])
    tokpack.export(tmp_path / "run", tmp_path / "out", average=4)
    assert (logits_of(tmp_path / "out")).std() > 0
    with pytest.raises(UsageError, match=r"/run: .* 4 .*\baverage 5: keep_checkpoints\b"):
        open_weights(tmp_path / "run", 5)
    lock.release()
    CheckpointWrite(make(num_layers=2), tmp_path / "run", state(engine, 5, num_layers=2)).finish()
    with pytest.raises(UsageError, match=r"/step_00000004: .*\bmodel\b.*/step_00000005$"):
        open_weights(tmp_path / "run", 2)


def test_nothing_to_export(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        open_weights(tmp_path / "absent")
    with pytest.raises(UsageError, match=r"^dtype .*'int8', .* fp32, bf16, fp16$"):
        export(Memory(model_of()), tmp_path / "out", dtype="int8")


def test_a_model_goes_without_a_tokenizer_that_transformers_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = tmp_path / "words.json"
    words.write_text('{"<unk>": 0, "<|endoftext|>": 1, "a": 2}')
    tokenizer = load_tokenizer(words, tokenizer_type="Whitespace")
    export(Memory(model_of()), tmp_path / "out", tokenizer=tokenizer)
    assert "has no tokenizer" in caplog.text
    assert not list((tmp_path / "out").glob("*token*"))

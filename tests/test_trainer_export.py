"""Exported models compute the same logits in ``transformers``; NeoX layer files are read safely."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from safetensors.torch import load_file  # noqa: E402
from trainer_model_tools import (  # noqa: E402
    LLAMA,
    NEOX,
    VOCAB,
    Memory,
    model_of,
    tokens,
    without_vocabulary,
)

from tokpack.checkpoints.export import export, open_weights  # noqa: E402
from tokpack.checkpoints.neox import NeoxWeights  # noqa: E402
from tokpack.errors import FormatError, InputError, OutputError, UsageError  # noqa: E402
from tokpack.tokenizers import load_tokenizer  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor

torch.set_num_threads(1)


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
    with torch.no_grad():
        logits: Tensor = model.eval()(tokens()).logits
    return logits


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
}


@pytest.mark.parametrize(("architecture", "settings"), MODELS.values(), ids=MODELS)
def test_logits_are_equal(tmp_path: Path, architecture: str, settings: dict[str, Any]) -> None:
    weights = Memory(model_of(**settings))
    assert export(weights, tmp_path / "out") == architecture
    found, expected = logits_of(tmp_path / "out"), weights.logits(tokens())
    assert found.shape[-1] == VOCAB
    assert expected.std() > 0.1
    assert (found - expected).abs().max() <= 1e-5


def test_large_models_are_cut_into_files(tmp_path: Path) -> None:
    weights = Memory(model_of())
    export(weights, tmp_path / "out", shard_bytes=100_000)
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == files
    assert all((tmp_path / "out" / f).stat().st_size < 140_000 for f in files)
    assert (logits_of(tmp_path / "out") - weights.logits(tokens())).abs().max() <= 1e-5


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
    ],
)
def test_models_that_no_class_computes(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="no class of transformers computes this model"):
        export(Memory(model_of(**settings)), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_an_output_is_whole_or_absent(tmp_path: Path) -> None:
    class Broken(Memory):
        def read(self, name: str) -> dict[str, Tensor]:
            if name.startswith("norm"):
                raise FormatError("broken")
            return super().read(name)

    output = tmp_path / "out"
    with pytest.raises(FormatError, match="broken"):
        export(Broken(model_of()), output)
    assert not output.exists()
    export(Memory(model_of()), output)
    with pytest.raises(OutputError, match="exists"):
        export(Memory(model_of(num_layers=2)), output)
    assert json.loads((output / "config.json").read_text())["n_layer"] == 3
    export(Memory(model_of(num_layers=2)), output, overwrite=True)
    assert json.loads((output / "config.json").read_text())["n_layer"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (tmp_path / "home").mkdir()
    (tmp_path / "home/letter").touch()
    with pytest.raises(OutputError, match="is no exported model"):
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


# NeoX layer files

_BLOCK = {
    "attention_norm": "input_layernorm",
    "attention.qkv": "attention.query_key_value",
    "attention.out": "attention.dense",
    "mlp_norm": "post_attention_layernorm",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
}


def write_neox(
    folder: Path, weights: Memory, ranks: int = 2, *, newer: bool = False, padding: int = 12
) -> None:
    """Layer files as NeoX writes them, each rank with its part; norms differ a little by rank."""
    folder.mkdir(parents=True)
    count = weights.model.num_layers
    places = {
        "embedding": (0, ""),
        "norm": (count + 3, "norm"),
        "head": (count + 4, "final_linear"),
    }
    layers: dict[int, list[dict[str, Tensor]]] = {}
    for name in weights.model.layout:
        whole = weights.read(name)["parameter"]
        room, *rest = name.split(".")
        if room == "blocks":
            number, theirs = int(rest[0]) + 2, _BLOCK[".".join(rest[1:-1])]
            theirs = theirs.replace("dense_h_to_4h", "linear1") if newer else theirs
            theirs = theirs.replace("dense_4h_to_h", "linear2") if newer else theirs
        else:
            number, theirs = places[room]
            theirs = theirs or f"{rest[0]}_embeddings"
        if room == "head" or "word" in name:
            whole = torch.cat((whole, torch.randn(padding, whole.shape[1])))
        parts = layers.setdefault(number, [{} for _ in range(ranks)])
        for part, own in zip(parts, split_neox(weights, name, whole.half(), ranks), strict=True):
            part[f"{theirs}.{name.rpartition('.')[2]}"] = own.clone()
    for number, parts in layers.items():
        for rank, part in enumerate(parts):
            if 2 <= number < count + 2:
                part["attention.rotary_emb.inv_freq"] = torch.ones(4)
            torch.save(part, folder / f"layer_{number:02d}-model_{rank:02d}-model_states.pt")
    torch.save({"args": Path("x")}, folder / "mp_rank_00_model_states.pt")


def split_neox(weights: Memory, name: str, whole: Tensor, ranks: int) -> list[Tensor]:
    dim = weights.model.layout[name].split
    if dim is not None:
        return list(whole.chunk(ranks, dim))
    row_bias = name.endswith(("attention.out.bias", "mlp.down.bias"))
    if row_bias and weights.model.parallel_residual:  # the ranks' biases are added
        return [whole * 0.75, *[whole * 0.25 / (ranks - 1)] * (ranks - 1)]
    if "norm" in name:  # the ranks' norms drift apart
        return [whole * (1 + 0.1 * (rank - (ranks - 1) / 2)) for rank in range(ranks)]
    return [whole] * ranks


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("settings", [NEOX, {**NEOX, "parallel_residual": False}, {}])
def test_neox_layer_files(tmp_path: Path, settings: dict[str, Any], newer: bool) -> None:
    weights = Memory(model_of(**settings))
    write_neox(tmp_path / "global_step7", weights, newer=newer)
    found = NeoxWeights(tmp_path / "global_step7", weights.model)
    for name in weights.model.layout:
        expected = weights.read(name)["parameter"]
        read = found.read(name)["parameter"]
        assert read.dtype == torch.float32
        assert read.shape == expected.shape
        assert (read - expected).abs().max() <= 2e-3, name
    padded = NeoxWeights(tmp_path / "global_step7", without_vocabulary(weights.model))
    assert padded.model.vocab_size == VOCAB + 12


def test_neox_of_three_ranks_and_bigscience_names(tmp_path: Path) -> None:
    weights = Memory(model_of(embed_layernorm=True, num_attention_heads=2))
    folder = tmp_path / "global_step7"
    folder.mkdir()
    layers: dict[int, dict[str, Tensor]] = {}
    for name in weights.model.layout:
        room, *rest, kind = name.split(".")
        theirs = {
            "embedding.word": (1, "word_embeddings."),
            "embedding.position": (1, "position_embeddings."),
            "embedding.norm": (1, "word_embeddings.norm."),
            "norm": (8, ""),
        }
        if room == "blocks":
            number, module = int(rest[0]) + 3, _BLOCK[".".join(rest[1:])] + "."
            module = (
                module.replace("attention.", "self_attention.") if "." in module[:-1] else module
            )
            module = module.replace("mlp.self_attention", "mlp")
        else:
            number, module = theirs[".".join([room, *rest])]
        layers.setdefault(number, {})[module + kind] = weights.read(name)["parameter"].clone()
    for number, part in layers.items():
        torch.save(part, folder / f"layer_{number:02d}-model_00-model_states.pt")
    found = NeoxWeights(folder, weights.model)
    for name in weights.model.layout:
        assert torch.equal(found.read(name)["parameter"], weights.read(name)["parameter"]), name


def test_neox_weights_are_exported(tmp_path: Path) -> None:
    weights = Memory(model_of(**NEOX))
    write_neox(tmp_path / "run/global_step7", weights)
    (tmp_path / "run/latest").write_text("global_step7")
    with pytest.raises(UsageError, match="do not say which model"):
        open_weights(tmp_path / "run")
    export(NeoxWeights(tmp_path / "run/global_step7", weights.model), tmp_path / "out")
    difference = (logits_of(tmp_path / "out") - weights.logits(tokens())).abs().max()
    assert difference < 0.05  # NeoX stores fp16


class Evil:
    """A pickle that would run code."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("evil"),))


@pytest.mark.parametrize("how", ["pickle", "torch", "legacy", "cut", "nested", "text"])
def test_layer_files_that_are_not_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.chdir(tmp_path)
    weights = Memory(model_of(**NEOX))
    folder = tmp_path / "global_step7"
    write_neox(folder, weights, 1)
    path = folder / "layer_03-model_00-model_states.pt"
    if how == "pickle":
        path.write_bytes(pickle.dumps({"input_layernorm.weight": Evil()}))
    elif how == "torch":
        torch.save({"input_layernorm.weight": Evil()}, path)
    elif how == "legacy":
        torch.save({"a": Evil()}, path, _use_new_zipfile_serialization=False)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-1000])
    elif how == "nested":
        torch.save({"input_layernorm.weight": {"a": torch.ones(1)}}, path)
    else:
        path.write_text("hello")
    with pytest.raises(FormatError, match=r"layer_03-model_00-model_states.pt: "):
        NeoxWeights(folder, weights.model)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_layers": 4}, "num_layers is 3 there, 4 here"),
        ({"hidden_size": 32}, "embedding.word.weight is .* there"),
        ({"ffn_hidden_size": 64}, "mlp.up.weight is .256, 64. there, .64, 64. here"),
        ({"activation": "swiglu"}, "mlp.up.weight"),
        ({"add_bias_linear": False}, "no place for blocks.0.attention.qkv.bias"),
    ],
)
def test_neox_weights_of_another_model(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    write_neox(tmp_path / "a", Memory(model_of(**NEOX)))
    with pytest.raises(UsageError, match=message):
        NeoxWeights(tmp_path / "a", model_of(**{**NEOX, **settings}))


def test_neox_files_that_are_missing(tmp_path: Path) -> None:
    weights = Memory(model_of(**NEOX))
    write_neox(tmp_path / "a", weights)
    (tmp_path / "a/layer_03-model_01-model_states.pt").unlink()
    with pytest.raises(FormatError, match=r"layer 3 has files of the ranks .0., expected 0 to 1"):
        NeoxWeights(tmp_path / "a", weights.model)
    write_neox(tmp_path / "b", weights)
    for rank in range(2):
        (tmp_path / f"b/layer_06-model_{rank:02d}-model_states.pt").unlink()
    with pytest.raises(FormatError, match=r"no layer file has the tensor of norm.weight"):
        NeoxWeights(tmp_path / "b", weights.model)


def test_nothing_to_export(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no checkpoint"):
        open_weights(tmp_path / "absent")

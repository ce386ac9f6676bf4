"""Layer files of NeoX are read safely and whole, or refused."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from support.trainer_model_tools import NEOX, VOCAB, Memory, model_of, without_vocabulary  # noqa: E402
from support.trainer_neox_tools import BLOCK, rounded_by_neox, write_neox  # noqa: E402

from tokpack.errors import FormatError, InputError, UsageError  # noqa: E402
from tokpack.trainer.checkpoints.folder import find  # noqa: E402
from tokpack.trainer.checkpoints.ranks import RankWeights, find_files  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor

    from tokpack.trainer.config.model import ModelConfig


def weights_in(folder: Path, model: ModelConfig) -> RankWeights:
    return RankWeights(folder, find_files(folder), model)


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize(
    "settings",
    [NEOX, {**NEOX, "parallel_residual": False}, {**NEOX, "activation": "swiglu"}, {}],
)
def test_neox_layer_files(tmp_path: Path, settings: dict[str, Any], newer: bool) -> None:
    weights = Memory(model_of(**settings))
    write_neox(tmp_path / "global_step7", weights, newer=newer)
    found = weights_in(tmp_path / "global_step7", weights.model)
    for name in weights.model.layout:
        expected = weights.read(name)["parameter"]
        read = found.read(name)["parameter"]
        assert read.dtype == torch.float32
        assert read.shape == expected.shape
        assert ((read - expected).abs() <= rounded_by_neox(expected)).all(), name
    padded = weights_in(tmp_path / "global_step7", without_vocabulary(weights.model))
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
            number, module = int(rest[0]) + 3, BLOCK[".".join(rest[1:])] + "."
            module = (
                module.replace("attention.", "self_attention.") if "." in module[:-1] else module
            )
            module = module.replace("mlp.self_attention", "mlp")
        else:
            number, module = theirs[".".join([room, *rest])]
        layers.setdefault(number, {})[module + kind] = weights.read(name)["parameter"].clone()
    for number, part in layers.items():
        torch.save(part, folder / f"layer_{number:02d}-model_00-model_states.pt")
    found = weights_in(folder, weights.model)
    for name in weights.model.layout:
        assert torch.equal(found.read(name)["parameter"], weights.read(name)["parameter"]), name


class Evil:
    """A pickle that would run code."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("evil"),))


_LAYER = "layer_03-model_00-model_states.pt"
_OLD = r"it has the form from before PyTorch 1.6; write it again with torch.save\(.*\)$"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("pickle", "torch.save did not write it"),
        ("torch", r"it is no file of tensors alone: it holds [\w.]+, which would be unpickled$"),
        ("legacy", _OLD),
        ("legacy, no harm", _OLD),
        ("legacy, protocol 4", _OLD),
        ("cut", ".*zip archive"),
        ("nested", "it holds more than named tensors"),
        ("text", "torch.save did not write it"),
        ("empty", "torch.save did not write it"),
    ],
)
def test_layer_files_that_are_not_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    weights = Memory(model_of(**NEOX))
    folder = tmp_path / "global_step7"
    write_neox(folder, weights, 1)
    path = folder / _LAYER
    if how == "pickle":
        path.write_bytes(pickle.dumps({"input_layernorm.weight": Evil()}))
    elif how == "torch":
        torch.save({"input_layernorm.weight": Evil()}, path)
    elif how == "legacy":
        torch.save({"a": Evil()}, path, _use_new_zipfile_serialization=False)
    elif how.startswith("legacy"):
        protocol = 4 if how[-1] == "4" else 2
        torch.save(
            torch.load(path), path, pickle_protocol=protocol, _use_new_zipfile_serialization=False
        )
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-1000])
    elif how == "nested":
        torch.save({"input_layernorm.weight": {"a": torch.ones(1)}}, path)
    else:
        path.write_text("hello" if how == "text" else "")
    with pytest.raises(FormatError, match=rf"^[^:]*{_LAYER}: [^:]*: {message}") as error:
        weights_in(folder, weights.model)
    assert "mmap" not in str(error.value)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_layers": 4}, r"\bnum_layers is 3 .*\b4 "),
        ({"hidden_size": 32}, r"\bembedding\.word\.weight is \[500, 64\] .*\[500, 32\]"),
        ({"ffn_hidden_size": 64}, r"\bmlp\.up\.weight is \[256, 64\] .*\[64, 64\]"),
        ({"activation": "swiglu"}, r"\bmlp\.up\.weight is \[256, 64\] .*\[512, 64\]"),
        ({"add_bias_linear": False}, r"\bblocks\.0\.attention\.qkv\.bias,"),
        ({"num_query_groups": 2}, r"model_states\.pt: grouped queries\b"),
    ],
)
def test_neox_weights_of_another_model(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    write_neox(tmp_path / "a", Memory(model_of(**NEOX)))
    with pytest.raises(UsageError, match=message):
        weights_in(tmp_path / "a", model_of(**{**NEOX, **settings}))


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_neox_head_is_not_dropped(tmp_path: Path, ranks: int) -> None:
    weights = Memory(model_of(**NEOX))
    tied = model_of(**{**NEOX, "untie_embeddings_and_output_weights": False})
    folder = tmp_path / "a"
    write_neox(folder, weights, ranks)
    message = r"\bfinal_linear\b.*\buntie_embeddings_and_output_weights\b.*\bno-weight-tying\b"
    with pytest.raises(UsageError, match=message):
        weights_in(folder, tied)
    last = weights.model.num_layers + 4
    for rank in range(ranks):  # a head that is the embedding, but for the 12 rows of padding
        words, head = (
            folder / f"layer_{number:02d}-model_{rank:02d}-model_states.pt" for number in (0, last)
        )
        same = torch.load(words)["word_embeddings.weight"]
        if rank == ranks - 1:
            same[-12:] = 7
        torch.save({"final_linear.weight": same}, head)
    found = weights_in(folder, tied)
    assert list(found.model.layout) == [n for n in weights.model.layout if n != "head.weight"]
    same[-13] += 1  # the last word
    torch.save({"final_linear.weight": same}, head)
    with pytest.raises(UsageError, match=message):
        weights_in(folder, tied)


def test_latest_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    weights = Memory(model_of(**NEOX))
    write_neox(tmp_path / "other/global_step7", weights)
    write_neox(tmp_path / "run/global_step7/global_step8", weights)
    for name in ("../other/global_step7", str(tmp_path / "other/global_step7"), "..", "."):
        (tmp_path / "run/latest").write_text(name)
        with pytest.raises(FormatError, match=f"/latest .* {re.escape(name)},"):
            find(tmp_path / "run")
    (tmp_path / "run/latest").write_text("global_step7/global_step8")
    with pytest.raises(FormatError, match=r"/latest .* global_step7/global_step8,"):
        find(tmp_path / "run")
    (tmp_path / "other/latest").write_text("global_step7\n")
    with pytest.raises(InputError, match=r"/other/global_step7: .*\bGPT-NeoX\b"):
        find(tmp_path / "other")
    write_neox(tmp_path / "layer_files", weights)
    (tmp_path / "layer_files/run").mkdir()
    (tmp_path / "layer_files/run/latest").write_text("..")
    with pytest.raises(FormatError, match=r"/latest .* \.\.,"):
        find(tmp_path / "layer_files/run")


def test_neox_files_that_are_missing(tmp_path: Path) -> None:
    weights = Memory(model_of(**NEOX))
    write_neox(tmp_path / "a", weights)
    (tmp_path / "a/layer_03-model_01-model_states.pt").unlink()
    with pytest.raises(FormatError, match=r"/a: .*\bstage 3 .*\[0\], .*\b0 to 1$"):
        weights_in(tmp_path / "a", weights.model)
    write_neox(tmp_path / "b", weights)
    for rank in range(2):
        (tmp_path / f"b/layer_06-model_{rank:02d}-model_states.pt").unlink()
    with pytest.raises(FormatError, match=r"/b: .*\bnorm\.weight\b"):
        weights_in(tmp_path / "b", weights.model)

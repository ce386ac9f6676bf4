"""``tokpack model export`` and ``tokpack generate``: from a trained checkpoint to a text."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from support.trainer_model_tools import NEOX, SMALL, Memory  # noqa: E402
from support.trainer_neox_tools import write_neox  # noqa: E402

from tokpack.cli.main import main  # noqa: E402
from tokpack.errors import TokenizerError, UsageError  # noqa: E402
from tokpack.storage.disk import lock  # noqa: E402
from tokpack.tokenizers import load_tokenizer  # noqa: E402
from tokpack.tokenizers.load import tokenizer_of  # noqa: E402
from tokpack.trainer.checkpoint import CheckpointWrite  # noqa: E402
from tokpack.trainer.checkpoints.export import open_weights  # noqa: E402
from tokpack.trainer.checkpoints.files import RunState  # noqa: E402
from tokpack.trainer.config.config import Config  # noqa: E402
from tokpack.trainer.config.model import ModelConfig  # noqa: E402
from tokpack.trainer.engine import make_engine  # noqa: E402
from tokpack.trainer.generate import continue_tokens, generate, load_model  # noqa: E402
from tokpack.trainer.parallel import start  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

    from tokpack.tokenizers import Tokenizer

torch.set_num_threads(1)
POEM = "the cat sat on the mat. the dog sat on the log.<|endoftext|>"


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tokenizer.json."""
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "text.txt").write_text("the cat sat on the mat. the dog sat on the log.\n" * 50)
    made = folder / "tokenizer.json"
    assert main(["vocab", str(folder / "text.txt"), "-o", str(made), "--size", "280"]) == 0
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, vocabulary: Path) -> Path:
    """A checkpoint of a model that has learned POEM by heart."""
    tokenizer, made = load_tokenizer(vocabulary), tmp_path_factory.mktemp("run")
    config = Config(**{**SMALL, "vocab_size": tokenizer.vocab_size, "lr": 3e-3})
    model = ModelConfig.of(config, tokenizer.vocab_size)
    engine = make_engine(config, model, start(config))
    ids = ids_of(tokenizer, POEM * 5)[:65]
    batch = {
        "tokens": torch.tensor([ids[:-1]]),
        "labels": torch.tensor([ids[1:]]),
        "loss_mask": torch.ones(1, 64),
        "position_ids": torch.arange(64)[None],
    }
    for _ in range(40):
        loss = engine.train_batch([batch], 3e-3).loss
    assert loss < 0.2
    meta = RunState(40, 40, {}, {}, dataclasses.asdict(model), tokenizer.describe())
    CheckpointWrite(engine, made, meta).finish()
    lock.release()
    return made


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).numpy()
    spans = torch.tensor([[0, len(data)]]).numpy()
    ids: list[int] = (
        tokenizer.encoder(dtype="int32", append_eod=False).encode(data, spans).ids.tolist()
    )
    return ids


def test_it_goes_on_as_it_learned(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", str(run), "--prompt", "the cat sat", "--temperature", "0"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out == "the cat sat on the mat. the dog sat on the log.\n"  # the document ends there
    assert main([*words, "--tokens", "1"]) == 0
    assert capsys.readouterr().out == "the cat sat on\n"


def test_a_seed_decides(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def text(*flags: str) -> str:
        assert main(["generate", str(run), "-p", "the", "--temperature", "3", *flags]) == 0
        return capsys.readouterr().out

    assert text("--seed", "1") == text("--seed", "1")
    assert text("--seed", "1") != text("--seed", "2")
    greedy = text("--temperature", "0", "--tokens", "8")
    assert text("--top-k", "1", "--tokens", "8") == greedy


def test_an_empty_prompt_begins_a_document(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(run), "--temperature", "0", "--tokens", "3"]) == 0
    assert capsys.readouterr().out.startswith("the cat")


def test_a_prompt_stands_behind_the_frame_of_the_data(run: Path, vocabulary: Path) -> None:
    weights, tokenizer = open_weights(run), load_tokenizer(vocabulary)

    def text(prompt: str) -> str:
        return "".join(generate(weights, tokenizer, prompt, temperature=0))

    plain = text("the cat sat on")
    assert plain.startswith(" the mat")
    before = ids_of(tokenizer, "the cat sat")
    assert weights.tokenizer is not None
    weights.tokenizer["frame"] = {"before": before, "after": []}
    assert text(" on") == plain
    assert text("") == f" on{plain}"


def test_top_k_and_the_window(run: Path) -> None:
    weights = open_weights(run)
    stage = load_model(weights, torch.device("cpu"))
    seen = list(range(100))  # more than the model has positions
    steps = continue_tokens(stage, seen, top_k=3, temperature=5.0, seed=3)
    with torch.no_grad():
        for _, token in zip(range(20), steps, strict=False):
            window = torch.tensor([seen[-64:]])
            likeliest = stage.logits({"tokens": window})[0, -1].topk(3).indices.tolist()
            assert token in likeliest
            seen.append(token)


def test_ids_that_no_token_has_are_left_out(vocabulary: Path) -> None:
    """Rows that pad the vocabulary, as of an imported model, and whose chances are the best."""
    tokenizer = load_tokenizer(vocabulary)
    size = tokenizer.vocab_size
    weights = Memory(ModelConfig.of(Config(**SMALL), size + 50))
    with torch.no_grad():
        rows = weights.stage.get_parameter("embedding.word.weight")
        rows[size : size + 50] *= 100
    stage = load_model(weights, torch.device("cpu"))
    for settings in ({"temperature": 0.0}, {"top_k": 3}, {"seed": 1}):
        free = islice(continue_tokens(stage, [0], **settings), 10)
        assert max(free) >= size
        drawn = islice(continue_tokens(stage, [0], **settings, is_token=lambda n: n < size), 10)
        assert max(drawn) < size
        assert list(generate(weights, tokenizer, "the", tokens=10, **settings))


def test_a_tokenizer_that_does_not_fit(run: Path, tmp_path: Path, vocabulary: Path) -> None:
    weights = open_weights(run)
    larger = json.loads(vocabulary.read_text())
    larger["added_tokens"].append(
        {
            **larger["added_tokens"][0],
            "id": load_tokenizer(vocabulary).vocab_size,
            "content": "<|more|>",
        }
    )
    other = tmp_path / "tokenizer.json"
    other.write_text(json.dumps(larger))
    with pytest.raises(UsageError):
        generate(weights, load_tokenizer(other), "the")
    with pytest.raises(TokenizerError):
        tokenizer_of(weights.tokenizer, tokenizer=str(other))
    assert tokenizer_of(weights.tokenizer, tokenizer=str(vocabulary)).name == str(vocabulary)


def test_a_tokenizer_that_moved(run: Path, tmp_path: Path, vocabulary: Path) -> None:
    copy = tmp_path / "tokenizer.json"
    shutil.copy(vocabulary, copy)
    entry = load_tokenizer(copy).describe()
    assert tokenizer_of(entry).name == str(copy)
    copy.unlink()
    with pytest.raises(TokenizerError, match=rf"{copy} .*\btokenizer\b"):
        tokenizer_of(entry)
    with pytest.raises(TokenizerError, match=r"^the checkpoint .*\bvocab_file and merge_file$"):
        tokenizer_of(None)


def test_the_tokenizer_of_two_files(data: Path) -> None:
    files = data / "tokenizers"
    for kind in (None, "HFGPT2Tokenizer"):
        made = load_tokenizer(
            vocab_file=files / "gpt2-vocab.json",
            merge_file=files / "gpt2-merges.txt",
            tokenizer_type=kind,
        )
        found = tokenizer_of(made.describe())  # its entry names the vocabulary alone
        assert found.fingerprint == made.fingerprint


def test_export(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers")
    output = tmp_path / "model"
    assert main(["export", str(run), "-o", str(output)]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{output}\n"
    assert "GPT2LMHeadModel" in captured.err
    model = transformers.AutoModelForCausalLM.from_pretrained(output, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(output)
    ids = tokenizer("the cat sat", return_tensors="pt")
    made = model.generate(**ids, do_sample=False, max_new_tokens=30, pad_token_id=0)
    text = tokenizer.decode(made[0], skip_special_tokens=True)
    assert text == "the cat sat on the mat. the dog sat on the log."
    assert main(["export", str(run), "-o", str(output)]) == 1
    assert "exists: choose another output" in capsys.readouterr().err
    assert main(["export", str(run), "-o", str(output), "--overwrite", "-q"]) == 0


NEOX_YAML = {
    "num-layers": 3,
    "hidden-size": 64,
    "num-attention-heads": 4,
    "seq-length": 64,
    "max-position-embeddings": 64,
    "pos-emb": "rotary",
    "rotary-pct": 0.25,
    "gpt-j-residual": True,
    "no-weight-tying": True,
    "model-parallel-size": 2,
    "pipe-parallel-size": 2,
    "train_micro_batch_size_per_gpu": 2,
}


def test_layer_files_become_a_checkpoint(
    tmp_path: Path, vocabulary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By one command, whose error every other one gives; rows of padding are lost."""
    ids = load_tokenizer(vocabulary).vocab_size
    model = ModelConfig.of(Config(**{**SMALL, **NEOX, "activation": "gelu"}), ids)
    run, yml = tmp_path / "run", tmp_path / "neox.yml"
    write_neox(run / "global_step7", Memory(model), padding=2000)
    (run / "latest").write_text("global_step7")
    yml.write_text(json.dumps(NEOX_YAML))
    for words in (
        ["export", str(run), "-o", str(tmp_path / "model")],
        ["generate", str(run)],
    ):
        assert main(words) == 1, words
    words = ["model", "import", str(run), "-o", str(tmp_path / "base")]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert said.count(f"{run}/global_step7: layer files of GPT-NeoX: make a checkpoint") == 2
    assert "add --config" in said

    def rows(more: dict[str, Any], *flags: str) -> int:
        yml.write_text(json.dumps({**NEOX_YAML, **more}))
        shutil.rmtree(tmp_path / "base", ignore_errors=True)
        lock.release()
        assert main([*words, "--config", str(yml), *flags]) == 0
        return open_weights(tmp_path / "base").model.vocab_size

    few = tmp_path / "few.json"
    few.write_text(json.dumps({"a": 0, "b": 100}))
    assert rows({"vocab-file": str(few)}) == 101
    assert rows({"vocab_size": ids - 1, "vocab-file": str(few)}) == ids - 1
    assert rows({"vocab-file": str(tmp_path / "gone.json")}) == ids + 2000
    assert rows({"vocab_size": 9}, "--vocab-size", str(ids), "--tokenizer", str(vocabulary)) == ids
    capsys.readouterr()
    assert main(["generate", str(tmp_path / "base"), "--tokens", "30", "--prompt", "the"]) == 0
    assert capsys.readouterr().out.startswith("the")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "absent", "-o", "c"], "absent: there is no checkpoint"),
        (["generate", "absent"], "absent: there is no checkpoint"),
    ],
)
def test_requests_that_are_wrong(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["export", "generate"])
def test_help_needs_no_torch(command: str) -> None:
    code = (
        "import sys; from tokpack.cli.main import main;"
        f"main(['{command}', '--help']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")
    assert "CHECKPOINT" in done.stdout


def test_without_the_extra() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from tokpack.cli.main import main;"
        "sys.exit(main(['generate', 'somewhere']))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "this needs the package torch: pip install 'tokpack[train]'" in done.stderr

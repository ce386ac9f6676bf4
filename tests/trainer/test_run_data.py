"""The data of whole runs: its batches, losses and vocabulary, and what is refused of it."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.indexed_twin import Plain, write_plainly
from support.rounding import EXACT
from support.samples_twin import write_manifest
from support.tiny_tokenizers import ALPHABET, EOD, pair
from support.trainer_tools import VOCABULARY, losses, records, settings, write_tokens

from tokpack import cli
from tokpack.errors import InputError, ResumeError, TokpackError, UsageError
from tokpack.trainer.config.config import Config

torch = pytest.importorskip("torch")

from tokpack.trainer.data import open_data  # noqa: E402
from tokpack.trainer.loop import train  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


def test_ramped_batches_and_named_validation_sets(prefix: str, tmp_path: Path) -> None:
    other = write_tokens(tmp_path / "other", seed=1)
    more = {
        "data_path": (),
        "train_data_path": ("0.3", prefix, "0.7", other),
        "valid_data_path": (prefix, other),
        "eval_iters": 1,
        "rampup_batch_size": (2, 2, 30),
        "log_dir": str(tmp_path),
        "train_samples": 60,
    }
    assert train(Config(**settings(prefix, **more)))
    steps = records(tmp_path)
    assert [step["batch_size"] for step in steps][:7] == [2] * 5 + [4, 4]
    assert steps[-1]["batch_size"] == 8
    assert steps[-1]["consumed_samples"] == sum(step["batch_size"] for step in steps) <= 60
    assert {e["name"] for e in records(tmp_path, "evaluation")} == {prefix, other}


def test_a_blend_file_means_what_its_words_mean(
    prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_tokens(tmp_path / "other", seed=1)
    words = ("0.3", prefix, "0.7", other)
    path = str(tmp_path / "blend.yaml")
    assert cli.main(["blend", *words, "--samples", "24", "--seq-length", "32", "-o", path]) == 0
    found = []
    for number, given in enumerate((words, (path,))):
        folder = tmp_path / str(number)
        more = {"data_path": given, "train_data_path": (), "order": "megatron", "split": "1,0,0"}
        config = Config(**settings(prefix, log_dir=str(folder), train_samples=24, **more))
        assert train(config)
        found.append(losses(folder))
        assert "/other: 17 samples" in capsys.readouterr().err
    assert list(found[0]) == [1, 2, 3]
    assert found[0] == found[1]


def test_arrays_of_other_orders_are_kept_in_a_cache(prefix: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"order": "megatron", "train_samples": 24, "split": "1,0,0"}
    found, times = [], []
    for cache in (None, str(tmp_path / "cache"), str(tmp_path / "cache")):
        folder = tmp_path / str(len(found))
        config = Config(**settings(prefix, log_dir=str(folder), data_cache_path=cache, **more))
        assert train(config)
        found.append(losses(folder))
        times.append([path.stat().st_mtime_ns for path in (tmp_path / "cache").glob("*-*.json")])
    assert found[0] == found[1] == found[2]
    assert (len(times[0]), len(times[1])) == (0, 1)
    assert times[1] == times[2], "the second run has built it again"


def test_padding_counts_neither_in_the_loss_nor_in_the_entropy(tmp_path: Path) -> None:
    draw = random.Random(0)
    documents = [[draw.randrange(16) for _ in range(9)] for _ in range(400)]
    write_plainly(tmp_path / "short", Plain("H", documents, list(range(401))))
    blend = tmp_path / "blend.yaml"
    blend.write_text("datasets: short\npacking: document\n")
    more: dict[str, Any] = {"data_path": (str(blend),), "train_data_path": (), "split": "1,0,0"}
    config = Config(**settings("", log_dir=str(tmp_path), **more))
    # That of n draws is below log(16) by half a chi square of 15 degrees over n: 60 has p = 2e-7.
    bound = 60 / (2 * 400 * 8)
    assert open_data(config, 1).unigram_entropy(400) == pytest.approx(math.log(16), abs=bound)
    assert train(config)
    # 8 labels of a sample are random, 24 are padding, all alike.
    assert records(tmp_path)[-1]["loss"] > math.log(16) / 2  # and not a quarter


@pytest.mark.usefixtures("float64")
def test_labels_count_alike_in_every_micro_batch(tmp_path: Path) -> None:
    """An evaluation is a mean over labels, and with calculate_per_token_loss a step is too."""
    draw = random.Random(0)
    documents = [[draw.randrange(90) for _ in range(draw.randint(2, 32))] for _ in range(400)]
    write_plainly(tmp_path / "short", Plain("H", documents, list(range(401))))
    blend = tmp_path / "blend.yaml"
    blend.write_text("datasets: short\npacking: document\n")
    found: dict[tuple[bool, int], list[float]] = {}
    for exact in (False, True):
        for size in (1, 8):
            folder = tmp_path / f"{exact}-{size}"
            more = {"micro_batch_size": size, "calculate_per_token_loss": exact, "eval_iters": 2}
            more |= {"data_path": (str(blend),), "log_dir": str(folder), "train_samples": 24}
            assert train(Config(**settings("", **more) | {"lr": 3e-3 if exact else 0.0}))
            steps = [x for s in records(folder) for x in (s["loss"], s["grad_norm"])]
            evaluations = [e["loss"] for e in records(folder, "evaluation")]
            found[exact, size] = [*steps, *evaluations]
            assert len(evaluations) == 2
    assert found[True, 1] == pytest.approx(found[True, 8], rel=0, abs=EXACT)
    assert found[False, 1][-2:] == pytest.approx(found[False, 8][-2:], rel=0, abs=EXACT)
    assert abs(found[False, 1][0] - found[False, 8][0]) > 1e3 * EXACT


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"global_batch_size": 10, "micro_batch_size": 4},
         r"^global_batch_size 10 .*\bmicro_batch_size 4$"),
        ({"split": "99999,1,0", "eval_iters": 1}, r"\b0 tokens of .*/corpus for valid\b"),
        ({"split": "98,2,0", "eval_iters": 1, "micro_batch_size": 64, "global_batch_size": 64},
         r"^valid: \d+ samples .*\b64: .*\beval_iters 0$"),
        ({"seq_length": 100_000}, r"\b[\d,]+ tokens of .*/corpus for train\b"),
        ({"vocab_size": 100}, r"\btoken id 1\d\d, .*\b100 ids\b"),
        ({"vocab_size": None}, r"/corpus: .*\bvocab_size$"),
        ({"data_path": ()}, r"\bdata_path or train_data_path$"),
        ({"data_path": ("0.5", "{prefix}", "0.5")}, r": 0\.5 \S*/corpus 0\.5; "),
        ({"data_path": ("/nowhere/data",)}, "^/nowhere/data: .*/nowhere$"),
        ({"train_samples": 4}, r"^4 samples .*\b8: .*\btrain_samples\b"),
        ({"save": "/dev/null/x"}, " /dev/null/x: "),
        ({"tensorboard_dir": "/dev/null/x"}, " /dev/null/x: "),
    ],
)  # fmt: skip
def test_bad_requests_end_before_a_step(
    prefix: str, tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    if "data_path" in more:
        more = more | {"data_path": tuple(w.format(prefix=prefix) for w in more["data_path"])}
    with pytest.raises(TokpackError, match=message):
        train(Config(**settings(prefix, log_dir=str(tmp_path), **more)))
    assert not records(tmp_path)


def test_the_vocabulary_of_manifests_and_files(tmp_path: Path) -> None:
    prefix = write_tokens(tmp_path / "corpus")
    write_manifest(tmp_path / "corpus", "gpt2", "0" * 64)
    manifest = json.loads((tmp_path / "corpus.json").read_text())
    manifest["tokenizer"]["vocab_size"] = VOCABULARY
    (tmp_path / "corpus.json").write_text(json.dumps(manifest))
    (tmp_path / "vocab.json").write_text(json.dumps({f"t{i}": i for i in range(90)}))
    base = settings(prefix, train_samples=8)
    assert train(Config(**base | {"vocab_size": None}))
    with pytest.raises(UsageError, match=r"vocab\.json has 90"):
        train(Config(**base | {"vocab_size": None, "vocab_file": str(tmp_path / "vocab.json")}))
    with pytest.raises(UsageError, match="vocab_size"):
        train(Config(**base | {"vocab_size": 100}))


def test_a_tokenizer_that_no_manifest_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the files that other programs are given; then checkpoints know it, and steps are text."""
    text, data, run = (tmp_path / name for name in ("text.txt", "data", "run"))
    text.write_text("a cab, a bab, abc, abcd\n\n" * 300)
    vocabulary = {token: i for i, token in enumerate([*ALPHABET, "ab", "abc", EOD])}
    pair(tmp_path, vocabulary, "#version: 0.2\na b\nab c\n")
    files = ["--vocab-file", f"{tmp_path}/vocab.json", "--merge-file", f"{tmp_path}/merges.txt"]
    assert cli.main(["encode", str(text), "-o", str(data), "--quiet", *files]) == 0
    (tmp_path / "data.json").unlink()
    small = settings(str(data), train_samples=16, save=str(run), vocab_size=None)
    flags = [f"--{k}={v}" for k, v in small.items() if v is not None and k != "data_path"]
    assert cli.main(["train", "--data-path", str(data), *flags, *files]) == 0
    assert "nothing to do" not in capsys.readouterr().err
    assert cli.main(["generate", str(run), "--prompt", "a cab", "-n", "3"]) == 0
    assert capsys.readouterr().out.startswith("a cab")
    assert cli.main(["samples", str(run), "--step", "1"]) == 0
    assert "abc, abcd" in capsys.readouterr().out
    alone = [f"--vocab-file={tmp_path}/vocab.json", f"--save={tmp_path}/alone"]
    assert cli.main(["train", "--data-path", str(data), *flags, *alone]) == 0
    assert "the checkpoints will not name a tokenizer: " in capsys.readouterr().err


def test_a_test_set_that_is_too_small_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_tokens(tmp_path / "data")
    assert train(Config(**settings(data, train_samples=8, eval_iters=1, split="98,2,0.001")))
    said = capsys.readouterr().err
    assert "note: no test at the end: the split leaves 0 samples for it" in said
    assert "cannot be opened" not in said


def test_ids_that_no_scan_found_end_the_run(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokpack.trainer.data.SCANNED", 10)
    monkeypatch.setattr("tokpack.trainer.data.COUNTED", 1)
    with pytest.raises(InputError, match=r"\btoken id 1\d\d, .*\b110 ids\b"):
        train(Config(**settings(prefix, vocab_size=110)))


def test_other_data_is_not_gone_on_with(prefix: str, tmp_path: Path) -> None:
    config = Config(**settings(prefix, save=str(tmp_path), train_samples=16))
    assert train(config)
    with pytest.raises(UsageError, match=r"\bstep_00000002 .*\bload\b"):
        train(config)
    config = replace(config, load=str(tmp_path))
    with pytest.raises(ResumeError, match=r"\bseed is 1234 .*\b7 "):
        train(replace(config, seed=7))
    again = write_tokens(tmp_path / "other", seed=5)
    with pytest.raises(ResumeError, match="data_path"):
        train(replace(config, data_path=(again,)))
    with pytest.raises(UsageError, match=r"\b2 steps .*\b16 samples, .*\b8\b"):
        train(replace(config, train_samples=8))
    again = replace(config, save=None, seed=7, finetune=True, log_dir=str(tmp_path / "new"))
    assert train(again)
    assert list(losses(tmp_path / "new")) == [1, 2]

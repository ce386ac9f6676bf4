"""The scripts and the notebook of examples/ run, in the order in which a reader would run them."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from support.places import ROOT
from support.warm_python import warm_python

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = ROOT / "examples"


def script_of(notebook: Path) -> str:
    """The code cells of a notebook, one after the other."""
    cells = json.loads(notebook.read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def output(code: str, folder: Path) -> str:
    """What a Python process printed that ran ``code`` in ``folder``."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    script = folder / "script.py"
    script.write_text(code)
    run = subprocess.run(
        [str(warm_python() / "python"), str(script)],
        cwd=folder,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def running(*names: str) -> str:
    """Code that runs scripts in one process."""
    calls = (f"run_path({str(EXAMPLES / name)!r}, run_name='__main__')" for name in names)
    return "\n".join(("from runpy import run_path", *calls))


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the datasets of the first example."""
    folder = tmp_path_factory.mktemp("examples")
    printed = output(running("encode_and_look.py"), folder)
    assert "code: " in printed
    assert "from manual.jsonl:" in printed
    return folder


def test_the_torch_loop(encoded: Path) -> None:
    assert "resumes with sample 80" in output(running("torch_loop.py"), encoded)


MEGATRON = """
import json, runpy, shutil, sys
try:
    import megatron.core.datasets.gpt_dataset
except ImportError as error:
    print("absent:", error)
    sys.exit()
import numpy as np, tokpack, torch
example = runpy.run_path(EXAMPLE, run_name="__main__")
Builder, Packed = example["BlendedMegatronDatasetBuilder"], example["PackedDataset"]
tokenizer = example["SimpleNamespace"](vocab_size=1000, eod=0, pad=-1, unique_identifiers={})
common = dict(
    sequence_length=512, tokenizer=tokenizer, reset_position_ids=False,
    reset_attention_mask=False, eod_mask_loss=False)

def build(prefixes, weights, split, sizes, **more):
    config = example["GPTDatasetConfig"](
        random_seed=7, blend=(prefixes, weights), split=split, **common | more)
    return Builder(Packed, sizes, lambda: True, config).build()

def key(sample):
    return tuple(np.asarray(sample[name]).tobytes() for name in sorted(sample))

# Each sample is one of tokpack's own, array by array, and an epoch has each once.
tokpack.encode("code.jsonl", "plain", tokenizer="tokenizer.json")  # without a mask, and cut
own = {}
for prefix in ("chats", "plain"):
    example["write_packs"](prefix, 512)
    packed = tokpack.GPTDataset(prefix, 512, packing="best_fit")
    own[prefix] = sorted(key(packed[number]) for number in range(len(packed)))
    count = len(packed)
    (train, _, _) = build([prefix], None, "1,0,0", [2 * count + 3, 0, 0])
    assert len(train) == 2 * count + 3
    taken = train[0]
    assert {n: (str(v.dtype), tuple(v.shape)) for n, v in taken.items()} == {
        n: ("torch." + str(v.dtype), v.shape) for n, v in packed[0].items()}
    epochs = [[key(train[e * count + k]) for k in range(count)] for e in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [own[prefix]] * 2
    assert epochs[0] != epochs[1]
    assert key(train[0]) == epochs[0][0]  # also after another epoch
assert packed.packing_stats.cut and tokpack.GPTDataset("chats", 512).is_masked

# A split has each pack once; a blend takes both; a loader stacks them.
train, valid, test = build(["chats"], None, "6,3,1", [None, None, None])
assert sorted(key(s[k]) for s in (train, valid, test) for k in range(len(s))) == own["chats"]
(blend, _, _) = build(["chats", "plain"], [0.3, 0.7], "1,0,0", [60, 0, 0])
whole = set(own["chats"]), set(own["plain"])
loader = torch.utils.data.DataLoader(blend, batch_size=4)
names = ("tokens", "labels", "loss_mask", "position_ids", "cu_seqlens", "max_seqlen")
rows = [{n: batch[n][k] for n in names} for batch in loader for k in range(len(batch["tokens"]))]
assert len(rows) == len(blend)
assert 0.25 < sum(key(row) in whole[0] for row in rows) / len(rows) < 0.35
assert all(key(row) in whole[0] | whole[1] for row in rows)

# What would train on something else is refused.
def refused(prefix, word, **more):
    try:
        build([prefix], None, "1,0,0", [None, None, None], **more)
    except (ValueError, FileNotFoundError) as error:
        assert word in str(error), error
    else:
        raise AssertionError(word)

refused("chats", "packs of", sequence_length=256)
shutil.copy("plain.packs.npy", "manual.packs.npy")
refused("manual", "another dataset")
refused("code", "code.packs.npy")
manifest = json.load(open("chats.json"))
manifest["tracks"]["weights"] = {}
json.dump(manifest, open("chats.json", "w"))
refused("chats", "weights")
del manifest["tracks"]["weights"]
json.dump(manifest, open("chats.json", "w"))
open("chats.mask", "ab").write(b"1")
refused("chats", "chats.mask")
print("all as tokpack")
"""


def test_packs_by_megatrons_own_classes(encoded: Path) -> None:
    """Its builder, its blend and its reader of tokens, with the example's dataset."""
    pytest.importorskip("jinja2")
    printed = output(MEGATRON.replace("EXAMPLE", repr(str(EXAMPLES / "megatron_sft.py"))), encoded)
    if "absent:" in printed:
        pytest.skip("megatron-core is not installed: its reading of packs is not tested")
    assert "packs of whole conversations" in printed
    assert "all as tokpack" in printed


def test_the_notebook(encoded: Path) -> None:
    printed = output(script_of(EXAMPLES / "look.ipynb"), encoded)
    assert "sample 2 is sample" in printed
    assert "140 of the first 200 samples are from code" in printed


@pytest.mark.slow
def test_the_trainer_of_hugging_face_and_the_checkpoints_of_lightning(encoded: Path) -> None:
    printed = output(running("hf_trainer.py", "lightning_data.py"), encoded)
    assert "'loss'" in printed
    assert "resumes with sample 16" in printed
    assert "resumes with step 6 of 10" in printed


@pytest.mark.slow
def test_faster_tokenizers_in_other_programs(encoded: Path) -> None:
    for package in ("transformers", "datasets", "datatrove"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    assert "the same ids in transformers" in output(running("faster_tokenizers.py"), encoded)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "says"),
    [("grain", "2 hosts, then 1: resumes with sample 80"),
     ("torchtitan", "2 ranks, then 1: resumes with sample 80")],
)  # fmt: skip
def test_loaders_of_other_trainers(encoded: Path, package: str, says: str) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed: its loader is not tested")
    assert says in output(running(f"{package}_loader.py"), encoded)

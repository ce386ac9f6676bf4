"""Index files of other programs: their names, their contents, and the programs that read them."""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.megatron_cases import blend_case, prefix_of, single_case, stored
from support.optional import SHARED
from support.places import GOLDEN

from tokpack import BlendedDataset, GPTDataset, MMapIndexedDataset
from tokpack.errors import UsageError
from tokpack.samples.blend.open import open_blend
from tokpack.samples.megatron.cache_files import PARTS, IndexFiles, IndexRequest, write_index_files
from tokpack.samples.megatron.orders import blend_request

INDEX = SHARED / "index"
TOKENIZER = {"class": "OracleTok"}
NAMED = ("megatron", "megatron-0.9", "megatron-0.4")  # whose names of files are stored


def cases(*, blends: bool) -> list[Any]:
    files = [file for file in stored(INDEX, blends=blends) if file.parent.name in NAMED]
    params = [pytest.param(file, id=f"{file.parent.name}-{file.stem}") for file in files]
    return params or [pytest.param(None, marks=pytest.mark.skip("shared/data/index is absent"))]


def dataset(name: str) -> MMapIndexedDataset:
    return MMapIndexedDataset(prefix_of(INDEX, name))


def check(arrays_of: Any, part: str, written: IndexFiles, kind: str, arrays: list[str]) -> None:
    text = str(arrays_of[f"{part}_desc"])
    names = [f"{arrays_of[f'{part}_hash']}-{kind}-{part}-{array}.npy" for array in arrays]
    paths = [Path(path) for path in written.paths]
    assert [path.name for path in paths[:-1]] == names
    assert paths[-1].name.endswith("-description.txt")
    assert paths[-1].read_text() == text
    for array, path in zip(arrays, paths, strict=False):
        expected = arrays_of[f"{part}_{array}"]
        found = np.load(path, mmap_mode="r")
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    plain = paths[0].with_name("plain.npy")
    np.save(plain, arrays_of[f"{part}_{arrays[0]}"])
    assert plain.read_bytes() == paths[0].read_bytes()


@pytest.mark.promises
@pytest.mark.parametrize("file", cases(blends=False))
def test_datasets_have_the_programs_names_and_bytes(file: Path, tmp_path: Path) -> None:
    case = single_case(file.stem)
    request = IndexRequest(
        paths=(f"data/{case['dataset']}",),
        weights=None,
        samples=tuple(case["num_samples"]),
        seq_length=case["seq_length"],
        seed=case["seed"],
        split=case["split"],
        tokenizer=TOKENIZER,
        order=file.parent.name,
        add_extra_token=case.get("add_extra_token_to_sequence", True),
        drop_last=case.get("drop_last_partial_validation_sequence", True),
    )
    with np.load(file) as arrays_of:
        parts = [part for part in PARTS if f"{part}_desc" in arrays_of]
        assert parts
        # A part with a weight and no sequence stops the writing: the program would hang.
        found = {}
        for written in write_index_files(tmp_path, request, [dataset(case["dataset"])]):
            found[written.name.split()[-1]] = written
            if len(found) == len(parts):
                break
        assert list(found) == parts
        arrays = ["document_index", "sample_index", "shuffle_index"]
        for part in parts:
            check(arrays_of, part, found[part], "GPTDataset", arrays)


@pytest.mark.promises
@pytest.mark.parametrize("file", cases(blends=True))
def test_blends_have_the_programs_names_and_bytes(file: Path, tmp_path: Path) -> None:
    case = blend_case(file.stem)
    weights = case["weights"]
    request = IndexRequest(
        paths=tuple(f"data/{name}" for name in weights),
        weights=tuple(weights.values()),
        samples=tuple(case["num_samples"]),
        seq_length=case["seq_length"],
        seed=case["seed"],
        split="90,5,5",
        tokenizer=TOKENIZER,
        order=file.parent.name,
    )
    sources = [dataset(name) for name in weights]
    blends = [w for w in write_index_files(tmp_path, request, sources) if "blend" in w.name]
    with np.load(file) as arrays_of:
        if "train_desc" not in arrays_of:
            pytest.skip("the program's own description was not kept")
        for part, written in zip(PARTS, blends, strict=True):
            arrays = ["dataset_index", "dataset_sample_index"]
            check(arrays_of, part, written, "BlendedDataset", arrays)


MEGATRON = """
import hashlib, json, os, sys
try:
    import numpy as np, torch
    from megatron.core.datasets import blended_megatron_dataset_builder as builder, helpers
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
except ImportError as error:
    print("absent:", error)
    sys.exit()
class Tokenizer:
    unique_identifiers = {"class": "TestTokenizer"}
    vocab_size, eod, pad = 50257, 0, -1
def refuse(*_, **__):
    raise SystemExit("it builds an index: the cache was not found")
helpers.build_sample_idx = refuse
helpers.build_blending_indices = refuse
helpers.build_exhaustive_blending_indices = refuse
def digest(dataset):
    samples = [dataset[k] for k in range(min(len(dataset), 300))]
    rows = [np.append(s["tokens"].numpy(), s["labels"].numpy()[-1]) for s in samples]
    return [len(dataset), hashlib.sha256(np.stack(rows).tobytes()).hexdigest()]
cases = json.loads(sys.argv[1])
store = "file://" + cases[0][0] + ".rendezvous"
torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
found = []
for folder, weights, paths, samples in cases:
    config = GPTDatasetConfig(
        random_seed=11, sequence_length=64, blend=(paths, weights), split="80,15,5",
        path_to_cache=folder, tokenizer=Tokenizer(), reset_position_ids=False,
        reset_attention_mask=False, eod_mask_loss=False, create_attention_mask=False)
    before = sorted(os.listdir(folder))
    make = builder.BlendedMegatronDatasetBuilder(GPTDataset, samples, lambda: True, config)
    found.append([digest(dataset) for dataset in make.build()])
    assert sorted(os.listdir(folder)) == before, "it wrote files of its own"
print("found", json.dumps(found))
"""
CASES = [  # datasets, weights, samples of train, valid and test
    (["short"], None, [3000, 40, None]),
    (["short"], [1.0], [500, 40, 20]),
    (["short", "long"], [0.3, 0.7], [3000, 40, 20]),
    (["short", "long"], None, [None, 30, None]),
]


def test_megatron_itself_finds_its_cache(shared: Path, tmp_path: Path) -> None:
    """The real program, in which everything that builds an index is made to fail."""
    cases = []
    for number, (names, weights, samples) in enumerate(CASES):
        paths = [str(shared / "index" / name) for name in names]
        request = IndexRequest(
            paths=tuple(paths),
            weights=None if weights is None else tuple(weights),
            samples=tuple(samples),
            seq_length=64,
            seed=11,
            split="80,15,5",
            tokenizer={"class": "TestTokenizer"},
        )
        folder = tmp_path / str(number)
        list(write_index_files(folder, request, [MMapIndexedDataset(path) for path in paths]))
        cases.append((str(folder), weights, paths, samples))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MEGATRON, json.dumps(cases)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "absent:" in done.stdout:
        pytest.skip("megatron-core is not installed: its own reading of the files is not tested")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.rpartition("found ")[2])
    for (_, weights, paths, samples), theirs in zip(cases, found, strict=True):
        assert theirs == own_samples(weights, paths, samples)


def own_samples(weights: Any, paths: list[str], samples: list[int | None]) -> list[Any]:
    """The same by tokpack's datasets: length and digest of training, validation and test."""
    given = weights or [None] * len(paths)
    values: dict[str, Any] = {
        "order": "megatron",
        "seed": 11,
        "seq_length": 64,
        "split": "80,15,5",
        "datasets": [
            {"prefix": path} if weight is None else {"prefix": path, "weight": weight}
            for path, weight in zip(paths, given, strict=True)
        ],
    }
    counts = zip(("samples", "valid_samples", "test_samples"), samples, strict=True)
    blends = open_blend(values | {name: count for name, count in counts if count is not None})
    result = []
    for ours in (blends.train, blends.valid["valid"], blends.test):
        assert ours is not None
        rows = [ours[k] for k in range(min(len(ours), 300))]
        text = np.stack([np.append(row["tokens"], row["labels"][-1]) for row in rows])
        result.append([len(ours), hashlib.sha256(text.tobytes()).hexdigest()])
    return result


def test_names_of_other_programs(tmp_path: Path, index: Path) -> None:
    source = MMapIndexedDataset(index / "short")
    common: dict[str, Any] = {"samples": (200, 3, 3), "seq_length": 2048, "seed": 99}
    common |= {"split": "980,10,10", "paths": ("/data/my/short",), "weights": None}
    for order, ending in (("neox", "_packedpi"), ("bigscience", "")):
        folder = tmp_path / order
        row = next(write_index_files(folder, IndexRequest(**common, order=order), [source]))
        start = f"short_train_indexmap_200ns_2048sl_99s{ending}"
        names = [f"{start}_{array}_idx.npy" for array in ("doc", "sample", "shuffle")]
        assert [Path(path).name for path in row.paths] == names
        stored = index / order / "short_s2048.npz"
        if stored.exists():
            with np.load(stored) as arrays:
                for path, name in zip(row.paths, ("document", "sample", "shuffle"), strict=True):
                    expected = arrays[f"train_{name}_index"]
                    found = np.load(path)
                    assert found.dtype == expected.dtype
                    np.testing.assert_array_equal(found, expected)
    request = IndexRequest(**(common | {"weights": (2.0,)}), order="microsoft")
    one, blend = islice(write_index_files(tmp_path / "ms", request, [source]), 2)
    text = Path(one.paths[-1]).read_text()
    assert text.startswith("GPT Dataset\n\nData prefix /data/my/short\nDataset name train\n")
    assert Path(one.paths[-1]).name == hashlib.md5(text.encode()).hexdigest() + ".dsc"
    assert [Path(path).name.partition("_")[2] for path in blend.paths[:2]] == [
        "index.npy",
        "sample_index.npy",
    ]
    assert "\nWeights: [1.]\nSize: " in Path(blend.paths[-1]).read_text()


def test_what_leaves_nothing_for_valid_leaves_no_half_files(tmp_path: Path) -> None:
    request = IndexRequest(
        paths=("edge",),
        weights=None,
        samples=(10, 1, 1),
        seq_length=4,
        seed=1,
        split="9999,1,0",
        tokenizer=TOKENIZER,
    )
    source = MMapIndexedDataset(GOLDEN / "index" / "edge")
    with pytest.raises(UsageError, match=r"^edge: split '9999,1,0' .*\bvalid\b"):
        list(write_index_files(tmp_path, request, [source]))
    assert not list(tmp_path.glob("*.tmp"))


def test_blends_of_arm_processors(tmp_path: Path) -> None:
    """Ties break otherwise there; the names of the files are the same."""
    names = ("short", "long", "edge")
    paths = tuple(str(GOLDEN / "index" / name) for name in names)
    found = []
    for fused in (False, True):
        request = IndexRequest(
            paths=paths,
            weights=(30.0, 20.0, 50.0),
            samples=(1000, 0, 0),
            seq_length=16,
            seed=1,
            split="1,0,0",
            tokenizer=TOKENIZER,
            fused=fused,
        )
        sources = [MMapIndexedDataset(path) for path in paths]
        *_, blend = write_index_files(tmp_path / str(fused), request, sources)
        found.append((Path(blend.paths[0]).name, np.load(blend.paths[0])))
    assert found[0][0] == found[1][0]
    assert np.flatnonzero(found[0][1] != found[1][1])[0] == 10
    asked = blend_request([30.0, 20.0, 50.0], 1000)
    datasets = [
        GPTDataset(path, 16, order="megatron", seed=1, num_samples=count)
        for path, count in zip(paths, asked.samples, strict=True)
    ]
    blends = [
        BlendedDataset(datasets, asked.weights.tolist(), asked.size, fused=fused)
        for fused in (False, True)
    ]
    for (_, array), one in zip(found, blends, strict=True):
        assert [one.locate(k)[0] for k in range(1000)] == array.tolist()
    assert blends[0].fingerprint != blends[1].fingerprint
    assert pickle.loads(pickle.dumps(blends[1])).fingerprint == blends[1].fingerprint
    with pytest.raises(UsageError, match=r"^fused: .*\bstateless\b"):
        BlendedDataset([GPTDataset(paths[0], 16)], fused=True)

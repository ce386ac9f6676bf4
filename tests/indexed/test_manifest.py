"""The manifest: golden, newer, broken, and beside files that are none."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
import xxhash
from support.places import GOLDEN

from tokpack.dataset import Manifest, digest_file, manifest_path
from tokpack.errors import InputError

SMALL = GOLDEN / "v1" / "uint16"


@pytest.fixture
def manifest() -> Manifest:
    return Manifest.load(SMALL)


def test_the_golden_manifest_stays_readable(manifest: Manifest) -> None:
    assert manifest.format_version == 1
    assert manifest.tokpack_version == "0.1.0"
    assert manifest.tokenizer["vocab_size"] == 50257
    assert manifest.inputs == [{"name": "a\udcff.jsonl", "size": 10, "records": 4}]
    assert manifest.records == manifest.documents + manifest.empty + manifest.rejected == 4
    assert (manifest.sequences, manifest.tokens, manifest.text_bytes) == (3, 6, 11)
    assert manifest.dtype == "uint16"
    assert manifest.bin == digest_file(f"{SMALL}.bin")
    assert manifest.idx == digest_file(f"{SMALL}.idx")


def test_a_manifest_is_saved_as_it_was_loaded(manifest: Manifest, tmp_path: Path) -> None:
    manifest.save(tmp_path / "x")
    saved = json.loads(Path(manifest_path(tmp_path / "x")).read_bytes())
    assert saved == json.loads(Path(f"{SMALL}.json").read_bytes())
    later = dataclasses.replace(manifest, tokens=7)
    later.save(tmp_path / "x")
    assert Manifest.load(tmp_path / "x") == later
    assert os.listdir(tmp_path) == ["x.json"]
    assert Manifest.from_json(later.to_json()) == later


def test_keys_that_are_not_known_are_ignored(manifest: Manifest) -> None:
    values = json.loads(manifest.to_json())
    assert Manifest.from_json(json.dumps({**values, "later": [1]})) == manifest


def test_the_digest_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    for size in (0, 1, 1 << 20, (1 << 20) + 1, 3_000_000):
        data = os.urandom(size)
        (tmp_path / "x").write_bytes(data)
        expected = {"bytes": size, "xxh3_128": xxhash.xxh3_128_hexdigest(data)}
        assert digest_file(tmp_path / "x") == expected
    with pytest.raises(InputError):
        digest_file(tmp_path / "y")

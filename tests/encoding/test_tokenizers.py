"""Several tokenizers in one run: what each of them alone would make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from support.encoding_tools import EOD, dataset, documents, write_jsonl
from support.stopped_runs import STOP_AT_RENAME, Place

import tokpack
from tokpack.encoding import plan
from tokpack.encoding.run_status import finished


@pytest.fixture(scope="module")
def folders(bpe: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A native tokenizer, and a slow one, of whose ids the last needs int32."""
    home = tmp_path_factory.mktemp("tokenizers")
    (home / "bpe").mkdir()
    (home / "bpe" / "tokenizer.json").write_bytes(bpe.read_bytes())
    words = {EOD: 0, "[UNK]": 1, "the": 70_000}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    model.add_special_tokens([EOD])
    model.save(str(home / "words.json"))
    return [str(home / "bpe"), str(home / "words.json")]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"keys": ["title", "text"], "trace": True, "workers": 2},
        {"files": 2, "workers": 2},
        {"empty": "document", "limit": 17},
    ],
)
def test_the_bytes_of_two_runs(
    tmp_path: Path, folders: list[str], monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    monkeypatch.setattr(plan, "MIN_PART_BYTES", 1)
    cut = plan.make_parts
    monkeypatch.setattr(plan, "make_parts", lambda *a, **k: cut(*a, **k, smallest_bytes=9000))
    source = write_jsonl(tmp_path / "a.jsonl", documents(200, words=30), title="the title")
    lines = source.read_text().splitlines(keepends=True)
    lines[100:100] = ["cut off\n"]
    source.write_text("".join(lines))
    options = {"on_error": "skip", **more}
    made = tokpack.encode(source, tmp_path / "both", tokenizers=folders, **options)
    assert isinstance(made, dict)
    for label, tokenizer in zip(("bpe", "words"), folders, strict=True):
        alone = tokpack.encode(source, tmp_path / label, tokenizer=tokenizer, **options)
        of_keys = alone if isinstance(alone, dict) else {"": alone}
        for key, expected in of_keys.items():
            name = f"{key}_{label}" if key else label
            manifest = made[name]
            prefixes = [f"both_{name}", f"{label}_{key}" if key else label]
            if "files" in more:
                for prefix in prefixes:
                    tokpack.merge(tmp_path / prefix, tmp_path / f"merged_{prefix}")
                prefixes = [f"merged_{prefix}" for prefix in prefixes]
            assert dataset(tmp_path / prefixes[0]) == dataset(tmp_path / prefixes[1])
            assert manifest.tokenizer == expected.tokenizer
            assert manifest.inputs == expected.inputs
            assert manifest.dtype == expected.dtype == {"bpe": "uint16", "words": "int32"}[label]
        rejects = [tmp_path / f"{prefix}.rejects.jsonl" for prefix in ("both", label)]
        if "limit" not in more:
            assert rejects[0].read_bytes() == rejects[1].read_bytes() != b""
    assert tokpack.encode(source, tmp_path / "both", tokenizers=folders, **options) == made
    assert finished(str(tmp_path / "both"))
    next(tmp_path.glob("both_*words.json")).unlink()
    assert not finished(str(tmp_path / "both"))


@pytest.mark.parametrize("done", [None, 0, 2, 5])
def test_stopped(place: Place, folders: list[str], done: int | None) -> None:
    """While it encodes, or among the renames: both datasets are there in the end."""
    options = {"tokenizer": None, "tokenizers": folders}
    if done is None:
        place.stop_at_part(4, **options)
    else:
        place.stop(STOP_AT_RENAME.format(done=done), **options)
    assert not (place.folder / "out_words.json").exists()
    with pytest.raises(tokpack.ResumeError):
        place.encode(tokenizer=None, tokenizers=folders[:1])
    place.encode(**options)
    for label, tokenizer in zip(("bpe", "words"), folders, strict=True):
        tokpack.encode(place.source, place.folder / label, tokenizer=tokenizer)
        assert dataset(place.folder / f"out_{label}") == dataset(place.folder / label)
    names = {f"out_{label}.{kind}" for label in ("bpe", "words") for kind in ("bin", "idx", "json")}
    assert {path.name for path in place.folder.glob("out*")} == names


def test_another_second_tokenizer(place: Place, folders: list[str], tmp_path: Path) -> None:
    place.stop_at_part(4, tokenizer=None, tokenizers=folders)
    other = json.loads(Path(folders[1]).read_text())
    other["model"]["vocab"]["another"] = 70_001
    (tmp_path / "words.json").write_text(json.dumps(other))
    with pytest.raises(tokpack.ResumeError, match="tokenizers"):
        place.encode(tokenizer=None, tokenizers=[folders[0], str(tmp_path / "words.json")])

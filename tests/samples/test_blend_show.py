"""``tokpack blend --show``: the first samples as text, and what blends of two tokenizers say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.samples_twin import write_dataset
from tokenizers import ByteLevelBPETokenizer

import tokpack
from tokpack import GPTDataset, MMapIndexedDataset, open_blend
from tokpack.cli import main
from tokpack.errors import UsageError
from tokpack.samples import plan_blend

if TYPE_CHECKING:
    from pathlib import Path


TEXTS = tuple(f"Document number {n}\nhas two lines of its own." for n in range(60))


def encoded(folder: Path, name: str, texts: list[str], **tokenizer: str) -> str:
    source = folder / f"{name}.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokpack.encode(str(source), str(folder / name), workers=1, **tokenizer)
    return str(folder / name)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A command, less its last flags, with two datasets, of tokens that are words."""
    folder = tmp_path_factory.mktemp("data")
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(TEXTS, 1000, special_tokens=["<|endoftext|>"], show_progress=False)
    trained.save(str(folder / "tokenizer.json"))
    names = [
        encoded(folder, name, list(TEXTS[begin:end]), tokenizer=str(folder / "tokenizer.json"))
        for name, begin, end in (("first", 0, 30), ("second", 30, 60))
    ]
    return ["blend", "1", names[0], "3", names[1], "--seq-length=32"]


class TestShow:
    def test_text_with_documents_apart(
        self, words: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([*words, "--show=3", "--max-tokens=0"]) == 0
        shown = capsys.readouterr().out.split("\n\nsample ")[1:]
        assert [text.split(":")[0] for text in shown] == ["0", "1", "2"]
        for text in shown:
            head, *rows = text.splitlines()
            documents = sum(row.startswith("  ── ") for row in rows)
            assert f", epoch 0, {documents} document" in head
            assert 1 <= documents <= 4
        assert any(
            "Document number" in text and "has two lines of its own." in text for text in shown
        )

    def test_for_machines(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert main([*words, "--show=4", "--json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        train = open_blend({"datasets": {words[2]: 1, words[4]: 3}, "seq_length": 32}).train
        for number, sample in enumerate(plan["shown"]):
            ids = [token for document in sample["documents"] for token in document["ids"]]
            assert ids == train[number]["tokens"].tolist()
            place, own = train.locate(number)
            assert sample["dataset"] == words[2 + 2 * place]
            assert (sample["sample"], sample["dataset_sample"], sample["epoch"]) == (number, own, 0)
            data = MMapIndexedDataset(sample["dataset"])
            for part in sample["documents"]:
                tokens = data.get(part["sequence"], part["first"], part["length"])
                assert tokens.tolist() == part["ids"]
            whole = "".join(document["text"] for document in sample["documents"])
            assert len(whole) > 60

    def test_little_of_each_document(
        self, words: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([*words, "--show=1", "--max-tokens=1", "--packing=best_fit"]) == 0
        out = capsys.readouterr().out
        assert out.count("  ── ") == out.count(" more tokens; --max-tokens 0 shows all") == 2

    def test_padding_is_not_shown(
        self, words: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([*words, "--show=5", "--json", "--packing=document"]) == 0
        for sample in json.loads(capsys.readouterr().out)["shown"]:
            (document,) = sample["documents"]
            assert document["text"] in (f"{text}<|endoftext|>" for text in TEXTS)

    def test_without_a_tokenizer_there_are_ids(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        small = str(tmp_path / "small")
        write_dataset(tmp_path / "small", [30] * 10)
        assert main(["blend", small, "--seq-length=10", "--show=1", "--order=megatron"]) == 0
        out, err = capsys.readouterr()
        sample = GPTDataset(small, 10, order="megatron")[0]["tokens"].tolist()
        assert " ".join(map(str, sample)) in " ".join(out.split())
        assert "epoch" not in out.split("sample 0")[1]
        assert "no manifest names the tokenizer" in err


def test_different_tokenizers(data: Path, tmp_path: Path) -> None:
    texts = ["one two three four five"] * 50
    folder = data / "tokenizers"
    gpt2 = {
        "vocab_file": str(folder / "gpt2-vocab.json"),
        "merge_file": str(folder / "gpt2-merges.txt"),
    }
    neox = str(folder / "20B_tokenizer.json")
    names = [
        encoded(tmp_path, "gpt2", texts, **gpt2),
        encoded(tmp_path, "neox", texts, tokenizer=neox),
    ]
    with pytest.raises(UsageError, match=r"vocab.json .*20B"):
        plan_blend(names, seq_length=16)
    assert main(["blend", names[0], "--seq-length=16", "--valid", f"other={names[1]}"]) == 1

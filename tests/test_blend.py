"""``tokpack blend`` and the plan under it, on real datasets."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tokpack.cli import main
from tokpack.errors import FormatError, InputError, UsageError
from tokpack.indexed import MMapIndexedDatasetBuilder
from tokpack.samples.plan import BlendPlan, load_blend, plan_blend


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three datasets: 10 documents of 100 tokens, 40 of 200, and one of 5,000."""
    for name, documents, tokens in (("small", 10, 100), ("large", 40, 200), ("one", 1, 5000)):
        prefix = tmp_path / (name if name != "large" else "large_text_document")
        builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
        for document in range(documents):
            builder.add_item(np.arange(tokens) + document)
            builder.end_document()
        builder.finalize(f"{prefix}.idx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
class TestPlan:
    def test_weights_are_shares_of_the_tokens(self) -> None:
        plan = plan_blend(["small", "large"], [1, 3], seq_length=10, samples=400)
        assert plan.shares == (0.25, 0.75)
        assert plan.member_samples == (100, 300)
        assert plan.epochs == (1.0, 0.375)
        assert plan.members[1].prefix == "large_text_document"

    def test_without_weights_every_token_is_seen_equally_often(self) -> None:
        plan = plan_blend(["small", "large", "one"], seq_length=10, epochs=2)
        assert plan.samples == 2 * 14_000 // 10
        assert plan.epochs == pytest.approx((2, 2, 2))

    def test_weights_by_epochs(self) -> None:
        plan = plan_blend(["small", "large"], [4, 1], by="epochs", seq_length=10, tokens=12_000)
        assert plan.epochs == pytest.approx((4, 1))

    def test_weights_by_documents(self) -> None:
        plan = plan_blend(["small", "one"], [1, 1], by="documents", seq_length=10, samples=510)
        assert plan.member_samples == pytest.approx((10, 500))

    def test_temperature_flattens(self) -> None:
        plan = plan_blend(["small", "large"], temperature=2, seq_length=10)
        assert plan.shares[1] / plan.shares[0] == pytest.approx(math.sqrt(8))

    def test_what_to_beware_of(self) -> None:
        plan = plan_blend(["small", "large"], [1, 1], seq_length=10, samples=1000)
        assert [w.split(":")[0] for w in plan.warnings(4)] == [
            "small is seen 5.00 times, more than 4"
        ]
        assert plan.warnings(5) == []
        tiny = plan_blend(["small", "large"], [1, 1e6], seq_length=10, samples=1000)
        assert "gives less than one of 1,000 samples" in tiny.warnings(100)[0]

    def test_the_same_data_twice_is_told(self, folder: Path) -> None:
        for suffix in (".bin", ".idx"):
            (folder / f"copy{suffix}").write_bytes((folder / f"small{suffix}").read_bytes())
        warnings = plan_blend(["small", "copy"], seq_length=10).warnings(4)
        assert warnings == ["small and copy hold the same tokens"]

    @pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
    def test_weights_that_are_none(self, weight: float) -> None:
        with pytest.raises(UsageError, match=r"the weight of large is .*, expected a number above"):
            plan_blend(["small", "large"], [1, weight])

    def test_other_requests_that_are_refused(self) -> None:
        with pytest.raises(UsageError, match="1 weights for 2 datasets"):
            plan_blend(["small", "large"], [1])
        with pytest.raises(InputError, match=r"nope: no such dataset; looked for nope\.idx"):
            plan_blend(["small", "nope"])
        with pytest.raises(UsageError, match="less than one sample of 20,000"):
            plan_blend(["small"], seq_length=20_000)
        with pytest.raises(UsageError, match="only one of them"):
            plan_blend(["small"], samples=1, epochs=1)
        with pytest.raises(UsageError, match="at least one dataset"):
            plan_blend([])

    def test_an_empty_dataset(self, folder: Path) -> None:
        MMapIndexedDatasetBuilder(str(folder / "empty.bin"), dtype=np.uint16).finalize(
            str(folder / "empty.idx")
        )
        with pytest.raises(InputError, match="empty: no tokens in it"):
            plan_blend(["empty"])


@pytest.mark.usefixtures("folder")
class TestSaved:
    def test_a_saved_plan_comes_back(self) -> None:
        plan = plan_blend(["small", "large"], [1, 3], seq_length=10, samples=7, temperature=1.5)
        plan.save("blend.yaml")
        assert load_blend("blend.yaml") == plan

    def test_a_dataset_that_changed_is_named(self, folder: Path) -> None:
        plan_blend(["small", "large"]).save("blend.yaml")
        for suffix in (".bin", ".idx"):
            (folder / f"small{suffix}").write_bytes((folder / f"one{suffix}").read_bytes())
        with pytest.raises(InputError, match="small has changed since the blend was made"):
            load_blend("blend.yaml")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a: [", "not YAML"),
            ("- 1", "not a blend"),
            ("tokpack_blend: 2", "blend version is 2"),
            ("tokpack_blend: 1", "'datasets'"),
            ("tokpack_blend: 1\ndatasets: [3]", "not a blend"),
            ("!!python/object/apply:os.system ['true']", "not YAML"),
        ],
    )
    def test_files_that_are_no_plan(self, text: str, message: str) -> None:
        Path("blend.yaml").write_text(text)
        with pytest.raises(FormatError, match=message):
            load_blend("blend.yaml")


@pytest.mark.usefixtures("folder")
class TestCommand:
    def test_the_table(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["blend", "0.35", "small", "0.65", "large", "--seq-length", "10"]) == 0
        head, small, large, together, last = capsys.readouterr().out.splitlines()
        assert head.split() == [
            "dataset",
            "documents",
            "tokens",
            "weight",
            "share",
            "samples",
            "epochs",
        ]
        assert small.split()[:7] == ["small", "10", "1k", "0.35", "35.00%", "315", "3.15"]
        assert large.split()[:5] == ["large_text_document", "40", "8k", "0.65", "65.00%"]
        assert together.split() == ["together", "50", "9k", "100.00%", "900"]
        assert last == "900 samples of 10 tokens: 9k tokens"

    def test_json_and_a_saved_file(self, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["small", "large", "--seq-length=10", "--samples=90", "-o", "b.yaml"]
        assert main(["blend", *arguments, "--quiet"]) == 0
        capsys.readouterr()
        assert main(["blend", "b.yaml", "--json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert plan["samples"] == 90
        assert [d["samples"] for d in plan["datasets"]] == pytest.approx([10, 80])

    def test_a_warning_is_talk(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["blend", "9", "small", "1", "large", "--seq-length", "10"]) == 0
        assert "small is seen 8.10 times" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ([], "no datasets"),
            (["0.3", "small", "large"], "do not alternate"),
            (["-1", "small", "2", "large"], "the weight of small is -1"),
            (["1", "nope"], "no such dataset"),
        ],
    )
    def test_what_is_refused(
        self, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["blend", *words]) == 1
        assert message in capsys.readouterr().err


def test_different_tokenizers(shared: Path, tmp_path: Path) -> None:
    import tokpack

    texts = tmp_path / "a.jsonl"
    texts.write_text('{"text": "one two three four five"}\n' * 50)
    folder = shared / "tokenizers"
    gpt2 = {
        "vocab_file": str(folder / "gpt2-vocab.json"),
        "merge_file": str(folder / "gpt2-merges.txt"),
    }
    tokpack.encode(str(texts), str(tmp_path / "gpt2"), workers=1, **gpt2)
    neox = str(folder / "20B_tokenizer.json")
    tokpack.encode(str(texts), str(tmp_path / "neox"), workers=1, tokenizer=neox)
    names = [str(tmp_path / "gpt2"), str(tmp_path / "neox")]
    with pytest.raises(UsageError, match=r"gpt2 and .*neox were made with different tokenizers"):
        plan_blend(names, seq_length=16)
    assert isinstance(plan_blend(names[:1], seq_length=16), BlendPlan)

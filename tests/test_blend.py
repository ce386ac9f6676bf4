"""``tokpack blend`` and the plan under it, on real datasets."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from samples_twin import write_manifest

from tokpack.cli import main
from tokpack.errors import InputError, UsageError
from tokpack.indexed import MMapIndexedDatasetBuilder
from tokpack.samples import plan_blend
from tokpack.samples.plan import BlendPlan, make_plan

if TYPE_CHECKING:
    from pathlib import Path


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
        plan = plan_blend(["small", "large"], [1, 3], seq_length=10, samples=400).train
        assert plan.shares == (0.25, 0.75)
        assert plan.member_samples == (100, 300)
        assert plan.epochs == (1.0, 0.375)
        assert plan.portions[1].prefix == "large_text_document"

    def test_without_weights_every_token_is_seen_equally_often(self) -> None:
        plan = plan_blend(["small", "large", "one"], seq_length=10, epochs=2).train
        assert plan.samples == (2 * 14_000 - 1) // 10
        assert plan.epochs == pytest.approx((2, 2, 2), rel=1e-3)

    def test_weights_by_epochs(self) -> None:
        plan = plan_blend(["small", "large"], [4, 1], by="epochs", seq_length=10, tokens=12_000)
        assert plan.train.epochs == pytest.approx((4, 1))

    def test_weights_by_documents(self) -> None:
        plan = plan_blend(["small", "one"], [1, 1], by="documents", seq_length=10, samples=510)
        assert plan.train.member_samples == pytest.approx((10, 500))

    def test_temperature_flattens(self) -> None:
        shares = plan_blend(["small", "large"], temperature=2, seq_length=10).train.shares
        assert shares[1] / shares[0] == pytest.approx(math.sqrt(8), rel=1e-15)

    def test_one_epoch_never_begins_a_second(self) -> None:
        """Ten tokens more than the samples have would be needed for the last label."""
        assert plan_blend(["small"], seq_length=10).train.samples == 99
        assert plan_blend(["small"], seq_length=10, add_extra_token=False).train.samples == 100

    def test_a_schedule_counts_every_segment(self) -> None:
        spec = plan_blend(["small", "large"], [1, 3], seq_length=10, samples=400).spec
        changed = make_plan(spec.changed(schedule=((300, (1.0, 0.0)),))).train
        assert changed.member_samples == pytest.approx((75 + 100, 225))
        assert changed.shares == pytest.approx((175 / 400, 225 / 400))
        late = make_plan(spec.changed(schedule=((3000, (1.0, 0.0)),))).train
        assert late.member_samples == (100, 300)

    def test_what_to_beware_of(self) -> None:
        plan = plan_blend(["small", "large"], [1, 1], seq_length=10, samples=1000)
        unknown = "no manifest says which tokenizer made small, large_text_document, nor whether"
        assert [w.split(":")[0][: len(unknown)] for w in plan.warnings(4)] == [
            "small is seen 5.00 times, more than 4",
            unknown,
        ]
        assert len(plan.warnings(5)) == 1
        tiny = plan_blend(["small", "large"], [1, 1e6], seq_length=10, samples=1000)
        assert "gives less than one of 1,000 samples" in tiny.warnings(100)[0]

    def test_the_same_data_twice_is_told(self, folder: Path) -> None:
        for suffix in (".bin", ".idx"):
            (folder / f"copy{suffix}").write_bytes((folder / f"small{suffix}").read_bytes())
        warnings = plan_blend(["small", "copy"], seq_length=10).warnings(4)
        assert warnings[0] == "small and copy hold the same tokens"
        warnings = plan_blend(["small", "large", "small"], seq_length=10).warnings(4)
        assert warnings[0] == "small comes 2 times in train, each time with the same samples"

    def test_a_file_that_is_not_what_its_manifest_says(self, folder: Path) -> None:
        write_manifest(folder / "small", "gpt2", "aa")
        assert plan_blend(["small"], seq_length=10).members[0].checksum
        for suffix in (".bin", ".idx"):
            (folder / f"small{suffix}").write_bytes((folder / f"one{suffix}").read_bytes())
        with pytest.raises(InputError, match=r"small.bin has 10,000 bytes, its manifest says 2,0"):
            plan_blend(["small"], seq_length=10)

    @pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
    def test_weights_that_are_none(self, weight: float) -> None:
        with pytest.raises(UsageError, match=r"the weight of large is .*, expected a number above"):
            plan_blend(["small", "large"], [1, weight])

    def test_other_requests_that_are_refused(self) -> None:
        with pytest.raises(UsageError, match="1 weights for 2 datasets"):
            plan_blend(["small", "large"], [1])
        with pytest.raises(InputError, match=r"nope: no such dataset; looked for nope\.idx"):
            plan_blend(["small", "nope"])
        with pytest.raises(UsageError, match="small: 1,000 tokens are less than one sample of 20"):
            plan_blend(["small"], seq_length=20_000)
        with pytest.raises(UsageError, match="train is less than one sample of 2,048 tokens"):
            plan_blend(["one"], tokens=2000)
        with pytest.raises(UsageError, match="no setting 'sample'; did you mean samples"):
            plan_blend(["small"], sample=3)
        with pytest.raises(UsageError, match="order 'megatrom' is unknown"):
            plan_blend(["small"], order="megatrom")
        with pytest.raises(UsageError, match="the temperature is -1"):
            plan_blend(["small"], temperature=-1.0)
        with pytest.raises(
            UsageError, match="weights are by tokens, documents, epochs, not by 'x'"
        ):
            plan_blend(["small"], by="x")
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
        assert together.split() == ["together", "50", "9k", "100.00%", "899"]
        assert last == "899 samples of 10 tokens: 8.99k tokens"

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
        assert "small is seen 8.09 times" in capsys.readouterr().err

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

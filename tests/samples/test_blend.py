"""``tokpack blend`` and the plan under it, on real datasets."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rounding import equal
from support.samples_twin import write_dataset, write_manifest

from tokpack import BlendedDataset, open_blend
from tokpack.cli import main
from tokpack.dataset import MMapIndexedDatasetBuilder
from tokpack.errors import UsageError
from tokpack.samples import plan_blend
from tokpack.samples.blend.datasets import marks
from tokpack.samples.blend.plan import Mixture, cap_epochs, plan_of, root

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


def samples(mixture: Mixture) -> tuple[float, ...]:
    return tuple(one.samples for one in mixture.usage)


def epochs(mixture: Mixture) -> tuple[float, ...]:
    return tuple(one.epochs for one in mixture.usage)


@pytest.mark.usefixtures("folder")
class TestPlan:
    def test_weights_are_shares_of_the_tokens(self) -> None:
        plan = plan_blend(["small", "large"], [1, 3], seq_length=10, samples=400).train
        assert [one[1:] for one in plan.usage] == [(0.25, 100, 1.0), (0.75, 300, 0.375)]
        assert plan.portions[1].prefix == "large_text_document"

    def test_without_weights_every_token_is_seen_equally_often(self) -> None:
        plan = plan_blend(["small", "large", "one"], seq_length=10, epochs=2).train
        assert plan.samples == (2 * 14_000 - 1) // 10
        # A sample is begun only where all of it is left.
        assert epochs(plan) == equal((2799 * 10 / 14_000,) * 3, 4)

    def test_weights_by_epochs(self) -> None:
        plan = plan_blend(["small", "large"], [4, 1], by="epochs", seq_length=10, tokens=12_000)
        assert epochs(plan.train) == equal((4, 1), 4)

    def test_weights_by_documents(self) -> None:
        plan = plan_blend(["small", "one"], [1, 1], by="documents", seq_length=10, samples=510)
        assert samples(plan.train) == equal((10, 500), 4)

    def test_temperature_flattens(self) -> None:
        small, large = plan_blend(["small", "large"], temperature=2, seq_length=10).train.usage
        assert large.share / small.share == equal(math.sqrt(8), 4)
        sharp = plan_blend(["small", "large"], temperature=0.01, seq_length=10).train.usage
        # A power of 100 takes the errors of its base a hundred times.
        assert tuple(one.share for one in sharp) == (equal(8.0**-100, 2 * 100), 1)

    def test_with_a_document_a_sample_every_document_is_seen_equally_often(self) -> None:
        options: dict[str, Any] = {"packing": "document", "seq_length": 128}
        train = plan_blend(["small", "large"], **options).train
        assert (train.samples, epochs(train)) == (90, equal((1, 1), 4))
        train = plan_blend(["small", "large"], [2, 1], by="epochs", **options).train
        assert epochs(train)[0] == equal(2 * epochs(train)[1], 4)
        train = plan_blend(["small", "large"], [1, 1], by="documents", **options).train
        assert samples(train)[0] * 2 == equal(samples(train)[1], 4)

    def test_datasets_of_two_dtypes(self, folder: Path) -> None:
        write_dataset(folder / "wide", [100] * 10, 1 << 20)
        train = open_blend({"datasets": {"small": 1, "wide": 1}, "seq_length": 10}).train
        assert isinstance(train, BlendedDataset)
        for number in range(20):
            wide = train.locate(number)[0] == 1
            assert (train[number]["tokens"].min() >= 1 << 20) == wide

    def test_one_epoch_never_begins_a_second(self) -> None:
        """Ten tokens more than the samples have would be needed for the last label."""
        assert plan_blend(["small"], seq_length=10).train.samples == 99
        assert plan_blend(["small"], seq_length=10, add_extra_token=False).train.samples == 100

    def test_a_schedule_counts_every_segment(self) -> None:
        spec = plan_blend(["small", "large"], [1, 3], seq_length=10, samples=400).spec
        changed = plan_of(spec.changed(schedule=((300, (1.0, 0.0)),))).train
        assert samples(changed) == equal((75 + 100, 225), 4)
        assert tuple(one.share for one in changed.usage) == equal((175 / 400, 225 / 400), 6)
        late = plan_of(spec.changed(schedule=((3000, (1.0, 0.0)),))).train
        assert samples(late) == (100, 300)

    @pytest.mark.parametrize("weights", [(0.8, 0.1, 0.1), (0.5, 0.3, 0.2), (0.02, 0.9, 0.08)])
    def test_no_dataset_is_seen_more_often_than_the_cap(self, weights: tuple[float, ...]) -> None:
        names = ["small", "large", "one"]
        plan = plan_blend(names, weights, samples=2000, seq_length=10)
        capped = cap_epochs(plan, 2)
        assert capped.train.samples == 2000
        assert max(epochs(capped.train)) <= 2 * (1 + 1e-9)
        free = [n for n, seen in enumerate(epochs(capped.train)) if seen < 2 * (1 - 1e-9)]
        assert free
        scales = [capped.train.usage[n].share / plan.train.usage[n].share for n in free]
        assert scales == pytest.approx([scales[0]] * len(free))  # in their old proportions
        assert samples(cap_epochs(plan, 1000).train) == pytest.approx(samples(plan.train))
        with pytest.raises(UsageError, match=r"\b2,000 samples .*\b1\.43 epochs"):
            cap_epochs(plan, 1)
        with pytest.raises(UsageError, match="cap_epochs"):
            cap_epochs(plan, 0)

    def test_a_capped_blend_is_saved_with_its_weights(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ["0.8", "small", "0.2", "large", "--samples", "500", "--seq-length", "10"]
        assert main(["blend", *words, "--cap-epochs", "2", "-o", "blend.yaml"]) == 0
        said = capsys.readouterr().err
        assert "small: 2 epochs instead of 4, a share of 0.4 instead of 0.8" in said
        assert len(open_blend("blend.yaml").train) == 500
        assert main(["blend", "blend.yaml", "--json"]) == 0
        shares = [one["share"] for one in json.loads(capsys.readouterr().out)["datasets"]]
        assert shares == pytest.approx([0.4, 0.6])

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

    def test_a_manifest_gives_a_checksum(self, folder: Path) -> None:
        write_manifest(folder / "small", "gpt2", "aa")
        assert marks(plan_blend(["small"], seq_length=10).datasets[0])["checksum"]

    def test_a_broken_manifest_is_an_error_of_commands_and_other_json_none(
        self, folder: Path
    ) -> None:
        write_manifest(folder / "small", "gpt2", "aa")
        path = folder / "small.json"
        path.write_text(path.read_text()[:-9])
        assert main(["inspect", "small", "--quiet"]) == 1
        assert main(["blend", "small", "--seq-length", "10", "--quiet"]) == 1
        path.write_text('{"text": "somebody\'s data"}\n')
        assert plan_blend(["small"], seq_length=10).train.samples
        assert main(["inspect", "small", "--quiet"]) == 0

    def test_which_checks_could_not_be_made_is_told(self, folder: Path) -> None:
        write_manifest(folder / "small", "gpt2", "aa")
        told = plan_blend(["small", "one", "large"], seq_length=10).warnings(1000)
        assert told[-2:] == [
            "no manifest says which tokenizer made one, large_text_document, nor whether it is "
            "whole",
            "whether one, large_text_document has the tokenizer of small could not be checked: a "
            "model cannot read ids of two",
        ]
        write_manifest(folder / "one", "gpt2", "aa")
        path = folder / "one.json"
        manifest = json.loads(path.read_text())
        path.write_text(json.dumps({**manifest, "tokenizer": {}}))
        told = plan_blend(["small", "one"], seq_length=10).warnings(1000)
        assert told[-2] == "the manifest does not say which tokenizer made one"
        assert "whether one has the tokenizer of small could not be checked" in told[-1]


@given(st.floats(1e-9, 1e18), st.floats(0.01, 100))
def test_roots_are_rounded_right(value: float, temperature: float) -> None:
    """So they are the same on every machine, whatever its library makes of a power."""
    with localcontext(prec=80, Emin=-(10**6), Emax=10**6):
        exact = Decimal(value) ** (1 / Decimal(temperature))
    assert root(value, temperature) == float(exact)


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
        assert [d["samples"] for d in plan["datasets"]] == equal([10, 80], 4)

    def test_padding_is_shown(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["blend", "small", "--seq-length", "128", "--packing"]
        assert main([*words, "document"]) == 0
        assert (
            "10 samples of 128 tokens: 1.28k tokens, 22% of them padding" in capsys.readouterr().out
        )
        assert main([*words, "best_fit"]) == 0
        assert "padding" not in capsys.readouterr().out

    def test_a_warning_is_talk(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["blend", "9", "small", "1", "large", "--seq-length", "10"]) == 0
        assert "small is seen 8.09 times" in capsys.readouterr().err
        assert main(["blend", "small", "--seq-length", "10", "--samples", "1e3", "-q"]) == 0
        captured = capsys.readouterr()
        assert "1,000 samples of 10 tokens" in captured.out
        assert not captured.err

    def test_no_more_warnings_than_are_read(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["9", "small", *["1", "large"] * 25]
        assert main(["blend", *words, "--seq-length", "10", "--max-epochs", "0.1", "-q"]) == 0
        assert not capsys.readouterr().err
        assert main(["blend", *words, "--seq-length", "10", "--max-epochs", "0.1"]) == 0
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 21
        assert re.fullmatch(r"tokpack: warning: and \d+ more, which --json lists", lines[-1])

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ([], "no datasets"),
            (["0.3", "small", "large"], "do not alternate"),
            (["-1", "small", "2", "large"], "the weight of small is -1"),
            (["1", "nope"], "no such dataset"),
            (["small", "0.3", "large", "0.7"], "before its dataset: 0.3 small, not small 0.3"),
            (["small", "--samples", "1x"], "'1x' is not a whole number of at least 1"),
            (["small", "-o", "small.bin"], "small.bin: a plan is saved as YAML"),
        ],
    )
    def test_what_is_refused(
        self, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["blend", *words]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
class TestSplits:
    def test_rows_for_every_split(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["1", "small", "3", "large", "--seq-length=10", "--split=80,10,10"]
        assert main(["blend", *words, "--valid", "more=one", "--valid", "more=small"]) == 0
        rows = [line.split() for line in capsys.readouterr().out.split("\n\n")[1].splitlines()]
        assert rows == [
            ["split", "datasets", "documents", "tokens", "samples"],
            ["train", "2", "40", "7.2k", "719"],
            ["valid", "2", "5", "900", "38"],
            ["more", "2", "11", "6k", "597"],
            ["test", "2", "5", "900", "38"],
        ]

    def test_a_split_that_leaves_no_part_at_all(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["blend", "1", "small", "1", "large", "--seq-length=250", "--split=98,1,1"]
        assert main([*words, "-o", "small.yaml"]) == 0
        said = "the split leaves less than one sample of any dataset for test: none"
        assert said in capsys.readouterr().err
        opened = open_blend("small.yaml")
        assert (opened.valid, opened.test) == ({}, None)
        assert len(opened.train) > 0
        with pytest.raises(UsageError, match=r"\bsmall for valid, .*allow_empty"):
            open_blend("small.yaml", valid_samples=1)
        index = ["blend", "small.yaml", "--order=megatron", "--samples=20", "--cache=cache"]
        assert main(index) == 0
        out, err = capsys.readouterr()
        assert "no validation: add --valid-samples N for it" in err
        assert out.count(" train ") == 2
        assert "valid" not in out

    def test_a_split_that_leaves_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["blend", "small", "large", "--seq-length=10", "--split=97,3"]
        assert main(words) == 0
        out, err = capsys.readouterr()
        assert "the split leaves 0 tokens of small for valid, less than one sample" in err
        assert out.splitlines()[-1].split() == [
            "valid",
            "1",
            "1",
            "200",
            "19",
            "nothing",
            "from",
            "small",
        ]
        assert main([*words, "-o", "b.yaml", "--allow-empty"]) == 0
        assert "the split leaves" not in capsys.readouterr().err  # that is what was asked for
        assert len(open_blend("b.yaml").valid["valid"]) == 19

    def test_megatrons_flags(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["0.5", "small", "0.5", "large", "--order=megatron", "--seq-length=10"]
        more = ["--samples=50", "--valid-data-path", "2", "one", "1", "small", "--valid-samples=7"]
        assert main(["blend", *words, *more, "--test_data_path", "one", "--json", "-q"]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert (plan["order"], plan["samples"]) == ("megatron", 50)
        assert plan["valid"]["valid"]["samples"] == 7
        assert [d["weight"] for d in plan["valid"]["valid"]["datasets"]] == [2, 1]
        assert plan["test"]["datasets"][0]["weight"] is None


@pytest.mark.usefixtures("folder")
class TestInputs:
    def test_flags_take_the_place_of_what_a_file_says(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        saved = ["1", "small", "3", "large", "--seq-length=10", "--epochs=2", "--seed=5"]
        assert main(["blend", *saved, "-o", "b.yaml", "-q"]) == 0
        flags = ["--samples=5", "--by=epochs", "--temperature=2", "--split=9,1"]
        flags += ["--packing=document"]
        assert main(["blend", "b.yaml", *flags, "-o", "c.yaml", "-q"]) == 0
        spec = open_blend("c.yaml", allow_empty=True).plan.spec
        assert (spec.samples, spec.epochs, spec.by, spec.temperature) == (5, None, "epochs", 2)
        assert (spec.split, spec.seed, spec.seq_length) == ("9,1", 5, 10)
        assert spec.options == {"packing": "document"}
        capsys.readouterr()
        assert main(["blend", "c.yaml", "b.yaml"]) == 1
        assert "a blend file must be the only input" in capsys.readouterr().err
        assert main(["blend", "nope.yaml"]) == 1
        assert "nope.yaml: No such file" in capsys.readouterr().err

    def test_a_pattern_finds_each_dataset_once(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_manifest(folder / "one", "gpt2", "aa")
        words = sorted(path.name for path in folder.iterdir())
        assert len(words) == 7
        assert main(["blend", *words, "--seq-length=10", "--json", "-q"]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert [d["prefix"] for d in plan["datasets"]] == ["large_text_document", "one", "small"]
        (folder / "notes.json").write_text("{}")
        assert main(["blend", "notes.json", "small"]) == 1
        assert "notes.json: no such dataset" in capsys.readouterr().err

    def test_names_with_spaces_and_controls(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        name = "my data\x1b[31m"
        for suffix in (".bin", ".idx"):
            (folder / f"{name}{suffix}").write_bytes((folder / f"small{suffix}").read_bytes())
        assert main(["blend", "1", name, "1", "large", "--seq-length=10", "-o", "b c.yaml"]) == 0
        assert main(["blend", "b c.yaml"]) == 0
        out = capsys.readouterr().out
        assert out.count("my data\\x1b[31m") == 2
        assert "\x1b" not in out

"""What commands say: flags where flags are typed, and lines that fit a terminal."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from support.report_tools import run

import tokpack
from tokpack.errors import Remark, UsageError, option
from tokpack.progress import Progress, describe
from tokpack.samples import GPTDataset

if TYPE_CHECKING:
    from pathlib import Path


def small_dataset(path: Path, documents: int = 3) -> Path:
    """A dataset of documents of four tokens."""
    with tokpack.MMapIndexedDatasetBuilder(path.with_suffix(".bin"), dtype="uint16") as builder:
        for number in range(documents):
            builder.add_item([number, 1, 2, 0])
            builder.end_document()
        builder.finalize(path.with_suffix(".idx"))
    return path


def test_errors_name_flags(tmp_path: Path) -> None:
    """The same rule says a name to who calls it, and a flag to who typed a command."""
    prefix = small_dataset(tmp_path / "x")
    with pytest.raises(UsageError, match=r"packing='best_fit'.*order='stateless'"):
        GPTDataset(prefix, seq_length=2, packing="best_fit", order="megatron")
    flags = ("--seq-length", 2, "--packing", "best_fit", "--order", "megatron")
    said = run("blend", prefix, *flags, code=1).stderr
    assert "error: --packing best_fit goes with --order stateless, not" in said


WIDE = ("a_name_of_forty_characters_text_document", "another_one_that_is_as_long_as_the_first")


def test_tables_fit_eighty_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of 40 characters are wrapped, not cut, in tables of 80 columns."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(WIDE):
        small_dataset(tmp_path / name, 30_000 * (number + 1))
    weights = [word for name in WIDE for word in (0.123456, name)]
    for command in (
        ["blend", *weights, "--split", "8,1,1", "--seq-length", 16],
        ["blend", *weights, "--seq-length", 16, "--cache", "cache"],
        ["stats", WIDE[0]],
        ["stats", *WIDE, *WIDE],
        ["inspect", WIDE[0]],
    ):
        done = run(*command, COLUMNS="80")
        names = WIDE if command[0] != "inspect" and command[2:] else WIDE[:1]
        first_words = "".join(line.split()[0] for line in done.stdout.splitlines() if line)
        assert all(name in first_words for name in names), done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 80, done.stdout
    assert "█" in run("blend", *WIDE, "--seq-length", 16, COLUMNS="120").stdout


def test_progress_fits_its_line() -> None:
    """A number is never cut: what matters least is left out."""
    first = Progress(stage="encode", done=0, total=10**12, seconds=0)
    now = Progress(
        stage="encode",
        done=123 * 10**9,
        total=10**12,
        seconds=1000,
        text_bytes=512 * 10**9,
        documents=12_345_678,
        tokens=98_765_432_198,
        rejected=12_345,
        bottleneck="encode",
    )
    words = (
        "12%, 512 MB/s, 1 h 58 min left, limit: encode, 12,345 rejected, 12.3M docs, 98.8G tokens"
    )
    assert describe(now, first) == words
    words = "12%, 512 MB/s, 1 h 58 min left, 12,345 rejected, 98.8G tokens"
    assert describe(now, first, 65) == words


@pytest.mark.parametrize(
    ("text", "plain", "flagged"),
    [
        (
            f"{option('epochs')} is 3 and {option('samples')} is 4",
            "epochs is 3 and samples is 4",
            "--epochs is 3 and --num-samples is 4",
        ),
        ("the order of epochs", "the order of epochs", "the order of epochs"),
        (
            f"x/epochs: {option('order', 'a b')} needs {option('epochs', 4)}",
            "x/epochs: order='a b' needs epochs=4",
            "x/epochs: --order a b needs --epochs 4",
        ),
        (f"{option('order', True)} or {option('fim')}", "order=True or fim", "--order or fim"),
        (
            f"{option('order', False)}, {option('samples', False)}, {option('fim', False)}",
            "order=False, samples=False, fim=False",
            "--no-order, --no-num-samples, fim=False",
        ),
        (f"a\0b needs {option('order')}", "a\0b needs order", "a\0b needs --order"),
    ],
)
def test_an_error_carries_the_options_that_it_is_about(text: str, plain: str, flagged: str) -> None:
    """Words that only look like one stay; so does an option that has no flag here."""
    flags = {"epochs": "--epochs", "samples": "--num-samples", "order": "--order"}
    for error in (UsageError(text), pickle.loads(pickle.dumps(UsageError(text)))):
        assert str(error) == plain
        assert error.worded(flags) == flagged
    assert str(Remark(text)) == plain

"""BOS, EOD and a post-processor's tokens around documents: written, recorded, and honoured."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from support import forked
from support.encoding_tools import EOD, byte_tokenizer, documents, write_jsonl
from support.faults import flip
from tokenizers import Tokenizer, processors

import tokpack
from tokpack.cli.commands.encode import PAGE, resolve
from tokpack.cli.parser import parse
from tokpack.dataset.spelling import find_tokenizer
from tokpack.errors import FormatError, ResumeError, TokenizerError, UsageError
from tokpack.tokenizers.load import tokenizer_of

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

TEXTS = documents(60)


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json whose post-processor puts <s> and a blank in front, and </s> behind."""
    path = byte_tokenizer(tmp_path_factory.mktemp("bpe") / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    ids = {name: tokenizer.token_to_id(name) for name in ("<s>", "the", "</s>")}
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> the $A </s>", special_tokens=list(ids.items())
    )
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("source") / "a.jsonl", TEXTS, title="the")


def command(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    started = ["-m", "tokpack", *words]
    return forked.run(started, cwd=cwd, capture_output=True, text=True, check=False)


def rows(prefix: object) -> list[list[int]]:
    return [document.tolist() for document in tokpack.MMapIndexedDataset(str(prefix))]


def encode(source: Path, output: Path, bpe: Path, **more: Any) -> tokpack.Manifest:
    return tokpack.encode(source, output, tokenizer=str(bpe), **more)


def expected(bpe: Path, before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> Any:
    library = Tokenizer.from_file(str(bpe))
    first, last = ([library.token_to_id(name) for name in side] for side in (before, after))
    plain = [library.encode(text, add_special_tokens=False).ids for text in TEXTS if text]
    return [[*first, *ids, *last] for ids in plain]


REQUESTS: list[tuple[dict[str, Any], tuple[str, ...], tuple[str, ...], bool]] = [
    ({}, (), (EOD,), False),
    ({"append_eod": False}, (), (), False),
    ({"eod_token": "</s>"}, (), ("</s>",), False),
    ({"prepend_bos": True}, ("<s>",), (EOD,), True),
    ({"bos_token": "the", "append_eod": False}, ("the",), (), True),
    ({"add_special_tokens": True, "append_eod": False}, ("<s>", "the"), ("</s>",), True),
    ({"add_special_tokens": True, "eod_token": "</s>"}, ("<s>", "the"), ("</s>",), True),
    ({"add_special_tokens": True, "prepend_bos": True}, ("<s>", "the"), ("</s>", EOD), True),
]


@pytest.mark.parametrize(("request_", "before", "after", "recorded"), REQUESTS)
@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_written_and_recorded(
    *,
    tmp_path: Path,
    source: Path,
    bpe: Path,
    request_: dict[str, Any],
    before: tuple[str, ...],
    after: tuple[str, ...],
    recorded: bool,
    workers: int,
) -> None:
    output = tmp_path / "out"
    manifest = encode(source, output, bpe, workers=workers, **request_)
    assert rows(output) == expected(bpe, before, after)
    assert manifest.empty == TEXTS.count("")
    assert ("frame" in manifest.tokenizer) == recorded
    library = Tokenizer.from_file(str(bpe))
    sides = tuple([library.token_to_id(name) for name in side] for side in (before, after))
    assert manifest.frame == sides
    report = tokpack.verify(output)
    assert ("EOD" in report.checked) == bool(after)
    assert ("BOS" in report.checked) == bool(before)
    dataset = tokpack.MMapIndexedDataset(str(output))
    found = find_tokenizer(dataset)
    assert tokenizer_of(manifest.tokenizer).fingerprint == manifest.tokenizer["sha256"]
    assert found.tokenizer is not None, found.note
    assert found.tokenizer.decode(dataset[0]) == "".join((*before, TEXTS[0], *after))
    assert encode(source, output, bpe, workers=workers, **request_) == manifest


def test_sentences_keys_and_places_of_empty_documents(
    tmp_path: Path, source: Path, bpe: Path
) -> None:
    library = Tokenizer.from_file(str(bpe))
    bos, eod = library.token_to_id("<s>"), library.token_to_id(EOD)
    options: dict[str, Any] = {"prepend_bos": True, "keys": ("text", "title"), "empty": "document"}
    encode(source, tmp_path / "out", bpe, **options)
    text = tokpack.MMapIndexedDataset(str(tmp_path / "out_text"))
    assert text.documents == len(TEXTS)
    assert rows(tmp_path / "out_text") == expected(bpe, ("<s>",), (EOD,))
    assert rows(tmp_path / "out_title") == [[bos, library.token_to_id("the"), eod]] * len(TEXTS)


@pytest.mark.parametrize(("place", "said"), [(0, "as token 0 of"), (1, "as token 1 of")])
def test_verify_sees_what_is_not_in_its_frame(
    tmp_path: Path, source: Path, bpe: Path, place: int, said: str
) -> None:
    output = tmp_path / "out"
    encode(source, output, bpe, add_special_tokens=True)
    dataset = tokpack.MMapIndexedDataset(str(output))
    at = int(dataset.sizes[:9].sum()) + place
    flip(output.with_suffix(".bin"), 2 * at)
    with pytest.raises(FormatError, match=rf"document 9, token {place}: .*{said}"):
        tokpack.verify(output)


def test_another_frame_is_another_run(tmp_path: Path, source: Path, bpe: Path) -> None:
    broken = write_jsonl(tmp_path / "b.jsonl", TEXTS)
    with broken.open("ab") as file:
        file.write(b"{broken\n")
    output = tmp_path / "out"
    renamed = shutil.copy(bpe, tmp_path / "renamed.json")
    frames: list[dict[str, Any]] = [{}, {"prepend_bos": True}, {"eod_token": "</s>"}]
    for begun in frames:
        with pytest.raises(tokpack.InputError, match=r"^1 .* 0 .*on_error='skip', max_rejects="):
            encode(broken, output, bpe, overwrite=True, on_error="skip", max_rejects=0, **begun)
        for frame in frames:
            if frame == begun:
                continue
            words = "eod_token" if "eod_token" in {**begun, **frame} else "prepend_bos"
            with pytest.raises(ResumeError, match=words):
                encode(broken, output, bpe, **frame)
            with pytest.raises(ResumeError, match=rf"{words}|/renamed\.json"):
                encode(broken, output, renamed, **frame)
    shutil.rmtree(tmp_path / "out.unfinished")
    for begun in frames:
        encode(source, output, bpe, overwrite=True, **begun)
        for frame in frames:
            if frame != begun:
                with pytest.raises(tokpack.OutputError):
                    encode(source, output, bpe, **frame)


def test_datasets_together(tmp_path: Path, source: Path, bpe: Path) -> None:
    plain, bos, eod = (str(tmp_path / name) for name in ("plain", "bos", "eod"))
    encode(source, tmp_path / "plain", bpe)
    encode(source, tmp_path / "bos", bpe, prepend_bos=True)
    encode(source, tmp_path / "eod", bpe, eod_token="</s>")
    joined = tokpack.merge([bos, bos], tmp_path / "joined")
    assert joined.frame == tokpack.Manifest.load(bos).frame
    assert "BOS" in tokpack.verify(tmp_path / "joined").checked
    for virtual in (False, True):
        with pytest.raises(UsageError, match=r"/plain .*\[\] .*\[0\].*/bos .*\[\d+\] "):
            tokpack.merge([plain, bos], tmp_path / "new", virtual=virtual)
        with pytest.raises(UsageError, match=r"EOD 0\).*EOD \d\d"):
            tokpack.merge([plain, eod], tmp_path / "new", virtual=virtual)
    run = command("blend", "1", plain, "1", bos, "--seq-length", "16", "--samples", "10")
    assert run.returncode == 0
    assert "documents begin or end differently: those of " in run.stderr
    run = command("blend", "1", bos, "--seq-length", "16", "--samples", "10")
    assert "documents begin or end" not in run.stderr


def test_of_some_it_is_not_known(tmp_path: Path, source: Path, bpe: Path) -> None:
    encode(source, tmp_path / "bos", bpe, prepend_bos=True)
    encode(source, tmp_path / "bare", bpe)
    (tmp_path / "bare.json").unlink()
    for order in (["bos", "bare"], ["bare", "bos"]):
        joined = tokpack.merge([tmp_path / n for n in order], tmp_path / "joined", overwrite=True)
        assert joined.frame is None
        tokpack.verify(tmp_path / "joined")


def test_samples_mask_and_restart_at_the_chosen_eod(
    tmp_path: Path, source: Path, bpe: Path
) -> None:
    output = tmp_path / "out"
    encode(source, output, bpe, prepend_bos=True, eod_token="</s>")
    eod = Tokenizer.from_file(str(bpe)).token_to_id("</s>")
    samples = tokpack.GPTDataset(
        str(output), seq_length=64, seed=1, eod_mask_loss=True, reset_position_ids=True
    )
    ends = 0
    for sample in (samples[i] for i in range(len(samples))):
        at = (sample["tokens"] == eod).nonzero()[0]
        ends += len(at)
        assert not sample["loss_mask"][at].any()
        assert not sample["position_ids"][at[at < 63] + 1].any()
    assert ends


def test_the_command(tmp_path: Path, source: Path, bpe: Path) -> None:
    base = ("encode", str(source), "--tokenizer", str(bpe))
    run = command(*base, "-o", "a", "--bos", "--eod-token", "</s>", "--json", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert rows(tmp_path / "a") == expected(bpe, ("<s>",), ("</s>",))
    run = command("inspect", "a", "--doc", "0", "--max-tokens", "0", cwd=tmp_path)
    assert "<s>" in run.stdout
    assert "</s>" in run.stdout
    assert "documents between [" in " ".join(command("inspect", "a", cwd=tmp_path).stdout.split())
    run = command(*base, "-o", "b", "--bos-token", EOD, cwd=tmp_path)
    assert "documents begin with the EOD 0" in run.stderr
    run = command(*base, "-o", "c", "--eod-token", "<eos>", cwd=tmp_path)
    assert run.returncode == 1
    assert "choose one with --eod-token" in run.stderr
    run = command(*base, "--output-prefix", "d", "--append-eod", "--bos", cwd=tmp_path)
    assert run.returncode == 0
    assert rows(tmp_path / "d_text_document") == expected(bpe, ("<s>",), (EOD,))


def test_the_flags_of_other_programs() -> None:
    def said(*words: str) -> tuple[Any, list[str]]:
        arguments = parse(PAGE, ["a.jsonl", *words])
        assert arguments is not None
        return resolve(arguments)

    options, _ = said("--tokenizer-hf-include-special-tokens", "--output-prefix", "b")
    assert options.add_special_tokens
    llama = ("--tokenizer-type", "Llama2Tokenizer", "--tokenizer-model", "m")
    for words, told in (
        (("--output-prefix", "b"), True),
        (("--output-prefix", "b", "--bos"), False),
        (("--output-prefix", "b", "--bos-token", "<s>"), False),
        (("-o", "b"), False),
    ):
        _, notes = said(*llama, *words)
        assert any("no BOS" in note for note in notes) == told


def test_special_tokens_of_the_flags_of_other_programs() -> None:
    def said(*words: str) -> tuple[Any, list[str]]:
        arguments = parse(PAGE, ["a.jsonl", "-o", "b", *words])
        assert arguments is not None
        return resolve(arguments)

    options, notes = said("--tokenizer-hf-no-include-special-tokens")
    assert not options.add_special_tokens
    assert [note.partition(" is not needed: ")[0] for note in notes] == [
        "--tokenizer-hf-no-include-special-tokens",
    ]
    with pytest.raises(
        UsageError, match=r"--add-special-tokens .*--tokenizer-hf-no-include-special-tokens"
    ):
        said("--add-special-tokens", "--tokenizer-hf-no-include-special-tokens")
    with pytest.raises(UsageError, match=r"^--tokenizer-special-tokens"):
        said("--tiktoken-special-tokens", "<unk>", "<x>")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"tokenizer_type": "HFTokenizer"}, True),
        ({"tokenizer_type": "HuggingFaceTokenizer"}, True),
        ({"tokenizer_type": "HFTokenizer", "add_special_tokens": True}, False),
        ({"tokenizer_type": "HFTokenizer", "prepend_bos": True}, False),
        ({}, False),
    ],
)
def test_what_other_programs_add_unasked(
    tmp_path: Path, bpe: Path, caplog: pytest.LogCaptureFixture, more: dict[str, Any], told: bool
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["the"])
    tokpack.encode(source, tmp_path / "out", tokenizer=str(bpe), workers=1, **more)
    assert ("puts special tokens around documents" in caplog.text) == told


def test_a_tokenizer_that_adds_nothing(tmp_path: Path, source: Path) -> None:
    plain = byte_tokenizer(tmp_path / "tokenizer.json")
    base = ("encode", str(source), "--tokenizer", str(plain), "-o")
    run = command(*base, "a", "--add-special-tokens", cwd=tmp_path)
    assert "adds no special tokens of its own" in run.stderr
    assert "frame" not in json.loads((tmp_path / "a.json").read_text())["tokenizer"]
    run = command(*base, "b", "--bos", cwd=tmp_path)
    assert run.returncode == 1
    assert f"such as {EOD} (0)" in run.stderr


def test_no_eod_is_said_before_anything_is_begun(tmp_path: Path, source: Path) -> None:
    path = byte_tokenizer(tmp_path / "tokenizer.json")
    text = path.read_text().replace(EOD, "<stop>")
    path.write_text(text)
    with pytest.raises(TokenizerError):
        encode(source, tmp_path / "out", path)
    assert not (tmp_path / "out.unfinished").exists()
    assert encode(source, tmp_path / "out", path, eod_token="<stop>").frame == ([], [0])

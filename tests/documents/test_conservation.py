"""No document lost, added or repeated: a dataset held against the files that it was made from."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.encoding_tools import byte_tokenizer, write_jsonl
from support.report_tools import run

import tokpack
from tokpack import MMapIndexedDataset, MMapIndexedDatasetBuilder
from tokpack.documents.conservation import compare_with_inputs, verify_sample
from tokpack.encoding import run as work
from tokpack.errors import InputError, UsageError
from tokpack.tokenizers.base import PackedIds
from tokpack.tokenizers.native import NativeEncoder

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    path = tmp_path / "tokenizer.json"
    byte_tokenizer(path)
    return str(path)


def encode(folder: Path, name: str, texts: list[str], tokenizer: str, **options: object) -> str:
    source, prefix = write_jsonl(folder / f"{name}.jsonl", texts), str(folder / name)
    more = {"workers": 1, "overwrite": True, **options}
    tokpack.encode([str(source)], prefix, tokenizer=tokenizer, **more)  # type: ignore[arg-type]
    return prefix


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    made=st.lists(st.sampled_from("abcd"), min_size=1, max_size=8),
    there=st.lists(st.sampled_from(["a", "b", "c", "d", ""]), min_size=1, max_size=8),
)
def test_counts_are_those_of_two_multisets(
    tmp_path: Path, tokenizer: str, made: list[str], there: list[str]
) -> None:
    prefix = encode(tmp_path, "made", made, tokenizer)
    inputs = str(write_jsonl(tmp_path / "there.jsonl", there))
    found = compare_with_inputs(prefix, inputs, threads=1)
    ours, theirs = Counter(made), Counter(text for text in there if text)
    assert (found.records, found.empty) == (len(there), there.count(""))
    assert found.documents + found.empty == found.records
    assert found.missing == sum((theirs - ours).values())
    assert found.foreign == sum(n for text, n in ours.items() if text not in theirs)
    assert found.repeated == sum((ours - theirs).values()) - found.foreign
    assert found.is_conserved == (ours == theirs)


@pytest.mark.promises
def test_a_merged_dataset_has_what_its_inputs_have(tmp_path: Path, tokenizer: str) -> None:
    names = [
        encode(tmp_path, name, [f"{name} {i}" for i in range(40)], tokenizer) for name in "xyz"
    ]
    tokpack.merge(names, str(tmp_path / "all"))
    found = compare_with_inputs(
        str(tmp_path / "all"), [f"{name}.jsonl" for name in reversed(names)]
    )
    assert found.is_conserved
    assert found.in_dataset == 120
    tokpack.merge([*names, names[1]], str(tmp_path / "twice"), overwrite=True)
    twice = compare_with_inputs(str(tmp_path / "twice"), [f"{name}.jsonl" for name in names])
    assert (twice.missing, twice.repeated, twice.foreign) == (0, 40, 0)
    assert twice.examples[0].startswith("more often than in the inputs: document ")


@pytest.mark.promises
def test_what_is_missing_is_named_by_file_and_line(tmp_path: Path, tokenizer: str) -> None:
    texts = [f"text number {i}" for i in range(30)]
    prefix = encode(tmp_path, "few", texts[:17] + texts[18:], tokenizer)
    inputs = write_jsonl(tmp_path / "all.jsonl", texts)
    said = run("verify", prefix, "--against", inputs, code=1).stdout
    assert "1 missing" in said
    assert f"missing: {inputs}:18" in said
    again = json.loads(run("verify", prefix, "--json", "--against", inputs, code=1).stdout)
    assert (again["ok"], again["missing"]) == (False, 1)
    for words in (
        (prefix, "--against", f"{prefix}.jsonl"),
        ("--against", f"{prefix}.jsonl", prefix),
    ):
        assert "ok, its documents are those of the inputs" in run("verify", *words).stdout


def test_rejected_records_and_frames_are_counted(tmp_path: Path, tokenizer: str) -> None:
    source = tmp_path / "some.jsonl"
    source.write_text('{"text": "a"}\nno JSON\n{"text": ""}\n{"text": "b"}\n')
    prefix = str(tmp_path / "some")
    tokpack.encode(
        [str(source)], prefix, tokenizer=tokenizer, on_error="skip", append_eod=False, workers=1
    )
    found = compare_with_inputs(prefix, str(source))
    assert found.is_conserved
    assert (found.records, found.documents, found.empty, found.rejected) == (4, 2, 1, 1)


def test_what_was_not_read_is_not_missing(tmp_path: Path, tokenizer: str) -> None:
    """The first records of several inputs, with bad ones; and files that are one document each."""
    first = write_jsonl(tmp_path / "first.jsonl", [f"one {i}" for i in range(9)])
    second, third = tmp_path / "second.jsonl", write_jsonl(tmp_path / "third.jsonl", ["no"])
    second.write_text('no JSON\n{"text": "two", "title": "t"}\n{"title": "t"}\n{"text": "no"}\n')
    inputs = [str(first), str(second), str(third)]
    some = str(tmp_path / "some")
    more = {"tokenizer": tokenizer, "workers": 1}
    tokpack.encode(inputs, some, limit=12, on_error="skip", **more)  # type: ignore[arg-type]
    found = compare_with_inputs(some, inputs)
    assert (found.is_conserved, found.records, found.documents, found.rejected) == (True, 12, 10, 2)
    with pytest.raises(UsageError, match=r"/some: .*\b3 inputs\b.* 1 "):
        compare_with_inputs(some, inputs[:1])
    (tmp_path / "files").mkdir()
    for name in "ab":
        (tmp_path / "files" / f"{name}.txt").write_text(f"a document\nin {name}\n")
    files, prefix = str(tmp_path / "files"), str(tmp_path / "of_files")
    tokpack.encode([files], prefix, input_format="file", **more)  # type: ignore[arg-type]
    assert compare_with_inputs(prefix, files).is_conserved
    assert compare_with_inputs(prefix, files, input_format="text").missing == 4


def test_records_without_another_key_are_rejected(tmp_path: Path, tokenizer: str) -> None:
    source = tmp_path / "x.jsonl"
    source.write_text('{"text": "a", "title": "b"}\n{"text": "c"}\n')
    tokpack.encode(
        [str(source)], str(tmp_path / "x"), tokenizer=tokenizer, keys=["text", "title"],
        on_error="skip", workers=1,
    )  # fmt: skip
    found = compare_with_inputs(tmp_path / "x_title", source)
    assert (found.is_conserved, found.documents, found.rejected) == (True, 1, 1)


@pytest.mark.parametrize("trace", [True, False])
def test_a_sample_is_encoded_again(tmp_path: Path, tokenizer: str, trace: bool) -> None:
    texts = ["", *(f"text number {i}" for i in range(40))]
    prefix = encode(tmp_path, "made", texts, tokenizer, trace=trace)
    found = verify_sample(prefix, 25, seed=1)
    assert (found.documents, found.checked, found.wrong) == (40, 25, 0)
    lines = write_jsonl(tmp_path / "made.jsonl", [*texts[:8], "another", *texts[9:30]])
    found = verify_sample(prefix, 99)
    assert (found.checked, found.wrong) == (40, 12)
    assert found.examples[0] == f"document 7 is not {lines}:9"
    said = run("verify", prefix, "--sample", "99", "--against", lines, code=1).stdout
    assert "12 of 40 documents differ from inputs" in said
    (tmp_path / "elsewhere").mkdir()
    moved = write_jsonl(tmp_path / "elsewhere" / "made.jsonl", texts)
    lines.unlink()
    assert (
        "ok, 9 of its 40 documents"
        in run("verify", prefix, "--sample", "9", "--against", moved).stdout
    )
    with pytest.raises(InputError, match=r"made\.jsonl"):
        verify_sample(prefix, 3)


def test_a_fault_of_the_encoder_does_not_cancel_out(
    tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same fault when a dataset is made and when it is compared: its texts tell of it."""
    encode_rightly = NativeEncoder.encode

    def encode_wrongly(self: NativeEncoder, data: Any, spans: Any) -> PackedIds:
        made = encode_rightly(self, data, spans)
        ids = made.ids.copy()
        ids[ids == tokpack.load_tokenizer(tokenizer).token_to_id("b")] += 1
        return PackedIds(ids, made.lengths, made.special)

    monkeypatch.setattr(NativeEncoder, "encode", encode_wrongly)
    monkeypatch.setattr(work, "check_first_documents", lambda job: None)
    prefix = encode(tmp_path, "made", ["aa", "abba", "", "cc"], tokenizer)
    found = compare_with_inputs(prefix, f"{prefix}.jsonl", threads=1)
    assert (found.is_conserved, found.missing, found.unlike) == (False, 0, 1)
    assert found.examples == (f"its tokens are not its text: {prefix}.jsonl:2",)
    assert "1 whose tokens differ from the text" in found.sentence()
    assert verify_sample(prefix, 9).wrong == 1


loaded = functools.cache(tokpack.load_tokenizer)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.text(max_size=9) | st.sampled_from(["e\u0301", "<|endoftext|>", "\u1100\u1161"]))
)
def test_the_bytes_of_tokens_are_the_texts(data: Path, texts: list[str]) -> None:
    """Of a tokenizer that composes characters."""
    tokenizer = loaded(data / "tokenizers" / "20B_tokenizer.json")
    table = tokenizer.token_bytes()
    assert table is not None
    data = "".join(texts).encode()
    ends = np.cumsum([0, *(len(text.encode()) for text in texts)])
    spans = np.stack([ends[:-1], ends[1:]], axis=1)
    encoded = tokenizer.encoder(dtype="int32").encode(np.frombuffer(data, np.uint8), spans)
    last = np.cumsum(encoded.lengths, dtype=np.int64)
    of_ids = np.stack([last - encoded.lengths, last], axis=1)
    text = np.frombuffer(data, np.uint8)
    assert not len(table.unlike(encoded.ids, of_ids, text, spans))

    def is_text(ids: list[int], own: bytes) -> bool:
        with contextlib.suppress(tokpack.TokenizerError):
            return normalized(tokenizer.decode_bytes(ids)) == normalized(own)
        return False

    for change in (1, -1, 60_000):
        ids = encoded.ids + np.int32(change)
        found = table.unlike(ids, of_ids, text, spans).tolist()
        assert found == [
            i
            for i, ((a, b), (c, d)) in enumerate(zip(of_ids.tolist(), spans.tolist(), strict=True))
            if not is_text(ids[a:b].tolist(), data[c:d])
        ]


def normalized(text: bytes) -> str:
    return unicodedata.normalize("NFC", text.decode("utf-8", "replace"))


def test_what_cannot_be_compared_is_refused(tmp_path: Path, tokenizer: str) -> None:
    bare = str(tmp_path / "bare")
    with MMapIndexedDatasetBuilder(f"{bare}.bin", np.uint16) as builder:
        builder.add_item([1])
        builder.finalize(f"{bare}.idx")
    with pytest.raises(InputError, match="bare"):
        compare_with_inputs(bare, "x.jsonl")
    prefix = encode(tmp_path, "where", ["a", "bb"], tokenizer, where="length(text) > 1")
    with pytest.raises(UsageError, match=r"/where: .*\bwhere,"):
        compare_with_inputs(MMapIndexedDataset(prefix), str(tmp_path / "where.jsonl"))
    assert "one dataset" in run("verify", bare, prefix, "--against", "x", code=1).stderr
    for flag in ("--quick", "--vocab-size=9", "--eod=0"):
        assert flag.partition("=")[0] in run("verify", prefix, flag, "--sample", "3", code=1).stderr
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it
    plain = encode(tmp_path, "plain", ["a", "bb"], tokenizer)
    with pytest.raises(UsageError, match="/pipe "):
        compare_with_inputs(plain, str(tmp_path / "pipe"))
    tokpack.select([plain], tmp_path / "view", random=0.5)
    with pytest.raises(UsageError, match="/view:"):
        compare_with_inputs(tmp_path / "view", f"{plain}.jsonl")

"""Which records of the inputs become documents: bad ones, empty ones, the first N."""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.encoding_tools import EOD, dataset, documents, nothing_whole, twin, write_jsonl

import tokpack


@pytest.mark.parametrize("workers", [1, 3])
def test_empty_documents_in_the_index(tmp_path: Path, tokenizer: Path, workers: int) -> None:
    texts = ["", "one", "", "", "two", ""]
    for number, text in enumerate(texts):
        write_jsonl(tmp_path / f"{number}.jsonl", [text])
    output = tmp_path / "out"
    manifest = tokpack.encode(
        str(tmp_path / "*.jsonl"),
        str(output),
        tokenizer=str(tokenizer),
        empty="document",
        workers=workers,
    )
    assert dataset(output) == twin(tokenizer, texts, keep_empty=True)
    assert (manifest.documents, manifest.empty, manifest.sequences) == (2, 4, 2)


@pytest.mark.parametrize("limit", [1, 49, 50, 51, 137, 300, 1000])
@pytest.mark.parametrize("workers", [1, 3])
def test_limit_takes_the_first_records(
    tmp_path: Path, tokenizer: Path, limit: int, workers: int
) -> None:
    texts = documents(300, words=5, seed=1)
    for number in range(6):
        write_jsonl(tmp_path / f"{number}.jsonl", texts[50 * number : 50 * number + 50])
    output = tmp_path / "out"
    manifest = tokpack.encode(
        str(tmp_path / "*.jsonl"),
        str(output),
        tokenizer=str(tokenizer),
        limit=limit,
        workers=workers,
    )
    assert dataset(output) == twin(tokenizer, texts[:limit])
    assert manifest.records == min(limit, 300)


@pytest.mark.promises
def test_limit_counts_bad_records(tmp_path: Path, tokenizer: Path) -> None:
    source = tmp_path / "a.jsonl"
    lines = [
        '{"text": "one"}',
        "bad",
        "",
        '{"text": ""}',
        '{"text": "two"}',
        "bad",
        '{"text": "x"}',
    ]
    source.write_text("\n".join(lines))
    manifest = tokpack.encode(
        str(source), str(tmp_path / "out"), tokenizer=str(tokenizer), limit=4, on_error="skip"
    )
    assert dataset(tmp_path / "out") == twin(tokenizer, ["one", "two"])
    assert (manifest.records, manifest.rejected, manifest.empty) == (4, 1, 1)


@pytest.mark.promises
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("workers", [1, 3])
def test_rejects_are_listed_in_order(tmp_path: Path, tokenizer: Path, workers: int) -> None:
    """Many lines, so that the file is cut, some of them bad, some blank."""
    lines, good, bad = [], [], []
    for number, text in enumerate(documents(900, words=160), 1):
        if number % 151 == 0:
            lines.append('{"text": 7}')
            bad.append((number, "'text' is a number, not a string"))
        elif number % 126 == 0:
            lines.append("")
        else:
            lines.append(json.dumps({"text": text}))
            good.append(text)
    for suffix in ("", ".gz"):
        source = tmp_path / f"a.jsonl{suffix}"
        content = ("\n".join(lines) + "\n").encode()
        source.write_bytes(gzip.compress(content, 1) if suffix else content)
        output = tmp_path / f"out{suffix}"
        manifest = tokpack.encode(
            str(source), str(output), tokenizer=str(tokenizer), on_error="skip", workers=workers
        )
        rejects = [json.loads(s) for s in Path(f"{output}.rejects.jsonl").read_text().splitlines()]
        assert [(reject["line"], reject["reason"]) for reject in rejects] == bad
        assert {reject["source"] for reject in rejects} == {str(source)}
        assert {reject["record"] for reject in rejects} == {'{"text": 7}'}
        assert manifest.records == manifest.documents + manifest.empty + manifest.rejected
        assert (manifest.records, manifest.rejected) == (len(good) + len(bad), len(bad))
        assert manifest.documents == sum(text != "" for text in good)


@pytest.mark.promises
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_record_fails_the_run(tmp_path: Path, tokenizer: Path, workers: int) -> None:
    lines = [json.dumps({"text": text}) for text in documents(900, words=160)]
    lines[876] = '{"text": null}'
    source = tmp_path / "a.jsonl"
    source.write_text("\n".join(lines))
    with pytest.raises(tokpack.RecordError, match=r"a\.jsonl:877") as caught:
        tokpack.encode(
            str(source), str(tmp_path / "out"), tokenizer=str(tokenizer), workers=workers
        )
    assert caught.value.line == 877
    assert caught.value.exit_code == 1
    nothing_whole(tmp_path / "out")
    # What is encoded is not lost when the record is then to be skipped.
    manifest = tokpack.encode(
        str(source),
        str(tmp_path / "out"),
        tokenizer=str(tokenizer),
        workers=workers,
        on_error="skip",
    )
    assert (manifest.records, manifest.rejected) == (900, 1)


@pytest.mark.promises
@pytest.mark.usefixtures("small_parts")
def test_the_first_bad_record_is_named(tmp_path: Path, tokenizer: Path) -> None:
    """Others are met long before it: by another worker, in another part, stream or segment."""
    good = [json.dumps({"text": text}) for text in documents(900, words=160)]
    late, early = [*good, "bad", "bad"], ["bad", *good[:20]]
    for name, lines in (("0.jsonl", late), ("1.jsonl", early), ("2.jsonl.gz", late)):
        content = ("\n".join(lines) + "\n").encode()
        compressed = gzip.compress(content, 1) if name.endswith("gz") else content
        (tmp_path / name).write_bytes(compressed)
    zero, one, two = (str(tmp_path / name) for name in ("0.jsonl", "1.jsonl", "2.jsonl.gz"))
    cases = [([zero, one], 901), ([two, one], 901), ([one, zero], 1), ([zero, two], 901)]
    for number, (inputs, line) in enumerate(cases):
        for workers in (2, 3):
            with pytest.raises(tokpack.RecordError) as caught:
                tokpack.encode(
                    inputs, tmp_path / f"{number}", tokenizer=str(tokenizer), workers=workers
                )
            assert (caught.value.source, caught.value.line) == (inputs[0], line)
            shutil.rmtree(tmp_path / f"{number}.unfinished", ignore_errors=True)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_first_of_several_kinds_is_named(tmp_path: Path, tokenizer: Path, workers: int) -> None:
    """A record that is malformed, one with a special token, and one of them under another key."""
    lines = ['{"a": "x", "b": "y"}'] * 4
    kinds = ['{"a"', f'{{"a": "{EOD}", "b": "y"}}', f'{{"a": "x", "b": "{EOD}"}}']
    source = tmp_path / "a.jsonl"
    for order in itertools.permutations(kinds):
        source.write_text("\n".join([*lines, *order]))
        with pytest.raises(tokpack.RecordError) as caught:
            tokpack.encode(
                *(source, tmp_path / "out"),
                tokenizer=str(tokenizer),
                keys=["a", "b"],
                special_tokens="error",
                workers=workers,
            )
        assert caught.value.line == 5, order


def test_max_rejects(tmp_path: Path, tokenizer: Path) -> None:
    source = tmp_path / "a.jsonl"
    options: dict[str, Any] = {"tokenizer": str(tokenizer), "on_error": "skip"}
    listed = tmp_path / "out.unfinished/joined.rejects"
    for first in (
        "",
        '{"text": "fine"}\n',
    ):  # the records are kept where they are all there is, too
        source.write_text(first + "bad\n" * 3)
        with pytest.raises(tokpack.InputError, match=r"^3 .* 2 .*max_rejects="):
            tokpack.encode(str(source), str(tmp_path / "out"), max_rejects=2, **options)
        assert listed.read_text().count("malformed JSON") == 3
        nothing_whole(tmp_path / "out")
        options["overwrite"] = True
    del options["overwrite"]
    manifest = tokpack.encode(str(source), str(tmp_path / "out"), max_rejects=3, **options)
    assert manifest.rejected == 3
    with pytest.raises(tokpack.InputError, match=r"^3 .* 0 .*on_error='skip'"):
        tokpack.encode(str(source), str(tmp_path / "out"), tokenizer=str(tokenizer))


EDGE_BAD = {
    "bad_json": "malformed JSON",
    "bad_utf8": "invalid UTF-8",
    "int_text": "is a number",
    "list_text": "is a list",
    "missing_key": "no key 'text'",
    "null_text": "is null",
    "surrogate": "lone surrogate",
}


@pytest.mark.promises
@pytest.mark.parametrize("name", EDGE_BAD)
def test_edge_files_with_a_bad_record(
    tmp_path: Path, edge_files: Path, tokenizer: Path, name: str
) -> None:
    source = edge_files / f"{name}.jsonl"
    output = tmp_path / "out"
    with pytest.raises(tokpack.RecordError, match=EDGE_BAD[name]) as caught:
        tokpack.encode(str(source), str(output), tokenizer=str(tokenizer))
    assert str(source) in str(caught.value)
    nothing_whole(output)
    manifest = tokpack.encode(str(source), str(output), tokenizer=str(tokenizer), on_error="skip")
    (reject,) = [json.loads(s) for s in (tmp_path / "out.rejects.jsonl").read_text().splitlines()]
    assert (reject["line"], reject["reason"]) == (caught.value.line, caught.value.reason)
    lines = source.read_bytes().split(b"\n")
    assert lines[reject["line"] - 1].decode("utf-8", "replace") == reject["record"]
    texts = [
        json.loads(line)["text"]
        for number, line in enumerate(lines, 1)
        if line and number != reject["line"]
    ]
    assert dataset(output) == twin(tokenizer, texts)
    assert manifest.records == len(texts) + 1


@pytest.mark.promises
@pytest.mark.parametrize(
    "name", ["blank", "crlf", "dup_key", "key_after", "nested_key", "noeol", "ok"]
)
def test_edge_files_without_one(
    tmp_path: Path, edge_files: Path, tokenizer: Path, name: str
) -> None:
    source = edge_files / f"{name}.jsonl"
    texts = [json.loads(s)["text"] for s in source.read_bytes().split(b"\n") if s.strip()]
    expected = twin(tokenizer, texts)
    for on_error in ("fail", "skip"):
        output = tmp_path / f"out-{on_error}"
        tokpack.encode(str(source), str(output), tokenizer=str(tokenizer), on_error=on_error)
        assert dataset(output) == expected
        assert not Path(f"{output}.rejects.jsonl").exists()


def test_special_tokens(tmp_path: Path, tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["one", "two", f"a{EOD}b", "three"])
    output = str(tmp_path / "out")
    with pytest.raises(tokpack.RecordError, match=r"a\.jsonl:3"):
        tokpack.encode(str(source), output, tokenizer=str(tokenizer), special_tokens="error")
    nothing_whole(tmp_path / "out")
    tokens = {}
    for mode in ("text", "encode"):
        manifest = tokpack.encode(
            str(source), output + mode, tokenizer=str(tokenizer), special_tokens=mode
        )
        tokens[mode] = manifest.tokens
        assert manifest.inputs[0]["special_tokens"] == 1
    assert tokens["encode"] < tokens["text"]


def test_without_eod(tmp_path: Path, tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["one", "", "two"])
    tokpack.encode(str(source), str(tmp_path / "out"), tokenizer=str(tokenizer), append_eod=False)
    data = tokpack.MMapIndexedDataset(str(tmp_path / "out"))
    model = tokpack.load_tokenizer(str(tokenizer))
    assert [model.decode(document) for document in data] == ["one", "two"]


def test_nothing_to_encode(tmp_path: Path, tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["", ""])
    with pytest.raises(tokpack.InputError):
        tokpack.encode(str(source), str(tmp_path / "out"), tokenizer=str(tokenizer))
    nothing_whole(tmp_path / "out")
    with pytest.raises(tokpack.InputError):
        tokpack.encode(
            str(tmp_path / "absent.jsonl"), str(tmp_path / "out"), tokenizer=str(tokenizer)
        )
    assert not (tmp_path / "out.unfinished").exists()

"""Every fault of a dataset is found, at its place."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.broken_datasets import BASE, EOD, FLAT, fault, make, manifest_of
from support.indexed_twin import Plain, pack_index, read_plainly, write_plainly
from support.places import GOLDEN

import tokpack
from tokpack.cli.main import main
from tokpack.dataset.mapped import CHUNK_BYTES, scan
from tokpack.dataset.merge import merge
from tokpack.dataset.verify import verify as check
from tokpack.errors import InputError


def test_a_good_dataset_is_described(tmp_path: Path) -> None:
    report = check(make(tmp_path / "x"))
    assert (report.documents, report.sequences, report.tokens) == (4, 4, 11)
    assert (report.dtype, report.prefix) == ("uint16", str(tmp_path / "x"))
    assert report.bytes_read == 22 + len(pack_index(BASE))
    assert report.checked == ("index", "counts", "checksums", "token ids", "EOD")
    assert report.unchecked == ()
    assert tokpack.verify(tmp_path / "x.idx", quick=True).unchecked == (
        "checksums (only of the .idx)",
        "token ids (quick)",
        "EOD (quick)",
    )


@pytest.mark.parametrize("name", json.loads((GOLDEN / "v1" / "expected.json").read_text()))
def test_golden_datasets_are_whole(name: str, tmp_path: Path) -> None:
    for path in (GOLDEN / "v1").glob(f"{name}.*"):
        shutil.copy(path, tmp_path)
    prefix = tmp_path / name
    if name == "uint16":  # its manifest claims an EOD that the documents do not end with
        assert "document 0, token 1: id is 65535, expected" in fault(prefix)
        assert check(prefix, quick=True).documents == 2
    else:
        expected = json.loads((GOLDEN / "v1" / "expected.json").read_text())[name]
        report = check(prefix)
        assert report.documents == len(expected["doc_idx"]) - 1
        assert report.unchecked[0] == "counts (no manifest)"


def test_real_datasets_are_whole(data: Path) -> None:
    for idx in sorted(data.rglob("*.idx")):
        report = check(idx.with_suffix(""))
        assert report.documents == len(read_plainly(idx.with_suffix("")).doc_idx) - 1
    # The settings of these were a vocabulary of 5000, whose last is the EOD.
    assert "EOD" in check(data / "index" / "eod", vocab_size=5000, eod=4999).checked
    assert "expected 4998, the EOD" in fault(data / "index" / "eod", eod=4998)


@pytest.mark.promises
def test_an_encoded_dataset_is_whole(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "a": 1, "b": 2, "<eod>": 3}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "in.jsonl").write_text('{"text": "a b"}\n{"text": ""}\n{"text": "b"}\nbroken\n')
    for empty in ("skip", "document"):
        tokpack.encode(
            str(tmp_path / "in.jsonl"),
            str(tmp_path / empty),
            tokenizer_type="Whitespace",
            vocab_file=str(tmp_path / "vocab.json"),
            on_error="skip",
            empty=empty,
            workers=1,
        )
        report = check(tmp_path / empty)
        assert report.documents == (3 if empty == "document" else 2)
        assert report.unchecked == ()


# -- what is broken ------------------------------------------------------------------------------


@pytest.mark.promises
@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_every_flipped_bit_is_found(suffix: str, tmp_path: Path) -> None:
    path = Path(f"{make(tmp_path / 'x')}{suffix}")
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in (0, 3, 7):
            broken = bytearray(whole)
            broken[at] ^= 1 << bit
            path.write_bytes(broken)
            assert path.name in fault(tmp_path / "x")


def test_other_json_is_no_manifest(tmp_path: Path) -> None:
    path = Path(f"{make(tmp_path / 'x')}.json")
    path.write_text('{"text": "some document"}\n')
    assert check(tmp_path / "x").unchecked[:2] == tuple(
        f"{what} (no manifest)" for what in ("counts", "checksums")
    )


def test_a_virtual_dataset_is_its_pieces(tmp_path: Path) -> None:
    for name, plain in (("a", BASE), ("b", FLAT)):
        make(tmp_path / "pieces" / name if name == "b" else tmp_path / name, plain)
    merge([f"{tmp_path}/a", f"{tmp_path}/pieces/b"], f"{tmp_path}/all", virtual=True)
    told: list[tuple[int, int]] = []
    report = check(tmp_path / "all", progress=lambda at: told.append((at.done, at.total)))
    assert (report.documents, report.sequences, report.tokens) == (7, 7, 19)
    assert (told, report.unchecked) == ([(22, 38), (38, 38)], ())
    piece = tmp_path / "pieces" / "b.bin"
    whole = piece.read_bytes()
    piece.write_bytes(whole[:2] + b"\7" + whole[3:])
    assert check(tmp_path / "all", quick=True).tokens == 19  # what no quick look can see


@pytest.mark.parametrize("kind", ["xxh3_blocks", "xxh3_128"])
def test_a_virtual_manifest_has_the_checksum_of_a_piece_without_one(
    tmp_path: Path, kind: str
) -> None:
    make(tmp_path / "b", BASE)
    if kind == "xxh3_blocks":
        merge([f"{tmp_path}/b"], f"{tmp_path}/a")
    else:
        make(tmp_path / "a", BASE)
    manifest = json.loads((tmp_path / "a.json").read_text())
    assert kind in manifest["bin"]
    merge([f"{tmp_path}/a"], f"{tmp_path}/all", virtual=True)
    (tmp_path / "a.json").unlink()
    assert "checksums (only of the .bin, no manifest)" in check(tmp_path / "all").unchecked
    piece = tmp_path / "a.bin"
    content = piece.read_bytes()
    piece.write_bytes(content[:2] + b"\7" + content[3:])
    assert f"{piece}: its checksum is not" in fault(tmp_path / "all")


def test_empty_documents_are_counted_where_they_have_a_place(tmp_path: Path) -> None:
    make(tmp_path / "skipped")
    prefix = make(tmp_path / "kept")  # its second document has no token
    facts = {"documents": 3, "records": 6, "options": {"append_eod": True, "empty": "document"}}
    manifest_of(BASE, prefix, **facts, inputs=[{"name": "b", "records": 6}]).save(prefix)
    assert check(prefix).documents == 4
    merge([f"{tmp_path}/skipped", f"{prefix}"], f"{tmp_path}/all")
    report = check(tmp_path / "all")
    assert (report.documents, report.unchecked) == (8, ())


# -- the first fault, at its place ---------------------------------------------------------------


def first_fault(plain: Plain, vocab_size: int | None, eod: int | None) -> str | None:
    """The slow twin: token by token."""
    at = 0
    bounds = zip(plain.doc_idx, plain.doc_idx[1:], strict=False)
    for document, (begin, end) in enumerate(bounds):
        tokens = [token for sequence in plain.sequences[begin:end] for token in sequence]
        for number, token in enumerate(tokens):
            stranger = vocab_size is not None and not 0 <= token < vocab_size
            if stranger or (eod is not None and number == len(tokens) - 1 and token != eod):
                return f"byte {at}, document {document}, token {number}: id is {token}, expected"
            at += struct.calcsize(plain.letter)
    return None


@st.composite
def datasets(draw: st.DrawFn) -> Plain:
    letter = draw(st.sampled_from("BbhiqH"))
    low = -1 if letter in "bhiq" else 0
    token = st.sampled_from([9, 9, 9, 3, 9, 10, low])
    sentence = st.lists(token, max_size=6).map(lambda ids: [*ids, 9] if len(ids) % 2 else ids)
    sequences = draw(st.lists(sentence, max_size=12))
    cuts = draw(st.lists(st.integers(0, len(sequences)), max_size=8))
    return Plain(letter, sequences, [0, *sorted(cuts), len(sequences)])


@settings(max_examples=150, deadline=None)
@given(datasets(), st.sampled_from([None, 10, 11, 200, 2**40]), st.sampled_from([None, 9, 3]))
def test_the_first_fault_is_that_of_the_twin(
    tmp_path_factory: pytest.TempPathFactory, plain: Plain, vocab_size: int | None, eod: int | None
) -> None:
    prefix = tmp_path_factory.mktemp("twin") / "x"
    write_plainly(prefix, plain)
    with pytest.MonkeyPatch.context() as patch:  # many chunks, whose ends fall on any document
        patch.setattr("tokpack.dataset.mapped.CHUNK_BYTES", 16)
        patch.setattr("tokpack.dataset.verify._DOCUMENTS", 2)
        expected = first_fault(plain, vocab_size, eod)
        if expected is None:
            check(prefix, vocab_size=vocab_size, eod=eod)
        else:
            assert expected in fault(prefix, vocab_size=vocab_size, eod=eod)


def test_a_document_that_ends_with_its_chunk(tmp_path: Path) -> None:
    edge = CHUNK_BYTES // 4
    sequences = [[7] * (edge - 1) + [EOD], [EOD], [7] * (2 * edge - 2) + [EOD]]
    write_plainly(tmp_path / "x", Plain("i", sequences, [0, 0, 1, 2, 3, 3]))
    assert check(tmp_path / "x", eod=EOD).documents == 5
    found = fault(tmp_path / "x", eod=EOD - 1)
    assert f"byte {CHUNK_BYTES - 4}, document 1, token {edge - 1}: id is 99, expected 98" in found


def test_a_scan_is_in_order_and_notices_a_file_that_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(range(100)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokpack.dataset.mapped.CHUNK_BYTES", 8)
        found = list(scan(str(path), 99, lambda begin, block: (begin, bytes(block))))
        assert b"".join(data for *_, (_, data) in found) == bytes(range(99))
        assert [begin for begin, *_ in found] == list(range(0, 99, 8))
        with pytest.raises(InputError, match=r"x\.bin: .*\bbyte 100\b"):
            list(scan(str(path), 101, lambda begin, _: begin))
        stopped = scan(str(path), 99, lambda begin, _: begin)
        begin, block, seen = next(stopped)
        assert (begin, bytes(block), seen) == (0, bytes(range(8)), 0)
        stopped.close()
    assert list(scan(str(path), 0, lambda begin, _: begin)) == []


# -- the command ---------------------------------------------------------------------------------


def run(*arguments: object) -> int:
    return main(["verify", *map(str, arguments)])


def test_the_command_tells_good_from_bad(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "good")
    make(tmp_path / "plain", manifest=False)
    make(tmp_path / "bad")
    (tmp_path / "bad.bin").write_bytes(b"\0" * 22)
    assert run(tmp_path / "good", tmp_path / "good.idx") == 0
    out, err = capsys.readouterr()
    line = rf"{tmp_path}/good: ok, 4 documents, 11 tokens, 144 B in \d+ ms\n"
    assert re.fullmatch(line, out)
    assert err == ""
    assert run(tmp_path) == 1  # a folder; what follows the bad one is looked at too
    out, err = capsys.readouterr()
    assert [entry.partition(":")[0] for entry in out.splitlines()] == [
        f"{tmp_path}/good",
        f"{tmp_path}/plain",
    ]
    assert out.rstrip().endswith(
        "not checked: counts, checksums (no manifest), token ids (no vocabulary size), "
        "EOD (no EOD id)"
    )
    assert f"error: {tmp_path}/bad.bin: byte 8, document 0, token 4: id is 0, expected 99" in err
    assert "1 of 3 datasets are broken or missing" in err
    assert run(tmp_path, "--json", "--quiet") == 1
    found = json.loads(capsys.readouterr().out)["datasets"]
    assert [row["ok"] for row in found] == [False, True, True]
    assert found[1]["tokens"] == 11
    assert run(tmp_path / "good", tmp_path / "bad", "--quick", "-q") == 0
    assert capsys.readouterr() == ("", "")
    assert run(tmp_path / "plain", "--vocab-size", 99) == 1
    assert "id is 99, expected an id below the vocabulary size 99" in capsys.readouterr().err


def test_a_name_that_is_no_utf8_goes_out_as_it_is(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/a\xff b"
    make(Path(os.fsdecode(name)))
    done = subprocess.run(
        [sys.executable, "-m", "tokpack", "verify", name],
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},  # as on most desktops
        capture_output=True,
        check=True,
    )
    assert done.stdout.startswith(name + b": ok, 4 documents")


def test_a_tokenizer_gives_the_vocabulary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "x", FLAT, manifest=False)
    flags = ["--vocab-file", tmp_path / "vocab.json", "--tokenizer-type", "Whitespace"]
    for size in (EOD + 1, EOD):
        words = {**{f"w{i}": i for i in range(size - 1)}, "<eod>": size - 1}
        (tmp_path / "vocab.json").write_text(json.dumps(words))
        assert run(tmp_path / "x", *flags) == (size == EOD)
    out, err = capsys.readouterr()
    assert "token ids" not in out
    assert "id is 99, expected an id below the vocabulary size 99" in err

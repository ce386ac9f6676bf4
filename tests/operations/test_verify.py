"""Every fault of a dataset is found, at its place; and what can be rebuilt of a broken one is."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.indexed_twin import Plain, pack_index, read_plainly, write_plainly
from support.places import GOLDEN

import tokpack
from tokpack.cli.main import main
from tokpack.errors import FormatError, InputError, OutputError, UsageError
from tokpack.indexed import Manifest, digest_file, write_index
from tokpack.indexed.scan import CHUNK_BYTES, scan
from tokpack.operations import repair
from tokpack.operations import verify as check
from tokpack.operations.merge import merge

REPAIR = sys.modules["tokpack.operations.repair"]  # its function has the same name
EOD = 99
VOCAB = 100
# Two sentences in the first document, none in the second.
SEQUENCES = [[1, 2, 3], [4, EOD], [5, EOD], [6, 7, 8, EOD]]
BASE = Plain("H", SEQUENCES, [0, 2, 2, 3, 4])
# One sequence a document, and every document has one: what EODs alone can tell.
FLAT = Plain("H", [[1, 2, EOD], [EOD], [5, 6, 7, EOD]], [0, 1, 2, 3])


def manifest_of(plain: Plain, prefix: Path, **changes: Any) -> Manifest:
    documents = len(plain.doc_idx) - 1
    counts = {
        "documents": documents,
        "sequences": len(plain.sequences),
        "tokens": sum(map(len, plain.sequences)),
    }
    values: dict[str, Any] = {
        "tokpack_version": "0",
        "created": "2026-01-01T00:00:00+00:00",
        "tokenizer": {"name": "x", "vocab_size": VOCAB, "eod_id": EOD},
        "options": {"append_eod": True, "empty": "skip"},
        "inputs": [{"name": "a", "records": documents + 3, **counts}],
        "records": documents + 3,
        "empty": 1,
        "rejected": 2,
        "text_bytes": 10,
        "dtype": "uint16",
        "bin": digest_file(f"{prefix}.bin"),
        "idx": digest_file(f"{prefix}.idx"),
        **counts,
    }
    return Manifest(**{**values, **changes})


def make(prefix: Path, plain: Plain = BASE, *, manifest: bool = True) -> Path:
    prefix.parent.mkdir(exist_ok=True)
    write_plainly(prefix, plain)
    if manifest:
        manifest_of(plain, prefix).save(prefix)
    return prefix


def fault(prefix: Path, **options: Any) -> str:
    with pytest.raises(FormatError) as caught:
        check(prefix, **options)
    return str(caught.value)


# -- what is whole -------------------------------------------------------------------------------


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


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("path", sorted((GOLDEN / "broken").glob("*.idx")), ids=lambda p: p.stem)
def test_golden_broken_datasets_are_refused(path: Path, quick: bool) -> None:
    prefix = path.with_suffix("")
    expected = path.with_suffix(".error").read_text().rstrip("\n")
    assert fault(prefix, quick=quick).replace(f"{path.parent}/", "") == expected


def test_real_datasets_are_whole(shared: Path) -> None:
    for idx in sorted(shared.rglob("*.idx")):
        report = check(idx.with_suffix(""))
        assert report.documents == len(read_plainly(idx.with_suffix("")).doc_idx) - 1
    # The settings of these were a vocabulary of 5000, whose last is the EOD.
    assert "EOD" in check(shared / "index" / "eod", vocab_size=5000, eod=4999).checked
    assert "expected 4998, the EOD" in fault(shared / "index" / "eod", eod=4998)


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


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
@pytest.mark.parametrize("manifest", [False, True])
def test_every_truncation_and_an_added_byte_are_found(
    suffix: str, manifest: bool, tmp_path: Path
) -> None:
    path = Path(f"{make(tmp_path / 'x', manifest=manifest)}{suffix}")
    whole = path.read_bytes()
    for size in range(len(whole) + 2):
        if size != len(whole):
            path.write_bytes((whole + b"\0")[:size])
            found = fault(tmp_path / "x", quick=True)
            if manifest:
                assert f"{size} bytes, expected {len(whole)}, as" in found


def test_another_bin_is_found(tmp_path: Path) -> None:
    make(tmp_path / "x", FLAT)
    make(tmp_path / "y", Plain("H", [[1, 2, EOD], [EOD], [5, 6, 8, EOD]], [0, 1, 2, 3]))
    shutil.copy(tmp_path / "y.bin", tmp_path / "x.bin")
    assert check(tmp_path / "x", quick=True).tokens == 8
    assert "x.bin: xxh3_128 is" in fault(tmp_path / "x")
    make(tmp_path / "z", Plain("H", [[1, EOD], [EOD], [5, 6, 7, 8, EOD]], [0, 1, 2, 3]))
    shutil.copy(tmp_path / "z.bin", tmp_path / "x.bin")
    assert "x.bin: byte 4, document 0, token 2: id is 99" not in (found := fault(tmp_path / "x"))
    assert "x.bin: byte 6, document 1, token 0: id is 5, expected 99, the EOD" in found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"documents": 5}, "documents is 5, expected 4, as in"),
        ({"sequences": 5}, "sequences is 5, expected 4, as in"),
        ({"tokens": 12}, "tokens is 12, expected 11, as in"),
        ({"dtype": "int16"}, "dtype is int16, expected uint16, as in"),
        ({"records": 8}, "records is 8, expected 7: 4 documents, 1 empty and 2 rejected"),
        ({"rejected": 1}, "records is 7, expected 6"),
        ({"options": {"empty": "document"}}, "documents is 4, expected 3"),
        ({"inputs": [{"records": 6}, {"records": 2}]}, "records is 7, expected 8, the sum over"),
        ({"bin": {"bytes": 24, "xxh3_128": "0"}}, "x.bin: 22 bytes, expected 24, as"),
        ({"idx": {"bytes": 122, "xxh3_128": "0"}}, "x.idx: xxh3_128 is"),
    ],
)
def test_a_wrong_manifest_is_found(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    prefix = make(tmp_path / "x")
    assert len(pack_index(BASE)) == 122
    manifest_of(BASE, prefix, **changes).save(prefix)
    for quick in (True, False):
        assert message in fault(prefix, quick=quick)


def test_a_damaged_manifest_is_found_and_other_json_is_none(tmp_path: Path) -> None:
    path = Path(f"{make(tmp_path / 'x')}.json")
    whole = path.read_bytes()
    for broken in (b"", b"\0" * len(whole), whole[:-9], whole.replace(b'"tokens": 11', b"")):
        path.write_bytes(broken)
        assert str(path) in fault(tmp_path / "x")
    path.write_text('{"text": "some document"}\n')
    assert check(tmp_path / "x").unchecked[:2] == tuple(
        f"{what} (no manifest)" for what in ("counts", "checksums")
    )


def test_a_trace_is_checked_where_there_is_one(tmp_path: Path) -> None:
    prefix = make(tmp_path / "x")
    trace = Path(f"{prefix}.trace")
    trace.write_bytes(b"some trace")
    manifest_of(BASE, prefix, trace=digest_file(trace)).save(prefix)
    assert check(prefix).unchecked == ()
    trace.write_bytes(b"sOme trace")
    assert "x.trace: xxh3_128 is" in fault(prefix, quick=True)
    trace.write_bytes(b"some")
    assert "x.trace: 4 bytes, expected 10" in fault(prefix)
    trace.unlink()
    assert check(prefix).unchecked == ()


def test_missing_files_are_named(tmp_path: Path) -> None:
    make(tmp_path / "x")
    (tmp_path / "x.idx").unlink()
    for prefix, missing in (("x", "x.idx"), ("none", "none.bin")):
        with pytest.raises(InputError, match=rf"{missing}: no such file"):
            check(tmp_path / prefix)
    (tmp_path / "x.idx").mkdir()
    with pytest.raises(InputError, match="not a regular file"):
        check(tmp_path / "x")


def test_a_request_must_make_sense(tmp_path: Path) -> None:
    make(tmp_path / "x")
    with pytest.raises(UsageError, match="EOD is 7, expected an id below"):
        check(tmp_path / "x", vocab_size=7, eod=7)
    with pytest.raises(UsageError, match="vocabulary size is 0"):
        check(tmp_path / "x", vocab_size=0)


def test_a_virtual_dataset_is_its_pieces(tmp_path: Path) -> None:
    for name, plain in (("a", BASE), ("b", FLAT)):
        make(tmp_path / "pieces" / name if name == "b" else tmp_path / name, plain)
    merge([f"{tmp_path}/a", f"{tmp_path}/pieces/b"], f"{tmp_path}/all", virtual=True)
    told: list[tuple[int, int]] = []
    report = check(tmp_path / "all", progress=lambda at: told.append((at.done, at.total)))
    assert (report.documents, report.sequences, report.tokens) == (7, 7, 19)
    assert (told, report.unchecked) == ([(22, 38), (38, 38)], ())
    with pytest.raises(UsageError, match="a virtual dataset has no index: repair its pieces"):
        repair(tmp_path / "all", tmp_path / "new")
    piece = tmp_path / "pieces" / "b.bin"
    whole = piece.read_bytes()
    piece.write_bytes(whole[:2] + b"\7" + whole[3:])
    assert check(tmp_path / "all", quick=True).tokens == 19
    assert f"{piece}: xxh3_128 is" in fault(tmp_path / "all")
    piece.write_bytes(whole[:-2])
    assert f"{tmp_path}/pieces/b" in fault(tmp_path / "all", quick=True)


def test_empty_documents_are_counted_where_they_have_a_place(tmp_path: Path) -> None:
    make(tmp_path / "skipped")
    prefix = make(tmp_path / "kept")  # its second document has no token
    facts = {"documents": 3, "records": 6, "options": {"append_eod": True, "empty": "document"}}
    manifest_of(BASE, prefix, **facts, inputs=[{"name": "b", "records": 7}]).save(prefix)
    assert "records is 6, expected 7, the sum over its inputs" in fault(prefix)
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
        patch.setattr("tokpack.indexed.scan.CHUNK_BYTES", 16)
        patch.setattr("tokpack.operations.token_check._DOCUMENTS", 2)
        expected = first_fault(plain, vocab_size, eod)
        if expected is None:
            check(prefix, vocab_size=vocab_size, eod=eod)
        else:
            assert expected in fault(prefix, vocab_size=vocab_size, eod=eod)


def test_faults_beside_the_edges_of_real_chunks(tmp_path: Path) -> None:
    """20 million tokens, a fault at a time; always the first of two is told."""
    count, length = 20_000_000, 1000
    tokens = np.memmap(tmp_path / "x.bin", "<u2", "w+", shape=(count,))
    tokens[:] = 7
    tokens[length - 1 :: length] = EOD
    sequences = count // length
    lengths = np.full(sequences, length, np.int32)
    write_index(tmp_path / "x.idx", np.uint16, lengths, np.arange(sequences + 1), fsync=False)
    report = check(tmp_path / "x", vocab_size=VOCAB, eod=EOD)
    assert (report.tokens, report.bytes_read) == (count, 2 * count + 34 + 20 * sequences + 8)
    edge = CHUNK_BYTES // 2
    for at in (0, edge - 1, edge, 7 * edge + 1, count - 2):
        kept = tokens[at]
        tokens[at] = tokens[-1] = VOCAB
        expected = f"byte {2 * at}, document {at // length}, token {at % length}: id is 100,"
        assert expected in fault(tmp_path / "x", vocab_size=VOCAB, eod=EOD)
        tokens[at], tokens[-1] = kept, EOD
    ends = [length, edge // length * length, (edge // length + 1) * length, count]
    for at in (end - 1 for end in ends):
        tokens[at] = 7
        expected = f"byte {2 * at}, document {at // length}, token {length - 1}: id is 7, expected"
        assert expected in fault(tmp_path / "x", vocab_size=VOCAB, eod=EOD)
        tokens[at] = EOD


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
        patch.setattr("tokpack.indexed.scan.CHUNK_BYTES", 8)
        found = list(scan(str(path), 99, lambda begin, block: (begin, bytes(block))))
        assert b"".join(data for *_, (_, data) in found) == bytes(range(99))
        assert [begin for begin, *_ in found] == list(range(0, 99, 8))
        with pytest.raises(InputError, match="ends at byte 100: it was cut off while"):
            list(scan(str(path), 101, lambda begin, _: begin))
        stopped = scan(str(path), 99, lambda begin, _: begin)
        begin, block, seen = next(stopped)
        assert (begin, bytes(block), seen) == (0, bytes(range(8)), 0)
        stopped.close()
    assert list(scan(str(path), 0, lambda begin, _: begin)) == []


# -- repair --------------------------------------------------------------------------------------


def bytes_of(prefix: Path) -> tuple[bytes, bytes]:
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()


def mend(prefix: Path, output: str = "new", **options: Any) -> tuple[Any, Plain]:
    """Repair a dataset; check that the old one is as it was and that the new one is whole."""
    folder = prefix.parent
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    report = repair(prefix, folder / output, **options)
    assert {path: path.read_bytes() for path in before} == before
    assert {path.suffix for path in folder.iterdir() if path.stem == output} <= {
        *(".bin", ".idx", ".json", ".trace"),
    }
    check(folder / output)
    new = read_plainly(folder / output)
    assert (report.sequences, report.documents) == (len(new.sequences), len(new.doc_idx) - 1)
    return report, new


def test_a_missing_index_comes_back_to_the_byte(tmp_path: Path) -> None:
    prefix = make(tmp_path / "x", FLAT)
    whole = bytes_of(prefix)
    (tmp_path / "x.idx").unlink()
    report, _ = mend(prefix)
    assert bytes_of(tmp_path / "new") == whole
    assert (tmp_path / "new.json").read_bytes() == (tmp_path / "x.json").read_bytes()
    assert (tmp_path / "new.bin").samefile(tmp_path / "x.bin")
    assert (report.exact, report.linked, report.notes) == (True, True, ())
    assert report.method == "the .bin, cut at EOD"
    (tmp_path / "x.json").unlink()  # and without the manifest, when told what it said
    report, _ = mend(prefix, "other", eod=EOD, dtype="uint16")
    assert bytes_of(tmp_path / "other") == whole
    assert (report.exact, report.notes) == (False, ())


@pytest.mark.parametrize("plain", [BASE, FLAT], ids=["sentences", "flat"])
def test_any_damage_to_an_index_with_a_manifest_is_mended_or_said(
    plain: Plain, tmp_path: Path
) -> None:
    prefix = make(tmp_path / "x", plain)
    whole = bytes_of(prefix)
    documents = 34 + 12 * len(plain.sequences)  # where what an index has only once begins
    damages = [(size, whole[1][:size]) for size in range(0, len(whole[1]), 5)]
    for at in range(0, len(whole[1]), 2):
        flipped = bytes([whole[1][at] ^ (2 if at % 4 else 0x80)])
        damages.append((at, whole[1][:at] + flipped + whole[1][at + 1 :]))
    for number, (at, damage) in enumerate(damages):
        (tmp_path / "x.idx").write_bytes(damage)
        report, _ = mend(prefix, f"new{number}")
        assert report.exact == (bytes_of(tmp_path / f"new{number}") == whole)
        # With a sequence a document EODs are enough; a flip is mended from the other half.
        if plain is FLAT or (at < documents and len(damage) == len(whole[1])):
            assert report.exact
        assert report.exact or any("the manifest says" in note for note in report.notes)


def test_documents_and_pointers_that_other_programs_lost(tmp_path: Path) -> None:
    # Merged by GPT-NeoX: no documents.
    plain = replace_documents(BASE, [0])
    write_plainly(tmp_path / "neox", plain)
    report, new = mend(tmp_path / "neox")
    assert new == replace_documents(BASE, [0, 1, 2, 3, 4])
    assert "where documents end is lost" in report.notes[0]
    report, new = mend(tmp_path / "neox", "with-eod", eod=EOD)
    assert new == replace_documents(BASE, [0, 2, 3, 4])
    # Merged by others: pointers that left 32 bits.
    write_plainly(tmp_path / "overflow", BASE)
    broken = bytearray((tmp_path / "overflow.idx").read_bytes())
    struct.pack_into("<q", broken, 34 + 4 * 4 + 8 * 3, 14 - 2**32)
    (tmp_path / "overflow.idx").write_bytes(broken)
    report, new = mend(tmp_path / "overflow", "pointers")
    assert (new, report.notes) == (BASE, ())


def replace_documents(plain: Plain, doc_idx: list[int]) -> Plain:
    return plain._replace(doc_idx=doc_idx)


def test_eods_that_were_left_out_of_the_lengths(tmp_path: Path) -> None:
    write_plainly(tmp_path / "x", BASE)
    wrong = BASE._replace(sequences=[[1, 2, 3], [4], [5], [6, 7, 8]])
    (tmp_path / "x.idx").write_bytes(pack_index(wrong))
    fault(tmp_path / "x")
    report, new = mend(tmp_path / "x")
    assert new == BASE
    assert report.notes == ("every document ends with id 99, which the old index had left out",)
    with pytest.raises(FormatError, match="no token has the id 98"):
        repair(tmp_path / "x", tmp_path / "other", eod=EOD - 1)


def test_a_bin_that_was_cut_off_keeps_its_documents(tmp_path: Path) -> None:
    prefix = make(tmp_path / "x", FLAT)
    (tmp_path / "x.bin").write_bytes((tmp_path / "x.bin").read_bytes()[:11])
    report, new = mend(prefix)
    assert new.sequences == [[1, 2, EOD], [EOD], [5]]
    assert (report.exact, report.linked) == (False, False)
    assert [note.partition(":")[0] for note in report.notes] == [
        "the .bin ends inside a token (1 of 2 bytes)",
        "the .bin has 5 tokens, the manifest says 8",
        "the 1 tokens after the last EOD are a last document, without its end",
        "the new dataset has no manifest",
    ]


def test_eods_inside_documents_are_told(tmp_path: Path) -> None:
    plain = Plain("H", [[1, EOD, 2, EOD], [3, EOD]], [0, 1, 2])
    prefix = make(tmp_path / "x", plain)
    (tmp_path / "x.idx").unlink()
    report, new = mend(prefix)
    assert new.sequences == [[1, EOD], [2, EOD], [3, EOD]]
    assert report.notes == (
        "3 documents, the manifest says 2: EODs inside documents cut these",
        "the new dataset has no manifest: the old one no longer describes it",
    )


def test_a_trace_goes_with_the_index_that_it_belongs_to(tmp_path: Path) -> None:
    prefix = make(tmp_path / "x", FLAT)
    trace = tmp_path / "x.trace"
    trace.write_bytes(b"some trace")
    manifest_of(FLAT, prefix, trace=digest_file(trace)).save(prefix)
    (tmp_path / "x.idx").unlink()
    report, _ = mend(prefix)
    assert report.exact
    assert (tmp_path / "new.trace").read_bytes() == b"some trace"
    assert (tmp_path / "new.json").read_bytes() == (tmp_path / "x.json").read_bytes()
    trace.write_bytes(b"another trace")
    mend(prefix, "other")
    assert not (tmp_path / "other.trace").exists()
    assert Manifest.load(tmp_path / "other").trace is None


def test_documents_without_eod_need_their_index(tmp_path: Path) -> None:
    prefix = make(tmp_path / "x", FLAT)
    manifest_of(FLAT, prefix, options={"append_eod": False}).save(prefix)
    assert check(prefix).unchecked == ("EOD (none appended)",)
    (tmp_path / "x.idx").unlink()
    with pytest.raises(FormatError, match="encoded without an EOD, so nothing tells where they"):
        repair(prefix, tmp_path / "new")


def test_a_broken_manifest_is_not_believed(tmp_path: Path) -> None:
    prefix = make(tmp_path / "x", FLAT)
    for number, dtype in enumerate(("uint61", "float32", "")):
        manifest_of(FLAT, prefix, dtype=dtype).save(prefix)
        assert f"dtype is {dtype}, expected uint16" in fault(prefix)
        with pytest.raises(FormatError, match="nothing is left to rebuild it from"):
            repair(prefix, tmp_path / "new")  # the index itself is whole
        (tmp_path / "x.idx").write_bytes(pack_index(FLAT)[:-1])
        report, new = mend(prefix, f"new{number}", eod=EOD)
        assert (new, report.exact) == (FLAT, False)
        (tmp_path / "x.idx").write_bytes(pack_index(FLAT))


def test_what_cannot_be_repaired_is_refused(tmp_path: Path) -> None:
    prefix = make(tmp_path / "x", FLAT)
    with pytest.raises(UsageError, match="nothing to repair"):
        repair(prefix, tmp_path / "new")
    data = (tmp_path / "x.bin").read_bytes()
    (tmp_path / "x.bin").write_bytes(data[:2] + b"\7" + data[3:])
    with pytest.raises(FormatError, match="a new one does not help: encode the text again"):
        repair(prefix, tmp_path / "new")
    (tmp_path / "x.idx").unlink()
    report = repair(prefix, tmp_path / "new")  # but never with the manifest of other tokens
    assert "no longer describes it" in report.notes[-1]
    assert not (tmp_path / "new.json").exists()
    for name in ("new", "x"):
        with pytest.raises(OutputError, match="exists: a repair writes new files only"):
            repair(prefix, tmp_path / name)
    with pytest.raises(UsageError, match="dtype is uint16, not int32 as asked"):
        repair(prefix, tmp_path / "other", dtype="int32")
    with pytest.raises(FormatError, match="no token has the id 98: it is not the EOD"):
        repair(prefix, tmp_path / "other", eod=98)
    with pytest.raises(UsageError, match="EOD is 70000, which uint16"):
        repair(prefix, tmp_path / "other", eod=70000)
    (tmp_path / "x.json").unlink()
    with pytest.raises(UsageError, match="the dtype of the ids is not known"):
        repair(prefix, tmp_path / "other", eod=EOD)
    with pytest.raises(FormatError, match=r"nothing is left to rebuild .* give the EOD id"):
        repair(prefix, tmp_path / "other", dtype="uint16")
    with pytest.raises(InputError, match=r"none.bin: no such file"):
        repair(tmp_path / "none", tmp_path / "other")
    assert not list(tmp_path.glob("other*"))


def test_a_failed_repair_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = make(tmp_path / "x", FLAT)
    (tmp_path / "x.idx").unlink()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(REPAIR, "write_index", full)
    with pytest.raises(OutputError, match="No space left on device"):
        repair(prefix, tmp_path / "new")
    monkeypatch.setattr("os.link", full)  # another disk: copied
    monkeypatch.setattr(REPAIR, "copy_range", full)
    with pytest.raises(OutputError, match="No space left on device"):
        repair(prefix, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.bin", "x.json"]
    monkeypatch.undo()
    monkeypatch.setattr("os.link", full)
    report, _ = mend(prefix)
    assert (report.exact, report.linked) == (True, False)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 98), max_size=5), min_size=1, max_size=20))
def test_documents_that_end_with_eod_survive_the_loss_of_their_index(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]]
) -> None:
    folder = tmp_path_factory.mktemp("loss")
    sequences = [[*document, EOD] for document in documents]
    write_plainly(folder / "x", Plain("i", sequences, list(range(len(sequences) + 1))))
    whole = bytes_of(folder / "x")
    (folder / "x.idx").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokpack.indexed.scan.CHUNK_BYTES", 16)
        repair(folder / "x", folder / "new", eod=EOD, dtype="int32")
    assert bytes_of(folder / "new") == whole


def test_real_datasets_survive_the_loss_of_their_index(shared: Path, tmp_path: Path) -> None:
    name = "index/eod"
    shutil.copy(shared / f"{name}.bin", tmp_path / "x.bin")
    report, _ = mend(tmp_path / "x", eod=4999, dtype="uint16")
    old = read_plainly(shared / name)
    inside = sum(sequence[:-1].count(4999) for sequence in old.sequences)
    assert report.documents == len(old.sequences) + inside
    assert inside or bytes_of(tmp_path / "new") == bytes_of(shared / name)


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
    assert "id is 99, expected an id of the vocabulary, which has 99" in capsys.readouterr().err


def test_the_command_repairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "x", FLAT)
    whole = bytes_of(tmp_path / "x")
    (tmp_path / "x.idx").unlink()
    assert run(tmp_path / "x") == 1
    assert run(tmp_path / "x", "--repair", "-o", tmp_path / "new" / "x") == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path}/new/x\n"
    assert "rebuilt from the .bin, cut at EOD" in err
    assert "byte for byte" in err
    assert bytes_of(tmp_path / "new" / "x") == whole
    assert run(tmp_path / "x", "--repair", "-o", tmp_path / "y", "--json", "-q") == 0
    assert json.loads(capsys.readouterr().out)["exact"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no INPUT"),
        (["x", "--repair"], "add -o PREFIX"),
        (["x", "y", "--repair", "-o", "z"], "--repair takes one dataset"),
        (["x", "-o", "z"], "--output belongs to --repair"),
        (["x", "--dtype", "int32"], "--dtype belongs to --repair"),
        (["x", "--eod", "-1"], "not a whole number of at least 0"),
        (["nothing"], "nothing.bin: no such file"),
    ],
)
def test_a_wrong_request_is_told(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 1
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""


def test_a_tokenizer_gives_vocabulary_and_eod(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vocabulary = {**{f"w{i}": i for i in range(99)}, "<eod>": 99}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    make(tmp_path / "x", FLAT, manifest=False)
    flags = ["--vocab-file", tmp_path / "vocab.json", "--tokenizer-type", "Whitespace"]
    assert run(tmp_path / "x", *flags) == 0
    assert "token ids" not in capsys.readouterr().out
    (tmp_path / "x.idx").unlink()
    assert run(tmp_path / "x", "--repair", "-o", tmp_path / "y", "--dtype", "uint16", *flags) == 0
    assert read_plainly(tmp_path / "y") == FLAT


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

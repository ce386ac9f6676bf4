"""What can be rebuilt of a broken dataset is, and the old one stays as it was."""

from __future__ import annotations

import json
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.broken_datasets import BASE, EOD, FLAT, fault, make, manifest_of
from support.indexed_twin import Plain, pack_index, read_plainly, write_plainly

from tokpack import merge
from tokpack.cli.main import main
from tokpack.errors import FormatError, InputError, OutputError, UsageError
from tokpack.indexed import Manifest, digest_file
from tokpack.indexed.manifest import FileDigest
from tokpack.operations import repair
from tokpack.operations import verify as check

REPAIR = sys.modules["tokpack.operations.repair"]  # its function has the same name


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


def test_a_manifest_is_kept_whatever_its_checksum_is_of(tmp_path: Path) -> None:
    """Of the whole .bin, of its blocks, as encode and merge have it, or of its pieces."""
    prefix = make(tmp_path / "x", FLAT)
    whole = digest_file(tmp_path / "x.bin")
    blocks = merge([prefix], tmp_path / "merged").bin
    assert "xxh3_blocks" in blocks
    begin = (tmp_path / "x.bin").read_bytes()[:6]
    (tmp_path / "begin").write_bytes(begin)
    (tmp_path / "end").write_bytes((tmp_path / "x.bin").read_bytes()[6:])
    pieces = [digest_file(tmp_path / "begin"), digest_file(tmp_path / "end")]
    of_pieces = FileDigest(bytes=whole["bytes"], pieces=pieces)
    for number, digest in enumerate((whole, blocks, of_pieces)):
        manifest_of(FLAT, prefix, bin=digest, format_version=3).save(prefix)
        idx = (tmp_path / "x.idx").read_bytes()
        (tmp_path / "x.idx").unlink()
        report, _ = mend(prefix, f"new{number}")
        assert (report.exact, report.notes) == (True, ())
        assert Manifest.load(tmp_path / f"new{number}").bin == digest
        (tmp_path / "x.idx").write_bytes(idx)


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


# -- the command -----------------------------------------------------------------------------------


def run(*arguments: object) -> int:
    return main(["verify", *map(str, arguments)])


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

"""Parquet, Arrow and Hugging Face datasets: the same documents as their own library gives."""

from __future__ import annotations

import multiprocessing
import random
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.faults import flip
from support.sources_twin import WHOLE, one_source, read_parts, read_whole

import tokpack
from tokpack.errors import InputError, UsageError
from tokpack.sources import discover, line_base, make_parts, read
from tokpack.sources.rows import WholeRecords

if TYPE_CHECKING:
    from pathlib import Path

    from tokpack.sources import Part, Source

pa = pytest.importorskip("pyarrow", reason="needs the parquet extra")
pq = pytest.importorskip("pyarrow.parquet")
ds = pytest.importorskip("pyarrow.dataset")

TEXTS = [f"document {i} \u00e9 \U0001f600 " + "w" * (i % 700) for i in range(2000)]
WANT = [text.encode() for text in TEXTS]


def table(texts: list[Any] = TEXTS, kind: Any = None) -> Any:
    column = pa.array(texts, kind or pa.string())
    return pa.table({"id": list(range(len(texts))), "text": column})


KINDS = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "string_view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}


def write_parquet(path: Path, data: Any) -> str:
    pq.write_table(data, path, row_group_size=300)
    return str(path)


def write_stream(path: Path, data: Any) -> str:
    with pa.ipc.new_stream(path, data.schema) as writer:
        writer.write_table(data, max_chunksize=300)
    return str(path)


def write_file(path: Path, data: Any) -> str:
    with pa.ipc.new_file(path, data.schema) as writer:
        writer.write_table(data, max_chunksize=300)
    return str(path)


WRITERS = {"parquet": write_parquet, "arrow-stream": write_stream, "arrow-file": write_file}


@pytest.fixture(params=list(WRITERS))
def writer(request: pytest.FixtureRequest) -> Any:
    return WRITERS[request.param]


@pytest.mark.parametrize("kind", KINDS)
def test_every_column_type(kind: str, writer: Any, tmp_path: Path) -> None:
    path = writer(tmp_path / "no-suffix", table(kind=KINDS[kind]))
    source = one_source(path)
    assert source.format == ("parquet" if writer is write_parquet else "arrow")
    for block_bytes in (500, 5000, 1 << 20):
        got = read_parts(source, [WHOLE], block_bytes=block_bytes)
        assert got.records == list(enumerate(WANT))
        assert got.text_bytes == sum(map(len, WANT))
        assert got.bytes_read == source.size


def test_row_groups_are_parts(writer: Any, tmp_path: Path) -> None:
    source = one_source(writer(tmp_path / "a", table()))
    parts = make_parts([source], ways=3, target_bytes=1, smallest_bytes=1)
    assert [(part.kind, part.begin, part.end) for part in parts] == [
        ("rows", i, i + 1) for i in range(7)
    ]
    got = read_parts(source, parts)
    assert got.records == list(enumerate(WANT))
    assert got.bytes_read == source.size
    assert [line_base(source, part) for part in parts] == [i * 300 for i in range(7)]
    assert len(make_parts([source], ways=1)) == 1


@pytest.mark.parametrize("compression", ["snappy", "zstd", "none"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_parquet_encodings(compression: str, dictionary: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        table(TEXTS[:50] * 20),
        path,
        compression=compression,
        use_dictionary=dictionary,
        data_page_size=1000,
    )
    assert read_whole(str(path)).texts == WANT[:50] * 20


def test_nulls_and_bad_bytes_are_bad_records(writer: Any, tmp_path: Path) -> None:
    texts = [b"a", None, b"", b"\xff\xfe", b"b" * 100, b"\xc3\xa9"]
    got = read_whole(writer(tmp_path / "a", table(texts, pa.binary())), max_document_bytes=50)
    assert got.records == [
        (0, b"a"),
        (1, "'text' is null"),
        (2, b""),
        (3, "invalid UTF-8 at byte 0"),
        (4, "a document of more than 50 bytes"),
        (5, "\u00e9".encode()),
    ]
    got = read_whole(writer(tmp_path / "nulls", table([None, None], pa.null())))
    assert got.records == [(0, "'text' is null"), (1, "'text' is null")]


def test_empty_tables(writer: Any, tmp_path: Path) -> None:
    source = one_source(writer(tmp_path / "a", table([])))
    (part,) = make_parts([source], ways=2)
    assert read_parts(source, [part]).records == []


def test_two_columns(writer: Any, tmp_path: Path) -> None:
    data = pa.table({"a": ["1", None, "3"], "b": ["x", "y", "z" * 9]})
    source = one_source(writer(tmp_path / "a", data))
    (batch,) = read(source, WHOLE, ["b", "a"])
    texts = {key: [docs.text(i) for i in range(len(docs))] for key, docs in batch.documents.items()}
    assert texts == {"b": [b"x", b"z" * 9], "a": [b"1", b"3"]}
    assert [(bad.line, bad.reason) for bad in batch.bad] == [(1, "'a' is null")]


def test_broken_files(writer: Any, tmp_path: Path) -> None:
    path = tmp_path / "a"
    writer(path, table())
    raw = path.read_bytes()
    for cut in (8, len(raw) // 2, len(raw) - 9):
        path.write_bytes(raw[:cut])
        source = one_source(str(path))
        with pytest.raises(InputError, match=r"a: unreadable (parquet|arrow) file"):
            read_parts(source, make_parts([source], ways=1))


def test_odd_names(writer: Any, tmp_path: Path) -> None:
    path = writer(tmp_path / "x", table(TEXTS[:9]))
    odd = tmp_path / "new\nline \udcff"
    (tmp_path / "x").rename(odd)
    assert path != str(odd)
    assert read_whole(str(odd)).texts == WANT[:9]


def test_missing_package_is_named(
    writer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = one_source(writer(tmp_path / "a", table()))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"'tokpack\[parquet\]'"):
        list(read(source, WHOLE, ["text"]))


@pytest.fixture
def hf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    datasets = pytest.importorskip("datasets", reason="needs the hf extra")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return datasets


def test_saved_dataset(hf: Any, tmp_path: Path) -> None:
    folder = str(tmp_path / "saved")
    hf.Dataset.from_dict({"text": TEXTS}).save_to_disk(folder, num_shards=3)
    sources = discover([folder])
    assert [source.format for source in sources] == ["arrow"] * 3
    assert sources[0].name == f"{folder}/data-00000-of-00003.arrow"
    texts = []
    for index, source in enumerate(sources):
        parts = [part for part in make_parts(sources, ways=2) if part.source == index]
        texts += read_parts(source, parts).texts
    assert texts == WANT


def test_saved_dataset_whose_rows_were_selected(hf: Any, tmp_path: Path) -> None:
    folder = str(tmp_path / "saved")
    hf.Dataset.from_dict({"text": TEXTS}).select([5, 3, 3]).save_to_disk(folder)
    assert read_whole(folder).texts == [WANT[5], WANT[3], WANT[3]]


def test_saved_dataset_dict(hf: Any, tmp_path: Path) -> None:
    folder = str(tmp_path / "saved")
    one = hf.Dataset.from_dict({"text": TEXTS[:10]})
    two = hf.Dataset.from_dict({"text": TEXTS[10:20]})
    hf.DatasetDict({"train": one, "test": two}).save_to_disk(folder)
    both = [f"{folder}/train", f"{folder}/test"]
    for names, want in (both[1:], WANT[10:20]), (both, WANT[:20]):
        assert [t for s in discover(names) for t in read_parts(s, [WHOLE]).texts] == want
    (source,) = discover([folder], hf_split="test")
    assert read_parts(source, [WHOLE]).texts == WANT[10:20]
    with pytest.raises(InputError, match="hf_split"):
        discover([folder])
    with pytest.raises(InputError, match=r"/saved: .*'dev': .* train, test, .*hf_split='train'"):
        discover([folder], hf_split="dev")
    with pytest.raises(UsageError, match="hf_split"):
        discover([__file__], hf_split="dev")
    hf.DatasetDict({"all": one}).save_to_disk(tmp_path / "single")
    (source,) = discover([str(tmp_path / "single")])
    assert read_parts(source, [WHOLE]).texts == WANT[:10]


def test_dataset_by_name(hf: Any, tmp_path: Path) -> None:
    folder = tmp_path / "named"
    (folder / "data").mkdir(parents=True)
    write_parquet(folder / "data" / "train-0.parquet", table())
    write_parquet(folder / "data" / "test-0.parquet", table(TEXTS[:5]))
    for name, want in ((f"hf://{folder}", WANT), (f"hf://{folder}:test", WANT[:5])):
        (source,) = discover([name])
        assert source.format == "arrow"
        assert source.name.startswith(f"hf://{folder}:{'test' if ':test' in name else 'train'}/")
        assert read_parts(source, [WHOLE]).texts == want
    (source,) = discover([f"hf://{folder}"], hf_split="test")
    assert read_parts(source, [WHOLE]).texts == WANT[:5]
    with pytest.raises(InputError, match=r"'train\[:5\]'"):
        discover([f"hf://{folder}:train[:5]"])
    with pytest.raises(InputError, match=r"^hf://.*/none: "):
        discover([f"hf://{tmp_path}/none"])


def test_a_hub_that_does_not_answer_is_asked_once(
    hf: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`datasets` tries again for half a minute, and says so each time."""
    monkeypatch.setattr(hf.config, "HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hf.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(InputError, match=r"owner/name: .*http://127.0.0.1:9"):
        discover(["hf://owner/name"])
    assert "Retrying" not in capfd.readouterr().err
    assert not hf.config.HF_HUB_OFFLINE


def test_dataset_by_name_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"'tokpack\[hf\]'"):
        discover(["hf://owner/name"])


def test_a_mistyped_path_asks_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The missing package would be asked for if ``data/wiki`` were taken for a repository."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"^data/wiki: .* hf://data/wiki$"):
        discover(["data/wiki"])
    with pytest.raises(InputError, match=r"owner/name\.jsonl: .* owner$"):
        discover(["owner/name.jsonl"])


def test_offsets_beyond_the_text(tmp_path: Path) -> None:
    """Arrow's own reader does not look at them."""
    path = tmp_path / "a"
    write_stream(path, pa.table({"text": ["a" * 50, "b" * 50]}))
    raw = path.read_bytes()
    offsets = np.array([0, 50, 100], np.int32).tobytes()
    assert raw.count(offsets) == 1
    for broken in ([0, 50, 1000], [50, 0, 100], [-1, 50, 100], [0, 1000, 100]):
        path.write_bytes(raw.replace(offsets, np.array(broken, np.int32).tobytes()))
        with pytest.raises(InputError, match=r"/a: .*arrow.* (offsets|array)"):
            read_whole(str(path))


def test_a_forked_worker_reads_what_its_parent_split(writer: Any, tmp_path: Path) -> None:
    source = one_source(writer(tmp_path / "a", table()))
    parts = make_parts([source], ways=2, target_bytes=1, smallest_bytes=1)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        counts = pool.map(partial(_count, source), parts, chunksize=1)
    assert counts == [300] * 6 + [200]


def _count(source: Source, part: Part) -> int:
    return sum(batch.records for batch in read(source, part, ["text"]))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_page_that_is_not_what_was_written_is_told(version: str, tmp_path: Path) -> None:
    """Spark and parquet-java write checksums of pages; here one byte of a text is another."""
    for is_checked in (True, False):
        path = tmp_path / f"{is_checked}.parquet"
        options: dict[str, Any] = {"compression": "none", "use_dictionary": False}
        pq.write_table(
            table(), path, write_page_checksum=is_checked, data_page_version=version, **options
        )
        flip(path, path.read_bytes().index(b"document 7 "))
    with pytest.raises(InputError, match=r"True\.parquet: .*CRC"):
        read_whole(f"{tmp_path}/True.parquet")
    assert len(read_whole(f"{tmp_path}/False.parquet").texts) == len(TEXTS)


def peak(function: Any) -> int:
    """The most bytes that Arrow has for a function."""
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        function()
    finally:
        pa.set_memory_pool(usual)
    return int(pool.max_memory())


def read_all(path: str, columns: Any, most: int) -> int:
    count = 0
    for batch in read(one_source(path), WHOLE, ["text"], columns=columns):
        count += batch.records
        assert batch.text_bytes <= most
        for documents in batch.documents.values():
            for values in documents.columns.values():
                assert values.nbytes <= most
    return count


@pytest.mark.parametrize("writer", [write_file, write_stream, write_parquet])
@pytest.mark.parametrize("columns", [(), ("other",), WholeRecords({}), WholeRecords({}, {})])
def test_dictionaries_are_decoded_piece_by_piece(writer: Any, columns: Any, tmp_path: Path) -> None:
    """2,200 rows of one text of 1 MB are 2.2 GB, more than a column of Arrow may have."""
    long = "x " * 500_000
    rows = 2200 if not columns else 300
    coded = pa.DictionaryArray.from_arrays(
        pa.array([0, None, 1] * (rows // 3), pa.int32()), [long, "short"]
    )
    path = writer(tmp_path / "a", pa.table({"text": coded, "other": coded}))
    count = 0

    def read_it() -> None:
        nonlocal count
        count = read_all(path, columns, 5 << 20)

    assert peak(read_it) < 32 << 20
    assert count == rows // 3 * 3


def test_dictionaries_are_what_they_stand_for(tmp_path: Path) -> None:
    chance = random.Random(1)
    words = ["", "a", "\u00e9" * 50, "x" * 3000]
    indices = [chance.choice([None, *range(4)]) for _ in range(5000)]
    coded = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), words)
    data = pa.table({"text": coded, "value": coded})
    path = write_file(tmp_path / "a", data)
    got = read_whole(path, block_bytes=10_000)
    assert got.texts == [words[i].encode() for i in indices if i is not None]
    assert [line for line, _ in got.reasons] == [n for n, i in enumerate(indices) if i is None]
    for batch in read(one_source(path), WHOLE, ["text"], columns=["value"], block_bytes=10_000):
        documents = batch.documents["text"]
        values = documents.columns["value"].to_pylist()
        assert [documents.text(i).decode() for i in range(len(documents))] == values


def test_rows_of_a_dictionary_page_are_not_read_all_at_once(tmp_path: Path) -> None:
    """A row group of 1 MB may be gigabytes of strings."""
    long = "x " * 500_000
    pq.write_table(pa.table({"text": [long] * 600}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 1 << 20
    path, counts = f"{tmp_path}/a.parquet", []
    assert peak(lambda: counts.append(read_all(path, (), 5 << 20))) < 400 << 20
    assert counts == [600]


def hive(folder: Path) -> Path:
    for lang, year in (("de", "2024"), ("en", "2025"), ("__HIVE_DEFAULT_PARTITION__", "0")):
        path = folder / f"lang={lang}" / f"year={year}" / "name=a%20b"
        path.mkdir(parents=True)
        rows = [{"text": f"{lang} {i}", "id": i} for i in range(3)]
        pq.write_table(pa.Table.from_pylist(rows), path / "part.parquet")
        write_file(path / "part.arrow", pa.Table.from_pylist(rows))
    return folder


def test_folders_of_hive_are_columns(tmp_path: Path, bpe: Path) -> None:
    pytest.importorskip("duckdb", reason="needs the select extra")
    folder = hive(tmp_path / "hive")
    for suffix in ("parquet", "arrow"):
        pattern = f"{folder}/**/*.{suffix}"
        keep = ["lang", "year", "name"]
        tokpack.encode(pattern, tmp_path / "o", tokenizer=bpe, keep=keep, overwrite=True)
        kept = pq.read_table(tmp_path / "o.docs.parquet").select([*keep, "line"])
        theirs = ds.dataset(
            sorted(map(str, folder.rglob(f"*.{suffix}"))),
            format="ipc" if suffix == "arrow" else suffix,
            partitioning=ds.partitioning(flavor="hive"),
        )
        rows = theirs.to_table(columns=keep).to_pylist()
        assert [{name: one[name] for name in keep} for one in kept.to_pylist()] == rows
        chosen = tokpack.encode(
            *(pattern, tmp_path / "o"),
            tokenizer=bpe,
            where="lang = 'de' or year < 1",
            overwrite=True,
        )
        assert (chosen.documents, chosen.left_out) == (6, 3)
        mapped = tokpack.encode(
            *(pattern, tmp_path / "o"),
            tokenizer=bpe,
            map=lambda batch: {"text": [f"{one}" for one in batch["name"].to_pylist()]},
            overwrite=True,
        )
        assert mapped.documents == 9


def test_a_column_of_a_file_comes_before_its_folder(tmp_path: Path, bpe: Path) -> None:
    path = tmp_path / "lang=de"
    path.mkdir()
    pq.write_table(pa.table({"text": ["a"], "lang": ["en"]}), path / "a.parquet")
    tokpack.encode(str(path), tmp_path / "o", tokenizer=bpe, keep=["lang"])
    assert pq.read_table(tmp_path / "o.docs.parquet")["lang"].to_pylist() == ["en"]


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    with pytest.raises(InputError, match="2 columns 'text'"):
        read_whole(write_file(tmp_path / "a.arrow", twice))

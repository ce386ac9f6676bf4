"""What of this process is taken for what, and refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.encoding_tools import write_jsonl
from support.in_process_tools import KEYS, TEXTS, table

import tokpack
from tokpack.errors import InputError, OutputError, UsageError
from tokpack.sources import Source, columns, in_process

if TYPE_CHECKING:
    from pathlib import Path


pa = pytest.importorskip("pyarrow", reason="needs the parquet extra")


def test_names_of_files(tmp_path: Path, bpe: Path) -> None:
    path = write_jsonl(tmp_path / "a b.jsonl", TEXTS[:5])
    for named in (str(path), path, [str(path)], (path,), tmp_path.glob("*.jsonl")):
        assert in_process(named, KEYS) == (str(path),)
    pattern = f"{tmp_path}/*.jsonl"
    for named in (pattern, "s3://a/b c", "@a b", f"{path}, {path}", [], "hf://wikitext"):
        assert in_process(named, KEYS) == ((named,) if named else ())
    for text in ("Hello.", ["How are you?", "b"], "a\nb", [str(path), "b"], ["x" * 300], ["hello"]):
        with pytest.raises(InputError, match="texts="):
            in_process(text, KEYS)
    with pytest.raises(InputError, match=r"a b\.jsonl"):
        in_process([f"{tmp_path}/a bb.jsonl"], KEYS)


def test_texts_are_texts_whatever_they_look_like(bpe: Path, tmp_path: Path) -> None:
    texts = [str(write_jsonl(tmp_path / "a.jsonl", TEXTS[:5])), "hello", "hello world"]
    made = [
        tokpack.encode(given, tmp_path / str(number), texts=more, tokenizer=bpe)
        for number, (given, more) in enumerate(
            (([{"text": text} for text in texts], None), (None, texts), (None, iter(texts)))
        )
    ]
    assert [one.documents for one in made] == [3, 3, 3]
    assert len({(tmp_path / f"{number}.bin").read_bytes() for number in range(3)}) == 1
    for given, more, said in (
        (texts, texts, r"\binputs and texts\b"),
        (None, "hello", "^texts .*'hello'"),
    ):
        with pytest.raises(UsageError, match=said):
            tokpack.encode(given, tmp_path / "x", texts=more, tokenizer=bpe)


def test_hugging_face_names_and_refusals() -> None:
    datasets = pytest.importorskip("datasets", reason="needs the hf extra")
    made = datasets.Dataset.from_dict({"text": ["a"]}, split="train")
    made.info.dataset_name = "wikitext"
    source = in_process(made, KEYS)
    assert isinstance(source, Source)
    assert source.name == "datasets:wikitext/train"
    with pytest.raises(UsageError, match="'train', 'test'"):
        in_process(datasets.DatasetDict(train=made, test=made), KEYS)
    only = in_process(datasets.DatasetDict(train=made), KEYS)
    assert isinstance(only, Source)
    assert only.fingerprint() == source.fingerprint()
    with pytest.raises(UsageError, match=r"\biter\(dataset\)"):
        in_process(made.with_transform(dict), KEYS)
    with pytest.raises(InputError, match=r"'txt'; .* text$"):
        in_process(made, ["txt"])


def test_frames_that_cannot_be_read() -> None:
    library = pytest.importorskip("pandas", reason="needs pandas")
    for frame, said in (
        (library.DataFrame({"x": ["a"]}), "^table: .*'text'; .* x$"),
        (library.DataFrame({"text": ["a", 5]}), r"^table: .*\bArrow\b.*iter\(table\['text'\]\)"),
    ):
        with pytest.raises(InputError, match=said):
            in_process(frame, KEYS)


@pytest.mark.parametrize("kind", ["string", "string_view", "dictionary"])
def test_a_table_in_other_chunks_is_the_same(kind: str) -> None:
    texts = ["a", None, "some text"] * 20
    arrays = [pa.chunked_array(cut) for cut in ([texts], [texts[:7], texts[7:]])]
    plain = [array.dictionary_encode() if kind == "dictionary" else array for array in arrays]
    made = [array.cast(kind) if kind == "string_view" else array for array in plain]
    sources = [in_process(pa.table({"text": array}), KEYS) for array in made]
    first, second = (one for one in sources if isinstance(one, Source))
    assert first.size == second.size == 60 * 4 + 20 * len("asome text")
    assert first.fingerprint() == second.fingerprint()


def test_a_text_that_begins_like_the_name_of_an_input() -> None:
    source = in_process(iter(["https://example.com is a site."]), KEYS)
    assert isinstance(source, Source)
    assert source.format == "documents"


def test_a_large_table_is_known_by_some_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def fingerprint(rows: Any) -> str:
        source = in_process(rows, KEYS)
        assert isinstance(source, Source)
        return source.fingerprint()

    other = [*TEXTS[:-1], TEXTS[-1][:-1] + "!"]
    prints = [table(), pa.table({"text": TEXTS}), pa.table({"text": other})]
    assert len({fingerprint(one) for one in prints}) == 2
    monkeypatch.setattr(columns, "_HASHED_BYTES", 1000)
    assert len({fingerprint(one) for one in prints}) == 2


def test_a_saved_dataset_is_known_by_its_files_too(tmp_path: Path, bpe: Path) -> None:
    """Its state.json says only what they were when they were written."""
    hf = pytest.importorskip("datasets", reason="needs the hf extra")
    hf.Dataset.from_dict({"text": TEXTS}).save_to_disk(str(tmp_path / "saved"))
    (file,) = (tmp_path / "saved").glob("*.arrow")

    def again() -> Any:
        made = hf.load_from_disk(str(tmp_path / "saved"))
        return tokpack.encode(made, tmp_path / "o", tokenizer=bpe)

    first = again()
    assert again().created == first.created  # complete already
    raw = bytearray(file.read_bytes())
    at = raw.index(TEXTS[-1].encode()[:8])
    raw[at : at + 1] = b"z"
    file.unlink()  # it is mapped by the dataset above
    file.write_bytes(raw)
    with pytest.raises(OutputError, match="changed"):
        again()

"""Mended Unicode and sentences, against the libraries used by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers
from support.encoding_tools import EOD, dataset, documents, idx_and_bin, twin, write_jsonl

import tokpack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXTS = [
    "Dr. No came. He left!  Why?\nNobody knows.\n\n Nobody asks.",
    "",
    "one",
    "   \n  ",
    'He said "no." She said (yes!) and went. 3.5 is a number... or so.',
    "\u2018Quoted.\u2019 Then not.",
]


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Any]:
    """A Punkt model trained here, where NLTK finds it under the name of a language."""
    pytest.importorskip("nltk", reason="NLTK is not installed")
    import nltk
    from nltk.tokenize import punkt

    trainer = punkt.PunktTrainer("Dr. No met Dr. Who. Dr. Strange came. They left. " * 40)
    params = trainer.get_params()
    folder = tmp_path / "data" / "tokenizers" / "punkt_tab" / "klingon"
    folder.mkdir(parents=True)
    before = list(nltk.data.path)
    nltk.data.path[:] = [str(tmp_path / "data")]
    punkt.save_punkt_params(params, dir=str(folder))
    yield params
    nltk.data.path[:] = before


def sentences_twin(tokenizer: Path, texts: list[str], splitter: Any) -> tuple[bytes, bytes]:
    """Each sentence a sequence, EOD after the last one that has a token."""
    encoder = tokenizers.Tokenizer.from_file(str(tokenizer))
    rows: list[list[int]] = []
    doc_idx = [0]
    for text in texts:
        ids = [encoder.encode(s, add_special_tokens=False).ids for s in splitter.tokenize(text)]
        own = [row for row in ids if row]
        if own:
            own[-1].append(encoder.token_to_id(EOD))
            rows += own
            doc_idx.append(len(rows))
    return idx_and_bin(rows, [len(row) for row in rows], doc_idx, "uint16")


@pytest.mark.parametrize("keep_newlines", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_sentences(
    tmp_path: Path, bpe: Path, model: Any, keep_newlines: bool, workers: int
) -> None:
    from nltk.tokenize import punkt

    class Keeping(punkt.PunktLanguageVars):  # type: ignore[misc]
        _period_context_fmt = r"""
            \S*%(SentEndChars)s\s*
            (?=(?P<after_tok>%(NonWord)s|(?P<next_tok>\S+)))"""

    splitter = punkt.PunktSentenceTokenizer(model, lang_vars=Keeping() if keep_newlines else None)
    if not keep_newlines:
        assert len(splitter.tokenize(TEXTS[0])) == 4
    else:  # the space after a sentence is its own, so nothing between them is lost
        assert "".join(splitter.tokenize(TEXTS[0])) == TEXTS[0]
    texts = [
        *TEXTS,
        *(f"{a}. {b}!\n{b}" for a, b in zip(documents(50), documents(50), strict=True)),
    ]
    inputs = [
        str(write_jsonl(tmp_path / "a.jsonl", texts[:30])),
        str(write_jsonl(tmp_path / "b.jsonl", texts[30:])),
    ]
    output = tmp_path / "out"
    manifest = tokpack.encode(
        inputs,
        str(output),
        tokenizer=str(bpe),
        split_sentences=True,
        keep_newlines=keep_newlines,
        lang="klingon",
        workers=workers,
    )
    assert dataset(output) == sentences_twin(bpe, texts, splitter)
    assert manifest.sequences > manifest.documents == len(texts) - manifest.empty
    assert manifest.options["lang"] == "klingon"
    assert manifest.options["nltk"]


def test_no_model(tmp_path: Path, bpe: Path, model: Any) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    with pytest.raises(tokpack.UsageError, match=r"nltk\.downloader punkt_tab"):
        tokpack.encode(
            str(source), str(tmp_path / "o"), tokenizer=str(bpe), split_sentences=True, lang="latin"
        )
    assert not (tmp_path / "o.unfinished").exists()


def test_bad_records_of_sentences(tmp_path: Path, bpe: Path, model: Any) -> None:
    """A special token is found in its document, not in the sentence of that number."""
    source = tmp_path / "a.jsonl"
    texts = ["A. B. C. D.", "E. F.", f"G. H. {EOD} I.", "J."]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    with pytest.raises(tokpack.RecordError, match=r"a\.jsonl:3"):
        tokpack.encode(
            str(source),
            str(tmp_path / "o"),
            tokenizer=str(bpe),
            split_sentences=True,
            lang="klingon",
            special_tokens="error",
        )


def test_ftfy(tmp_path: Path, bpe: Path) -> None:
    ftfy = pytest.importorskip("ftfy", reason="ftfy is not installed")
    texts = ["schÃ¶n", "", "plain", "&lt;b&gt; âœ” No problems", "\ufb01ne \u201cquotes\u201d"]
    source = write_jsonl(tmp_path / "a.jsonl", texts)
    manifest = tokpack.encode(
        str(source), str(tmp_path / "out"), tokenizer=str(bpe), ftfy=True, workers=1
    )
    mended = [ftfy.fix_text(text) for text in texts]
    assert mended[0] == "schön"
    assert dataset(tmp_path / "out") == twin(bpe, mended)
    assert manifest.options["ftfy"]

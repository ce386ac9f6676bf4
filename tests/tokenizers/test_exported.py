"""The files of a tokenizer for transformers: the same ids, or none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.rank_files import OWN, save_lines
from support.sentencepiece_tools import HOSTILE, MODELS, TEXTS, trained
from support.tiny_tokenizers import pair, save, tiny

from tokpack.errors import TokenizerError
from tokpack.tokenizers import Tokenizer, chat_files, files_of, load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

transformers: Any = pytest.importorskip("transformers")


def exported(tokenizer: Tokenizer, folder: Path) -> Any:
    """What transformers makes of the files, in a folder with the config of a model."""
    folder.mkdir()
    for name, content in files_of(tokenizer, chat_files(tokenizer), 1024, None).items():
        (folder / name).write_bytes(content)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


@pytest.mark.parametrize("name", ["llama", "sentences"])
def test_a_sentencepiece_bpe_has_the_same_ids_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "tokenizer.model").write_bytes(trained(name))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.model")
    theirs = exported(tokenizer, tmp_path / "out")
    for text in (*TEXTS, *HOSTILE):
        # A special token that a text writes is a token there, and text here.
        if not any(token in text for token in ("<s>", "</s>", "<unk>", "<c>")):
            assert theirs.encode(text, add_special_tokens=False) == tokenizer.encode(text), text
    assert theirs.eos_token_id == tokenizer.eod_id
    assert theirs.unk_token is None or theirs.unk_token == "<unk>"


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"llama", "sentences"}))
def test_other_sentencepiece_models_have_none_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "tokenizer.model").write_bytes(trained(name))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.model")
    with pytest.raises(TokenizerError, match=r"^transformers .*/tokenizer\.model \(it "):
        files_of(tokenizer, chat_files(tokenizer), 1024, None)


def test_vocabularies_of_words_have_none_there(tmp_path: Path) -> None:
    path = save(tmp_path, {"<unk>": 0, "<|endoftext|>": 1, "a": 2}, "words.json")
    tokenizer = load_tokenizer(path, tokenizer_type="Whitespace")
    with pytest.raises(TokenizerError, match=r"^transformers .*/words\.json \(whitespace"):
        files_of(tokenizer, chat_files(tokenizer), 1024, None)


def test_other_tokenizers_have_the_same_ids_there(tmp_path: Path) -> None:
    """Those of a folder with what its config adds."""
    save(tmp_path, tiny())
    save(tmp_path, {"additional_special_tokens": ["<|im_end|>"]}, "tokenizer_config.json")
    ranks = save_lines(tmp_path, OWN)
    two = pair(tmp_path, tiny()["model"]["vocab"], "a b\nab c\n")
    requests = (
        {"tokenizer": tmp_path},
        {"tokenizer": ranks, "pattern": "cl100k"},
        {**two, "tokenizer_type": "HFGPT2Tokenizer"},
    )
    for number, request in enumerate(requests):
        tokenizer = load_tokenizer(**request)
        theirs = exported(tokenizer, tmp_path / str(number))
        text = "abc 123 don't" + "<|im_end|>" * (number == 0)
        assert theirs.encode(text) == tokenizer.encode(text)
        assert len(theirs) == tokenizer.vocab_size

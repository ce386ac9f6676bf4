"""A tokenizer from files or a folder; their content says what they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokpack.errors import TokenizerError, UsageError
from tokpack.files.foreign import read_object
from tokpack.tokenizers import ranks, spec_cache
from tokpack.tokenizers.gpt2_files import (
    parse_json,
    parse_merges,
    parse_vocab,
    read_bytes,
    spec_from_files,
    warn_of_unreachable,
)
from tokpack.tokenizers.huggingface import HuggingFaceTokenizer
from tokpack.tokenizers.native import JsonTokenizer, NativeTokenizer
from tokpack.tokenizers.sentencepiece import SentencePieceTokenizer
from tokpack.tokenizers.spec import (
    ByteLevelSpec,
    MetaspaceSpec,
    NotNativeError,
    UnigramSpec,
    WordPieceSpec,
)
from tokpack.tokenizers.spec_json import spec_from_json
from tokpack.tokenizers.spec_metaspace import metaspace_spec, writes_spaces
from tokpack.tokenizers.spec_unigram import is_unigram, unigram_spec
from tokpack.tokenizers.spec_wordpiece import is_wordpiece, wordpiece_spec

if TYPE_CHECKING:
    from pathlib import Path

    from tokpack.tokenizers.base import Tokenizer, TokenizerOptions
    from tokpack.tokenizers.spec import BpeSpec

JSON_FILES = ("tokenizer.json", "20B_tokenizer.json")
GPT2_FILES = (
    ("vocab.json", "merges.txt"),
    ("gpt2-vocab.json", "gpt2-merges.txt"),
    ("encoder.json", "vocab.bpe"),
)
MODEL_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json")
_PATTERNS = ("tokenizer.model.v*", "*.tiktoken", "tiktoken.model")  # where a folder has one of them


def find(folder: Path) -> list[Path] | None:
    """The files of the tokenizer in a folder: a tokenizer.json, GPT-2's two files, or a model."""
    choices = (*((file,) for file in JSON_FILES), *GPT2_FILES, *((file,) for file in MODEL_FILES))
    for files in choices:
        paths = [folder / file for file in files]
        if all(path.is_file() for path in paths):
            return paths
    for pattern in _PATTERNS:
        paths = [path for path in folder.glob(pattern) if path.is_file()]
        if len(paths) == 1:
            return paths
    return None


def from_path(path: Path, name: str, choice: TokenizerOptions) -> Tokenizer:
    """A tokenizer's file, or the folder that it is in."""
    if not path.is_dir():
        return from_files([path], name, choice)
    files = find(path)
    if files is None:
        raise TokenizerError(
            f"{path}: the folder has no tokenizer.json, no vocab.json with merges.txt, no "
            "tokenizer.model, no tekken.json and no .tiktoken file, or several of one kind"
        )
    return from_files(files, name, choice)


def from_files(files: list[Path], name: str, choice: TokenizerOptions) -> Tokenizer:
    """One file, or GPT-2's two."""
    if len(files) == 2:
        return from_gpt2_files(files[0], files[1], name, choice)
    tokenizer = _from_file(files[0], name, choice)
    tokenizer.files = tuple(files)
    return tokenizer


def _from_file(path: Path, name: str, choice: TokenizerOptions) -> Tokenizer:
    raw = read_bytes(path)
    if ranks.is_ranks(raw) or path.suffix == ".tiktoken":
        return ranks.from_file(raw, path, name, choice)
    _refuse_pattern(path, choice)
    eos = _eos_of_config(path) if choice.eos_of_config and choice.eod_token is None else None
    if eos is not None:
        tokenizer = _from_file(path, name, choice._replace(eod_token=eos))
        tokenizer.arguments = {"tokenizer_type": "HuggingFaceTokenizer"}
        return tokenizer
    if _is_sentencepiece(raw) or path.suffix == ".model":
        return SentencePieceTokenizer(name, raw, eod_token=choice.eod_token)
    return from_json(raw, path, name, choice)


def _refuse_pattern(path: Path, choice: TokenizerOptions) -> None:
    if choice.pattern is not None:
        raise UsageError(
            f"{path}: its pattern cannot be chosen: --pattern is for a .tiktoken file, which does "
            "not say it"
        )


def _eos_of_config(path: Path) -> str | None:
    """The eos_token of the tokenizer_config.json beside a file, if there is one."""
    config = path.parent / "tokenizer_config.json"
    if not config.is_file():
        return None
    eos = read_object(config, missing=TokenizerError, wrong=TokenizerError).get("eos_token")
    content = eos.get("content") if isinstance(eos, dict) else eos
    return content if isinstance(content, str) else None


def _is_sentencepiece(raw: bytes) -> bool:
    """Whether a file begins as a SentencePiece model does: with a piece, its text and its score."""
    if raw[:1] != b"\n":  # field 1, of a length
        return False
    at = 1
    while raw[at : at + 1] >= b"\x80" and at < 5:
        at += 1
    text = raw[at + 1 : at + 3]
    return text[:1] == b"\n" and text[1:] < b"\x80" and raw[at + 3 + text[-1] :][:1] == b"\x15"


def from_json(raw: bytes, path: Path, name: str, choice: TokenizerOptions) -> Tokenizer:
    """The tokenizer of the text of a tokenizer.json, or of a tekken.json. TokenizerError."""
    if not raw.strip():
        raise TokenizerError(f"{path}: the file is empty")

    def read() -> BpeSpec:
        definition = _tokenizer_json(raw, path)
        if is_unigram(definition):
            return unigram_spec(definition)
        if is_wordpiece(definition):
            return wordpiece_spec(definition)
        build = metaspace_spec if writes_spaces(definition) else spec_from_json
        return build(definition)

    try:
        spec = spec_cache.kept(raw, read)
    except _TekkenFound as other:
        return ranks.from_tekken(other.definition, path, name, choice)
    except NotNativeError as reason:
        return HuggingFaceTokenizer(
            name, raw, why_not_native=str(reason), eod_token=choice.eod_token
        )
    if isinstance(spec, ByteLevelSpec):
        return NativeTokenizer(
            name,
            spec,
            reference=(raw,),
            special_tokens_default=choice.special or "encode",
            eod_token=choice.eod_token,
        )
    assert isinstance(spec, MetaspaceSpec | UnigramSpec | WordPieceSpec)
    return JsonTokenizer(name, raw, spec, eod_token=choice.eod_token)


class _TekkenFound(Exception):  # noqa: N818 - not an error
    """The file is a tekken.json: it is not to be read, and kept in the cache, as another one."""

    def __init__(self, definition: dict[str, Any]) -> None:
        super().__init__()
        self.definition = definition


def _tokenizer_json(raw: bytes, path: Path) -> dict[str, Any]:
    """The object in a tokenizer.json; TokenizerError for another file's, _TekkenFound for one."""
    definition: Any = parse_json(raw, path)
    if ranks.is_tekken(definition):
        raise _TekkenFound(definition)
    if isinstance(definition, list):
        raise TokenizerError(
            f"{path}: a JSON list: if it is the vocabulary of a TikTokenizer, add "
            "--tokenizer-type TikTokenizer"
        )
    if not isinstance(definition, dict) or not isinstance(definition.get("model"), dict):
        raise TokenizerError(
            f"{path}: not a tokenizer.json (it has no model); a vocab.json needs its merges: add "
            "--merge-file; a vocabulary of words needs --tokenizer-type Whitespace"
        )
    return definition


def from_gpt2_files(
    vocab_file: Path, merge_file: Path, name: str, choice: TokenizerOptions
) -> Tokenizer:
    """GPT-2's pair of files, or TokenizerError where they are of two tokenizers."""
    _refuse_pattern(vocab_file, choice)
    raw_vocab, raw_merges = read_bytes(vocab_file), read_bytes(merge_file)

    def read() -> BpeSpec:
        vocab = parse_vocab(raw_vocab, vocab_file)
        return spec_from_files(vocab, parse_merges(raw_merges, merge_file), vocab_file, merge_file)

    spec = spec_cache.kept(b"%d\n%b%b" % (len(raw_vocab), raw_vocab, raw_merges), read)
    assert isinstance(spec, ByteLevelSpec)
    warn_of_unreachable(spec, vocab_file, merge_file)
    tokenizer = NativeTokenizer(
        name,
        spec,
        reference=(raw_vocab, raw_merges),
        special_tokens_default=choice.special or "text",
        eod_token=choice.eod_token,
    )
    tokenizer.files = (vocab_file, merge_file)
    return tokenizer
